package sqldb_test

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	// first and second are two versions of one schema, and other is another one under the same prefix.
	first = sqldb.Schema{
		Holds: "things", After: 0, Names: []string{"things", "things_by_kind"},
		Types: func(sqldb.Engine) []string { return []string{"{text}", "VARCHAR(10)"} },
		Steps: []sqldb.Step{
			{Name: "things", SQL: "CREATE TABLE IF NOT EXISTS {things} (id INT8 NOT NULL PRIMARY KEY, kind {text} NOT NULL DEFAULT 'a')"},
			{Name: "things_by_kind", SQL: "CREATE INDEX IF NOT EXISTS {#things_by_kind} ON {things} (kind)"},
		},
	}
	second = func() sqldb.Schema {
		s := first
		s.Steps = append(slices.Clone(first.Steps), sqldb.Step{
			Name: "things_note", SQL: "ALTER TABLE {things} ADD COLUMN IF NOT EXISTS note {text} NOT NULL DEFAULT 'none'",
		})
		return s
	}()
	other = sqldb.Schema{
		Holds: "others", After: 100, Names: []string{"others"},
		Types: func(sqldb.Engine) []string { return nil },
		Steps: []sqldb.Step{{Name: "others", SQL: "CREATE TABLE IF NOT EXISTS {others} (id INT8 NOT NULL PRIMARY KEY)"}},
	}
)

func driver(t *testing.T, d *sqldbtest.Database) sqldb.Driver[pgx.Tx] {
	t.Helper()
	made, err := sqldb.Pgx(d.Pool)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func migrate(t *testing.T, d *sqldbtest.Database, s sqldb.Schema) {
	t.Helper()
	if err := s.Migrate(t.Context(), driver(t, d), "app_"); err != nil {
		t.Error(err)
	}
}

// TestALaterVersionBuildsOnTheTablesOfAnEarlierOne, and the earlier one goes on working beside it.
func TestALaterVersionBuildsOnTheTablesOfAnEarlierOne(t *testing.T) {
	sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
		const byTheFirst = "INSERT INTO app_things (id) VALUES ($1)"
		migrate(t, d, first)
		d.Exec(t, byTheFirst, 1)
		migrate(t, d, second)
		migrate(t, d, first) // a process of the version before starts once more
		d.Exec(t, byTheFirst, 2)
		if n := d.Int(t, "SELECT count(*) FROM app_things WHERE note = 'none'"); n != 2 {
			t.Errorf("%d rows have what the second version added", n)
		}
		if n := d.Int(t, "SELECT count(*) FROM app_schema"); n != 3 {
			t.Errorf("%d steps are recorded", n)
		}
	})
}

func TestVersionsThatMigrateAtOnceEndAtTheLatest(t *testing.T) {
	sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() { migrate(t, d, []sqldb.Schema{first, second, other}[i%3]) })
		}
		all.Wait()
		d.Exec(t, "INSERT INTO app_things (id, note) VALUES (1, 'x')")
	})
}

// TestSchemasUnderOnePrefixDoNotHideEachOthersSteps, whichever is made first: the numbers of one say nothing of the other's.
func TestSchemasUnderOnePrefixDoNotHideEachOthersSteps(t *testing.T) {
	sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
		migrate(t, d, other)
		migrate(t, d, first)
		d.Exec(t, "INSERT INTO app_things (id) VALUES (1)")
		d.Exec(t, "INSERT INTO app_others (id) VALUES (1)")
	})
}

// TestATableThatNoStepIsRecordedOfIsTakenAsItIs: a crash came between the step and its record, or a version made it that recorded nothing.
func TestATableThatNoStepIsRecordedOfIsTakenAsItIs(t *testing.T) {
	sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
		migrate(t, d, second)
		d.Exec(t, "INSERT INTO app_things (id) VALUES (1)")
		d.Exec(t, "DELETE FROM app_schema")
		migrate(t, d, second)
		if n := d.Int(t, "SELECT count(*) FROM app_things"); n != 1 {
			t.Errorf("%d rows are left", n)
		}
		if n := d.Int(t, "SELECT count(*) FROM app_schema"); n != 3 {
			t.Errorf("%d steps are recorded", n)
		}
	})
}

func TestAFailedStepIsNamedAndThoseBeforeItStand(t *testing.T) {
	sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
		broken := first
		broken.Steps = append(slices.Clone(first.Steps), sqldb.Step{Name: "no_such_table", SQL: "ALTER TABLE {things}_missing ADD COLUMN a INT8"})
		err := broken.Migrate(t.Context(), driver(t, d), "app_")
		if err == nil || !strings.HasPrefix(err.Error(), "step 3 (no_such_table): ") {
			t.Errorf("%v", err)
		}
		migrate(t, d, second) // what came before it stands
	})
}

func TestTextIsWhatATextColumnTakes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "plain": "plain", "a\x00b": "a b", "a\xffb": "a\uFFFDb", "ääääääää": "ääääääää", "ääääääääx": "ääääääää"} {
		if got := sqldb.Text(in, 8); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func TestTuplesNumberTheirParameters(t *testing.T) {
	t.Parallel()
	if got, want := sqldb.Tuples(3, 2, "TEXT", "INT8"), "($3::TEXT, $4::INT8), ($5::TEXT, $6::INT8)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
