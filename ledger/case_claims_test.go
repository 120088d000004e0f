package ledger_test

import (
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// The field cases about claims and leases (C01 to C08), each as a test of a whole ledger.

func quick() ledger.Policy {
	return ledger.Policy{Tenant: "*", Operation: "charge", Lease: 10 * time.Second, Horizons: ledger.Horizons{ClientRetry: time.Hour}}
}

// C01: a holder that lost its claim can change nothing, in whatever order it tries, whatever its failure says, before the other settled and after;
// the answer is the other's. Both have one holder name.
func TestC01_ALostClaimChangesNothing(t *testing.T) {
	t.Parallel()
	for _, disposition := range []ledger.Disposition{ledger.Final, ledger.Retryable, ledger.Unknown} {
		for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			aLostClaimChangesNothing(t, disposition, order)
		}
	}
}

func aLostClaimChangesNothing(t *testing.T, disposition ledger.Disposition, order [3]int) {
	t.Helper()
	extend := func(b *bench, c claim) error { _, err := b.tryExtend(c); return err }
	fail := func(b *bench, c claim) error { _, err := b.tryFail(c, disposition); return err }
	complete := func(b *bench, c claim) error { _, err := b.tryComplete(c, "from A"); return err }
	calls := []func(*bench, claim) error{extend, fail, complete}
	b := newBench(t)
	b.policy(quick())
	a := b.begin("k", "a1")
	b.clock.Advance(11 * time.Second)
	other := b.begin("k", "b1")
	before := b.row("k")
	for _, i := range order {
		b.wantReason(calls[i](b, a), ledger.ReasonClaimLost)
	}
	after := b.row("k")
	if after.State != before.State || after.Last != before.Last || !after.Current || after.Response != nil || after.Failure != nil {
		t.Errorf("order %v: A changed the entry: %+v", order, after)
	}
	if !after.Evidence.Success() || after.Evidence.Attempt != a.Attempt {
		t.Errorf("order %v: A's success is not kept as evidence: %+v", order, after.Evidence)
	}
	settled := b.complete(other, "from B")
	revision := b.row("k").Revision
	for _, i := range order {
		b.wantReason(calls[i](b, a), ledger.ReasonClaimLost)
	}
	_, err := b.tryComplete(a, "another answer from A")
	b.wantReason(err, ledger.ReasonClaimLost)
	if now := b.row("k").Revision; now != revision {
		t.Errorf("order %v: A wrote over a settled entry: revision %d became %d", order, revision, now)
	}
	r, err := b.tryBegin("k", "c1")
	b.must(err)
	if r.Completed == nil || string(r.Completed.Response.Body) != "from B" || r.Completed.Attempt != 2 || r.Completed.SettledAt != settled.SettledAt {
		t.Errorf("order %v: the answer is %+v", order, r.Completed)
	}
}

// C03: there always is a lease.
func TestC03_ALeaseIsAlwaysAssigned(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	c := b.begin("k", "a1")
	if c.Lease != ledger.DefaultLease || c.LeaseUntil != epoch.Add(ledger.DefaultLease) {
		t.Errorf("lease %v until %s", c.Lease, at(c.LeaseUntil))
	}
	x, err := b.tryExtend(c)
	b.must(err)
	if x.Lease != ledger.DefaultLease {
		t.Errorf("extended to a lease of %v", x.Lease)
	}
	if v := b.lookup("k"); v.Condition != ledger.Live {
		t.Errorf("without a lease in the request it is %s", conditionNames[v.Condition])
	}
	// Every other way to a claim gives it one too.
	for name, again := range map[string]func(key string) claim{
		"resumed": func(key string) claim { return b.begin(key, "a1") },
		"after a retryable failure": func(key string) claim {
			b.fail(b.begin(key, "a1"), ledger.Retryable)
			return b.begin(key, "a2")
		},
		"after giving up": func(key string) claim {
			b.fail(b.begin(key, "a1"), ledger.Unknown)
			return b.begin(key, "a2")
		},
		"a takeover": func(key string) claim {
			b.clock.Advance(ledger.DefaultLease)
			return b.begin(key, "a2")
		},
		"a release": func(key string) claim {
			b.resolve(b.ref(key), ledger.ResolveRelease, 1, true)
			return b.begin(key, "a2")
		},
		"a recovery": func(key string) claim {
			b.clock.Advance(ledger.DefaultLease)
			r := b.beginRequest(key, "r1")
			r.Mode = ledger.Recover
			g, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
			b.must(err)
			return claim{r.Ref, g.Granted}
		},
	} {
		b.begin(name, "a1")
		c := again(name)
		if c.Lease != ledger.DefaultLease || c.LeaseUntil != b.clock.Now().Add(ledger.DefaultLease) || b.lookup(name).Condition != ledger.Live {
			t.Errorf("%s: a lease of %v until %s", name, c.Lease, at(c.LeaseUntil))
		}
	}
}

