package server_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// A fresh key is granted: attempt 1, a token, a fence above its incarnation, and a lease told both as an instant and as a length.
func TestBeginGrants(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k")
	now := r.daemon.Clock().Now()
	switch {
	case c.GetAttempt() != 1 || len(c.GetClaimToken()) == 0 || len(c.GetClaimToken()) > 64:
		t.Errorf("claim %v", c)
	case c.GetFence() != c.GetIncarnation()+1 || c.GetIncarnation() != int64(now):
		t.Errorf("fence %d, incarnation %d, the clock stands at %d", c.GetFence(), c.GetIncarnation(), now)
	case c.GetLease().AsDuration() != ledger.DefaultLease || !c.GetLeaseExpireTime().AsTime().Equal(now.Add(ledger.DefaultLease).Wall()):
		t.Errorf("lease %v until %v", c.GetLease().AsDuration(), c.GetLeaseExpireTime().AsTime())
	case c.GetResumed() || c.GetPreviousAbandoned() || c.GetRecoverOnly() || c.GetEvidence() != nil:
		t.Errorf("claim %v", c)
	}
	if got := r.grant("other", func(b *idemv1.BeginRequest) { b.Lease = seconds(5) }).GetLease().AsDuration(); got != 5*time.Second {
		t.Errorf("a lease of 5 s is granted as %v", got)
	}
}

// A resent Begin gets the same grant, also in the other spelling of its UUID.
func TestResentBeginResumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	req := beginRequest("k")
	first, err := r.Begin(r.ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{req.GetAttemptId(), strings.ToUpper(req.GetAttemptId())} {
		req.AttemptId = id
		again, err := r.Begin(r.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		g := again.GetGranted()
		if !g.GetResumed() || !bytes.Equal(g.GetClaimToken(), first.GetGranted().GetClaimToken()) || g.GetFence() != first.GetGranted().GetFence() {
			t.Errorf("the resend is answered %v, the first was %v", again, first)
		}
	}
}

// An attempt id is a UUID in its 36 characters, and in no other spelling.
func TestAttemptIDIsACanonicalUUID(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	id := uuid.NewString()
	for _, bad := range []string{
		"", "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""), id + " ", "00000000-0000-0000-0000-000000000000", id[:35] + "g", "k",
	} {
		_, err := r.Begin(r.ctx, beginRequest("k", func(b *idemv1.BeginRequest) { b.AttemptId = bad }))
		got := wantRefusal(t, err, ledger.ReasonInvalidAttemptID, codes.InvalidArgument)
		if got.bad.GetFieldViolations()[0].GetField() != "attempt_id" {
			t.Errorf("%q: BadRequest %v", bad, got.bad)
		}
	}
	_, err := r.Begin(r.ctx, beginRequest(id, func(b *idemv1.BeginRequest) { b.AttemptId = id }))
	wantRefusal(t, err, ledger.ReasonInvalidAttemptID, codes.InvalidArgument)
}

// Who comes while another is at work is told who it is and when to come back.
func TestBeginInProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.grant("k", func(b *idemv1.BeginRequest) { b.Holder = "pod-7" })
	p := r.begin("k").GetInProgress()
	if p.GetHolder() != "pod-7" || p.GetAttempt() != 1 || p.GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("in progress: %v", p)
	}
}

// A waiter is told the answer when it is there.
func TestWaitingBeginGetsTheAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k")
	waiting := r.wait(r.ctx, "k")
	r.complete("k", c, &idemv1.Response{Body: []byte("done")})
	got := <-waiting
	if got.err != nil || string(got.resp.GetCompleted().GetResponse().GetBody()) != "done" {
		t.Errorf("the waiter was told %v, %v", got.resp, got.err)
	}
}

// A wait longer than the call's deadline ends in IN_PROGRESS just before it, not in DEADLINE_EXCEEDED.
func TestWaitIsCutToTheDeadline(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		r.grant("k")
		began := time.Now()
		ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
		defer cancel()
		resp, err := r.Begin(ctx, beginRequest("k", waitFor(time.Minute)))
		if err != nil || resp.GetInProgress() == nil {
			t.Errorf("got %v, %v", resp, err)
		}
		if took := time.Since(began); took != 9500*time.Millisecond {
			t.Errorf("it took %v of 10s", took)
		}
	})
}

