package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

const (
	// discoverLimit is how many rows of the pending table are looked at in one go.
	discoverLimit = 500
	// statementTimeout is how long the database may take over one statement.
	statementTimeout = 10 * time.Second
	// longestProbe is how long an outage of the broker can be over before anybody looks.
	longestProbe = 30 * time.Second
	// batchesPerClaim is after how many batches an aggregate with a long backlog makes room for others.
	batchesPerClaim = 10
)

// Dispatcher publishes what stands in an outbox. Any number may run on one outbox, in any number of processes.
type Dispatcher struct {
	store     *store
	publisher Publisher
	config    DispatcherConfig

	running sync.Mutex // held by Run and RunOnce
	cursor  Aggregate  // where the search for work goes on; used under running, as the next two
	found   []candidate
	ended   bool // nothing comes after what was found
	slots   chan struct{}
	workers sync.WaitGroup
	wake    chan struct{}
	outage  outage

	counts struct {
		sync.Mutex
		Report
	}
}

// Report says what a pass came to.
type Report struct {
	// Published is how many events were published and recorded.
	Published int
	// Failed is how many times an event could not be published.
	Failed int
	// Parked is how many aggregates were parked.
	Parked int
}

// NewDispatcher makes a dispatcher of an outbox. It does nothing before [Dispatcher.Run] or [Dispatcher.RunOnce].
func NewDispatcher[T any](box *Outbox[T], publisher Publisher, config DispatcherConfig) (*Dispatcher, error) {
	if box == nil || publisher == nil {
		return nil, errors.New("outbox: NewDispatcher needs an outbox and a publisher")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if config.Owner == "" {
		id, err := uuid.NewRandom()
		if err != nil {
			return nil, fmt.Errorf("outbox: %w", err)
		}
		config.Owner = "dispatcher-" + id.String()
	}
	return &Dispatcher{
		store: box.store, publisher: publisher, config: config,
		slots: make(chan struct{}, config.Concurrency), wake: make(chan struct{}, 1),
	}, nil
}

// Wake makes a dispatcher of this process look for work now. Call it when a transaction that wrote events is committed; without it they
// wait for the next poll.
func (d *Dispatcher) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

var errRunning = errors.New("outbox: the dispatcher is running already")

// Run publishes until ctx ends. Then it takes nothing more on, lets the publisher finish the batches that it has within StopTimeout, gives
// its aggregates back and returns nil. While the database is away it tries again, for ever.
func (d *Dispatcher) Run(ctx context.Context) error {
	if !d.running.TryLock() {
		return errRunning
	}
	defer d.running.Unlock()
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	unlink := context.AfterFunc(ctx, func() {
		if sqldb.Pause(work, d.config.StopTimeout) {
			cancel(errStopping)
		}
	})
	defer unlink()
	d.loop(ctx, work)
	d.workers.Wait()
	return nil
}

var errStopping = errors.New("outbox: the dispatcher stops")

func (d *Dispatcher) loop(ctx, work context.Context) {
	claimed, failures := false, 0
	for ctx.Err() == nil {
		if probes := d.outage.probes(); probes > 0 && !sqldb.Pause(ctx, min(d.backOff(probes), longestProbe)) {
			return
		}
		n, end, err := d.round(ctx, work)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			failures++
			d.config.Logger.WarnContext(ctx, "outbox: looking for work failed", slog.Any("error", err))
			sqldb.Pause(ctx, d.backOff(failures))
			continue
		}
		failures = 0
		claimed = claimed || n > 0
		if end {
			if !claimed {
				d.rest(ctx)
			}
			claimed = false
		}
	}
}

// rest waits for the next poll, or to be woken.
func (d *Dispatcher) rest(ctx context.Context) {
	timer := time.NewTimer(jittered(d.config.PollInterval))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.wake:
	case <-ctx.Done():
	}
}

