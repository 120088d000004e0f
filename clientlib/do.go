package clientlib

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Work is what is to be done once. Its context ends with the caller's, and also when the claim is lost: context.Cause then
// is an [*Error] that matches [ErrClaimLost], or [ErrAlreadySettled], [ErrExpired] or [ErrEntryNotFound] where the entry was
// closed meanwhile. Work that is cancelled so should stop: somebody else may be doing it. An error is judged by
// Options.Classes, unless it was made with [Final] or [NothingHappened].
type Work func(ctx context.Context, claim Claim) (Response, error)

// Claim is the right to carry out an intent now.
type Claim struct {
	// Ref is the intent. Ref.Key is what goes on to systems downstream; see also [DeriveKey].
	Ref Ref
	// Attempt is which try this is, counted from 1. 0: there is no claim, because the work runs without a guard.
	Attempt int32
	// AttemptID is the UUID of this try, which the ledger knows it by. A secret between this process and the ledger.
	AttemptID string
	// Fence only rises for an intent. Systems downstream that compare it can refuse an earlier attempt that woke up late.
	Fence int64
	// Incarnation is which life of the intent's entry this is: Fence = Incarnation + Attempt.
	Incarnation int64
	// PreviousAbandoned says that nobody knows whether an earlier attempt had its effect.
	PreviousAbandoned bool
	// RecoverOnly says that the claim is for finding out, and not for doing the work.
	RecoverOnly bool
	// OnCredit says that an operator has released the intent to be run once more, although nobody knows.
	OnCredit bool
	// Evidence is a report of an earlier attempt that came too late to settle the intent. Nil: there was none.
	Evidence *idemv1.Evidence
	// Fingerprints say what was asked.
	Fingerprints []fingerprint.Fingerprint
	// Request is what was asked, for hooks: the request message where a gRPC method is guarded, else Options.Request.
	Request any
	// Method is the guarded gRPC method, as "/shop.v1.PaymentService/Charge". Empty in a Do.
	Method string

	token []byte
}

// Options say how one Do goes. Everything but Abandoned can be left out.
type Options struct {
	// Abandoned says what becomes of an intent of which an earlier attempt was abandoned. There is no default.
	Abandoned Abandoned
	// Lease is for how long the claim is to be exclusive without a heartbeat; heartbeats come at a third of it. From 1 s to
	// 24 h. Default: the policy's, 60 s by default.
	Lease time.Duration
	// Wait is how long to wait while somebody else is at it, before the caller is told [ErrInProgress]. The policy's max_wait
	// bounds each Begin, and the caller's deadline all of it. Default: not at all.
	Wait time.Duration
	// Classes says what errors of the work mean. Default: ServerClasses().
	Classes Classes
	// FailOpen runs the work without a guard while the ledger is out of reach. Only for work where a duplicate is better than
	// a refusal. Default: the caller is told [ErrLedgerUnavailable] or [ErrStoreUnavailable], and the work is not run.
	FailOpen bool
	// OtherFingerprint is a second fingerprint of the same request by another algorithm, while a service moves from one to the
	// next. Default: none.
	OtherFingerprint fingerprint.Fingerprint
	// Request goes to hooks and work as Claim.Request.
	Request any
	// DryRun asks the ledger and records outcomes, but always runs the work: Result.WouldBe says what would have come of it.
	// A ledger that does not answer delays the work by at most Config.SettleTimeout, or half of the caller's time.
	DryRun bool
	// Off runs the work as if there were no guard. The ledger is not asked.
	Off bool

	method string
	// encode turns the message of a HappenedWith into a response. Nil where there is no message type.
	encode func(proto.Message) (Response, error)
}

// Validate says what is wrong with the options, or nil.
func (o Options) Validate() error {
	if o.Off {
		return nil
	}
	if err := o.Abandoned.validate(); err != nil {
		return err
	}
	if err := o.Classes.validate(); err != nil {
		return err
	}
	return validateTimes(o.Lease, o.Wait)
}