// C04: leases are judged by the store's clock alone: two daemons on one store agree, whatever their own clocks say. A daemon has no clock to
// set wrong here: nothing but the store's is ever asked.
func TestC04_TwoDaemonsOneClock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := benchOn(t, b.clock, b.model)
	r := b.beginRequest("k", "a1")
	r.Lease = 10 * time.Second
	if _, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r); err != nil {
		t.Fatal(err)
	}
	got, err := other.tryBegin("k", "b1")
	b.must(err)
	if got.InProgress == nil || got.InProgress.Attempt != 1 || got.InProgress.Holder != "A" {
		t.Errorf("the other daemon says %+v", got)
	}
	// To the end of the lease both say so, and at its end both would grant: the one that is asked does.
	b.clock.Advance(10*time.Second - time.Microsecond)
	for name, daemon := range map[string]*bench{"the first": b, "the other": other} {
		if got, err := daemon.tryBegin("k", "b1"); err != nil || got.InProgress == nil {
			t.Errorf("a microsecond before the end %s says %+v %v", name, got, err)
		}
	}
	b.clock.Advance(time.Microsecond)
	if c := other.begin("k", "b1"); c.Attempt != 2 {
		t.Errorf("at the end of the lease the other grants %+v", c.Grant)
	}
	if got, err := b.tryBegin("k", "c1"); err != nil || got.InProgress == nil || got.InProgress.Attempt != 2 {
		t.Errorf("then the first says %+v %v", got, err)
	}
}

// C05: under HOLD a retry is refused until an operator or the service's own recovery settles the entry; under RECLAIM it is granted, and told.
func TestC05_HoldAndReclaim(t *testing.T) {
	t.Parallel()
	for _, settle := range []string{"operator", "recovery"} {
		b := newBench(t)
		p := quick()
		p.OnAbandoned = ledger.Hold
		b.policy(p)
		b.begin("k", "a1")
		b.clock.Advance(10 * time.Second)
		_, err := b.tryBegin("k", "b1")
		b.wantReason(err, ledger.ReasonAbandoned)
		if settle == "operator" {
			b.resolve(b.ref("k"), ledger.ResolveComplete, 1, false)
		} else {
			r := b.beginRequest("k", "r1")
			r.Mode = ledger.Recover
			g, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
			b.must(err)
			if !g.Granted.RecoverOnly || !g.Granted.PreviousAbandoned {
				t.Errorf("the recovery was granted %+v", g.Granted)
			}
			b.complete(claim{b.ref("k"), g.Granted}, "o")
		}
		got, err := b.tryBegin("k", "b1")
		b.must(err)
		if got.Completed == nil || string(got.Completed.Response.Body) != "o" {
			t.Errorf("after the %s: %+v", settle, got)
		}
	}
	b := newBench(t)
	b.policy(quick())
	b.begin("k", "a1")
	b.clock.Advance(10 * time.Second)
	if c := b.begin("k", "b1"); c.Attempt != 2 || !c.PreviousAbandoned {
		t.Errorf("granted %+v", c.Grant)
	}
}

