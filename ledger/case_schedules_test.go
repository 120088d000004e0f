package ledger_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// The schedules found on paper (C70 to C79).

// C70: A's claim is lost to B, A reports success, B fails RETRYABLE. B can not speak for A: the next claim is told, and carries A's report.
func TestC70_ARetryableFailureDoesNotHideALateSuccess(t *testing.T) {
	t.Parallel()
	for _, hold := range []bool{false, true} {
		b := newBench(t)
		p := quick()
		if hold {
			p.OnAbandoned = ledger.Hold
		}
		b.policy(p)
		a := b.begin("k", "a1")
		b.clock.Advance(10 * time.Second)
		if hold {
			b.resolve(a.ref, ledger.ResolveRelease, 1, false)
		}
		second := b.begin("k", "b1")
		_, err := b.tryComplete(a, "A did it")
		b.wantReason(err, ledger.ReasonClaimLost)
		b.fail(second, ledger.Retryable)
		if hold {
			_, err := b.tryBegin("k", "c1")
			b.wantReason(err, ledger.ReasonAbandoned)
			continue
		}
		third := b.begin("k", "c1")
		if !third.PreviousAbandoned || !third.Evidence.Success() || string(third.Evidence.Response.Body) != "A did it" {
			t.Errorf("the next claim is %+v", third.Grant)
		}
	}
}

// C71: a RETRYABLE whose reply was lost is resent after another attempt was granted: OK, and nothing changes.
func TestC71_AResentReportIsNoEvidence(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.begin("k", "a1")
	b.fail(a, ledger.Retryable)
	b.begin("k", "b1")
	before := b.row("k")
	r, err := b.tryFail(a, ledger.Retryable)
	if err != nil || !r.Resent || r.Attempt != 1 {
		t.Errorf("resent: %+v %v", r, err)
	}
	if after := b.row("k"); after.Revision != before.Revision || after.Evidence != nil {
		t.Errorf("the row changed to %+v", after)
	}
}

// C72: a Begin is resent after its lease was over: the same grant, renewed. After fail(UNKNOWN) it is CLAIM_LOST.
func TestC72_AResentBeginAfterItsLease(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	first := b.begin("k", "a1")
	b.clock.Advance(time.Minute)
	second := b.begin("k", "a1")
	if second.Fence != first.Fence || !second.Resumed || second.LeaseUntil != b.clock.Now().Add(10*time.Second) || second.PreviousAbandoned {
		t.Errorf("resent: %+v", second.Grant)
	}
	b.fail(second, ledger.Unknown)
	_, err := b.tryBegin("k", "a1")
	b.wantReason(err, ledger.ReasonClaimLost)
}

// C73: a heartbeat that was in flight when the claim was given up does not revive it.
func TestC73_AHeartbeatDoesNotRevive(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.begin("k", "a1")
	b.fail(c, ledger.Unknown)
	_, err := b.tryExtend(c)
	b.wantReason(err, ledger.ReasonClaimLost)
	if v := b.lookup("k"); v.Condition != ledger.Abandoned {
		t.Errorf("it is %s", conditionNames[v.Condition])
	}

	// Truly in flight: the heartbeat's write lands after the claim was given up, released, or taken over.
	for name, end := range map[string]func(claim){
		"given up":   func(c claim) { b.fail(c, ledger.Unknown) },
		"retryable":  func(c claim) { b.fail(c, ledger.Retryable) },
		"released":   func(c claim) { b.resolve(c.ref, ledger.ResolveRelease, 1, true) },
		"taken over": func(c claim) { b.clock.Advance(ledger.DefaultLease); b.begin(c.ref.Key, "b1") },
	} {
		c := b.begin(name, "a1")
		b.faulty.Plan(storetest.On(storetest.Write, storetest.Kinds(storetest.Late)))
		if _, err := b.tryExtend(c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		b.faulty.Plan(nil)
		end(c)
		before := b.row(name)
		b.faulty.Land(t.Context())
		if diff := *b.row(name); diff.Revision != before.Revision || diff.Current != before.Current || diff.Last != before.Last {
			t.Errorf("%s: a heartbeat that came late made %+v of %+v", name, diff, before)
		}
	}
}

// C74: the ledger is away for longer than a lease while a handler finishes. When it is back the handler's Complete gets in before any
// takeover, whether the daemon started anew or only its store was away.
func TestC74_HoldersComeBackFirst(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		b := newBench(t)
		b.policy(quick())
		c := b.begin("k", "a1")
		b.faulty.Down()
		b.wantReason(b.ledger.Ready(t.Context()), ledger.ReasonStoreUnavailable)
		b.clock.Advance(time.Minute)
		b.faulty.Up()
		if restarted {
			b.ledger = b.open(ledger.Config{})
		}
		// The first call after the break is the competitor's.
		r, err := b.tryBegin("k", "b1")
		b.must(err)
		if r.InProgress == nil {
			t.Fatalf("restarted %t: a competitor is told %+v", restarted, r)
		}
		b.complete(c, "x")
		if r, err := b.tryBegin("k", "b1"); err != nil || r.Completed == nil || r.Completed.Attempt != 1 {
			t.Errorf("restarted %t: then %+v %v", restarted, r, err)
		}
	}
}

