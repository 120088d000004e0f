package sqlitestore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/idemd/idemd/ledger"
)

const (
	// A blob that stands in its row has no row of its own, so the join looks for NULL there, which costs nothing.
	entryBlobs = `, e.answer, a.bytes, e.history, h.bytes FROM entry e
		LEFT JOIN answer a ON a.entry = iif(length(e.answer) = 0, e.id, NULL)
		LEFT JOIN history h ON h.entry = iif(length(e.history) = 0, e.id, NULL)`

	selectEntry    = `SELECT ` + entryColumns + entryBlobs + ` WHERE scope_id = ?`
	selectPage     = `SELECT ` + entryColumns + entryBlobs
	selectLeanPage = `SELECT ` + entryColumns + ` FROM entry`
	selectVersion  = `PRAGMA user_version`
)

// read runs do on a connection that only reads. Readers never wait for the writer nor it for them (WAL); they see what was committed
// when their statement began, which is what was synced (see the package's comment).
func (s *Store) read(ctx context.Context, doing string, do func(c *connection) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var c *connection
	select {
	case c = <-s.readers:
	case <-s.queue.closing:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	// Both may have been ready.
	select {
	case <-s.queue.closing:
		s.readers <- c
		return errClosed
	default:
	}
	err := do(c)
	s.seals.note(err)
	s.readers <- c
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	default:
		return unavailable(doing, err)
	}
}

// Get implements [ledger.Store].
func (s *Store) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	var e, kept *ledger.Entry
	var size int64
	epoch := s.memory.before()
	err := s.read(ctx, "get", func(c *connection) error {
		// Not interruptible: it is one row, and watching a context costs as much as reading it.
		return c.query(context.Background(), selectEntry, []driver.Value{scope[:]}, func(row []driver.Value) (err error) {
			if e, err = scanWhole(row); err != nil {
				return err
			}
			if size = s.memory.sizeOf(e, row[entryColumnCount:]...); size > 0 {
				kept, err = scanWhole(row) // of its own: the caller owns the other
			}
			return err
		})
	})
	if err != nil {
		return ledger.Reading{}, err
	}
	if kept != nil {
		s.memory.remember(epoch, kept, size)
	}
	// After the row, so that no stamp in it is later.
	return ledger.Reading{Entry: e, Now: s.clock.now()}, nil
}

// Recall implements [ledger.Recaller].
func (s *Store) Recall(scope ledger.ScopeID) (ledger.Reading, bool) {
	e := s.memory.recall(scope)
	if e == nil {
		return ledger.Reading{}, false
	}
	select {
	case <-s.queue.closing:
		return ledger.Reading{}, false
	default:
		return ledger.Reading{Entry: e, Now: s.clock.now()}, true
	}
}

func scanWhole(row []driver.Value) (*ledger.Entry, error) {
	e, err := scanEntry(row)
	if err == nil {
		err = scanBlobs(e, row[entryColumnCount:])
	}
	return e, err
}

// Page implements [ledger.Store].
func (s *Store) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	if q.Limit < 1 || q.Limit > ledger.MaxPageRows {
		return ledger.Page{}, unavailable("page", fmt.Errorf("limit %d, must be 1 to %d", q.Limit, ledger.MaxPageRows))
	}
	if q.Order != ledger.ByScope && q.Order != ledger.ByDue {
		return ledger.Page{}, unavailable("page", fmt.Errorf("no order %d", q.Order))
	}
	now := s.clock.now()
	sql, args := pageStatement(q, now)
	page := ledger.Page{Now: now, Next: q.After}
	err := s.read(ctx, "page", func(c *connection) error {
		return c.query(ctx, sql, args, func(row []driver.Value) error {
			if len(page.Entries) == q.Limit {
				page.More = true
				return nil
			}
			scan := scanWhole
			if q.Lean {
				scan = scanEntry
			}
			e, err := scan(row)
			page.Entries = append(page.Entries, e)
			return err
		})
	})
	if err != nil {
		return ledger.Page{}, err
	}
	if n := len(page.Entries); n > 0 {
		last := page.Entries[n-1]
		page.Next = ledger.Cursor{Tenant: last.Ref.Tenant, Operation: last.Ref.Operation, DueAt: last.DueAt, Scope: last.Scope}
	}
	return page, nil
}

// pageStatement is the statement of a page and its arguments. It asks for one row more than the page takes, to know whether there is one.
func pageStatement(q ledger.PageQuery, now ledger.Time) (string, []driver.Value) {
	var where []string
	var args []driver.Value
	condition := func(sql string, values ...driver.Value) {
		where, args = append(where, sql), append(args, values...)
	}
	order := "tenant, operation, scope_head, scope_id"
	if q.Order == ledger.ByDue {
		order = "shard, due_at, scope_id"
		until := q.DueUntil
		if until == 0 {
			until = now
		}
		condition("shard = ?", int64(q.Shard))
		condition("due_at <= ?", int64(until))
		if q.After != (ledger.Cursor{}) {
			condition("(due_at, scope_id) > (?, ?)", int64(q.After.DueAt), q.After.Scope[:])
		}
	} else {
		scopeConditions(q, condition)
	}
	sql := selectPage
	if q.Lean {
		sql = selectLeanPage
	}
	if len(where) > 0 {
		sql += " WHERE " + strings.Join(where, " AND ")
	}
	return sql + " ORDER BY " + order + " LIMIT ?", append(args, int64(q.Limit+1))
}

func scopeConditions(q ledger.PageQuery, condition func(string, ...driver.Value)) {
	after := q.After != (ledger.Cursor{})
	switch {
	case q.Tenant == "":
		if after {
			condition("(tenant, operation, scope_head, scope_id) > (?, ?, ?, ?)",
				q.After.Tenant, q.After.Operation, q.After.Scope[:8], q.After.Scope[:])
		}
	case q.Operation == "":
		condition("tenant = ?", q.Tenant)
		if after {
			condition("(operation, scope_head, scope_id) > (?, ?, ?)", q.After.Operation, q.After.Scope[:8], q.After.Scope[:])
		}
	default:
		condition("tenant = ? AND operation = ?", q.Tenant, q.Operation)
		if after {
			condition("(scope_head, scope_id) > (?, ?)", q.After.Scope[:8], q.After.Scope[:])
		}
	}
	if len(q.States) > 0 {
		states := make([]driver.Value, len(q.States))
		for i, state := range q.States {
			states[i] = int64(state)
		}
		condition("closed = 0 AND state IN (?"+strings.Repeat(", ?", len(states)-1)+")", states...)
	}
	if q.CreatedUntil != 0 {
		condition("incarnation <= ?", int64(q.CreatedUntil))
	}
}
