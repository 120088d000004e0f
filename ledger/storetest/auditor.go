package storetest

import (
	"fmt"
	"time"

	"github.com/idemd/idemd/ledger"
)

// auditor watches what callers are told and what stands in the rows, and complains where a promise of the ledger is broken. It knows the
// promises only, and nothing of how the ledger keeps them: no line of it is shared with the decision table. Where a call's outcome was
// unknown to its caller, it assumes whatever excuses the ledger.
type auditor struct {
	entries    map[string]*audited
	complaints []string
}

// audited is what is known of one key.
type audited struct {
	// incarnation is that of the latest grant that was told or row that was seen; attempts and all below are of it alone.
	incarnation ledger.Time
	attempts    map[int32]*auditedAttempt
	// outcome is what the entry was told to be settled as, for good; answer is its replay, word by word, once there was one.
	outcome string
	answer  string
	// promise is the longer retention and the longer tombstone of those that a policy promised at the grant that created the entry and
	// at its settlement; zero where nobody was told of that grant.
	promise promise
	// answerUntil is until when the answer must be replayed, keepUntil until when the row must be there.
	answerUntil ledger.Time
	keepUntil   ledger.Time
	// unsure: a write of unknown outcome may still land. A report among them is guarded by its claim alone and ends a lease that was renewed
	// since; then the row need not be kept for as long as that lease would have it.
	unsure bool
	// row is the row as last seen.
	row *ledger.Entry
	// fence is the highest that was told, of any incarnation.
	fence int64
}

// auditedAttempt is a grant that somebody was told.
type auditedAttempt struct {
	id         [16]byte
	mode       ledger.Mode
	token      string
	leaseUntil ledger.Time
	// ended: its holder reported, or an operator released it, or either may have happened.
	ended bool
	// lost: it certainly is no longer the current claim.
	lost bool
	// accounted: somebody said, or may have said, what came of it.
	accounted bool
}

// promise is how long things are kept.
type promise struct{ retention, tombstone time.Duration }

// termsOf is what a policy promises.
func termsOf(p *ledger.Policy) promise {
	h := p.Horizons
	retention := max(h.ClientRetry, h.QueueRedelivery, h.WebhookReplay, h.OperatorReplay, h.Settlement)
	return promise{retention, *p.Tombstone}
}

func (p promise) longer(q promise) promise {
	return promise{max(p.retention, q.retention), max(p.tombstone, q.tombstone)}
}

func newAuditor() *auditor { return &auditor{entries: map[string]*audited{}} }

func (a *auditor) complain(key, format string, args ...any) {
	a.complaints = append(a.complaints, fmt.Sprintf("the auditor of %s: ", key)+fmt.Sprintf(format, args...))
}

func (a *auditor) entry(key string) *audited {
	e := a.entries[key]
	if e == nil {
		e = &audited{attempts: map[int32]*auditedAttempt{}}
		a.entries[key] = e
	}
	return e
}

// startOver is for a new incarnation: only the fence is remembered.
func (e *audited) startOver(incarnation ledger.Time) {
	*e = audited{incarnation: incarnation, attempts: map[int32]*auditedAttempt{}, fence: e.fence, row: e.row}
}

// began takes in what a Begin was told.
func (a *auditor) began(key string, r ledger.BeginRequest, told answer, terms promise, now ledger.Time) {
	e := a.entry(key)
	result, _ := told.value.(ledger.BeginResult)
	switch {
	case told.err != nil:
		a.refused(key, e, told.reason(), now)
	case result.Granted != nil:
		a.granted(key, r, result.Granted, terms, now)
	case result.Completed != nil:
		a.replayed(key, e, "completed", result.Completed.Response.Code, result.Completed)
	case result.Failed != nil && result.Failed.Failure.Disposition == ledger.Retryable:
		if e.outcome != "" {
			a.complain(key, "settled for good as %s, and then told to have failed as if it might be tried again", e.outcome)
		}
	case result.Failed != nil:
		a.replayed(key, e, "failed", result.Failed.Failure.Code, result.Failed)
	case e.mustAnswer(now):
		a.complain(key, "settled as %s, and then told to be in progress", e.outcome)
	}
}

// mustAnswer reports whether the entry is settled for good and its answer must still be replayed.
func (e *audited) mustAnswer(now ledger.Time) bool { return e.outcome != "" && now < e.answerUntil }

