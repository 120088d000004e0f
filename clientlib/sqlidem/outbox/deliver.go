package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// holding is a claim in the hands of a worker.
type holding struct {
	claim
	until  time.Time // how long it is ours for certain, by this machine's monotonic clock
	margin time.Duration
}

var (
	errLeaseLost = errors.New("outbox: the aggregate was given to another dispatcher")
	errLeaseOver = errors.New("outbox: the lease is over and could not be extended")
)

// settleTries is how often what is known of an aggregate is tried to be recorded, before it is left to whoever comes next.
const settleTries = 3

// deliver publishes the events of one aggregate, batch by batch, and gives it back. It goes on until ctx ends; what it has begun ends
// with work.
func (d *Dispatcher) deliver(ctx, work context.Context, h *holding) {
	for batch := 1; ; batch++ {
		events, err := d.next(work, h)
		if err != nil {
			d.interrupted(work, h, err)
			return
		}
		if len(events) == 0 {
			d.record(work, h, settlement{published: h.published, release: true})
			return
		}
		n, err := d.publish(work, h, events)
		if err != nil {
			d.broke(work, h, events, n, err)
			return
		}
		d.outageOver()
		full := d.full(events)
		release := !full || batch == batchesPerClaim || ctx.Err() != nil
		if !d.progress(work, h, events, settlement{release: release}) {
			return
		}
		if release {
			d.Wake() // more may have been written while nobody else could claim the aggregate
			return
		}
	}
}

// full says that there may be more events than these.
func (d *Dispatcher) full(events []Envelope) bool {
	size := 0
	for _, e := range events {
		size += len(e.Payload)
	}
	// Half, since headers count too when the batch is read.
	return len(events) == d.config.BatchSize || size >= d.config.BatchBytes/2
}

// missingError is an event that is not there although nobody published it.
type missingError struct{ version int64 }

func (e *missingError) Error() string { return fmt.Sprintf("event %d: %v", e.version, errMissing) }

// next reads the events that follow the ones published, without a gap.
func (d *Dispatcher) next(ctx context.Context, h *holding) ([]Envelope, error) {
	read := func(ctx context.Context) ([]Envelope, error) {
		return d.store.read(ctx, h.claim, d.config.BatchSize, d.config.BatchBytes)
	}
	events, err := within(ctx, read)
	if err != nil {
		return nil, err
	}
	if len(events) == 0 {
		first, err := within(ctx, func(ctx context.Context) (int64, error) { return d.store.firstPending(ctx, h.claim) })
		if err != nil || first == 0 {
			return nil, err
		}
		// Written since, or gone.
		if events, err = within(ctx, read); err != nil {
			return nil, err
		}
	}
	for i, e := range events {
		if want := h.published + int64(i) + 1; e.Version != want {
			if i > 0 {
				return events[:i], nil // the gap is met when these are published
			}
			return nil, &missingError{want}
		}
	}
	if len(events) == 0 {
		return nil, &missingError{h.published + 1}
	}
	return events, nil
}

// publish hands a batch to the publisher while the lease is kept alive. It returns how many events were acknowledged.
func (d *Dispatcher) publish(ctx context.Context, h *holding, events []Envelope) (n int, err error) {
	if time.Until(h.until) < d.config.Lease/2 {
		if err := d.extend(ctx, h); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bounded, cancelBounded := context.WithTimeout(ctx, d.config.PublishTimeout)
	defer cancelBounded()
	stop, kept := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(kept)
		d.keep(bounded, h, stop, cancel)
	}()
	n, err = guarded(bounded, d.publisher, events)
	close(stop)
	<-kept
	if err == nil && n != len(events) {
		err = fmt.Errorf("outbox: the publisher published %d of %d events and gave no error", n, len(events))
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // it was interrupted, whatever it made of that
	}
	return min(max(n, 0), len(events)), err
}

// guarded turns a panic of the publisher into a failure of the event that it had in hand.
func guarded(ctx context.Context, p Publisher, events []Envelope) (n int, err error) {
	defer func() {
		if r := recover(); r != nil {
			n, err = 0, fmt.Errorf("outbox: the publisher panicked: %v", r)
		}
	}()
	return p.Publish(ctx, events)
}

// keep extends the lease until stop, the publisher's time limit, or the loss of the lease, which it makes the cause of cancel.
func (d *Dispatcher) keep(ctx context.Context, h *holding, stop <-chan struct{}, cancel context.CancelCauseFunc) {
	beat := time.NewTicker(d.config.Heartbeat)
	defer beat.Stop()
	over := time.NewTimer(time.Until(h.until))
	defer over.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-over.C:
			cancel(errLeaseOver)
			return
		case <-beat.C:
		}
		switch err := d.extend(ctx, h); {
		case errors.Is(err, errLeaseLost):
			cancel(errLeaseLost)
			return
		case err == nil:
			over.Reset(time.Until(h.until))
		}
	}
}

