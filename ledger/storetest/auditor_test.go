package storetest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// told is a small language to tell an auditor what happened to one entry.
type told struct {
	*auditor
	now ledger.Time
}

const auditedKey = "key"

// auditedTerms is what the policy of these tests promises.
var auditedTerms = promise{retention: time.Hour, tombstone: 2 * time.Hour}

func (x *told) pass(d time.Duration) { x.now = x.now.Add(d) }

// grantOf is a grant of an attempt of the incarnation that began at the start of time, with a lease of a minute from now.
func (x *told) grantOf(attempt int32) *ledger.Grant {
	return &ledger.Grant{
		Token: []byte{byte(attempt)}, Attempt: attempt, Incarnation: 1000, Fence: 1000 + int64(attempt), LeaseUntil: x.now.Add(time.Minute),
	}
}

func (x *told) begin(id byte, result ledger.BeginResult, err error) {
	x.began(auditedKey, ledger.BeginRequest{AttemptID: [16]byte{15: id}}, answer{result, err}, auditedTerms, x.now)
}

func (x *told) grant(id byte, g *ledger.Grant) { x.begin(id, ledger.BeginResult{Granted: g}, nil) }

func (x *told) recover(id byte, g *ledger.Grant) {
	x.began(auditedKey, ledger.BeginRequest{AttemptID: [16]byte{15: id}, Mode: ledger.Recover}, answer{ledger.BeginResult{Granted: g}, nil},
		auditedTerms, x.now)
}

func (x *told) refuse(reason ledger.Reason) {
	x.begin(99, ledger.BeginResult{}, &ledger.Refusal{Reason: reason})
}

func (x *told) completed(code int32, body string) {
	x.begin(98, ledger.BeginResult{Completed: &ledger.Answer{
		Response: &ledger.Response{Code: code, Body: []byte(body)}, Attempt: 1, SettledAt: 5000,
	}}, nil)
}

// report tells of a report that was taken, with times as the policy promises them.
func (x *told) report(g *ledger.Grant, r playedReport) {
	expires := x.now.Add(auditedTerms.retention)
	x.reported(auditedKey, g, r, answer{ledger.ReportResult{
		Attempt: g.Attempt, SettledAt: x.now, ExpiresAt: expires, ForgetAt: expires.Add(auditedTerms.tombstone),
	}, nil}, auditedTerms, x.now)
}

// resolve tells of an operator's decision that was taken, or was taken before.
func (x *told) resolve(r ledger.ResolveRequest, resent bool) {
	x.resolved(auditedKey, r, answer{ledger.Resolved{Resent: resent}, nil}, auditedTerms, x.now)
}

func (x *told) row(change func(*ledger.Entry)) {
	row := &ledger.Entry{
		Incarnation: 1000, Revision: 1, State: ledger.Pending, Current: true, Last: ledger.Attempt{Number: 1}, HoldFrom: ledger.Never, DueAt: 9000,
	}
	if change != nil {
		change(row)
	}
	x.sees(auditedKey, row, x.now)
}

func (x *told) noRow() { x.sees(auditedKey, nil, x.now) }

var (
	success   = playedReport{response: &ledger.Response{Code: 0}}
	other     = playedReport{response: &ledger.Response{Code: 1}}
	final     = playedReport{failure: &ledger.Failure{Code: 3, Disposition: ledger.Final}}
	retryable = playedReport{failure: &ledger.Failure{Code: 3, Disposition: ledger.Retryable}}
	unknown   = playedReport{failure: &ledger.Failure{Code: 3, Disposition: ledger.Unknown}}
)

// auditorCase is what the auditor is told, and a part of what it must complain of: "" where nothing is wrong.
type auditorCase struct {
	complaint string
	tell      func(*told)
}

func TestAuditorComplainsOfEachBrokenPromise(t *testing.T) {
	t.Parallel()
	for _, c := range slices.Concat(auditedClaims(), auditedSettlements(), auditedPromises(), auditedRows()) {
		x := &told{auditor: newAuditor(), now: 5000}
		c.tell(x)
		got := strings.Join(x.complaints, "\n")
		if c.complaint == "" && got != "" || !strings.Contains(got, c.complaint) {
			t.Errorf("want %q, got %q", c.complaint, got)
		}
	}
}

// afterAbandoned makes g a claim that is told of the one before.
func afterAbandoned(g *ledger.Grant) *ledger.Grant {
	g.PreviousAbandoned = true
	return g
}

