package sqlitestore

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
)

// stall keeps the writer busy with a batch of its own until release is called, so that what is submitted meanwhile queues.
func stall(t *testing.T, s *Store) (release func()) {
	t.Helper()
	started, end, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.queue.submit(t.Context(), s.queue.sooner, &job{weight: maxBatch, do: func(*writer, ledger.Time) (bool, error) {
			close(started)
			<-end
			return false, nil
		}})
	}()
	<-started
	return func() {
		close(end)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// outcome is what became of a write.
type outcome struct {
	written ledger.Written
	err     error
}

// submitted starts a write and returns once it is queued, the writer being stalled.
func submitted(ctx context.Context, s *Store, w ledger.Write) <-chan outcome {
	before := s.Stats().Queued
	out := make(chan outcome, 1)
	go func() {
		written, err := s.Write(ctx, w)
		out <- outcome{written, err}
	}()
	for s.Stats().Queued == before {
		runtime.Gosched()
	}
	return out
}

func TestWritesThatQueuedAreOneTransaction(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	release := stall(t, s)
	before := s.Stats()
	var outs []<-chan outcome
	for n := range int64(50) {
		outs = append(outs, submitted(t.Context(), s, claimed(n)))
	}
	release()
	for n, out := range outs {
		if o := <-out; o.err != nil || !o.written.Applied {
			t.Errorf("write %d: %+v", n, o)
		}
	}
	after := s.Stats()
	if batches := after.Batches - before.Batches; batches != 1 {
		t.Errorf("%d transactions for 50 queued writes, want 1", batches)
	}
	if after.LargestBatch < 50 || after.Writes-before.Writes != 50 || after.CommitTime <= before.CommitTime {
		t.Errorf("the numbers do not tell: %+v", after)
	}
}

// TestALoneWriteWaitsForNoTimer: in the bubble time stands still while anybody works, and goes on when all only wait: for a timer then.
func TestALoneWriteWaitsForNoTimer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := openForTest(t, Config{Dir: t.TempDir()})
		began := time.Now()
		for n := range int64(20) {
			pair(t, s, n, 10)
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a caller who is alone waited %v for timers in twenty pairs", waited)
		}
	})
}

func TestOneBadWriteFailsAlone(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	bad := claimed(2)
	bad.Put.State = 99
	release := stall(t, s)
	first, second, third := submitted(t.Context(), s, claimed(1)), submitted(t.Context(), s, bad), submitted(t.Context(), s, claimed(3))
	release()
	if o := <-second; !errors.Is(o.err, ledger.ErrBadRow) || o.written.Applied {
		t.Errorf("the bad one: %+v", o)
	}
	for _, o := range []outcome{<-first, <-third} {
		if o.err != nil || !o.written.Applied {
			t.Errorf("a good one: %+v", o)
		}
	}
	if !has(t, s, 1) || has(t, s, 2) || !has(t, s, 3) {
		t.Error("not exactly the good ones are there")
	}
	if redone := s.Stats().RedoneBatches; redone != 1 {
		t.Errorf("%d batches were redone, want 1", redone)
	}
}

