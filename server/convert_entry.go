package server

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

var conditionsOf = map[idemv1.EntryCondition]ledger.Condition{
	idemv1.EntryCondition_ENTRY_CONDITION_LIVE:             ledger.Live,
	idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED:        ledger.Abandoned,
	idemv1.EntryCondition_ENTRY_CONDITION_HELD:             ledger.Held,
	idemv1.EntryCondition_ENTRY_CONDITION_LAPSED:           ledger.Lapsed,
	idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED:        ledger.ConditionCompleted,
	idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL:     ledger.ConditionFailedFinal,
	idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE: ledger.ConditionFailedRetryable,
	idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED:          ledger.Expired,
}

var wireConditions = func() map[ledger.Condition]idemv1.EntryCondition {
	out := make(map[ledger.Condition]idemv1.EntryCondition, len(conditionsOf))
	for wire, c := range conditionsOf {
		out[c] = wire
	}
	return out
}()

var wireStates = map[ledger.State]idemv1.EntryState{
	ledger.Pending:         idemv1.EntryState_ENTRY_STATE_PENDING,
	ledger.Completed:       idemv1.EntryState_ENTRY_STATE_COMPLETED,
	ledger.FailedFinal:     idemv1.EntryState_ENTRY_STATE_FAILED,
	ledger.FailedRetryable: idemv1.EntryState_ENTRY_STATE_FAILED,
}

var wireEndings = map[ledger.Ended]idemv1.AttemptEnding{
	ledger.NotEnded:       idemv1.AttemptEnding_ATTEMPT_ENDING_OPEN,
	ledger.EndedCompleted: idemv1.AttemptEnding_ATTEMPT_ENDING_COMPLETED,
	ledger.EndedFinal:     idemv1.AttemptEnding_ATTEMPT_ENDING_FAILED_FINAL,
	ledger.EndedRetryable: idemv1.AttemptEnding_ATTEMPT_ENDING_FAILED_RETRYABLE,
	ledger.EndedGaveUp:    idemv1.AttemptEnding_ATTEMPT_ENDING_GIVEN_UP,
	ledger.EndedTakenOver: idemv1.AttemptEnding_ATTEMPT_ENDING_TAKEN_OVER,
	ledger.EndedReleased:  idemv1.AttemptEnding_ATTEMPT_ENDING_RELEASED,
	ledger.EndedResolved:  idemv1.AttemptEnding_ATTEMPT_ENDING_RESOLVED,
}

var wireResolutions = map[ledger.ResolveAction]idemv1.ResolutionKind{
	ledger.ResolveComplete: idemv1.ResolutionKind_RESOLUTION_KIND_COMPLETE,
	ledger.ResolveFail:     idemv1.ResolutionKind_RESOLUTION_KIND_FAIL,
	ledger.ResolveRelease:  idemv1.ResolutionKind_RESOLUTION_KIND_RELEASE,
}

// entry shows a view. It holds nothing with which a claim could be used or resumed.
func entry(v ledger.View) *idemv1.Entry {
	e := v.Entry
	out := &idemv1.Entry{
		Ref:           &idemv1.EntryRef{Tenant: e.Ref.Tenant, Operation: e.Ref.Operation, Key: e.Ref.Key},
		State:         wireStates[e.State],
		Condition:     wireConditions[v.Condition],
		LatestAttempt: e.Last.Number, HasCurrentAttempt: e.Current && e.State == ledger.Pending && !e.Closed,
		Doubt: e.Doubt, Evidence: evidence(e.Evidence), Terms: terms(e.Terms), ReleaseCredit: e.Credit, Times: entryTimes(v),
		Fence: e.Fence(), Incarnation: int64(e.Incarnation), Revision: e.Revision, Erased: v.Erased, RunCount: e.RunGrants,
	}
	for _, fp := range e.Fingerprints {
		out.Fingerprints = append(out.Fingerprints, &idemv1.Fingerprint{Algorithm: fp.Algorithm, Hash: fp.Hash})
	}
	for i := range e.Earlier {
		out.Attempts = append(out.Attempts, attempt(&e.Earlier[i]))
	}
	out.Attempts = append(out.Attempts, attempt(&e.Last))
	a := &ledger.Answer{Response: e.Response, Failure: e.Failure, Attempt: e.SettledBy, SettledAt: e.SettledAt, ExpiresAt: e.DueAt}
	switch {
	case e.Response != nil:
		out.Outcome = &idemv1.Entry_Answer{Answer: answer(a)}
	case e.Failure != nil:
		out.Outcome = &idemv1.Entry_Failure{Failure: failure(a)}
	}
	for _, r := range e.Resolutions {
		out.Resolutions = append(out.Resolutions, &idemv1.Resolution{
			Kind: wireResolutions[r.Action], Attempt: r.Attempt, Reason: r.Reason, Principal: r.Principal, ResolveTime: timestamp(r.At),
		})
	}
	return out
}

