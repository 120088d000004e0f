package main

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// TestDDLPrintsAScriptThatRunsAndRunsAgain as it is, by any client.
func TestDDLPrintsAScriptThatRunsAndRunsAgain(t *testing.T) {
	t.Parallel()
	for engine, name := range map[sqlidem.Engine]string{sqlidem.PostgreSQL: "postgres", sqlidem.CockroachDB: "cockroach"} {
		want, err := sqlidem.DDL(engine, sqlidem.Config{TablePrefix: "shop_"})
		if err != nil {
			t.Fatal(err)
		}
		if got := runBinary(t, "ddl", name, "--table-prefix", "shop_"); got.code != exitOK || got.stdout != want || got.stderr != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := runBinary(t, "ddl", "postgres", "--table-prefix", `"; DROP`); got.code != exitUsage || got.stdout != "" {
		t.Errorf("a prefix that is no name: %+v", got)
	}
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for range 2 {
		if _, err := conn.Exec(t.Context(), runBinary(t, "ddl", "postgres").stdout); err != nil {
			t.Error(err)
		}
	}
}
