package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/idemd/idemd/ledger"
)

const (
	// A blob that stands in its row has no row of its own, so the join looks for NULL there, which costs nothing.
	blobColumns = `, e.answer, a.bytes, e.history, h.bytes`
	withBlobs   = ` LEFT JOIN answer a ON a.entry = iif(length(e.answer) = 0, e.id, NULL)
		LEFT JOIN history h ON h.entry = iif(length(e.history) = 0, e.id, NULL)`

	selectEntry = `SELECT ` + readColumns + blobColumns + ` FROM entry e CROSS JOIN name n ON n.id = e.name` + withBlobs +
		` WHERE e.scope_head = ? AND e.scope_tail = ?`
	selectVersion = `PRAGMA user_version`
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
		return failed(doing, err)
	}
}

// Get implements [ledger.Store].
func (s *Store) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	var e, kept *ledger.Entry
	var size int64
	epoch := s.memory.before()
	err := s.read(ctx, "get", func(c *connection) error {
		// Not interruptible: it is one row, and watching a context costs as much as reading it.
		head, tail := scopeKey(&scope)
		return c.query(context.Background(), selectEntry, []any{head, tail}, func(row []any) (err error) {
			if e, err = scanWhole(row); err != nil {
				return err
			}
			if size = s.memory.sizeOf(e, row[readColumnCount:]...); size > 0 {
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

func scanWhole(row []any) (*ledger.Entry, error) {
	e, err := scanEntry(row)
	if err == nil {
		err = scanBlobs(e, row[readColumnCount:])
	}
	return e, err
}

// Page implements [ledger.Store].
func (s *Store) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	if q.Limit < 1 || q.Limit > ledger.MaxPageRows {
		return ledger.Page{}, unavailable("page", fmt.Errorf("limit %d, must be 1 to %d", q.Limit, ledger.MaxPageRows))
	}
	if q.Order != ledger.ByName && q.Order != ledger.ByDue {
		return ledger.Page{}, unavailable("page", fmt.Errorf("no order %d", q.Order))
	}
	now := s.clock.now()
	page := ledger.Page{Now: now, Next: q.After}
	scan := scanWhole
	if q.Lean {
		scan = scanEntry
	}
	err := s.read(ctx, "page", func(c *connection) error {
		return c.snapshot(func() error {
			for _, part := range pageStatements(q, now) {
				// One row more than the page takes, to know whether there is one.
				args := append(part.args, int64(q.Limit+1-len(page.Entries)-len(page.Bad)))
				err := c.query(ctx, part.sql, args, func(row []any) error {
					if len(page.Entries)+len(page.Bad) == q.Limit {
						page.More = true
						return nil
					}
					e, err := scan(row)
					switch {
					case err == nil:
						page.Entries = append(page.Entries, e)
					case errors.Is(err, ledger.ErrBadRow):
						page.Bad = append(page.Bad, ledger.BadRow{Scope: e.Scope, Err: err})
					default:
						return err
					}
					page.Next = ledger.CursorOf(e)
					return nil
				})
				if err != nil || page.More {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return ledger.Page{}, err
	}
	return page, nil
}

// statementOf is a statement and its arguments.
type statementOf struct {
	sql  string
	args []any
}

// pageStatements are the statements that list a page one after the other. Each takes one more argument: how many rows at the most.
//
// The joins are crossed, which is SQLite's way to be told the order of its loops, so that an index gives the rows in their order and a page reads no more
// than it lists. For the same reason a page by name that goes on behind a row is two: what is left under that row's name, and all later names.
func pageStatements(q ledger.PageQuery, now ledger.Time) []statementOf {
	if q.Order == ledger.ByDue {
		until := q.DueUntil
		if until == 0 {
			until = now
		}
		p := newPage(q, `entry e INDEXED BY entry_by_due CROSS JOIN name n ON n.id = e.name`)
		p.where("e.due_at <= ?", int64(until))
		if q.Shard != ledger.AllShards {
			p.where("e.shard = ?", int64(q.Shard))
		}
		if q.After != (ledger.Cursor{}) {
			head, tail := scopeKey(&q.After.Scope)
			p.where("(e.due_at, e.scope_head, e.scope_tail) > (?, ?, ?)", int64(q.After.DueAt), head, tail)
		}
		return []statementOf{p.statement("e.due_at, e.scope_head, e.scope_tail")}
	}
	var list []statementOf
	goOn := q.After != (ledger.Cursor{}) && (q.Tenant == "" || q.Tenant == q.After.Tenant) && (q.Operation == "" || q.Operation == q.After.Operation)
	if goOn {
		p := newNamePage(q)
		head, tail := scopeKey(&q.After.Scope)
		p.where("n.tenant = ? AND n.operation = ?", q.After.Tenant, q.After.Operation)
		p.where("(e.incarnation, e.scope_head, e.scope_tail) > (?, ?, ?)", int64(q.After.Incarnation), head, tail)
		list = append(list, p.statement(byName))
	}
	if goOn && q.Operation != "" {
		return list
	}
	p := newNamePage(q)
	if q.Tenant != "" {
		p.where("n.tenant = ?", q.Tenant)
	}
	if q.Operation != "" {
		p.where("n.operation = ?", q.Operation)
	}
	switch {
	case goOn && q.Tenant != "":
		p.where("n.operation > ?", q.After.Operation)
	case q.After != (ledger.Cursor{}):
		p.where("(n.tenant, n.operation) > (?, ?)", q.After.Tenant, q.After.Operation)
	}
	return append(list, p.statement(byName))
}

const byName = "n.tenant, n.operation, e.incarnation, e.scope_head, e.scope_tail"

func newNamePage(q ledger.PageQuery) *pageStatement {
	p := newPage(q, `name n CROSS JOIN entry e INDEXED BY entry_by_name ON e.name = n.id`)
	if len(q.States) > 0 {
		states := make([]any, len(q.States))
		for i, state := range q.States {
			states[i] = int64(state)
		}
		p.where("e.closed = 0 AND e.state IN (?"+strings.Repeat(", ?", len(states)-1)+")", states...)
	}
	if q.CreatedUntil != 0 {
		p.where("e.incarnation <= ?", int64(q.CreatedUntil))
	}
	return p
}

// pageStatement is a statement in the making.
type pageStatement struct {
	from       string
	conditions []string
	args       []any
}

func newPage(q ledger.PageQuery, tables string) *pageStatement {
	if q.Lean {
		return &pageStatement{from: `SELECT ` + readColumns + ` FROM ` + tables}
	}
	return &pageStatement{from: `SELECT ` + readColumns + blobColumns + ` FROM ` + tables + withBlobs}
}

func (p *pageStatement) where(sql string, args ...any) {
	p.conditions, p.args = append(p.conditions, sql), append(p.args, args...)
}

func (p *pageStatement) statement(order string) statementOf {
	sql := p.from
	if len(p.conditions) > 0 {
		sql += " WHERE " + strings.Join(p.conditions, " AND ")
	}
	return statementOf{sql: sql + " ORDER BY " + order + " LIMIT ?", args: p.args}
}
