package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	ctx := context.Background()
	for range 2 {
		conn, err := pgx.Connect(ctx, pgtest.URL(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, "CREATE TABLE only_here (a INT)"); err != nil {
			t.Errorf("the database was not empty: %v", err)
		}
	}
}

func TestRestartKeepsWhatWasCommitted(t *testing.T) {
	ctx := context.Background()
	server := pgtest.Start(t)
	url := server.URL(t)
	exec := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	exec("CREATE TABLE kept (a INT)")
	server.Kill(t)
	server.Restart(t)
	exec("INSERT INTO kept VALUES (1)")
}
