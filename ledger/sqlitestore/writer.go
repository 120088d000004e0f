package sqlitestore

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/ledger"
)

// markEvery is how often an idle store writes down its time, so that a crash after a quiet month is not taken for a jump of the clock.
const markEvery = time.Hour

// writer owns the one connection that writes. Its goroutine takes whatever queued while the previous transaction was on its way to the
// disk as the next transaction: under load many callers share one sync, and an idle one pays exactly one, with no timer.
//
// What must stay true: a job is told that it is done only after COMMIT returned without an error, which with synchronous=FULL is after the
// log was synced; and a job whose transaction failed is told so, or that nobody knows.
type writer struct {
	conn   *connection
	queue  *queue
	clock  *clock
	logger *slog.Logger
	log    *walKeeper
	seals  *seals
	memory *memory
	names  map[ledger.Ref]int64 // of those in the file or in the running transaction; by Ref without a key
	stats  counters

	// ghost: a COMMIT failed so that its frames may lie in the log behind the last good commit. No reader of this process sees them, but
	// the next opening of the file might. The next batch is made to write, whatever it does: before its frames the log is cut off
	// behind the last good commit (see layered.cutOff). That makes the outcome certain: it did not happen.
	ghost bool
	// failed: the last batch was not committed. Ready then tries one.
	failed atomic.Bool
}

// counters are the writer's numbers; see Stats.
type counters struct {
	batches        atomic.Int64
	writes         atomic.Int64
	largestBatch   atomic.Int64
	commitNanos    atomic.Int64
	commitFailures atomic.Int64
	redone         atomic.Int64
}

// run is the writer's goroutine. It returns once the queue is closed and empty.
func (w *writer) run() {
	defer close(w.queue.stopped)
	ticker := time.NewTicker(markEvery)
	defer ticker.Stop()
	batch := make([]*job, 0, maxBatch)
	for {
		var first *job
		select {
		case first = <-w.queue.sooner:
		case first = <-w.queue.later:
		case first = <-w.queue.idle:
		case <-ticker.C:
			w.mark()
			continue
		case <-w.queue.closing:
			w.finish(batch)
			return
		}
		// The callers of the batch before have just been told; those on this processor come back with their next write if they get
		// a turn before this batch is closed.
		runtime.Gosched()
		w.commit(w.queue.fill(batch[:0], first, time.Now()))
	}
}

// finish does what was queued when the store was closed, and writes down the time.
func (w *writer) finish(batch []*job) {
	for {
		batch = w.queue.fill(batch[:0], nil, time.Now())
		if len(batch) == 0 {
			break
		}
		w.commit(batch)
	}
	w.mark()
}

// mark commits the time alone.
func (w *writer) mark() {
	j := &job{ctx: context.Background(), done: make(chan struct{}), do: touch}
	j.take()
	w.commit([]*job{j})
	if j.err != nil {
		w.logger.Warn("the ledger's time could not be written down", "error", j.err)
	}
}

// touch is a write of nothing: with it, the batch is committed for the time's sake.
func touch(*writer, ledger.Time) (bool, error) { return true, nil }

// commit runs the batch as one transaction and tells every job what became of it.
func (w *writer) commit(batch []*job) {
	if len(batch) == 0 {
		return
	}
	errs := make([]error, len(batch))
	err := w.transact(batch, errs, false)
	if errors.Is(err, errOneFailed) {
		w.stats.redone.Add(1)
		clear(errs)
		err = w.transact(batch, errs, true)
	}
	w.memory.ended() // before anybody is told: what they read next must be theirs
	w.failed.Store(err != nil)
	for i, j := range batch {
		if err != nil {
			j.finish(err)
		} else {
			j.finish(errs[i])
		}
	}
	w.log.afterCommit()
}

// errOneFailed says that one job's statement failed and the whole batch was rolled back, to be run again with a savepoint around each job.
// Savepoints cost as much as a small write, and a write that the schema refuses never comes from a sound ledger.
var errOneFailed = errors.New("one write of the batch failed")

// transact runs the batch as one transaction: careful, with a savepoint around each job, whose own failures go to errs. An error is for all.
func (w *writer) transact(batch []*job, errs []error, careful bool) error {
	started := time.Now()
	if _, err := w.conn.exec("BEGIN IMMEDIATE"); err != nil {
		return unavailable("begin", err)
	}
	// Read after the lock was had: a transaction of another process, an operator's shell, may have held it for a while.
	now := w.clock.now()
	changed := w.ghost
	damage := w.seals.soundness()
	for i, j := range batch {
		did, err := w.one(j, now, careful)
		w.seals.note(err)
		if err != nil && !careful && ownFault(err) {
			w.rollback()
			return errOneFailed
		}
		if err != nil && !ownFault(err) {
			w.rollback()
			return unavailable("write", err)
		}
		if err != nil {
			errs[i] = failed("write", err)
		}
		if did && damage != nil {
			errs[i] = unavailable("write", damage)
		}
		changed = changed || did
	}
	if !changed || damage != nil {
		// Nothing to make durable: what the guards were judged by was.
		w.rollback()
		return nil
	}
	if _, err := w.conn.exec("UPDATE clock SET high_water = ?", int64(now)); err != nil {
		w.rollback()
		return unavailable("write", err)
	}
	if _, err := w.conn.exec("COMMIT"); err != nil {
		w.rollback()
		w.stats.commitFailures.Add(1)
		w.seals.note(err)
		err = commitFailure(w.seals.path, err)
		w.ghost = w.ghost || errors.Is(err, ledger.ErrUnknown)
		return err
	}
	w.ghost = false
	w.count(len(batch), time.Since(started))
	return nil
}

// one runs one job, in a savepoint of its own if careful.
func (w *writer) one(j *job, now ledger.Time, careful bool) (changed bool, err error) {
	if !careful {
		return j.do(w, now)
	}
	if _, err := w.conn.exec("SAVEPOINT one"); err != nil {
		return false, err
	}
	changed, err = j.do(w, now)
	if err == nil {
		_, err = w.conn.exec("RELEASE one")
		return changed, err
	}
	clear(w.names)
	if _, undo := w.conn.exec("ROLLBACK TO one"); undo != nil {
		// The savepoint is gone because SQLite rolled the whole transaction back: nothing of the batch is left. Not the job's fault then.
		return false, &batchLostError{err}
	}
	if _, undo := w.conn.exec("RELEASE one"); undo != nil {
		return false, &batchLostError{err}
	}
	return false, err
}

// batchLostError hides the cause from ownFault: the transaction is gone with everybody's writes.
type batchLostError struct{ cause error }

func (e *batchLostError) Error() string { return "the transaction was rolled back: " + e.cause.Error() }

// rollback ends the transaction. SQLite may have ended it by itself, which is as good.
func (w *writer) rollback() {
	_, _ = w.conn.exec("ROLLBACK")
	clear(w.names)
}

func (w *writer) count(jobs int, took time.Duration) {
	w.stats.batches.Add(1)
	w.stats.writes.Add(int64(jobs))
	w.stats.commitNanos.Add(int64(took))
	if int64(jobs) > w.stats.largestBatch.Load() {
		w.stats.largestBatch.Store(int64(jobs)) // only this goroutine writes it
	}
}
