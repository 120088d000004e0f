package ledger

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a Ledger is built from. The zero value of every field but Store is usable.
type Config struct {
	// Store keeps the entries. Required.
	Store Store
	// Daemon names this daemon among those on the same store; "": a random name. Two daemons must not share one.
	Daemon string
	// Clamp bounds retention, whatever a policy says.
	Clamp Clamp
	// Waiting bounds how many Begins may wait at once.
	Waiting WaitLimits
	// SweepEvery is the pause between sweeps; 0: one minute; negative: this daemon never sweeps by itself.
	SweepEvery time.Duration
	// Observer is told what happens, for metrics; nil: nobody is.
	Observer Observer
	// Logger; nil: silence. Keys and bodies never reach it.
	Logger *slog.Logger
}

// WaitLimits bound waiting Begins. One more is refused QUOTA. Zero means the default.
type WaitLimits struct {
	Daemon int // 20,000
	Tenant int // 10,000
	Entry  int // 1,000
}

// Validate refuses a config that cannot work, naming the field.
func (c *Config) Validate() error {
	switch {
	case c.Store == nil:
		return errors.New("ledger: Config.Store is required")
	case c.Waiting.Daemon < 0 || c.Waiting.Tenant < 0 || c.Waiting.Entry < 0:
		return errors.New("ledger: Config.Waiting must not be negative")
	}
	if err := c.Clamp.Validate(); err != nil {
		return fmt.Errorf("ledger: Config.Clamp: %w", err)
	}
	return nil
}

// Caller is who makes a call.
type Caller struct {
	// Principal is the stable name that the caller's credentials give it; "" is anonymous.
	Principal string
	// Operator: the caller may look up what is bound to others. It counts for Lookup only: Begin and reports are never made in another's name.
	Operator bool
}

// Ledger carries out the decisions of [Decide] against a [Store]. All methods may be called concurrently. Every error is a *[Refusal] or the
// context's error; after the latter the same call may be resent blindly. Each can be refused BAD_ROW, for a row of its own and never for another's.
type Ledger struct {
	store    Store
	recall   func(ScopeID) (Reading, bool)
	daemon   string
	clamp    Clamp
	secret   *Secret
	log      *slog.Logger
	observer Observer

	policies *policyCache
	waiters  *waiters
	sweeper  *sweeper
	presence presence
	badRows  badRows
	// calls counts the calls of callers, so that a sweep knows when to yield.
	calls    atomic.Int64
	draining atomic.Bool
	drained  chan struct{}
	once     sync.Once
}

// secretKind is the setting that holds the secret.
const secretKind = "secret"

// New opens a ledger on a store that is ready. It makes the store's secret if there is none yet.
func New(ctx context.Context, cfg Config) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	now, err := cfg.Store.Ready(ctx)
	if err != nil {
		return nil, fmt.Errorf("ledger: the store is not ready: %w", err)
	}
	secret, err := loadSecret(ctx, cfg.Store)
	if err != nil {
		return nil, err
	}
	l := &Ledger{
		store: cfg.Store, daemon: cfg.Daemon, clamp: cfg.Clamp, secret: secret, log: cfg.Logger, observer: cfg.Observer,
		drained: make(chan struct{}),
	}
	l.recall = func(ScopeID) (Reading, bool) { return Reading{}, false }
	if r, ok := cfg.Store.(Recaller); ok {
		l.recall = r.Recall
	}
	if l.daemon == "" {
		l.daemon = randomName()
	}
	if l.log == nil {
		l.log = slog.New(slog.DiscardHandler)
	}
	if l.observer == nil {
		l.observer = noObserver{}
	}
	l.presence.start(now)
	l.policies = newPolicyCache(cfg.Store, cfg.Clamp)
	l.waiters = newWaiters(l, cfg.Waiting)
	l.sweeper = newSweeper(l, cfg.SweepEvery)
	if err := l.policies.reload(ctx); err != nil {
		return nil, fmt.Errorf("ledger: reading the policies: %w", err)
	}
	return l, nil
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails
	return hex.EncodeToString(b[:])
}

func loadSecret(ctx context.Context, store Store) (*Secret, error) {
	// Two tries: of several daemons that start on an empty store, one writes the secret and all read it back.
	for range 2 {
		settings, err := store.Settings(ctx, secretKind)
		if err != nil {
			return nil, fmt.Errorf("ledger: reading the secret: %w", err)
		}
		for _, s := range settings.List {
			return NewSecret(s.Body)
		}
		key := make([]byte, SecretBytes)
		_, _ = rand.Read(key)
		if _, err := store.PutSetting(ctx, Setting{Kind: secretKind, Name: "v1", Body: key}, 0); err != nil && !errors.Is(err, ErrUnknown) {
			return nil, fmt.Errorf("ledger: writing the secret: %w", err)
		}
	}
	settings, err := store.Settings(ctx, secretKind)
	if err != nil {
		return nil, fmt.Errorf("ledger: reading the secret: %w", err)
	}
	if len(settings.List) == 0 {
		return nil, errors.New("ledger: the store did not keep the secret")
	}
	return NewSecret(settings.List[0].Body)
}

