package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"os"
	"strings"

	"github.com/idemd/idemd/clientlib/fingerprint"
)

// fingerprintVersion begins what is hashed. A change to what follows makes a new one: the same command would otherwise be refused KEY_REUSED
// after an upgrade.
const fingerprintVersion = "idemd exec 1\n"

// Kinds of what counts, each with its length in front, so that no two command lines hash alike.
const (
	countsArgument = 'a'
	countsFile     = 'f'
	countsVariable = 'e'
	countsFolder   = 'd'
	countsStdin    = 'i'
)

// fingerprint says what was asked. It takes standard input where that counts too, and puts it back for the command.
func (x *execution) fingerprint() (fingerprint.Fingerprint, error) {
	var hasher fingerprint.BytesHasher
	_, _ = hasher.Write([]byte(fingerprintVersion)) // it never fails
	add := func(kind byte, value []byte) {
		_, _ = hasher.Write(binary.BigEndian.AppendUint64([]byte{kind}, uint64(len(value))))
		_, _ = hasher.Write(value)
	}
	for _, arg := range x.args {
		add(countsArgument, []byte(arg))
	}
	for _, path := range x.flags.fingerprintFiles {
		sum, err := sumOfFile(path)
		if err != nil {
			return fingerprint.Fingerprint{}, execUsage("--fingerprint-file: %w", err)
		}
		add(countsFile, sum)
	}
	for _, name := range x.flags.fingerprintEnv {
		pair := name // not set is another thing than empty
		for _, set := range x.w.environ {
			if strings.HasPrefix(set, name+"=") {
				pair = set
			}
		}
		add(countsVariable, []byte(pair))
	}
	if x.flags.fingerprintFolder {
		dir, err := os.Getwd()
		if err != nil {
			return fingerprint.Fingerprint{}, execUsage("--fingerprint-dir: %w", err)
		}
		add(countsFolder, []byte(dir))
	}
	x.stdin = x.w.stdin
	if x.flags.fingerprintStdin {
		content, err := readAtMost(x.w.stdin, maxInputBytes)
		if err != nil {
			return fingerprint.Fingerprint{}, execUsage("--fingerprint-stdin: %w", err)
		}
		add(countsStdin, content)
		x.stdin = io.Reader(bytes.NewReader(content))
	}
	asked, err := hasher.Sum()
	if err != nil {
		return fingerprint.Fingerprint{}, execUsage("%w", err)
	}
	return asked, nil
}

// sumOfFile reads a file of any length.
func sumOfFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return hash.Sum(nil), err
}

// alsoCounts names what beside the command counts.
func (f *execFlags) alsoCounts() string {
	var more []string
	if len(f.fingerprintFiles) > 0 {
		more = append(more, "what is in "+strings.Join(f.fingerprintFiles, ", "))
	}
	if len(f.fingerprintEnv) > 0 {
		more = append(more, "the variables "+strings.Join(f.fingerprintEnv, ", "))
	}
	if f.fingerprintFolder {
		more = append(more, "the current directory")
	}
	if f.fingerprintStdin {
		more = append(more, "standard input")
	}
	if len(more) == 0 {
		return ""
	}
	return ", and " + strings.Join(more, ", and ")
}
