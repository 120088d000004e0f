package ledger_test

import (
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// BenchmarkDecide is the decision table alone, one row of it at a time.
func BenchmarkDecide(b *testing.B) {
	id, otherID := ledger.IDHash{1}, ledger.IDHash{2}
	begin := ledger.BeginDecision{Fingerprints: fingerprintsOf(command{}), IDHash: otherID, Holder: "payments-7f9c"}
	mismatch := begin
	mismatch.Fingerprints = fingerprintsOf(command{args: map[string]string{"hash": "h2"}})
	report := ledger.ReportDecision{
		Issued: true, Claim: ledger.Claim{Incarnation: epoch, Attempt: 1, IDHash: id}, Response: &ledger.Response{Body: make([]byte, 200)}, Report: ledger.Digest{9},
	}
	live := &ledger.Entry{
		Incarnation: epoch, Revision: 1, State: ledger.Pending, Current: true, Fingerprints: fingerprintsOf(command{}), HoldFrom: ledger.Never, RunGrants: 1,
		Terms: ledger.Terms{MaxAttempts: 10, Retention: time.Hour, Tombstone: time.Hour}, DueAt: epoch.Add(2 * time.Hour),
		Last: ledger.Attempt{Number: 1, IDHash: id, Lease: time.Minute, BeganAt: epoch, LeaseUntil: epoch.Add(time.Minute)},
	}
	completed := *live
	completed.State, completed.SettledAt, completed.SettledBy, completed.Settlement = ledger.Completed, epoch, 1, report.Report
	completed.Response, completed.Last.Ended, completed.Last.EndedAt, completed.Last.Report = report.Response, ledger.EndedCompleted, epoch, report.Report
	env := ledger.Env{Now: epoch.Add(time.Second), Rules: ledger.BuiltinPolicy().Rules(ledger.Clamp{})}
	late := env
	late.Now = epoch.Add(10 * time.Minute)

	for _, row := range []struct {
		name    string
		entry   *ledger.Entry
		request ledger.Request
		env     ledger.Env
		want    ledger.Outcome
	}{
		{"Begin=fresh", nil, begin, env, ledger.Granted},
		{"Begin=live", live, begin, env, ledger.InProgress},
		{"Begin=abandoned", live, begin, late, ledger.Granted},
		{"Begin=completed", &completed, begin, env, ledger.Replayed},
		{"Begin=mismatch", &completed, mismatch, env, ledger.Refused},
		{"Complete=live", live, report, env, ledger.Done},
		{"Complete=resent", &completed, report, env, ledger.Unchanged},
		{"Extend=live", live, ledger.ExtendDecision{Issued: true, Claim: report.Claim}, env, ledger.Renewed},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := ledger.Decide(row.entry, row.request, row.env); got.Outcome != row.want {
					b.Fatalf("came to %d, %v", got.Outcome, got.Refusal)
				}
			}
		})
	}
}
