package ledger_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// The field cases about lost replies and ambiguous commits (C10 to C17): the store says that it does not know, and every call still ends in
// the truth.

// unknowns are the ways in which a write can end without the daemon being told.
var unknowns = []storetest.FaultKind{storetest.LoseReply, storetest.LoseRequest, storetest.Late}

// C10: the caller never saw the reply of its Begin, and resends it: the same claim, not IN_PROGRESS to its own holder.
func TestC10_AResentBeginGetsItsClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first := b.begin("k", "a1")
	b.clock.Advance(time.Second)
	second := b.begin("k", "a1")
	if string(second.Token) != string(first.Token) || second.Fence != first.Fence || !second.Resumed || second.PreviousAbandoned {
		t.Errorf("first %+v, resent %+v", first.Grant, second.Grant)
	}
	if second.LeaseUntil != b.clock.Now().Add(ledger.DefaultLease) {
		t.Errorf("renewed at %s until %s", at(b.clock.Now()), at(second.LeaseUntil))
	}
	// The daemon that committed it may be gone: another one on the store knows the same.
	other := benchOn(t, b.clock, b.model)
	if third := other.begin("k", "a1"); string(third.Token) != string(first.Token) || third.Fence != first.Fence || !third.Resumed || third.PreviousAbandoned {
		t.Errorf("first %+v, resent to another daemon %+v", first.Grant, third.Grant)
	}
	other.complete(first, "x")
	if r := b.complete(second, "x"); !r.Resent {
		t.Error("the resent report is not said to be one")
	}
}

// C10 for the other grants: a takeover, a grant after a retryable failure, a recovery, and each of them past its lease.
func TestC10_EveryKindOfGrantIsGivenAgain(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		mode   ledger.Mode
		before func(*bench, claim)
	}{
		"a takeover":                 {ledger.Run, leaseOver},
		"after giving up":            {ledger.Run, func(b *bench, c claim) { b.fail(c, ledger.Unknown) }},
		"after a retryable failure":  {ledger.Run, func(b *bench, c claim) { b.fail(c, ledger.Retryable) }},
		"after a release":            {ledger.Run, released},
		"a recovery":                 {ledger.Recover, leaseOver},
		"a recovery after giving up": {ledger.Recover, func(b *bench, c claim) { b.fail(c, ledger.Unknown) }},
	} {
		b := newBench(t)
		b.policy(quick())
		x.before(b, b.begin("k", "a1"))
		r := b.beginRequest("k", "a2")
		r.Mode = x.mode
		first, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
		b.must(err)
		for _, later := range []time.Duration{time.Second, 10 * time.Second} {
			b.clock.Advance(later)
			again, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
			if err != nil || again.Granted == nil {
				t.Fatalf("%s, resent after %v: %+v %v", name, later, again, err)
			}
			want := *first.Granted
			want.Resumed, want.LeaseUntil = true, b.clock.Now().Add(10*time.Second)
			if !reflect.DeepEqual(*again.Granted, want) {
				t.Errorf("%s, resent after %v:\n%+v, want\n%+v", name, later, *again.Granted, want)
			}
		}
	}
}

// C11: the store does not know what became of a Begin or a Complete. Whether it happened, did not, or happens in a moment, the caller is told
// the same, and nothing runs twice.
func TestC11_AmbiguousCommitsEndAlike(t *testing.T) {
	t.Parallel()
	for _, kind := range unknowns {
		for _, lost := range []int{1, 2, 3} {
			b := newBench(t)
			b.policy(quick())
			faults := make([]storetest.Fault, lost)
			for i := range faults {
				faults[i] = storetest.Fault{Kind: kind, LandAfter: 2}
			}
			tick := func() { b.clock.Advance(time.Microsecond) } // no two calls of one caller are at the same instant
			tick()
			b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(faults...)))
			c := b.begin("k", "a1")
			tick()
			if c.Attempt != 1 || c.PreviousAbandoned || c.Resumed {
				t.Errorf("%s %d times: begun as %+v", kind, lost, c.Grant)
			}
			b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(faults...)))
			if r := b.complete(c, "x"); r.Resent || r.SettledAt == 0 {
				t.Errorf("%s %d times: completed as %+v", kind, lost, r)
			}
			b.faulty.Plan(nil)
			b.faulty.Land(t.Context())
			r, err := b.tryBegin("k", "b1")
			b.must(err)
			if r.Completed == nil || r.Completed.Attempt != 1 || string(r.Completed.Response.Body) != "x" {
				t.Errorf("%s %d times: a retry is told %+v", kind, lost, r)
			}
			if row := b.row("k"); row.Last.Number != 1 || row.Doubt || row.Evidence != nil {
				t.Errorf("%s %d times: left %+v", kind, lost, row)
			}
		}
	}
}

