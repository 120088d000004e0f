package sqlitestore

import (
	"errors"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/idemd/idemd/ledger"
)

// openOnTestDisk opens a store on a disk in the test's hands.
func openOnTestDisk(t *testing.T, cfg Config) (*Store, *disk) {
	t.Helper()
	d := testDisk(t, filepath.Join(cfg.Dir, databaseName))
	s, err := open(t.Context(), cfg, machine{time: machineTime, vfs: diskName})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, d
}

// has reports whether the store shows the entry of claimed(n).
func has(t *testing.T, s *Store, n int64) bool {
	t.Helper()
	r, err := s.Get(t.Context(), scopeOf(n))
	if err != nil {
		t.Fatal(err)
	}
	return r.Entry != nil
}

func TestNoReaderSeesAWriteBeforeItsSyncIsDone(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 0, 10) // the log is begun: from now on a commit is one sync
	syncing, release := make(chan struct{}), make(chan struct{})
	hold := func() int32 {
		syncing <- struct{}{}
		<-release
		return sqlite3.SQLITE_OK
	}
	d.sync.Store(&hold)
	acknowledged := make(chan error, 1)
	go func() {
		_, err := s.Write(t.Context(), claimed(1))
		acknowledged <- err
	}()
	<-syncing
	for range 100 {
		if has(t, s, 1) {
			t.Fatal("a reader saw a write that a crash could still erase")
		}
	}
	select {
	case err := <-acknowledged:
		t.Fatalf("acknowledged (%v) before the sync was done", err)
	default:
	}
	d.sync.Store(nil)
	release <- struct{}{}
	if err := <-acknowledged; err != nil {
		t.Fatal(err)
	}
	if !has(t, s, 1) {
		t.Fatal("an acknowledged write is not to be seen")
	}
}

func TestEveryAcknowledgementHasASync(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	for n := range int64(5) {
		before := d.syncs.Load()
		pair(t, s, n, 10)
		if syncs := d.syncs.Load() - before; syncs < 2 {
			t.Errorf("%d syncs for two acknowledged writes", syncs)
		}
	}
}

func TestACommitIsWrittenWholeInOnePieceBeforeItsSyncBegins(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 0, 10) // the log is begun: from now on a commit is one sync
	var writes atomic.Int64
	count := func() int32 {
		writes.Add(1)
		return sqlite3.SQLITE_OK
	}
	syncing, release := make(chan struct{}), make(chan struct{})
	hold := func() int32 {
		syncing <- struct{}{}
		<-release
		return sqlite3.SQLITE_OK
	}
	d.write.Store(&count)
	d.sync.Store(&hold)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := s.Write(t.Context(), claimed(1)); err != nil {
			t.Error(err)
		}
	}()
	<-syncing
	if !has(t, openForTest(t, Config{Dir: remains(t, s)}), 1) {
		t.Error("a sync was begun while part of what it should make durable was not written")
	}
	d.sync.Store(nil)
	release <- struct{}{}
	<-done
	if n := writes.Load(); n != 1 {
		t.Errorf("a commit of a few pages took %d writes", n)
	}
}

func TestOpeningSyncsWhatAKilledProcessLeftInTheLog(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	dir := remains(t, s)
	again, d := openOnTestDisk(t, Config{Dir: dir})
	if d.syncs.Load() == 0 {
		t.Error("the log was not synced before anybody could be answered from it")
	}
	if !has(t, again, 1) {
		t.Error("the acknowledged entry is gone")
	}
}

func TestASyncThatFailsLeavesTheWriteUnknownAndUnseen(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	d.sync.Store(failing(sqlite3.SQLITE_IOERR_FSYNC))
	_, err := s.Write(t.Context(), claimed(2))
	if !errors.Is(err, ledger.ErrUnknown) || errors.Is(err, ledger.ErrUnavailable) {
		t.Fatalf("got %v, want an unknown outcome", err)
	}
	if has(t, s, 2) {
		t.Error("a reader sees what was not durable")
	}
	if _, err := s.Ready(t.Context()); err == nil {
		t.Error("ready, although nothing can be committed")
	}
	d.sync.Store(nil)
	if _, err := s.Ready(t.Context()); err != nil {
		t.Errorf("not ready, although the disk is well again: %v", err)
	}
	// Ready's commit went over the frames of the failed one: now it certainly did not happen, whatever comes.
	again := openForTest(t, Config{Dir: remains(t, s)})
	if has(t, again, 2) || !has(t, again, 1) {
		t.Errorf("after a crash: the failed write is there: %t, the acknowledged one: %t", has(t, again, 2), has(t, again, 1))
	}
	if w, err := s.Write(t.Context(), claimed(2)); err != nil || !w.Applied {
		t.Errorf("the write, again: %+v, %v", w, err)
	}
}

