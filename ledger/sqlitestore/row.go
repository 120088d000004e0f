package sqlitestore

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/idemd/idemd/ledger"
)

// inlineBytes is how long an answer or a history may be in its row. A longer one goes to a table of its own, so that the rows that every statement walks stay
// small.
const inlineBytes = 512

// entryColumns are the columns that are written of an entry, in the order of entryValues.
const entryColumns = foundBy + `key, revision, state, closed, due_at, attempt, holder, principal, leased_after, settled_after,
	details, answer, history`

const entryColumnCount = 17

// foundBy are the first of them, which an entry keeps; but for its name, once it is erased, and its incarnation, once it was forgotten and begins anew.
const (
	foundBy      = `scope_head, scope_tail, name, incarnation, `
	foundByCount = 4
)

// entryValues are the values of entryColumns. There is room for one more behind them.
func entryValues(e *ledger.Entry, name int64, p *prepared) []any {
	d := details{fingerprints: p.fingerprints, answerApart: p.answer.apart(), historyApart: p.history.apart()}
	return columnsOf(e, name, d, p.answer.inline(), p.history.inline())
}

func columnsOf(e *ledger.Entry, name int64, d details, answer, history any) []any {
	head, tail := scopeKey(&e.Scope)
	return append(make([]any, 0, entryColumnCount+1),
		head, tail, name, int64(e.Incarnation), e.Ref.Key, e.Revision, int64(e.State), flag(e.Closed), int64(e.DueAt),
		int64(e.Last.Number), e.Last.Holder, e.Last.Principal, after(e, e.Last.LeaseUntil), after(e, e.SettledAt),
		encodeDetails(e, d), answer, history)
}

// scopeKey is what a scope is found by: its first 8 bytes as a number, and the rest.
func scopeKey(scope *ledger.ScopeID) (head int64, tail []byte) {
	const signBit = 1 << 63                                               // so that the numbers order as the bytes do
	return int64(binary.BigEndian.Uint64(scope[:8]) ^ signBit), scope[8:] //nolint:gosec // all 64 bits are meant
}

// readColumns are the columns that scanEntry reads, without answer and history.
const readColumns = `e.scope_head, e.scope_tail, n.tenant, n.operation, e.key, e.incarnation, e.revision, e.state, e.closed, e.due_at, e.attempt, e.holder,
	e.principal, e.leased_after, e.settled_after, e.details`

const readColumnCount = 16

// scanEntry reads an entry. What it returns with an error is the entry as far as its columns say.
func scanEntry(row []any) (*ledger.Entry, error) {
	var e ledger.Entry
	r := reader{row: row}
	r.scope(&e.Scope)
	e.Ref = ledger.Ref{Tenant: r.text(), Operation: r.text(), Key: r.text()}
	e.Incarnation, e.Revision, e.State = r.time(), r.integer(), ledger.State(r.integer())
	e.Closed, e.DueAt = r.flag(), r.time()
	e.Last.Number, e.Last.Holder, e.Last.Principal = int32(r.integer()), r.text(), r.text()
	e.Last.LeaseUntil, e.SettledAt = r.after(&e), r.after(&e)
	d, err := decodeDetails(&e, r.bytes())
	if err == nil {
		e.Fingerprints, err = ledger.DecodeFingerprints(d.fingerprints)
	}
	if err != nil {
		return &e, unusable("details", &e, err)
	}
	return &e, nil
}

// scanBlobs reads the answer and the history behind the readColumns: each as it stands in the row, then as it stands in its own table.
func scanBlobs(e *ledger.Entry, row []any) error {
	answer, err := opened(&e.Scope, row[0], row[1])
	if err == nil {
		e.Response, e.Failure, err = ledger.DecodeAnswer(answer)
	}
	if err != nil {
		return unusable("answer", e, err)
	}
	history, err := opened(&e.Scope, row[2], row[3])
	if err == nil {
		err = ledger.DecodeHistory(history, e)
	}
	if err != nil {
		return unusable("history", e, err)
	}
	return nil
}

