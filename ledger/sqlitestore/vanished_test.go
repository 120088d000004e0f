package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestALedgerThatVanishedIsNotBegunAnew: an empty ledger runs everything again that is retried, so where there are traces of one, none is made up.
func TestALedgerThatVanishedIsNotBegunAnew(t *testing.T) {
	t.Parallel()
	remove := func(names ...string) func(dir string) error {
		return func(dir string) error {
			var errs []error
			for _, name := range names {
				errs = append(errs, os.Remove(filepath.Join(dir, name)))
			}
			return errors.Join(errs...)
		}
	}
	emptied := func(dir string) error { return os.Truncate(filepath.Join(dir, databaseName), 0) }
	for name, c := range map[string]struct {
		crashed bool
		lose    func(dir string) error
		says    string
	}{
		"the database, after a stop": {false, remove(databaseName), lockName + " says so"},
		"the database and its seals": {false, remove(databaseName, databaseName+sealsSuffix), lockName + " says so"},
		"the database and the lock":  {false, remove(databaseName, lockName), sealsSuffix + " is left"},
		"all that the database held": {false, emptied, lockName + " says so"},
		"the same, and all beside it": {false, func(dir string) error {
			return errors.Join(emptied(dir), remove(lockName, databaseName+sealsSuffix)(dir))
		}, "is empty"},
		"the database and the log, in a crash": {true, remove(databaseName, databaseName+logSuffix), lockName + " says so"},
		"the log, after a crash":               {true, remove(databaseName + logSuffix), "acknowledged writes are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var dir string
			if c.crashed {
				s := openForTest(t, Config{Dir: t.TempDir()})
				pair(t, s, 1, 10)
				dir = remains(t, s)
			} else {
				dir = closedLedger(t, 1)
			}
			if err := c.lose(dir); err != nil {
				t.Fatal(err)
			}
			for range 2 { // a start that was refused leaves nothing that lets the next one through
				refused(t, dir, c.says, "restore a backup")
			}
		})
	}
}

// TestAFirstStartThatBrokeOffIsTakenUpAgain, wherever it was killed.
func TestAFirstStartThatBrokeOffIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	whole := closedLedger(t, 0)
	for name, half := range map[string]func(dir string) error{
		"an empty directory": func(string) error { return nil },
		"the lock is there":  func(dir string) error { return os.WriteFile(filepath.Join(dir, lockName), []byte("1\n"), 0o600) },
		"it was about to begin": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, lockName), []byte("1\n"+lastMaking+"\n"), 0o600)
		},
		"the file is empty": func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, lockName), []byte("1\n"+lastMaking+"\n"), 0o600),
				os.WriteFile(filepath.Join(dir, databaseName), nil, 0o600))
		},
		"the seals do not count yet": func(dir string) error {
			return errors.Join(os.CopyFS(dir, os.DirFS(whole)), os.Remove(filepath.Join(dir, lockName)),
				os.WriteFile(filepath.Join(dir, lockName), []byte("1\n"+lastMaking+"\n"), 0o600),
				os.Rename(filepath.Join(dir, databaseName+sealsSuffix), filepath.Join(dir, databaseName+unprovenSuffix)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := half(dir); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s := openForTest(t, Config{Dir: dir})
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestAnyNameOfTheDirectoryWillDo: SQLite is told one name, and the layer knows it by that, however the directory was named.
func TestAnyNameOfTheDirectoryWillDo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"with space", "größe ☃ 100%25", "a?mode=memory&b#c", "it's \"quoted\""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), name)
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			s := openForTest(t, Config{Dir: dir})
			pair(t, s, 1, 10)
			if _, err := Open(t.Context(), Config{Dir: link}); err == nil {
				t.Error("opened a second time, by a link")
			}
			copied := filepath.Join(dir, "backup.db")
			if _, err := Backup(t.Context(), link, copied); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(dir, databaseName+sealsSuffix)); err != nil {
				t.Error(err)
			}
			if s = openForTest(t, Config{Dir: link}); !has(t, s, 1) {
				t.Error("the entry is gone")
			}
		})
	}
}

// TestAClockWithoutItsMarkIsRefused: a recovery that lost the one row would otherwise start the clock anywhere, and never write a mark again.
func TestAClockWithoutItsMarkIsRefused(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 1)
	script(t, filepath.Join(dir, databaseName), "DELETE FROM clock")
	if err := errors.Join(os.Remove(filepath.Join(dir, databaseName+sealsSuffix)), os.Remove(filepath.Join(dir, lockName))); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, "damaged", "mark of its clock")
}