// Run keeps the ledger's background work going until ctx ends: it watches the store, refreshes policies and sweeps. Call it once.
func (l *Ledger) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, loop := range []func(context.Context){l.watchStore, l.watchSelf, l.policies.run, l.sweeper.run} {
		wg.Go(func() { loop(ctx) })
	}
	wg.Wait()
	return nil
}

// Drain refuses new claims from now on (DRAINING) and answers everybody who waits. Reports, renewals and lookups go on.
func (l *Ledger) Drain() {
	l.once.Do(func() {
		l.draining.Store(true)
		close(l.drained)
	})
}

// Ready reports whether the store answers and its schema is right.
func (l *Ledger) Ready(ctx context.Context) error {
	now, err := l.store.Ready(ctx)
	l.presence.observe(ctx, now, err)
	if err != nil {
		return storeRefusal(err)
	}
	return nil
}

// LogKey returns the keyed hash that stands for a scope in logs, traces and metrics.
func (l *Ledger) LogKey(ref Ref) string { return l.secret.LogKey(ref) }

// env starts an Env for a caller under the rules of a scope. Now is set at the reading.
func (l *Ledger) env(ctx context.Context, ref Ref, caller Caller) (Env, error) {
	rules, err := l.policies.rules(ctx, ref.Tenant, ref.Operation)
	if err != nil {
		l.presence.observe(ctx, 0, err)
		return Env{}, contextOrStore(ctx, err)
	}
	return Env{
		Rules: rules, Margin: l.store.Margin(), Principal: caller.Principal, Bound: l.secret.Principal(caller.Principal),
		Operator: caller.Operator,
	}, nil
}

// holdersEnv is env for whoever holds a claim. Where the policy cannot be read, a report or a renewal is to be sent again until somebody has put it right: what
// was done must not go unrecorded for it.
func (l *Ledger) holdersEnv(ctx context.Context, ref Ref, caller Caller) (Env, error) {
	env, err := l.env(ctx, ref, caller)
	if errors.Is(err, ErrBadRow) {
		r := refuse(ReasonStoreUnavailable, "the stored policy for this operation cannot be read; nothing was decided: resend the same call until somebody has put it right")
		r.RetryAfter, r.Cause = storeRetryAfter, err
		return Env{}, r
	}
	return env, err
}

// decided is what became of a request: the verdict, the entry it was reached on, and what was written.
type decided struct {
	verdict Verdict
	// before is the row as read; nil where there was none, or where the one-round-trip path went through without reading.
	before *Entry
	now    Time
	stamps Stamps
	// since is the store's clock as it was last seen before the call wrote anything.
	since Time
	// tried: an earlier try within this call may have written. own: and it may have written what the request is for, a grant or a report,
	// and not only renewed a claim.
	tried, own bool
}

// replays reports whether what the call found, written at an instant, is of an earlier call, so that this one is a resend. If this call may have
// written the same, what was there before the call began tells them apart. They can be taken for one another where this daemon did not hear
// of the store between the two: then a resend is not said to be one.
func (d *decided) replays(at Time) bool { return !d.own || at <= d.since }

// unsure is err, or, where an earlier try of the call may have written, a refusal that does not claim that nothing was.
func (d *decided) unsure(err error) error {
	var refusal *Refusal
	if !d.tried || !errors.As(err, &refusal) || errors.Is(err, ErrUnknown) {
		return err
	}
	return storeRefusal(fmt.Errorf("%w; then: %w", ErrUnknown, refusal.Cause))
}

// maxTries bounds how often one call reads and decides again because others got in between.
const maxTries = 24

