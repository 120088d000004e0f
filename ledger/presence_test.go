package ledger_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// TestTheFloorRisesWithEveryBreak: the takeover floor is when the daemon started, or when its store came back, by the store's clock.
func TestTheFloorRisesWithEveryBreak(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started := b.ledger.Floor()
	if started >= epoch {
		t.Fatalf("started at %s", at(started))
	}
	b.clock.Advance(time.Minute)
	b.begin("k", "a1")
	if b.ledger.Floor() != started {
		t.Error("a call that went through moved the floor")
	}
	for _, kind := range []storetest.FaultKind{storetest.Contend, storetest.LoseReply, storetest.Late} {
		b.faulty.Plan(storetest.On(storetest.Write, storetest.Kinds(kind)))
		_, _ = b.tryBegin("l", "b"+kind.String())
		if b.ledger.Floor() != started {
			t.Errorf("%s: the store answered, and yet it counts as having been away", kind)
		}
	}
	for _, method := range []storetest.Method{storetest.Get, storetest.Write, storetest.Ready, storetest.Page} {
		b.faulty.Plan(storetest.On(method, storetest.Kinds(storetest.Refuse)))
		b.clock.Advance(time.Minute)
		_, _ = b.tryBegin("k", "c1")
		_ = b.ledger.Ready(t.Context())
		_, _ = b.ledger.List(t.Context(), ledger.ListRequest{})
		b.faulty.Plan(nil)
		_ = b.ledger.Ready(t.Context())
		if b.ledger.Floor() != b.clock.Now() {
			t.Errorf("%s was refused: the floor is %s, want %s", method, at(b.ledger.Floor()), at(b.clock.Now()))
		}
	}
}

// TestACallersOwnEndIsNoBreak: a caller that leaves or runs out of time says nothing about the store, whatever the store calls that. Otherwise one
// impatient caller a minute would keep all abandoned entries from ever being taken over.
func TestACallersOwnEndIsNoBreak(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	started := b.ledger.Floor()
	for _, method := range []storetest.Method{storetest.Get, storetest.Write, storetest.Page, storetest.Settings, storetest.Ready} {
		b.clock.Advance(time.Minute)
		b.begin("k"+string(method), "a1")
		ctx, cancel := context.WithCancel(t.Context())
		leave := func(context.Context) error { cancel(); return errors.Join(ledger.ErrUnavailable, context.Canceled) }
		b.faulty.Plan(storetest.On(method, func(storetest.Call) storetest.Fault { return storetest.Fault{Before: leave} }))
		_, _ = b.ledger.Begin(ctx, ledger.Caller{}, b.beginRequest("k"+string(method), "b1"))
		_, _ = b.ledger.List(ctx, ledger.ListRequest{})
		_, _ = b.ledger.GetPolicy(ctx, "*", "*", false)
		_ = b.ledger.Ready(ctx)
		b.faulty.Plan(nil)
		if ctx.Err() == nil {
			t.Fatalf("%s was never called", method)
		}
		_ = b.ledger.Ready(t.Context())
		if b.ledger.Floor() != started {
			t.Errorf("%s: its caller left, and the store counts as having been away", method)
		}
	}
}

// TestABreakIsNoticedByADaemonThatNobodyCalls: it looks at its store once a second, and a store that does not answer is away too.
func TestABreakIsNoticedByADaemonThatNobodyCalls(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			clock := storetest.NewRunningClock()
			b := benchOn(t, clock, storetest.NewModel(clock, 0))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.ledger.Run(ctx) }()
			started := b.ledger.Floor()
			<-time.After(time.Minute)
			if b.ledger.Floor() != started {
				t.Error("the floor moved although the store was there")
			}
			if silent {
				hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
				b.faulty.Plan(storetest.On(storetest.Ready, func(storetest.Call) storetest.Fault { return storetest.Fault{Before: hang} }))
			} else {
				b.faulty.Down()
			}
			<-time.After(30 * time.Second)
			back := clock.Now()
			b.faulty.Up()
			b.faulty.Plan(nil)
			<-time.After(2*ledger.SilenceMax + time.Second)
			if f := b.ledger.Floor(); f < back {
				t.Errorf("silent %t: the store was away until %s, the floor is %s", silent, at(back), at(f))
			}
			cancel()
			b.must(<-done)
		})
	}
}

// TestWaitersAreToldOfTheGrace: who waits while holders may come back first keeps waiting, and takes over when the grace is past.
func TestWaitersAreToldOfTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		r := w.beginRequest("k", "a1")
		r.Lease = 10 * time.Second
		_, err := w.ledger.Begin(t.Context(), ledger.Caller{}, r)
		w.must(err)
		<-time.After(time.Minute)
		w.ledger = w.open(ledger.Config{})
		got := w.wait(r.Ref, "b1", 20*time.Second)()
		if got.r.Granted == nil || got.took < 10*time.Second || got.took > 12*time.Second {
			t.Errorf("told %+v %v after %v", got.r, got.err, got.took)
		}
	})
}
