package sqlitestore

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"time"

	"github.com/idemd/idemd/ledger"
)

// An answer or a history of more bytes than this goes to a table of its own, so that the rows that every statement walks stay small.
const (
	inlineAnswer  = 512
	inlineHistory = 512
)

// entryColumns are the columns of an entry without its blobs, in the order of entryValues and scanEntry.
const entryColumns = `scope_id, shard, tenant, operation, key, incarnation, revision, state, closed, due_at, hold_from, current, doubt, credit,
	run_grants, fingerprints, on_abandoned, max_attempts, reclaim_within, retention, tombstone, bound, attempt, attempt_id, holder,
	principal, recover_only, on_credit, lease, began_after, leased_after, ended_after, ended, report, abandoned_after, settled_after, settled_by,
	settlement`

const entryColumnCount = 38

// entryValues are the values of entryColumns, answer and history.
func entryValues(e *ledger.Entry, fingerprints []byte, answer, history blob) []driver.Value {
	v := make([]driver.Value, 0, entryColumnCount+3)
	return append(v,
		e.Scope[:], int64(e.Scope.Shard()), e.Ref.Tenant, e.Ref.Operation, e.Ref.Key, int64(e.Incarnation), e.Revision, int64(e.State),
		flag(e.Closed), int64(e.DueAt), unlessNever(e.HoldFrom), flag(e.Current), flag(e.Doubt), flag(e.Credit),
		int64(e.RunGrants), fingerprints, int64(e.Terms.OnAbandoned), int64(e.Terms.MaxAttempts),
		int64(e.Terms.ReclaimWithin), int64(e.Terms.Retention), tombstone(e.Terms), unlessZero(e.Terms.Bound[:]),
		int64(e.Last.Number), unlessZero(e.Last.IDHash[:]), e.Last.Holder,
		e.Last.Principal, flag(e.Last.RecoverOnly), flag(e.Last.OnCredit), int64(e.Last.Lease), after(e, e.Last.BeganAt),
		after(e, e.Last.LeaseUntil), after(e, e.Last.EndedAt), int64(e.Last.Ended), report(e), after(e, e.AbandonedAt),
		after(e, e.SettledAt), int64(e.SettledBy), unlessZero(e.Settlement[:]),
		answer.inline(inlineAnswer), history.inline(inlineHistory))
}

// scanEntry is the inverse of entryValues.
func scanEntry(row []driver.Value) (*ledger.Entry, error) {
	var e ledger.Entry
	r := reader{row: row}
	r.hash(e.Scope[:])
	r.integer() // shard: a function of the scope
	e.Ref = ledger.Ref{Tenant: r.text(), Operation: r.text(), Key: r.text()}
	e.Incarnation, e.Revision, e.State = r.time(), r.integer(), ledger.State(r.integer())
	e.Closed, e.DueAt, e.HoldFrom = r.flag(), r.time(), r.timeOrNever()
	e.Current, e.Doubt, e.Credit = r.flag(), r.flag(), r.flag()
	e.RunGrants = int32(r.integer())
	fingerprints := r.bytes()
	e.Terms = ledger.Terms{
		OnAbandoned: ledger.OnAbandoned(r.integer()), MaxAttempts: int32(r.integer()),
		ReclaimWithin: time.Duration(r.integer()),
	}
	r.keeping(&e.Terms)
	r.hash(e.Terms.Bound[:])
	e.Last.Number = int32(r.integer())
	r.hash(e.Last.IDHash[:])
	e.Last.Holder, e.Last.Principal = r.text(), r.text()
	e.Last.RecoverOnly, e.Last.OnCredit = r.flag(), r.flag()
	e.Last.Lease, e.Last.BeganAt, e.Last.LeaseUntil = time.Duration(r.integer()), r.after(&e), r.after(&e)
	e.Last.EndedAt, e.Last.Ended = r.after(&e), ledger.Ended(r.integer())
	report := r.bytes()
	e.AbandonedAt, e.SettledAt, e.SettledBy = r.after(&e), r.after(&e), int32(r.integer())
	r.hash(e.Settlement[:])
	if report != nil && copy(e.Last.Report[:], report) == 0 {
		e.Last.Report = e.Settlement
	}
	var err error
	if e.Fingerprints, err = ledger.DecodeFingerprints(fingerprints); err != nil {
		return nil, damaged("fingerprints", &e, err)
	}
	return &e, nil
}

// scanBlobs reads the answer and the history behind the entryColumns: each as it stands in the row, then as it stands in its own table.
func scanBlobs(e *ledger.Entry, row []driver.Value) error {
	answer, err := opened(e.Scope, row[0], row[1])
	if err == nil {
		e.Response, e.Failure, err = ledger.DecodeAnswer(answer)
	}
	if err != nil {
		return damaged("answer", e, err)
	}
	history, err := opened(e.Scope, row[2], row[3])
	if err == nil {
		err = ledger.DecodeHistory(history, e)
	}
	if err != nil {
		return damaged("history", e, err)
	}
	return nil
}