func validateTimes(lease, wait time.Duration) error {
	switch {
	case lease != 0 && (lease < time.Second || lease > 24*time.Hour):
		return invalidConfig("a lease must be from 1 s to 24 h")
	case wait < 0 || wait > 24*time.Hour:
		return invalidConfig("a wait must be from 0 to 24 h")
	}
	return nil
}

// Outcome is what became of a guarded call. The words are those of the trailer idem-outcome.
type Outcome string

// The outcomes.
const (
	// Executed: the work was run.
	Executed Outcome = "executed"
	// Replayed: it had been done, and this is the answer of then.
	Replayed Outcome = "replayed"
	// ReplayedAsFailure: it had failed for good, and this is the failure of then.
	ReplayedAsFailure Outcome = "replayed-failure"
	// InProgress: somebody else is at it. The work was not run.
	InProgress Outcome = "in-progress"
	// Bypassed: the work was run without a guard.
	Bypassed Outcome = "bypassed"
	// Refused: the work was not run, and the error says why.
	Refused Outcome = "refused"
)

// Result is what came of a Do.
type Result struct {
	// Outcome is set with every error too.
	Outcome Outcome
	// Response is the answer, of now or of then.
	Response Response
	// Attempt is the one that the answer is from, counted from 1. 0: an operator gave it, or there was no guard.
	Attempt int32
	// OriginalTime is when a replayed answer or failure was recorded, by the ledger's clock. Zero where it is not a replay,
	// and where a recovery hook found the answer.
	OriginalTime time.Time
	// Recorded says that the ledger has the outcome. False after an execution or a recovery: it is being recorded in the
	// background, or cannot be.
	Recorded bool
	// WouldBe is, in a dry run, what would have come of the call.
	WouldBe Outcome
}

// ReplayedFailure is the error of work that had failed for good. Its gRPC status is that of the original, details included.
type ReplayedFailure struct {
	// Status is the failure as it was reported.
	Status *spb.Status
	// DetailsOmitted says that the details were too long to be kept.
	DetailsOmitted bool
	// Attempt is the one that failed, counted from 1. 0: an operator gave this failure.
	Attempt int32
	// OriginalTime is when it failed, by the ledger's clock.
	OriginalTime time.Time
}

// Error returns the message of the original.
func (f *ReplayedFailure) Error() string { return f.GRPCStatus().String() }

// GRPCStatus returns the original's status.
func (f *ReplayedFailure) GRPCStatus() *status.Status { return status.FromProto(f.Status) }

// Do runs work for ref unless it was done before, and keeps what came of it, so that it may be called any number of times,
// anywhere, at the same time. request is the fingerprint of what is asked; the same key with another one is refused
// [ErrKeyReused].
//
// The error of work comes back as it is. Where the work had failed for good before, the error is a [*ReplayedFailure]. All
// others are [*Error] values: the work was not run, except with [ErrClaimLost], where another attempt took over while it ran.
//
// A panic in work gives the claim up and goes on.
func (c *Client) Do(
	ctx context.Context, ref Ref, request fingerprint.Fingerprint, work Work, options Options,
) (Result, error) {
	if err := options.Validate(); err != nil {
		return Result{Outcome: Refused}, err
	}
	if options.Classes == nil {
		options.Classes = ServerClasses()
	}
	r := &run{client: c, ref: ref, work: work, options: options, fingerprints: []fingerprint.Fingerprint{request}}
	if options.OtherFingerprint.Algorithm != "" {
		r.fingerprints = append(r.fingerprints, options.OtherFingerprint)
	}
	ctx, done := c.telemetry.call(ctx, ref.Operation)
	result, err := Result{Outcome: Executed}, errPanicked // unless the work comes back
	defer func() { done(result, err) }()
	if options.Off {
		result, err = r.unguarded(ctx)
	} else {
		result, err = r.guarded(ctx)
	}
	return result, err
}