// auditedClaims: who was granted what, and what they were told of those before them.
func auditedClaims() []auditorCase {
	return []auditorCase{
		{"", func(x *told) { x.grant(1, x.grantOf(1)); x.row(nil); x.grant(1, x.grantOf(1)) }},
		{"", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.pass(time.Minute)
			x.grant(2, afterAbandoned(x.grantOf(2)))
		}},
		{"while attempt 1 had its claim", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.pass(time.Minute - time.Microsecond)
			x.grant(2, afterAbandoned(x.grantOf(2)))
		}},
		{"", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, retryable)
			x.grant(2, x.grantOf(2))
		}},
		{"not told that an earlier one was abandoned", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.pass(time.Hour)
			x.grant(2, x.grantOf(2))
		}},
		{"not told that an earlier one was abandoned", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, unknown)
			x.grant(2, x.grantOf(2))
		}},
		{"", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.pass(time.Minute)
			recovery := afterAbandoned(x.grantOf(2))
			x.recover(2, recovery)
			x.report(recovery, retryable)
			x.grant(3, x.grantOf(3))
		}},
		{"granted after attempt", func(x *told) {
			x.grant(1, x.grantOf(2))
			x.pass(time.Hour)
			x.grant(2, afterAbandoned(x.grantOf(1)))
		}},
		{"the fence went from", func(x *told) {
			x.grant(1, x.grantOf(2))
			x.pass(time.Hour)
			x.grant(2, afterAbandoned(x.grantOf(1)))
		}},
		{"was told the fence", func(x *told) { g := x.grantOf(1); g.Fence++; x.grant(1, g) }},
		{"a lease until", func(x *told) { g := x.grantOf(1); g.LeaseUntil = x.now; x.grant(1, g) }},
		{"granted to attempt id 1 and to 2", func(x *told) { x.grant(1, x.grantOf(1)); x.grant(2, x.grantOf(1)) }},
		{"granted to attempt id 1 and to 1", func(x *told) {
			x.grant(1, x.grantOf(1))
			g := x.grantOf(1)
			g.Token = []byte("another")
			x.grant(1, g)
		}},
		{"was granted attempt 1 and attempt 2", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.pass(time.Hour)
			x.grant(1, afterAbandoned(x.grantOf(2)))
		}},
	}
}

// auditedSettlements: claims that are lost, and answers that stay.
func auditedSettlements() []auditorCase {
	return []auditorCase{
		{"lost its claim, and was told that it has it", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.pass(time.Minute)
			x.grant(2, afterAbandoned(x.grantOf(2)))
			x.grant(1, x.grantOf(1))
		}},
		{"lost its claim, and then extended it", func(x *told) {
			first := x.grantOf(1)
			x.grant(1, first)
			x.pass(time.Minute)
			x.grant(2, afterAbandoned(x.grantOf(2)))
			x.extended(auditedKey, first, answer{ledger.ExtendResult{LeaseUntil: x.now + 1}, nil}, x.now)
		}},
		{"was told that its lease lasts until", func(x *told) {
			first := x.grantOf(1)
			x.grant(1, first)
			x.extended(auditedKey, first, answer{ledger.ExtendResult{LeaseUntil: first.LeaseUntil - 1}, nil}, x.now)
		}},
		{"had its claim until", func(x *told) {
			first := x.grantOf(1)
			x.grant(1, first)
			x.mayLandLate(auditedKey, x.now)
			x.pass(time.Second)
			x.grant(2, afterAbandoned(x.grantOf(2)))
		}},
		{"had its claim until", func(x *told) {
			first := x.grantOf(1)
			x.grant(1, first)
			x.extended(auditedKey, first, answer{ledger.ExtendResult{LeaseUntil: x.now.Add(time.Hour)}, nil}, x.now)
			x.pass(time.Minute)
			x.grant(2, afterAbandoned(x.grantOf(2)))
		}},
		{"settled for good as completed 0, and then attempt 2 was granted", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.pass(2 * time.Hour)
			x.grant(2, x.grantOf(2))
		}},
		{"settled for good as completed 0, and then as completed 1", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.report(g, other)
		}},
		{"settled for good as completed 0, and then as failed 3", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.report(g, final)
		}},
		{"the answer was", func(x *told) { x.completed(0, "a"); x.completed(0, "b") }},
		{"", func(x *told) { x.completed(0, "a"); x.completed(0, "a") }},
		{"as if it might be tried again", func(x *told) {
			x.completed(0, "a")
			x.begin(2, ledger.BeginResult{Failed: &ledger.Answer{Failure: retryable.failure}}, nil)
		}},
		{"refused EXPIRED", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.pass(time.Hour - time.Microsecond)
			x.refuse(ledger.ReasonExpired)
		}},
		{"", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.pass(time.Hour)
			x.refuse(ledger.ReasonExpired)
		}},
	}
}