// TestAResendIsSaidToBeOne: what was granted or reported before is told as such, also where the store does not say what became of the write with
// which the daemon tried it once more. And what the call itself did is not.
func TestAResendIsSaidToBeOne(t *testing.T) {
	t.Parallel()
	for _, kind := range unknowns {
		for faults := range 4 {
			b := newBench(t)
			b.policy(quick())
			plan := func() {
				b.clock.Advance(time.Microsecond)
				var script []storetest.Fault
				for range faults {
					script = append(script, storetest.Fault{Kind: kind, LandAfter: 2})
				}
				b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(script...)))
			}
			for _, resent := range []bool{false, true, true} {
				plan()
				if c := b.begin("k", "a1"); c.Resumed != resent {
					t.Errorf("begin, %d times %s: resumed %t, want %t", faults, kind, c.Resumed, resent)
				}
			}
			gaveUp, completed := b.begin("k", "a1"), b.begin("k2", "a1")
			for _, resent := range []bool{false, true, true} {
				plan()
				if r, err := b.tryFail(gaveUp, ledger.Unknown); err != nil || r.Resent != resent {
					t.Errorf("fail, %d times %s: %+v %v, want resent %t", faults, kind, r, err, resent)
				}
				plan()
				if r := b.complete(completed, "x"); r.Resent != resent {
					t.Errorf("complete, %d times %s: %+v, want resent %t", faults, kind, r, resent)
				}
				plan()
				if v := b.resolve(gaveUp.ref, ledger.ResolveRelease, 1, false); v.Resent != resent {
					t.Errorf("release, %d times %s: resent %t, want %t", faults, kind, v.Resent, resent)
				}
			}
		}
	}
}

// TestARenewalIsNoGrant: a daemon that has not heard of the store since before the grant, and does not learn whether it renewed the claim,
// still knows that it did not grant it.
func TestARenewalIsNoGrant(t *testing.T) {
	t.Parallel()
	for _, kind := range unknowns {
		b := newBench(t)
		other := benchOn(t, b.clock, b.model)
		b.clock.Advance(time.Minute)
		b.begin("k", "a1")
		other.faulty.Plan(storetest.On(storetest.Write, storetest.Script(storetest.Fault{}, storetest.Fault{Kind: kind, LandAfter: 2})))
		if c := other.begin("k", "a1"); !c.Resumed {
			t.Errorf("%s: %+v", kind, c.Grant)
		}
	}
}

// TestEveryCallSurvivesAnUnknownOutcome: the same for takeovers, failures, renewals, evidence, releases and erasures.
func TestEveryCallSurvivesAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, kind := range unknowns {
		b := newBench(t)
		b.policy(quick())
		once := func() {
			b.clock.Advance(time.Microsecond)
			b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(storetest.Fault{Kind: kind, LandAfter: 2})))
		}
		a := b.begin("k", "a1")
		once()
		if _, err := b.tryExtend(a); err != nil {
			t.Errorf("%s: extend: %v", kind, err)
		}
		b.clock.Advance(10 * time.Second)
		once()
		second := b.begin("k", "b1")
		if second.Attempt != 2 || !second.PreviousAbandoned || second.Resumed {
			t.Errorf("%s: took over as %+v", kind, second.Grant)
		}
		once()
		_, err := b.tryComplete(a, "late")
		b.wantReason(err, ledger.ReasonClaimLost)
		if ev := b.row("k").Evidence; !ev.Success() {
			t.Errorf("%s: evidence %+v", kind, ev)
		}
		once()
		if r, err := b.tryFail(second, ledger.Unknown); err != nil || r.Resent {
			t.Errorf("%s: fail: %+v %v", kind, r, err)
		}
		once()
		if v := b.resolve(a.ref, ledger.ResolveRelease, 2, false); v.Resent || len(v.Entry.Resolutions) != 1 {
			t.Errorf("%s: released %+v", kind, v)
		}
		once()
		p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: b.clock.Now().Wall()}, nil)
		if err != nil || p.Erased != 1 || !b.lookup("k").Erased {
			t.Errorf("%s: erased %+v %v", kind, p, err)
		}
		b.faulty.Plan(nil)
		b.faulty.Land(t.Context())
		if v := b.lookup("k"); !v.Erased || v.Entry.Last.Number != 2 {
			t.Errorf("%s: a late write undid something: %+v", kind, v)
		}
	}
}

