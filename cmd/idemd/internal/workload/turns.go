package workload

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// algorithm names the fingerprints of the load: random bytes, since there is no request behind them.
const algorithm = "load-1"

// firstPause and longestPause bound how long a call waits before it is sent again.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

func (w *worker) client(offset int) Client {
	clients := w.run.cfg.Clients
	return clients[(w.id+offset)%len(clients)]
}

// send makes a call, and makes the same call again while it may not have arrived. It returns whether the answer may be that to a resend.
func send[Q, A any](ctx context.Context, w *worker, request Q, call func(context.Context, Q) (A, error)) (A, bool, error) {
	begun, wait := time.Now(), firstPause
	for again := w.run.cfg.Resending; ; again = true {
		w.run.rec.call()
		one, cancel := context.WithTimeout(ctx, w.run.cfg.CallTimeout)
		answer, err := call(one, request)
		cancel()
		if err == nil || ctx.Err() != nil || !sendAgain(err) || time.Since(begun) > w.run.cfg.GiveUp {
			return answer, again, err
		}
		w.run.rec.resend(errorName(err))
		hint := time.Duration(0)
		if e, ok := clientlib.AsError(err); ok {
			hint = min(e.RetryAfter, longestPause)
		}
		if !pause(ctx, max(wait, hint)) {
			return answer, again, err
		}
		wait = min(2*wait, longestPause)
	}
}

// sendAgain: the call did not get through, or nobody knows whether it did. What the daemon says of an entry is never one of these.
func sendAgain(err error) bool {
	code := status.Code(err)
	return slices.Contains([]codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.ResourceExhausted}, code)
}

// aboutEntry are the refusals that say something of an entry. Where the load did nothing to deserve one, a promise is broken; every other
// failure is an error, which proves nothing.
var aboutEntry = []clientlib.Reason{
	clientlib.ReasonKeyReused, clientlib.ReasonHashIncomparable, clientlib.ReasonAbandoned, clientlib.ReasonExpired,
	clientlib.ReasonAlreadySettled, clientlib.ReasonClaimLost, clientlib.ReasonEntryNotFound,
}

// refused is the reason of a refusal that says something of an entry, or "".
func refused(err error) clientlib.Reason {
	if e, ok := clientlib.AsError(err); ok && slices.Contains(aboutEntry, e.Reason) {
		return e.Reason
	}
	return ""
}

// errorName says an error in a word or two.
func errorName(err error) string {
	if e, ok := clientlib.AsError(err); ok && e.Reason != "" {
		return string(e.Reason)
	}
	return strings.ToUpper(status.Code(err).String())
}

func (w *worker) beginRequest(in *intent, hash []byte) *idemv1.BeginRequest {
	return &idemv1.BeginRequest{
		Ref: in.ref, Fingerprints: []*idemv1.Fingerprint{{Algorithm: algorithm, Hash: hash}}, AttemptId: w.newUUID().String(), Holder: "load",
	}
}

// fresh begins an intent and completes it.
func (w *worker) fresh(ctx context.Context, from time.Time) error {
	in := w.newIntent()
	claim, err := w.claim(ctx, in)
	if claim == nil || err != nil {
		return err
	}
	w.run.rec.span(SpanBegin, time.Since(from))
	begun := time.Now()
	if kept, err := w.complete(ctx, in, claim); !kept || err != nil {
		return err
	}
	w.run.rec.span(SpanComplete, time.Since(begun))
	w.run.rec.span(SpanPair, time.Since(from))
	w.remember(in)
	return nil
}

// claim begins an intent that is new; nil where that was not granted as it must be.
func (w *worker) claim(ctx context.Context, in *intent) (*idemv1.Claim, error) {
	resp, again, err := send(ctx, w, w.beginRequest(in, in.hash), w.client(0).Begin)
	if err != nil && refused(err) == "" {
		return nil, err
	}
	claim := resp.GetGranted()
	kept := claim.GetAttempt() == 1 && !claim.GetPreviousAbandoned() && (again || !claim.GetResumed()) && len(claim.GetClaimToken()) > 0
	w.run.verdicts.check(OneGrant, in, kept, "the first Begin of a new key was told %s", outcome(resp, err))
	if !kept {
		return nil, nil
	}
	return claim, nil
}