// errPanicked is what traces say of work that did not come back.
var errPanicked = errors.New("the work panicked")

// run is one Do.
type run struct {
	client       *Client
	ref          Ref
	fingerprints []fingerprint.Fingerprint
	work         Work
	options      Options
}

func (r *run) unguarded(ctx context.Context) (Result, error) {
	response, err := r.work(ctx, Claim{Ref: r.ref, Fingerprints: r.fingerprints, Request: r.options.Request, Method: r.options.method})
	return Result{Outcome: Bypassed, Response: response}, err
}

// beginRequest is a fresh attempt.
func (r *run) beginRequest(mode idemv1.BeginMode, wait time.Duration) *idemv1.BeginRequest {
	request := &idemv1.BeginRequest{
		Ref: r.ref.proto(), AttemptId: uuid.NewString(), Lease: durationProto(r.options.Lease), Wait: durationProto(wait),
		Holder: r.client.config.Holder, Mode: mode,
	}
	for _, f := range r.fingerprints {
		request.Fingerprints = append(request.Fingerprints, &idemv1.Fingerprint{Algorithm: f.Algorithm, Hash: f.Hash})
	}
	return request
}

// guarded asks the ledger until it says what to do, and does it.
func (r *run) guarded(ctx context.Context) (Result, error) {
	wait := r.options.Wait
	if r.options.DryRun {
		wait = 0
	}
	end := time.Now().Add(wait)
	for recovered := false; ; {
		request := r.beginRequest(idemv1.BeginMode_BEGIN_MODE_RUN, max(time.Until(end), 0))
		response, sent, err := r.begin(ctx, request)
		if err != nil {
			if errors.Is(err, ErrAbandoned) && r.options.Abandoned.choice == choiceRecover && !recovered && !r.options.DryRun {
				// Held for whoever can find out: the hook can.
				recovered = true
				result, settled, err := r.recoverHeld(ctx)
				if settled || err != nil {
					return result, err
				}
				continue
			}
			return r.notAsked(ctx, request, err)
		}
		if granted := response.GetGranted(); granted != nil {
			return r.granted(ctx, r.claim(request, granted), sent, granted.GetLease().AsDuration())
		}
		if busy := response.GetInProgress(); busy != nil {
			after := max(busy.GetRetryAfter().AsDuration(), resendFirst)
			if time.Until(end) > after && pause(ctx, after) {
				continue
			}
		}
		result, err := replay(response)
		if r.options.DryRun {
			return r.dryRun(ctx, result)
		}
		return result, err
	}
}