// TestALateRenewalShortensNothing: a renewal whose outcome is unknown lands when the holder has long been told of a longer lease. Nobody else is
// granted before the time that it was told (G1). A resent Begin is such a renewal too.
func TestALateRenewalShortensNothing(t *testing.T) {
	t.Parallel()
	short := quick().Lease
	renewals := map[string]func(*bench, claim) error{
		"Extend": func(b *bench, c claim) error {
			_, err := b.ledger.Extend(t.Context(), ledger.Caller{}, ledger.ExtendRequest{Ref: c.ref, Token: c.Token, Lease: short})
			return err
		},
		"Begin": func(b *bench, c claim) error {
			r := b.beginRequest("k", "a1")
			r.Lease = short
			_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
			return err
		},
	}
	for name, renew := range renewals {
		b := newBench(t)
		b.policy(quick())
		c := b.begin("k", "a1")
		// Its write lands late, and then the store is away, so that the call ends with nothing known.
		late := false
		b.faulty.Plan(func(call storetest.Call) storetest.Fault {
			switch {
			case late:
				return storetest.Fault{Kind: storetest.Refuse}
			case call.Write != nil && call.Write.Extend != nil:
				late = true
				return storetest.Fault{Kind: storetest.Late}
			default:
				return storetest.Fault{}
			}
		})
		b.wantReason(renew(b, c), ledger.ReasonStoreUnavailable)
		b.faulty.Plan(nil)
		long, err := b.ledger.Extend(t.Context(), ledger.Caller{}, ledger.ExtendRequest{Ref: c.ref, Token: c.Token, Lease: 10 * short})
		b.must(err)
		b.clock.Advance(short)
		revision := b.row("k").Revision
		if b.faulty.Land(t.Context()); b.row("k").Revision != revision+1 {
			t.Errorf("%s: the late write did not land", name)
		}
		b.clock.Advance(long.LeaseUntil.Sub(b.clock.Now()) - time.Microsecond)
		if r, err := b.tryBegin("k", "b1"); err != nil || r.InProgress == nil {
			t.Errorf("%s: before the end of the lease that its holder was told, another is told %+v %v", name, r, err)
		}
		b.clock.Advance(time.Microsecond)
		if c := b.begin("k", "b1"); c.Attempt != 2 {
			t.Errorf("%s: at the end of the lease another is granted %+v", name, c.Grant)
		}
	}
}

// C11 for ever: the outcome stays unknown until the tries are used up. The caller is told so, and may resend.
func TestC11_AnOutcomeThatStaysUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.faulty.Plan(storetest.On(storetest.Write, func(storetest.Call) storetest.Fault { return storetest.Fault{Kind: storetest.LoseRequest} }))
		_, err := b.tryBegin("k", "a1")
		b.wantReason(err, ledger.ReasonStoreUnavailable)
		if !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("the cause is %v: it must not say that nothing happened", errors.Unwrap(err))
		}
		b.faulty.Plan(nil)
		if c := b.begin("k", "a1"); c.Attempt != 1 || c.PreviousAbandoned {
			t.Errorf("resent: %+v", c.Grant)
		}
	})
}

// C11: the write got through and the reading back does not: the caller is told that it is not known, not that nothing was decided.
func TestC11_TheReadingBackFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.faulty.Plan(storetest.Kinds(storetest.LoseReply, storetest.Refuse))
	_, err := b.tryBegin("k", "a1")
	b.wantReason(err, ledger.ReasonStoreUnavailable)
	if !errors.Is(err, ledger.ErrUnknown) || strings.Contains(err.Error(), "nothing was decided") {
		t.Errorf("told %q, cause %v", err, errors.Unwrap(err))
	}
	b.faulty.Plan(nil)
	if c := b.begin("k", "a1"); c.Attempt != 1 || !c.Resumed {
		t.Errorf("resent: %+v", c.Grant)
	}
}

// C12: a thousand times, the caller's deadline passes while Complete commits. The ledger carries the report out all the same, so it is told success; over
// the wire, where its own side of the call ends first, it resends (server, of the same name).
func TestC12_CompleteAgainstAShortDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.faulty.Plan(storetest.On(storetest.Write, func(c storetest.Call) storetest.Fault {
			slow := func(ctx context.Context) error {
				select {
				case <-time.After(time.Duration(c.N%5) * time.Millisecond):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if c.N%2 == 0 {
				return storetest.Fault{Before: slow}
			}
			return storetest.Fault{After: slow}
		}))
		for i := range 1000 {
			c := b.begin("k"+itoa(i), "a")
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			r := ledger.CompleteRequest{Ref: c.ref, Token: c.Token, Response: &ledger.Response{}}
			_, err := b.ledger.Complete(ctx, ledger.Caller{}, r)
			cancel()
			if err != nil {
				t.Fatalf("completing %d: %v", i, err)
			}
			if again, err := b.ledger.Complete(t.Context(), ledger.Caller{}, r); err != nil || !again.Resent {
				t.Fatalf("completing %d again: %+v %v", i, again, err)
			}
			if v := b.lookup("k" + itoa(i)); v.Condition != ledger.ConditionCompleted {
				t.Fatalf("%d is %s", i, conditionNames[v.Condition])
			}
		}
	})
}

