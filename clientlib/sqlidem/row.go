package sqlidem

import (
	"bytes"
	"fmt"
	"time"

	"github.com/idemd/idemd/ledger"
)

// A row of level 1 holds what can differ from one entry to the next. The rest of an entry follows: there is one attempt, and its transaction is
// its lease. An entry that is pending for all to see is one whose work committed by itself, so that nobody knows; it is not run again.
const (
	onlyAttempt = 1
	// workLease is as long as a pending entry that can be seen counts as being worked on. Transactions are over long before.
	workLease = ledger.MaxLease
)

// entryRow is what a reading returns of one entry. Everything is nullable: a scope without a row answers with nothing.
type entryRow struct {
	incarnation, revision, settledAt, dueAt, retention, tombstone *int64
	state                                                         *int64
	closed                                                        *bool
	attemptID, fingerprints, report, answer                       []byte
}

func (r *entryRow) targets() []any {
	return []any{
		&r.incarnation, &r.revision, &r.state, &r.closed, &r.attemptID, &r.settledAt, &r.dueAt, &r.retention, &r.tombstone, &r.fingerprints,
		&r.report, &r.answer,
	}
}

// entry is the entry that the row holds, nil where there is no row.
func (r *entryRow) entry(scope ledger.ScopeID, ref ledger.Ref) (*ledger.Entry, error) {
	if r.incarnation == nil {
		return nil, nil
	}
	e := &ledger.Entry{
		Scope: scope, Ref: ref, Incarnation: ledger.Time(*r.incarnation), Revision: *r.revision, State: ledger.State(*r.state), Closed: *r.closed,
		SettledAt: ledger.Time(*r.settledAt), DueAt: ledger.Time(*r.dueAt), RunGrants: 1, Current: true,
		Terms: ledger.Terms{
			OnAbandoned: ledger.Hold, MaxAttempts: onlyAttempt, Retention: time.Duration(*r.retention), Tombstone: time.Duration(*r.tombstone),
		},
		Last: ledger.Attempt{
			Number: onlyAttempt, Lease: workLease, BeganAt: ledger.Time(*r.incarnation), LeaseUntil: ledger.Time(*r.incarnation).Add(workLease),
		},
	}
	copy(e.Last.IDHash[:], r.attemptID)
	copy(e.Last.Report[:], r.report)
	if e.State != ledger.Pending {
		e.SettledBy, e.Settlement, e.Last.EndedAt = onlyAttempt, e.Last.Report, e.SettledAt
		if e.Last.Ended = ledger.EndedCompleted; e.State == ledger.FailedFinal {
			e.Last.Ended = ledger.EndedFinal
		}
	}
	var err error
	if e.Fingerprints, err = ledger.DecodeFingerprints(r.fingerprints); err != nil {
		return nil, fmt.Errorf("the fingerprints of a row: %w", err)
	}
	if e.Response, e.Failure, err = ledger.DecodeAnswer(r.answer); err != nil {
		return nil, fmt.Errorf("the answer of a row: %w", err)
	}
	return e, nil
}

func scopeArgs(ref ledger.Ref) []any { return []any{ref.Tenant, ref.Operation, ref.Key} }

// claimArgs are the parameters of dialect.claim for a first grant.
func claimArgs(e *ledger.Entry) []any {
	return append(scopeArgs(e.Ref), int64(e.Scope.Shard()), bytes.Clone(e.Last.IDHash[:]), int64(e.Terms.Retention), int64(e.Terms.Tombstone),
		ledger.EncodeFingerprints(e.Fingerprints))
}

// replaceArgs are the parameters of dialect.replace for a grant over a row that is forgotten.
func replaceArgs(w *ledger.Write) []any {
	e := w.Put
	return append(scopeArgs(e.Ref), int64(w.Guard.Incarnation), w.Guard.Revision, int64(w.MinIncarnation), bytes.Clone(e.Last.IDHash[:]),
		int64(e.Terms.Retention), int64(e.Terms.Tombstone), ledger.EncodeFingerprints(e.Fingerprints))
}

// settleArgs are the parameters of dialect.settle.
func settleArgs(e *ledger.Entry, s *ledger.Settle) []any {
	return append(scopeArgs(e.Ref), int64(e.Incarnation), e.Revision, int64(s.State), max(e.Terms.Retention, s.Retention).Microseconds(),
		bytes.Clone(s.Report[:]), ledger.EncodeAnswer(s.Response, s.Failure))
}