func (a *auditor) refused(key string, e *audited, reason ledger.Reason, now ledger.Time) {
	switch reason {
	case ledger.ReasonExpired, ledger.ReasonAbandoned, ledger.ReasonClaimLost:
		if e.mustAnswer(now) {
			a.complain(key, "settled as %s and to be replayed until %d, and at %d refused %s", e.outcome, e.answerUntil, now, reason)
		}
	case ledger.ReasonEntryNotFound:
		if now < e.keepUntil {
			a.complain(key, "to be known until %d, and at %d refused %s", e.keepUntil, now, reason)
		}
	default:
		// Said of the caller or of what it sent, not of the entry.
	}
}

func (a *auditor) granted(key string, r ledger.BeginRequest, g *ledger.Grant, terms promise, now ledger.Time) {
	e := a.entry(key)
	if g.Incarnation != e.incarnation {
		if now < e.keepUntil {
			a.complain(key, "to be known until %d, and granted anew at %d", e.keepUntil, now)
		}
		if int64(g.Incarnation) <= e.fence {
			a.complain(key, "the new incarnation %d is not above the fence %d", g.Incarnation, e.fence)
		}
		e.startOver(g.Incarnation)
		e.promise = terms
	}
	if g.Fence != int64(g.Incarnation)+int64(g.Attempt) || g.LeaseUntil <= now {
		a.complain(key, "attempt %d of incarnation %d was told the fence %d and, at %d, a lease until %d",
			g.Attempt, g.Incarnation, g.Fence, now, g.LeaseUntil)
	}
	attempt := e.attempts[g.Attempt]
	if attempt == nil {
		a.newGrant(key, e, r, g, now)
		attempt = &auditedAttempt{id: r.AttemptID, mode: r.Mode, token: string(g.Token)}
		e.attempts[g.Attempt] = attempt
	}
	switch {
	case attempt.id != r.AttemptID || attempt.token != string(g.Token):
		a.complain(key, "attempt %d was granted to attempt id %d and to %d", g.Attempt, attempt.id[15], r.AttemptID[15])
	case attempt.lost:
		a.complain(key, "attempt %d lost its claim, and was told that it has it", g.Attempt)
	}
	a.renewed(key, g.Attempt, g.LeaseUntil, now)
}

// renewed notes a lease that was told. A holder that was told another one before may still go by that.
func (a *auditor) renewed(key string, number int32, until, now ledger.Time) {
	e := a.entry(key)
	attempt := e.attempts[number]
	if until < attempt.leaseUntil {
		a.complain(key, "attempt %d was told that its lease lasts until %d, and then until %d", number, attempt.leaseUntil, until)
	}
	attempt.leaseUntil = until
	if e.unsure {
		until = now
	}
	e.keep(until)
}

// keep keeps the row for its whole promise counted from an instant.
func (e *audited) keep(from ledger.Time) {
	e.keepUntil = from.Add(e.promise.retention).Add(e.promise.tombstone)
}

// mayLandLate takes in that a write about this key may still land, or that nobody knows what came of it.
func (a *auditor) mayLandLate(key string, now ledger.Time) {
	e := a.entry(key)
	e.unsure = true
	e.counted(now)
}

// counted lets the promise of a pending entry count from an instant at which a claim may have ended, and no longer from the end of its lease.
func (e *audited) counted(from ledger.Time) {
	e.keepUntil = min(e.keepUntil, from.Add(e.promise.retention).Add(e.promise.tombstone))
}

// newGrant checks an attempt that nobody was told of before.
func (a *auditor) newGrant(key string, e *audited, r ledger.BeginRequest, g *ledger.Grant, now ledger.Time) {
	if e.outcome != "" {
		a.complain(key, "settled for good as %s, and then attempt %d was granted", e.outcome, g.Attempt)
	}
	if g.Fence <= e.fence {
		a.complain(key, "the fence went from %d to %d", e.fence, g.Fence)
	}
	e.fence = g.Fence
	doubt := false
	for number, other := range e.attempts {
		switch {
		case other.id == r.AttemptID:
			a.complain(key, "attempt id %d was granted attempt %d and attempt %d", other.id[15], number, g.Attempt)
		case number > g.Attempt:
			a.complain(key, "attempt %d was granted after attempt %d", g.Attempt, number)
		case !other.ended && now < other.leaseUntil:
			a.complain(key, "attempt %d was granted at %d while attempt %d had its claim until %d", g.Attempt, now, number, other.leaseUntil)
		}
		doubt = doubt || other.mode == ledger.Run && !other.accounted
		other.lost = true
	}
	if doubt && !g.PreviousAbandoned {
		a.complain(key, "attempt %d was not told that an earlier one was abandoned", g.Attempt)
	}
}

