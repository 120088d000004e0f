package ledger

import "time"

// standing is what a token proves about an entry.
type standing int

const (
	stranger standing = iota // never issued for this incarnation
	earlier                  // an attempt that lost or gave up its claim
	holder                   // the current attempt
)

func (e *Entry) standingOf(issued bool, c Claim) (standing, *Attempt) {
	if !issued || c.Incarnation != e.Incarnation {
		return stranger, nil
	}
	a, current := e.AttemptNumbered(c.Attempt)
	switch {
	case a == nil || a.IDHash != c.IDHash:
		return stranger, nil
	case current:
		return holder, a
	default:
		return earlier, a
	}
}

func decideReport(e *Entry, condition Condition, r ReportDecision, env Env) Verdict {
	if condition == Absent {
		return refused(notFound())
	}
	standing, attempt := e.standingOf(r.Issued, r.Claim)
	if standing == stranger {
		return refused(claimLost("the claim token was never issued for this entry"))
	}
	if r.Report == attempt.Report || e.SettledBy == 0 && e.SettledAt != 0 && r.Report == e.Settlement {
		return Verdict{Outcome: Unchanged}
	}
	lost := Verdict{Refusal: claimLost("the claim was lost before this report; the report is kept as evidence")}
	switch condition {
	case Lapsed, Expired:
		return refused(expired())
	case ConditionCompleted:
		if standing == holder {
			return refused(alreadySettled())
		}
		return refused(claimLost("the claim was lost, and the entry is completed"))
	case ConditionFailedFinal:
		if standing == holder {
			return refused(alreadySettled())
		}
		lost.Write = keepEvidence(e, r, env)
		return lost
	case ConditionFailedRetryable:
		lost.Write = keepEvidence(e, r, env)
		return lost
	default: // pending
	}
	if standing == earlier {
		lost.Write = keepEvidence(e, r, env)
		return lost
	}
	return settleByHolder(e, r, env)
}

// settleByHolder decides the current attempt's report on a pending entry, whether its lease is over or not: the truth is welcome.
func settleByHolder(e *Entry, r ReportDecision, env Env) Verdict {
	if r.Failure == nil || r.Failure.Disposition != Retryable || !e.Doubt {
		return Verdict{Outcome: Done, Write: settleWrite(r, env)}
	}
	// RETRYABLE while earlier attempts are in doubt. One that ran can only speak for itself. One that only recovered looked for what all of
	// them did, so it clears the doubt; but not over a success that was reported after it began looking.
	if !e.Last.RecoverOnly || e.Evidence.Success() && e.Evidence.At > e.Last.BeganAt {
		w := settleWrite(r, env)
		w.Settle.State, w.Settle.Ended, w.Settle.Failure, w.Guard.Undoubted = Pending, EndedGaveUp, nil, false
		return Verdict{Outcome: Done, Write: w}
	}
	c := e.Settled(*settleOf(r, env), env.Now)
	c.Doubt = false
	c.SettledAt, c.Last.EndedAt, c.DueAt = In(0), In(0), In(c.Terms.Retention)
	return Verdict{Outcome: Done, Write: &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}}
}

// settleWrite is the write for a report by its current holder, known by its token alone: it needs no reading, so it also is the
// one-round-trip path. A RETRYABLE report goes through only while nothing is in doubt.
func settleWrite(r ReportDecision, env Env) *Write {
	return &Write{
		Scope: r.Scope,
		Guard: Guard{
			Kind: GuardClaim, Incarnation: r.Claim.Incarnation, Attempt: r.Claim.Attempt, Principal: env.Bound,
			Undoubted: r.Failure != nil && r.Failure.Disposition == Retryable,
		},
		Settle: settleOf(r, env),
	}
}

func settleOf(r ReportDecision, env Env) *Settle {
	s := &Settle{Report: r.Report, Retention: env.Rules.Retention, Tombstone: env.Rules.Tombstone}
	switch {
	case r.Response != nil:
		s.State, s.Ended, s.Response = Completed, EndedCompleted, r.Response
	case r.Failure.Disposition == Final:
		s.State, s.Ended, s.Failure = FailedFinal, EndedFinal, r.Failure
	case r.Failure.Disposition == Retryable:
		s.State, s.Ended, s.Failure = FailedRetryable, EndedRetryable, r.Failure
	default:
		s.State, s.Ended = Pending, EndedGaveUp
	}
	return s
}

