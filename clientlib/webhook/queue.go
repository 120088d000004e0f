package webhook

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

// queue does the work of unfinished deliveries with bounded workers. It holds ids only: what must survive a restart is in the receipts.
type queue struct {
	config Config
	wake   chan struct{} // has an element where something changed

	mu      sync.Mutex
	items   map[string]*item // all that this process knows to be unfinished
	gaveUp  int              // of them, those that it does no more for: they take no room from others, and are bounded by themselves
	waiting byDue            // those that wait for a worker or for their time
	working int
	order   uint64
}

// item is one unfinished delivery.
type item struct {
	id       string
	due      time.Time
	order    uint64 // of adding, for those that are due at the same time
	attempts int    // how often the handler was run by this process
	failures int    // how often in a row something went wrong, which the pauses go by
	gaveUp   bool
}

// byDue is a heap.
type byDue []*item

func (b byDue) Len() int { return len(b) }
func (b byDue) Less(i, j int) bool {
	if !b[i].due.Equal(b[j].due) {
		return b[i].due.Before(b[j].due)
	}
	return b[i].order < b[j].order
}
func (b byDue) Swap(i, j int) { b[i], b[j] = b[j], b[i] }
func (b *byDue) Push(x any)   { *b = append(*b, x.(*item)) }
func (b *byDue) Pop() any {
	old := *b
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*b = old[:len(old)-1]
	return last
}

func newQueue(config Config) *queue {
	return &queue{config: config, wake: make(chan struct{}, 1), items: map[string]*item{}}
}

// add queues a delivery unless it is there. Where this process gave up on it, only a redelivery (again) has it tried anew: somebody
// asked for that. False: there are too many.
func (q *queue) add(id string, again bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if known := q.items[id]; known != nil && !(known.gaveUp && again) {
		return true
	}
	if q.items[id] != nil {
		q.gaveUp--
	} else if len(q.items)-q.gaveUp >= q.config.MaxQueued {
		return false
	}
	q.order++
	it := &item{id: id, due: time.Now(), order: q.order}
	q.items[id] = it
	heap.Push(&q.waiting, it)
	q.notify()
	return true
}

func (q *queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends.
func (q *queue) run(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var all sync.WaitGroup
	all.Go(func() { q.rescans(ctx) })
	for ctx.Err() == nil {
		it, wait := q.next()
		if it != nil {
			all.Go(func() { q.work(work, it) })
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	grace := time.AfterFunc(q.config.StopTimeout, stop)
	defer grace.Stop()
	all.Wait()
	return nil
}

// idle is how long the queue sleeps when it knows of nothing to do: whatever changes wakes it.
const idle = time.Hour

// next takes what is due, or says how long to wait for it.
func (q *queue) next() (*item, time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.working >= q.config.Workers || len(q.waiting) == 0 {
		return nil, idle
	}
	if wait := time.Until(q.waiting[0].due); wait > 0 {
		return nil, wait
	}
	q.working++
	it, _ := heap.Pop(&q.waiting).(*item)
	return it, 0
}

// work makes one attempt and decides what becomes of the delivery.
func (q *queue) work(ctx context.Context, it *item) {
	ran := false
	standing, err := q.config.Receipts.Run(ctx, q.config.Name, it.id, func(ctx context.Context, d Delivery) (err error) {
		ran = true
		defer func() {
			if panicked := recover(); panicked != nil {
				q.config.Logger.ErrorContext(ctx, "webhook: a handler panicked", "receiver", q.config.Name, "type", d.Type,
					"panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
				err = errors.New("webhook: the handler panicked")
			}
		}()
		return q.config.Handler(ctx, d)
	})
	q.mu.Lock()
	q.working--
	if ran {
		it.attempts++
	}
	attempts := it.attempts
	gaveUp := q.settle(it, standing, err)
	q.mu.Unlock()
	q.notify()

	if ran && q.config.Hooks.Worked != nil {
		q.config.Hooks.Worked(it.id, attempts, standing, err)
	}
	switch {
	case gaveUp:
		q.config.Logger.ErrorContext(ctx, "webhook: gave up on a delivery, which stays unfinished", "receiver", q.config.Name,
			"attempts", attempts, "error", err)
		if q.config.Hooks.GaveUp != nil {
			q.config.Hooks.GaveUp(it.id, attempts, err)
		}
	case standing == Failed:
		q.config.Logger.ErrorContext(ctx, "webhook: a delivery failed for good", "receiver", q.config.Name, "attempts", attempts, "error", err)
	case err != nil:
		q.config.Logger.WarnContext(ctx, "webhook: an attempt failed", "receiver", q.config.Name, "attempts", attempts, "error", err)
	}
}

// settle puts a delivery back, or forgets it.
func (q *queue) settle(it *item, standing Standing, err error) (gaveUp bool) {
	var notNow *NotNow
	switch {
	case standing == Done, standing == Failed, errors.Is(err, ErrNoReceipt):
		delete(q.items, it.id)
		return false
	case errors.As(err, &notNow):
		it.failures++
		it.due = time.Now().Add(max(notNow.After, q.pause(it.failures)))
	case errors.Is(err, ErrUndecided), it.attempts >= q.config.MaxAttempts:
		// It stays in items, so that rescans pass over it. Where there are too many of these, a rescan tries it again.
		if it.gaveUp = q.gaveUp < q.config.MaxQueued; it.gaveUp {
			q.gaveUp++
		} else {
			delete(q.items, it.id)
		}
		return true
	default:
		it.failures++
		it.due = time.Now().Add(q.pause(it.failures))
	}
	heap.Push(&q.waiting, it)
	return false
}

// pause grows with failures in a row, and is random, so that what failed together does not come back together.
func (q *queue) pause(failures int) time.Duration {
	pause := q.config.FirstPause
	for range failures - 1 {
		if pause *= 2; pause >= q.config.LongestPause {
			pause = q.config.LongestPause
			break
		}
	}
	return pause/2 + rand.N(pause/2+1)
}

// rescans searches the receipts at the start, and then again and again.
func (q *queue) rescans(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		wait := q.config.Rescan
		err := q.config.Receipts.Unfinished(ctx, q.config.Name, func(id string) error {
			if !q.add(id, false) {
				return errFull
			}
			return ctx.Err()
		})
		switch {
		case err == nil, errors.Is(err, errFull):
			failures = 0
		case ctx.Err() != nil:
			return
		default:
			failures++
			wait = min(wait, q.pause(failures))
			q.config.Logger.WarnContext(ctx, "webhook: unfinished deliveries could not be searched for", "receiver", q.config.Name, "error", err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

var errFull = errors.New("webhook: the queue is full")
