package ledger_test

import (
	"reflect"

	"github.com/idemd/idemd/ledger"
)

// checkStep checks what one decision may change.
func (h *history) checkStep(before *ledger.Entry, condition ledger.Condition, req ledger.Request, v ledger.Verdict) {
	if condition == ledger.Absent || h.row == nil {
		return
	}
	after := h.row
	h.check(after.Incarnation == before.Incarnation, "another incarnation, and the entry was not forgotten")
	h.check(after.Last.Number >= before.Last.Number, "attempt %d after %d", after.Last.Number, before.Last.Number)
	h.check(reflect.DeepEqual(after.Fingerprints, before.Fingerprints), "the fingerprints changed")
	h.check(v.Write == nil == (after == before), "a row changed without a write, or a write changed nothing")
	if v.Write != nil {
		h.check(after.Revision == before.Revision+1, "revision %d after %d", after.Revision, before.Revision)
	}
	h.check(after.Terms.Retention >= before.Terms.Retention && after.Terms.Tombstone >= before.Terms.Tombstone, "a promise was shortened")
	h.check(after.Terms.Bound == before.Terms.Bound, "the entry changed hands")
	if v.Write != nil && v.Write.Extend != nil {
		h.check(after.Last.LeaseUntil >= before.Last.LeaseUntil, "the lease until %s was shortened to %s", at(before.Last.LeaseUntil), at(after.Last.LeaseUntil))
		h.check(after.DueAt >= before.DueAt, "extended, and due at %s instead of %s", at(after.DueAt), at(before.DueAt))
	}
	h.checkAnswer(before, after, condition, req)
	h.checkDoubt(before, after, req)
	h.checkHistory(before, after)
	h.checkForgetting(before, after, req)
}

// checkAnswer: a settled entry never changes its answer; it only loses it to an erasure.
func (h *history) checkAnswer(before, after *ledger.Entry, condition ledger.Condition, req ledger.Request) {
	if condition != ledger.ConditionCompleted && condition != ledger.ConditionFailedFinal {
		return
	}
	h.check(after.State == before.State && after.Settlement == before.Settlement && after.SettledAt == before.SettledAt &&
		after.SettledBy == before.SettledBy, "a settled entry was settled otherwise")
	if _, erased := req.(ledger.EraseDecision); !erased {
		h.check(after.Response == before.Response && after.Failure == before.Failure, "a settled entry changed its answer")
	}
}

// checkDoubt: doubt is set by giving up, takeover, release and a late success, and cleared by a recovery's RETRYABLE and by an operator.
func (h *history) checkDoubt(before, after *ledger.Entry, req ledger.Request) {
	if before.Doubt == after.Doubt {
		return
	}
	last, _ := after.AttemptNumbered(before.Last.Number)
	if after.Doubt {
		gaveUp := last.Ended == ledger.EndedGaveUp || last.Ended == ledger.EndedTakenOver || last.Ended == ledger.EndedReleased
		success := after.Evidence.Success() && after.Evidence != before.Evidence
		resolve, isResolve := req.(ledger.ResolveDecision)
		released := isResolve && resolve.Action == ledger.ResolveRelease
		h.check(gaveUp || success || released, "doubt out of nowhere")
		return
	}
	resolve, isResolve := req.(ledger.ResolveDecision)
	settled := isResolve && resolve.Action != ledger.ResolveRelease
	recovered := before.Last.RecoverOnly && before.Current && last.Ended == ledger.EndedRetryable && after.State == ledger.FailedRetryable
	h.check(settled || recovered, "doubt went away")
}

// checkHistory: what is known of earlier attempts is never rewritten, except that an erasure takes names away.
func (h *history) checkHistory(before, after *ledger.Entry) {
	if before.Ref != (ledger.Ref{}) && after.Ref == (ledger.Ref{}) {
		return
	}
	h.check(len(after.Earlier) >= len(before.Earlier), "an earlier attempt is forgotten")
	for i := range before.Earlier {
		h.check(after.Earlier[i] == before.Earlier[i], "an earlier attempt was rewritten")
	}
	if before.Last.Ended != ledger.NotEnded && before.Last.Report != (ledger.Digest{}) {
		last, _ := after.AttemptNumbered(before.Last.Number)
		h.check(last.Report == before.Last.Report && last.Ended == before.Last.Ended, "the report of an attempt was rewritten")
	}
}

