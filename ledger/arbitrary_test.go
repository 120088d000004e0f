package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/ledger"
)

// arbitraryEntry makes an entry that some history could have left, directly: what random histories reach seldom is as likely here as the rest.
func arbitraryEntry(h *history) (*ledger.Entry, []ledger.Claim) {
	t := h.t
	e := &ledger.Entry{
		Scope: h.scope, Ref: h.ref, Incarnation: epoch.Add(-seconds(t, "age", 0, 300)), Revision: rapid.Int64Range(1, 9).Draw(t, "revision"),
		State: ledger.State(rapid.IntRange(1, 4).Draw(t, "state")), Fingerprints: fingerprintsOf(command{}),
		Terms: ledger.Terms{
			OnAbandoned: ledger.Reclaim, MaxAttempts: rapid.Int32Range(1, 4).Draw(t, "max attempts"),
			Retention: seconds(t, "retention", 2, 60), Tombstone: seconds(t, "tombstone", 0, 60),
		},
		Credit: rapid.Bool().Draw(t, "credit"), Doubt: rapid.Bool().Draw(t, "doubt"), HoldFrom: ledger.Never,
	}
	if rapid.IntRange(0, 3).Draw(t, "bound") == 0 {
		e.Terms.Bound = h.secret.Principal("alice")
	}
	number := rapid.SampledFrom([]int32{1, 2, 3, 63, 64}).Draw(t, "attempts")
	e.RunGrants = min(number, rapid.Int32Range(1, 4).Draw(t, "run grants"))
	if e.RunGrants >= e.Terms.MaxAttempts || number == 64 {
		e.HoldFrom = 0
	} else if rapid.Bool().Draw(t, "reclaim within?") {
		e.Terms.ReclaimWithin = seconds(t, "reclaim within", 1, 400)
		e.HoldFrom = e.Incarnation.Add(e.Terms.ReclaimWithin)
	}
	var claims []ledger.Claim
	for n := range number {
		a := arbitraryAttempt(h, e, n+1)
		claims = append(claims, ledger.Claim{Incarnation: e.Incarnation, Attempt: n + 1, IDHash: a.IDHash})
		if n+1 == number {
			e.Last = a
		} else {
			e.Earlier = append(e.Earlier, a)
		}
	}
	arbitraryState(h, e)
	return e, claims
}

func arbitraryAttempt(h *history, e *ledger.Entry, number int32) ledger.Attempt {
	a := ledger.Attempt{
		Number: number, IDHash: h.secret.AttemptID(h.scope, uuidOf(fmt.Sprint("attempt ", number))), Holder: "A", Principal: "alice",
		RecoverOnly: number > 1 && rapid.Bool().Draw(h.t, "recover only"), Lease: seconds(h.t, "lease", 1, 20), BeganAt: e.Incarnation,
	}
	a.Ended = ledger.Ended(rapid.IntRange(3, 6).Draw(h.t, "ended"))
	if a.Ended == ledger.EndedRetryable || a.Ended == ledger.EndedGaveUp {
		_, failure := h.answer()
		a.Report = ledger.ReportDigest(&ledger.Response{Body: []byte("x")}, nil)
		if failure != nil {
			a.Report = ledger.ReportDigest(nil, failure)
		}
	}
	a.EndedAt = e.Incarnation
	return a
}

