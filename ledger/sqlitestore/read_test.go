package sqlitestore

import (
	"context"
	"database/sql/driver"
	"strings"
	"testing"

	"github.com/idemd/idemd/ledger"
)

// TestPagesReadNoMoreThanTheyList: every page's rows come from an index in their order. Only those that an index does not tell apart may be sorted: of one
// microsecond, or of one beginning of a scope id.
func TestPagesReadNoMoreThanTheyList(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	after := ledger.Cursor{Tenant: "a", Operation: "b", DueAt: 3, Scope: scopeOf(1)}
	for name, q := range map[string]ledger.PageQuery{
		"all":            {Order: ledger.ByScope},
		"all, goes on":   {Order: ledger.ByScope, After: after},
		"tenant":         {Order: ledger.ByScope, Tenant: "a"},
		"tenant goes on": {Order: ledger.ByScope, Tenant: "a", After: after},
		"operation":      {Order: ledger.ByScope, Tenant: "a", Operation: "b"},
		"op. goes on":    {Order: ledger.ByScope, Tenant: "a", Operation: "b", After: after},
		"states":         {Order: ledger.ByScope, States: []ledger.State{ledger.Pending}, CreatedUntil: 9},
		"due":            {Order: ledger.ByDue, Shard: 2},
		"due goes on":    {Order: ledger.ByDue, Shard: 2, After: after},
	} {
		for _, q.Lean = range []bool{true, false} {
			q.Limit = 5
			for i, part := range pageStatements(q, testStart) {
				plan := planOf(t, s, part)
				last := strings.Count(plan, "USE TEMP B-TREE FOR LAST")
				if strings.Count(plan, "TEMP B-TREE") != last || strings.Contains(plan, "SCAN e") {
					t.Errorf("%s, part %d:\n%s", name, i, plan)
				}
			}
		}
	}
}

func planOf(t *testing.T, s *Store, part statementOf) string {
	t.Helper()
	var plan []string
	err := s.read(t.Context(), "plan", func(c *connection) error {
		return c.query(context.Background(), "EXPLAIN QUERY PLAN "+part.sql, append(part.args, int64(6)), func(row []driver.Value) error {
			line, _ := row[3].(string)
			plan = append(plan, line)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}