func completeRequest(in *intent, claim *idemv1.Claim) *idemv1.CompleteRequest {
	return &idemv1.CompleteRequest{Ref: in.ref, ClaimToken: claim.GetClaimToken(), Response: in.response}
}

// complete completes an intent under its claim; false where that was refused.
func (w *worker) complete(ctx context.Context, in *intent, claim *idemv1.Claim) (bool, error) {
	resp, again, err := send(ctx, w, completeRequest(in, claim), w.client(0).Complete)
	if err != nil && refused(err) == "" {
		return false, err
	}
	kept := err == nil && resp.GetTimes().GetSettleTime() != nil && (again || !resp.GetResent())
	w.run.verdicts.check(NothingLost, in, kept, "its holder's Complete was not taken: %v, %v", resp, err)
	if kept {
		in.settled = resp.GetTimes().GetSettleTime().AsTime()
	}
	return kept, nil
}

// replay begins an intent again that was settled.
func (w *worker) replay(ctx context.Context, in *intent) error {
	resp, _, err := send(ctx, w, w.beginRequest(in, in.hash), w.client(w.choose.IntN(len(w.run.cfg.Clients))).Begin)
	return w.mustReplay(in, resp, err)
}

// mustReplay checks what a Begin of a settled intent was told.
func (w *worker) mustReplay(in *intent, resp *idemv1.BeginResponse, err error) error {
	if err != nil && refused(err) == "" {
		return err
	}
	v := w.run.verdicts
	v.check(OneGrant, in, resp.GetGranted() == nil, "it was settled, and granted again: %s", outcome(resp, err))
	if resp.GetGranted() != nil {
		return nil
	}
	answer := resp.GetCompleted()
	v.check(NothingLost, in, answer != nil, "it was completed, and a retry was told %s", outcome(resp, err))
	if answer != nil {
		fault := in.answerFault(answer)
		v.check(SameAnswer, in, fault == "", "%s", fault)
	}
	return nil
}

// mismatch begins a known intent with another request.
func (w *worker) mismatch(ctx context.Context, in *intent) error {
	other := slices.Clone(in.hash)
	other[w.choose.IntN(len(other))] ^= 1 << w.choose.IntN(8)
	resp, _, err := send(ctx, w, w.beginRequest(in, other), w.client(0).Begin)
	if err != nil && refused(err) == "" {
		return err
	}
	kept := refused(err) == clientlib.ReasonKeyReused && status.Code(err) == codes.FailedPrecondition
	w.run.verdicts.check(MismatchRefused, in, kept, "another request was told %s", outcome(resp, err))
	return nil
}

// mismatchLive does that to an intent that somebody is at work on, and sees that its holder is not disturbed.
func (w *worker) mismatchLive(ctx context.Context) error {
	in := w.newIntent()
	claim, err := w.claim(ctx, in)
	if claim == nil || err != nil {
		return err
	}
	begun := time.Now()
	if err := w.mismatch(ctx, in); err != nil {
		return err
	}
	w.run.rec.span(SpanMismatch, time.Since(begun))
	if kept, err := w.complete(ctx, in, claim); !kept || err != nil {
		return err
	}
	w.remember(in)
	return nil
}

// duplicate is one of several Begins of one intent at once.
type duplicate struct {
	request *idemv1.BeginRequest
	resp    *idemv1.BeginResponse
	err     error
}

// duplicates begins a new intent several times at once. The last and one more are one call that was sent twice; every other one is a caller of its own.
// It returns the intent, or nil where a promise was broken so that nothing can be said of it.
func (w *worker) duplicates(ctx context.Context) (*intent, error) {
	in := w.newIntent()
	all := make([]duplicate, w.run.cfg.Duplicates)
	for i := range all {
		all[i].request = w.beginRequest(in, in.hash)
		if w.run.cfg.Wait > 0 {
			all[i].request.Wait = durationpb.New(w.run.cfg.Wait)
		}
	}
	last := len(all) - 1 // the one that Go's scheduler likes to run first
	all[last].request = all[w.choose.IntN(last)].request
	var wg sync.WaitGroup
	var first sync.Once
	var completed bool
	var completeErr error
	for i := range all {
		d, client := &all[i], w.client(i)
		wg.Go(func() {
			d.resp, _, d.err = send(ctx, w, d.request, client.Begin)
			if claim := d.resp.GetGranted(); claim != nil {
				// Whoever waits for the answer must not wait for the other callers.
				first.Do(func() { completed, completeErr = w.completeTwice(ctx, in, claim) })
			}
		})
	}
	wg.Wait()
	if completeErr != nil {
		return nil, completeErr
	}
	if ok, err := w.oneWinner(in, all); !ok || err != nil || !completed {
		return nil, err
	}
	return in, w.losersGetAnswer(ctx, in, all)
}