// auditedPromises: how long things are kept.
func auditedPromises() []auditorCase {
	return []auditorCase{
		{"told to be in progress", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.begin(2, ledger.BeginResult{InProgress: &ledger.Progress{}}, nil)
		}},
		{"told to expire at", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.reported(auditedKey, g, success, answer{ledger.ReportResult{
				SettledAt: x.now, ExpiresAt: x.now.Add(time.Minute), ForgetAt: x.now.Add(9 * time.Hour),
			}, nil}, auditedTerms, x.now)
		}},
		{"told no time of it", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.reported(auditedKey, g, success, answer{ledger.ReportResult{}, nil}, auditedTerms, x.now)
		}},
		{"its row is gone", func(x *told) { x.grant(1, x.grantOf(1)); x.noRow() }},
		{"its row is gone", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.row(nil)
			x.report(g, success)
			x.pass(3*time.Hour - time.Microsecond)
			x.noRow()
		}},
		{"", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.row(nil)
			x.report(g, success)
			x.pass(3 * time.Hour)
			x.noRow()
		}},
		{"held for an operator", func(x *told) {
			x.row(func(e *ledger.Entry) { e.HoldFrom = 0 })
			x.pass(100 * time.Hour)
			x.noRow()
		}},
		{"refused ENTRY_NOT_FOUND", func(x *told) { x.grant(1, x.grantOf(1)); x.refuse(ledger.ReasonEntryNotFound) }},
		{"granted anew", func(x *told) {
			x.grant(1, x.grantOf(1))
			g := x.grantOf(1)
			g.Incarnation, g.Fence = 2000, 2001
			x.grant(2, g)
		}},
		{"is not above the fence", func(x *told) {
			x.grant(1, x.grantOf(5))
			x.pass(100 * time.Hour)
			g := x.grantOf(1)
			g.Incarnation, g.Fence = 1005, 1006
			x.grant(2, g)
		}},
	}
}

// auditedRows: what stands in the rows, and what else callers are told.
func auditedRows() []auditorCase {
	return []auditorCase{
		{"knows nothing of it", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, retryable)
			x.grant(2, x.grantOf(2))
			x.row(nil)
		}},
		{"the row went back", func(x *told) { x.row(func(e *ledger.Entry) { e.Revision = 2 }); x.row(nil) }},
		{"changed within revision 1", func(x *told) { x.row(nil); x.row(func(e *ledger.Entry) { e.Doubt = true }) }},
		{"its settlement changed", func(x *told) {
			x.row(func(e *ledger.Entry) { e.State = ledger.Completed })
			x.row(func(e *ledger.Entry) { e.State, e.Revision = ledger.FailedFinal, 2 })
		}},
		{"came back to life", func(x *told) {
			x.row(func(e *ledger.Entry) { e.Closed = true })
			x.row(func(e *ledger.Entry) { e.Revision = 2 })
		}},
		{"the row has 1 attempts", func(x *told) { x.row(func(e *ledger.Entry) { e.Last.Number = 2 }) }},
		{"the row is of incarnation", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.row(func(e *ledger.Entry) { e.Incarnation = 500 })
		}},
		{"a forged token was good", func(x *told) { x.forged(auditedKey, answer{ledger.ReportResult{}, nil}) }},
		{"looked up as", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.lookedUp(auditedKey, answer{ledger.View{Entry: &ledger.Entry{State: ledger.Pending}, Now: x.now}, nil}, x.now)
		}},
		{"settled for good as completed 0, and then as failed 3", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.resolve(ledger.ResolveRequest{Action: ledger.ResolveFail, Failure: final.failure}, true)
		}},
		{"", func(x *told) {
			x.grant(1, x.grantOf(1))
			x.resolve(ledger.ResolveRequest{Action: ledger.ResolveRelease, Attempt: 1}, false)
			x.grant(2, afterAbandoned(x.grantOf(2)))
		}},
		{"", func(x *told) {
			g := x.grantOf(1)
			x.grant(1, g)
			x.report(g, success)
			x.erased(x.now)
			x.refuse(ledger.ReasonExpired)
			x.pass(3 * time.Hour)
			x.noRow()
		}},
	}
}

// TestHistoriesCatchBrokenStores: what the ledger relies on, taken away, shows in what its callers are told.
func TestHistoriesCatchBrokenStores(t *testing.T) {
	t.Parallel()
	for _, d := range defects() {
		switch d.name {
		case "ignores the revision", "ignores the attempt", "ignores the incarnation of a claim", "ignores the state", "ignores the lapse",
			"ignores doubt", "ignores the binding", "lets the last retention win", "lapses what is held once it is given up",
			"leaves a claim current that was given up", "loses the history with an extension",
			"ignores whether the attempt is current", "extends from the end of the lease", "keeps metadata as a map":
		default:
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			r := &recorder{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				playHistories(r, Factory{Open: func(testing.TB) *Backend { return openBroken(d) }}, 1, 0, 300)
			}()
			<-done
			if len(r.complaints) == 0 {
				t.Error("not caught by 300 histories")
			} else {
				t.Logf("%.1500s", r.complaints[0])
			}
		})
	}
}
