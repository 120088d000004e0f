package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// C60: past its retention an entry is EXPIRED while the tombstone lives, before a sweep and after it.
func TestC60_ExpiredBeforeAndAfterTheSweep(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.complete(b.begin("k", "a1"), "x")
	b.clock.Advance(time.Hour)
	_, err := b.tryBegin("k", "b1")
	b.wantReason(err, ledger.ReasonExpired)
	if p := b.sweep(); p.Closed != 1 || p.Forgotten != 0 {
		t.Errorf("swept %+v", p)
	}
	_, err = b.tryBegin("k", "b1")
	b.wantReason(err, ledger.ReasonExpired)
	if row := b.row("k"); row.Response != nil {
		t.Error("the answer is still there")
	}
	b.clock.Advance(time.Hour)
	b.begin("k", "b1")
}

// everyKind makes an entry of every state and flag there is, and returns how many of them are held for an operator.
func everyKind(b *bench) (held int) {
	b.t.Helper()
	for _, hold := range []bool{false, true} {
		p := quick()
		if hold {
			p.OnAbandoned = ledger.Hold
		}
		b.policy(p)
		name := func(kind string) string { return fmt.Sprintf("%s, hold %t", kind, hold) }
		b.begin(name("left"), "a")
		b.fail(b.begin(name("gave up"), "a"), ledger.Unknown)
		b.complete(b.begin(name("completed"), "a"), "x")
		b.fail(b.begin(name("final"), "a"), ledger.Final)
		b.fail(b.begin(name("retryable"), "a"), ledger.Retryable)
		c := b.begin(name("released"), "a")
		b.resolve(c.ref, ledger.ResolveRelease, 1, true)
		c = b.begin(name("resolved complete"), "a")
		b.resolve(c.ref, ledger.ResolveComplete, 1, true)
		c = b.begin(name("resolved fail"), "a")
		b.resolve(c.ref, ledger.ResolveFail, 1, true)
		c = b.begin(name("reopened"), "a")
		b.fail(c, ledger.Retryable)
		_, err := b.tryComplete(c, "late")
		b.wantReason(err, ledger.ReasonClaimLost)
		c = b.begin(name("evidence on final"), "a")
		b.fail(c, ledger.Retryable)
		b.fail(b.begin(name("evidence on final"), "b"), ledger.Final)
		_, err = b.tryComplete(c, "late")
		b.wantReason(err, ledger.ReasonClaimLost)
		if hold {
			held += 4 // left, gave up, released, reopened
		}
	}
	b.policy(quick())
	return held
}

// C61: everything goes, in the end, except what is held for an operator.
func TestC61_NothingGrowsForEver(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	held := everyKind(b)
	for range 3 {
		b.clock.Advance(100 * 24 * time.Hour)
		b.sweep()
	}
	if b.model.Len() != held {
		t.Errorf("%d rows are left, %d are held for an operator", b.model.Len(), held)
	}
	list, err := b.ledger.List(t.Context(), ledger.ListRequest{Conditions: []ledger.Condition{ledger.Held}})
	b.must(err)
	if len(list.Entries) != held {
		t.Errorf("%d are listed as held, want %d", len(list.Entries), held)
	}
	for _, v := range list.Entries {
		_, err := b.ledger.Resolve(t.Context(), ledger.Caller{}, ledger.ResolveRequest{
			Ref: v.Entry.Ref, Action: ledger.ResolveComplete, Attempt: 1, Reason: "test", Response: &ledger.Response{},
		})
		b.must(err)
	}
	for range 2 {
		b.clock.Advance(100 * 24 * time.Hour)
		b.sweep()
	}
	if b.model.Len() != 0 {
		t.Errorf("%d rows are left when the operator has settled everything", b.model.Len())
	}
}

