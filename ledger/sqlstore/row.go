package sqlstore

import (
	"bytes"
	"time"

	"github.com/idemd/idemd/ledger"
)

// column is one column of idemd_entries that a put writes and a read returns.
type column struct {
	name    string
	sqlType string
	// stamped columns hold a time: a relative one ([ledger.In]) is resolved by the statement.
	stamped bool
	// first is what a put's argument for the column is in every first grant, isNull for NULL, and nil where first grants differ in it.
	first any
}

// isNull is the [column.first] of a column that is NULL in every first grant.
type isNull struct{}

// columns is the one list that statements, arguments and scans are made from: put's arguments and scan's targets follow its order.
// idemd_entries has three columns more that the store sets by itself: scope_id, shard and written_at.
var columns = []column{
	{name: "incarnation", sqlType: "INT8", first: int64(ledger.In(0))},
	{name: "revision", sqlType: "INT8", first: int64(1)},
	{name: "tenant", sqlType: "TEXT"},
	{name: "operation", sqlType: "TEXT"},
	{name: "key", sqlType: "TEXT"},
	{name: "state", sqlType: "INT2", first: int16(ledger.Pending)},
	{name: "closed", sqlType: "BOOL", first: false},
	{name: "hold_from", sqlType: "INT8", stamped: true},
	{name: "due_at", sqlType: "INT8", stamped: true},
	{name: "run_grants", sqlType: "INT4", first: int32(1)},
	{name: "credit", sqlType: "BOOL", first: false},
	{name: "doubt", sqlType: "BOOL", first: false},
	{name: "is_current", sqlType: "BOOL", first: true},
	{name: "attempt", sqlType: "INT4", first: int32(1)},
	{name: "id_hash", sqlType: "BYTEA"},
	{name: "holder", sqlType: "TEXT"},
	{name: "principal", sqlType: "TEXT"},
	{name: "recover_only", sqlType: "BOOL", first: false},
	{name: "on_credit", sqlType: "BOOL", first: false},
	{name: "lease_ns", sqlType: "INT8"},
	{name: "began_at", sqlType: "INT8", stamped: true, first: int64(ledger.In(0))},
	{name: "lease_until", sqlType: "INT8", stamped: true},
	{name: "ended_at", sqlType: "INT8", stamped: true, first: int64(0)},
	{name: "ended", sqlType: "INT2", first: int16(0)},
	{name: "report", sqlType: "BYTEA", first: isNull{}},
	{name: "on_abandoned", sqlType: "INT2"},
	{name: "max_attempts", sqlType: "INT4"},
	{name: "reclaim_within_ns", sqlType: "INT8"},
	{name: "retention_ns", sqlType: "INT8"},
	{name: "tombstone_ns", sqlType: "INT8"},
	{name: "bound", sqlType: "BYTEA"},
	{name: "abandoned_at", sqlType: "INT8", stamped: true, first: int64(0)},
	{name: "settled_at", sqlType: "INT8", stamped: true, first: int64(0)},
	{name: "settled_by", sqlType: "INT4", first: int32(0)},
	{name: "settlement", sqlType: "BYTEA", first: isNull{}},
	{name: "fingerprints", sqlType: "BYTEA"},
	{name: "answer", sqlType: "BYTEA", first: isNull{}},
	{name: "history", sqlType: "BYTEA", first: isNull{}},
	{name: "apart", sqlType: "BOOL", first: false},
}

// maxInline is the size up to which an answer or a history stands in the entry's own row. A larger one goes to idemd_bodies: a row is
// rewritten whole by every update of it, and CockroachDB reads it whole, too.
const maxInline = 8 << 10

// blobs are the parts of an entry that no statement looks into.
type blobs struct {
	answer, history           []byte // in the row
	answerApart, historyApart []byte // in idemd_bodies
}

func (b *blobs) apart() bool { return b.answerApart != nil || b.historyApart != nil }

