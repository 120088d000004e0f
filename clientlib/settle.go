package clientlib

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// report is what the ledger is to be told at the end of an attempt: exactly one of the two.
type report struct {
	complete *idemv1.CompleteRequest
	fail     *idemv1.FailRequest
}

func (r *run) completeReport(claim Claim, response Response) report {
	return report{complete: fitComplete(
		&idemv1.CompleteRequest{Ref: claim.Ref.proto(), ClaimToken: claim.token, Response: response.proto()},
		r.client.config.MaxMessageBytes)}
}

func (r *run) failReport(claim Claim, class Class, err error) report {
	return report{fail: fitFail(
		&idemv1.FailRequest{
			Ref: claim.Ref.proto(), ClaimToken: claim.token, Status: reported(err), Disposition: class.disposition(),
		},
		func(f *idemv1.FailRequest) int { return proto.Size(f) }, r.client.config.MaxMessageBytes)}
}

func (r report) copied() report {
	return report{complete: proto.CloneOf(r.complete), fail: proto.CloneOf(r.fail)}
}

func (r report) size() int {
	if r.complete != nil {
		return proto.Size(r.complete)
	}
	return proto.Size(r.fail)
}

// smaller is the report with less in it, or nothing where there is nothing more to leave out.
func (r report) smaller() (report, bool) {
	if r.complete != nil {
		response := withoutBody(r.complete.GetResponse())
		if r.complete.GetResponse().GetBodyOmitted() {
			if response = bareResponse(response); proto.Equal(response, r.complete.GetResponse()) {
				return report{}, false
			}
		}
		return report{complete: &idemv1.CompleteRequest{
			Ref: r.complete.GetRef(), ClaimToken: r.complete.GetClaimToken(), Response: response,
		}}, true
	}
	if r.fail.GetDetailsOmitted() {
		return report{}, false
	}
	return report{fail: fitFail(r.fail, func(f *idemv1.FailRequest) int {
		if f.GetDetailsOmitted() {
			return 0
		}
		return 1
	}, 0)}, true
}

// settlement is how far a report got.
type settlement int

const (
	// recorded: the ledger has it.
	recorded settlement = iota
	// later: it is being recorded in the background.
	later
	// lost: another attempt, or an operator, has the entry. What was reported is kept there as evidence.
	lost
	// dropped: the ledger will not have it, or cannot be told.
	dropped
)

// settle reports, on a context that the caller's cancellation does not cut: the effect happened, whoever still listens. Where
// the ledger is away it goes on in the background.
func (r *run) settle(ctx context.Context, h *held, report report) settlement {
	c := r.client
	detached := context.WithoutCancel(ctx)
	p := pace{try: c.config.TryTimeout, ceiling: min(resendMax, h.lease()/3), insists: true}
	sync, cancel := context.WithTimeout(detached, c.config.SettleTimeout)
	defer cancel()
	err := c.tell(sync, p, report)
	if s, done := r.settled(detached, err); done {
		return s
	}
	if !r.settleLater(detached, h, p, report) {
		c.telemetry.notRecorded(detached, r.ref.Operation)
		c.config.Logger.ErrorContext(detached, "idem: an outcome could not be recorded: too many wait in the background, or the client is closed",
			"operation", r.ref.Operation, "attempt", h.claim.Attempt, "error", err)
		return dropped
	}
	return later
}

// maxKeptBytes bounds what outcomes in the background hold. Past it they wait without their bodies: that it was done is what
// matters.
const maxKeptBytes = 64 << 20

// settleLater goes on reporting in the background. False: there is no room.
func (r *run) settleLater(detached context.Context, h *held, p pace, report report) bool {
	c := r.client
	report = report.copied() // the caller gets its answer back, and may change it
	c.mu.Lock()
	size := report.size()
	if c.kept+size > maxKeptBytes {
		if fewer, ok := report.smaller(); ok {
			report, size = fewer, fewer.size()
		}
	}
	c.kept += size
	c.mu.Unlock()
	forget := func() {
		c.mu.Lock()
		c.kept -= size
		c.mu.Unlock()
	}
	started := c.goBackground(true, func(life context.Context) {
		defer forget()
		c.telemetry.settling(detached, 1)
		defer c.telemetry.settling(detached, -1)
		limited, cancel := context.WithTimeout(life, c.config.SettleLimit)
		defer cancel()
		err := c.tell(limited, p, report)
		if s, done := r.settled(detached, err); done && s != lost {
			return
		}
		c.telemetry.notRecorded(detached, r.ref.Operation)
		c.config.Logger.ErrorContext(detached, "idem: an outcome could not be recorded",
			"operation", r.ref.Operation, "attempt", h.claim.Attempt, "error", err)
	})
	if !started {
		forget()
	}
	return started
}

