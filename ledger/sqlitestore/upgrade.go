package sqlitestore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/idemd/idemd/ledger"
)

// conversions are what a migration does beyond its script, in the same transaction, by the version that it leads to.
var conversions = map[int]func(context.Context, *connection) error{2: convert0002}

// convertPage is how many rows a conversion holds at once.
const convertPage = 500

const (
	columns0001 = `id, scope_id, tenant, operation, key, incarnation, revision, state, closed, due_at, hold_from, current, doubt, credit,
		run_grants, fingerprints, on_abandoned, max_attempts, reclaim_within, retention, tombstone, bound, attempt, attempt_id, holder,
		principal, recover_only, on_credit, lease, began_after, leased_after, ended_after, ended, report, abandoned_after, settled_after, settled_by,
		settlement, answer, history`
	select0001 = `SELECT ` + columns0001 + ` FROM entry_0001 WHERE id > ? ORDER BY id LIMIT ?`
)

// converted is a row that goes over with its number, by which large answers and histories are found, and with these two as they stand.
type converted struct {
	id              int64
	entry           *ledger.Entry
	details         details
	answer, history []byte
}

// convert0002 brings the rows of 0001 to the table that 0002 has made.
func convert0002(ctx context.Context, c *connection) error {
	insert := `INSERT INTO entry (id, ` + entryColumns + `) VALUES (` + strings.Repeat("?, ", entryColumnCount) + `?)`
	names := &writer{conn: c, names: map[ledger.Ref]int64{}}
	for last := int64(0); ; {
		var page []converted
		err := c.query(ctx, select0001, []any{last, int64(convertPage)}, func(row []any) error {
			page = append(page, scan0001(row))
			return nil
		})
		if err != nil {
			return err
		}
		for _, from := range page {
			name, err := names.nameID(from.entry.Ref)
			if err != nil {
				return err
			}
			values := append([]any{from.id}, columnsOf(from.entry, name, from.details, from.answer, from.history)...)
			if _, err := c.exec(insert, values...); err != nil {
				return fmt.Errorf("row %d: %w", from.id, err)
			}
			last = from.id
		}
		if len(page) < convertPage {
			break
		}
	}
	return c.script(ctx, "DROP TABLE entry_0001")
}

func scan0001(row []any) converted {
	var e ledger.Entry
	r := reader{row: row}
	out := converted{id: r.integer(), entry: &e}
	copy(e.Scope[:], r.bytes())
	e.Ref = ledger.Ref{Tenant: r.text(), Operation: r.text(), Key: r.text()}
	e.Incarnation, e.Revision, e.State = r.time(), r.integer(), ledger.State(r.integer())
	e.Closed, e.DueAt, e.HoldFrom = r.flag(), r.time(), ledger.Never
	if v := r.next(); v != nil {
		e.HoldFrom = ledger.Time(integer(v))
	}
	e.Current, e.Doubt, e.Credit = r.flag(), r.flag(), r.flag()
	e.RunGrants = int32(r.integer())
	out.details.fingerprints = r.bytes()
	e.Terms.OnAbandoned, e.Terms.MaxAttempts = ledger.OnAbandoned(r.integer()), int32(r.integer())
	e.Terms.ReclaimWithin, e.Terms.Retention = time.Duration(r.integer()), time.Duration(r.integer())
	e.Terms.Tombstone = e.Terms.Retention
	if v := r.next(); v != nil {
		e.Terms.Tombstone = time.Duration(integer(v))
	}
	copy(e.Terms.Bound[:], r.bytes())
	e.Last.Number = int32(r.integer())
	copy(e.Last.IDHash[:], r.bytes())
	e.Last.Holder, e.Last.Principal = r.text(), r.text()
	e.Last.RecoverOnly, e.Last.OnCredit = r.flag(), r.flag()
	e.Last.Lease, e.Last.BeganAt, e.Last.LeaseUntil = time.Duration(r.integer()), r.after(&e), r.after(&e)
	e.Last.EndedAt, e.Last.Ended = r.after(&e), ledger.Ended(r.integer())
	report := r.bytes()
	e.AbandonedAt, e.SettledAt, e.SettledBy = r.after(&e), r.after(&e), int32(r.integer())
	copy(e.Settlement[:], r.bytes())
	if copy(e.Last.Report[:], report) == 0 && report != nil {
		e.Last.Report = e.Settlement // empty: the same
	}
	out.answer, out.history = r.bytes(), r.bytes()
	out.details.answerApart = out.answer != nil && len(out.answer) == 0
	out.details.historyApart = out.history != nil && len(out.history) == 0
	return out
}