// A policy whose max_wait is zero lets nobody wait; one that leaves it unset lets them.
func TestMaxWaitZeroMeansNobodyWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.putPolicy(&idemv1.Policy{MaxWait: seconds(0)})
	r.grant("k")
	if resp := r.begin("k", waitFor(time.Minute)); resp.GetInProgress() == nil {
		t.Errorf("got %v", resp)
	}
	r.putPolicy(&idemv1.Policy{Lease: seconds(30)})
	ctx, cancel := context.WithCancel(r.ctx)
	waiting := r.wait(ctx, "k")
	cancel()
	if got := <-waiting; readRefusal(got.err).code != codes.Canceled {
		t.Errorf("a waiter that goes away is told %v, %v", got.resp, got.err)
	}
}

// Complete tells the entry's times by the store's clock, and says so when it was resent.
func TestCompleteTellsTimes(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k")
	created := r.daemon.Clock().Now()
	r.advance(time.Second)
	settled := r.daemon.Clock().Now()
	for _, resent := range []bool{false, true} {
		got := r.complete("k", c, &idemv1.Response{Code: 200})
		times := got.GetTimes()
		if got.GetResent() != resent || got.GetAttempt() != 1 {
			t.Errorf("attempt %d, resent %t, want %t", got.GetAttempt(), got.GetResent(), resent)
		}
		wantTime(t, "create_time", times.GetCreateTime(), created)
		wantTime(t, "settle_time", times.GetSettleTime(), settled)
		wantTime(t, "expire_time", times.GetExpireTime(), settled.Add(ledger.DefaultRetention))
		wantTime(t, "tombstone_expire_time", times.GetTombstoneExpireTime(), settled.Add(2*ledger.DefaultRetention))
		wantTime(t, "store_time", times.GetStoreTime(), r.daemon.Clock().Now())
		r.advance(time.Minute)
	}
}

func wantTime(t *testing.T, what string, got interface{ AsTime() time.Time }, want ledger.Time) {
	t.Helper()
	if !got.AsTime().Equal(want.Wall()) {
		t.Errorf("%s is %v, want %v", what, got.AsTime(), want.Wall())
	}
}

// Each disposition does what it says: FINAL is replayed, RETRYABLE lets the next one run, UNKNOWN gives the claim up.
func TestFailDispositions(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.fail("final", r.grant("final"), idemv1.Disposition_DISPOSITION_FINAL, unavailable("no"))
	if got := r.begin("final").GetFailed(); got.GetStatus().GetMessage() != "no" {
		t.Errorf("after FINAL: %v", got)
	}
	r.fail("retryable", r.grant("retryable"), idemv1.Disposition_DISPOSITION_RETRYABLE, unavailable("no"))
	if c := r.grant("retryable"); c.GetAttempt() != 2 || c.GetPreviousAbandoned() {
		t.Errorf("after RETRYABLE: %v", c)
	}
	failed := r.fail("unknown", r.grant("unknown"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("no"))
	if failed.GetTimes().GetSettleTime() != nil || failed.GetTimes().GetCreateTime() == nil {
		t.Errorf("after UNKNOWN: %v", failed)
	}
	if c := r.grant("unknown"); c.GetAttempt() != 2 || !c.GetPreviousAbandoned() {
		t.Errorf("after UNKNOWN: %v", c)
	}
	for _, d := range []idemv1.Disposition{idemv1.Disposition_DISPOSITION_UNSPECIFIED, 9} {
		_, err := r.Fail(r.ctx, failRequest("x", r.grant("x", func(b *idemv1.BeginRequest) { b.Ref.Key += d.String() }), d, unavailable("no")))
		wantRefusal(t, err, ledger.ReasonInvalidReport, codes.InvalidArgument)
	}
}

// Details that the client left out are said to be missing in the replay.
func TestFailDetailsOmittedByTheClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	req := failRequest("k", r.grant("k"), idemv1.Disposition_DISPOSITION_FINAL, unavailable("no"))
	req.DetailsOmitted = true
	if _, err := r.Fail(r.ctx, req); err != nil {
		t.Fatal(err)
	}
	if !r.begin("k").GetFailed().GetDetailsOmitted() {
		t.Error("the replay does not say that details are missing")
	}
}

// Extend renews from now, by the length asked for or as before.
func TestExtendRenews(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k", func(b *idemv1.BeginRequest) { b.Lease = seconds(10) })
	for _, x := range []struct {
		asked *durationpb.Duration
		want  time.Duration
	}{{nil, 10 * time.Second}, {seconds(0), 10 * time.Second}, {seconds(120), 2 * time.Minute}, {nil, 2 * time.Minute}} {
		r.advance(time.Second)
		got, err := r.Extend(r.ctx, &idemv1.ExtendRequest{Ref: refTo("k"), ClaimToken: c.GetClaimToken(), Lease: x.asked})
		if err != nil {
			t.Fatal(err)
		}
		if got.GetLease().AsDuration() != x.want {
			t.Errorf("asked for %v: %v, want %v", x.asked, got.GetLease().AsDuration(), x.want)
		}
		wantTime(t, "lease_expire_time", got.GetLeaseExpireTime(), r.daemon.Clock().Now().Add(x.want))
	}
}

