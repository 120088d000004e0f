package ledger

import (
	"context"
	"errors"
	"time"
)

// BeginRequest asks for the right to carry out an intent.
type BeginRequest struct {
	Ref          Ref
	Fingerprints []Fingerprint
	// AttemptID is a fresh UUID for this attempt, repeated on every resend of the same Begin.
	AttemptID [16]byte
	// AttemptIDText is the id as the caller wrote it: an id equal to the key is refused.
	AttemptIDText string
	Lease         time.Duration // 0: the policy's
	// Wait is how long to wait while another attempt is at work; capped by policy.
	Wait   time.Duration
	Holder string
	Mode   Mode
}

// BeginResult answers a Begin that was not refused. Exactly one of the four pointers is set.
type BeginResult struct {
	Granted    *Grant
	Completed  *Answer
	Failed     *Answer
	InProgress *Progress
}

// Grant is a claim.
type Grant struct {
	Token       []byte
	Attempt     int32
	Incarnation Time
	Fence       int64
	// LeaseUntil is by the store's clock; Lease is the same as a length from the moment the grant was written, for callers with a clock of
	// their own, who must count it from before they sent Begin.
	LeaseUntil        Time
	Lease             time.Duration
	Resumed           bool
	PreviousAbandoned bool
	RecoverOnly       bool
	// OnCredit: it was granted on an operator's release.
	OnCredit bool
	// Evidence goes with PreviousAbandoned, where there is any.
	Evidence *Evidence
}

// Answer is what came of a settled entry: Response or Failure, and when the original happened.
type Answer struct {
	Response *Response
	Failure  *Failure
	// Attempt is the attempt whose report settled the entry, 0 if an operator did.
	Attempt   int32
	SettledAt Time
	ExpiresAt Time
}

// Progress says who is at work.
type Progress struct {
	RetryAfter time.Duration
	Holder     string
	Attempt    int32
}

// Begin asks for the right to carry out an intent, and is told by that, by the answer, or by who is at work. Resending the same Begin, with the
// same attempt id, is always safe.
//
// It refuses with the INVALID_… reasons, PERMISSION_DENIED, KEY_REUSED, HASH_INCOMPARABLE, ABANDONED, EXPIRED, CLAIM_LOST, ENTRY_NOT_FOUND
// (mode RECOVER only), QUOTA, DRAINING and STORE_UNAVAILABLE.
func (l *Ledger) Begin(ctx context.Context, caller Caller, r BeginRequest) (BeginResult, error) {
	if refusal := r.validate(); refusal != nil {
		return BeginResult{}, refusal
	}
	if l.draining.Load() {
		return BeginResult{}, draining()
	}
	env, err := l.env(ctx, r.Ref, caller)
	if err != nil {
		return BeginResult{}, err
	}
	scope := l.secret.Scope(r.Ref)
	decision := BeginDecision{
		Scope: scope, Ref: r.Ref, Fingerprints: r.Fingerprints, IDHash: l.secret.AttemptID(scope, r.AttemptID), Lease: r.Lease,
		Holder: r.Holder, Mode: r.Mode,
	}
	waiter := l.waiters.waiter(scope, r.Ref.Tenant, min(r.Wait, env.Rules.MaxWait))
	defer waiter.leave()
	d, err := l.carryOut(ctx, scope, decision, env, func(seen Reading) (*Reading, bool) { return waiter.wait(ctx, seen) })
	if waiter.refusal != nil {
		return BeginResult{}, waiter.refusal
	}
	if err != nil {
		return BeginResult{}, err
	}
	return l.beginResult(decision, d, env)
}

func draining() *Refusal {
	r := refuse(ReasonDraining, "this daemon is shutting down and grants no new claims")
	r.RetryAfter = storeRetryAfter
	return r
}

func (l *Ledger) beginResult(r BeginDecision, d decided, env Env) (BeginResult, error) {
	e := d.before
	switch d.verdict.Outcome {
	case Granted, Resumed:
		g := &Grant{
			Attempt: 1, RecoverOnly: r.Mode == Recover, Incarnation: d.stamps.Incarnation,
		}
		if put := d.verdict.Write.Put; put != nil {
			e = put
		}
		g.Attempt = e.Last.Number
		g.Resumed = d.verdict.Outcome == Resumed && d.replays(e.Last.BeganAt)
		g.Fence = int64(g.Incarnation) + int64(g.Attempt)
		g.LeaseUntil, g.Lease = tellLease(d.stamps, env.Margin)
		g.OnCredit = e.Last.OnCredit
		if e.Doubt {
			g.PreviousAbandoned, g.Evidence = true, e.Evidence
		}
		g.Token = l.secret.Token(r.Scope, Claim{Incarnation: g.Incarnation, Attempt: g.Attempt, IDHash: r.IDHash})
		return BeginResult{Granted: g}, nil
	case Replayed:
		return BeginResult{Completed: e.answer()}, nil
	case FailedAs:
		return BeginResult{Failed: e.answer()}, nil
	case InProgress:
		return BeginResult{InProgress: &Progress{RetryAfter: d.verdict.RetryAfter, Holder: e.Last.Holder, Attempt: e.Last.Number}}, nil
	default:
		return BeginResult{}, asError(d.verdict.Refusal)
	}
}

func (e *Entry) answer() *Answer {
	return &Answer{Response: e.Response, Failure: e.Failure, Attempt: e.SettledBy, SettledAt: e.SettledAt, ExpiresAt: e.DueAt}
}

// asError turns a refusal into an error without making a nil refusal a non-nil error.
func asError(r *Refusal) error {
	if r == nil {
		return &Refusal{Reason: ReasonInternal, Message: "a verdict without outcome", Cause: errors.New("ledger: verdict without outcome")}
	}
	return r
}
