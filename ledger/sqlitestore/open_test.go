package sqlitestore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/idemd/idemd/ledger"
)

func TestConfigSaysWhatIsWrongWithIt(t *testing.T) {
	t.Parallel()
	for word, cfg := range map[string]Config{
		"Dir":          {},
		"MaxWallAhead": {Dir: "x", MaxWallAhead: -1},
		"Readers":      {Dir: "x", Readers: -1},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%+v: %v, want a word about %s", cfg, err, word)
		}
	}
	if err := (Config{Dir: "x"}).Validate(); err != nil {
		t.Error(err)
	}
	if _, err := Open(t.Context(), Config{}); err == nil {
		t.Error("opened without a directory")
	}
}

// refused opens dir and returns why it can not be, in words that name what is wanted.
func refused(t *testing.T, dir string, words ...string) {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir})
	if err == nil {
		_ = s.Close()
		t.Fatal("opened")
	}
	for _, word := range append(words, dir) {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

// closedLedger is a directory with a ledger of some entries that was closed in order.
func closedLedger(t *testing.T, entries int64) string {
	t.Helper()
	dir := t.TempDir()
	s, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, entries)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func edit(t *testing.T, path string, change func([]byte) []byte) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// script runs statements on the file from outside.
func script(t *testing.T, path, sql string) {
	t.Helper()
	c, err := openConnection(t.Context(), path, "", toMake)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.script(t.Context(), sql), c.close()); err != nil {
		t.Fatal(err)
	}
}

func TestOneProcessADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openForTest(t, Config{Dir: dir})
	refused(t, dir, "in use", "process "+strconv.Itoa(os.Getpid()))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openForTest(t, Config{Dir: dir})
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "ledger")
	s := openForTest(t, Config{Dir: dir})
	pair(t, s, 1, 10)
	for path, want := range map[string]os.FileMode{
		"": 0o700, lockName: 0o600, databaseName: 0o600, databaseName + "-wal": 0o600, databaseName + "-shm": 0o600,
	} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", info.Name(), got, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, databaseName), 0o644); err != nil {
		t.Fatal(err)
	}
	openForTest(t, Config{Dir: dir})
	if info, err := os.Stat(filepath.Join(dir, databaseName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file that others could read is left so: %v, %v", info.Mode(), err)
	}
}

func TestADirectoryThatIsAFileIsSaidSo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, file, "not a directory")
}

func TestAFileThatIsNoLedgerIsLeftAlone(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		make func(t *testing.T, path string)
		says string
	}{
		"no database": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, bytes.Repeat([]byte("no database "), 1000), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not an SQLite database"},
		"three bytes": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not an SQLite database"},
		"another application's": {func(t *testing.T, path string) {
			script(t, path, "PRAGMA application_id = 7; CREATE TABLE t (x)")
		}, "another application"},
		"an application's that does not say whose": {func(t *testing.T, path string) {
			script(t, path, "CREATE TABLE t (x)")
		}, "another application"},
		"a newer idemd's": {func(t *testing.T, path string) {
			script(t, path, "PRAGMA application_id = "+strconv.Itoa(applicationID)+"; PRAGMA user_version = 999; CREATE TABLE t (x)")
		}, "a newer idemd"},
		"a ledger's without a version": {func(t *testing.T, path string) {
			script(t, path, "PRAGMA application_id = "+strconv.Itoa(applicationID)+"; CREATE TABLE t (x)")
		}, "damaged"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, databaseName)
			c.make(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			refused(t, dir, c.says)
			after, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(before, after) {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

func TestADamagedFileIsRefusedWithWhatToDo(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 2000)
	whole, err := os.ReadFile(filepath.Join(dir, databaseName))
	if err != nil {
		t.Fatal(err)
	}
	middle := len(whole) / 2 / 4096 * 4096
	cases := map[string]func([]byte) []byte{
		"bytes in the middle are overwritten": func(b []byte) []byte {
			for i := range 4096 * 4 {
				b[middle+i] = 0xA5
			}
			return b
		},
		"the schema is overwritten": func(b []byte) []byte { copy(b[100:4000], make([]byte, 3900)); return b },
		"the end is cut off":        func(b []byte) []byte { return b[:middle+1000] },
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, databaseName), damage(bytes.Clone(whole)), 0o600); err != nil {
				t.Fatal(err)
			}
			refused(t, dir, "damaged", "restore a backup")
		})
	}
}

