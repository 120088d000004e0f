package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func number(t *testing.T, conn *pgx.Conn, query string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// TestWhatIsStalledComesWhenTheProxyIsDisarmed: a statement is carried out only then, an answer is passed on only then. What marks a statement as carried
// out is a sequence, which another connection sees move at once.
func TestWhatIsStalledComesWhenTheProxyIsDisarmed(t *testing.T) {
	const moved = "SELECT count(*) FROM marks WHERE is_called"
	for _, c := range []struct {
		fault  pgtest.Fault
		before int // how often it was carried out while it is stalled
	}{{pgtest.StallBefore, 0}, {pgtest.StallAfter, 1}} {
		url := pgtest.URL(t)
		proxy := pgtest.NewProxy(t, url)
		stalled, other := connect(t, proxy.URL()), connect(t, url)
		if _, err := other.Exec(t.Context(), "CREATE SEQUENCE marks"); err != nil {
			t.Fatal(err)
		}
		proxy.Arm(c.fault, "nextval", "", 1)
		answered := make(chan error, 1)
		go func() {
			_, err := stalled.Exec(t.Context(), "SELECT nextval('marks')")
			answered <- err
		}()
		limit, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for proxy.Hits() == 0 || number(t, other, moved) < c.before {
			if limit.Err() != nil {
				t.Fatalf("fault %d: it never came to the proxy, or to the server", c.fault)
			}
		}
		for range 50 { // time enough for an answer that is not kept back
			number(t, other, moved)
		}
		select {
		case err := <-answered:
			t.Fatalf("fault %d: an answer while it was stalled: %v", c.fault, err)
		default:
		}
		if n := number(t, other, moved); n != c.before {
			t.Errorf("fault %d: carried out %d times while it was stalled, want %d", c.fault, n, c.before)
		}
		proxy.Disarm()
		if err := <-answered; err != nil {
			t.Errorf("fault %d: after the stall: %v", c.fault, err)
		}
		if n := number(t, other, moved); n != 1 {
			t.Errorf("fault %d: carried out %d times in the end", c.fault, n)
		}
	}
}

// TestAStatementIsReplacedOnItsWay, prepared and as simple text, wherever it stands.
func TestAStatementIsReplacedOnItsWay(t *testing.T) {
	proxy := pgtest.NewProxy(t, pgtest.URL(t))
	conn := connect(t, proxy.URL())
	if n := number(t, conn, "SELECT 1"); n != 1 {
		t.Errorf("SELECT 1 gives %d with nothing to replace", n)
	}
	proxy.Replace("2 + 3", "(SELECT 40) + 2")
	if n := number(t, conn, "SELECT 2 + 3"); n != 42 {
		t.Errorf("prepared, it gives %d, want 42", n)
	}
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT 2 + 3 + 2 + 3", pgx.QueryExecModeSimpleProtocol).Scan(&n); err != nil || n != 84 {
		t.Errorf("as simple text with two of them it gives %d, %v, want 84", n, err)
	}
}