// replayed takes in an answer that is final.
func (a *auditor) replayed(key string, e *audited, how string, code int32, told *ledger.Answer) {
	a.settled(key, e, fmt.Sprint(how, " ", code))
	told.ExpiresAt = 0 // an applied policy may put it off
	text := render(told)
	if e.answer != "" && e.answer != text {
		a.complain(key, "the answer was\n  %s and is\n  %s", e.answer, text)
	}
	e.answer = text
}

// settled notes how the entry is settled for good, and complains if it was otherwise before.
func (a *auditor) settled(key string, e *audited, outcome string) {
	if e.outcome != "" && e.outcome != outcome {
		a.complain(key, "settled for good as %s, and then as %s", e.outcome, outcome)
	}
	e.outcome = outcome
}

// reported takes in what a report was told.
func (a *auditor) reported(key string, g *ledger.Grant, r playedReport, told answer, terms promise, now ledger.Time) {
	e := a.entry(key)
	attempt := e.attempts[g.Attempt]
	if attempt == nil || g.Incarnation != e.incarnation {
		return
	}
	ok := told.err == nil
	uncertain := told.reason() == ledger.ReasonStoreUnavailable
	first := e.outcome == "" && !attempt.ended
	gaveUp := r.failure != nil && r.failure.Disposition == ledger.Unknown
	if ok || uncertain {
		attempt.ended = true
		e.counted(now)
	}
	attempt.accounted = attempt.accounted || !gaveUp
	if r.failure != nil && r.failure.Disposition == ledger.Retryable && attempt.mode == ledger.Recover && (ok || uncertain) {
		for _, other := range e.attempts {
			other.accounted = true // a recovery speaks for all before it
		}
	}
	if !ok {
		if told.reason() == ledger.ReasonEntryNotFound && now < e.keepUntil {
			a.complain(key, "to be known until %d, and at %d a report was refused as of no entry", e.keepUntil, now)
		}
		return
	}
	result := told.value.(ledger.ReportResult)
	settles := r.response != nil || r.failure.Disposition == ledger.Final
	if first && settles {
		e.promise = e.promise.longer(terms)
	}
	switch {
	case r.response != nil:
		a.settled(key, e, fmt.Sprint("completed ", r.response.Code))
	case r.failure.Disposition == ledger.Final:
		a.settled(key, e, fmt.Sprint("failed ", r.failure.Code))
	default:
		return
	}
	a.settledAt(key, e, result.SettledAt, result.ExpiresAt, result.ForgetAt)
}

// settledAt takes in when an entry was settled, and how long that is promised to be known.
func (a *auditor) settledAt(key string, e *audited, settled, expires, forgotten ledger.Time) {
	if settled == 0 {
		a.complain(key, "settled as %s, and told no time of it", e.outcome)
		return
	}
	if expires < settled.Add(e.promise.retention) || forgotten < expires.Add(e.promise.tombstone) {
		a.complain(key, "settled at %d with a retention of %v and a tombstone of %v, and told to expire at %d and to be forgotten at %d",
			settled, e.promise.retention, e.promise.tombstone, expires, forgotten)
	}
	if e.row != nil && e.row.Closed {
		return // erased, or past its retention
	}
	e.answerUntil = settled.Add(e.promise.retention)
	e.keep(settled)
}

// extended takes in what an Extend was told.
func (a *auditor) extended(key string, g *ledger.Grant, told answer, now ledger.Time) {
	e := a.entry(key)
	attempt := e.attempts[g.Attempt]
	if told.err != nil || attempt == nil || g.Incarnation != e.incarnation {
		return
	}
	result := told.value.(ledger.ExtendResult)
	switch {
	case attempt.lost:
		a.complain(key, "attempt %d lost its claim, and then extended it", g.Attempt)
	case e.outcome != "":
		a.complain(key, "settled as %s, and then attempt %d extended its claim", e.outcome, g.Attempt)
	case result.LeaseUntil <= now:
		a.complain(key, "attempt %d extended its claim at %d until %d", g.Attempt, now, result.LeaseUntil)
	}
	a.renewed(key, g.Attempt, result.LeaseUntil, now)
}

