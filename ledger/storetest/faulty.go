package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemd/idemd/ledger"
)

// FaultKind is what goes wrong with one call.
type FaultKind int

// The faults. A read can only be refused or delayed: where a plan asks for one of the unknown outcomes, a read answers ErrUnavailable.
const (
	// NoFault: nothing goes wrong, though the call may be delayed.
	NoFault FaultKind = iota
	// Refuse: ErrUnavailable, not done.
	Refuse
	// Contend: ErrContended, not done.
	Contend
	// LoseReply: done, and ErrUnknown.
	LoseReply
	// LoseRequest: ErrUnknown, never done.
	LoseRequest
	// Late: ErrUnknown, and done after later calls have gone first, guarded by then as ever.
	Late
	// WhileDown: refused since the store is away (see [Faulty.Down]). Only counted, never planned.
	WhileDown
	// Delayed: held up by Before or After. Only counted, never planned.
	Delayed
)

var faultNames = map[FaultKind]string{
	NoFault: "no fault", Refuse: "refuse", Contend: "contend", LoseReply: "lose reply", LoseRequest: "lose request", Late: "late",
	WhileDown: "while down", Delayed: "delayed",
}

// String names the kind.
func (k FaultKind) String() string { return faultNames[k] }

// Fault is what happens to one call. The zero Fault is none.
type Fault struct {
	Kind FaultKind
	// Before, if set, runs before the call and holds it up until it returns; an error of it is returned and nothing is done.
	Before func(context.Context) error
	// After, if set, runs after the call and holds up its reply; with an error of it the outcome is unknown to the caller.
	After func(context.Context) error
	// LandAfter is how many later calls go before a Late write; 0: it waits for [Faulty.Land].
	LandAfter int
}

// Until makes a delay of a channel: what is held up goes on when the test closes it or sends to it.
func Until(release <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Method is a method of a store.
type Method string

// The methods that faults meet.
const (
	Get        Method = "Get"
	Write      Method = "Write"
	Page       Method = "Page"
	Forget     Method = "Forget"
	Settings   Method = "Settings"
	PutSetting Method = "PutSetting"
	Ready      Method = "Ready"
)

// Writes reports whether the method changes anything, so that its outcome can be unknown.
func (m Method) Writes() bool { return m == Write || m == Forget || m == PutSetting }

// Call is one call as a plan sees it.
type Call struct {
	// N counts the calls from 1.
	N      int
	Method Method
	// Scope is what Get and Write are about.
	Scope ledger.ScopeID
	// Write is what Write was given, else nil. A plan must not change it.
	Write *ledger.Write
}

// Plan decides what happens to a call. It is called for one call at a time.
type Plan func(Call) Fault

// Script plays faults in order, one for each call, and then none.
func Script(faults ...Fault) Plan {
	return func(Call) Fault {
		if len(faults) == 0 {
			return Fault{}
		}
		f := faults[0]
		faults = faults[1:]
		return f
	}
}

// Kinds is a script of faults that need nothing but their kind.
func Kinds(kinds ...FaultKind) Plan {
	faults := make([]Fault, len(kinds))
	for i, k := range kinds {
		faults[i].Kind = k
	}
	return Script(faults...)
}

// On lets plan see the calls of one method only; the others meet no fault.
func On(method Method, plan Plan) Plan {
	return func(c Call) Fault {
		if c.Method != method {
			return Fault{}
		}
		return plan(c)
	}
}

// OnWrites lets plan see the calls that change something only.
func OnWrites(plan Plan) Plan {
	return func(c Call) Fault {
		if !c.Method.Writes() {
			return Fault{}
		}
		return plan(c)
	}
}

// Odds is how likely each kind is, from 0 to 1; what remains to 1 is no fault.
type Odds struct {
	Refuse, Contend, LoseReply, LoseRequest, Late float64
}

// Seeded draws faults at random. The same seed and calls give the same faults.
func Seeded(seed uint64, odds Odds) Plan {
	rng := rand.New(rand.NewPCG(seed, 0))
	return func(Call) Fault {
		draw, late := rng.Float64(), 1+rng.IntN(4)
		for _, o := range []struct {
			kind FaultKind
			odds float64
		}{
			{Refuse, odds.Refuse},
			{Contend, odds.Contend},
			{LoseReply, odds.LoseReply},
			{LoseRequest, odds.LoseRequest},
			{Late, odds.Late},
		} {
			if draw < o.odds {
				return Fault{Kind: o.kind, LandAfter: late}
			}
			draw -= o.odds
		}
		return Fault{}
	}
}

// Faulty is a store with which things go wrong by plan. It starts no goroutine, so it can be used inside a testing/synctest bubble. Safe
// for concurrent use.
type Faulty struct {
	inner ledger.Store

	mu     sync.Mutex
	plan   Plan
	calls  int
	down   bool
	late   []*lateCall
	counts map[FaultKind]int
}

type lateCall struct {
	after int // calls to go before it; 0: until Land
	do    func(context.Context)
}

var _ ledger.Store = (*Faulty)(nil)

// NewFaulty wraps inner; a nil plan means no faults until [Faulty.Plan] gives one.
func NewFaulty(inner ledger.Store, plan Plan) *Faulty {
	return &Faulty{inner: inner, plan: plan, counts: map[FaultKind]int{}}
}

// Plan replaces the plan; nil means no more faults.
func (f *Faulty) Plan(plan Plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

// Down makes the store go away: every call answers ErrUnavailable until Up, and late writes do not land.
func (f *Faulty) Down() { f.setDown(true) }

// Up brings the store back.
func (f *Faulty) Up() { f.setDown(false) }

func (f *Faulty) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// Count is how often that kind was injected.
func (f *Faulty) Count(kind FaultKind) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[kind]
}

// Counts is how often each kind was injected.
func (f *Faulty) Counts() map[FaultKind]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// Calls is how many calls were made.
func (f *Faulty) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Land makes every late write land now, in the order they were asked for.
func (f *Faulty) Land(ctx context.Context) {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, l := range late {
		l.do(ctx)
	}
}

// Get implements [ledger.Store].
func (f *Faulty) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	return through(ctx, f, Call{Method: Get, Scope: scope}, func(ctx context.Context) (ledger.Reading, error) {
		return f.inner.Get(ctx, scope)
	})
}