// carryOut runs a request to its end: the one-round-trip path first, then read, decide, compare and swap. A write of unknown outcome is
// read back: since every request recognises its own earlier write (a Begin by its attempt id, a report by its digest), deciding again on
// what is there now is always right. wait, if not nil, blocks while
// another attempt is at work and returns what is there then (nil: read it), or false to give up.
func (l *Ledger) carryOut(ctx context.Context, scope ScopeID, req Request, env Env, wait func(Reading) (*Reading, bool)) (decided, error) {
	l.calls.Add(1)
	d := decided{since: l.presence.seen()}
	seen := l.replayable(scope, req)
	var w *Write
	if seen == nil {
		w = Speculate(req, env)
	}
	if w != nil {
		done, err := l.write(ctx, w, &d)
		if done {
			d.verdict = speculated(req, w)
		}
		if done || err != nil {
			return d, err
		}
	}
	for try := 0; ; try++ {
		if seen == nil {
			reading, err := l.get(ctx, scope)
			if err != nil {
				return d, d.unsure(err)
			}
			seen = &reading
		}
		reading := *seen
		seen = nil
		env.Now, env.Floor = reading.Now, l.presence.floor(reading.lease())
		d.before, d.now = reading.Entry, reading.Now
		d.verdict = Decide(reading.Entry, req, env)
		if d.verdict.Outcome == InProgress && wait != nil {
			if next, again := wait(reading); again {
				seen, try = next, -1
				continue
			}
		}
		if d.verdict.Write == nil {
			return d, nil
		}
		done, err := l.write(ctx, d.verdict.Write, &d)
		if done || err != nil {
			return d, d.unsure(err)
		}
		if try >= maxTries {
			return d, d.unsure(storeRefusal(fmt.Errorf("%w: %d tries", ErrContended, try)))
		}
		if err := pause(ctx, try); err != nil {
			return d, err
		}
	}
}

// replayable is the entry that a Begin is about, if it is known to be there without asking the store: most often it is settled, and the answer is all that
// the caller wants.
func (l *Ledger) replayable(scope ScopeID, req Request) *Reading {
	if _, begin := req.(BeginDecision); !begin {
		return nil
	}
	if reading, ok := l.recall(scope); ok {
		return &reading
	}
	return nil
}

// speculated is the verdict that goes with a one-round-trip write.
func speculated(req Request, w *Write) Verdict {
	v := Verdict{Write: w}
	switch req.(type) {
	case BeginDecision:
		v.Outcome = Granted
	case ReportDecision:
		v.Outcome = Done
	default:
		v.Outcome = Renewed
	}
	return v
}

// write applies w. done is true where it was applied; false with no error means that the guard did not hold, that the outcome is unknown, or
// that the lease it gave was half over when the store answered: read and decide again.
func (l *Ledger) write(ctx context.Context, w *Write, d *decided) (done bool, err error) {
	began := time.Now()
	written, err := l.store.Write(ctx, *w)
	took := time.Since(began)
	l.observer.StoreCall("write", took, err)
	l.presence.observe(ctx, written.Stamps.Now, err)
	err = l.named(ctx, w.Scope, err)
	switch {
	case errors.Is(err, ErrUnknown):
		d.tried, d.own = true, d.own || w.Extend == nil
		return false, ctx.Err()
	case err != nil:
		return false, contextOrStore(ctx, err)
	case !written.Applied:
		return false, nil
	}
	d.stamps = written.Stamps
	if w.Put != nil && w.Put.Current && w.Put.Last.BeganAt.Relative() && took > written.Stamps.Lease/2 {
		d.tried, d.own, d.since = true, true, 0 // this one certainly is the call's own
		return false, nil
	}
	l.waiters.wake(w.Scope)
	return true, nil
}

func (l *Ledger) get(ctx context.Context, scope ScopeID) (Reading, error) {
	began := time.Now()
	reading, err := l.store.Get(ctx, scope)
	l.observer.StoreCall("get", time.Since(began), err)
	l.presence.observe(ctx, reading.Now, err)
	if err != nil {
		return Reading{}, contextOrStore(ctx, l.named(ctx, scope, err))
	}
	return reading, nil
}

// contextOrStore prefers the caller's own deadline over what the store made of it.
func contextOrStore(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return storeRefusal(err)
}

// storeRetryAfter is what callers are told to wait when the store cannot be reached.
const storeRetryAfter = time.Second

func storeRefusal(err error) error {
	r := refuse(ReasonStoreUnavailable, "the store cannot be reached; nothing was decided")
	var fault StoreFault
	if errors.As(err, &fault) {
		r.Message = fault.Error() + "; nothing was decided: resend the same call when that is put right"
		r = r.with("store", string(fault))
	}
	switch {
	case errors.Is(err, ErrUnknown):
		r.Message = "the store did not say whether the write happened; resend the same call to learn it"
	case errors.Is(err, ErrContended):
		r.Message = "other calls on the same entry got in the way for too long; resend the same call"
	case errors.Is(err, ErrBadRow):
		return badRow(err)
	}
	r.RetryAfter, r.Cause = storeRetryAfter, err
	return r
}