// resolved takes in what an operator's decision was told.
func (a *auditor) resolved(key string, r ledger.ResolveRequest, told answer, terms promise, now ledger.Time) {
	e := a.entry(key)
	if told.err != nil && told.reason() != ledger.ReasonStoreUnavailable {
		return
	}
	result, _ := told.value.(ledger.Resolved)
	if r.Action == ledger.ResolveRelease {
		if attempt := e.attempts[r.Attempt]; attempt != nil && !result.Resent {
			attempt.ended = true
			attempt.lost = attempt.lost || told.err == nil
		}
		e.counted(now)
		return
	}
	e.counted(now)
	if told.err != nil {
		return
	}
	first := e.outcome == ""
	if r.Action == ledger.ResolveComplete {
		a.settled(key, e, fmt.Sprint("completed ", r.Response.Code))
	} else {
		a.settled(key, e, fmt.Sprint("failed ", r.Failure.Code))
	}
	if !result.Resent && first {
		e.promise = e.promise.longer(terms)
		a.settledAt(key, e, result.Entry.SettledAt, result.ExpiresAt, result.ForgetAt)
	}
}

// lookedUp takes in what a Lookup was told.
func (a *auditor) lookedUp(key string, told answer, now ledger.Time) {
	e := a.entry(key)
	view, _ := told.value.(ledger.View)
	switch {
	case told.err != nil:
		if told.reason() == ledger.ReasonEntryNotFound {
			a.refused(key, e, told.reason(), now)
		}
	case e.mustAnswer(view.Now) && (view.Entry.State == ledger.Pending || view.Entry.State == ledger.FailedRetryable || view.Entry.Closed):
		a.complain(key, "settled as %s and to be replayed until %d, and at %d looked up as %s",
			e.outcome, e.answerUntil, view.Now, outline(view.Entry))
	}
}

// forged takes in what a report under a forged token was told.
func (a *auditor) forged(key string, told answer) {
	if told.err == nil {
		a.complain(key, "a forged token was good for a report")
	}
}

// erased takes in that the tenant's entries were erased, or those of them that were not live.
func (a *auditor) erased(now ledger.Time) {
	for _, e := range a.entries {
		e.answerUntil = 0
		e.counted(now)
	}
}

// sees takes in a row as it is between two calls.
func (a *auditor) sees(key string, row *ledger.Entry, now ledger.Time) {
	e := a.entry(key)
	before := e.row
	e.row = row
	gone := before != nil && (row == nil || row.Incarnation != before.Incarnation)
	switch {
	case now < e.keepUntil && (row == nil || row.Incarnation != e.incarnation):
		a.complain(key, "to be known until %d, and at %d its row is gone", e.keepUntil, now)
	case gone && before.State == ledger.Pending && !before.Closed && before.HoldFrom <= before.DueAt:
		a.complain(key, "held for an operator, and its row is gone: it was %s", outline(before))
	}
	if row == nil {
		return
	}
	if row.Incarnation != e.incarnation {
		if row.Incarnation < e.incarnation {
			a.complain(key, "granted in incarnation %d, and the row is of incarnation %d", e.incarnation, row.Incarnation)
		}
		e.startOver(row.Incarnation) // a grant that nobody was told of
	}
	a.comparesRows(key, before, row)
	a.seesAttempts(key, e, row)
}

// comparesRows checks what may not change within an incarnation.
func (a *auditor) comparesRows(key string, before, row *ledger.Entry) {
	if before == nil || before.Incarnation != row.Incarnation {
		return
	}
	if row.Revision < before.Revision || row.Last.Number < before.Last.Number {
		a.complain(key, "the row went back from %s to %s", outline(before), outline(row))
	}
	if !same(before, row) && row.Revision == before.Revision {
		a.complain(key, "the row changed within revision %d:\n%s", row.Revision, differences(before, row))
	}
	final := before.State == ledger.Completed || before.State == ledger.FailedFinal
	if final && (row.State != before.State || row.Settlement != before.Settlement || row.SettledAt != before.SettledAt) {
		a.complain(key, "settled for good, and its settlement changed: from %s to %s", outline(before), outline(row))
	}
	if before.Closed && !row.Closed {
		a.complain(key, "a tombstone came back to life: %s", outline(row))
	}
}

// seesAttempts checks that every grant that was told has its place in the row, and that no more runs were told than the row knows of.
func (a *auditor) seesAttempts(key string, e *audited, row *ledger.Entry) {
	known := map[int32]bool{row.Last.Number: row.Last.RecoverOnly}
	for i := range row.Earlier {
		known[row.Earlier[i].Number] = row.Earlier[i].RecoverOnly
	}
	for number, attempt := range e.attempts {
		if recovers, ok := known[number]; !ok || recovers != (attempt.mode == ledger.Recover) {
			a.complain(key, "attempt %d was granted, and the row knows nothing of it: %s", number, outline(row))
		}
	}
	if len(known) != len(row.Earlier)+1 || int(row.Last.Number) != len(known) {
		a.complain(key, "the row has %d attempts, the latest is number %d", len(row.Earlier)+1, row.Last.Number)
	}
}
