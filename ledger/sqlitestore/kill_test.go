package sqlitestore

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemd/idemd/ledger"
)

// The child of TestKilledAtAnyMoment runs in the test's own binary, told by these.
const (
	killDirectory = "SQLITESTORE_KILL_DIRECTORY"
	killFirst     = "SQLITESTORE_KILL_FIRST"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killDirectory); dir != "" {
		os.Exit(writeUntilKilled(dir, os.Getenv(killFirst)))
	}
	os.Exit(m.Run())
}

// writeUntilKilled writes pairs and says on its standard output which are acknowledged: "g n" granted, "s n" settled.
func writeUntilKilled(dir, first string) int {
	start, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var next atomic.Int64
	next.Store(start)
	ctx := context.Background()
	s, err := Open(ctx, Config{Dir: dir})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	together(16, func() {
		for {
			n := next.Add(1)
			w, err := s.Write(ctx, claimed(n))
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Printf("g %d\n", n) // one write to the pipe, not buffered
			if _, err := s.Write(ctx, completed(n, w.Stamps, sizeOfAnswer(n))); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			fmt.Printf("s %d\n", n)
		}
	})
	return 0
}

// sizeOfAnswer makes answers of every kind: in the row, in their own table, and over many pages.
func sizeOfAnswer(n int64) int { return []int{0, 200, 3000, 50_000}[n%4] }

func TestKilledAtAnyMomentEverythingAcknowledgedIsThereAndNothingIsHalfThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	granted, settled := map[int64]bool{}, map[int64]bool{}
	last := int64(0)
	for round := range 6 {
		last = max(last, killOnce(t, dir, last, 1+rand.IntN(300), granted, settled))
		s, err := Open(t.Context(), Config{Dir: dir})
		if err != nil {
			t.Fatalf("after kill %d: %v", round, err)
		}
		// The child was up to 16 entries further than what could be read of it.
		for n := int64(1); n <= last+64; n++ {
			judge(t, s, n, granted[n], settled[n])
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		last += 64
	}
	if len(settled) == 0 {
		t.Error("nothing was ever acknowledged")
	}
}

// killOnce runs a child until it has acknowledged so many writes, and kills it.
func killOnce(t *testing.T, dir string, first int64, acknowledgements int, granted, settled map[int64]bool) int64 {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), killDirectory+"="+dir, fmt.Sprintf("%s=%d", killFirst, first))
	var complaints bytes.Buffer
	child.Stderr = &complaints
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	last := first
	lines := bufio.NewReader(out)
	for seen := 0; ; seen++ {
		if seen == acknowledgements {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		// After the kill, what is left in the pipe was acknowledged too.
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		var what string
		var n int64
		if _, scanErr := fmt.Sscan(strings.TrimSpace(line), &what, &n); err != nil || scanErr != nil {
			t.Fatalf("%q: %v, %v", line, err, scanErr)
		}
		map[string]map[int64]bool{"g": granted, "s": settled}[what][n] = true
		last = max(last, n)
	}
	_ = child.Wait()
	if complaints.Len() > 0 {
		t.Fatalf("the child complains: %s", &complaints)
	}
	return last
}

// judge checks an entry against what was acknowledged of it. More may be there than that, but nothing half.
func judge(t *testing.T, s *Store, n int64, granted, settled bool) {
	t.Helper()
	r, err := s.Get(t.Context(), scopeOf(n))
	if err != nil {
		t.Fatal(err)
	}
	e := r.Entry
	switch {
	case e == nil && (granted || settled):
		t.Errorf("entry %d was acknowledged and is gone", n)
	case e == nil:
	case e.State == ledger.Pending && settled:
		t.Errorf("the settlement of entry %d was acknowledged and is gone", n)
	case e.State == ledger.Pending:
		if e.Revision != 1 || e.Response != nil || e.SettledAt != 0 || e.Ref != claimed(n).Put.Ref {
			t.Errorf("entry %d is half there: %+v", n, e)
		}
	default:
		want := completed(n, ledger.Stamps{Incarnation: e.Incarnation}, sizeOfAnswer(n)).Settle
		if e.Revision != 2 || e.State != ledger.Completed || !bytes.Equal(e.Response.Body, want.Response.Body) || e.Settlement != want.Report {
			t.Errorf("entry %d is half settled: %+v", n, e)
		}
	}
}
