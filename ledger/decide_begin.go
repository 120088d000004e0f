package ledger

import "time"

func decideBegin(e *Entry, condition Condition, r BeginDecision, env Env) Verdict {
	if condition == Absent {
		if r.Mode == Recover {
			return refused(notFound())
		}
		// Only a new entry: a key that was taken before a policy forbade its form must still find its answer.
		if refusal := env.Rules.checkKey(r.Ref.Key); refusal != nil {
			return refused(refusal)
		}
		return grantFresh(e, r, env)
	}
	attempt, current := e.attemptOf(r.IDHash)
	if attempt != nil && condition != Lapsed && condition != Expired {
		if refusal := sameCaller(attempt, r, env); refusal != nil {
			return refused(refusal)
		}
	}
	if refusal := matchFingerprints(e, r.Fingerprints); refusal != nil {
		return refused(refusal)
	}
	switch condition {
	case Lapsed, Expired:
		return refused(expired())
	case ConditionCompleted:
		return Verdict{Outcome: Replayed}
	case ConditionFailedFinal:
		return Verdict{Outcome: FailedAs}
	case ConditionFailedRetryable:
		return beginAfterRetryable(e, attempt, current, r, env)
	default: // pending
	}
	switch {
	case current:
		return Verdict{Outcome: Resumed, Write: &Write{
			Scope: e.Scope, Guard: claimGuard(e, env), Extend: &Extend{Lease: r.Lease, Margin: env.Margin},
		}}
	case attempt != nil:
		return refused(claimLost("this attempt lost its claim; its id never grants again"))
	case condition == Live:
		return Verdict{Outcome: InProgress, RetryAfter: retryAfter(e.Last.LeaseUntil, env.Now)}
	default:
		return takeOver(e, condition, r, env)
	}
}

// attemptOf finds the attempt that an id was used for, and whether it is the current one.
func (e *Entry) attemptOf(id IDHash) (attempt *Attempt, current bool) {
	if e.Last.IDHash == id {
		return &e.Last, e.Current
	}
	for i := range e.Earlier {
		if e.Earlier[i].IDHash == id {
			return &e.Earlier[i], false
		}
	}
	return nil, false
}

// sameCaller refuses an attempt id that somebody else used, or that was used for something else: it would hand one caller's claim to
// another. A tombstone hands out nothing, and may have been erased: it is not asked.
func sameCaller(a *Attempt, r BeginDecision, env Env) *Refusal {
	switch {
	case a.Principal != env.Principal:
		return invalid(ReasonInvalidAttemptID, "attempt_id", "was used by another principal; make a fresh UUID for each attempt")
	case a.Holder != r.Holder:
		return invalid(ReasonInvalidAttemptID, "attempt_id", "was used by another holder; make a fresh UUID for each attempt")
	case a.RecoverOnly != (r.Mode == Recover):
		return invalid(ReasonInvalidAttemptID, "attempt_id", "was used with the other mode; make a fresh UUID for each attempt")
	}
	return nil
}

func beginAfterRetryable(e *Entry, attempt *Attempt, current bool, r BeginDecision, env Env) Verdict {
	switch {
	case current || r.Mode == Recover && attempt == nil:
		return Verdict{Outcome: FailedAs}
	case attempt != nil:
		return refused(claimLost("this attempt lost its claim; its id never grants again"))
	case e.Last.Number >= MaxAttempts || e.RunGrants >= e.Terms.MaxAttempts && !e.Credit:
		return Verdict{Outcome: FailedAs}
	default:
		return grantNext(e, r, env)
	}
}

// takeOver decides a new attempt on an abandoned or held entry.
func takeOver(e *Entry, condition Condition, r BeginDecision, env Env) Verdict {
	if e.Current {
		if grace := env.Floor.Add(e.Last.Lease); env.Now < grace {
			return Verdict{Outcome: InProgress, RetryAfter: retryAfter(grace, env.Now)}
		}
	}
	switch {
	case e.Last.Number >= MaxAttempts:
		return refused(abandoned(e, true))
	case r.Mode == Run && condition == Held && !e.Credit:
		return refused(abandoned(e, false))
	default:
		return grantNext(e, r, env)
	}
}