// The checksum of an answer goes with the row, and so through every tool that copies rows past the seals.
func TestDamageInsideAnAnswerIsAnErrorAndNeverAnAnswer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{200, 5000} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := openForTest(t, Config{Dir: dir})
			pair(t, s, 1, size)
			r, err := s.Get(t.Context(), scopeOf(1))
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			part := r.Entry.Response.Body[50:80]
			edit(t, filepath.Join(dir, databaseName), func(b []byte) []byte {
				at := bytes.Index(b, part)
				if at < 0 {
					t.Fatal("the answer is not in the file")
				}
				b[at] ^= 1
				return b
			})
			refused(t, dir, "damaged")
			if err := os.Remove(filepath.Join(dir, databaseName+sealsSuffix)); err != nil {
				t.Fatal(err)
			}
			s = openForTest(t, Config{Dir: dir})
			if r, err := s.Get(t.Context(), scopeOf(1)); !errors.Is(err, ledger.ErrUnavailable) || !strings.Contains(err.Error(), "answer") {
				t.Errorf("answered %+v, %v", r.Entry, err)
			}
		})
	}
}

func TestALogWithoutItsDatabaseIsNotThrownAway(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	for name, lose := range map[string]func(path string) error{
		"missing": os.Remove,
		"empty":   func(path string) error { return os.Truncate(path, 0) },
	} {
		dir := remains(t, s)
		if err := lose(filepath.Join(dir, databaseName)); err != nil {
			t.Fatal(err)
		}
		refused(t, dir, "write-ahead log is there", "restore a backup")
		if info, err := os.Stat(filepath.Join(dir, databaseName+"-wal")); err != nil || info.Size() == 0 {
			t.Errorf("%s: the log is gone", name)
		}
	}
}

// A log that ends in the middle of a commit is what a crash leaves; what was acknowledged before is in it whole.
func TestALogThatWasCutShortHoldsWhatWasCommittedBeforeTheCut(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	info, err := os.Stat(filepath.Join(s.cfg.Dir, databaseName+"-wal"))
	if err != nil {
		t.Fatal(err)
	}
	pair(t, s, 2, 10)
	for _, cut := range []int64{1, 24, 100, 4096, 9000} {
		dir := remains(t, s)
		if err := os.Truncate(filepath.Join(dir, databaseName+"-wal"), info.Size()+cut); err != nil {
			t.Fatal(err)
		}
		again := openForTest(t, Config{Dir: dir})
		if !has(t, again, 1) {
			t.Errorf("cut %d bytes behind it, an acknowledged entry is gone", cut)
		}
		if r, err := again.Get(t.Context(), scopeOf(2)); err != nil || (r.Entry != nil && r.Entry.State != ledger.Pending) {
			t.Errorf("cut %d bytes into later commits: %+v, %v", cut, r.Entry, err)
		}
	}
}

func TestTheFileIsCheckedUpToASize(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 500)
	var log bytes.Buffer
	cfg := Config{Dir: dir, CheckBytes: 1, Logger: textLogger(&log)}
	s := openForTest(t, cfg)
	if !strings.Contains(log.String(), "not checked") {
		t.Errorf("a file that is not checked is opened without a word: %s", &log)
	}
	if !has(t, s, 1) {
		t.Error("the entry is gone")
	}
}

func TestMigrationsStartFromNothingOnceOnly(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 1)
	s := openForTest(t, Config{Dir: dir})
	list, err := migrations()
	if err != nil || s.schema != int64(len(list)) {
		t.Errorf("schema %d of %d, %v", s.schema, len(list), err)
	}
	if !has(t, s, 1) {
		t.Error("the entry is gone")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, Config{Dir: t.TempDir()}); err == nil {
		t.Error("opened with a context that has ended")
	}
}