// Mode RECOVER is granted for an abandoned entry, to settle it and not to run, with the evidence that there is.
func TestRecoverGetsTheEvidence(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	lost := r.grant("k", func(b *idemv1.BeginRequest) { b.Lease = seconds(1) })
	r.advance(2 * time.Minute)
	r.fail("k", r.grant("k"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("who knows"))
	_, err := r.Complete(r.ctx, completeRequest("k", lost, &idemv1.Response{Body: []byte("it happened"), ResourceId: "ch_42"}))
	wantRefusal(t, err, ledger.ReasonClaimLost, codes.FailedPrecondition)
	c := r.grant("k", func(b *idemv1.BeginRequest) { b.Mode = idemv1.BeginMode_BEGIN_MODE_RECOVER })
	e := c.GetEvidence()
	if !c.GetRecoverOnly() || !c.GetPreviousAbandoned() || c.GetAttempt() != 3 {
		t.Errorf("claim %v", c)
	}
	if e.GetAttempt() != 1 || e.GetCompleted().GetResourceId() != "ch_42" || string(e.GetCompleted().GetBody()) != "it happened" ||
		e.GetDisposition() != idemv1.Disposition_DISPOSITION_UNSPECIFIED {
		t.Errorf("evidence %v", e)
	}
}

// Lookup shows everything that is known and nothing that a claim could be used with.
func TestLookupShowsTheHistory(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	first := beginRequest("k", func(b *idemv1.BeginRequest) { b.Holder = "pod-1" })
	granted, err := r.Begin(r.ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	r.fail("k", granted.GetGranted(), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("who knows"))
	c := r.grant("k", func(b *idemv1.BeginRequest) { b.Holder = "pod-2" })
	e := r.lookup("k")
	raw, err := proto.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	id, err := uuid.Parse(first.GetAttemptId())
	if err != nil {
		t.Fatal(err)
	}
	for what, secret := range map[string][]byte{"the claim token": c.GetClaimToken(), "an attempt id": []byte(first.GetAttemptId()), "an attempt id's bytes": id[:]} {
		if bytes.Contains(raw, secret) {
			t.Errorf("the entry shows %s", what)
		}
	}
	if e.GetRef().GetTenant() != server.DefaultTenant || e.GetState() != idemv1.EntryState_ENTRY_STATE_PENDING ||
		e.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_LIVE || !e.GetHasCurrentAttempt() || !e.GetDoubt() || e.GetErased() {
		t.Errorf("entry %v", e)
	}
	if e.GetLatestAttempt() != 2 || e.GetFence() != c.GetFence() || e.GetIncarnation() != c.GetIncarnation() || e.GetRevision() != 3 || e.GetRunCount() != 2 {
		t.Errorf("numbers of %v", e)
	}
	a := e.GetAttempts()
	if len(a) != 2 || a[0].GetHolder() != "pod-1" || a[0].GetEnding() != idemv1.AttemptEnding_ATTEMPT_ENDING_GIVEN_UP || a[0].GetEndTime() == nil ||
		len(a[0].GetReportDigest()) != 32 || a[1].GetHolder() != "pod-2" || a[1].GetEnding() != idemv1.AttemptEnding_ATTEMPT_ENDING_OPEN ||
		a[1].GetEndTime() != nil || len(a[1].GetReportDigest()) != 0 || a[1].GetLease().AsDuration() != ledger.DefaultLease {
		t.Errorf("attempts %v", a)
	}
	if !proto.Equal(e.GetFingerprints()[0], first.GetFingerprints()[0]) || e.GetTerms().GetMaxAttempts() != ledger.DefaultMaxAttempts ||
		e.GetTerms().GetOnAbandoned() != idemv1.OnAbandoned_ON_ABANDONED_RECLAIM || e.GetTerms().GetReclaimWithin() != nil {
		t.Errorf("fingerprints and terms of %v", e)
	}
}

// Nobody holds a claim any more on an entry that was given up, settled or closed.
func TestHasCurrentAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.grant("live")
	r.complete("done", r.grant("done"), &idemv1.Response{})
	r.fail("failed", r.grant("failed"), idemv1.Disposition_DISPOSITION_RETRYABLE, unavailable("x"))
	r.fail("given up", r.grant("given up"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("x"))
	for key, want := range map[string]bool{"live": true, "done": false, "failed": false, "given up": false} {
		if got := r.lookup(key).GetHasCurrentAttempt(); got != want {
			t.Errorf("%s: %t", key, got)
		}
	}
}

// The times of an entry through its life: what does not apply is unset.
func TestTimesThroughAnEntrysLife(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	created := r.daemon.Clock().Now()
	r.grant("k", func(b *idemv1.BeginRequest) { b.Lease = seconds(60) })
	lapse := created.Add(time.Minute + ledger.DefaultRetention)

	times := r.lookup("k").GetTimes()
	wantTime(t, "lease_expire_time", times.GetLeaseExpireTime(), created.Add(time.Minute))
	wantTime(t, "lapse_time of a live entry", times.GetLapseTime(), lapse)
	if times.GetAbandonTime() != nil || times.GetHoldTime() != nil || times.GetSettleTime() != nil || times.GetExpireTime() != nil || times.GetTombstoneExpireTime() != nil {
		t.Errorf("a live entry has %v", times)
	}

	r.advance(2 * time.Minute)
	times = r.lookup("k").GetTimes()
	wantTime(t, "abandon_time", times.GetAbandonTime(), created.Add(time.Minute))
	wantTime(t, "lapse_time of an abandoned entry", times.GetLapseTime(), lapse)

	r.advance(ledger.DefaultRetention)
	for _, swept := range []bool{false, true} {
		if swept {
			if err := sweep(r, &idemv1.SweepRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		e := r.lookup("k")
		if e.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_LAPSED {
			t.Fatalf("swept %t: condition %v", swept, e.GetCondition())
		}
		wantTime(t, "lapse_time of a lapsed entry", e.GetTimes().GetLapseTime(), lapse)
		wantTime(t, "abandon_time of a lapsed entry", e.GetTimes().GetAbandonTime(), created.Add(time.Minute))
		wantTime(t, "tombstone_expire_time of a lapsed entry", e.GetTimes().GetTombstoneExpireTime(), lapse.Add(ledger.DefaultRetention))
		if e.GetTimes().GetExpireTime() != nil || e.GetTimes().GetSettleTime() != nil {
			t.Errorf("swept %t: a lapsed entry has %v", swept, e.GetTimes())
		}
	}

	r.putPolicy(&idemv1.Policy{OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD})
	r.grant("held")
	times = r.lookup("held").GetTimes()
	if times.GetLapseTime() != nil || !proto.Equal(times.GetHoldTime(), times.GetCreateTime()) {
		t.Errorf("an entry that is held once abandoned has %v", times)
	}
}

// An expired entry says so, without its answer, before and after a sweep.
func TestExpiredEntryHasNoAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	done := r.complete("k", r.grant("k"), &idemv1.Response{Body: []byte("secret")})
	r.advance(ledger.DefaultRetention)
	var before *idemv1.Entry
	for _, swept := range []bool{false, true} {
		if swept {
			if err := sweep(r, &idemv1.SweepRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		e := r.lookup("k")
		if e.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED || e.GetOutcome() != nil || e.GetErased() {
			t.Errorf("swept %t: %v", swept, e)
		}
		if !proto.Equal(e.GetTimes().GetExpireTime(), done.GetTimes().GetExpireTime()) ||
			!proto.Equal(e.GetTimes().GetTombstoneExpireTime(), done.GetTimes().GetTombstoneExpireTime()) {
			t.Errorf("swept %t: times %v, promised %v", swept, e.GetTimes(), done.GetTimes())
		}
		e.Revision = 0 // a sweep is a write
		if before != nil && !proto.Equal(e, before) {
			t.Errorf("a sweep changed the entry from %v to %v", before, e)
		}
		before = e
	}
}

// A call whose caller's time is over is told so, and a report is carried out all the same.
func TestReportOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k")
	ctx, cancel := context.WithCancel(r.ctx)
	reached, release := make(chan struct{}, 1), make(chan struct{})
	r.daemon.Store().Plan(holdNextWrite(reached, release))
	reported := make(chan error, 1)
	go func() {
		reported <- second(r.Complete(ctx, completeRequest("k", c, &idemv1.Response{Body: []byte("done")})))
	}()
	<-reached
	cancel()
	if err := <-reported; readRefusal(err).code != codes.Canceled {
		t.Errorf("the caller that went away was told %v", err)
	}
	close(release)
	// The resend waits for nothing but the entry itself.
	if got := r.complete("k", c, &idemv1.Response{Body: []byte("done")}); got.GetAttempt() != 1 {
		t.Errorf("the resend is answered %v", got)
	}
	if string(r.replay("k").GetResponse().GetBody()) != "done" {
		t.Error("the report was lost")
	}
}
