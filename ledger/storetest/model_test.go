package storetest_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// start is where clocks of tests stand at first: 2026-01-01 in UTC.
const start ledger.Time = 1_767_225_600_000_000

// openModel opens a model that outlives a reopening: what is tested here is the suite, not a disk. Every call goes through a Faulty
// without a plan, which must not show, and which can make a write wait.
func openModel(tb testing.TB) *storetest.Backend {
	tb.Helper()
	clock := storetest.NewClock(start)
	model := storetest.NewModel(clock, 0)
	faulty := storetest.NewFaulty(model, nil)
	same := func(testing.TB) ledger.Store { return faulty }
	return &storetest.Backend{
		Store: faulty, Clock: clock, Another: same, Reopen: same, ByAge: true,
		Residue: func(testing.TB) int { return model.Len() },
		Block: func(_ testing.TB, scope ledger.ScopeID) (func() bool, func()) {
			release := make(chan struct{})
			var waiting atomic.Bool
			faulty.Plan(storetest.On(storetest.Write, func(c storetest.Call) storetest.Fault {
				if c.Scope != scope {
					return storetest.Fault{}
				}
				return storetest.Fault{Before: func(ctx context.Context) error {
					waiting.Store(true)
					return storetest.Until(release)(ctx)
				}}
			}))
			return waiting.Load, func() { close(release) }
		},
	}
}

func TestModelDoesWhatAStoreMustDo(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Factory{Open: openModel})
}

func TestClockStandsStillUntilItIsMoved(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock(start)
	clock.Advance(time.Hour)
	if got, want := clock.Now(), start.Add(time.Hour); got != want {
		t.Errorf("an hour on it is %d, want %d", got, want)
	}
	clock.Set(start - 1)
	if got := clock.Now(); got != start-1 {
		t.Errorf("set back it is %d, want %d", got, start-1)
	}
	clock.Advance(time.Duration(math.MaxInt64))
	clock.Set(ledger.Never - 1)
	clock.Advance(time.Hour)
	if got := clock.Now(); got != ledger.Never {
		t.Errorf("past the end of time it is %d, want never", got)
	}
}

func TestRunningClockRunsAndCanBeMoved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := storetest.NewRunningClock()
		began := clock.Now()
		wait(t, time.Minute)
		clock.Advance(time.Hour)
		if got := clock.Now().Sub(began); got != time.Hour+time.Minute {
			t.Errorf("a minute and a moved hour on, the clock is %v on", got)
		}
		clock.Set(start)
		wait(t, time.Second)
		if got := clock.Now().Sub(start); got != time.Second {
			t.Errorf("a second after it was set, the clock is %v on", got)
		}
	})
}

// wait lets the time of a bubble pass.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

func TestModelPanicsOnCallsThatBreakTheContract(t *testing.T) {
	t.Parallel()
	model := storetest.NewModel(storetest.NewClock(start), 0)
	ctx := context.Background()
	for name, call := range map[string]func(){
		"a page without a limit":    func() { _, _ = model.Page(ctx, ledger.PageQuery{Order: ledger.ByName}) },
		"a page without an order":   func() { _, _ = model.Page(ctx, ledger.PageQuery{Limit: 1}) },
		"an operation of no tenant": func() { _, _ = model.Page(ctx, ledger.PageQuery{Order: ledger.ByName, Operation: "o", Limit: 1}) },
		"a write of nothing":        func() { _, _ = model.Write(ctx, ledger.Write{Guard: ledger.Guard{Kind: ledger.GuardAbsent}}) },
		"a put under a claim": func() {
			_, _ = model.Write(ctx, ledger.Write{Guard: ledger.Guard{Kind: ledger.GuardClaim}, Put: &ledger.Entry{}})
		},
		"a settlement of a revision": func() {
			_, _ = model.Write(ctx, ledger.Write{Guard: ledger.Guard{Kind: ledger.GuardRevision}, Settle: &ledger.Settle{}})
		},
		"too large a batch": func() { _, _ = model.Forget(ctx, make([]ledger.Row, ledger.MaxForgetBatch+1)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s does not panic", name)
				}
			}()
			call()
		}()
	}
}

func TestModelTakesWritesFromManyAtOnce(t *testing.T) {
	t.Parallel()
	model := storetest.NewModel(storetest.NewClock(start), 0)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				scope := ledger.ScopeID{byte(worker), byte(i >> 8), byte(i)}
				if w, err := model.Write(t.Context(), freshClaim(scope)); err != nil || !w.Applied {
					t.Errorf("applied %t, %v", w.Applied, err)
				}
			}
		})
	}
	wg.Wait()
	if got := model.Len(); got != 4000 {
		t.Errorf("%d rows, want 4000", got)
	}
}

// freshClaim puts a claim where there is no row.
func freshClaim(scope ledger.ScopeID) ledger.Write {
	return ledger.Write{Scope: scope, Guard: ledger.Guard{Kind: ledger.GuardAbsent}, Put: &ledger.Entry{
		Scope: scope, Ref: ledger.Ref{Tenant: "t", Operation: "o", Key: "k"}, Incarnation: ledger.In(0), State: ledger.Pending,
		Terms: ledger.Terms{OnAbandoned: ledger.Reclaim, MaxAttempts: 10, Retention: time.Hour}, HoldFrom: ledger.Never, Current: true,
		Last:  ledger.Attempt{Number: 1, Lease: time.Minute, BeganAt: ledger.In(0), LeaseUntil: ledger.In(time.Minute)},
		DueAt: ledger.In(time.Hour + time.Minute),
	}}
}