// C75: a client's guard saw UNAVAILABLE after the effect, and says so (UNKNOWN): the next Begin is not a plain grant.
func TestC75_UnknownIsNotAPlainGrant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.fail(b.begin("k", "a1"), ledger.Unknown)
	if c := b.begin("k", "b1"); !c.PreviousAbandoned || c.Attempt != 2 {
		t.Errorf("granted %+v", c.Grant)
	}
}

// C77: an operator releases attempt 1 while attempt 2 is being granted; the release is resent. Attempt 2 is untouched.
func TestC77_ALateReleaseTouchesNobodyElse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	a := b.begin("k", "a1")
	b.clock.Advance(10 * time.Second)
	second := b.begin("k", "b1")
	for range 2 {
		_, err := b.ledger.Resolve(t.Context(), ledger.Caller{}, ledger.ResolveRequest{
			Ref: a.ref, Action: ledger.ResolveRelease, Attempt: 1, Reason: "stuck", Force: true,
		})
		b.wantReason(err, ledger.ReasonClaimLost)
	}
	b.complete(second, "x")

	first := b.begin("l", "c1")
	b.clock.Advance(10 * time.Second)
	b.resolve(first.ref, ledger.ResolveRelease, 1, false)
	second = b.begin("l", "d1")
	if v := b.resolve(first.ref, ledger.ResolveRelease, 1, true); !v.Resent || v.Condition != ledger.Live || v.Entry.Credit {
		t.Errorf("resent: %+v", v)
	}
	b.complete(second, "x")

	// At once: attempt 2 is granted between what the release read and what it writes, and the other way round.
	other := benchOn(t, b.clock, b.model)
	first = b.begin("m", "e1")
	b.clock.Advance(10 * time.Second)
	var granted claim
	b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(storetest.Fault{Before: func(context.Context) error {
		granted = other.begin("m", "f1")
		return nil
	}})))
	_, err := b.ledger.Resolve(t.Context(), ledger.Caller{}, ledger.ResolveRequest{
		Ref: first.ref, Action: ledger.ResolveRelease, Attempt: 1, Reason: "stuck",
	})
	b.wantReason(err, ledger.ReasonClaimLost)
	if row := b.row("m"); !row.Current || row.Last.Number != 2 || row.Credit {
		t.Errorf("attempt 2 became %+v", row)
	}
	b.complete(granted, "x")

	first = b.begin("n", "g1")
	b.clock.Advance(10 * time.Second)
	released := false
	b.faulty.Plan(storetest.On(storetest.Write, storetest.Script(storetest.Fault{}, storetest.Fault{Before: func(context.Context) error {
		released = true
		other.resolve(first.ref, ledger.ResolveRelease, 1, false)
		return nil
	}})))
	second = b.begin("n", "h1")
	if row := b.row("n"); !released || !row.Current || row.Last.Number != 2 || row.Credit || !row.Last.OnCredit || !second.PreviousAbandoned {
		t.Errorf("released %t, attempt 2 is %+v", released, row)
	}
	b.complete(second, "x")
}

// C78: a tenant is erased while a claim is live, then the same key begins: no second run of live work, and fences do not go back.
func TestC78_ErasingALiveClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	c := b.begin("k", "a1")
	until := b.clock.Now().Wall()
	erase := func(force bool) ledger.EraseProgress {
		t.Helper()
		p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: until, Force: force}, nil)
		b.must(err)
		return p
	}
	if p := erase(false); p.Skipped != 1 || len(p.SkippedEntries) != 1 || p.SkippedEntries[0].LogKey != b.ledger.LogKey(c.ref) || p.Erased != 0 {
		t.Errorf("without force: %+v", p)
	}
	if p := erase(true); p.Erased != 1 || p.Skipped != 0 {
		t.Errorf("forced: %+v", p)
	}
	_, err := b.tryBegin("k", "b1")
	b.wantReason(err, ledger.ReasonExpired)
	_, err = b.tryComplete(c, "x")
	b.wantReason(err, ledger.ReasonExpired)
	b.clock.Advance(2 * time.Hour)
	b.sweep()
	if next := b.begin("k", "b1"); next.Fence <= c.Fence || next.Attempt != 1 {
		t.Errorf("fence %d after %d", next.Fence, c.Fence)
	}
}

// TestEvidenceIsShort: a late report is kept for a person or a recovery hook, not for replay: of a long body only its size and hash.
func TestEvidenceIsShort(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.begin("k", "a1")
	b.fail(c, ledger.Retryable)
	_, err := b.tryComplete(c, strings.Repeat("x", ledger.MaxEvidenceBytes+1))
	b.wantReason(err, ledger.ReasonClaimLost)
	if r := b.row("k").Evidence.Response; !r.BodyOmitted || r.Body != nil || r.BodySize != ledger.MaxEvidenceBytes+1 {
		t.Errorf("kept a body of %d bytes, omitted %t", len(r.Body), r.BodyOmitted)
	}
}