// RunOnce publishes what there is to publish now and returns. Events whose pause is not over, and aggregates that others are at work on,
// are left.
func (d *Dispatcher) RunOnce(ctx context.Context) (Report, error) {
	if !d.running.TryLock() {
		return Report{}, errRunning
	}
	defer d.running.Unlock()
	d.counts.Lock()
	d.counts.Report = Report{}
	d.counts.Unlock()
	d.cursor, d.found = Aggregate{}, nil
	for claimed := false; ; {
		n, end, err := d.round(ctx, ctx)
		d.workers.Wait()
		if err == nil {
			err = ctx.Err()
		}
		claimed = claimed || n > 0
		if err != nil || end && !claimed {
			d.counts.Lock()
			defer d.counts.Unlock()
			return d.counts.Report, err
		}
		if end {
			claimed = false
		}
	}
}

// round claims what is free, as far as there is room, and starts workers on it. It reports whether it came to the end of what is pending;
// the next round then begins at the start again.
func (d *Dispatcher) round(ctx, work context.Context) (claimed int, end bool, err error) {
	room := d.reserve(ctx)
	if room == 0 {
		return 0, false, ctx.Err()
	}
	started := 0
	defer func() {
		for range room - started {
			<-d.slots
		}
	}()
	margin, err := d.margin(ctx)
	if err != nil {
		return 0, false, err
	}
	if len(d.found) == 0 {
		if err := d.search(ctx, margin); err != nil || len(d.found) == 0 {
			return 0, d.ended, err
		}
	}
	candidates := d.found[:min(room, len(d.found))]
	d.found = d.found[len(candidates):]
	began := time.Now()
	// Not under ctx: a claim that was committed and whose reply nobody waits for would keep the aggregate from everybody for a lease.
	claims, err := within(work, func(ctx context.Context) ([]claim, error) {
		return d.store.claim(ctx, candidates, d.config.Owner, d.config.Lease, margin)
	})
	if err != nil {
		return 0, false, err
	}
	for _, c := range claims {
		started++
		d.workers.Go(func() {
			defer func() { <-d.slots }()
			d.deliver(ctx, work, &holding{claim: c, until: began.Add(d.config.Lease - margin), margin: margin})
		})
	}
	return started, d.ended && len(d.found) == 0, nil
}

// reserve waits for a free slot, and takes as many as there are. During an outage one is enough to find out whether it is over.
func (d *Dispatcher) reserve(ctx context.Context) (n int) {
	select {
	case d.slots <- struct{}{}:
		n = 1
	case <-ctx.Done():
		return 0
	}
	for d.outage.probes() == 0 {
		select {
		case d.slots <- struct{}{}:
			n++
		default:
			return n
		}
	}
	return n
}

// search looks at the next page of what is pending. What it finds may be gone or taken by the time that it is claimed: the claim looks again.
func (d *Dispatcher) search(ctx context.Context, margin time.Duration) error {
	found, err := within(ctx, func(ctx context.Context) (page, error) {
		return d.store.discover(ctx, d.cursor, discoverLimit, margin)
	})
	if err != nil {
		return err
	}
	var fresh []candidate
	for _, c := range found.candidates {
		if c.fresh {
			fresh = append(fresh, c)
		}
	}
	if len(fresh) > 0 {
		_, err := within(ctx, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.store.open(ctx, fresh) })
		if err != nil {
			return err
		}
	}
	d.found, d.cursor, d.ended = found.candidates, found.last, found.end
	if found.end {
		d.cursor = Aggregate{}
	}
	return nil
}

// margin is by how much the database's clocks can differ.
func (d *Dispatcher) margin(ctx context.Context) (time.Duration, error) {
	engine, err := within(ctx, d.store.engineOf)
	if engine == sqldb.CockroachDB {
		return d.config.ClockMargin, err
	}
	return 0, err
}

func within[T any](ctx context.Context, fn func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	return fn(ctx)
}

// backOff is the pause after the n-th failure in a row.
func (d *Dispatcher) backOff(n int) time.Duration {
	pause := d.config.FirstPause
	for range n - 1 {
		if pause >= d.config.LongestPause/2 {
			pause = d.config.LongestPause
			break
		}
		pause *= 2
	}
	return jittered(min(pause, d.config.LongestPause))
}

// jittered shortens d at random by up to half, so that those who failed together do not come back together.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }

func (d *Dispatcher) count(change func(*Report)) {
	d.counts.Lock()
	defer d.counts.Unlock()
	change(&d.counts.Report)
}
