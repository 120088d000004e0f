package sqlitestore

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/idemd/idemd/ledger"
)

func TestABackupTakenWhileServingIsWholeAndOpens(t *testing.T) {
	t.Parallel()
	serving := t.TempDir()
	s := openForTest(t, Config{Dir: serving})
	fill(t, s, 500)
	var stop atomic.Bool
	busy := make(chan struct{})
	go func() {
		defer close(busy)
		for n := int64(1000); !stop.Load(); n++ {
			pair(t, s, n, 5000)
		}
	}()
	dir := t.TempDir()
	path := filepath.Join(dir, "it's a copy?%41.db")
	size, err := Backup(t.Context(), serving, path)
	if err != nil {
		t.Fatal(err)
	}
	stop.Store(true)
	<-busy
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 || info.Size() != size {
		t.Errorf("mode %v, %d bytes of %d, %v", info.Mode(), info.Size(), size, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left beside the copy: %v, %v", left, err)
	}
	restored := t.TempDir()
	if err := os.Rename(path, filepath.Join(restored, databaseName)); err != nil {
		t.Fatal(err)
	}
	again := openForTest(t, Config{Dir: restored})
	verdict := ""
	err = again.read(t.Context(), "check", func(c *connection) (err error) {
		verdict, err = c.text(t.Context(), "PRAGMA integrity_check")
		return err
	})
	if err != nil || verdict != "ok" {
		t.Errorf("integrity check: %q, %v", verdict, err)
	}
	for n := int64(1); n <= 500; n++ {
		if r, err := again.Get(t.Context(), scopeOf(n)); err != nil || r.Entry == nil || r.Entry.State != ledger.Completed {
			t.Fatalf("entry %d of the copy: %+v, %v", n, r.Entry, err)
		}
	}
	if w, err := again.Write(t.Context(), claimed(-1)); err != nil || !w.Applied {
		t.Errorf("the copy takes no writes: %+v, %v", w, err)
	}
}

func TestABackupOverwritesNothing(t *testing.T) {
	t.Parallel()
	serving := t.TempDir()
	openForTest(t, Config{Dir: serving})
	for _, content := range []string{"", "something"} {
		path := filepath.Join(t.TempDir(), "copy")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Backup(t.Context(), serving, path); !errors.Is(err, fs.ErrExist) {
			t.Errorf("got %v, want a refusal", err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("the file now holds %q, %v", got, err)
		}
	}
}

func TestABackupThatIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	serving := t.TempDir()
	fill(t, openForTest(t, Config{Dir: serving}), 10)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Backup(ctx, serving, filepath.Join(dir, "copy")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
	if _, err := Backup(t.Context(), serving, filepath.Join(dir, "missing", "copy")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("to a directory that is not there: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestABackupOfADirectoryWithoutALedgerMakesNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Backup(t.Context(), dir, filepath.Join(dir, "copy")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want a refusal", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
