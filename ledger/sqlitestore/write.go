package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/idemd/idemd/ledger"
)

// The statements of the writer. Guards and stamps are judged in Go, by the very functions of ledger that define them: there is one writer
// and it holds the write lock, so what it read can not have changed when it writes.
var (
	insertEntry = `INSERT INTO entry (` + entryColumns + `) VALUES (` + strings.Repeat("?, ", entryColumnCount-1) + `?)`
	// updateEntry leaves out what an entry is found by: SQLite would move it in those indexes, to where it stands.
	updateEntry = `UPDATE entry SET (` + strings.TrimPrefix(entryColumns, foundBy) + `) = (` + strings.Repeat("?, ", entryColumnCount-foundByCount-1) + `?) WHERE id = ?`
)

const (
	selectGuarded = `SELECT ` + guardColumns + ` FROM entry WHERE scope_head = ? AND scope_tail = ?`
	selectThere   = `SELECT 1 FROM entry WHERE scope_head = ? AND scope_tail = ?`

	// Each writes what its change of ledger.Entry sets, and nothing else: the rest of the row was not read.
	settleEntry = `UPDATE entry SET revision = ?, state = ?, due_at = ?, settled_after = ?, details = ?, answer = ? WHERE id = ?`
	extendEntry = `UPDATE entry SET revision = ?, due_at = ?, leased_after = ?, details = ? WHERE id = ?`

	putAnswer     = `INSERT INTO answer (entry, bytes) VALUES (?, ?) ON CONFLICT (entry) DO UPDATE SET bytes = excluded.bytes`
	putHistory    = `INSERT INTO history (entry, bytes) VALUES (?, ?) ON CONFLICT (entry) DO UPDATE SET bytes = excluded.bytes`
	deleteAnswer  = `DELETE FROM answer WHERE entry = ?`
	deleteHistory = `DELETE FROM history WHERE entry = ?`
	deleteEntry   = `DELETE FROM entry WHERE id = ?`
	moveEntry     = `UPDATE entry SET name = ?, incarnation = ? WHERE id = ?`
)

// Write implements [ledger.Store].
func (s *Store) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	if err := wellFormed(w); err != nil {
		return ledger.Written{}, unavailable("write", err)
	}
	line := s.queue.sooner
	switch {
	case w.Idle:
		line = s.queue.idle
	case w.Guard.Kind == ledger.GuardAbsent:
		line = s.queue.later
	}
	p := prepare(w)
	var written ledger.Written
	err := s.queue.submit(ctx, line, &job{weight: p.weight(), do: func(wr *writer, now ledger.Time) (bool, error) {
		var err error
		written, err = wr.write(p, now)
		return written.Applied, err
	}})
	if err != nil {
		return ledger.Written{}, err // and not written: the writer may be at it still
	}
	return written, nil
}

// prepared is a write whose blobs are encoded. That is done by its caller: the writer's time is everybody's, and once the caller has
// left, what it passed in is its own again.
type prepared struct {
	ledger.Write
	fingerprints []byte
	answer       blob
	history      blob
}

func prepare(w ledger.Write) *prepared {
	p := &prepared{Write: w}
	switch {
	case w.Put != nil:
		put := *w.Put
		p.fingerprints = ledger.EncodeFingerprints(put.Fingerprints)
		p.answer = sealed(&p.Scope, ledger.EncodeAnswer(put.Response, put.Failure))
		p.history = sealed(&p.Scope, ledger.EncodeHistory(&put))
		put.Fingerprints, put.Response, put.Failure = nil, nil, nil
		put.Earlier, put.Evidence, put.Resolutions = nil, nil, nil
		p.Put = &put
	case w.Settle != nil:
		settle := *w.Settle
		if settle.State != ledger.Pending {
			p.answer = sealed(&p.Scope, ledger.EncodeAnswer(settle.Response, settle.Failure))
		}
		settle.Response, settle.Failure = nil, nil
		p.Settle = &settle
	case w.Extend != nil:
		extend := *w.Extend
		p.Extend = &extend
	}
	return p
}

