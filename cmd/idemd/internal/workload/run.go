package workload

import (
	"context"
	crand "crypto/rand"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// snapshotEvery is how often progress is told.
const snapshotEvery = time.Second

// maxRechecked bounds how many entries are asked for once more at the end.
const maxRechecked = 5000

// Run puts load on a daemon until the time is over or ctx ends, and returns what it measured and what it found wrong; progress, if not nil, is
// told every second. An error says that there was no load at all: the config is wrong, or the hot entries could not be made.
func Run(ctx context.Context, c Config, progress func(Snapshot)) (*Report, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &run{cfg: c.withDefaults(), rec: newRecorder(), verdicts: newVerdicts()}
	for id := range r.cfg.Workers {
		r.workers = append(r.workers, newWorker(r, id))
	}
	if err := r.makeHot(ctx); err != nil {
		return nil, err
	}
	r.rec.reset()
	took := r.load(ctx, progress)
	interrupted := ctx.Err() != nil
	calls := r.rec.report(took, r.verdicts)
	rechecked := r.recheck(ctx)
	// What the last look found counts, but not its calls.
	report := r.rec.report(took, r.verdicts)
	report.Calls, report.CallsPerSecond = calls.Calls, calls.CallsPerSecond
	report.Rechecked, report.Interrupted = rechecked, interrupted
	if !interrupted {
		report.NotBegun = r.due() - r.begun.Load()
	}
	return report, nil
}

// run is one run.
type run struct {
	cfg      Config
	rec      *recorder
	verdicts *verdicts
	workers  []*worker
	hot      []*intent

	start   time.Time
	tickets atomic.Int64 // how many turns were taken by a worker that was free
	begun   atomic.Int64 // how many of them were begun under a rate, before the time was over
}

// due is how many turns are due under the rate; 0 without one.
func (r *run) due() int64 {
	due := int64(math.Ceil(r.cfg.Rate * (r.cfg.Warmup + r.cfg.Duration).Seconds()))
	if r.cfg.Turns > 0 {
		due = min(due, r.cfg.Turns)
	}
	return due
}

// each runs do for all workers at once.
func (r *run) each(do func(*worker)) {
	var wg sync.WaitGroup
	for _, w := range r.workers {
		wg.Go(func() { do(w) })
	}
	wg.Wait()
}

// makeHot makes the entries that all workers share.
func (r *run) makeHot(ctx context.Context) error {
	r.hot = make([]*intent, r.cfg.HotKeys)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	r.each(func(w *worker) {
		for i := next.Add(1) - 1; i < int64(len(r.hot)) && failed.Load() == nil; i = next.Add(1) - 1 {
			in, err := w.duplicates(ctx)
			if err != nil {
				failed.CompareAndSwap(nil, &err)
				return
			}
			r.hot[i] = in
		}
	})
	if err := failed.Load(); err != nil {
		return *err
	}
	// Nothing can be asked for that was not granted as it must be.
	r.hot = slices.DeleteFunc(r.hot, func(in *intent) bool { return in == nil })
	return ctx.Err()
}

// load runs the turns, and returns how long was measured.
func (r *run) load(ctx context.Context, progress func(Snapshot)) time.Duration {
	r.start = time.Now()
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { r.watch(watching, progress) })
	r.each(func(w *worker) { w.loop(ctx) })
	stop()
	watch.Wait()
	took := time.Since(r.start) - r.cfg.Warmup
	if took <= 0 { // called off in the warm-up
		r.rec.reset()
		return time.Nanosecond
	}
	return took
}

// watch tells progress, and ends the warm-up.
func (r *run) watch(ctx context.Context, progress func(Snapshot)) {
	tick := time.NewTicker(snapshotEvery)
	defer tick.Stop()
	// Without a warm-up everything counts from the first turn on.
	var warm <-chan time.Time
	warming := r.cfg.Warmup > 0
	if warming {
		warm = time.After(r.cfg.Warmup)
	}
	before, last := int64(0), r.start
	for {
		select {
		case <-ctx.Done():
			return
		case <-warm:
			r.rec.reset()
			warming, before, last = false, 0, time.Now()
		case now := <-tick.C:
			turns, errors, p99 := r.rec.snapshot()
			rate := float64(turns-before) / now.Sub(last).Seconds()
			before, last = turns, now
			if progress != nil {
				progress(Snapshot{
					Elapsed: now.Sub(r.start), Warming: warming, TurnsPerSecond: rate, P99Begin: p99, Errors: errors, Broken: r.verdicts.anyBroken(),
				})
			}
		}
	}
}

