package clientlib

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// granted holds the claim while the work is done, and settles it.
func (r *run) granted(ctx context.Context, claim Claim, sent time.Time, lease time.Duration) (Result, error) {
	h := r.client.hold(ctx, claim, sent, lease)
	// Whatever leaves this function, a panic or runtime.Goexit in the work included, gives the claim up unless it was settled.
	settled := false
	defer func() {
		h.release()
		if !settled {
			r.settle(ctx, h, r.failReport(claim, Unknown, errPanicked))
		}
	}()
	var result Result
	var err error
	if (claim.PreviousAbandoned || claim.RecoverOnly) && !r.options.DryRun {
		var run bool
		if result, run, err = r.afterAbandoned(ctx, h); !run {
			settled = true
			return result, err
		}
	}
	workCtx := h.ctx
	if r.options.DryRun {
		workCtx = ctx // another attempt that takes over changes nothing
	}
	response, workErr := r.work(workCtx, claim)
	settled = true
	h.release()
	return r.finish(ctx, h, response, workErr)
}

// finish reports what the work returned, and decides what the caller gets.
func (r *run) finish(ctx context.Context, h *held, response Response, workErr error) (Result, error) {
	var settled settlement
	if workErr == nil {
		settled = r.settle(ctx, h, r.completeReport(h.claim, response))
	} else {
		settled = r.settle(ctx, h, r.failReport(h.claim, r.options.Classes.ClassOf(workErr), workErr))
	}
	result := Result{Outcome: Executed, Response: response, Attempt: h.claim.Attempt, Recorded: settled == recorded}
	if settled == lost && !r.options.DryRun {
		return r.lost(ctx, h)
	}
	if r.options.DryRun {
		result.WouldBe = Executed
	}
	return result, workErr
}

// lost is what the caller gets when another attempt took over: the answer that counts if there is one, else word to ask again.
func (r *run) lost(ctx context.Context, h *held) (Result, error) {
	r.client.telemetry.claimLost(ctx, r.ref.Operation)
	r.client.config.Logger.WarnContext(ctx, "idem: a claim was lost while the work ran", "operation", r.ref.Operation, "attempt", h.claim.Attempt)
	// Lookup and not Begin: it changes nothing, whatever has become of the entry meanwhile.
	lookupCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.client.config.SettleTimeout)
	defer cancel()
	entry, err := r.client.Lookup(lookupCtx, r.ref)
	if err == nil {
		switch outcome := entry.GetOutcome().(type) {
		case *idemv1.Entry_Answer:
			return replayAnswer(outcome.Answer)
		case *idemv1.Entry_Failure:
			if outcome.Failure.GetDisposition() == idemv1.Disposition_DISPOSITION_FINAL {
				return replayFailure(outcome.Failure)
			}
		}
	}
	e := local(codes.Aborted, ReasonClaimLost,
		"another attempt took over while the work ran, and has not settled it; ask again with the same key")
	e.FromServer, e.RetryAfter = true, time.Second
	return Result{Outcome: Executed, Attempt: h.claim.Attempt}, e
}

// afterAbandoned does what was chosen for an intent of which an earlier attempt was abandoned. run: go on with the work.
func (r *run) afterAbandoned(ctx context.Context, h *held) (result Result, run bool, err error) {
	switch r.options.Abandoned.choice {
	case choiceRerun:
		return Result{}, true, nil
	case choiceRecover:
		return r.recover(ctx, h, r.options.Abandoned.hook)
	default:
		if h.claim.OnCredit { // somebody has looked, and says to run it
			return Result{}, true, nil
		}
		result, err = r.giveUp(ctx, h, nil)
		return result, false, err
	}
}

// recover asks the hook and acts on what it found. run: the effect did not happen, go on with the work.
func (r *run) recover(ctx context.Context, h *held, hook RecoverFunc) (result Result, run bool, err error) {
	finding, hookErr := hook(h.ctx, h.claim)
	if hookErr != nil {
		finding = Finding{}
	}
	if finding.kind == foundHappened && finding.message != nil {
		if finding.response, hookErr = r.encode(finding.message); hookErr != nil {
			finding = Finding{}
		}
	}
	switch finding.kind {
	case foundNotHappened:
		return Result{}, true, nil
	case foundHappened:
		h.release()
		settled := r.settle(ctx, h, r.completeReport(h.claim, finding.response))
		if settled == lost {
			result, err = r.lost(ctx, h)
			return result, false, err
		}
		return Result{Outcome: Replayed, Response: finding.response, Attempt: h.claim.Attempt, Recorded: settled == recorded}, false, nil
	case foundFailed:
		h.release()
		settled := r.settle(ctx, h, r.failReport(h.claim, FinalFailure, finding.err))
		if settled == lost {
			result, err = r.lost(ctx, h)
			return result, false, err
		}
		return Result{Outcome: ReplayedAsFailure, Attempt: h.claim.Attempt, Recorded: settled == recorded}, false, finding.err
	default:
		result, err = r.giveUp(ctx, h, hookErr)
		return result, false, err
	}
}