func attempt(a *ledger.Attempt) *idemv1.Attempt {
	out := &idemv1.Attempt{
		Attempt: a.Number, AttemptIdHash: a.IDHash[:], Holder: a.Holder, Principal: a.Principal, BeginTime: timestamp(a.BeganAt),
		EndTime: timestamp(a.EndedAt), Ending: wireEndings[a.Ended], RecoverOnly: a.RecoverOnly, OnCredit: a.OnCredit, Lease: duration(a.Lease),
	}
	if a.Report != (ledger.Digest{}) {
		out.ReportDigest = a.Report[:]
	}
	return out
}

func terms(t ledger.Terms) *idemv1.EntryTerms {
	out := &idemv1.EntryTerms{
		Retention: duration(t.Retention), Tombstone: duration(t.Tombstone), OnAbandoned: idemv1.OnAbandoned(t.OnAbandoned),
		MaxAttempts: t.MaxAttempts, PrincipalBound: t.Bound != ledger.PrincipalHash{},
	}
	if t.ReclaimWithin > 0 {
		out.ReclaimWithin = duration(t.ReclaimWithin)
	}
	return out
}

// pendingConditions are those of an entry that can still be held or lapse.
var pendingConditions = []ledger.Condition{ledger.Live, ledger.Abandoned, ledger.Held}

func entryTimes(v ledger.View) *idemv1.EntryTimes {
	e := v.Entry
	out := &idemv1.EntryTimes{
		CreateTime: timestamp(v.CreatedAt), LeaseExpireTime: timestamp(v.LeaseUntil), SettleTime: timestamp(e.SettledAt),
		TombstoneExpireTime: timestamp(v.ForgetAt), StoreTime: timestamp(v.Now),
	}
	if slices.Contains(pendingConditions, v.Condition) {
		out.LapseTime = lapseTime(e)
		if out.HoldTime = timestamp(e.HoldFrom); e.HoldFrom == 0 {
			out.HoldTime = out.CreateTime
		}
	}
	switch {
	case v.Condition == ledger.Lapsed:
		// Nothing was ever kept for replay, so it has no end. The tombstone is counted from the lapse, also once a sweep has been by.
		out.LapseTime = timestamp(v.ForgetAt.Add(-e.Terms.Tombstone))
	default:
		out.ExpireTime = timestamp(v.ExpiresAt)
	}
	if v.Condition == ledger.Abandoned || v.Condition == ledger.Held || v.Condition == ledger.Lapsed {
		if out.AbandonTime = timestamp(e.AbandonedAt); e.Current {
			out.AbandonTime = timestamp(e.Last.LeaseUntil)
		}
	}
	return out
}

// lapseTime is when a pending entry lapses; nil where it is held by then.
func lapseTime(e *ledger.Entry) *timestamppb.Timestamp {
	if e.HoldFrom <= e.DueAt {
		return nil
	}
	return timestamp(e.DueAt)
}