// next waits until the next turn is due, and returns when that was. False: there is none any more.
func (r *run) next(ctx context.Context) (time.Time, bool) {
	total := r.cfg.Warmup + r.cfg.Duration
	ticket := r.tickets.Add(1) - 1
	if ctx.Err() != nil || r.cfg.Turns > 0 && ticket >= r.cfg.Turns {
		return time.Time{}, false
	}
	if r.cfg.Rate == 0 {
		now := time.Now()
		return now, now.Sub(r.start) < total
	}
	due := r.start.Add(time.Duration(float64(ticket) / r.cfg.Rate * float64(time.Second)))
	// Where everybody was busy until the time was over, what was due since is not begun any more.
	if ticket >= r.due() || !pause(ctx, time.Until(due)) || time.Since(r.start) >= total {
		return time.Time{}, false
	}
	r.begun.Add(1)
	r.rec.span(SpanQueued, time.Since(due))
	return due, true
}

// recheck asks once more for what was completed, and returns for how many entries.
func (r *run) recheck(ctx context.Context) int64 {
	var n atomic.Int64
	most := maxRechecked/len(r.workers) + 1
	r.each(func(w *worker) {
		known := slices.Clone(w.recent)
		for i := w.id; i < len(r.hot); i += len(r.workers) {
			known = append(known, r.hot[i])
		}
		for _, in := range known[:min(len(known), most)] {
			if err := w.replay(ctx, in); err != nil {
				w.failed(ctx, err)
				return
			}
			n.Add(1)
		}
	})
	return n.Load()
}

// pause waits, and says whether ctx still runs.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// keptRecent is how many settled intents a worker remembers for replays.
const keptRecent = 64

// worker does one turn after the other.
type worker struct {
	run    *run
	id     int
	random *rand.ChaCha8
	choose *rand.Rand
	recent []*intent
	oldest int // in recent, the next to be replaced
}

func newWorker(r *run, id int) *worker {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // it never fails
	random := rand.NewChaCha8(seed)
	return &worker{run: r, id: id, random: random, choose: rand.New(random)}
}

func (w *worker) loop(ctx context.Context) {
	mix := w.run.cfg.Mix
	for {
		from, ok := w.run.next(ctx)
		if !ok {
			return
		}
		if err := w.turn(ctx, mix.at(w.choose.IntN(mix.sum())), from); err != nil {
			w.failed(ctx, err)
			continue
		}
		w.run.rec.turn()
	}
}

// failed counts a turn that came to no end, unless the run was called off.
func (w *worker) failed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		w.run.rec.failed(errorName(err))
	}
}

// turn does one turn. Its length counts from when it was due.
func (w *worker) turn(ctx context.Context, t Turn, from time.Time) error {
	rec := w.run.rec
	known := w.known()
	if known == nil && t == Replay {
		t = Fresh // nothing is settled yet
	}
	switch t {
	case Replay:
		if err := w.replay(ctx, known); err != nil {
			return err
		}
		rec.span(SpanReplay, time.Since(from))
	case Duplicates:
		in, err := w.duplicates(ctx)
		if err != nil {
			return err
		}
		rec.span(SpanDuplicates, time.Since(from))
		w.remember(in)
	case Mismatch:
		if known == nil || w.choose.IntN(2) == 0 {
			return w.mismatchLive(ctx)
		}
		if err := w.mismatch(ctx, known); err != nil {
			return err
		}
		rec.span(SpanMismatch, time.Since(from))
	case Fresh:
		return w.fresh(ctx, from)
	}
	return nil
}

// known is a settled intent, or nil.
func (w *worker) known() *intent {
	switch {
	case len(w.run.hot) > 0:
		return w.run.hot[w.choose.IntN(len(w.run.hot))]
	case len(w.recent) > 0:
		return w.recent[w.choose.IntN(len(w.recent))]
	}
	return nil
}

func (w *worker) remember(in *intent) {
	switch {
	case in == nil:
	case len(w.recent) < keptRecent:
		w.recent = append(w.recent, in)
	default:
		w.recent[w.oldest] = in
		w.oldest = (w.oldest + 1) % keptRecent
	}
}

// newIntent is one that nobody has begun: a key of its own, and an answer that no other has.
func (w *worker) newIntent() *intent {
	var key uuid.UUID
	if w.run.cfg.Keys == UUIDv7 {
		key, _ = uuid.NewV7FromReader(w.random) // this reader never fails
	} else {
		key = w.newUUID()
	}
	hash := make([]byte, 32)
	_, _ = w.random.Read(hash)
	body := make([]byte, w.run.cfg.BodyBytes)
	_, _ = w.random.Read(body)
	return &intent{
		ref:  &idemv1.EntryRef{Tenant: w.run.cfg.Tenant, Operation: w.run.cfg.Operation, Key: key.String()},
		hash: hash,
		response: &idemv1.Response{
			Body: body, ContentType: "application/octet-stream", ResourceType: "load", ResourceId: key.String(),
		},
	}
}

func (w *worker) newUUID() uuid.UUID {
	id, _ := uuid.NewRandomFromReader(w.random) // this reader never fails
	return id
}
