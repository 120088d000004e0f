package ledger

func decideResolve(e *Entry, condition Condition, r ResolveDecision, env Env) Verdict {
	if condition == Absent {
		return refused(notFound())
	}
	if condition == Lapsed || condition == Expired {
		return refused(expired())
	}
	for i := range e.Resolutions {
		if d := &e.Resolutions[i]; d.Action == r.Action && d.Attempt == r.Attempt && d.Report == r.Report {
			return Verdict{Outcome: Unchanged}
		}
	}
	switch {
	case r.Attempt != e.Last.Number:
		return refused(claimLost("the entry's latest attempt is not the one this resolution names"))
	case condition == ConditionCompleted || condition == ConditionFailedFinal || condition == ConditionFailedRetryable && r.Action == ResolveRelease:
		if r.Action != ResolveRelease && r.Report == e.Settlement {
			return Verdict{Outcome: Unchanged}
		}
		return refused(alreadySettled())
	case condition == Live && !r.Force:
		return refused(refuse(ReasonClaimLive, "the entry's claim is live: its holder may still settle it").
			with("help", "wait for the holder, or force the resolution if it is known to be gone"))
	case r.Action == ResolveRelease:
		return release(e, r, env)
	default:
		return settleByOperator(e, r, env)
	}
}

func settleByOperator(e *Entry, r ResolveDecision, env Env) Verdict {
	c := e.Clone()
	if e.Current && e.State == Pending {
		c.Last.Ended, c.Last.EndedAt = EndedResolved, In(0)
	}
	c.clearSettlement()
	c.State, c.Response, c.Failure = Completed, r.Response, r.Failure
	if r.Action == ResolveFail {
		c.State = FailedFinal
	}
	c.AbandonedAt, c.Credit, c.Doubt = 0, false, false
	c.SettledAt, c.Settlement = In(0), r.Report
	c.Terms.Retention = max(c.Terms.Retention, env.Rules.Retention)
	c.Terms.Tombstone = max(c.Terms.Tombstone, env.Rules.Tombstone)
	c.DueAt = In(c.Terms.Retention)
	c.note(r, env)
	return Verdict{Outcome: Settled, Write: &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}}
}

func release(e *Entry, r ResolveDecision, env Env) Verdict {
	if e.Last.Number >= MaxAttempts {
		return refused(abandoned(e, true))
	}
	c := e.Clone()
	if e.Current {
		c.Last.Ended, c.Last.EndedAt = EndedReleased, In(0)
	}
	c.Current, c.Doubt, c.Credit = false, true, true
	c.AbandonedAt = In(0)
	c.DueAt = c.lapseIn(c.Terms.Retention, env.Now)
	c.note(r, env)
	return Verdict{Outcome: Released, Write: &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}}
}

func (e *Entry) note(r ResolveDecision, env Env) {
	e.Resolutions = append(e.Resolutions, Resolution{
		Action: r.Action, Attempt: r.Attempt, At: env.Now, Principal: env.Principal, Reason: r.Reason, Report: r.Report,
	})
}

func decideErase(e *Entry, condition Condition, r EraseDecision, env Env) Verdict {
	switch {
	case condition == Absent:
		return refused(notFound())
	case e.Closed && e.Ref == Ref{}:
		return Verdict{Outcome: Unchanged}
	case r.CreatedUntil != 0 && e.Incarnation > r.CreatedUntil:
		// The scope was forgotten and begun anew since the erasure found it.
		return Verdict{Outcome: Unchanged}
	case condition == Live && !r.Force:
		return Verdict{Outcome: Skipped}
	}
	c := e.Clone()
	c.close()
	c.Ref, c.Resolutions = Ref{}, nil
	c.Last.Holder, c.Last.Principal = "", ""
	for i := range c.Earlier {
		c.Earlier[i].Holder, c.Earlier[i].Principal = "", ""
	}
	// Counted from now, and never earlier than it would have been: a late genuine retry must still be recognised.
	stays := e.Terms.Retention + e.Terms.Tombstone
	if c.DueAt = In(stays); e.Closed && e.DueAt > env.Now.Add(stays) {
		c.DueAt = e.DueAt
	}
	return Verdict{Outcome: Erased, Write: &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}}
}