// C62: a sweep never touches a live claim, nor anything held, however old; what is abandoned under RECLAIM only after its whole retention, and
// then a tombstone stays first.
func TestC62_WhatASweepLeavesAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := quick()
	p.Lease = 24 * time.Hour
	b.policy(p)
	b.begin("live", "a1")
	p.Lease, p.OnAbandoned = 10*time.Second, ledger.Hold
	b.policy(p)
	b.begin("held", "b1")
	b.policy(quick())
	b.begin("abandoned", "c1")
	b.clock.Advance(time.Hour + 10*time.Second - time.Microsecond)
	before := [3]int64{b.row("live").Revision, b.row("held").Revision, b.row("abandoned").Revision}
	b.sweep()
	if after := [3]int64{b.row("live").Revision, b.row("held").Revision, b.row("abandoned").Revision}; after != before {
		t.Errorf("revisions %v became %v", before, after)
	}
	b.clock.Advance(time.Microsecond)
	if p := b.sweep(); p.Lapsed != 1 || p.Examined != 1 {
		t.Errorf("swept %+v", p)
	}
	if _, err := b.tryBegin("abandoned", "c2"); reasonOf(err) != ledger.ReasonExpired {
		t.Errorf("after it lapsed: %v", err)
	}
	b.clock.Advance(time.Hour)
	if p := b.sweep(); p.Forgotten != 1 {
		t.Errorf("swept %+v", p)
	}
	if b.lookup("live").Condition != ledger.Live || b.lookup("held").Condition != ledger.Held {
		t.Error("a live or a held entry changed")
	}
}

// fill settles n entries at once.
func (b *bench) fill(n int) {
	b.t.Helper()
	for i := range n {
		b.complete(b.begin(fmt.Sprint("k", i), "a"), "x")
	}
}

// TestASweepWorksInBatches: progress is told after each batch, batches are bounded, and a sweep can be ended between two.
func TestASweepWorksInBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.fill(200)
	b.clock.Advance(time.Hour)
	var told []ledger.SweepProgress
	p, err := b.ledger.Sweep(t.Context(), ledger.SweepRequest{}, func(p ledger.SweepProgress) error { told = append(told, p); return nil })
	b.must(err)
	if p.Closed != 200 || !p.Done || p.OldestDue != 0 || p.Now != b.clock.Now() {
		t.Errorf("swept %+v", p)
	}
	for i := 1; i < len(told); i++ {
		if told[i].Examined < told[i-1].Examined || told[i].Done != (i == len(told)-1) {
			t.Errorf("progress %d is %+v", i, told[i])
		}
	}
	b.clock.Advance(time.Hour)
	enough := errors.New("enough")
	_, err = b.ledger.Sweep(t.Context(), ledger.SweepRequest{}, func(ledger.SweepProgress) error { return enough })
	if !errors.Is(err, enough) || b.model.Len() == 0 {
		t.Errorf("a sweep that was told to end: %v, %d rows left", err, b.model.Len())
	}
	p, err = b.ledger.Sweep(t.Context(), ledger.SweepRequest{Limit: 7}, nil)
	b.must(err)
	if p.Examined != 7 {
		t.Errorf("with a limit of 7 it examined %d", p.Examined)
	}
	left := b.model.Len()
	if p := b.sweep(); int(p.Forgotten) != left || b.model.Len() != 0 {
		t.Errorf("swept %+v, %d rows left", p, b.model.Len())
	}
}

// TestBatchesAreBounded: no page and no batch of a sweep is larger than it says, and while callers are served it yields to them between batches.
func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.fill(ledger.Shards * (ledger.SweepBatch + 100))
	b.clock.Advance(2 * time.Hour)

	// A caller is being served all the while.
	release := make(chan struct{})
	b.faulty.Plan(storetest.On(storetest.Get, storetest.Script(storetest.Fault{Before: storetest.Until(release)})))
	served := make(chan error, 1)
	go func() { _, err := b.ledger.Lookup(context.Background(), ledger.Caller{}, b.ref("k0")); served <- err }()

	largest, before := int64(0), int64(0)
	p, err := b.ledger.Sweep(t.Context(), ledger.SweepRequest{}, func(p ledger.SweepProgress) error {
		largest, before = max(largest, p.Examined-before), p.Examined
		return nil
	})
	b.must(err)
	close(release)
	b.wantReason(<-served, ledger.ReasonEntryNotFound)
	if largest > ledger.SweepBatch || p.Forgotten != ledger.Shards*(ledger.SweepBatch+100) || b.model.Len() != 0 {
		t.Errorf("batches of up to %d, swept %+v, %d rows left", largest, p, b.model.Len())
	}
}