// weight is how much of a batch the write takes.
func (p *prepared) weight() int { return 1 + (len(p.answer)+len(p.history))/bytesOfWork }

// wellFormed refuses what [ledger.Write] rules out.
func wellFormed(w ledger.Write) error {
	set := 0
	for _, is := range []bool{w.Put != nil, w.Settle != nil, w.Extend != nil} {
		if is {
			set++
		}
	}
	claim := w.Guard.Kind == ledger.GuardClaim
	if set != 1 || claim == (w.Put != nil) || w.Guard.Kind < ledger.GuardAbsent || w.Guard.Kind > ledger.GuardClaim {
		return fmt.Errorf("malformed write: guard %d with put %t, settle %t, extend %t", w.Guard.Kind, w.Put != nil, w.Settle != nil, w.Extend != nil)
	}
	return nil
}

func (w *writer) write(p *prepared, now ledger.Time) (ledger.Written, error) {
	if p.Guard.Kind == ledger.GuardAbsent {
		return w.insert(p, now)
	}
	row, err := w.guarded(&p.Scope)
	if err != nil || row == nil {
		return ledger.Written{}, err
	}
	next, ok := p.Apply(&row.entry, now)
	if !ok {
		return ledger.Written{}, nil
	}
	switch {
	case p.Put != nil:
		err = w.replace(p, row, next)
	case p.Settle != nil:
		err = w.settle(p, row, next)
	default:
		_, err = w.conn.exec(extendEntry, next.Revision, int64(next.DueAt), after(next, next.Last.LeaseUntil), encodeDetails(next, row.details), row.id)
	}
	if err != nil {
		return ledger.Written{}, err
	}
	return ledger.Written{Applied: true, Stamps: ledger.StampsOf(next, now)}, nil
}

// guarded reads what a guard looks at; nil if there is no row.
func (w *writer) guarded(scope *ledger.ScopeID) (*guarded, error) {
	var row *guarded
	head, tail := scopeKey(scope)
	err := w.conn.query(context.Background(), selectGuarded, []any{head, tail}, func(v []any) (err error) {
		row, err = scanGuarded(scope, v)
		return err
	})
	return row, err
}

func (w *writer) insert(p *prepared, now ledger.Time) (ledger.Written, error) {
	head, tail := scopeKey(&p.Scope)
	if there, err := w.conn.number(context.Background(), selectThere, head, tail); err != nil || there != 0 {
		return ledger.Written{}, err
	}
	next, _ := p.Apply(nil, now)
	name, err := w.nameID(next.Ref)
	if err != nil {
		return ledger.Written{}, err
	}
	inserted, err := w.conn.exec(insertEntry, entryValues(next, name, p)...)
	if err != nil {
		return ledger.Written{}, err
	}
	if err := w.keepApart(inserted.id, p, details{}); err != nil {
		return ledger.Written{}, err
	}
	return ledger.Written{Applied: true, Stamps: ledger.StampsOf(next, now)}, nil
}

func (w *writer) replace(p *prepared, row *guarded, next *ledger.Entry) error {
	w.memory.forget(p.Scope)
	name, err := w.nameID(next.Ref)
	if err != nil {
		return err
	}
	if _, err := w.conn.exec(updateEntry, append(entryValues(next, name, p)[foundByCount:], row.id)...); err != nil {
		return err
	}
	if name != row.name || next.Incarnation != row.entry.Incarnation {
		if _, err := w.conn.exec(moveEntry, name, int64(next.Incarnation), row.id); err != nil {
			return err
		}
	}
	if name != row.name { // it was erased
		if err := w.forgetName(row.name); err != nil {
			return err
		}
	}
	return w.keepApart(row.id, p, row.details)
}