// close takes the answer and the evidence out of an entry and leaves what recognises a late retry.
func (e *Entry) close() {
	e.Closed, e.Credit = true, false
	e.Response, e.Failure, e.Evidence = nil, nil, nil
}

// SweepAction is what the sweeper has to do with one entry.
type SweepAction int

// The sweeper's actions.
const (
	SweepNothing SweepAction = iota // not due, live or held
	SweepClose                      // retention past: strip the answer, keep a tombstone
	SweepLapse                      // pending and nobody came: as SweepClose, and counted
	SweepForget                     // tombstone past: delete the row
	SweepHold                       // became held in the meantime: take it out of the sweeper's way
)

// DecideSweep says what the sweeper has to do with e at now, and the write that does it (none for SweepForget and SweepNothing).
func DecideSweep(e *Entry, now Time) (SweepAction, *Write) {
	switch e.ConditionAt(now) {
	case Absent:
		return SweepForget, nil
	case Held, Abandoned:
		if e.DueAt > now {
			return SweepNothing, nil
		}
		c := e.Clone()
		c.DueAt = Never
		return SweepHold, &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c, Idle: true}
	case Lapsed, Expired:
		if e.Closed {
			return SweepNothing, nil
		}
		action := SweepClose
		if e.State == Pending {
			action = SweepLapse
		}
		c := e.Clone()
		c.DueAt = e.ForgetAt()
		c.close()
		return action, &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c, Idle: true}
	default:
		return SweepNothing, nil
	}
}

// decideApply returns the write that brings a standing entry under the policy as it is now, nil where nothing changes. Retention and
// tombstone only ever grow: a later policy never shortens a promise.
func decideApply(e *Entry, condition Condition, env Env) *Write {
	if condition == Absent || condition == Lapsed || condition == Expired {
		return nil
	}
	rules := env.Rules
	c := e.Clone()
	c.Terms.OnAbandoned, c.Terms.MaxAttempts, c.Terms.ReclaimWithin = rules.OnAbandoned, rules.MaxAttempts, rules.ReclaimWithin
	c.Terms.Retention = max(c.Terms.Retention, rules.Retention)
	c.Terms.Tombstone = max(c.Terms.Tombstone, rules.Tombstone)
	c.HoldFrom = c.holdFrom()
	if c.State == Pending {
		c.DueAt = c.lapseUnder(e.DueAt, env.Now)
	} else {
		c.DueAt = e.DueAt.Add(c.Terms.Retention - e.Terms.Retention)
	}
	if c.Terms == e.Terms && c.HoldFrom == e.HoldFrom && c.DueAt == e.DueAt {
		return nil
	}
	return &Write{Scope: e.Scope, Guard: revisionGuard(e), Put: c}
}

// lapseUnder is the due time of a pending entry under terms that were just applied to it; was is what it was before. An entry that was
// held until now has its whole retention before it, however long ago it was left: it must not lapse, let alone be forgotten, the moment
// somebody may come for it.
func (e *Entry) lapseUnder(was, now Time) Time {
	if was == Never {
		was = now.Add(e.Terms.Retention)
	}
	return e.lapseAfter(max(e.abandonedSince().Add(e.Terms.Retention), was))
}

// holdFrom computes from an entry's terms when it is held if abandoned.
func (e *Entry) holdFrom() Time {
	switch {
	case e.Terms.OnAbandoned == Hold || e.capReached():
		return 0
	case e.Terms.ReclaimWithin > 0:
		return e.Incarnation.Add(e.Terms.ReclaimWithin)
	default:
		return Never
	}
}