// TestWhatBecameHeldMeanwhileIsPutAside: a write that was decided just before reclaim_within ended and made just after it leaves a due time on an
// entry that is held by then. The sweep takes it out of its own way; the entry is held before and after.
func TestWhatBecameHeldMeanwhileIsPutAside(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.begin("k", "a")
	e := b.row("k")
	e.HoldFrom = e.DueAt - 1
	for offset, want := range map[ledger.Time]ledger.SweepAction{-1: ledger.SweepNothing, 0: ledger.SweepHold, 1: ledger.SweepHold} {
		now := e.DueAt + offset
		action, w := ledger.DecideSweep(e, now)
		if action != want || e.ConditionAt(now) != ledger.Held {
			t.Errorf("%+d: action %d on %s", offset, action, conditionNames[e.ConditionAt(now)])
		}
		if w == nil {
			continue
		}
		if after, applied := w.Apply(e, now); !applied || after.DueAt != ledger.Never || after.ConditionAt(now) != ledger.Held {
			t.Errorf("%+d: left %+v", offset, after)
		}
	}
}

// TestADryRunChangesNothing, and says what a sweep would do; it needs no turn.
func TestADryRunChangesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	everyKind(b)
	b.clock.Advance(time.Hour + 10*time.Second)
	before := b.revisions()
	dry, err := b.ledger.Sweep(t.Context(), ledger.SweepRequest{DryRun: true}, nil)
	b.must(err)
	if after := b.revisions(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("a dry run changed something")
	}
	real := b.sweep()
	if dry != real {
		t.Errorf("the dry run said %+v, the sweep did %+v", dry, real)
	}
}

func (b *bench) revisions() map[string]int64 {
	b.t.Helper()
	out := map[string]int64{}
	for after := (ledger.Cursor{}); ; {
		page, err := b.model.Page(b.t.Context(), ledger.PageQuery{Order: ledger.ByName, After: after, Limit: 1000})
		b.must(err)
		for _, e := range page.Entries {
			out[fmt.Sprintf("%x", e.Scope)] = e.Revision
		}
		if !page.More {
			return out
		}
		after = page.Next
	}
}

// TestASweepRemembersWhereItWas: the second sweep does not look at what the first has done, and what the first had to leave behind is looked at
// again.
func TestASweepRemembersWhereItWas(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var after []ledger.Time
	b.ledger = b.open(ledger.Config{Store: pageSpy{b.faulty, func(q ledger.PageQuery) { after = append(after, q.After.DueAt) }}})
	b.policy(quick())
	b.fill(50)
	b.clock.Advance(time.Hour)
	writes := 0
	var turn sync.Mutex
	b.faulty.Plan(storetest.On(storetest.Write, func(storetest.Call) storetest.Fault {
		turn.Lock()
		defer turn.Unlock()
		if writes++; writes%5 == 0 {
			return storetest.Fault{Kind: storetest.Refuse}
		}
		return storetest.Fault{}
	}))
	p := b.sweep()
	if p.Missed != 10 || p.OldestDue != epoch.Add(time.Hour) {
		t.Errorf("swept %+v", p)
	}
	b.faulty.Plan(nil)
	if p := b.sweep(); p.Closed != 10 || p.Missed != 0 || p.OldestDue != 0 {
		t.Errorf("swept again: %+v", p)
	}
	b.complete(b.begin("later", "a"), "x")
	b.clock.Advance(time.Hour)
	after = nil
	if p := b.sweep(); p.Forgotten != 50 || p.Closed != 1 {
		t.Errorf("swept a third time: %+v", p)
	}
	remembered := 0
	for _, from := range after {
		if from >= epoch.Add(time.Hour) {
			remembered++
		}
	}
	if remembered == 0 {
		t.Error("every shard was read from the start again")
	}
}

// pageSpy is told of every page.
type pageSpy struct {
	ledger.Store
	told func(ledger.PageQuery)
}

func (s pageSpy) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	s.told(q)
	return s.Store.Page(ctx, q)
}

// slowWrites is a store whose writes wait until they are let go.
type slowWrites struct {
	ledger.Store
	waiting *atomic.Int64
	release chan struct{}
}

func (s slowWrites) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	s.waiting.Add(1)
	<-s.release
	return s.Store.Write(ctx, w)
}