func (r *run) encode(message proto.Message) (Response, error) {
	if r.options.encode == nil {
		return Response{}, errors.New("clientlib: HappenedWith is for guarded gRPC methods; use Happened in a Do")
	}
	return r.options.encode(message)
}

// giveUp hands the claim back without having run the work.
func (r *run) giveUp(ctx context.Context, h *held, why error) (Result, error) {
	h.release()
	refusal := local(codes.FailedPrecondition, ReasonAbandoned,
		"an earlier attempt was abandoned, and nobody knows whether its effect happened; the work was not run").because(why)
	refusal.Metadata = map[string]string{"help": "find out what came of it, then have an operator settle or release the entry"}
	if r.settle(ctx, h, r.failReport(h.claim, Unknown, local(codes.Aborted, "", "the work was not run: an earlier attempt is in doubt"))) == lost {
		return r.lost(ctx, h)
	}
	return Result{Outcome: Refused, Attempt: h.claim.Attempt}, refusal
}

// recoverHeld claims a held intent for recovery and has the hook decide. settled: the result is the caller's answer; else the
// way is free for a new Begin.
func (r *run) recoverHeld(ctx context.Context) (result Result, settled bool, err error) {
	request := r.beginRequest(idemv1.BeginMode_BEGIN_MODE_RECOVER, 0)
	response, sent, err := r.client.begin(ctx, request)
	if err != nil {
		r.client.letGo(request, err)
		return Result{Outcome: Refused}, true, beginRefusal(ctx, err)
	}
	if response.GetFailed().GetDisposition() == idemv1.Disposition_DISPOSITION_RETRYABLE {
		return Result{}, false, nil // somebody has found out meanwhile that nothing happened
	}
	granted := response.GetGranted()
	if granted == nil {
		result, err = replay(response)
		return result, true, err
	}
	return r.recoverGranted(ctx, r.claim(request, granted), sent, granted.GetLease().AsDuration())
}

func (r *run) recoverGranted(ctx context.Context, claim Claim, sent time.Time, lease time.Duration) (result Result, settled bool, err error) {
	h := r.client.hold(ctx, claim, sent, lease)
	done := false
	defer func() {
		h.release()
		if !done {
			r.settle(ctx, h, r.failReport(claim, Unknown, local(codes.Unknown, "", "the recovery panicked")))
		}
	}()
	result, run, err := r.recover(ctx, h, r.options.Abandoned.hook)
	done = true
	if !run {
		return result, true, err
	}
	h.release()
	nothing := local(codes.Aborted, "", "the recovery found that nothing had happened")
	if r.settle(ctx, h, r.failReport(claim, Retryable, nothing)) == lost {
		result, err = r.lost(ctx, h)
		return result, true, err
	}
	return Result{}, false, nil
}

// Recover settles an abandoned or held intent with what hook finds out, without running the work: a service's own recovery,
// from a job or a tool. Where the hook finds that nothing happened the entry is opened for the next Do, and the outcome is
// Refused without an error. [ErrEntryNotFound]: there is no such intent. An intent that is settled already is replayed, and one that
// somebody else is at is [ErrInProgress].
func (c *Client) Recover(ctx context.Context, ref Ref, hook RecoverFunc) (Result, error) {
	options := Options{Abandoned: Recover(hook), Classes: ServerClasses()}
	if err := options.Validate(); err != nil {
		return Result{Outcome: Refused}, err
	}
	entry, err := c.Lookup(ctx, ref)
	if err != nil {
		return Result{Outcome: Refused}, err
	}
	r := &run{client: c, ref: ref, options: options}
	for _, f := range entry.GetFingerprints() {
		r.fingerprints = append(r.fingerprints, fingerprintOf(f))
	}
	result, settled, err := r.recoverHeld(ctx)
	if !settled && err == nil {
		result.Outcome = Refused
	}
	return result, err
}
