// Package sqldbtest gives the inbox's and the outbox's tests the databases that they run on: a PostgreSQL started by pgtest, and a
// CockroachDB where COCKROACH_BINARY names a binary. Each through pgx and through database/sql.
package sqldbtest

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver "pgx"

	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// Main runs the tests of a package, stops the servers and exits.
func Main(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	os.Exit(code)
}

// Database is a fresh database, with a clock that the test moves.
type Database struct {
	URL       string
	Cockroach bool
	// Pool and SQL are connected to it, and closed when the test ends.
	Pool *pgxpool.Pool
	SQL  *sql.DB
	// ClockSQL is the movable clock as an expression of type TIMESTAMPTZ. It stands until Advance.
	ClockSQL string
}

// OnEveryEngine runs a test on each engine. One that is not there is skipped and says so.
func OnEveryEngine(t *testing.T, test func(*testing.T, *Database)) {
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, open(t, pgtest.URL(t)))
	})
	t.Run("CockroachDB", func(t *testing.T) {
		t.Parallel()
		test(t, open(t, pgtest.CockroachURL(t)))
	})
}

// PostgreSQL is a fresh database on PostgreSQL.
func PostgreSQL(t testing.TB) *Database {
	t.Helper()
	return open(t, pgtest.URL(t))
}

func open(t testing.TB, url string) *Database {
	t.Helper()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	d := &Database{URL: url, Pool: pool, SQL: db, ClockSQL: "(SELECT now FROM test_clock)"}
	var version string
	if err := pool.QueryRow(ctx, "SELECT version()").Scan(&version); err != nil {
		t.Fatal(err)
	}
	d.Cockroach = version[:2] == "Co"
	d.Exec(t, "CREATE TABLE test_clock (now TIMESTAMPTZ NOT NULL)")
	d.Exec(t, "INSERT INTO test_clock VALUES (clock_timestamp())")
	if !d.Cockroach {
		// A subselect would see the clock as it stood when the statement began. A function sees it move, as clock_timestamp() does.
		d.Exec(t, "CREATE FUNCTION test_now() RETURNS TIMESTAMPTZ LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN (SELECT now FROM test_clock); END'")
		d.ClockSQL = "test_now()"
	}
	return d
}

// Exec runs a statement.
func (d *Database) Exec(t testing.TB, text string, args ...any) {
	t.Helper()
	if _, err := d.Pool.Exec(context.Background(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// Int reads one number.
func (d *Database) Int(t testing.TB, text string, args ...any) (n int64) {
	t.Helper()
	if err := d.Pool.QueryRow(context.Background(), text, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// Advance moves the clock.
func (d *Database) Advance(t testing.TB, by time.Duration) {
	t.Helper()
	d.Exec(t, "UPDATE test_clock SET now = now + $1::INT8 * INTERVAL '1 microsecond'", by.Microseconds())
}

// AwaitRunning waits until so many statements with this in their text are under way, those of this connection left out.
func (d *Database) AwaitRunning(t testing.TB, part string, count int64) {
	t.Helper()
	query := "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid() AND wait_event_type = 'Lock' AND query LIKE $1"
	if d.Cockroach {
		query = "SELECT count(*) FROM crdb_internal.cluster_queries WHERE query LIKE $1 AND query NOT LIKE '%cluster_queries%'"
	}
	Await(t, part+" is under way", func() bool { return d.Int(t, query, "%"+part+"%") >= count })
}

// awaitLimit is when a test is taken to have failed. It is far beyond what anything here takes, for the sake of loaded machines.
const awaitLimit = time.Minute

// Await waits until a condition holds.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(awaitLimit)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("still not so after %v: %s", awaitLimit, what)
		}
	}
}