// guardColumns are what the guards and the relative changes of a Settle or an Extend look at, in the order of scanGuarded.
const guardColumns = `id, incarnation, revision, state, closed, current, attempt, hold_from, due_at, bound, doubt, began_after, leased_after, lease,
	retention, tombstone, settled_after, answer IS NOT NULL AND length(answer) = 0, history IS NOT NULL AND length(history) = 0`

// guarded is a row as far as a write needs to know it.
type guarded struct {
	id           int64
	entry        ledger.Entry
	answerApart  bool
	historyApart bool
}

func scanGuarded(row []driver.Value) *guarded {
	r := reader{row: row}
	g := &guarded{id: r.integer()}
	e := &g.entry
	e.Incarnation, e.Revision, e.State = r.time(), r.integer(), ledger.State(r.integer())
	e.Closed, e.Current, e.Last.Number = r.flag(), r.flag(), int32(r.integer())
	e.HoldFrom, e.DueAt = r.timeOrNever(), r.time()
	r.hash(e.Terms.Bound[:])
	e.Doubt = r.flag()
	e.Last.BeganAt, e.Last.LeaseUntil, e.Last.Lease = r.after(e), r.after(e), time.Duration(r.integer())
	r.keeping(&e.Terms)
	e.SettledAt = r.after(e)
	g.answerApart, g.historyApart = r.flag(), r.flag()
	return g
}

// report is the column of the last attempt's report: most often it is the settlement, which then is not stored twice.
func report(e *ledger.Entry) driver.Value {
	if e.Last.Report == e.Settlement && e.Settlement != (ledger.Digest{}) {
		return []byte{}
	}
	return unlessZero(e.Last.Report[:])
}

// reader walks over the values of a row. A value of another type than the schema's (STRICT) says reads as zero.
type reader struct {
	row []driver.Value
}

func (r *reader) next() driver.Value {
	v := r.row[0]
	r.row = r.row[1:]
	return v
}

func (r *reader) integer() int64    { return integer(r.next()) }
func (r *reader) flag() bool        { return r.integer() != 0 }
func (r *reader) time() ledger.Time { return ledger.Time(r.integer()) }
func (r *reader) text() string      { t, _ := r.next().(string); return t }
func (r *reader) hash(into []byte)  { copy(into, r.bytes()) }

// bytes is nil for NULL only; the driver does not tell an empty blob from NULL but by the type of its nil.
func (r *reader) bytes() []byte {
	b, ok := r.next().([]byte)
	if ok && b == nil {
		return []byte{}
	}
	return b
}

// after is a time that is kept as so long after the entry's incarnation, which must have been read.
func (r *reader) after(e *ledger.Entry) ledger.Time {
	if v := r.next(); v != nil {
		return e.Incarnation + ledger.Time(integer(v))
	}
	return 0
}

// keeping reads retention and tombstone, which most often are the same.
func (r *reader) keeping(t *ledger.Terms) {
	t.Retention = time.Duration(r.integer())
	t.Tombstone = t.Retention
	if v := r.next(); v != nil {
		t.Tombstone = time.Duration(integer(v))
	}
}

func (r *reader) timeOrNever() ledger.Time {
	if v := r.next(); v != nil {
		return ledger.Time(integer(v))
	}
	return ledger.Never
}

func integer(v driver.Value) int64 { n, _ := v.(int64); return n }

func flag(b bool) driver.Value {
	if b {
		return int64(1)
	}
	return int64(0)
}

// after is the column of a time of e.
func after(e *ledger.Entry, t ledger.Time) driver.Value {
	if t == 0 {
		return nil
	}
	return int64(t - e.Incarnation)
}

func tombstone(t ledger.Terms) driver.Value {
	if t.Tombstone == t.Retention {
		return nil
	}
	return int64(t.Tombstone)
}

func unlessNever(t ledger.Time) driver.Value {
	if t == ledger.Never {
		return nil
	}
	return int64(t)
}

func unlessZero(hash []byte) driver.Value {
	for _, b := range hash {
		if b != 0 {
			return hash
		}
	}
	return nil
}

var errChecksum = errors.New("checksum does not match: the file is damaged")

// sealed appends a checksum of the blob and its scope. SQLite finds damage to its own structures, not to the content of a row; an answer
// is replayed as the truth, so a damaged one must not be.
func sealed(scope ledger.ScopeID, blob []byte) []byte {
	if blob == nil {
		return nil
	}
	return binary.LittleEndian.AppendUint32(blob, checksum(scope, blob))
}

// opened returns the blob of a column, from the row or from its own table, without its checksum.
func opened(scope ledger.ScopeID, inline, apart driver.Value) ([]byte, error) {
	if inline == nil {
		return nil, nil
	}
	blob, _ := inline.([]byte)
	if len(blob) == 0 {
		blob, _ = apart.([]byte)
	}
	if len(blob) <= 4 {
		return nil, errChecksum
	}
	body := blob[:len(blob)-4]
	if binary.LittleEndian.Uint32(blob[len(body):]) != checksum(scope, body) {
		return nil, errChecksum
	}
	return body, nil
}

func checksum(scope ledger.ScopeID, blob []byte) uint32 {
	return crc32.Update(crc32.Checksum(scope[:], castagnoli), castagnoli, blob)
}
