package fingerprint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestPolyglot runs the verifiers that are written in other languages, where these and their packages are
// there. C41 is theirs as much as Go's: three independent programs agree about every vector.
func TestPolyglot(t *testing.T) {
	t.Run("python", func(t *testing.T) {
		// Debian's protobuf is a package of Debian's own Python, which need not be the first on the PATH.
		for _, python := range []string{"/usr/bin/python3", "python3"} {
			if exec.CommandContext(t.Context(), python, "-c", "import google.protobuf.unknown_fields").Run() == nil {
				verify(t, python, filepath.Join("python", "verify.py"))
				return
			}
		}
		t.Skip("skipped the Python verifier: no python3 with the protobuf package; `apt-get install python3-protobuf` would run it")
	})
	t.Run("node", func(t *testing.T) {
		if _, err := exec.LookPath("node"); err != nil {
			t.Skip("skipped the Node verifier: no node on the PATH; Node.js 20 or later and `npm ci --prefix clientlib/fingerprint/node` would run it")
		}
		if _, err := os.Stat(filepath.Join("node", "node_modules", "@bufbuild", "protobuf")); err != nil {
			t.Skip("skipped the Node verifier: its packages are not installed; `npm ci --prefix clientlib/fingerprint/node` would run it")
		}
		verify(t, "node", filepath.Join("node", "verify.js"))
	})
}

var verdict = regexp.MustCompile(`(?m)^[1-9]\d* passed, 0 failed`)

func verify(t *testing.T, interpreter, program string) {
	t.Helper()
	// Reading the sources tells the test cache that the result depends on them.
	sources, err := filepath.Glob(filepath.Join(filepath.Dir(program), "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range sources {
		if _, err := os.ReadFile(source); err != nil {
			t.Fatal(err)
		}
	}
	var out, errors bytes.Buffer
	command := exec.CommandContext(t.Context(), interpreter, program, vectorsFile)
	command.Stdout, command.Stderr = &out, &errors
	if err := command.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", interpreter, program, err, out.Bytes(), errors.Bytes())
	}
	if !verdict.Match(out.Bytes()) {
		t.Fatalf("%s %s checked nothing:\n%s", interpreter, program, out.Bytes())
	}
	t.Logf("%s", out.Bytes())
}

// TestPolyglotNoticesAWrongHash: a verifier that passes whatever it is given would prove nothing.
func TestPolyglotNoticesAWrongHash(t *testing.T) {
	raw, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	wrong := regexp.MustCompile(`"hash": "[0-9a-f]{8}`).ReplaceAll(raw, []byte(`"hash": "00000000`))
	file := filepath.Join(t.TempDir(), "vectors.json")
	if err := os.WriteFile(file, wrong, 0o644); err != nil {
		t.Fatal(err)
	}
	ran := false
	for _, command := range [][]string{{"/usr/bin/python3", "python/verify.py"}, {"node", "node/verify.js"}} {
		out, err := exec.CommandContext(t.Context(), command[0], command[1], file).Output()
		if !regexp.MustCompile(`(?m)^\d+ passed, \d+ failed`).Match(out) {
			continue // it is not installed; TestPolyglot says so
		}
		ran = true
		if err == nil {
			t.Errorf("%s passed wrong hashes:\n%.500s", command[1], out)
		}
	}
	if !ran {
		t.Skip("skipped: neither verifier is installed; `apt-get install python3-protobuf` would run Python's, `npm ci --prefix clientlib/fingerprint/node` Node's")
	}
}
