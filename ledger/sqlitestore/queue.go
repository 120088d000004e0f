package sqlitestore

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/ledger"
)

// Sizes of the writer's queue and batches.
const (
	// maxBatch is how much work one transaction takes at the most: a write counts one, and one more for each bytesOfWork of what it carries; a Forget one for
	// each row. A transaction stays in memory until it commits, so this bounds that too.
	maxBatch    = 256
	bytesOfWork = 256 << 10
	// laterShare is how much of a full batch is left to the work that may wait, so that it is slowed down and never starved.
	laterShare = maxBatch / 8
	// idleShare is how much of any batch is left to what nobody waits for, and idleTimes how many times the callers' part of the batch it may be: a pair of
	// writes of a caller makes two for the sweeper in the end, so with less it would never catch up.
	idleShare = 8
	idleTimes = 2
	// callersLinger is how long after a caller's write the next one is expected. While none is, what nobody waits for may fill the batches.
	callersLinger = 100 * time.Millisecond
	// queueLength is how many jobs wait in each of the lines; the next callers wait outside, as long as their contexts let them.
	queueLength = 4 * maxBatch
)

// job is one write on its way to the writer.
type job struct {
	ctx    context.Context
	weight int
	idle   bool // nobody waits for it
	// do runs the job's statements inside the batch's transaction, and leaves its result where its caller will find it. It may be run
	// again if the batch had to be rolled back.
	do func(w *writer, now ledger.Time) (changed bool, err error)

	progress atomic.Int32
	done     chan struct{} // closed once err and do's result are final
	err      error
}

// A job's progress. From queued, either its caller or the writer takes it away; whoever does it first decides whether it happens.
const (
	queued int32 = iota
	withdrawn
	running
)

// take claims the job for a batch. A job whose context has ended is certainly not done.
func (j *job) take() bool {
	if !j.progress.CompareAndSwap(queued, running) {
		return false
	}
	if err := j.ctx.Err(); err != nil {
		j.finish(err)
		return false
	}
	return true
}

func (j *job) finish(err error) {
	j.err = err
	close(j.done)
}

// queue is the three lines in front of the writer: reports and renewals go first, new grants wait, and what nobody waits for takes what is left.
type queue struct {
	sooner  chan *job
	later   chan *job
	idle    chan *job
	callers time.Time     // when a batch last had a caller's job in it; the writer's
	closing chan struct{} // closed by Close: nothing is taken in any more
	stopped chan struct{} // closed by the writer when it has finished what was queued
}

func newQueue() *queue {
	return &queue{
		sooner: make(chan *job, queueLength), later: make(chan *job, queueLength), idle: make(chan *job, queueLength),
		closing: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// submit queues a job and waits until its outcome is certain, or its caller leaves.
func (q *queue) submit(ctx context.Context, line chan *job, j *job) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-q.closing:
		return errClosed
	default:
	}
	j.ctx, j.done, j.idle = ctx, make(chan struct{}), line == q.idle
	select {
	case line <- j:
	case <-ctx.Done():
		return ctx.Err()
	case <-q.closing:
		return errClosed
	}
	return q.wait(ctx, j)
}

func (q *queue) wait(ctx context.Context, j *job) error {
	select {
	case <-j.done:
		return j.err
	case <-ctx.Done():
		if j.progress.CompareAndSwap(queued, withdrawn) {
			return ctx.Err()
		}
	case <-q.stopped:
		if j.progress.CompareAndSwap(queued, withdrawn) {
			return errClosed
		}
		<-j.done
	}
	select {
	case <-j.done:
		return j.err
	default:
		// Its own error, not the context's: a context error says that nothing was done.
		return fmt.Errorf("sqlitestore: the caller left while the write was on its way (%s): %w", ctx.Err().Error(), ledger.ErrUnknown)
	}
}

// fill makes a batch of first, if there is one, and what is queued, without waiting. What nobody waits for makes a batch a little longer for callers, and
// not much: they wait for all of it.
func (q *queue) fill(batch []*job, first *job, now time.Time) []*job {
	weight, idle := 0, 0
	if first != nil && first.take() {
		batch = append(batch, first)
		if first.idle {
			idle = first.weight
		} else {
			weight = first.weight
		}
	}
	batch, weight = drain(q.sooner, batch, weight, maxBatch-laterShare)
	batch, weight = drain(q.later, batch, weight, maxBatch)
	batch, weight = drain(q.sooner, batch, weight, maxBatch)
	if weight > 0 {
		q.callers = now
	}
	share := maxBatch
	if now.Sub(q.callers) < callersLinger {
		share = max(idleShare, min(idleTimes*weight, maxBatch-weight))
	}
	batch, _ = drain(q.idle, batch, idle, share)
	return batch
}

func drain(line chan *job, batch []*job, weight, limit int) ([]*job, int) {
	for weight < limit {
		select {
		case j := <-line:
			if j.take() {
				batch = append(batch, j)
				weight += j.weight
			}
		default:
			return batch, weight
		}
	}
	return batch, weight
}
