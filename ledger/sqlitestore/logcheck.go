package sqlitestore

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// checkLog looks for damage in the write-ahead log that a crash left, before SQLite reads it. SQLite reads up to the first frame whose checksum does not
// match and drops the rest without a word: right for what was being written when the power went, and a silent loss of acknowledged writes
// where a bit turned in the middle. The two can be told apart, since each commit was synced before the next was begun: a power failure spoils the
// last commit only. Where two whole commits stand behind the damage, at least one that was acknowledged would be lost.
//
// Damage to the last commit, or to the one before it together with its mark, can not be told from a power failure.
func checkLog(database string) error {
	file, err := os.Open(database + logSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	defer func() { _ = file.Close() }()
	sound, err := soundLog(bufio.NewReaderSize(file, 1<<20))
	switch {
	case err != nil:
		return fmt.Errorf("sqlitestore: cannot read %s: %w", file.Name(), err)
	case !sound:
		return damagedFile(database, errors.New("a part of its write-ahead log is not as it was written, and acknowledged writes stand behind it"))
	}
	return nil
}

const (
	logMagic     = 0x377f0682 // checksums of little-endian words; one more: of big-endian ones
	lostCommits  = 2
	saltsAt      = 16 // in the log's header
	frameSaltsAt = 8
	saltBytes    = 8
)

func soundLog(log io.Reader) (bool, error) {
	header := make([]byte, logHeaderBytes)
	if _, err := io.ReadFull(log, header); err != nil {
		return true, unlessShort(err) // no commit was ever synced
	}
	sum := logSum{}.over(header[:logHeaderBytes-8])
	if binary.BigEndian.Uint32(header) != logMagic+wordOrder() || sum != logSumAt(header[logHeaderBytes-8:]) {
		// The header is synced before the first frame is written.
		return allZero(header, log)
	}
	frame := make([]byte, frameBytes)
	whole, commits := true, 0
	for commits < lostCommits {
		if _, err := io.ReadFull(log, frame); err != nil {
			return true, unlessShort(err)
		}
		own := bytes.Equal(frame[frameSaltsAt:frameSaltsAt+saltBytes], header[saltsAt:saltsAt+saltBytes])
		whole = whole && own && frameHolds(sum, frame[:frameHeaderBytes], frame[frameHeaderBytes:])
		sum = logSumAt(frame[16:])
		if isCommit := binary.BigEndian.Uint32(frame[4:]) != 0; !whole && own && isCommit {
			commits++
		}
	}
	return false, nil
}

func unlessShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// wordOrder is 1 on a machine of big-endian words.
func wordOrder() uint32 {
	return binary.NativeEndian.Uint32([]byte{0, 0, 0, 1}) & 1
}

func allZero(start []byte, rest io.Reader) (bool, error) {
	block := make([]byte, 1<<16)
	zero := make([]byte, len(block))
	for n, err := copy(block, start), error(nil); ; n, err = rest.Read(block) {
		if !bytes.Equal(block[:n], zero[:n]) {
			return false, nil
		}
		if err != nil {
			return true, unlessShort(err)
		}
	}
}
