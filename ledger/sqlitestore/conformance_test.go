package sqlitestore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// testStart is when tests begin.
const testStart ledger.Time = 1_900_000_000_000_000

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Factory{Open: openBackend})
}

// TestRandomHistoriesOfTheLedgerAgreeWithTheModel plays a hundred; STORETEST_HISTORIES=10000 plays ten thousand.
func TestRandomHistoriesOfTheLedgerAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	storetest.Histories(t, storetest.Factory{Open: openBackend}, 100)
}

func openBackend(tb testing.TB) *storetest.Backend {
	moving := storetest.NewClock(testStart)
	s := openForTest(tb, Config{Dir: tb.TempDir(), Clock: moving.Now})
	return &storetest.Backend{
		Store: s, Clock: moving, ByAge: true,
		Reopen: func(tb testing.TB) ledger.Store {
			s = openForTest(tb, Config{Dir: remains(tb, s), Clock: moving.Now})
			return s
		},
		Residue: func(tb testing.TB) int { return residue(tb, s) },
		Spoil: func(tb testing.TB, scope ledger.ScopeID) {
			spoil(tb, s, scope, "answer", sealed(&scope, []byte("an answer of another version")))
		},
	}
}

// spoil puts something else in place of what stands in a row, so that only its reader can tell: pages and log are as they were written.
func spoil(tb testing.TB, s *Store, scope ledger.ScopeID, column string, content any) {
	tb.Helper()
	head, tail := scopeKey(&scope)
	err := s.queue.submit(tb.Context(), s.queue.sooner, &job{weight: 1, do: func(w *writer, _ ledger.Time) (bool, error) {
		w.memory.forget(scope)
		result, err := w.conn.exec("UPDATE entry SET "+column+" = ? WHERE scope_head = ? AND scope_tail = ?", content, head, tail)
		if err != nil {
			return false, err
		}
		return result.rows == 1, nil
	}})
	if err != nil {
		tb.Fatal(err)
	}
}

// openForTest opens a store that is closed with the test.
func openForTest(tb testing.TB, cfg Config) *Store {
	tb.Helper()
	s, err := Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return s
}

// remains is a directory with what a process that dies now would leave behind: the database and the log as they are, nothing tidied up.
func remains(tb testing.TB, s *Store) string {
	tb.Helper()
	dir := tb.TempDir()
	for _, name := range []string{lockName, databaseName, databaseName + logSuffix, databaseName + sealsSuffix} {
		content, err := os.ReadFile(filepath.Join(s.cfg.Dir, name))
		if err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

func residue(tb testing.TB, s *Store) int {
	tb.Helper()
	total := 0
	for _, table := range []string{"entry", "answer", "history", "name WHERE id NOT IN (SELECT name FROM entry)"} {
		err := s.read(tb.Context(), "count", func(c *connection) error {
			n, err := c.number(tb.Context(), "SELECT count(*) FROM "+table)
			total += int(n)
			return err
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return total
}