// grantFresh creates the entry. old is a row whose tombstone is past, or nil.
func grantFresh(old *Entry, r BeginDecision, env Env) Verdict {
	rules := env.Rules
	e := &Entry{
		Scope: r.Scope, Ref: r.Ref, Incarnation: In(0), State: Pending, Fingerprints: r.Fingerprints, RunGrants: 1, Current: true,
		Terms: Terms{
			OnAbandoned: rules.OnAbandoned, MaxAttempts: rules.MaxAttempts, ReclaimWithin: rules.ReclaimWithin,
			Retention: rules.Retention, Tombstone: rules.Tombstone,
		},
	}
	if rules.BindPrincipal {
		e.Terms.Bound = env.Bound
	}
	e.Last = newAttempt(1, r, env)
	lapse := e.Last.Lease + env.Margin + rules.Retention
	switch {
	case rules.OnAbandoned == Hold || rules.MaxAttempts <= 1:
		e.HoldFrom, e.DueAt = 0, Never
	case rules.ReclaimWithin > 0:
		e.HoldFrom, e.DueAt = In(rules.ReclaimWithin), In(lapse)
		if rules.ReclaimWithin <= lapse {
			e.DueAt = Never
		}
	default:
		e.HoldFrom, e.DueAt = Never, In(lapse)
	}
	w := &Write{Scope: r.Scope, Guard: Guard{Kind: GuardAbsent}, Put: e}
	if old != nil {
		w.Guard = revisionGuard(old)
		// Above every fence of the incarnation that is replaced, whatever the clock did since.
		w.MinIncarnation = old.Incarnation + MaxAttempts + 1
	}
	return Verdict{Outcome: Granted, Write: w}
}

// grantNext makes the next attempt the current one.
func grantNext(e *Entry, r BeginDecision, env Env) Verdict {
	c := e.Clone()
	if e.Current && e.State == Pending {
		c.Last.Ended, c.Last.EndedAt = EndedTakenOver, env.Now
		c.Doubt = true
	}
	c.Earlier = append(c.Earlier, c.Last)
	c.Last = newAttempt(e.Last.Number+1, r, env)
	c.State, c.Current, c.AbandonedAt = Pending, true, 0
	c.clearSettlement()
	if r.Mode == Run {
		if c.Credit {
			c.Credit, c.Last.OnCredit = false, true
		} else {
			c.RunGrants++
		}
	}
	if c.capReached() {
		c.HoldFrom = 0
	}
	c.DueAt = c.lapseIn(c.Last.Lease+env.Margin+c.Terms.Retention, env.Now)
	return Verdict{Outcome: Granted, Write: &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}}
}

func newAttempt(number int32, r BeginDecision, env Env) Attempt {
	lease := r.Lease
	if lease == 0 {
		lease = env.Rules.Lease
	}
	return Attempt{
		Number: number, IDHash: r.IDHash, Holder: r.Holder, Principal: env.Principal, RecoverOnly: r.Mode == Recover,
		Lease: lease, BeganAt: In(0), LeaseUntil: In(lease + env.Margin),
	}
}

// lapseIn is the due time of a pending entry that nobody comes for within d from the write: Never if it is held by then.
func (e *Entry) lapseIn(d time.Duration, now Time) Time {
	if e.HoldFrom <= now.Add(d) {
		return Never
	}
	return In(d)
}

// capReached reports whether no attempt is left: none that the policy grants, or none at all.
func (e *Entry) capReached() bool {
	return e.RunGrants >= e.Terms.MaxAttempts || e.Last.Number >= MaxAttempts
}

func (e *Entry) clearSettlement() {
	e.SettledAt, e.SettledBy, e.Settlement, e.Response, e.Failure = 0, 0, Digest{}, nil, nil
}

func revisionGuard(e *Entry) Guard {
	return Guard{Kind: GuardRevision, Incarnation: e.Incarnation, Revision: e.Revision}
}

func claimGuard(e *Entry, env Env) Guard {
	return Guard{Kind: GuardClaim, Incarnation: e.Incarnation, Attempt: e.Last.Number, Principal: env.Bound}
}
