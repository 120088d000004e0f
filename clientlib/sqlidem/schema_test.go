package sqlidem_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMigrateMayRunAnyNumberOfTimesAndAllAtOnce(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			s := openService(t, e.url(t), "pgx", sqlidem.Config{})
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() { s.migrate(t) })
			}
			wg.Wait()
			s.migrate(t)
			if _, err := s.do(t.Context(), ref("k"), asked("a"), nothing, sqlidem.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMigrationsThatMeetInTheCatalogue: whichever way another one got in first, the next try finds what it made.
func TestMigrationsThatMeetInTheCatalogue(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			proxy := pgtest.NewProxy(t, e.url(t))
			codes := []string{"23505", "42P07", "42710", "40001", "40P01", "XX000"}
			for _, code := range codes {
				proxy.Arm(pgtest.FailBefore, "CREATE TABLE IF NOT EXISTS", code, 1)
			}
			openService(t, proxy.URL(), "pgx", sqlidem.Config{}).migrate(t)
			if proxy.Hits() != len(codes) {
				t.Errorf("%d faults happened, want %d", proxy.Hits(), len(codes))
			}
		})
	}
}

func nothing(context.Context, tx) (clientlib.Response, error) { return answer("nothing"), nil }

func TestTheDDLScriptMakesWhatMigrateMakes(t *testing.T) {
	for i, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			url := e.url(t)
			execute(t, url, "CREATE SCHEMA app")
			for _, config := range []sqlidem.Config{{}, {TablePrefix: "app.once_"}} {
				script, err := sqlidem.DDL(sqlidem.Engine(i+1), config)
				if err != nil {
					t.Fatal(err)
				}
				execute(t, url, script, script)
				for _, driver := range []string{"pgx", "database/sql"} {
					s := openService(t, url, driver, config)
					s.migrate(t)
					if _, err := s.do(t.Context(), ref(driver), asked("a"), nothing, sqlidem.Options{}); err != nil {
						t.Error(err)
					}
				}
			}
			d := &database{url: url}
			if n := d.count(t, "SELECT count(*) FROM app.once_entries"); n != 2 {
				t.Errorf("%d entries under the other prefix", n)
			}
			if n, m := d.count(t, "SELECT count(*) FROM idem_schema"), d.count(t, "SELECT max(step) FROM idem_schema"); n != m || n == 0 {
				t.Errorf("%d steps are recorded, up to %d", n, m)
			}
		})
	}
}

func TestOneConnectionWillDo(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			conn := must(pgx.Connect(t.Context(), e.url(t)))
			defer func() { _ = conn.Close(context.Background()) }()
			db := must(sqlidem.NewPgx(conn, sqlidem.Config{}))
			if err := sqlidem.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			work := func(context.Context, pgx.Tx) (clientlib.Response, error) { return answer("a"), nil }
			for _, want := range []clientlib.Outcome{clientlib.Executed, clientlib.Replayed} {
				if result, err := sqlidem.Do(t.Context(), db, ref("k"), asked("a"), work, sqlidem.Options{}); err != nil || result.Outcome != want {
					t.Errorf("%+v, %v", result, err)
				}
			}
		})
	}
}

// The work of a pgx service cannot end its transaction. That of a database/sql service can, and its intent is then not run again: nobody
// knows what it has done.
func TestWorkThatEndsItsTransaction(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, e.url(t), "pgx")
			s := d.service(t)
			work := func(ctx context.Context, t tx) (clientlib.Response, error) {
				if err := t.(pgxTx).Commit(ctx); err == nil {
					return answer("committed"), nil
				}
				if err := t.(pgxTx).Rollback(ctx); err == nil {
					return answer("rolled back"), nil
				}
				return charge("1")(ctx, t)
			}
			if result, err := s.do(t.Context(), ref("1"), asked("a"), work, patient); err != nil || string(result.Response.Body) != "charged 1" {
				t.Errorf("%+v, %v", result, err)
			}
			s = openService(t, d.url, "database/sql", sqlidem.Config{ClockSQL: movedClock})
			work = func(ctx context.Context, t tx) (clientlib.Response, error) {
				response, _ := charge("2")(ctx, t)
				return response, t.(sqlTx).Commit()
			}
			if d.cockroach {
				return // there a COMMIT inside of the restart savepoint is refused
			}
			if _, err := s.do(t.Context(), ref("2"), asked("a"), work, patient); err == nil {
				t.Error("no error")
			}
			for _, want := range []error{clientlib.ErrInProgress, clientlib.ErrAbandoned} {
				_, err := s.do(t.Context(), ref("2"), asked("a"), work, sqlidem.Options{})
				if !strings.Contains(err.Error(), want.Error()) {
					t.Errorf("%v, want %v", err, want)
				}
				d.advance(t, 25*60*60*1e9)
			}
			if n := d.effects(t, "2"); n != 1 {
				t.Errorf("%d effects", n)
			}
		})
	}
}

func TestConfigsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"1_", "a-b", "a.b.c", `a"`, "Upper_", strings.Repeat("a", 33)} {
		if err := (sqlidem.Config{TablePrefix: prefix}).Validate(); err == nil {
			t.Errorf("prefix %q is taken", prefix)
		}
	}
	for _, rules := range []sqlidem.Rules{
		{Retention: 1}, {Retention: -1}, {Retention: 1 << 62}, {MaxResponseBytes: 1 << 40}, {KeepMetadata: []string{"set-cookie"}}, {Tombstone: 1 << 62},
	} {
		if err := (sqlidem.Options{Rules: rules}).Validate(); err == nil {
			t.Errorf("%+v is taken", rules)
		}
	}
	if _, err := sqlidem.NewSQL(nil, sqlidem.Config{}); err == nil {
		t.Error("no database is taken")
	}
	if _, err := sqlidem.NewReceipts[pgx.Tx](nil, sqlidem.ReceiptsConfig{}); err == nil {
		t.Error("no database is taken")
	}
}