// C13: an attempt id that comes late never grants again.
func TestC13_ALateAttemptID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.complete(b.begin("completed", "a1"), "x")
	if r, err := b.tryBegin("completed", "a1"); err != nil || r.Completed == nil {
		t.Errorf("after completion: %+v %v", r, err)
	}
	b.fail(b.begin("failed", "a1"), ledger.Retryable)
	if r, err := b.tryBegin("failed", "a1"); err != nil || r.Failed == nil {
		t.Errorf("after its failure: %+v %v", r, err)
	}
	b.begin("failed", "a2")
	_, err := b.tryBegin("failed", "a1")
	b.wantReason(err, ledger.ReasonClaimLost)
	b.begin("taken", "a1")
	b.clock.Advance(10 * time.Second)
	b.begin("taken", "a2")
	_, err = b.tryBegin("taken", "a1")
	b.wantReason(err, ledger.ReasonClaimLost)
}

// C15: the caller goes away after the effect; what it reported is recorded all the same.
func TestC15_AReportOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.begin("k", "a1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ledger.Complete(ctx, ledger.Caller{}, ledger.CompleteRequest{Ref: c.ref, Token: c.Token, Response: &ledger.Response{}}); err != nil {
		t.Fatal(err)
	}
	if v := b.lookup("k"); v.Condition != ledger.ConditionCompleted {
		t.Errorf("it is %s", conditionNames[v.Condition])
	}
}

// C16: the store is contended. Once its own retries are used up, the caller is told to resend, and reads no SQL.
func TestC16_Contention(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.faulty.Plan(storetest.On(storetest.Write, storetest.Kinds(storetest.Contend)))
	_, err := b.tryBegin("k", "a1")
	var refusal *ledger.Refusal
	if !errors.As(err, &refusal) || refusal.Reason != ledger.ReasonStoreUnavailable || refusal.RetryAfter <= 0 {
		t.Fatalf("got %v", err)
	}
	if strings.Contains(err.Error(), "injected") {
		t.Errorf("the store's own words reach the caller: %q", err)
	}
	if c := b.begin("k", "a1"); c.Attempt != 1 || c.Resumed {
		t.Errorf("resent: %+v", c.Grant)
	}
}

// C17: the insert meets a row, and a sweep deletes it before the read; with a competitor that begins and completes in between, and without.
func TestC17_TheRowIsGoneBetweenInsertAndRead(t *testing.T) {
	t.Parallel()
	for _, competitor := range []bool{false, true} {
		b := newBench(t)
		b.policy(quick())
		other := benchOn(t, b.clock, b.model)
		b.complete(b.begin("k", "old"), "old")
		b.clock.Advance(2 * time.Hour) // its tombstone is past
		b.faulty.Plan(storetest.On(storetest.Get, storetest.Script(storetest.Fault{Before: func(context.Context) error {
			other.sweep()
			if competitor {
				other.complete(other.begin("k", "b1"), "other's")
			}
			return nil
		}})))
		r, err := b.tryBegin("k", "a1")
		b.must(err)
		switch {
		case competitor && (r.Completed == nil || string(r.Completed.Response.Body) != "other's"):
			t.Errorf("the competitor's answer is there, and the caller is told %+v", r)
		case !competitor && (r.Granted == nil || b.row("k") == nil || b.row("k").Last.Number != 1):
			t.Errorf("nobody came in between, and the caller is told %+v", r)
		}
	}
}

// C80: a grant that the store held up for longer than half its lease is renewed before it is handed out.
func TestC80_ASlowGrantIsRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := storetest.NewRunningClock()
		b := benchOn(t, clock, storetest.NewModel(clock, 0))
		stall := func(context.Context) error { <-time.After(2500 * time.Millisecond); return nil }
		b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(storetest.Fault{After: stall})))
		r := b.beginRequest("k", "a1")
		r.Lease = time.Second
		g, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
		b.must(err)
		if left := g.Granted.LeaseUntil.Sub(clock.Now()); left <= 0 || g.Granted.Resumed {
			t.Errorf("granted with %v left of its lease: %+v", left, g.Granted)
		}
	})
}
