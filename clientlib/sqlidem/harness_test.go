package sqlidem_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		serve(role)
		return
	}
	code := m.Run()
	pgtest.Stop()
	os.Exit(code)
}

// engines are the databases that a test runs on. A test that needs one which is not there is skipped and says so.
var engines = []struct {
	name string
	url  func(testing.TB) string // a fresh database
}{
	{"PostgreSQL", func(t testing.TB) string { return pgtest.URL(t) }},
	{"CockroachDB", func(t testing.TB) string { return pgtest.CockroachURL(t) }},
}

// onEveryDatabase runs a test on each engine through each driver.
func onEveryDatabase(t *testing.T, test func(t *testing.T, d *database)) {
	for _, e := range engines {
		for _, driver := range []string{"pgx", "database/sql"} {
			t.Run(e.name+"/"+driver, func(t *testing.T) {
				t.Parallel()
				test(t, newDatabase(t, e.url(t), driver))
			})
		}
	}
}

// onPostgreSQL runs a test that plants faults which are PostgreSQL's, through each driver.
func onPostgreSQL(t *testing.T, test func(t *testing.T, d *database)) {
	for _, driver := range []string{"pgx", "database/sql"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, pgtest.URL(t), driver))
		})
	}
}

func execute(t testing.TB, url string, texts ...string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, text := range texts {
		if _, err := conn.Exec(context.Background(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

// database is a migrated database with a table of effects, as a service sees it through one driver. Its clock is the database's, moved ahead by as
// much as the test says.
type database struct {
	url       string
	driver    string
	cockroach bool
}

const setUpEffects = `CREATE TABLE effects (intent TEXT NOT NULL, note TEXT NOT NULL)`

// movedClock is the database's own clock, and what the test has added to it.
const movedClock = "((extract(epoch FROM clock_timestamp()) * 1000000)::INT8 + (SELECT us FROM moved))"

func newDatabase(t testing.TB, url, driver string) *database {
	t.Helper()
	d := &database{url: url, driver: driver}
	execute(t, url, setUpEffects, "CREATE TABLE moved (us INT8 NOT NULL)", "INSERT INTO moved VALUES (0)")
	d.cockroach = d.count(t, "SELECT count(*) FROM pg_catalog.pg_settings WHERE name = 'node_id'") > 0
	s := d.service(t)
	s.migrate(t)
	return d
}

// advance moves the clock.
func (d *database) advance(t testing.TB, by time.Duration) {
	t.Helper()
	execute(t, d.url, fmt.Sprintf("UPDATE moved SET us = us + %d", by.Microseconds()))
}

func (d *database) count(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), d.url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := conn.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// effects is how often the work of an intent had its effect.
func (d *database) effects(t testing.TB, intent string) int {
	t.Helper()
	return d.count(t, "SELECT count(*) FROM effects WHERE intent = $1", intent)
}

// tx is what work does in its transaction, whichever driver it is of.
type tx interface {
	exec(ctx context.Context, text string, args ...any) error
}

type work func(ctx context.Context, tx tx) (clientlib.Response, error)

// service is a service of which the tests need not know the driver.
type service struct {
	do      func(ctx context.Context, ref clientlib.Ref, request fingerprint.Fingerprint, w work, o sqlidem.Options) (clientlib.Result, error)
	migrate func(t testing.TB)
	sweep   func(ctx context.Context, o sqlidem.SweepOptions) (sqlidem.Swept, error)
	pgx     *sqlidem.DB[pgx.Tx]
	sql     *sqlidem.DB[*sql.Tx]
}

func (d *database) service(t testing.TB) *service {
	t.Helper()
	return openService(t, d.url, d.driver, sqlidem.Config{ClockSQL: movedClock})
}

// through is a service that reaches its database by way of a proxy.
func (d *database) through(t testing.TB, p *pgtest.Proxy) *service {
	t.Helper()
	return openService(t, p.URL(), d.driver, sqlidem.Config{ClockSQL: movedClock, CommitTimeout: 3 * time.Second})
}

func openService(t testing.TB, raw, driver string, config sqlidem.Config) *service {
	t.Helper()
	if driver == "pgx" {
		poolConfig := must(pgxpool.ParseConfig(raw))
		poolConfig.MaxConns = 80
		pool := must(pgxpool.NewWithConfig(context.Background(), poolConfig))
		t.Cleanup(pool.Close)
		return serviceOf(must(sqlidem.NewPgx(pool, config)), func(t pgx.Tx) tx { return pgxTx{t} })
	}
	db := stdlib.OpenDB(*must(pgx.ParseConfig(raw)))
	t.Cleanup(func() { _ = db.Close() })
	return sqlService(db, config)
}

func sqlService(db *sql.DB, config sqlidem.Config) *service {
	return serviceOf(must(sqlidem.NewSQL(db, config)), func(t *sql.Tx) tx { return sqlTx{t} })
}

func serviceOf[T any](db *sqlidem.DB[T], wrap func(T) tx) *service {
	s := &service{
		do: func(ctx context.Context, ref clientlib.Ref, request fingerprint.Fingerprint, w work, o sqlidem.Options) (clientlib.Result, error) {
			return sqlidem.Do(ctx, db, ref, request, func(ctx context.Context, t T) (clientlib.Response, error) { return w(ctx, wrap(t)) }, o)
		},
		migrate: func(t testing.TB) {
			t.Helper()
			if err := sqlidem.Migrate(context.Background(), db); err != nil {
				t.Fatal(err)
			}
		},
		sweep: func(ctx context.Context, o sqlidem.SweepOptions) (sqlidem.Swept, error) {
			return sqlidem.Sweep(ctx, db, o)
		},
	}
	switch own := any(db).(type) {
	case *sqlidem.DB[pgx.Tx]:
		s.pgx = own
	case *sqlidem.DB[*sql.Tx]:
		s.sql = own
	}
	return s
}

type pgxTx struct{ pgx.Tx }

func (t pgxTx) exec(ctx context.Context, text string, args ...any) error {
	_, err := t.Exec(ctx, text, args...)
	return err
}

type sqlTx struct{ *sql.Tx }

func (t sqlTx) exec(ctx context.Context, text string, args ...any) error {
	_, err := t.ExecContext(ctx, text, args...)
	return err
}

// charge is work whose effect is a row.
func charge(intent string) work {
	return func(ctx context.Context, tx tx) (clientlib.Response, error) {
		return answer("charged " + intent), tx.exec(ctx, "INSERT INTO effects (intent, note) VALUES ($1, 'charged')", intent)
	}
}

func answer(body string) clientlib.Response {
	return clientlib.Response{Body: []byte(body), ContentType: "text/plain"}
}

func ref(key string) clientlib.Ref {
	return clientlib.Ref{Tenant: "acme", Operation: "charge", Key: key}
}

func asked(what string) fingerprint.Fingerprint { return must(fingerprint.Bytes([]byte(what))) }

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

// patient waits for others as long as it takes.
var patient = sqlidem.Options{Wait: patience}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// withParameter is a URL with one more query parameter.
func withParameter(t testing.TB, raw, name, value string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}