// C06: the first payload binds the key.
func TestC06_TheFirstFingerprintBinds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.fail(b.begin("k", "a1"), ledger.Retryable)
	other := b.beginRequest("k", "b1")
	other.Fingerprints = fingerprintsOf(command{args: map[string]string{"hash": "h2"}})
	// By whoever asks, for whatever: a new attempt, a recovery, and the attempt that is at work.
	refused := func(when string) {
		t.Helper()
		for _, attempt := range []string{"x1", "a1", "a2", "a3"} {
			for _, mode := range []ledger.Mode{ledger.Run, ledger.Recover} {
				if mode == ledger.Recover && attempt != "x1" {
					continue // it would be refused for its id
				}
				other.AttemptID, other.Mode = uuidOf(attempt), mode
				if _, err := b.ledger.Begin(t.Context(), ledger.Caller{}, other); reasonOf(err) != ledger.ReasonKeyReused {
					t.Errorf("%s, attempt %s, mode %d: %v", when, attempt, mode, err)
				}
			}
		}
	}
	refused("after a retryable failure")
	b.begin("k", "a2")
	refused("while another attempt is at work")
	b.clock.Advance(10 * time.Second)
	refused("when it was abandoned")
	c := b.begin("k", "a3")
	refused("after the takeover")
	b.complete(c, "x")
	refused("after completion")
	b.clock.Advance(time.Hour)
	refused("past retention")
	b.sweep()
	refused("as a tombstone")

	settled := func(key string, settle func(claim)) {
		t.Helper()
		settle(b.begin(key, "a1"))
		other.Ref = b.ref(key)
		refused(key)
	}
	settled("failed for good", func(c claim) { b.fail(c, ledger.Final) })
	settled("given up", func(c claim) { b.fail(c, ledger.Unknown) })
	settled("released", func(c claim) { b.resolve(c.ref, ledger.ResolveRelease, 1, true) })
	settled("settled by an operator", func(c claim) { b.resolve(c.ref, ledger.ResolveComplete, 1, true) })
	settled("lapsed", func(c claim) { b.clock.Advance(time.Hour + 10*time.Second) })
	hold := quick()
	hold.OnAbandoned = ledger.Hold
	b.policy(hold)
	settled("held", func(c claim) { b.fail(c, ledger.Unknown) })
	settled("erased", func(claim) {
		_, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: b.clock.Now().Wall(), Force: true}, nil)
		b.must(err)
	})
}

// C06, of two algorithms: every one that both name must agree, in whatever order; and what a later attempt names beside is not taken in.
func TestC06_NoAlgorithmIsLeftOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	begin := func(attempt, hash string) (ledger.BeginResult, error) {
		r := b.beginRequest("k", attempt)
		r.Fingerprints = fingerprintsOf(command{args: map[string]string{"hash": hash}})
		return b.ledger.Begin(t.Context(), ledger.Caller{}, r)
	}
	_, err := begin("a1", "v1:one,v2:two")
	b.must(err)
	for _, hash := range []string{"v1:one,v2:other", "v1:other,v2:two", "v2:two,v1:other", "v2:other,v1:one", "v2:other"} {
		_, err := begin("b1", hash)
		b.wantReason(err, ledger.ReasonKeyReused)
	}
	b.clock.Advance(10 * time.Second)
	if r, err := begin("a2", "v2:two,v3:three"); err != nil || r.Granted == nil {
		t.Fatalf("by the second algorithm: %+v %v", r, err)
	}
	_, err = begin("b1", "v3:three")
	b.wantReason(err, ledger.ReasonHashIncomparable)
	_, err = begin("b1", "v1:other,v3:three")
	b.wantReason(err, ledger.ReasonKeyReused)
	if r, err := begin("b1", "v1:one"); err != nil || r.InProgress == nil {
		t.Errorf("the first payload: %+v %v", r, err)
	}
}

// C07: at the exact instant an entry is one thing, for every reader: never two, never neither. rule-instants.txt has the writers.
func TestC07_NoGapAtTheExactInstant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := quick()
	p.ReclaimWithin = time.Minute
	b.policy(p)
	done, left := b.begin("done", "a1"), b.begin("left", "b1")
	b.complete(done, "x")
	row := b.row("left")
	settled := b.row("done")
	for _, c := range []struct {
		e            *ledger.Entry
		end          ledger.Time
		before, then ledger.Condition
	}{
		{row, left.LeaseUntil, ledger.Live, ledger.Abandoned},
		{row, epoch.Add(time.Minute), ledger.Abandoned, ledger.Held},
		{settled, epoch.Add(time.Hour), ledger.ConditionCompleted, ledger.Expired},
		{settled, epoch.Add(2 * time.Hour), ledger.Expired, ledger.Absent},
	} {
		for offset, want := range map[ledger.Time]ledger.Condition{-1: c.before, 0: c.then, 1: c.then} {
			if got := c.e.ConditionAt(c.end + offset); got != want {
				t.Errorf("%+d µs from %s: %s, want %s", offset, at(c.end), conditionNames[got], conditionNames[want])
			}
		}
	}
}

