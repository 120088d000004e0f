package sqlstore_test

import (
	"context"
	"testing"

	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
	"github.com/idemd/idemd/ledger/storetest"
)

// C19: the whole suite through PgBouncer in transaction mode, with fewer connections to the server than to the pooler.
func TestC19ConformanceThroughPgBouncer(t *testing.T) {
	server := pgtest.Shared(t)
	pooler := pgtest.StartPooler(t, server)
	open := func(d *database, tb testing.TB) *sqlstore.Store {
		return openStore(tb, sqlstore.Config{URL: pooler.URL(tb, d.url), Pooler: true, ClockSQL: d.clockSQL, MaxConns: 8})
	}
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, storetest.Factory{Open: func(tb testing.TB) *storetest.Backend {
			return backend(tb, newDatabase(tb, server.URL(tb)), open)
		}})
	})
	t.Run("migrate", func(t *testing.T) {
		cfg := sqlstore.Config{URL: pooler.URL(t, server.URL(t)), Pooler: true}
		if err := sqlstore.Migrate(context.Background(), cfg, nil); err != nil {
			t.Fatal(err)
		}
		s := openStore(t, cfg)
		mustWrite(t, s, begin(scopeOf(1)))
		if e := mustGet(t, s, scopeOf(1)); e == nil {
			t.Error("there is no row")
		}
	})
}
