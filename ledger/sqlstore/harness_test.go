package sqlstore_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) {
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

func onEveryEngine(t *testing.T, test func(*testing.T, *database)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, e.url(t)))
		})
	}
}

func execute(t testing.TB, url, text string) {
	t.Helper()
	conn := connect(t, url)
	if _, err := conn.Exec(context.Background(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// database is a migrated database with a clock that the test moves. Stores opened with open read it; real opens one on the database's
// own clock.
type database struct {
	url       string
	clockSQL  string
	cockroach bool
	*clock
}

// clockStart is years away from the clock of this process: whatever time a statement might take from here would show.
const clockStart ledger.Time = 4_102_444_800_000_000 // the year 2100

func newDatabase(t testing.TB, url string) *database {
	t.Helper()
	ctx := context.Background()
	if err := sqlstore.Migrate(ctx, sqlstore.Config{URL: url}, nil); err != nil {
		t.Fatalf("Migrate: %v", err)
	}
	conn := connect(t, url)
	setUp := []string{
		"CREATE TABLE idem_test_clock (now_us INT8 NOT NULL)",
		fmt.Sprintf("INSERT INTO idem_test_clock VALUES (%d)", clockStart),
	}
	d := &database{url: url, clockSQL: "(SELECT now_us FROM idem_test_clock)", clock: &clock{tb: t, conn: conn, now: clockStart}}
	if d.cockroach = conn.PgConn().ParameterStatus("crdb_version") != ""; !d.cockroach {
		// A subselect would see the clock as it stood when the statement began. A function sees it move, as clock_timestamp() does.
		setUp = append(setUp, "CREATE FUNCTION idem_test_now() RETURNS INT8 LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN (SELECT now_us FROM idem_test_clock); END'")
		d.clockSQL = "idem_test_now()"
	}
	for _, text := range setUp {
		if _, err := conn.Exec(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// clock is the movable clock of a database.
type clock struct {
	tb   testing.TB
	mu   sync.Mutex
	conn *pgx.Conn
	now  ledger.Time
}

func (c *clock) Now() ledger.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	if _, err := c.conn.Exec(context.Background(), fmt.Sprintf("UPDATE idem_test_clock SET now_us = %d", c.now)); err != nil {
		c.tb.Errorf("moving the clock: %v", err)
	}
}

// open opens a store on the movable clock.
func (d *database) open(t testing.TB) *sqlstore.Store {
	t.Helper()
	return openStore(t, sqlstore.Config{URL: d.url, ClockSQL: d.clockSQL, MaxConns: 4})
}

// real opens a store on the database's own clock.
func (d *database) real(t testing.TB) *sqlstore.Store {
	t.Helper()
	return openStore(t, sqlstore.Config{URL: d.url, MaxConns: 4})
}

func openStore(t testing.TB, cfg sqlstore.Config) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.Open(context.Background(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// count counts the rows of a table.
func (d *database) count(t testing.TB, table string) (n int) {
	t.Helper()
	if err := connect(t, d.url).QueryRow(context.Background(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// withParameter is url with one more query parameter.
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