// Each leaves less in the log than the one before, so that their ends would lie behind one another.
func TestCommitsThatFailedOneAfterTheOtherDoNotLookLikeDamage(t *testing.T) {
	t.Parallel()
	var syncs atomic.Int64
	everySecond := func() int32 {
		if syncs.Add(1)%2 == 1 {
			return sqlite3.SQLITE_IOERR_FSYNC
		}
		return sqlite3.SQLITE_OK
	}
	for name, sync := range map[string]*func() int32{
		"no sync succeeds": failing(sqlite3.SQLITE_IOERR_FSYNC),
		"what is left is taken away, and the next commit fails too": &everySecond,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
			pair(t, s, 1, 10)
			var claims []ledger.Stamps
			sizes := []int{400_000, 90_000, 60_000, 30_000, 10}
			for n := range sizes {
				claims = append(claims, mustWrite(t, s, claimed(int64(10+n))))
			}
			d.sync.Store(sync)
			for n, size := range sizes {
				if _, err := s.Write(t.Context(), completed(int64(10+n), claims[n], size)); !errors.Is(err, ledger.ErrUnknown) {
					t.Fatalf("write %d: %v, want an unknown outcome", n, err)
				}
			}
			if again := openForTest(t, Config{Dir: remains(t, s)}); !has(t, again, 1) || !has(t, again, 14) {
				t.Error("an acknowledged entry is gone")
			}
			d.sync.Store(nil)
			if w, err := s.Write(t.Context(), claimed(2)); err != nil || !w.Applied {
				t.Errorf("on a disk that is well again: %+v, %v", w, err)
			}
		})
	}
}

func TestAWriteThatChangesNothingStillBuriesAFailedCommit(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	d.sync.Store(failing(sqlite3.SQLITE_IOERR_FSYNC))
	if _, err := s.Write(t.Context(), claimed(2)); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatal(err)
	}
	d.sync.Store(nil)
	// Refused: there is an entry. Its answer rests on what is in the log, so the log must be certain.
	if w, err := s.Write(t.Context(), claimed(1)); err != nil || w.Applied {
		t.Fatalf("%+v, %v", w, err)
	}
	if again := openForTest(t, Config{Dir: remains(t, s)}); has(t, again, 2) {
		t.Error("the failed write came back after it was answered that nothing is there")
	}
}

func TestADiskThatIsFullAtCommitCertainlyDidNotTakeTheWrite(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	d.write.Store(failing(sqlite3.SQLITE_FULL))
	_, err := s.Write(t.Context(), claimed(2))
	if !errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("got %v, want unavailable", err)
	}
	if has(t, s, 2) || !has(t, s, 1) {
		t.Error("reads do not show exactly what was acknowledged")
	}
	d.write.Store(nil)
	if w, err := s.Write(t.Context(), claimed(2)); err != nil || !w.Applied {
		t.Errorf("with room again: %+v, %v", w, err)
	}
	if failures := s.Stats().CommitFailures; failures != 1 {
		t.Errorf("%d failed commits are counted, want 1", failures)
	}
}

// TestADiskThatTurnsReadOnly, as one does after an error, is said to be failing; what is there is still answered.
func TestADiskThatTurnsReadOnly(t *testing.T) {
	t.Parallel()
	s, d := openOnTestDisk(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	d.write.Store(failing(sqlite3.SQLITE_IOERR_WRITE)) // EROFS
	for n := range int64(2) {
		if _, err := s.Write(t.Context(), claimed(10+n)); !errors.Is(err, ledger.FaultFailing) {
			t.Errorf("a grant: %v", err)
		}
		if _, err := s.Ready(t.Context()); !errors.Is(err, ledger.FaultFailing) || !errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("ready: %v", err)
		}
		if !has(t, s, 1) || has(t, s, 10) {
			t.Error("reads do not show exactly what was acknowledged")
		}
	}
	d.write.Store(nil)
	if _, err := s.Ready(t.Context()); err != nil {
		t.Errorf("not ready, although the disk takes writes again: %v", err)
	}
	pair(t, s, 10, 10)
}

func TestADatabaseThatMayNotGrowRefusesGrantsAndStillAnswers(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	stamps, err := s.Write(t.Context(), claimed(0))
	if err != nil {
		t.Fatal(err)
	}
	limitPages(t, s, "(SELECT page_count FROM pragma_page_count)")
	var full error
	last := int64(0)
	for n := int64(1); full == nil && n < 1000; n++ {
		if _, full = s.Write(t.Context(), claimed(n)); full == nil {
			last = n
		}
	}
	if !errors.Is(full, ledger.ErrUnavailable) {
		t.Fatalf("got %v, want unavailable", full)
	}
	if !has(t, s, last) || has(t, s, last+1) {
		t.Error("reads do not show exactly what was acknowledged")
	}
	extend := ledger.Write{Scope: scopeOf(0), Guard: ledger.Guard{Kind: ledger.GuardClaim, Incarnation: stamps.Stamps.Incarnation, Attempt: 1},
		Extend: &ledger.Extend{}}
	if w, err := s.Write(t.Context(), extend); err != nil || !w.Applied {
		t.Errorf("a renewal, which needs no room: %+v, %v", w, err)
	}
	limitPages(t, s, "1000000")
	if w, err := s.Write(t.Context(), claimed(last+1)); err != nil || !w.Applied {
		t.Errorf("with room again: %+v, %v", w, err)
	}
}

func limitPages(t *testing.T, s *Store, pages string) {
	t.Helper()
	err := onWriter(t, s, func(w *writer) error {
		n, err := w.conn.number(t.Context(), "SELECT "+pages)
		if err != nil {
			return err
		}
		return w.conn.script(t.Context(), "PRAGMA max_page_count = "+strconv.FormatInt(n, 10))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// onWriter runs do on the writer's goroutine and commits what it did.
func onWriter(t *testing.T, s *Store, do func(w *writer) error) error {
	t.Helper()
	return s.queue.submit(t.Context(), s.queue.sooner, &job{weight: maxBatch, do: func(w *writer, _ ledger.Time) (bool, error) { return true, do(w) }})
}
