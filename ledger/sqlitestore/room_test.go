package sqlitestore

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/idemd/idemd/ledger"
)

// smallDisk mounts a file system of so many bytes, and returns a directory on it.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("NOT RUN ON A REAL FULL DISK: mounting one takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	ledgerDir := filepath.Join(dir, "ledger")
	if err := os.Mkdir(ledgerDir, 0o700); err != nil {
		t.Fatal(err)
	}
	return ledgerDir
}

// fillDisk takes all room that is left on the disk of dir, and returns what gives it back.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(filepath.Dir(dir), "ballast")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = file.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAFullDisk: on a disk that is really full, writes are refused as such and may be sent again; what is there is still answered, also to a retry; the store is
// not ready, and is again by itself when there is room.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "8m")
	s := openForTest(t, Config{Dir: dir})
	pair(t, s, 1, 200)
	claim, err := s.Write(t.Context(), claimed(2))
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(100); n < 104; n++ {
		free := fillDisk(t, dir)
		var full error
		for m := int64(0); full == nil && m < 10_000; m++ { // the log may have room of its own
			_, full = s.Write(t.Context(), claimed(n<<32+m))
		}
		if !errors.Is(full, ledger.ErrUnavailable) || !errors.Is(full, ledger.FaultFull) {
			t.Fatalf("on a full disk: %v", full)
		}
		if _, err := s.Ready(t.Context()); !errors.Is(err, ledger.FaultFull) {
			t.Errorf("ready on a full disk: %v", err)
		}
		report := completed(2, claim.Stamps, 50_000)
		if _, err := s.Write(t.Context(), report); !errors.Is(err, ledger.FaultFull) {
			t.Errorf("a report: %v", err)
		}
		if !has(t, s, 1) {
			t.Error("what is there is not answered")
		}
		if w, err := s.Write(t.Context(), claimed(1)); err != nil || w.Applied {
			t.Errorf("a retry of what is there: %+v, %v", w, err)
		}
		free()
		if _, err := s.Ready(t.Context()); err != nil {
			t.Errorf("not ready with room again: %v", err)
		}
		if w, err := s.Write(t.Context(), claimed(n)); err != nil || !w.Applied {
			t.Errorf("with room again: %+v, %v", w, err)
		}
	}
	if w, err := s.Write(t.Context(), completed(2, claim.Stamps, 50_000)); err != nil || !w.Applied {
		t.Errorf("the report, sent again: %+v, %v", w, err)
	}
}

// TestADiskThatFillsUpIsNoticedBeforeAWriteFails: nobody calls, and it is not ready all the same.
func TestADiskThatFillsUpIsNoticedBeforeAWriteFails(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "4m")
	s := openForTest(t, Config{Dir: dir})
	free := fillDisk(t, dir)
	if _, err := s.Ready(t.Context()); !errors.Is(err, ledger.FaultFull) {
		t.Errorf("ready on a full disk: %v", err)
	}
	free()
	if _, err := s.Ready(t.Context()); err != nil {
		t.Errorf("not ready with room again: %v", err)
	}
}

// TestRoomThatComesByThePage lets the disk run full in the middle of everything: of a commit, of a checkpoint. What was acknowledged is there, at once and
// after a crash, and nothing else.
func TestRoomThatComesByThePage(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "2m")
	s := openForTest(t, Config{Dir: dir})
	fillDisk(t, dir)
	ballast, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "ballast"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ballast.Close() }()
	info, err := ballast.Stat()
	if err != nil {
		t.Fatal(err)
	}
	granted, refusals := map[int64]bool{}, 0
	for n := range int64(200) {
		if err := ballast.Truncate(info.Size() - n*4096); err != nil {
			t.Fatal(err)
		}
		w, err := s.Write(t.Context(), claimed(n))
		if granted[n] = err == nil; err != nil && !errors.Is(err, ledger.FaultFull) {
			t.Errorf("grant %d: %v", n, err)
		}
		if err == nil {
			_, err = s.Write(t.Context(), completed(n, w.Stamps, 20_000))
		}
		if err != nil {
			refusals++
		}
		_, _ = s.log.empty() // it may run out of room as well
	}
	if refusals == 0 || refusals == 200 {
		t.Errorf("%d of 200 were refused: that tests nothing", refusals)
	}
	crashed := openForTest(t, Config{Dir: remains(t, s)})
	for n, was := range granted {
		if has(t, s, n) != was || has(t, crashed, n) != was {
			t.Errorf("grant %d was acknowledged: %t; it is there: %t, after a crash: %t", n, was, has(t, s, n), has(t, crashed, n))
		}
	}
}

// TestAStartOnAFullDisk ends at once, says what to do, and harms nothing: neither after a crash nor where there is no ledger yet.
func TestAStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t, "16m")
	s, err := Open(t.Context(), Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(50) {
		pair(t, s, n, 3000)
	}
	crashed := filepath.Join(filepath.Dir(dir), "crashed")
	if err := os.CopyFS(crashed, os.DirFS(remains(t, s))); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	free := fillDisk(t, dir)
	for range 2 {
		refused(t, crashed, "disk is full", "Make room", "Do not delete ledger.db-wal")
	}
	free()
	s = openForTest(t, Config{Dir: crashed})
	for n := range int64(50) {
		if !has(t, s, n) {
			t.Errorf("entry %d, which was acknowledged, is gone", n)
		}
	}
	fresh := filepath.Join(filepath.Dir(dir), "fresh")
	free = fillDisk(t, dir)
	for range 2 {
		refused(t, fresh, "no space left", "Make room")
	}
	free()
	openForTest(t, Config{Dir: fresh})
}