func TestABadWriteLeavesNothingOfItsSeveralStatements(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	w, err := s.Write(t.Context(), claimed(1))
	if err != nil {
		t.Fatal(err)
	}
	// The second statement of a settlement with a large answer fails, after the first has changed the row.
	err = onWriter(t, s, func(w *writer) error {
		_, err := w.conn.exec("CREATE TRIGGER refuse BEFORE INSERT ON answer BEGIN SELECT RAISE(ABORT, 'refused'); END")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	release := stall(t, s)
	bad, good := submitted(t.Context(), s, completed(1, w.Stamps, 10_000)), submitted(t.Context(), s, claimed(2))
	release()
	if o := <-bad; !errors.Is(o.err, ledger.ErrBadRow) {
		t.Fatalf("got %v, want a bad row", o.err)
	}
	if o := <-good; o.err != nil || !o.written.Applied {
		t.Errorf("the good one of the same batch: %+v", o)
	}
	r, err := s.Get(t.Context(), scopeOf(1))
	if err != nil || r.Entry.State != ledger.Pending || r.Entry.Response != nil || r.Entry.Revision != 1 {
		t.Errorf("half of the settlement is there: %+v, %v", r.Entry, err)
	}
}

func TestAWriteWhoseCallerLeftBeforeItsBatchIsNotDone(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	release := stall(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	out := submitted(ctx, s, claimed(1))
	cancel()
	if o := <-out; !errors.Is(o.err, context.Canceled) || errors.Is(o.err, ledger.ErrUnknown) {
		t.Errorf("got %v, want the context's error: it certainly was not done", o.err)
	}
	release()
	pair(t, s, 2, 10)
	if has(t, s, 1) {
		t.Error("the write was done after its caller was told that it was not")
	}
	if _, err := s.Write(ctx, claimed(3)); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

func TestAWriteWhoseCallerLeavesDuringItsBatchIsUnknown(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	end := make(chan struct{})
	left := make(chan error, 1)
	go func() {
		left <- s.queue.submit(ctx, s.queue.sooner, &job{weight: 1, do: func(*writer, ledger.Time) (bool, error) {
			cancel()
			<-end
			return true, nil
		}})
	}()
	if err := <-left; !errors.Is(err, ledger.ErrUnknown) || errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an unknown outcome and no context error", err)
	}
	close(end)
}

func TestReportsGoAheadOfGrantsAndDoNotStarveThem(t *testing.T) {
	t.Parallel()
	q := newQueue()
	newJob := func() *job {
		return &job{ctx: t.Context(), weight: 1, done: make(chan struct{})}
	}
	grants, reports := map[*job]bool{}, map[*job]bool{}
	for range 2 * maxBatch {
		grant, report := newJob(), newJob()
		q.later <- grant
		q.sooner <- report
		grants[grant], reports[report] = true, true
	}
	batch := q.fill(nil, nil, time.Now())
	if len(batch) != maxBatch {
		t.Fatalf("a batch of %d, want %d", len(batch), maxBatch)
	}
	for i, j := range batch {
		if want := i < maxBatch-laterShare; reports[j] != want {
			t.Fatalf("job %d of the batch is a report: %t, want %t", i, reports[j], want)
		}
	}
}

// What nobody waits for makes callers wait a little longer, and has all of the store only while nobody calls.
func TestWhatNobodyWaitsForLeavesTheStoreToCallers(t *testing.T) {
	t.Parallel()
	const recently = callersLinger / 2
	for _, c := range []struct {
		name    string
		callers int           // with a write in the queue
		since   time.Duration // the last one before
		want    int           // of those that nobody waits for
	}{
		{"nobody calls", 0, time.Hour, maxBatch},
		{"somebody has just called", 0, recently, idleShare},
		{"somebody called a while ago", 0, callersLinger, maxBatch},
		{"one calls", 1, time.Hour, idleShare},
		{"many call", 40, recently, 40 * idleTimes},
		{"more call than there is room for", 2 * maxBatch, recently, idleShare},
	} {
		q, now := newQueue(), time.Now()
		q.callers = now.Add(-c.since)
		for range c.callers {
			q.sooner <- &job{ctx: t.Context(), weight: 1, done: make(chan struct{})}
		}
		for range 2 * maxBatch {
			q.idle <- &job{ctx: t.Context(), weight: 1, idle: true, done: make(chan struct{})}
		}
		got := 0
		for _, j := range q.fill(nil, nil, now) {
			if j.idle {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s: %d in a batch, want %d", c.name, got, c.want)
		}
		first := <-q.idle
		if batch := q.fill(nil, first, now); len(batch) == 0 || batch[0] != first {
			t.Errorf("%s: what was taken from the queue is in no batch", c.name)
		}
	}
}

// Rows to forget are many small jobs, so that callers get between them.
func TestForgettingManyRowsLeavesRoomForCallers(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	var rows []ledger.Row
	for n := range int64(100) {
		pair(t, s, n, 10)
		r, err := s.Get(t.Context(), scopeOf(n))
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, ledger.Row{Scope: r.Entry.Scope, Incarnation: r.Entry.Incarnation, Revision: r.Entry.Revision})
	}
	release := stall(t, s)
	forgotten := make(chan int, 1)
	go func() {
		n, err := s.Forget(t.Context(), rows)
		if err != nil {
			t.Error(err)
		}
		forgotten <- n
	}()
	for s.Stats().Queued < len(rows)/idleShare {
		runtime.Gosched()
	}
	release()
	if n := <-forgotten; n != len(rows) {
		t.Errorf("%d forgotten, want %d", n, len(rows))
	}
}

func TestCloseFinishesWhatIsQueued(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	release := stall(t, s)
	var outs []<-chan outcome
	for n := range int64(10) {
		outs = append(outs, submitted(t.Context(), s, claimed(n)))
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-s.queue.closing
	release()
	for n, out := range outs {
		if o := <-out; o.err != nil || !o.written.Applied {
			t.Errorf("queued write %d: %+v", n, o)
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func TestAfterCloseEverythingIsUnavailable(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	calls := map[string]func() error{
		"Get":      func() error { _, err := s.Get(ctx, scopeOf(1)); return err },
		"Write":    func() error { _, err := s.Write(ctx, claimed(1)); return err },
		"Page":     func() error { _, err := s.Page(ctx, ledger.PageQuery{Order: ledger.ByName, Limit: 1}); return err },
		"Forget":   func() error { _, err := s.Forget(ctx, []ledger.Row{{}}); return err },
		"Settings": func() error { _, err := s.Settings(ctx, "policy"); return err },
		"PutSetting": func() error {
			_, err := s.PutSetting(ctx, ledger.Setting{Kind: "policy", Body: []byte{1}}, 0)
			return err
		},
		"Ready": func() error { _, err := s.Ready(ctx); return err },
	}
	for name, call := range calls {
		if err := call(); !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("%s: %v, want unavailable", name, err)
		}
	}
}

// TestLargeAnswersMakeSmallBatches: what a transaction holds in memory is bounded by its bytes as well as by its writes.
func TestLargeAnswersMakeSmallBatches(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{0: 1, 1000: 1, 1 << 20: 5, 8 << 20: 33} {
		if got := prepare(completed(1, ledger.Stamps{}, size)).weight(); got != want {
			t.Errorf("a report with an answer of %d bytes counts %d, want %d", size, got, want)
		}
	}
}

// Where SQLite has rolled a whole transaction back, that is the fault of no one job: what was done before it in the batch is gone, too.
func TestALostBatchIsNobodysFault(t *testing.T) {
	t.Parallel()
	if ownFault(&batchLostError{errEnough}) {
		t.Error("the rest of the batch would go on without a transaction")
	}
}
