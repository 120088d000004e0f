package sqlitestore

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/idemd/idemd/ledger"
)

// damageSeeds is how many damaged copies of a ledger are tried; SQLITESTORE_DAMAGE_SEEDS=20000 tries more.
const damageSeeds = 60

// truth is a ledger as a crash left it, partly in the log, and what is in it.
type truth struct {
	files   map[string][]byte
	entries map[int64]*ledger.Entry // without those of the last commits, which a power failure could have spoiled as well
	lost    map[ledger.ScopeID]bool // the scopes of those
	setting []byte
}

// settledLedger has entries in every shape that the file has room for.
func settledLedger(t *testing.T) *truth {
	t.Helper()
	s := openForTest(t, Config{Dir: t.TempDir()})
	tr := &truth{files: map[string][]byte{}, entries: map[int64]*ledger.Entry{}, lost: map[ledger.ScopeID]bool{}, setting: bytes.Repeat([]byte("secret"), 9)}
	if did, err := s.PutSetting(t.Context(), ledger.Setting{Kind: "secret", Name: "v1", Body: tr.setting}, 0); err != nil || !did {
		t.Fatal(did, err)
	}
	const settled, open, sacrificed = 120, 30, 2
	n := int64(0)
	for ; n < settled; n++ {
		if pair(t, s, n, []int{0, 200, 3000, 9000}[n%4]); n == settled*2/3 {
			if busy, err := s.log.empty(); busy || err != nil {
				t.Fatal(busy, err)
			}
		}
	}
	for ; n < settled+open+sacrificed; n++ {
		if w, err := s.Write(t.Context(), claimed(n)); err != nil || !w.Applied {
			t.Fatal(w, err)
		}
		if n >= settled+open {
			tr.lost[scopeOf(n)] = true
			continue
		}
		r, err := s.Get(t.Context(), scopeOf(n))
		if err != nil {
			t.Fatal(err)
		}
		tr.entries[n] = r.Entry
	}
	for n := range int64(settled) {
		r, err := s.Get(t.Context(), scopeOf(n))
		if err != nil {
			t.Fatal(err)
		}
		tr.entries[n] = r.Entry
	}
	dir := remains(t, s)
	for _, suffix := range []string{"", logSuffix, sealsSuffix} {
		content, err := os.ReadFile(filepath.Join(dir, databaseName+suffix))
		if err != nil {
			t.Fatal(err)
		}
		tr.files[suffix] = content
	}
	return tr
}

