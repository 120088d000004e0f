package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// Factory says how the suite gets at a backend.
type Factory struct {
	// Open opens a store with nothing in it, shared with no other call of Open, and cleans up after itself (tb.Cleanup, tb.TempDir).
	// Cases run in parallel, so it is called concurrently.
	Open func(tb testing.TB) *Backend
	// Margin is what Store.Margin must report.
	Margin time.Duration
	// Precision is the finest step of time the backend tells apart; 0: a microsecond, which is what the ledger counts in.
	Precision time.Duration
	// Exclude names cases that this backend can not run, each with the reason why not. The name is the case's, as Run gives it to the
	// subtest. Unknown names and empty reasons fail the suite.
	Exclude map[string]string
}

// Backend is one store opened for one case.
type Backend struct {
	// Store is the store. The suite does not close it.
	Store ledger.Store
	// Clock moves the store's clock. Between moves it must stand still, for all handles alike.
	Clock MovableClock
	// Another opens one more handle on the same data, as a second daemon would. Nil: one process only, the one handle is shared.
	Another func(tb testing.TB) ledger.Store
	// Reopen ends the store as abruptly as the backend can and opens its data again, on the same clock. Store and all handles from
	// Another are dead then. Nil: nothing outlives the store, and the durability cases are left out.
	Reopen func(tb testing.TB) ledger.Store
	// Residue counts the rows of every kind that are kept for entries: the entries themselves, bodies, whatever else. Nil: unknown, and
	// what is left behind is judged through the Store only.
	Residue func(tb testing.TB) int
	// Block locks one row from outside the store, so that a write to it waits. Waiting reports whether a write does; release lets it
	// go on. Nil: nothing can make a write wait here.
	Block func(tb testing.TB, scope ledger.ScopeID) (waiting func() bool, release func())
	// Spoil puts bytes that make no sense in place of a settled row's answer, behind the store's back and in a way that is no damage to it. Nil:
	// that cannot happen here.
	Spoil func(tb testing.TB, scope ledger.ScopeID)
	// ByAge: pages by name list the entries of a name by incarnation. False: by scope id.
	ByAge bool
}

// model is an empty reference store that lists in the backend's order.
func (b *Backend) model(clock *Clock, margin time.Duration) *Model {
	m := NewModel(clock, margin)
	m.byScope = !b.ByAge
	return m
}

// MovableClock is a store's clock in the hands of the suite, which only ever moves it forward. [*Clock] is one.
type MovableClock interface {
	Now() ledger.Time
	Advance(d time.Duration)
}

// Run runs the whole suite on a backend.
func Run(t *testing.T, f Factory) {
	t.Helper()
	cases := suite()
	for name, reason := range f.Exclude {
		if !slices.ContainsFunc(cases, func(c testCase) bool { return c.name == name }) {
			t.Errorf("Exclude names %q, which is no case of the suite", name)
		}
		if reason == "" {
			t.Errorf("Exclude names %q without a reason", name)
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if reason := f.Exclude[c.name]; reason != "" {
				t.Skip("excluded by the backend: ", reason)
			}
			t.Parallel()
			c.run(newBench(t, f))
		})
	}
}

// testCase is one case: a sentence about stores, and the test of it. It takes a testing.TB and starts no subtests, so that the suite's own
// tests can run it on a store that they broke and watch it fail.
type testCase struct {
	name string
	run  func(*bench)
}

func suite() []testCase {
	return slices.Concat(
		guardCases(), timeCases(), contentCases(), pageCases(), dueCases(), forgetCases(), settingCases(), raceCases(),
		badRowCases(), contextCases(), durabilityCases(), sequenceCases(),
	)
}

// bench is a freshly opened store and what a case needs to work on it.
type bench struct {
	testing.TB
	*Backend
	generator
	ctx  context.Context
	f    Factory
	tick time.Duration // the smallest step of time
	seed uint64
}

func newBench(tb testing.TB, f Factory) *bench {
	tb.Helper()
	seed := seedFromEnvironment()
	tb.Logf("repeat with STORETEST_SEED=%d", seed)
	return &bench{
		TB: tb, Backend: f.Open(tb), generator: newGenerator(seed), ctx: tb.Context(), f: f,
		tick: max(f.Precision, time.Microsecond), seed: seed,
	}
}

func seedFromEnvironment() uint64 {
	if seed, err := strconv.ParseUint(os.Getenv("STORETEST_SEED"), 10, 64); err == nil {
		return seed
	}
	return rand.Uint64()
}