// guardColumns are what the guards and the relative changes of a Settle or an Extend look at, in the order of scanGuarded.
const guardColumns = `id, name, incarnation, revision, state, closed, due_at, attempt, leased_after, settled_after, details`

// guarded is a row as far as a write needs to know it.
type guarded struct {
	id    int64
	name  int64
	entry ledger.Entry // without names, key, holder, principal, fingerprints, answer and history
	details
}

func scanGuarded(scope *ledger.ScopeID, row []any) (*guarded, error) {
	r := reader{row: row}
	g := &guarded{id: r.integer(), name: r.integer()}
	e := &g.entry
	e.Scope = *scope
	e.Incarnation, e.Revision, e.State = r.time(), r.integer(), ledger.State(r.integer())
	e.Closed, e.DueAt, e.Last.Number = r.flag(), r.time(), int32(r.integer())
	e.Last.LeaseUntil, e.SettledAt = r.after(e), r.after(e)
	var err error
	if g.details, err = decodeDetails(e, r.bytes()); err != nil {
		return nil, unusable("details", e, err)
	}
	return g, nil
}

// reader walks over the values of a row. A value of another type than the schema's (STRICT) says reads as zero.
type reader struct {
	row []any
}

func (r *reader) next() any {
	v := r.row[0]
	r.row = r.row[1:]
	return v
}

func (r *reader) integer() int64    { return integer(r.next()) }
func (r *reader) flag() bool        { return r.integer() != 0 }
func (r *reader) time() ledger.Time { return ledger.Time(r.integer()) }
func (r *reader) text() string      { t, _ := r.next().(string); return t }

// bytes is nil for NULL only.
func (r *reader) bytes() []byte { b, _ := r.next().([]byte); return b }

// scope is the inverse of scopeKey.
func (r *reader) scope(into *ledger.ScopeID) {
	const signBit = 1 << 63
	binary.BigEndian.PutUint64(into[:8], uint64(r.integer())^signBit) //nolint:gosec // all 64 bits are meant
	copy(into[8:], r.bytes())
}

// after is a time that is kept as so long after the entry's incarnation, which must have been read.
func (r *reader) after(e *ledger.Entry) ledger.Time {
	if v := r.next(); v != nil {
		return e.Incarnation + ledger.Time(integer(v))
	}
	return 0
}

func integer(v any) int64 { n, _ := v.(int64); return n }

func flag(b bool) any {
	if b {
		return int64(1)
	}
	return int64(0)
}

// after is the column of a time of e.
func after(e *ledger.Entry, t ledger.Time) any {
	if t == 0 {
		return nil
	}
	return int64(t - e.Incarnation)
}

var errChecksum = errors.New("checksum does not match: the file is damaged")

// sealed appends a checksum of the blob and its scope. SQLite finds damage to its own structures, not to the content of a row; an answer
// is replayed as the truth, so a damaged one must not be.
func sealed(scope *ledger.ScopeID, blob []byte) []byte {
	if blob == nil {
		return nil
	}
	return binary.LittleEndian.AppendUint32(blob, checksum(scope, blob))
}

// unsealed is the inverse of sealed.
func unsealed(scope *ledger.ScopeID, blob []byte) ([]byte, error) {
	if len(blob) <= 4 {
		return nil, errChecksum
	}
	body := blob[:len(blob)-4]
	if binary.LittleEndian.Uint32(blob[len(body):]) != checksum(scope, body) {
		return nil, errChecksum
	}
	return body, nil
}

// opened returns the blob of a column, from the row or from its own table, without its checksum.
func opened(scope *ledger.ScopeID, inline, apart any) ([]byte, error) {
	if inline == nil {
		return nil, nil
	}
	blob, _ := inline.([]byte)
	if len(blob) == 0 {
		blob, _ = apart.([]byte)
	}
	return unsealed(scope, blob)
}

func checksum(scope *ledger.ScopeID, blob []byte) uint32 {
	return crc32.Update(crc32.Checksum(scope[:], castagnoli), castagnoli, blob)
}