// Write implements [ledger.Store].
func (f *Faulty) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	w = copyWrite(w) // a late write must not see what its caller does next
	return through(ctx, f, Call{Method: Write, Scope: w.Scope, Write: &w}, func(ctx context.Context) (ledger.Written, error) {
		return f.inner.Write(ctx, w)
	})
}

// Page implements [ledger.Store].
func (f *Faulty) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	return through(ctx, f, Call{Method: Page}, func(ctx context.Context) (ledger.Page, error) { return f.inner.Page(ctx, q) })
}

// Forget implements [ledger.Store].
func (f *Faulty) Forget(ctx context.Context, rows []ledger.Row) (int, error) {
	rows = append([]ledger.Row(nil), rows...)
	return through(ctx, f, Call{Method: Forget}, func(ctx context.Context) (int, error) { return f.inner.Forget(ctx, rows) })
}

// Settings implements [ledger.Store].
func (f *Faulty) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	return through(ctx, f, Call{Method: Settings}, func(ctx context.Context) (ledger.Settings, error) {
		return f.inner.Settings(ctx, kind)
	})
}

// PutSetting implements [ledger.Store].
func (f *Faulty) PutSetting(ctx context.Context, s ledger.Setting, expect int64) (bool, error) {
	return through(ctx, f, Call{Method: PutSetting}, func(ctx context.Context) (bool, error) {
		return f.inner.PutSetting(ctx, s, expect)
	})
}

// Ready implements [ledger.Store].
func (f *Faulty) Ready(ctx context.Context) (ledger.Time, error) {
	return through(ctx, f, Call{Method: Ready}, f.inner.Ready)
}

// Margin implements [ledger.Store].
func (f *Faulty) Margin() time.Duration { return f.inner.Margin() }

// through makes one call and lets its fault happen to it.
func through[R any](ctx context.Context, f *Faulty, call Call, do func(context.Context) (R, error)) (R, error) {
	var none R
	if err := ctx.Err(); err != nil {
		return none, err
	}
	fault, err := f.begin(call)
	if err != nil {
		return none, err
	}
	defer f.landDue()
	if fault.Before != nil {
		if err := fault.Before(ctx); err != nil {
			return none, err
		}
		if err := f.away(); err != nil {
			return none, err
		}
	}
	var out R
	switch fault.Kind {
	case Refuse:
		return none, injected(fault.Kind, ledger.ErrUnavailable)
	case Contend:
		return none, injected(fault.Kind, ledger.ErrContended)
	case LoseRequest:
		return none, injected(fault.Kind, ledger.ErrUnknown)
	case Late:
		f.defers(fault.LandAfter, func(ctx context.Context) { _, _ = do(ctx) })
		return none, injected(fault.Kind, ledger.ErrUnknown)
	default:
		out, err = do(ctx)
	}
	if err == nil && fault.After != nil {
		if cause := fault.After(ctx); cause != nil {
			return none, unknownOf(call, cause)
		}
	}
	if err == nil && fault.Kind == LoseReply {
		return none, injected(fault.Kind, ledger.ErrUnknown)
	}
	return out, err
}

// unknownOf is the error of a call whose reply was cut off by cause.
func unknownOf(call Call, cause error) error {
	if !call.Method.Writes() {
		return cause
	}
	return fmt.Errorf("injected: reply cut off: %w: %w", ledger.ErrUnknown, cause)
}

func injected(kind FaultKind, class error) error { return fmt.Errorf("injected: %s: %w", kind, class) }

// begin counts the call and asks the plan.
func (f *Faulty) begin(call Call) (Fault, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	call.N = f.calls
	if f.down {
		return Fault{}, f.awayLocked()
	}
	if f.plan == nil {
		return Fault{}, nil
	}
	fault := f.plan(call)
	if !call.Method.Writes() && (fault.Kind == LoseReply || fault.Kind == LoseRequest || fault.Kind == Late) {
		fault.Kind = Refuse
	}
	if fault.Kind != NoFault {
		f.counts[fault.Kind]++
	}
	if fault.Before != nil || fault.After != nil {
		f.counts[Delayed]++
	}
	return fault, nil
}

// away refuses a call that was held up until the store had gone away.
func (f *Faulty) away() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return f.awayLocked()
	}
	return nil
}

func (f *Faulty) awayLocked() error {
	f.counts[WhileDown]++
	return injected(WhileDown, ledger.ErrUnavailable)
}

func (f *Faulty) defers(after int, do func(context.Context)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if after > 0 {
		after++ // this very call is about to be counted, and does not go before itself
	}
	f.late = append(f.late, &lateCall{after: after, do: do})
}

// landDue runs after every call and makes the late writes land for which it was the last to wait for.
func (f *Faulty) landDue() {
	f.mu.Lock()
	var due, rest []*lateCall
	for _, l := range f.late {
		if l.after > 0 && !f.down {
			l.after--
			if l.after == 0 {
				due = append(due, l)
				continue
			}
		}
		rest = append(rest, l)
	}
	f.late = rest
	f.mu.Unlock()
	for _, l := range due {
		l.do(context.Background())
	}
}