// copyTo writes the files into a directory, changed by damage.
func (tr *truth) copyTo(t *testing.T, dir string, damage func(suffix string, content []byte) []byte) {
	t.Helper()
	for suffix, content := range tr.files {
		if err := os.WriteFile(filepath.Join(dir, databaseName+suffix), damage(suffix, bytes.Clone(content)), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// damages are the ways in which a file goes bad.
var damages = map[string]func(r *rand.Rand, b []byte) []byte{
	"a bit turns": func(r *rand.Rand, b []byte) []byte { b[r.IntN(len(b))] ^= 1 << r.IntN(8); return b },
	"some bytes change": func(r *rand.Rand, b []byte) []byte {
		for range 1 + r.IntN(8) {
			b[r.IntN(len(b))] = byte(r.Uint32())
		}
		return b
	},
	"a sector is zero":    func(r *rand.Rand, b []byte) []byte { clear(sector(r, b)); return b },
	"a sector is another": func(r *rand.Rand, b []byte) []byte { copy(sector(r, b), sector(r, b)); return b },
	"a page is another": func(r *rand.Rand, b []byte) []byte {
		if pages := len(b) / pageBytes; pages > 0 {
			to, from := r.IntN(pages)*pageBytes, r.IntN(pages)*pageBytes
			copy(b[to:to+pageBytes], b[from:from+pageBytes])
		}
		return b
	},
	"the end is gone": func(r *rand.Rand, b []byte) []byte { return b[:len(b)-1-r.IntN(len(b)/2)] },
}

var damageNames = slices.Sorted(maps.Keys(damages))

func sector(r *rand.Rand, b []byte) []byte {
	const size = 512
	at := r.IntN(max(len(b)/size, 1)) * size
	return b[at:min(at+size, len(b))]
}

// TestADamagedLedgerNeverAnswersWrong damages the files of a ledger in every way that disks have, and asks it everything: each answer is the true one
// or an error. Nothing that was granted is granted again.
func TestADamagedLedgerNeverAnswersWrong(t *testing.T) {
	t.Parallel()
	tr := settledLedger(t)
	seeds := int64(damageSeeds)
	if text := os.Getenv("SQLITESTORE_DAMAGE_SEEDS"); text != "" {
		var err error
		if seeds, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	root := t.TempDir()
	var next, refusedAtStart, refusedLater atomic.Int64
	together(16, func() { // each waits for the disk most of the time
		for seed := next.Add(1); seed <= seeds && !t.Failed(); seed = next.Add(1) {
			early, late := tr.try(t, filepath.Join(root, strconv.FormatInt(seed, 10)), seed)
			refusedAtStart.Add(early)
			refusedLater.Add(late)
		}
	})
	if refusedAtStart.Load() == 0 || refusedLater.Load() == 0 {
		t.Errorf("refused at the start: %d, later: %d: that tests nothing", refusedAtStart.Load(), refusedLater.Load())
	}
}

// try damages a copy by a seed, and counts whether it was refused at the start or later.
func (tr *truth) try(t *testing.T, dir string, seed int64) (early, late int64) {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(seed), 7)) //nolint:gosec // a seed is positive
	kind := damageNames[r.IntN(len(damageNames))]
	victim := []string{"", "", "", logSuffix, sealsSuffix}[r.IntN(5)]
	if kind == "the end is gone" && victim == logSuffix {
		return 0, 0 // that is what a power failure leaves
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Error(err)
		return 0, 0
	}
	tr.copyTo(t, dir, func(suffix string, b []byte) []byte {
		if suffix != victim {
			return b
		}
		return damages[kind](r, b)
	})
	// Every other one without a check at the start, as a large file has none.
	s, err := Open(t.Context(), Config{Dir: dir, CheckBytes: -(seed % 2)})
	if err != nil {
		early = 1
	} else {
		if tr.ask(t, s, fmt.Sprintf("seed %d: %s in ledger.db%s", seed, kind, victim)) {
			late = 1
		}
		_ = s.Close() // it may be damaged
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	return early, late
}

// ask asks a damaged store everything twice, with writes in between, and reports whether it refused any of it.
func (tr *truth) ask(t *testing.T, s *Store, where string) (refused bool) {
	t.Helper()
	for range 2 {
		for n, want := range tr.entries {
			r, err := s.Get(t.Context(), scopeOf(n))
			refused = refused || err != nil
			if err == nil && !reflect.DeepEqual(r.Entry, want) {
				t.Errorf("%s: entry %d is answered %+v, is %+v", where, n, r.Entry, want)
			}
		}
		page, err := s.Page(t.Context(), ledger.PageQuery{Order: ledger.ByName, Limit: ledger.MaxPageRows})
		refused = refused || err != nil
		if err == nil {
			tr.compare(t, page.Entries, where)
		}
		settings, err := s.Settings(t.Context(), "secret")
		refused = refused || err != nil
		if err == nil && (len(settings.List) != 1 || !bytes.Equal(settings.List[0].Body, tr.setting)) {
			t.Errorf("%s: the setting is answered %+v", where, settings.List)
		}
		for n := range tr.entries {
			w, err := s.Write(t.Context(), claimed(n))
			refused = refused || err != nil
			if w.Applied {
				t.Errorf("%s: entry %d is granted again", where, n)
			}
		}
	}
	return refused
}

func (tr *truth) compare(t *testing.T, list []*ledger.Entry, where string) {
	t.Helper()
	seen := 0
	for _, e := range list {
		if !tr.lost[e.Scope] {
			seen++
		}
	}
	if seen != len(tr.entries) {
		t.Errorf("%s: a list has %d entries, want %d", where, seen, len(tr.entries))
	}
}

// TestDamageWhileServing: what goes bad under a running daemon is noticed when it is read, be it in the database or in the log. From then on
// nothing is granted, the store is not ready and says why, once; what is whole is still answered.
func TestDamageWhileServing(t *testing.T) {
	t.Parallel()
	for _, suffix := range []string{"", logSuffix} {
		t.Run("ledger.db"+suffix, func(t *testing.T) {
			t.Parallel()
			const last = 100
			var log bytes.Buffer
			dir := t.TempDir()
			s := openForTest(t, Config{Dir: dir, Logger: textLogger(&log), Readers: 1})
			for n := int64(1); n < last; n++ { // on several pages
				pair(t, s, n, 200)
			}
			pair(t, s, last, 10)
			if suffix == "" {
				if busy, err := s.log.empty(); busy || err != nil {
					t.Fatal(busy, err)
				}
			}
			if !has(t, s, last) {
				t.Fatal("the entry is gone")
			}
			edit(t, filepath.Join(dir, databaseName+suffix), func(b []byte) []byte {
				at := bytes.LastIndex(b, []byte(claimed(1).Put.Ref.Key))
				if at < 0 {
					t.Fatal("the row is not there")
				}
				b[at] ^= 1 // another key: nothing in the row's own form is wrong
				return b
			})
			for range 2 {
				if r, err := s.Get(t.Context(), scopeOf(1)); !errors.Is(err, ledger.ErrUnavailable) || !errors.Is(err, ledger.FaultDamaged) {
					t.Errorf("answered %+v, %v", r.Entry, err)
				}
				if _, err := s.Ready(t.Context()); !errors.Is(err, ledger.FaultDamaged) {
					t.Errorf("ready: %v", err)
				}
				if w, err := s.Write(t.Context(), claimed(last+1)); !errors.Is(err, ledger.FaultDamaged) || w.Applied {
					t.Errorf("granted on a damaged ledger: %+v, %v", w, err)
				}
			}
			if !has(t, s, last) {
				t.Error("what is whole is not answered")
			}
			if w, err := s.Write(t.Context(), claimed(last)); err != nil || w.Applied {
				t.Errorf("a retry of what is there: %+v, %v", w, err)
			}
			if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
				t.Errorf("%d errors are logged, want 1:\n%s", n, &log)
			}
		})
	}
}

// TestABackupOfADamagedLedgerIsNoBackup.
func TestABackupOfADamagedLedgerIsNoBackup(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 100)
	edit(t, filepath.Join(dir, databaseName), func(b []byte) []byte {
		b[bytes.Index(b, []byte(claimed(50).Put.Ref.Key))] ^= 1
		return b
	})
	path := filepath.Join(t.TempDir(), "backup.db")
	if _, err := Backup(t.Context(), dir, path); !errors.Is(err, ledger.FaultDamaged) && !isDamage(err) {
		t.Errorf("got %v", err)
	}
	if left, err := filepath.Glob(path + "*"); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// TestALogDamagedInTheMiddleIsNotCutShort: SQLite itself would read up to the damage and drop the rest without a word.
func TestALogDamagedInTheMiddleIsNotCutShort(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	for n := range int64(6) {
		pair(t, s, n, 10)
	}
	for _, at := range []int64{3, 20, logHeaderBytes + 3, logHeaderBytes + frameBytes + 500} {
		dir := remains(t, s)
		edit(t, filepath.Join(dir, databaseName+logSuffix), func(b []byte) []byte { b[at] ^= 4; return b })
		refused(t, dir, "damaged", "write-ahead log", "restore a backup")
	}
}

// TestAFailedCommitLeavesNothingThatLooksLikeDamage: frames of commits that failed lie behind the last good one, and the next start must not take
// them for acknowledged.
func TestAFailedCommitLeavesNothingThatLooksLikeDamage(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	for n := range int64(3) {
		d.sync.Store(failing(sqlite3.SQLITE_IOERR_FSYNC))
		w := claimed(10 + n)
		w.Put.Last.Holder = strings.Repeat("h", int(40_000-9_000*n)) // ever fewer frames, so that each leaves some of the one before
		if _, err := s.Write(t.Context(), w); !errors.Is(err, ledger.ErrUnknown) {
			t.Fatal(err)
		}
	}
	d.sync.Store(nil)
	pair(t, s, 2, 10)
	if again := openForTest(t, Config{Dir: remains(t, s)}); !has(t, again, 1) || !has(t, again, 2) || has(t, again, 10) {
		t.Error("not exactly what was acknowledged is there")
	}
}

// TestWhatFailedCommitsLeftUnderAReaderIsClearedAway as soon as the reader is gone: the log can not be emptied before.
func TestWhatFailedCommitsLeftUnderAReaderIsClearedAway(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	outside, err := openConnection(t.Context(), filepath.Join(s.cfg.Dir, databaseName), "", toRead)
	if err != nil {
		t.Fatal(err)
	}
	if err := outside.script(t.Context(), "BEGIN; SELECT count(*) FROM entry"); err != nil {
		t.Fatal(err)
	}
	for n := range int64(3) {
		d.sync.Store(failing(sqlite3.SQLITE_IOERR_FSYNC))
		w := claimed(10 + n)
		w.Put.Last.Holder = strings.Repeat("h", int(40_000-9_000*n))
		if _, err := s.Write(t.Context(), w); !errors.Is(err, ledger.ErrUnknown) {
			t.Fatal(err)
		}
	}
	d.sync.Store(nil)
	if w, err := s.Write(t.Context(), claimed(2)); err != nil || !w.Applied {
		t.Fatal(w, err)
	}
	if err := outside.close(); err != nil {
		t.Fatal(err)
	}
	if w, err := s.Write(t.Context(), claimed(3)); err != nil || !w.Applied {
		t.Fatal(w, err)
	}
	if again := openForTest(t, Config{Dir: remains(t, s)}); !has(t, again, 2) || !has(t, again, 3) || has(t, again, 10) {
		t.Error("not exactly what was acknowledged is there")
	}
}

// TestADatabaseOfAnotherToolIsSealedOnce: a copy made by other tools has no seals. It is checked whole, indexes against tables, and then sealed.
func TestADatabaseOfAnotherToolIsSealedOnce(t *testing.T) {
	t.Parallel()
	dir := closedLedger(t, 50)
	path := filepath.Join(dir, databaseName)
	unseal := func() {
		if err := errors.Join(os.Remove(path+sealsSuffix), os.Remove(filepath.Join(dir, lockName))); err != nil {
			t.Fatal(err)
		}
	}
	unseal()
	for _, says := range []bool{true, false} {
		var log bytes.Buffer
		s := openForTest(t, Config{Dir: dir, Logger: textLogger(&log)})
		if !has(t, s, 1) {
			t.Error("the entry is gone")
		}
		if strings.Contains(log.String(), "checked whole") != says {
			t.Errorf("checked whole: want %t\n%s", says, &log)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// An index that lacks a row is sound in its structure, and hides an entry.
	for _, sql := range []string{
		"PRAGMA writable_schema = on; CREATE TABLE kept AS SELECT * FROM sqlite_schema WHERE name = 'entry_by_scope'; " +
			"DELETE FROM sqlite_schema WHERE name = 'entry_by_scope'",
		"UPDATE entry SET scope_head = 0 WHERE id = 1",
		"PRAGMA writable_schema = on; INSERT INTO sqlite_schema SELECT * FROM kept",
		"DROP TABLE kept",
	} {
		script(t, path, sql)
	}
	unseal()
	refused(t, dir, "damaged")
	refused(t, dir, "damaged") // and what was refused is not sealed
}

// TestAReaderThatOutlivesTheDaemonIsNoDamage: a shell that reads and stays open closes the database last, and SQLite has the last one empty the log.
func TestAReaderThatOutlivesTheDaemonIsNoDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openForTest(t, Config{Dir: dir})
	path := filepath.Join(dir, databaseName)
	outside, err := openConnection(t.Context(), path, "", toWrite) // as sqlite3 opens it, and past the layer
	if err != nil {
		t.Fatal(err)
	}
	if _, err := outside.number(t.Context(), "SELECT count(*) FROM entry"); err != nil {
		t.Fatal(err)
	}
	pair(t, s, 1, 10)
	if err := errors.Join(s.Close(), outside.close()); err != nil {
		t.Fatal(err)
	}
	if again := openForTest(t, Config{Dir: dir}); !has(t, again, 1) {
		t.Error("the entry is gone")
	}
}