// countFromEnvironment is how many of something a random run does.
func countFromEnvironment(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

// another is a second handle where the backend has one.
func (b *bench) another() ledger.Store {
	b.Helper()
	if b.Another == nil {
		return b.Store
	}
	return b.Another(b)
}

// get reads a row and checks that the reading carries the store's clock.
func (b *bench) get(scope ledger.ScopeID) *ledger.Entry {
	b.Helper()
	return b.getFrom(b.Store, scope)
}

func (b *bench) getFrom(store ledger.Store, scope ledger.ScopeID) *ledger.Entry {
	b.Helper()
	r, err := store.Get(b.ctx, scope)
	if err != nil {
		b.Fatalf("Get: %v", err)
	}
	if now := b.Clock.Now(); r.Now != now {
		b.Errorf("Get read the clock as %d, it is at %d", r.Now, now)
	}
	if r.Entry != nil && r.Entry.Scope != scope {
		b.Errorf("Get(%x) answered the entry of scope %x", scope, r.Entry.Scope)
	}
	return r.Entry
}

// write writes, again where the store says that others got in the way.
func (b *bench) write(store ledger.Store, w ledger.Write) ledger.Written {
	b.Helper()
	written, err := persist(b.ctx, store, w)
	if err != nil {
		b.Fatalf("Write: %v", err)
	}
	return written
}

// maxContended bounds how often a contended write is tried again: a store that is always contended is not one.
const maxContended = 100

func persist(ctx context.Context, store ledger.Store, w ledger.Write) (ledger.Written, error) {
	for range maxContended {
		written, err := store.Write(ctx, w)
		if !errors.Is(err, ledger.ErrContended) {
			return written, err
		}
	}
	return ledger.Written{}, fmt.Errorf("contended %d times in a row", maxContended)
}

// apply writes w and checks everything that can be: whether it was applied, its stamps, and the row before and after, against
// [ledger.Write.Apply].
func (b *bench) apply(w ledger.Write) bool {
	b.Helper()
	want, applies := w.Apply(b.get(w.Scope), b.Clock.Now())
	given := copyWrite(w)
	written := b.write(b.Store, w)
	if written.Applied != applies {
		b.Errorf("Applied is %t, want %t, for guard %+v on %s", written.Applied, applies, w.Guard, outline(want))
	}
	var stamps ledger.Stamps
	if applies {
		stamps = ledger.StampsOf(want, b.Clock.Now())
	}
	if written.Stamps != stamps {
		b.Errorf("stamps are\n%+v, want\n%+v", written.Stamps, stamps)
	}
	if diff := differences(want, b.get(w.Scope)); diff != "" {
		b.Errorf("the row after the write differs:\n%s", diff)
	}
	if w.Put != nil {
		if diff := differences(given.Put, w.Put); diff != "" {
			b.Errorf("Write changed the entry that it was given:\n%s", diff)
		}
	}
	return applies
}

// mustApply is apply for a write whose guard holds.
func (b *bench) mustApply(w ledger.Write) *ledger.Entry {
	b.Helper()
	if !b.apply(w) {
		b.Fatalf("guard %+v does not hold", w.Guard)
	}
	return b.get(w.Scope)
}

// put puts e where there is no row and returns the row.
func (b *bench) put(e *ledger.Entry) *ledger.Entry {
	b.Helper()
	return b.mustApply(fresh(e))
}

// fresh is a write of e where there is no row.
func fresh(e *ledger.Entry) ledger.Write {
	return ledger.Write{Scope: e.Scope, Guard: ledger.Guard{Kind: ledger.GuardAbsent}, Put: e}
}

// over is a write of e over row as it was read.
func over(row, e *ledger.Entry) ledger.Write {
	return ledger.Write{
		Scope: row.Scope, Put: e,
		Guard: ledger.Guard{Kind: ledger.GuardRevision, Incarnation: row.Incarnation, Revision: row.Revision},
	}
}

// claimOf is the guard that the holder of row's current claim writes under.
func claimOf(row *ledger.Entry) ledger.Guard {
	return ledger.Guard{
		Kind: ledger.GuardClaim, Incarnation: row.Incarnation, Attempt: row.Last.Number, Principal: row.Terms.Bound,
	}
}

// rowOf names row for Forget.
func rowOf(row *ledger.Entry) ledger.Row {
	return ledger.Row{Scope: row.Scope, Incarnation: row.Incarnation, Revision: row.Revision}
}

// The terms of what claim returns.
const (
	claimLease     = 10 * time.Second
	claimRetention = time.Hour
	claimTombstone = 2 * time.Hour
)

// claim is an entry as a first grant writes it: attempt 1 is current, and nothing of it is absolute.
func (b *bench) claim() *ledger.Entry {
	return &ledger.Entry{
		Scope: b.scope(), Ref: b.ref(), Incarnation: ledger.In(0), State: ledger.Pending, Fingerprints: b.fingerprints(),
		Terms: ledger.Terms{
			OnAbandoned: ledger.Reclaim, MaxAttempts: 10, Retention: claimRetention, Tombstone: claimTombstone,
		},
		HoldFrom: ledger.Never, RunGrants: 1, Current: true,
		Last: ledger.Attempt{
			Number: 1, IDHash: b.idHash(), Holder: "worker-1", Principal: "svc@a", Lease: claimLease,
			BeganAt: ledger.In(0), LeaseUntil: ledger.In(claimLease),
		},
		DueAt: ledger.In(claimLease + claimRetention),
	}
}

// completion is a report of success.
func (b *bench) completion() *ledger.Settle {
	return &ledger.Settle{
		State: ledger.Completed, Ended: ledger.EndedCompleted, Report: b.digest(), Response: b.response(),
		Retention: claimRetention, Tombstone: claimTombstone,
	}
}

// givingUp is a report that the holder does not know.
func (b *bench) givingUp() *ledger.Settle {
	return &ledger.Settle{State: ledger.Pending, Ended: ledger.EndedGaveUp, Report: b.digest()}
}
