package ledger

import (
	"context"
	"time"
)

// CompleteRequest reports success.
type CompleteRequest struct {
	Ref      Ref
	Token    []byte
	Response *Response
}

// FailRequest reports a failure.
type FailRequest struct {
	Ref     Ref
	Token   []byte
	Failure *Failure
}

// ReportResult answers a report that was not refused.
type ReportResult struct {
	// Resent: the same report was recorded before, and nothing changed.
	Resent  bool
	Attempt int32
	// Now is the store's clock when the report was written, or found to be there.
	Now Time
	// CreatedAt, SettledAt, ExpiresAt (retention) and ForgetAt (tombstone) are by the store's clock. While the entry is pending, since the claim was
	// given up, only CreatedAt is set.
	CreatedAt Time
	SettledAt Time
	ExpiresAt Time
	ForgetAt  Time
}

// reportTimeout bounds a report once its caller is gone: it is carried out all the same, since what it says is true.
const reportTimeout = 10 * time.Second

// Complete records success and its answer. It is never refused for size: what is over the limits is left out and said so. Resending it is
// safe.
//
// It refuses with the INVALID_… reasons, PERMISSION_DENIED, ENTRY_NOT_FOUND, CLAIM_LOST (the report is kept as evidence), ALREADY_SETTLED, EXPIRED and
// STORE_UNAVAILABLE.
func (l *Ledger) Complete(ctx context.Context, caller Caller, r CompleteRequest) (ReportResult, error) {
	if r.Response == nil {
		return ReportResult{}, invalid(ReasonInvalidReport, "response", "must be set; an empty response is one with an empty body")
	}
	return l.report(ctx, caller, r.Ref, r.Token, r.Response, nil)
}

// Fail records a failure, or that the holder does not know (disposition Unknown). It refuses as Complete does.
func (l *Ledger) Fail(ctx context.Context, caller Caller, r FailRequest) (ReportResult, error) {
	switch {
	case r.Failure == nil:
		return ReportResult{}, invalid(ReasonInvalidReport, "status", "must be set")
	case r.Failure.Disposition < Final || r.Failure.Disposition > Unknown:
		return ReportResult{}, invalid(ReasonInvalidReport, "disposition", "must be FINAL, RETRYABLE or UNKNOWN")
	case r.Failure.Code == 0:
		return ReportResult{}, invalid(ReasonInvalidReport, "status.code", "must not be OK: report success with Complete")
	}
	return l.report(ctx, caller, r.Ref, r.Token, nil, r.Failure)
}

func (l *Ledger) report(ctx context.Context, caller Caller, ref Ref, token []byte, response *Response, failure *Failure) (ReportResult, error) {
	if refusal := ref.Validate(); refusal != nil {
		return ReportResult{}, refusal
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	env, err := l.holdersEnv(ctx, ref, caller)
	if err != nil {
		return ReportResult{}, err
	}
	decision := ReportDecision{Scope: l.secret.Scope(ref), Report: ReportDigest(response, failure)}
	decision.Claim, decision.Issued = l.secret.Claim(decision.Scope, token)
	if response != nil {
		decision.Response = env.Rules.TrimResponse(response)
	} else {
		decision.Failure = env.Rules.TrimFailure(failure)
	}
	d, err := l.carryOut(ctx, decision.Scope, decision, env, nil)
	if err != nil {
		return ReportResult{}, err
	}
	return reportResult(decision, d)
}

func reportResult(r ReportDecision, d decided) (ReportResult, error) {
	switch d.verdict.Outcome {
	case Done:
		return resultOf(r.Claim.Attempt, d.stamps), nil
	case Unchanged:
		out := resultOf(r.Claim.Attempt, StampsOf(d.before, d.now))
		out.Resent = d.replays(d.before.reportedAt(r.Claim.Attempt, r.Report))
		return out, nil
	default:
		return ReportResult{}, asError(d.verdict.Refusal)
	}
}

// reportedAt is when that report of an attempt was recorded, or an operator settled the entry in its words.
func (e *Entry) reportedAt(attempt int32, report Digest) Time {
	if a, _ := e.AttemptNumbered(attempt); a != nil && a.Report == report {
		return a.EndedAt
	}
	return e.SettledAt
}

func resultOf(attempt int32, s Stamps) ReportResult {
	out := ReportResult{Attempt: attempt, Now: s.Now, CreatedAt: s.Incarnation}
	if s.SettledAt != 0 {
		out.SettledAt, out.ExpiresAt, out.ForgetAt = s.SettledAt, s.SettledAt.Add(s.Retention), s.SettledAt.Add(s.Retention).Add(s.Tombstone)
	}
	return out
}

// ExtendRequest renews a claim.
type ExtendRequest struct {
	Ref   Ref
	Token []byte
	Lease time.Duration // 0: as long as the lease that stands was given
}

// ExtendResult is the lease as it is now, told as in [Grant].
type ExtendResult struct {
	LeaseUntil Time
	Lease      time.Duration
}

// Extend renews a claim from now. A lease that already lasts longer stays, and the result says so. It refuses with the INVALID_… reasons, PERMISSION_DENIED, ENTRY_NOT_FOUND, CLAIM_LOST, ALREADY_SETTLED, EXPIRED and
// STORE_UNAVAILABLE.
func (l *Ledger) Extend(ctx context.Context, caller Caller, r ExtendRequest) (ExtendResult, error) {
	if refusal := r.Ref.Validate(); refusal != nil {
		return ExtendResult{}, refusal
	}
	if refusal := validateLease(r.Lease); refusal != nil {
		return ExtendResult{}, refusal
	}
	env, err := l.holdersEnv(ctx, r.Ref, caller)
	if err != nil {
		return ExtendResult{}, err
	}
	decision := ExtendDecision{Scope: l.secret.Scope(r.Ref), Lease: r.Lease}
	decision.Claim, decision.Issued = l.secret.Claim(decision.Scope, r.Token)
	d, err := l.carryOut(ctx, decision.Scope, decision, env, nil)
	if err != nil {
		return ExtendResult{}, err
	}
	if d.verdict.Outcome != Renewed {
		return ExtendResult{}, asError(d.verdict.Refusal)
	}
	until, length := tellLease(d.stamps, env.Margin)
	return ExtendResult{LeaseUntil: until, Lease: length}, nil
}