func (w *writer) settle(p *prepared, row *guarded, e *ledger.Entry) error {
	before := row.details
	row.answerApart = p.answer.apart()
	_, err := w.conn.exec(settleEntry, e.Revision, int64(e.State), int64(e.DueAt), after(e, e.SettledAt), encodeDetails(e, row.details),
		p.answer.inline(), row.id)
	if err != nil {
		return err
	}
	before.historyApart = false // a settlement leaves the history alone
	return w.keepApart(row.id, p, before)
}

// blob is an answer or a history as it is stored; nil where there is none.
type blob []byte

// inline is the blob's column: the blob, or empty where it stands in its own table.
func (b blob) inline() any {
	switch {
	case b == nil:
		return nil
	case b.apart():
		return []byte{}
	default:
		return []byte(b)
	}
}

// apart reports whether the blob stands in its own table.
func (b blob) apart() bool { return len(b) > inlineBytes }

// keepApart writes the blobs that are too large for their row to their own tables, and deletes those that stood there before.
func (w *writer) keepApart(id int64, p *prepared, before details) error {
	if p.answer.apart() {
		if _, err := w.conn.exec(putAnswer, id, []byte(p.answer)); err != nil {
			return err
		}
	} else if before.answerApart {
		if _, err := w.conn.exec(deleteAnswer, id); err != nil {
			return err
		}
	}
	if p.history.apart() {
		if _, err := w.conn.exec(putHistory, id, []byte(p.history)); err != nil {
			return err
		}
	} else if before.historyApart {
		if _, err := w.conn.exec(deleteHistory, id); err != nil {
			return err
		}
	}
	return nil
}

// Forget implements [ledger.Store].
func (s *Store) Forget(ctx context.Context, rows []ledger.Row) (int, error) {
	if len(rows) > ledger.MaxForgetBatch {
		return 0, unavailable("forget", fmt.Errorf("%d rows, at most %d", len(rows), ledger.MaxForgetBatch))
	}
	if len(rows) == 0 {
		return 0, ctx.Err()
	}
	rows = append([]ledger.Row(nil), rows...) // the caller may leave before the writer does
	var parts sync.WaitGroup
	var forgotten atomic.Int64
	errs := make([]error, (len(rows)+idleShare-1)/idleShare)
	for i := range errs {
		parts.Go(func() {
			n, err := s.forget(ctx, rows[i*idleShare:min((i+1)*idleShare, len(rows))])
			forgotten.Add(int64(n))
			errs[i] = err
		})
	}
	parts.Wait()
	return int(forgotten.Load()), errors.Join(errs...)
}

// forget forgets a few rows in one transaction.
func (s *Store) forget(ctx context.Context, rows []ledger.Row) (int, error) {
	var forgotten int
	err := s.queue.submit(ctx, s.queue.idle, &job{weight: len(rows), do: func(wr *writer, _ ledger.Time) (bool, error) {
		var err error
		forgotten, err = wr.forget(rows)
		return forgotten > 0, err
	}})
	if err != nil {
		return 0, err // and not forgotten: the writer may be at it still
	}
	return forgotten, nil
}

func (w *writer) forget(rows []ledger.Row) (int, error) {
	n := 0
	names := map[int64]struct{}{}
	for i := range rows {
		row, err := w.guarded(&rows[i].Scope)
		if errors.Is(err, ledger.ErrBadRow) {
			continue // whoever swept it could not read it either
		}
		if err != nil {
			return 0, err
		}
		if row == nil || row.entry.Incarnation != rows[i].Incarnation || row.entry.Revision != rows[i].Revision {
			continue
		}
		w.memory.forget(rows[i].Scope)
		if _, err := w.conn.exec(deleteEntry, row.id); err != nil {
			return 0, err
		}
		if err := w.keepApart(row.id, &prepared{}, row.details); err != nil {
			return 0, err
		}
		names[row.name] = struct{}{}
		n++
	}
	for name := range names {
		if err := w.forgetName(name); err != nil {
			return 0, err
		}
	}
	return n, nil
}