// arbitraryState gives the entry its state, with everything that goes with it.
func arbitraryState(h *history, e *ledger.Entry) {
	t := h.t
	since := epoch.Add(-seconds(t, "since", 0, 120))
	if e.State == ledger.Pending {
		if e.Current = rapid.Bool().Draw(t, "current"); e.Current {
			e.Last.Ended, e.Last.EndedAt, e.Last.Report = ledger.NotEnded, 0, ledger.Digest{}
			e.Last.LeaseUntil = since.Add(e.Last.Lease)
			e.DueAt = e.Last.LeaseUntil.Add(e.Terms.Retention)
		} else {
			e.AbandonedAt, e.Doubt = since, true
			e.DueAt = since.Add(e.Terms.Retention)
		}
		if e.HoldFrom <= e.DueAt {
			e.DueAt = ledger.Never
		}
	} else {
		response := &ledger.Response{Body: []byte("x")}
		e.SettledAt, e.SettledBy, e.Settlement, e.DueAt = since, e.Last.Number, ledger.ReportDigest(response, nil), since.Add(e.Terms.Retention)
		e.Current = true
		if e.Response = response; e.State != ledger.Completed {
			e.Response, e.Failure = nil, &ledger.Failure{Code: 9, Message: "x", Disposition: ledger.Final}
			e.Settlement = ledger.ReportDigest(nil, e.Failure)
		}
		e.Last.Report = e.Settlement
		if rapid.Bool().Draw(t, "by an operator") {
			e.SettledBy, e.Last.Report = 0, ledger.Digest{}
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "closed") == 0 && e.DueAt != ledger.Never {
		e.Closed, e.Response, e.Failure, e.Credit = true, nil, nil, false
		e.DueAt = e.DueAt.Add(e.Terms.Tombstone)
	}
}

// TestGuardAndTableAgree: the one-round-trip path writes exactly when the table, asked about the same row, would have written the same; and
// then the rows are equal. Where its guard does not hold, nothing changes.
func TestGuardAndTableAgree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		h.row, h.claims = arbitraryEntry(h)
		h.fence = h.row.Fence()
		if edge := rapid.SampledFrom([]ledger.Time{0, h.row.Last.LeaseUntil, h.row.DueAt, h.row.HoldFrom}).Draw(t, "edge"); edge > epoch && edge != ledger.Never {
			h.now = edge + ledger.Time(rapid.IntRange(-1, 1).Draw(t, "beside"))
		}
		h.decide(h.request(), h.env())
	})
}

// TestGuardAndTableAgreeOnEveryCell does the same for every kind of report on one entry of every condition, so that none depends on luck.
func TestGuardAndTableAgreeOnEveryCell(t *testing.T) {
	t.Parallel()
	for _, doubt := range []bool{false, true} {
		for state := ledger.Pending; state <= ledger.FailedRetryable; state++ {
			for _, current := range []bool{false, true} {
				for _, passed := range []time.Duration{0, 10 * time.Second, time.Hour, 3 * time.Hour} {
					guardOnCell(t, doubt, state, current, passed)
				}
			}
		}
	}
}

func guardOnCell(t *testing.T, doubt bool, state ledger.State, current bool, passed time.Duration) {
	t.Helper()
	id := ledger.IDHash{1}
	e := &ledger.Entry{
		Incarnation: epoch, Revision: 1, State: state, Fingerprints: fingerprintsOf(command{}), Doubt: doubt, Current: current,
		Terms: ledger.Terms{MaxAttempts: 3, Retention: time.Hour, Tombstone: time.Hour}, HoldFrom: ledger.Never, RunGrants: 1,
		Last:  ledger.Attempt{Number: 1, IDHash: id, Lease: 10 * time.Second, LeaseUntil: epoch.Add(10 * time.Second)},
		DueAt: epoch.Add(time.Hour + 10*time.Second),
	}
	if state != ledger.Pending {
		e.SettledAt = epoch
	}
	env := ledger.Env{Now: epoch.Add(passed), Rules: ledger.BuiltinPolicy().Rules(ledger.Clamp{})}
	for _, c := range []ledger.Claim{{Incarnation: epoch, Attempt: 1, IDHash: id}, {Incarnation: epoch, Attempt: 2}, {Incarnation: 7, Attempt: 1, IDHash: id}} {
		requests := []ledger.Request{ledger.ExtendDecision{Issued: true, Claim: c}}
		for d := ledger.Disposition(0); d <= ledger.Unknown; d++ {
			r := ledger.ReportDecision{Issued: true, Claim: c}
			if d == 0 {
				r.Response = &ledger.Response{}
			} else {
				r.Failure = &ledger.Failure{Code: 9, Disposition: d}
			}
			r.Report = ledger.ReportDigest(r.Response, r.Failure)
			requests = append(requests, r)
		}
		for _, req := range requests {
			if problem := guardAgrees(e, req, env, ledger.Decide(e, req, env)); problem != "" {
				t.Errorf("doubt %t, state %d, current %t, after %v, %T: %s", doubt, state, current, passed, req, problem)
			}
		}
	}
}
