package sqlitestore

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// asNobody runs do with the file access of a user who owns nothing: a test that runs as root is refused nothing otherwise.
func asNobody(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			_ = unix.Setfsgid(65534)
			_ = unix.Setfsuid(65534)
		}
		do()
	}()
	<-done
}

func TestADirectoryThatMayNotBeWrittenIsSaidSo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(d, 0o755) })
	}
	for path, says := range map[string]string{dir: "cannot write in " + dir, filepath.Join(dir, "new"): "permission denied"} {
		var err error
		asNobody(func() { _, err = Open(t.Context(), Config{Dir: path}) })
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want it to say %q", path, err, says)
		}
	}
}

func TestAFileThatMayNotBeWrittenIsSaidSo(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 1)
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{lockName, databaseName + sealsSuffix} {
		if err := os.Chmod(filepath.Join(dir, name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, databaseName), 0o444); err != nil {
		t.Fatal(err)
	}
	var err error
	asNobody(func() { _, err = Open(t.Context(), Config{Dir: dir}) })
	if err == nil || !strings.Contains(err.Error(), "needs a file that it can write to") {
		t.Errorf("got %v", err)
	}
}