// settled says what the end of a report means. done: there is nothing more to try.
func (r *run) settled(ctx context.Context, err error) (s settlement, done bool) {
	switch {
	case err == nil:
		return recorded, true
	case errors.Is(err, ErrClaimLost), errors.Is(err, ErrAlreadySettled):
		return lost, true
	case ambiguous(err), unsent(err), unwanted(err), turnedAway(err), errors.Is(err, ErrQuota):
		return later, false
	default:
		r.client.telemetry.notRecorded(ctx, r.ref.Operation)
		r.client.config.Logger.ErrorContext(ctx, "idem: the ledger refused an outcome", "operation", r.ref.Operation, "error", err)
		return dropped, true
	}
}

// tell sends a report until it is answered. Where it is too large, or not to the server's liking, it is sent with less in it; where it is as small as can
// be and still turned away before it got to the ledger, it was not for its size, and passes. What may be a limit of rate is waited out for a while first: what
// is left out is lost to every retry.
func (c *Client) tell(ctx context.Context, p pace, r report) error {
	for try := 0; ; try++ {
		err := c.tellOnce(ctx, p, r)
		var e *Error
		if !errors.As(err, &e) || !turnedAway(err) && e.Code != codes.InvalidArgument {
			return err
		}
		fewer, ok := r.smaller()
		patient := p.insists && turnedAway(err) && !saysTooLarge(e) && try < oddTries
		switch {
		case ok && !patient:
			r = fewer
		case !p.insists || !turnedAway(err) || !pause(ctx, resendDelay(try, p.ceiling, 0)):
			return err
		}
	}
}

// saysTooLarge says whether a call was turned away for its size for certain, by the words of gRPC's own limit.
func saysTooLarge(e *Error) bool { return strings.Contains(e.Message, "larger than max") }

func (c *Client) tellOnce(ctx context.Context, p pace, r report) error {
	if r.complete != nil {
		_, err := resend(ctx, c, "Complete", p, func(ctx context.Context) (*idemv1.CompleteResponse, error) {
			return c.ledger.Complete(ctx, r.complete, c.callOptions()...)
		})
		return err
	}
	_, err := resend(ctx, c, "Fail", p, func(ctx context.Context) (*idemv1.FailResponse, error) {
		return c.ledger.Fail(ctx, r.fail, c.callOptions()...)
	})
	return err
}

// letGoTimeout bounds the search for a claim that may have been granted to nobody: by then the lease is the better remedy.
const letGoTimeout = 30 * time.Second

// letGo hands back a claim that may have been granted without our hearing of it, so that the intent is not in doubt, or held,
// over work that was never begun. It asks once more as the same attempt, which the ledger answers with the same grant.
func (c *Client) letGo(request *idemv1.BeginRequest, err error) {
	if !ambiguous(err) {
		return
	}
	class := Retryable
	if request.GetMode() == idemv1.BeginMode_BEGIN_MODE_RECOVER {
		class = Unknown // such a claim speaks for all attempts, and we have not looked
	}
	c.afterwards(request, false, letGoTimeout, func(claim Claim) report {
		r := &run{client: c}
		return r.failReport(claim, class, local(codes.Canceled, "", "the caller went away before the work was begun"))
	})
}

// afterwards looks in the background for the claim of a Begin that was not answered, and reports on it.
func (c *Client) afterwards(request *idemv1.BeginRequest, outcome bool, limit time.Duration, say func(Claim) report) {
	again := proto.CloneOf(request)
	again.Wait = nil
	c.goBackground(outcome, func(life context.Context) {
		ctx, cancel := context.WithTimeout(life, limit)
		defer cancel()
		p := pace{try: c.config.TryTimeout, ceiling: resendMax}
		sent, err := resend(ctx, c, "Begin", p, func(ctx context.Context) (*idemv1.BeginResponse, error) {
			return c.ledger.Begin(ctx, again, c.callOptions()...)
		})
		granted := sent.response.GetGranted()
		if err != nil || granted == nil {
			return
		}
		ref := again.GetRef()
		claim := Claim{
			Ref:     Ref{Tenant: ref.GetTenant(), Operation: ref.GetOperation(), Key: ref.GetKey()},
			Attempt: granted.GetAttempt(), token: granted.GetClaimToken(),
		}
		if err := c.tell(ctx, p, say(claim)); err != nil {
			c.config.Logger.WarnContext(ctx, "idem: a claim that nobody waits for could not be handed back",
				"operation", ref.GetOperation(), "error", err)
		}
	})
}

// failOpen runs the work although the ledger is out of reach, and tells the ledger afterwards, if it comes back in time, so
// that later retries find the answer.
func (r *run) failOpen(ctx context.Context, request *idemv1.BeginRequest) (Result, error) {
	r.client.config.Logger.WarnContext(ctx, "idem: the ledger is out of reach, and the work is run without a guard", "operation", r.ref.Operation)
	result, err := r.unguarded(ctx)
	r.client.afterwards(request, true, r.client.config.SettleLimit, func(claim Claim) report {
		if err != nil {
			return r.failReport(claim, r.options.Classes.ClassOf(err), err)
		}
		return r.completeReport(claim, result.Response)
	})
	return result, err
}