// oneWinner checks that of several Begins at once one was granted, and a resend of it the same claim.
func (w *worker) oneWinner(in *intent, all []duplicate) (bool, error) {
	v := w.run.verdicts
	var won *duplicate
	ok := true
	for i := range all {
		d := &all[i]
		claim := d.resp.GetGranted()
		switch {
		case d.err != nil && refused(d.err) == "":
			return false, d.err
		case d.err != nil:
			v.check(OneGrant, in, false, "one of several Begins at once was told %v", d.err)
			ok = false
		case claim == nil:
		case won == nil:
			won = d
		case d.request == won.request:
			same := bytes.Equal(claim.GetClaimToken(), won.resp.GetGranted().GetClaimToken()) && claim.GetFence() == won.resp.GetGranted().GetFence()
			v.check(SameClaim, in, same, "a Begin that was sent twice was told two claims")
			ok = ok && same
		default:
			v.check(OneGrant, in, false, "two of several Begins at once were granted, as attempts %d and %d",
				won.resp.GetGranted().GetAttempt(), claim.GetAttempt())
			ok = false
		}
	}
	if !ok {
		return false, nil
	}
	v.check(OneGrant, in, won.granted() == 1, "of several Begins at once attempt %d was granted, want 1 (0: none)", won.granted())
	return won.granted() == 1, nil
}

// granted is the attempt that was granted, 0 for none.
func (d *duplicate) granted() int32 {
	if d == nil {
		return 0
	}
	return d.resp.GetGranted().GetAttempt()
}

// losersGetAnswer checks that everybody who was not granted has the answer, or gets it now.
func (w *worker) losersGetAnswer(ctx context.Context, in *intent, all []duplicate) error {
	won := all[slices.IndexFunc(all, func(d duplicate) bool { return d.granted() > 0 })].request
	for i := range all {
		d := &all[i]
		switch {
		case d.resp.GetGranted() != nil:
		case d.resp.GetInProgress() == nil:
			if err := w.mustReplay(in, d.resp, d.err); err != nil {
				return err
			}
		case d.request == won:
			w.run.verdicts.check(SameClaim, in, false, "a Begin that was sent twice was granted, and told IN_PROGRESS")
		default:
			if err := w.replay(ctx, in); err != nil {
				return err
			}
		}
	}
	return nil
}

// completeTwice completes an intent twice at once; false where that was refused.
func (w *worker) completeTwice(ctx context.Context, in *intent, claim *idemv1.Claim) (bool, error) {
	type reply struct {
		resp *idemv1.CompleteResponse
		err  error
	}
	var replies [2]reply
	var wg sync.WaitGroup
	for i := range replies {
		r, client := &replies[i], w.client(i)
		wg.Go(func() { r.resp, _, r.err = send(ctx, w, completeRequest(in, claim), client.Complete) })
	}
	wg.Wait()
	for _, r := range replies {
		if r.err != nil && refused(r.err) == "" {
			return false, r.err
		}
	}
	a, b := replies[0], replies[1]
	kept := a.err == nil && b.err == nil && a.resp.GetTimes().GetSettleTime().AsTime().Equal(b.resp.GetTimes().GetSettleTime().AsTime())
	w.run.verdicts.check(ResendOK, in, kept, "of two equal Completes at once one was told %v, %v, the other %v, %v", a.resp, a.err, b.resp, b.err)
	if kept {
		in.settled = a.resp.GetTimes().GetSettleTime().AsTime()
	}
	return kept, nil
}