func place(blob []byte) (inline, apart []byte) {
	if len(blob) > maxInline {
		return nil, blob
	}
	return blob, nil
}

func blobsOf(e *ledger.Entry) (b blobs) {
	b.answer, b.answerApart = place(ledger.EncodeAnswer(e.Response, e.Failure))
	b.history, b.historyApart = place(ledger.EncodeHistory(e))
	return b
}

// putArgs are the values of columns for e as it shall stand, at that revision.
func putArgs(e *ledger.Entry, revision int64, b *blobs) []any {
	last := &e.Last
	return []any{
		int64(e.Incarnation), revision, e.Ref.Tenant, e.Ref.Operation, e.Ref.Key, int16(e.State), e.Closed, int64(e.HoldFrom),
		int64(e.DueAt), e.RunGrants, e.Credit, e.Doubt, e.Current,
		last.Number, bytes.Clone(last.IDHash[:]), last.Holder, last.Principal, last.RecoverOnly, last.OnCredit, int64(last.Lease),
		int64(last.BeganAt), int64(last.LeaseUntil), int64(last.EndedAt), int16(last.Ended), orNull(last.Report[:]),
		int16(e.Terms.OnAbandoned), e.Terms.MaxAttempts, int64(e.Terms.ReclaimWithin), int64(e.Terms.Retention), int64(e.Terms.Tombstone),
		orNull(e.Terms.Bound[:]), int64(e.AbandonedAt), int64(e.SettledAt), e.SettledBy, orNull(e.Settlement[:]),
		ledger.EncodeFingerprints(e.Fingerprints), b.answer, b.history, b.apart(),
	}
}

// orNull is a copy of a hash, NULL where it is not set. A copy, because a statement can outlive the call that it was made for.
func orNull(hash []byte) []byte {
	for _, b := range hash {
		if b != 0 {
			return bytes.Clone(hash)
		}
	}
	return nil
}

// row is what a read returns of one entry: columns, in order, and the blobs that stand apart. Everything is nullable: a read of a scope
// without a row answers with nothing but the clock.
type row struct {
	scope []byte

	incarnation, revision, holdFrom, dueAt                *int64
	tenant, operation, key, holder, principal             *string
	state, ended, onAbandoned                             *int16
	closed, credit, doubt, current, recoverOnly, onCredit *bool
	apart                                                 *bool
	runGrants, attempt, maxAttempts, settledBy            *int32
	lease, reclaimWithin, retention, tombstone            *int64
	beganAt, leaseUntil, endedAt, abandonedAt, settledAt  *int64
	idHash, report, bound, settlement, fingerprints       []byte
	answer, history, answerApart, historyApart            []byte
}

// targets are where a read of columns and the blobs that stand apart is scanned into.
func (r *row) targets() []any {
	return []any{
		&r.scope, &r.incarnation, &r.revision, &r.tenant, &r.operation, &r.key, &r.state, &r.closed, &r.holdFrom,
		&r.dueAt, &r.runGrants, &r.credit, &r.doubt, &r.current,
		&r.attempt, &r.idHash, &r.holder, &r.principal, &r.recoverOnly, &r.onCredit, &r.lease,
		&r.beganAt, &r.leaseUntil, &r.endedAt, &r.ended, &r.report,
		&r.onAbandoned, &r.maxAttempts, &r.reclaimWithin, &r.retention, &r.tombstone,
		&r.bound, &r.abandonedAt, &r.settledAt, &r.settledBy, &r.settlement,
		&r.fingerprints, &r.answer, &r.history, &r.apart, &r.answerApart, &r.historyApart,
	}
}

func (r *row) size() int {
	return len(r.answer) + len(r.history) + len(r.answerApart) + len(r.historyApart)
}

