package sqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// Get reads one entry whole, in one statement, from the primary or the leaseholder. It may share the statement with other reads; see [readGatherer].
func (s *Store) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	if s.engine == cockroachDB {
		return s.getAlone(ctx, scope)
	}
	return s.reads.get(ctx, scope)
}

func (s *Store) getAlone(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	arg := scopeArg(scope)
	return read(ctx, s, "get", func(ctx context.Context, conn *pgx.Conn) (out ledger.Reading, err error) {
		var now int64
		var r row
		if err := conn.QueryRow(ctx, s.sql.get, arg).Scan(append([]any{&now}, r.targets()...)...); err != nil {
			return out, err
		}
		out.Now = ledger.Time(now)
		if r.scope != nil {
			out.Entry, err = r.entry()
		}
		return out, err
	})
}

// A page that is not lean brings bodies with it, each of them up to megabytes. It is fetched in runs of pageRun rows, and ends early,
// saying that there is more, once it holds pageBytes.
const (
	pageRun   = 64
	pageBytes = 32 << 20
)

// Page lists entries from a remembered bound, all from one snapshot.
func (s *Store) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	if q.Limit < 1 || q.Limit > ledger.MaxPageRows {
		return ledger.Page{}, fmt.Errorf("sqlstore: Limit must be between 1 and %d", ledger.MaxPageRows)
	}
	var page ledger.Page
	err := s.inSnapshot(ctx, "page", func(tx pgx.Tx) error {
		page = ledger.Page{Next: q.After}
		var now int64
		if err := tx.QueryRow(ctx, s.sql.now).Scan(&now); err != nil {
			return err
		}
		page.Now = ledger.Time(now)
		return s.fillPage(ctx, tx, q, &page)
	})
	if err != nil {
		return ledger.Page{}, err
	}
	return page, nil
}

func (s *Store) fillPage(ctx context.Context, tx pgx.Tx, q ledger.PageQuery, page *ledger.Page) error {
	for size := 0; ; {
		want := q.Limit - len(page.Entries) - len(page.Bad)
		run := want
		if !q.Lean {
			run = min(run, pageRun)
		}
		rows, err := s.pageRows(ctx, tx, q, page.Now, page.Next, run+1) // one more tells whether there is more
		if err != nil {
			return err
		}
		page.More = len(rows) > run
		for i := range rows[:min(run, len(rows))] {
			e, err := rows[i].entry()
			if err != nil {
				page.Bad = append(page.Bad, ledger.BadRow{Scope: e.Scope, Err: err})
			} else {
				page.Entries = append(page.Entries, e)
			}
			page.Next = ledger.CursorOf(e)
			size += rows[i].size()
		}
		if !page.More || run == want || size >= pageBytes {
			return nil
		}
	}
}

func (s *Store) pageRows(
	ctx context.Context, tx pgx.Tx, q ledger.PageQuery, now ledger.Time, after ledger.Cursor, limit int,
) ([]row, error) {
	text, args := s.sql.page(q, now, after, limit)
	result, err := tx.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(result, func(r pgx.CollectableRow) (out row, err error) {
		return out, r.Scan(out.targets()...)
	})
}

// page is the statement for one run of a page. It always goes by an index, from after on, in the index's order.
func (s *statements) page(q ledger.PageQuery, now ledger.Time, after ledger.Cursor, limit int) (string, []any) {
	var where []string
	var args []any
	param := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	var order string
	if q.Order == ledger.ByDue {
		order = "e.shard, e.due_at, e.scope_id"
		where = append(where, "e.shard = "+param(int16(q.Shard))+"::INT2", "e.due_at <= "+param(int64(dueUntil(q, now)))+"::INT8",
			"(e.due_at, e.scope_id) > ("+param(int64(after.DueAt))+"::INT8, "+param(scopeArg(after.Scope))+"::BYTEA)")
	} else {
		order = "e.tenant, e.operation, e.scope_id"
		where = append(where, "(e.tenant, e.operation, e.scope_id) > ("+param(after.Tenant)+"::TEXT, "+param(after.Operation)+
			"::TEXT, "+param(scopeArg(after.Scope))+"::BYTEA)")
		if q.Tenant != "" {
			where = append(where, "e.tenant = "+param(q.Tenant)+"::TEXT")
		}
		if q.Operation != "" {
			where = append(where, "e.operation = "+param(q.Operation)+"::TEXT")
		}
		if len(q.States) > 0 {
			states := make([]int16, len(q.States))
			for i, state := range q.States {
				states[i] = int16(state)
			}
			where = append(where, "NOT e.closed AND e.state = ANY ("+param(states)+"::INT2[])")
		}
		if q.CreatedUntil != 0 {
			where = append(where, "e.incarnation <= "+param(int64(q.CreatedUntil))+"::INT8")
		}
	}
	columns, from := s.pageColumns, s.pageFrom
	if q.Lean {
		columns, from = s.leanColumns, s.leanFrom
	}
	return "/* idemd:page */ SELECT " + columns + " FROM " + from + " WHERE " + strings.Join(where, " AND ") +
		" ORDER BY " + order + " LIMIT " + param(int64(limit)), args
}

// dueUntil is how far a page by due time reaches. now is the store's own clock, as read in the same snapshot.
func dueUntil(q ledger.PageQuery, now ledger.Time) ledger.Time {
	if q.DueUntil != 0 {
		return q.DueUntil
	}
	return now
}

// Forget deletes the rows whose revision is unchanged, with what they have apart, in one statement.
func (s *Store) Forget(ctx context.Context, rows []ledger.Row) (int, error) {
	if len(rows) == 0 {
		return 0, nil
	}
	if len(rows) > ledger.MaxForgetBatch {
		return 0, fmt.Errorf("sqlstore: at most %d rows can be forgotten at once", ledger.MaxForgetBatch)
	}
	scopes, incarnations, revisions := make([][]byte, len(rows)), make([]int64, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		scopes[i], incarnations[i], revisions[i] = scopeArg(r.Scope), int64(r.Incarnation), r.Revision
	}
	return write(ctx, s, "forget", func(ctx context.Context, conn *pgx.Conn) (n int, err error) {
		err = conn.QueryRow(ctx, s.sql.forget, scopes, incarnations, revisions).Scan(&n)
		return n, err
	})
}
