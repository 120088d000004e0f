package sqlidem

import (
	"reflect"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// A row holds less than an entry. What it leaves out follows, exactly: an entry that is read back is the entry that was decided on.
func TestAnEntryReadBackIsTheOneThatWasWritten(t *testing.T) {
	t.Parallel()
	ref := ledger.Ref{Tenant: "t", Operation: "o", Key: "k"}
	scope := scopeSecret.Scope(ref)
	rules := Rules{Retention: time.Hour}.policy().Rules(ledger.Clamp{})
	begin := ledger.BeginDecision{
		Scope: scope, Ref: ref, Fingerprints: []ledger.Fingerprint{{Algorithm: "a", Hash: make([]byte, 32)}}, IDHash: ledger.IDHash{7},
	}
	const claimedAt, settledAt = ledger.Time(1_000_000_000), ledger.Time(1_000_500_000)
	claim := ledger.Speculate(begin, ledger.Env{Rules: rules})
	pendingEntry, ok := claim.Apply(nil, claimedAt)
	if !ok {
		t.Fatal("the claim does not apply")
	}
	response := &ledger.Response{Body: []byte("done")}
	failure := &ledger.Failure{Code: 9, Message: "no", Disposition: ledger.Final}
	written := []*ledger.Entry{pendingEntry}
	for _, report := range []ledger.ReportDecision{
		{Response: response, Report: ledger.ReportDigest(response, nil)}, {Failure: failure, Report: ledger.ReportDigest(nil, failure)},
	} {
		report.Scope, report.Issued = scope, true
		report.Claim = ledger.Claim{Incarnation: pendingEntry.Incarnation, Attempt: onlyAttempt, IDHash: begin.IDHash}
		verdict := ledger.Decide(pendingEntry, report, ledger.Env{Now: claimedAt, Rules: rules})
		settled, ok := verdict.Write.Apply(pendingEntry, settledAt)
		if !ok {
			t.Fatal("the report does not apply")
		}
		written = append(written, settled)
		_, closing := ledger.DecideSweep(settled, settled.DueAt)
		closed, _ := closing.Apply(settled, settled.DueAt)
		written = append(written, closed)
	}
	for _, want := range written {
		row := rowOf(want)
		got, err := row.entry(scope, ref)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read\n%+v, %v\nwritten\n%+v", got, err, want)
		}
	}
}

// rowOf is the row that the statements write for an entry.
func rowOf(e *ledger.Entry) *entryRow {
	number := func(v int64) *int64 { return &v }
	row := &entryRow{
		incarnation: number(int64(e.Incarnation)), revision: number(e.Revision), state: number(int64(e.State)), closed: &e.Closed,
		attemptID: e.Last.IDHash[:], settledAt: number(int64(e.SettledAt)), dueAt: number(int64(e.DueAt)),
		retention: number(int64(e.Terms.Retention)), tombstone: number(int64(e.Terms.Tombstone)),
		fingerprints: ledger.EncodeFingerprints(e.Fingerprints), answer: ledger.EncodeAnswer(e.Response, e.Failure),
	}
	if e.Last.Report != (ledger.Digest{}) {
		row.report = e.Last.Report[:]
	}
	return row
}