// entry is the entry that a row with a scope holds. What it returns with an error, which is [notUsable]'s, is the entry as far as its columns say.
func (r *row) entry() (*ledger.Entry, error) {
	e := &ledger.Entry{
		Ref:         ledger.Ref{Tenant: *r.tenant, Operation: *r.operation, Key: *r.key},
		Incarnation: ledger.Time(*r.incarnation), Revision: *r.revision, State: ledger.State(*r.state), Closed: *r.closed,
		HoldFrom: ledger.Time(*r.holdFrom), DueAt: ledger.Time(*r.dueAt), RunGrants: *r.runGrants, Credit: *r.credit, Doubt: *r.doubt,
		Current: *r.current, AbandonedAt: ledger.Time(*r.abandonedAt), SettledAt: ledger.Time(*r.settledAt), SettledBy: *r.settledBy,
		Last: ledger.Attempt{
			Number: *r.attempt, Holder: *r.holder, Principal: *r.principal, RecoverOnly: *r.recoverOnly, OnCredit: *r.onCredit,
			Lease: time.Duration(*r.lease), BeganAt: ledger.Time(*r.beganAt), LeaseUntil: ledger.Time(*r.leaseUntil),
			EndedAt: ledger.Time(*r.endedAt), Ended: ledger.Ended(*r.ended),
		},
		Terms: ledger.Terms{
			OnAbandoned: ledger.OnAbandoned(*r.onAbandoned), MaxAttempts: *r.maxAttempts, ReclaimWithin: time.Duration(*r.reclaimWithin),
			Retention: time.Duration(*r.retention), Tombstone: time.Duration(*r.tombstone),
		},
	}
	// The schema checks the lengths; NULL is the zero hash.
	copy(e.Scope[:], r.scope)
	copy(e.Last.IDHash[:], r.idHash)
	copy(e.Last.Report[:], r.report)
	copy(e.Terms.Bound[:], r.bound)
	copy(e.Settlement[:], r.settlement)
	return e, r.decode(e)
}

func (r *row) decode(e *ledger.Entry) (err error) {
	if e.Fingerprints, err = ledger.DecodeFingerprints(r.fingerprints); err != nil {
		return notUsable("fingerprints", err)
	}
	if e.Response, e.Failure, err = ledger.DecodeAnswer(whole(r.answer, r.answerApart)); err != nil {
		return notUsable("answer", err)
	}
	if err = ledger.DecodeHistory(whole(r.history, r.historyApart), e); err != nil {
		return notUsable("history", err)
	}
	return nil
}

// whole is a blob from whichever of its two places it stands in.
func whole(inline, apart []byte) []byte {
	if inline != nil {
		return inline
	}
	return apart
}

// stampsRow is what a write returns of the row that it wrote.
type stampsRow struct {
	now, incarnation, revision, beganAt, leaseUntil, settledAt, dueAt, holdFrom, lease, retention, tombstone int64
}

// stampColumns are the columns of stampsRow, in its order.
var stampColumns = []string{
	"written_at", "incarnation", "revision", "began_at", "lease_until", "settled_at", "due_at", "hold_from", "lease_ns", "retention_ns",
	"tombstone_ns",
}

func (r *stampsRow) targets() []any {
	return []any{
		&r.now, &r.incarnation, &r.revision, &r.beganAt, &r.leaseUntil, &r.settledAt, &r.dueAt, &r.holdFrom, &r.lease, &r.retention,
		&r.tombstone,
	}
}

func (r *stampsRow) stamps() ledger.Stamps {
	return ledger.Stamps{
		Now: ledger.Time(r.now), Incarnation: ledger.Time(r.incarnation), Revision: r.revision, BeganAt: ledger.Time(r.beganAt),
		LeaseUntil: ledger.Time(r.leaseUntil), SettledAt: ledger.Time(r.settledAt), DueAt: ledger.Time(r.dueAt),
		HoldFrom: ledger.Time(r.holdFrom), Lease: time.Duration(r.lease), Retention: time.Duration(r.retention),
		Tombstone: time.Duration(r.tombstone),
	}
}
