package ledger_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// lateWrite is a call whose write lands after another daemon did something to the same entry. Each starts with a live claim of a1, of ten seconds,
// unless it is for the first grant.
type lateWrite struct {
	name string
	// before brings the entry to where the call is made.
	before func(*bench, claim)
	late   func(*bench, claim) error
	// since is what happens before the write lands.
	since func(other *bench, c claim)
}

const firstGrant = "a first grant, and another was granted"

// TestALateWriteUndoesNothing: a write lands late, with its caller told that the outcome is unknown, or not told at all. By then the entry has moved
// on, and the write's guard does not hold. (A late Extend has TestALateRenewalShortensNothing and C73; a late change of a policy,
// TestALatePolicyChangeUndoesNothing.)
func TestALateWriteUndoesNothing(t *testing.T) {
	t.Parallel()
	for _, x := range append(lateClaims(), lateDecisions()...) {
		b := newBench(t)
		other := benchOn(t, b.clock, b.model)
		b.policy(quick())
		var c claim
		if x.name != firstGrant {
			c = b.begin("k", "a1")
		}
		if x.before != nil {
			x.before(b, c)
		}
		late := false
		b.faulty.Plan(func(call storetest.Call) storetest.Fault {
			switch {
			case late:
				return storetest.Fault{Kind: storetest.Refuse}
			case call.Method == storetest.Forget || call.Write != nil && (call.Write.Guard.Kind != ledger.GuardAbsent || x.name == firstGrant):
				late = true
				return storetest.Fault{Kind: storetest.Late}
			default:
				return storetest.Fault{}
			}
		})
		if err := x.late(b, c); reasonOf(err) != ledger.ReasonStoreUnavailable || !late {
			t.Fatalf("%s: a late write %t: %v", x.name, late, err)
		}
		x.since(other, c)
		before := b.row("k")
		b.faulty.Land(t.Context())
		if after := b.row("k"); !reflect.DeepEqual(before, after) {
			t.Errorf("%s:\n%+v became\n%+v", x.name, before, after)
		}
	}
}

// lateClaims: grants and reports.
func lateClaims() []lateWrite {
	begin := func(attempt string) func(*bench, claim) error {
		return func(b *bench, _ claim) error { _, err := b.tryBegin("k", attempt); return err }
	}
	complete := func(b *bench, c claim) error { _, err := b.tryComplete(c, "late"); return err }
	fail := func(d ledger.Disposition) func(*bench, claim) error {
		return func(b *bench, c claim) error { _, err := b.tryFail(c, d); return err }
	}
	var recovery claim
	return []lateWrite{
		{firstGrant, nil, begin("a1"), func(other *bench, _ claim) { other.begin("k", "b1") }},
		{"a takeover, and the holder came back", leaseOver, begin("b1"), extended},
		{"a takeover, and another took over", leaseOver, begin("b1"), func(other *bench, _ claim) { other.begin("k", "c1") }},
		{"the grant of a new life, and another began it", forgotten, begin("b1"), func(other *bench, _ claim) { other.begin("k", "c1") }},
		{"a success, and it was taken over", nil, complete, takenOver},
		{"a success, and it was released", nil, complete, released},
		{"a final failure, and an operator settled it", nil, fail(ledger.Final), settledByOperator},
		{"a retryable failure, and it was taken over", nil, fail(ledger.Retryable), takenOver},
		{"a retryable failure, and a success is known", nil, fail(ledger.Retryable), itCompleted},
		{"giving up, and it was taken over", nil, fail(ledger.Unknown), takenOver},
		{"giving up, and it completed", nil, fail(ledger.Unknown), itCompleted},
		{"evidence, and it completed", takenOver, complete, func(other *bench, _ claim) { other.complete(other.begin("k", "b1"), "x") }},
		{
			"a recovery's retryable failure, and it was taken over",
			func(b *bench, c claim) {
				b.fail(c, ledger.Unknown)
				r := b.beginRequest("k", "r1")
				r.Mode = ledger.Recover
				result, err := b.ledger.Begin(b.t.Context(), ledger.Caller{}, r)
				b.must(err)
				recovery = claim{c.ref, result.Granted}
			},
			func(b *bench, _ claim) error { return fail(ledger.Retryable)(b, recovery) },
			takenOver,
		},
	}
}

// lateDecisions: what operators and sweeps do.
func lateDecisions() []lateWrite {
	resolve := func(action ledger.ResolveAction) func(*bench, claim) error {
		return func(b *bench, c claim) error {
			r := ledger.ResolveRequest{Ref: c.ref, Action: action, Attempt: 1, Reason: "late", Force: true}
			if action == ledger.ResolveComplete {
				r.Response = &ledger.Response{Body: []byte("late")}
			}
			_, err := b.ledger.Resolve(b.t.Context(), ledger.Caller{}, r)
			return err
		}
	}
	erase := func(b *bench, _ claim) error {
		_, err := b.ledger.Erase(b.t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: b.clock.Now().Wall(), Force: true}, nil)
		return err
	}
	apply := func(b *bench, _ claim) error {
		_, err := b.ledger.ApplyPolicy(b.t.Context(), ledger.ApplyRequest{Tenant: "*", Operation: "charge"}, nil)
		return err
	}
	longer := func(b *bench, _ claim) {
		p := quick()
		p.Horizons.ClientRetry = 30 * time.Hour
		b.policy(p)
	}
	sweep := func(b *bench, _ claim) error {
		_, err := b.ledger.Sweep(b.t.Context(), ledger.SweepRequest{}, nil)
		return err
	}
	return []lateWrite{
		{"a release, and it completed", nil, resolve(ledger.ResolveRelease), itCompleted},
		{"a release, and it was taken over", leaseOver, resolve(ledger.ResolveRelease), func(other *bench, _ claim) { other.begin("k", "b1") }},
		{"a resolution, and the holder came back", nil, resolve(ledger.ResolveComplete), extended},
		{"an erasure, and a policy was applied", itCompleted, erase, func(other *bench, c claim) {
			longer(other, c)
			other.must(apply(other, c))
		}},
		{"an application of a policy, and it completed", longer, apply, itCompleted},
		{"a sweep that closes, and it was erased", func(b *bench, c claim) {
			itCompleted(b, c)
			b.clock.Advance(time.Hour)
		}, sweep, func(other *bench, c claim) { other.must(erase(other, c)) }},
		{"a sweep that forgets, and it began anew", forgotten, sweep, func(other *bench, _ claim) { other.begin("k", "b1") }},
	}
}

func leaseOver(b *bench, _ claim) { b.clock.Advance(10 * time.Second) }

// takenOver ends a lease and grants the next attempt.
func takenOver(b *bench, c claim) {
	leaseOver(b, c)
	b.begin("k", "b1")
}

func extended(b *bench, c claim) {
	_, err := b.tryExtend(c)
	b.must(err)
}

func itCompleted(b *bench, c claim) { b.complete(c, "x") }

// forgotten is a row that is still there, past its tombstone.
func forgotten(b *bench, c claim) {
	b.complete(c, "x")
	b.clock.Advance(2 * time.Hour)
}

func released(b *bench, c claim) { b.resolve(c.ref, ledger.ResolveRelease, 1, true) }

func settledByOperator(b *bench, c claim) { b.resolve(c.ref, ledger.ResolveComplete, 1, true) }