// checkForgetting: an acknowledged settlement is never forgotten earlier than it was promised.
func (h *history) checkForgetting(before, after *ledger.Entry, req ledger.Request) {
	if before.State == ledger.Pending || after.State == ledger.Pending {
		return
	}
	if _, erase := req.(ledger.EraseDecision); erase && !before.Closed {
		h.check(after.ForgetAt() >= before.ForgetAt(), "an erasure shortened a tombstone")
	}
	h.check(after.ForgetAt() >= before.ForgetAt(), "forgotten at %s, promised until %s", at(after.ForgetAt()), at(before.ForgetAt()))
}

// checkRow checks what holds of every row at every instant.
func (h *history) checkRow() {
	e := h.row
	if e == nil {
		return
	}
	h.check(len(e.Earlier) == int(e.Last.Number)-1, "%d earlier attempts before attempt %d", len(e.Earlier), e.Last.Number)
	for i := range e.Earlier {
		h.check(e.Earlier[i].Number == int32(i)+1, "earlier attempt %d stands at place %d", e.Earlier[i].Number, i)
		h.check(e.Earlier[i].Ended != ledger.NotEnded, "attempt %d lost its claim and did not end", i+1)
	}
	h.check(e.Last.Number <= ledger.MaxAttempts && e.RunGrants <= ledger.MaxRunAttempts, "over the caps: %d attempts, %d grants", e.Last.Number, e.RunGrants)
	h.check(!e.Incarnation.Relative() && !e.DueAt.Relative() && !e.Last.LeaseUntil.Relative() && !e.HoldFrom.Relative() && !e.SettledAt.Relative() &&
		!e.AbandonedAt.Relative() && !e.Last.BeganAt.Relative() && !e.Last.EndedAt.Relative(), "a relative time was stored")
	pending := e.State == ledger.Pending
	h.check(pending == (e.SettledAt == 0), "state %d settled at %d", e.State, e.SettledAt)
	h.check(e.Response == nil || e.State == ledger.Completed && !e.Closed, "a response on state %d, closed %t", e.State, e.Closed)
	h.check(e.Failure == nil || e.State != ledger.Completed && !pending && !e.Closed, "a failure on state %d, closed %t", e.State, e.Closed)
	h.check(e.Closed || pending || e.Response != nil || e.Failure != nil, "settled without an answer")
	if pending && !e.Closed {
		h.check(e.Current == (e.AbandonedAt == 0), "current %t, abandoned at %d", e.Current, e.AbandonedAt)
		h.check(!e.Current || e.Last.Ended == ledger.NotEnded && e.Last.Report == ledger.Digest{}, "the current attempt has ended")
		h.check(!e.Current || e.DueAt > e.Last.LeaseUntil, "due before its lease is over")
		h.check(h.delayed || e.HoldFrom > e.DueAt || e.DueAt == ledger.Never, "held from %d, and due at %d", e.HoldFrom, e.DueAt)
	}
	h.checkExit()
}

// checkExit: every condition has an exit: something that a caller, the sweeper or an operator can do.
func (h *history) checkExit() {
	e := h.row
	condition := e.ConditionAt(h.now)
	env := ledger.Env{Now: h.now, Floor: h.floor, Rules: ledger.BuiltinPolicy().Rules(ledger.Clamp{}), Bound: e.Terms.Bound, Operator: true}
	switch condition {
	case ledger.Live:
		h.check(e.Last.LeaseUntil != ledger.Never, "a live claim that never ends")
	case ledger.Abandoned, ledger.Held, ledger.ConditionFailedRetryable:
		response := &ledger.Response{Body: []byte("by the operator")}
		resolve := ledger.ResolveDecision{
			Scope: h.scope, Action: ledger.ResolveComplete, Attempt: e.Last.Number, Response: response, Report: ledger.ReportDigest(response, nil),
		}
		h.check(ledger.Decide(e, resolve, env).Outcome == ledger.Settled, "%s, and no operator can settle it", conditionNames[condition])
	default:
		h.check(e.ForgetAt() != ledger.Never, "%s, and never forgotten", conditionNames[condition])
	}
}
