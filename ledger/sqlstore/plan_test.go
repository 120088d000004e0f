package sqlstore_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// Every statement goes by an index, with the generic plan that a connection of the pool keeps, also if that plan was made while the
// tables were empty and known to be; and no page sorts. One that names scopes goes by the primary key: they stand in the other indexes as well, at the
// end, where they help nothing.
func TestEveryStatementGoesByAnIndex(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := d.real(t)
	ctx := context.Background()
	conn := sqlstore.Conn(t, s) // with the pool's settings
	var mode string
	if err := conn.QueryRow(ctx, "SHOW plan_cache_mode").Scan(&mode); err != nil || mode != "force_generic_plan" {
		t.Errorf("plan_cache_mode is %q, %v", mode, err)
	}
	// As in a table so large that helpers look cheap: a page that asks for a thousand rows must not start any.
	for _, name := range []string{"parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size", "min_parallel_index_scan_size"} {
		run(t, conn, "SET "+name+" = 0")
	}
	texts := sqlstore.Texts(s)
	for name, text := range texts {
		if _, err := conn.Prepare(ctx, name, text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	explainAll := func(when string) {
		for name := range texts {
			plan := explain(t, conn, name)
			// Before the first ANALYZE, PostgreSQL takes a list's filters to leave next to nothing, and sorts that.
			for _, bad := range []string{"Seq Scan", "Sort", "JIT", "Gather"} {
				if strings.Contains(plan, bad) && (bad != "Sort" || when != "new") {
					t.Errorf("%s, %s:\n%s", when, name, plan)
				}
			}
			// While its statistics say that a table is empty, all of its indexes are worth the same. That lasts until the next ANALYZE.
			if when != "known to be empty" && !strings.HasPrefix(name, "page-") && strings.Contains(plan, "idemd_entries_by_") {
				t.Errorf("%s, %s goes by another index than the primary key:\n%s", when, name, plan)
			}
		}
	}
	explainAll("new")
	run(t, conn, "VACUUM ANALYZE idemd_entries, idemd_bodies, idemd_settings")
	explainAll("known to be empty")
	fill(t, s, 3000)
	run(t, conn, "ANALYZE idemd_entries")
	explainAll("filled")
}

// The statements of whole batches, and what is tried before them, go by the primary key on CockroachDB as well, however large the batch.
func TestEveryBatchOnCockroachDBGoesByThePrimaryKey(t *testing.T) {
	d := newDatabase(t, pgtest.CockroachURL(t))
	s := d.real(t)
	conn := sqlstore.Conn(t, s) // with the pool's settings
	var mode string
	if err := conn.QueryRow(context.Background(), "SHOW vectorize").Scan(&mode); err != nil || mode != "off" {
		t.Errorf("vectorize is %q, %v", mode, err)
	}
	check := func(when, text string, args []any) {
		t.Helper()
		rows, err := conn.Query(context.Background(), "EXPLAIN "+text, args...)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "FULL SCAN") || strings.Contains(plan, "idemd_entries_by_") || !strings.Contains(plan, "idemd_entries@") {
			t.Errorf("%s, %d writes:\n%s\n%s", when, len(args[0].([][]byte)), text, plan)
		}
	}
	checkAll := func(when string) {
		for _, n := range []byte{2, 40, 128} {
			writes := [3][]ledger.Write{}
			for i := range n {
				e := claim(scopeOf(100 + i))
				extension := complete(e)
				extension.Settle, extension.Extend = nil, &ledger.Extend{Lease: lease}
				for i, w := range []ledger.Write{begin(e.Scope), complete(e), extension} {
					writes[i] = append(writes[i], w)
				}
			}
			for _, batch := range writes {
				text, args := sqlstore.StatementForMany(s, batch...)
				check(when, text, args)
				if text, args = sqlstore.TrialForMany(s, batch...); text != "" {
					check(when, text, args)
				}
			}
		}
	}
	checkAll("new")
	run(t, conn, "SET reorder_joins_limit = 0") // as an administrator may have it for all sessions
	checkAll("new, joined as it is written")
	run(t, conn, "SET reorder_joins_limit = 8")
	fill(t, s, 700)
	run(t, conn, "ANALYZE idemd_entries")
	checkAll("filled")
}

func run(t testing.TB, conn *pgx.Conn, text string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func explain(t testing.TB, conn *pgx.Conn, name string) string {
	t.Helper()
	ctx := context.Background()
	var n int
	err := conn.QueryRow(ctx, "SELECT coalesce(cardinality(parameter_types), 0) FROM pg_prepared_statements WHERE name = $1", name).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("EXPLAIN EXECUTE %q", name)
	if n > 0 {
		text += "(" + strings.TrimSuffix(strings.Repeat("NULL,", n), ",") + ")"
	}
	rows, err := conn.Query(ctx, text, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return strings.Join(lines, "\n")
}

// fill writes n settled entries.
func fill(t testing.TB, s ledger.Store, n int) {
	t.Helper()
	ctx := context.Background()
	for i := range n {
		scope := scopeOf(0)
		scope[0], scope[1], scope[2] = byte(i), byte(i>>8), byte(i>>16)
		if _, err := s.Write(ctx, begin(scope)); err != nil {
			t.Fatal(err)
		}
	}
}

// No statement takes a time from this process: with the store's clock three quarters of a century away, every stamp is that clock's. And
// no file of the store reads the clock of the process, except to bound a wait.
func TestNoStatementTakesATimeFromGo(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s := d.open(t)
		check := func(what string, at ledger.Time) {
			t.Helper()
			if off := at.Sub(clockStart); off < -24*time.Hour || off > 365*24*time.Hour {
				t.Errorf("%s is %v away from the store's clock", what, off)
			}
		}
		for n := range byte(3) {
			scope := scopeOf(1 + n)
			stamps := []ledger.Stamps{mustWrite(t, s, begin(scope))}
			stamps = append(stamps, mustWrite(t, s, takeover(mustGet(t, s, scope))))
			w := complete(mustGet(t, s, scope))
			switch n {
			case 1:
				w.Settle.State, w.Settle.Ended, w.Settle.Response = ledger.Pending, ledger.EndedGaveUp, nil
			case 2:
				w.Settle, w.Extend = nil, &ledger.Extend{Margin: time.Second}
			}
			stamps = append(stamps, mustWrite(t, s, w))
			for _, st := range stamps {
				check("now", st.Now)
				check("incarnation", st.Incarnation)
				check("began", st.BeganAt)
				check("lease", st.LeaseUntil)
				check("due", st.DueAt)
				if st.SettledAt != 0 {
					check("settled", st.SettledAt)
				}
			}
			e := mustGet(t, s, scope)
			check("ended earlier", e.Earlier[0].BeganAt)
			if e.AbandonedAt != 0 {
				check("abandoned", e.AbandonedAt)
			}
		}
		ok, err := s.PutSetting(context.Background(), ledger.Setting{Kind: "k", Name: "n", Body: []byte{1}}, 0)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		list, err := s.Settings(context.Background(), "k")
		if err != nil || len(list.List) != 1 {
			t.Fatal(list, err)
		}
		check("setting", list.List[0].UpdatedAt)
		check("settings", list.Now)
		now, err := s.Ready(context.Background())
		if err != nil || now != clockStart {
			t.Errorf("ready at %d, %v", now, err)
		}
	})
}

func TestNoFileReadsTheClockOfTheProcess(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
				switch sel.Sel.Name {
				case "Now", "Since", "Until", "UnixMicro":
					t.Errorf("%s uses time.%s", f.Name(), sel.Sel.Name)
				}
			}
			return true
		})
	}
}