// keepEvidence is the write that keeps a late report: the latest success, else the latest report. Nil where it is already kept or a
// success is known.
func keepEvidence(e *Entry, r ReportDecision, env Env) *Write {
	if have := e.Evidence; have != nil {
		if have.Attempt == r.Claim.Attempt && have.Report == r.Report || have.Success() && r.Response == nil {
			return nil
		}
	}
	c := e.Clone()
	// Later than the grant it came after, also by a clock that is behind the one that stamped the grant or was set back: a recovery that
	// began before it must not be taken for one that knew of it.
	at := max(env.Now, e.Last.BeganAt+1)
	c.Evidence = &Evidence{Attempt: r.Claim.Attempt, At: at, Report: r.Report, Response: r.Response.forEvidence(), Failure: r.Failure}
	if r.Response != nil {
		c.Doubt = true
		if e.State == FailedRetryable {
			// "Nothing happened" was wrong: the entry is open again, and in doubt.
			c.State, c.Current = Pending, false
			c.clearSettlement()
			c.AbandonedAt = In(0)
			c.DueAt = c.lapseIn(c.Terms.Retention, env.Now)
		}
	}
	return &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}
}

// forEvidence is r with a body short enough to be kept as evidence.
func (r *Response) forEvidence() *Response {
	if r == nil || len(r.Body) <= MaxEvidenceBytes {
		return r
	}
	return r.withoutBody()
}

func decideExtend(e *Entry, condition Condition, r ExtendDecision, env Env) Verdict {
	if condition == Absent {
		return refused(notFound())
	}
	standing, _ := e.standingOf(r.Issued, r.Claim)
	switch {
	case standing == stranger:
		return refused(claimLost("the claim token was never issued for this entry"))
	case condition == Lapsed || condition == Expired:
		return refused(expired())
	case standing == earlier || condition == ConditionFailedRetryable:
		return refused(claimLost("the claim was lost or given up"))
	case condition == ConditionCompleted || condition == ConditionFailedFinal:
		return refused(alreadySettled())
	default:
		return Verdict{Outcome: Renewed, Write: extendWrite(r, env)}
	}
}

// extendWrite is the write for a renewal, known by its token alone: it also is the one-round-trip path.
func extendWrite(r ExtendDecision, env Env) *Write {
	return &Write{
		Scope:  r.Scope,
		Guard:  Guard{Kind: GuardClaim, Incarnation: r.Claim.Incarnation, Attempt: r.Claim.Attempt, Principal: env.Bound},
		Extend: &Extend{Lease: r.Lease, Margin: env.Margin},
	}
}

// Speculate returns the write of a request that usually needs no reading: a fresh Begin RUN, and Complete, Fail and Extend with an issued
// token. Where its guard holds, it is exactly the write that Decide would have emitted for the row; where it does not, nothing was written:
// read, decide, compare and swap. Nil where there is no such path. The request's times are the store's: env.Now and env.Floor are not used.
func Speculate(req Request, env Env) *Write {
	switch r := req.(type) {
	case BeginDecision:
		if r.Mode == Run && env.Rules.checkKey(r.Ref.Key) == nil {
			return grantFresh(nil, r, env).Write
		}
	case ReportDecision:
		if r.Issued {
			return settleWrite(r, env)
		}
	case ExtendDecision:
		if r.Issued {
			return extendWrite(r, env)
		}
	}
	return nil
}

// tellLease returns the lease as its holder is told: until when, and how long from the write on. Both are the row's, which can be more than
// was asked for: a renewal does not shorten.
func tellLease(s Stamps, margin time.Duration) (until Time, length time.Duration) {
	until = s.LeaseUntil.Add(-2 * margin)
	return until, max(until.Sub(s.Now), 0)
}
