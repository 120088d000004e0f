package sqlitestore

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"
)

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

var errEnough = errors.New("enough")

func TestTheLogIsEmptiedOnceItIsTooLarge(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	setLogLimit(t, s, 64<<10)
	for n := range int64(200) {
		pair(t, s, n, 2000)
	}
	stats := s.Stats()
	if stats.LogEmptied == 0 {
		t.Errorf("the log was never emptied, and has %d bytes", stats.LogBytes)
	}
}

// A reader that stays keeps the log from being emptied. It must keep nothing else: writers go on, and the log is emptied once it leaves.
func TestALongReaderLetsTheLogGrowAndStopsNobody(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := openForTest(t, Config{Dir: t.TempDir(), Logger: textLogger(&log)})
	fill(t, s, 50)
	outside, err := openConnection(t.Context(), s.path, "", toRead)
	if err != nil {
		t.Fatal(err)
	}
	err = outside.query(t.Context(), "SELECT id FROM entry", nil, func([]any) error {
		setLogLimit(t, s, 64<<10)
		for n := range int64(100) {
			pair(t, s, 1000+n, 2000)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if stats := s.Stats(); stats.LogEmptied != 0 || stats.LogBytes < 64<<10 {
		t.Errorf("the log was emptied under a reader: %+v", stats)
	}
	if !bytes.Contains(log.Bytes(), []byte("could not be emptied")) {
		t.Error("nobody is told why the log grows")
	}
	if err := outside.close(); err != nil {
		t.Fatal(err)
	}
	setLogLimit(t, s, 64<<10)
	pair(t, s, 5000, 10)
	if stats := s.Stats(); stats.LogEmptied == 0 {
		t.Errorf("the log is not emptied after the reader left: %+v", stats)
	}
}

func setLogLimit(t *testing.T, s *Store, bytes int64) {
	t.Helper()
	if err := onWriter(t, s, func(w *writer) error { w.log.limit = bytes; return nil }); err != nil {
		t.Fatal(err)
	}
}

// setCopyStep makes the keeper copy the log whenever it has grown by so many bytes.
func setCopyStep(t *testing.T, s *Store, bytes int64) {
	t.Helper()
	if err := onWriter(t, s, func(w *writer) error { w.log.step, w.log.next = bytes, bytes; return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestTheLogIsCopiedBesideTheCommitsAndBeginsAnew(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	setCopyStep(t, s, 64<<10)
	const rounds = 3
	begun, end := 0, int64(0)
	for n := int64(0); begun < rounds && n < 20_000; n++ {
		pair(t, s, n, 2000)
		now := s.seals.logEnd.Load()
		if now < end {
			begun++
		}
		end = now
	}
	if begun < rounds {
		t.Errorf("the log began anew %d times, want %d; it has %d bytes", begun, rounds, end)
	}
	if stats := s.Stats(); stats.LogEmptied != 0 {
		t.Errorf("readers were held back %d times for it", stats.LogEmptied)
	}
}

// What a long reader kept in the log is copied aside when it has left: the writer copies no more than the little that came last.
func TestTheWriterNeverCopiesWhatALongReaderKept(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	fill(t, s, 50)
	outside, err := openConnection(t.Context(), s.path, "", toRead)
	if err != nil {
		t.Fatal(err)
	}
	err = outside.query(t.Context(), "SELECT id FROM entry LIMIT 1", nil, func([]any) error {
		setCopyStep(t, s, 64<<10)
		for n := range int64(500) {
			pair(t, s, 1000+n, 8000)
		}
		return onWriter(t, s, func(w *writer) error {
			if w.log.copying != nil {
				w.log.copiedAside(<-w.log.copying)
				w.log.copying = nil
			}
			w.log.next = math.MaxInt64 // until the reader has left
			return nil
		})
	})
	if err := errors.Join(err, outside.close()); err != nil {
		t.Fatal(err)
	}
	err = onWriter(t, s, func(w *writer) error {
		if left := s.seals.logEnd.Load() - w.log.until; left <= againBytes+tailBytes {
			t.Errorf("the reader kept only %d bytes", left)
		}
		w.log.next = 0
		w.log.copy()
		if w.log.copying == nil {
			t.Error("the writer copied all of it by itself")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// After a sync of the database that failed nobody knows what of it is on the disk. The log knows all of it, and is kept until it was copied anew.
func TestAFailedSyncOfTheDatabaseKeepsTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	dir := t.TempDir()
	s, err := Open(t.Context(), Config{Dir: dir, Logger: textLogger(&log)})
	if err != nil {
		t.Fatal(err)
	}
	closed, err := os.Open(s.path)
	if err == nil {
		err = closed.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.seals.database = closed
	if err := s.seals.syncDatabase(); err == nil {
		t.Fatal("a file that is closed was synced")
	}
	s.seals.database = nil // from now on the disk is as good as ever
	setCopyStep(t, s, 64<<10)
	const entries = 1000
	end := int64(0)
	for n := range int64(entries) {
		pair(t, s, n, 2000)
		now := s.seals.logEnd.Load()
		if now < end {
			t.Fatalf("the log began anew at %d bytes", end)
		}
		end = now
	}
	if !bytes.Contains(log.Bytes(), []byte("start the daemon again")) {
		t.Error("nobody is told what to do")
	}
	if stats := s.Stats(); stats.LogBytes < end {
		t.Errorf("the log is said to have %d bytes, and has %d", stats.LogBytes, end)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.path + logSuffix); err != nil || info.Size() < end {
		t.Fatalf("the log is gone: %v", err)
	}
	away := filepath.Join(t.TempDir(), "log")
	if err := os.Rename(s.path+logSuffix, away); err != nil {
		t.Fatal(err)
	}
	if without, err := Open(t.Context(), Config{Dir: dir}); err == nil {
		t.Error("the ledger opens without the log that was kept")
		_ = without.Close()
	}
	if err := os.Rename(away, s.path+logSuffix); err != nil {
		t.Fatal(err)
	}
	s = openForTest(t, Config{Dir: dir})
	for n := range int64(entries) {
		if !has(t, s, n) {
			t.Fatalf("entry %d is lost", n)
		}
	}
	setCopyStep(t, s, 64<<10)
	for n := int64(entries); s.seals.logEnd.Load() >= end || s.seals.logEnd.Load() < 64<<10; n++ {
		pair(t, s, n, 2000)
	}
}

// A system that could not write a page may forget it, and its seal, and read both as they were before. What looks sound then is not what was written: it must
// not be read, and it is no damage either, since the log has the page.
func TestAPageThatTurnsBackAfterAFailedSyncIsNotRead(t *testing.T) {
	t.Parallel()
	seals := &seals{logger: slog.New(slog.DiscardHandler)}
	file, err := os.Create(filepath.Join(t.TempDir(), "seals"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	seals.file.Store(file)
	const kept, turned = 2, 3
	var before, after [pageBytes]byte
	after[0] = 1
	for _, number := range []int64{kept, turned} {
		if rc := seals.set(number, &before); rc != sqlite3.SQLITE_OK {
			t.Fatal(rc)
		}
	}
	seals.kept()
	if rc := seals.set(turned, &after); rc != sqlite3.SQLITE_OK {
		t.Fatal(rc)
	}
	seals.lost(errEnough)
	old := sealOf(turned, &before)
	if _, err := file.WriteAt(old[:], turned*sealBytes); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		number int64
		page   *[pageBytes]byte
		want   int32
	}{{kept, &before, sqlite3.SQLITE_OK}, {turned, &after, sqlite3.SQLITE_OK}, {turned, &before, sqlite3.SQLITE_IOERR_READ}} {
		if rc := seals.check(c.number, c.page); rc != c.want {
			t.Errorf("page %d is answered %d, want %d", c.number, rc, c.want)
		}
	}
	if err := seals.soundness(); err != nil {
		t.Errorf("it counts as damage: %v", err)
	}
}