// begin asks the ledger. Where the work is to be run without an answer too, it leaves the work half of the time that there is,
// and a dry run is not held up for longer than its settling may.
func (r *run) begin(ctx context.Context, request *idemv1.BeginRequest) (*idemv1.BeginResponse, time.Time, error) {
	if r.client.isClosed() {
		e := local(codes.Unavailable, ReasonLedgerUnavailable, "the client is closed")
		e.unsent = true
		return nil, time.Time{}, e
	}
	patience := r.client.config.LedgerTimeout + request.GetWait().AsDuration()
	if r.options.DryRun {
		patience = min(patience, r.client.config.SettleTimeout)
	}
	if deadline, ok := ctx.Deadline(); ok && (r.options.FailOpen || r.options.DryRun) {
		patience = min(patience, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return r.client.begin(ctx, request)
}

// claim is what the work is told of a grant.
func (r *run) claim(request *idemv1.BeginRequest, granted *idemv1.Claim) Claim {
	return Claim{
		Ref: r.ref, Attempt: granted.GetAttempt(), AttemptID: request.GetAttemptId(), Fence: granted.GetFence(),
		Incarnation: granted.GetIncarnation(), PreviousAbandoned: granted.GetPreviousAbandoned(),
		RecoverOnly: granted.GetRecoverOnly(), OnCredit: granted.GetOnCredit(), Evidence: granted.GetEvidence(), Fingerprints: r.fingerprints,
		Request: r.options.Request, Method: r.options.method, token: granted.GetClaimToken(),
	}
}

// dryRun runs the work although the ledger would not have had it run.
func (r *run) dryRun(ctx context.Context, would Result) (Result, error) {
	result, err := r.unguarded(ctx)
	result.WouldBe = would.Outcome
	return result, err
}

// notAsked is what comes of a Begin that was refused or not answered.
func (r *run) notAsked(ctx context.Context, request *idemv1.BeginRequest, err error) (Result, error) {
	refusal := beginRefusal(ctx, err)
	away := refusal.Code == codes.Unavailable
	switch {
	case r.options.DryRun:
		r.client.letGo(request, err)
		return r.dryRun(ctx, Result{Outcome: Refused})
	case away && r.options.FailOpen:
		return r.failOpen(ctx, request)
	}
	if errors.Is(refusal, ErrLedgerUnavailable) {
		r.client.config.Logger.WarnContext(ctx, "idem: the ledger could not be asked", "operation", r.ref.Operation, "error", err)
	}
	r.client.letGo(request, err)
	return Result{Outcome: Refused}, refusal
}

// beginRefusal turns the error of a Begin into what the caller of the work should hear.
func beginRefusal(ctx context.Context, err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		e = fromStatus(status.Convert(err), err)
	}
	if ctx.Err() != nil {
		return contextError(ctx, "the work was not run: the time was up before the ledger answered")
	}
	if e.FromServer && e.Code != codes.Unauthenticated {
		return e
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown,
		// The ledger, or what stands before it, does not want us. That is no word about our caller's own credentials.
		codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.ResourceExhausted:
		away := local(codes.Unavailable, ReasonLedgerUnavailable, "the ledger could not be asked, and the work was not run").because(err)
		away.RetryAfter = time.Second
		return away
	default:
		return e
	}
}

// replay turns an outcome that is not a grant into what the caller gets.
func replay(response *idemv1.BeginResponse) (Result, error) {
	switch outcome := response.GetOutcome().(type) {
	case *idemv1.BeginResponse_Completed:
		return replayAnswer(outcome.Completed)
	case *idemv1.BeginResponse_Failed:
		return replayFailure(outcome.Failed)
	case *idemv1.BeginResponse_InProgress:
		busy := local(codes.Aborted, ReasonInProgress, "somebody else is doing this; ask again with the same key")
		busy.FromServer = true
		busy.RetryAfter = max(outcome.InProgress.GetRetryAfter().AsDuration(), resendFirst)
		return Result{Outcome: InProgress, Attempt: outcome.InProgress.GetAttempt()}, busy
	default:
		return Result{Outcome: Refused}, local(codes.Unavailable, ReasonLedgerUnavailable,
			"the ledger gave an outcome that this version does not know; the work was not run")
	}
}

func replayAnswer(answer *idemv1.Answer) (Result, error) {
	result := Result{
		Outcome: Replayed, Response: responseOf(answer.GetResponse()), Attempt: answer.GetAttempt(),
		OriginalTime: answer.GetOriginalTime().AsTime(), Recorded: true,
	}
	if result.Response.BodyOmitted {
		return result, answerNotKept(result.Response, result.OriginalTime)
	}
	return result, nil
}

func replayFailure(failure *idemv1.Failure) (Result, error) {
	f := &ReplayedFailure{
		Status: failure.GetStatus(), DetailsOmitted: failure.GetDetailsOmitted(), Attempt: failure.GetAttempt(),
		OriginalTime: failure.GetOriginalTime().AsTime(),
	}
	return Result{Outcome: ReplayedAsFailure, Attempt: f.Attempt, OriginalTime: f.OriginalTime, Recorded: true}, f
}