// C08: a handler runs six minutes on a five-minute lease.
func TestC08_ALongHandler(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := quick()
	p.Lease = 5 * time.Minute
	b.policy(p)

	with := b.begin("with heartbeats", "a1")
	for range 6 {
		b.clock.Advance(time.Minute)
		if _, err := b.tryExtend(with); err != nil {
			t.Fatal(err)
		}
		if r, err := b.tryBegin("with heartbeats", "b1"); err != nil || r.InProgress == nil {
			t.Errorf("a retry meanwhile: %+v %v", r, err)
		}
	}
	b.complete(with, "x")

	without := b.begin("without", "c1")
	b.clock.Advance(6 * time.Minute)
	b.complete(without, "x") // nobody came: the truth is welcome
	if v := b.lookup("without"); v.Entry.Doubt {
		t.Error("its own lapse put the entry in doubt")
	}
	lost := b.begin("taken over", "d1")
	b.clock.Advance(6 * time.Minute)
	b.begin("taken over", "e1")
	_, err := b.tryComplete(lost, "x")
	b.wantReason(err, ledger.ReasonClaimLost)
}

// C50: the same key of another tenant, another operation or, bound, another principal never gets the other's answer.
func TestC50_AKeyIsItsOwners(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := quick()
	p.BindPrincipal = true
	b.policy(p)
	r := b.beginRequest("k", "a1")
	g, err := b.ledger.Begin(t.Context(), ledger.Caller{Principal: "alice"}, r)
	b.must(err)
	complete := ledger.CompleteRequest{Ref: r.Ref, Token: g.Granted.Token, Response: &ledger.Response{Body: []byte("alice's")}}
	_, err = b.ledger.Complete(t.Context(), ledger.Caller{Principal: "alice"}, complete)
	b.must(err)
	for _, ref := range []ledger.Ref{
		{Tenant: "evil", Operation: "charge", Key: "k"}, {Tenant: "acme", Operation: "refund", Key: "k"}, {Tenant: "Acme", Operation: "charge", Key: "k"},
	} {
		other := r
		other.Ref = ref
		got, err := b.ledger.Begin(t.Context(), ledger.Caller{Principal: "bob"}, other)
		b.must(err)
		if got.Granted == nil || got.Granted.Attempt != 1 {
			t.Errorf("%+v: %+v", ref, got)
		}
		stolen := complete
		stolen.Ref = ref
		_, err = b.ledger.Complete(t.Context(), ledger.Caller{Principal: "bob"}, stolen)
		b.wantReason(err, ledger.ReasonClaimLost)
	}
	for _, principal := range []string{"bob", ""} {
		_, err = b.ledger.Begin(t.Context(), ledger.Caller{Principal: principal}, b.beginRequest("k", "b1"))
		b.wantReason(err, ledger.ReasonPermissionDenied)
		_, err = b.ledger.Lookup(t.Context(), ledger.Caller{Principal: principal}, r.Ref)
		b.wantReason(err, ledger.ReasonPermissionDenied)
		_, err = b.ledger.Complete(t.Context(), ledger.Caller{Principal: principal}, complete)
		b.wantReason(err, ledger.ReasonPermissionDenied)
	}
}

// C81, as far as the ledger goes: the clock jumps a year ahead and is put right. What was settled before is neither stuck nor forgotten, and a
// claim given in the wrong year can be ended by its holder and by an operator.
func TestC81_AClockThatJumpsAndIsPutRight(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.complete(b.begin("before", "a1"), "x")
	b.clock.Advance(365 * 24 * time.Hour)
	meanwhile, stuck := b.begin("meanwhile", "b1"), b.begin("stuck", "c1")
	b.clock.Advance(-365 * 24 * time.Hour)
	if r, err := b.tryBegin("before", "a2"); err != nil || r.Completed == nil {
		t.Errorf("settled before the jump: %+v %v", r, err)
	}
	b.complete(meanwhile, "y")
	if r, err := b.tryBegin("meanwhile", "b2"); err != nil || r.Completed == nil {
		t.Errorf("settled after the jump: %+v %v", r, err)
	}
	if _, err := b.tryExtend(stuck); err != nil {
		t.Error(err)
	}
	b.clock.Advance(10 * time.Second)
	if c := b.begin("stuck", "c2"); !c.PreviousAbandoned || c.Fence <= stuck.Fence {
		t.Errorf("granted %+v after %+v", c.Grant, stuck.Grant)
	}
}
