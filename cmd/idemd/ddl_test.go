package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
	"github.com/idemd/idemd/clientlib/webhook/sqlreceipts"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

var ddlEngines = []struct {
	name string
	url  func(testing.TB) string // a fresh database
}{
	{"postgres", pgtest.URL},
	{"cockroach", pgtest.CockroachURL},
}

// TestDDLPrintsScriptsThatRunAndRunAgain as they are, by any client; and every package's Migrate finds nothing to do after them.
func TestDDLPrintsScriptsThatRunAndRunAgain(t *testing.T) {
	for _, e := range ddlEngines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			url := e.url(t)
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.Background()) }()
			for range 2 {
				if _, err := conn.Exec(t.Context(), runBinary(t, "ddl", e.name, "--table-prefix", "shop_").stdout); err != nil {
					t.Error(err)
				}
			}
			made := tablesAndSteps(t, conn)
			for _, want := range []string{"shop_entries", "shop_receipts", "shop_inbox", "shop_outbox", "shop_webhook_receipts"} {
				if !strings.Contains(made, want) {
					t.Errorf("there is no %s in %s", want, made)
				}
			}
			migrateAll(t, url, "shop_")
			if now := tablesAndSteps(t, conn); now != made {
				t.Errorf("the script made\n%s\nand with Migrate there are\n%s", made, now)
			}
		})
	}
}

// TestDDLPrintsWhatItIsAskedFor: each word has its own tables, and they are enough for the package.
func TestDDLPrintsWhatItIsAskedFor(t *testing.T) {
	t.Parallel()
	all := []string{"idem_entries (", "idem_receipts (", "idem_inbox (", "idem_outbox (", "idem_webhook_receipts ("}
	for set, want := range map[string][]string{
		"ledger": all[:2], "inbox": all[2:3], "outbox": all[3:4], "webhook": {all[2], all[4]}, "all": all,
	} {
		got := runBinary(t, "ddl", "postgres", set)
		if got.code != exitOK || got.stderr != "" {
			t.Errorf("%s: %+v", set, got)
		}
		for _, table := range all {
			wanted := false
			for _, w := range want {
				wanted = wanted || w == table
			}
			if strings.Contains(got.stdout, "CREATE TABLE IF NOT EXISTS "+table) != wanted {
				t.Errorf("%s: %s: want %v", set, table, wanted)
			}
		}
	}
	if got, all := runBinary(t, "ddl", "postgres"), runBinary(t, "ddl", "postgres", "all"); got.stdout != all.stdout {
		t.Error("without a word it is not all of them")
	}
	for _, args := range [][]string{{"postgres", "--table-prefix", `"; DROP`}, {"postgres", "tables"}, {"mysql"}, {"postgres", "inbox", "outbox"}} {
		if got := runBinary(t, append([]string{"ddl"}, args...)...); got.code != exitUsage || got.stdout != "" {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// tablesAndSteps is what a migration has made, as text.
func tablesAndSteps(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'shop%'
UNION ALL SELECT step::TEXT || ' ' || name || ' ' || applied_at::TEXT FROM shop_schema ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func migrateAll(t *testing.T, url, prefix string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := sqlidem.NewPgx(pool, sqlidem.Config{TablePrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.NewPgx(pool, inbox.Config{TablePrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	out, err := outbox.NewPgx(pool, outbox.Config{TablePrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	receipts, err := sqlreceipts.NewPgx(pool, sqlreceipts.Config{TablePrefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sqlidem.Migrate(t.Context(), db), in.Migrate(t.Context()), out.Migrate(t.Context()), receipts.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
}