func (d *Dispatcher) extend(ctx context.Context, h *holding) error {
	began := time.Now()
	ours, err := within(ctx, func(ctx context.Context) (bool, error) { return d.store.extend(ctx, h.claim, d.config.Lease) })
	if err == nil && !ours {
		return errLeaseLost
	}
	if err == nil {
		h.until = began.Add(d.config.Lease - h.margin)
	}
	return err
}

// broke ends the work on an aggregate when a batch was not published whole.
func (d *Dispatcher) broke(ctx context.Context, h *holding, events []Envelope, n int, err error) {
	if n > 0 {
		d.outageOver()
	}
	if errors.Is(err, errLeaseLost) || errors.Is(err, errLeaseOver) || errors.Is(err, errStopping) || ctx.Err() != nil || n == len(events) {
		if n > 0 {
			d.progress(ctx, h, events[:n], settlement{release: true})
			return
		}
		d.interrupted(ctx, h, err)
		return
	}
	failed := settlement{release: true, failure: sqldb.Text(err.Error(), maxErrorLength), pause: jittered(d.config.FirstPause)}
	if n == 0 {
		failed.attempts = h.attempts
	}
	// In an outage it is the dispatcher that pauses, for longer and longer; the event is there when the broker is back.
	if !d.outageSeen(h.Aggregate, err) {
		failed.attempts++
		failed.pause = d.backOff(failed.attempts)
	}
	failed.parked = isPoison(err) || failed.attempts >= d.config.MaxAttempts
	d.count(func(r *Report) { r.Failed++ })
	if hook := d.config.Hooks.Failed; hook != nil {
		hook(events[n], failed.attempts, err)
	}
	if d.progress(ctx, h, events[:n], failed) && failed.parked {
		d.parked(ctx, h.Aggregate, events[n].Version, err)
	}
}

func (d *Dispatcher) parked(ctx context.Context, a Aggregate, version int64, err error) {
	d.count(func(r *Report) { r.Parked++ })
	d.config.Logger.ErrorContext(ctx, "outbox: an aggregate is parked", slog.String("type", a.Type), slog.Int64("version", version), slog.Any("error", err))
	if hook := d.config.Hooks.Parked; hook != nil {
		hook(a, version, err)
	}
}

// interrupted ends the work on an aggregate for a reason that is not one of its events.
func (d *Dispatcher) interrupted(ctx context.Context, h *holding, err error) {
	var missing *missingError
	switch {
	case errors.As(err, &missing):
		with := settlement{published: h.published, attempts: h.attempts, failure: err.Error(), parked: true, release: true}
		if d.record(ctx, h, with) {
			d.parked(ctx, h.Aggregate, missing.version, err)
		}
	case errors.Is(err, errLeaseLost):
		d.lost(h)
	default:
		d.config.Logger.WarnContext(ctx, "outbox: publishing was interrupted", slog.Any("error", err))
		// What failed before has not been tried again: it keeps its count, and its pause begins again.
		with := settlement{published: h.published, attempts: h.attempts, release: true}
		if h.attempts > 0 {
			with.pause, with.failure = d.config.FirstPause, sqldb.Text(err.Error(), maxErrorLength)
		}
		d.record(ctx, h, with)
	}
}

// progress records that events were published, and what else is to be said.
func (d *Dispatcher) progress(ctx context.Context, h *holding, events []Envelope, with settlement) bool {
	with.published = h.published
	if len(events) > 0 {
		with.published = events[len(events)-1].Version
	}
	if !d.record(ctx, h, with) {
		return false
	}
	h.published, h.attempts = with.published, with.attempts
	if len(events) > 0 {
		d.count(func(r *Report) { r.Published += len(events) })
		if hook := d.config.Hooks.Published; hook != nil {
			hook(h.Aggregate, len(events), time.Since(events[0].WrittenAt))
		}
	}
	return true
}

// record tells the database, also when ctx has ended. It reports whether that is recorded for certain. If it may not be, nothing more is
// published for this aggregate under this claim, and whoever claims it next begins where the database says.
func (d *Dispatcher) record(ctx context.Context, h *holding, with settlement) bool {
	with.remove = d.config.DeletePublished
	ctx = context.WithoutCancel(ctx)
	for try := 1; ; try++ {
		ours, err := within(ctx, func(ctx context.Context) (bool, error) { return d.store.settle(ctx, h.claim, with) })
		if err == nil && !ours {
			d.lost(h)
		}
		if err == nil {
			return ours
		}
		d.config.Logger.WarnContext(ctx, "outbox: recording what was published failed", slog.Any("error", err))
		if try == settleTries || !sqldb.Pause(ctx, jittered(100*time.Millisecond)) {
			return false
		}
	}
}

func (d *Dispatcher) lost(h *holding) {
	if hook := d.config.Hooks.LeaseLost; hook != nil {
		hook(h.Aggregate)
	}
}

// maxErrorLength is how much of a publisher's error is kept in the table.
const maxErrorLength = 500