// TestASweepLeavesRoomForCallers: while a caller is served it has 32 writes under way; while none is, all of a page, to share as few syncs as can be.
func TestASweepLeavesRoomForCallers(t *testing.T) {
	t.Parallel()
	for _, served := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.policy(quick())
			b.fill(ledger.Shards * 100)
			b.clock.Advance(time.Hour)
			store := slowWrites{b.faulty, new(atomic.Int64), make(chan struct{})}
			b.ledger = b.open(ledger.Config{Store: store})
			var callers, sweep sync.WaitGroup
			caller := make(chan struct{})
			if served {
				b.faulty.Plan(storetest.On(storetest.Get, storetest.Script(storetest.Fault{Before: storetest.Until(caller)})))
				callers.Go(func() { _, _ = b.ledger.Lookup(context.Background(), ledger.Caller{}, b.ref("k0")) })
			}
			synctest.Wait()
			sweep.Go(func() {
				if _, err := b.ledger.Sweep(context.Background(), ledger.SweepRequest{}, nil); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			if n := store.waiting.Load(); served && n != 32 || !served && n <= 32 {
				t.Errorf("a caller is served: %t; the sweep has %d writes under way", served, n)
			}
			close(store.release)
			sweep.Wait()
			close(caller)
			callers.Wait()
		})
	}
}

// TestOneDaemonSweepsAtATime: the other is refused and told when to come back; once the first has done it may sweep at once; and one that died
// in its turn keeps the others out for no longer than that turn.
func TestOneDaemonSweepsAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.fill(3)
	b.clock.Advance(time.Hour)
	other := benchOn(t, b.clock, b.model)
	var during error
	_, err := b.ledger.Sweep(t.Context(), ledger.SweepRequest{}, func(ledger.SweepProgress) error {
		_, during = other.ledger.Sweep(t.Context(), ledger.SweepRequest{}, nil)
		return nil
	})
	b.must(err)
	var refusal *ledger.Refusal
	if !errors.As(during, &refusal) || refusal.Reason != ledger.ReasonSweepElsewhere || refusal.RetryAfter <= 0 || refusal.RetryAfter > ledger.SweepTurn {
		t.Errorf("the other was told %v", during)
	}
	other.sweep()

	// b takes the turn and dies.
	b.faulty.Plan(storetest.On(storetest.Page, storetest.Script(storetest.Fault{After: func(context.Context) error {
		b.faulty.Down()
		return nil
	}})))
	_, err = b.ledger.Sweep(t.Context(), ledger.SweepRequest{}, nil)
	b.wantReason(err, ledger.ReasonStoreUnavailable)
	_, err = other.ledger.Sweep(t.Context(), ledger.SweepRequest{}, nil)
	b.wantReason(err, ledger.ReasonSweepElsewhere)
	b.clock.Advance(ledger.SweepTurn)
	other.sweep()
}

// seen is an observer that notes what sweeps tell it.
type seen struct {
	mu       sync.Mutex
	overdue  time.Duration
	heldAge  time.Duration
	held     int
	told     int
	swept    ledger.SweepProgress
	calls    map[string]int
	mostWait int
}

func (s *seen) StoreCall(call string, _ time.Duration, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[call]++
}

func (s *seen) Waiting(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mostWait = max(s.mostWait, n)
}

func (s *seen) Swept(p ledger.SweepProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swept.Closed += p.Closed
	s.swept.Forgotten += p.Forgotten
}

func (s *seen) Overdue(due, held time.Duration, entries int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overdue, s.heldAge, s.held = due, held, entries
	s.told++
}

// TestALedgerSweepsByItself, from time to time, while Run goes on, beside sweeps that are asked for, and tells how old the oldest held entry is.
func TestALedgerSweepsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := storetest.NewRunningClock()
		b := benchOn(t, clock, storetest.NewModel(clock, 0))
		watcher := &seen{}
		b.ledger = b.open(ledger.Config{SweepEvery: time.Minute, Observer: watcher})
		p := quick()
		p.OnAbandoned = ledger.Hold
		b.policy(p)
		b.fill(20)
		b.begin("held", "a")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.ledger.Run(ctx) }()
		for range 4 * 60 {
			<-time.After(time.Minute)
			_, err := b.ledger.Sweep(t.Context(), ledger.SweepRequest{}, nil)
			b.must(err)
		}
		cancel()
		b.must(<-done)
		if b.model.Len() != 1 {
			t.Errorf("%d rows left, want the held one", b.model.Len())
		}
		watcher.mu.Lock()
		defer watcher.mu.Unlock()
		if watcher.held != 1 || watcher.heldAge < 3*time.Hour || watcher.told < 100 || watcher.overdue > 5*time.Minute {
			t.Errorf("the observer was told %d times: held %d for %v, overdue %v", watcher.told, watcher.held, watcher.heldAge, watcher.overdue)
		}
		if watcher.swept.Closed != 20 || watcher.swept.Forgotten != 20 {
			t.Errorf("the observer was told of %+v", watcher.swept)
		}
	})
}
