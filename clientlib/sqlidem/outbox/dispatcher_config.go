package outbox

import (
	"errors"
	"log/slog"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// The defaults of [DispatcherConfig].
const (
	DefaultLease          = 30 * time.Second
	DefaultPublishTimeout = time.Minute
	DefaultPollInterval   = time.Second
	DefaultStopTimeout    = 10 * time.Second
	DefaultConcurrency    = 8
	DefaultBatchSize      = 100
	DefaultBatchBytes     = 4 << 20
	DefaultMaxAttempts    = 10
	DefaultFirstPause     = time.Second
	DefaultLongestPause   = 5 * time.Minute
	// DefaultClockMargin is how far apart the clocks of CockroachDB's nodes can be: its own limit (--max-offset).
	DefaultClockMargin = 500 * time.Millisecond
)

// DispatcherConfig says how a dispatcher works. The zero value is right for most. It holds at most Concurrency × BatchBytes of events, and
// one event more for each, in memory.
type DispatcherConfig struct {
	// Owner names this dispatcher in the tables, for people. Default: a random name.
	Owner string
	// Lease is how long an aggregate stays with a dispatcher that died. One that lives extends it. Default: DefaultLease.
	Lease time.Duration
	// PublishTimeout is how long the publisher may take over one batch. After it its context ends and the lease is no longer extended.
	// Default: DefaultPublishTimeout.
	PublishTimeout time.Duration
	// PollInterval is about how long the dispatcher waits before it looks again, when there was nothing to do. Default:
	// DefaultPollInterval. [Dispatcher.Wake] makes it look at once.
	PollInterval time.Duration
	// StopTimeout is how long what is being published may take to end after Run's context has. Default: DefaultStopTimeout.
	StopTimeout time.Duration
	// Concurrency is for how many aggregates it publishes at a time. Default: DefaultConcurrency.
	Concurrency int
	// BatchSize and BatchBytes are how many events of one aggregate are read, published and recorded together, and how long their
	// payloads and headers may be in all; one event is always taken. Defaults: DefaultBatchSize, DefaultBatchBytes.
	BatchSize, BatchBytes int
	// MaxAttempts is how often an event may fail before its aggregate is parked. Default: DefaultMaxAttempts, which with the default
	// pauses is after about a quarter of an hour.
	MaxAttempts int
	// FirstPause is the pause after an event's first failure. It doubles with each further one, up to LongestPause, and each is shortened
	// at random by up to half. Defaults: DefaultFirstPause, DefaultLongestPause.
	FirstPause, LongestPause time.Duration
	// DeletePublished deletes events in the statement that records that they were published. Otherwise they stay until [Outbox.Sweep].
	DeletePublished bool
	// ClockMargin is how far apart the clocks of CockroachDB's nodes can be. It means nothing on PostgreSQL, which has one clock.
	// Default: DefaultClockMargin.
	ClockMargin time.Duration
	// Hooks are told what happens, for metrics.
	Hooks Hooks
	// Logger is told what went wrong. Payloads and headers never reach it; publishers' errors do. Nil: silence.
	Logger *slog.Logger

	// Heartbeat is how often a lease is extended. Default: a third of the lease. Tests shorten it.
	Heartbeat time.Duration
}

// Hooks are functions that a dispatcher calls, each from many goroutines. Any may be nil. They must not block.
type Hooks struct {
	// Published: so many events of an aggregate were published and recorded. Age is how long ago the oldest of them was written, by this
	// machine's clock.
	Published func(aggregate Aggregate, events int, age time.Duration)
	// Failed: an event could not be published. Attempt counts its failures, those in an outage left out.
	Failed func(event Envelope, attempt int, err error)
	// Parked: an event was taken for poison. Its aggregate waits for an operator.
	Parked func(aggregate Aggregate, version int64, err error)
	// LeaseLost: somebody else was given an aggregate that this dispatcher was at work on.
	LeaseLost func(aggregate Aggregate)
	// Outage: the broker seems to be away (true), or is back (false).
	Outage func(away bool)
}

// Validate says what is wrong with the configuration, or nil.
func (c DispatcherConfig) Validate() error {
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"Lease", c.Lease}, {"PublishTimeout", c.PublishTimeout}, {"PollInterval", c.PollInterval}, {"StopTimeout", c.StopTimeout},
		{"FirstPause", c.FirstPause}, {"LongestPause", c.LongestPause}, {"ClockMargin", c.ClockMargin}, {"Heartbeat", c.Heartbeat},
	} {
		if d.value < 0 {
			return errors.New("outbox: DispatcherConfig." + d.name + " must not be negative")
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"Concurrency", c.Concurrency}, {"BatchSize", c.BatchSize}, {"BatchBytes", c.BatchBytes}, {"MaxAttempts", c.MaxAttempts}} {
		if n.value < 0 {
			return errors.New("outbox: DispatcherConfig." + n.name + " must not be negative")
		}
	}
	if c.Owner != "" && sqldb.CheckName(c.Owner, MaxNameLength) != nil {
		return errors.New("outbox: DispatcherConfig.Owner must be text of at most 255 characters")
	}
	full := c.withDefaults()
	if full.Lease < 2*full.ClockMargin {
		return errors.New("outbox: DispatcherConfig.Lease must be at least twice the ClockMargin")
	}
	if full.Heartbeat >= full.Lease {
		return errors.New("outbox: DispatcherConfig.Heartbeat must be shorter than the Lease")
	}
	return nil
}

func (c DispatcherConfig) withDefaults() DispatcherConfig {
	setDefault(&c.Lease, DefaultLease)
	setDefault(&c.PublishTimeout, DefaultPublishTimeout)
	setDefault(&c.PollInterval, DefaultPollInterval)
	setDefault(&c.StopTimeout, DefaultStopTimeout)
	setDefault(&c.Concurrency, DefaultConcurrency)
	setDefault(&c.BatchSize, DefaultBatchSize)
	setDefault(&c.BatchBytes, DefaultBatchBytes)
	setDefault(&c.MaxAttempts, DefaultMaxAttempts)
	setDefault(&c.FirstPause, DefaultFirstPause)
	setDefault(&c.LongestPause, max(DefaultLongestPause, c.FirstPause))
	setDefault(&c.ClockMargin, DefaultClockMargin)
	setDefault(&c.Heartbeat, c.Lease/3)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var unset T
	if *field == unset {
		*field = value
	}
}
