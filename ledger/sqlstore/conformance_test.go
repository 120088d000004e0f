package sqlstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// TestConformance runs the whole suite of what a store must do on every engine.
func TestConformance(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			e.url(t) // skips here, once, rather than in every case
			margin := time.Duration(0)
			if e.name == "CockroachDB" {
				margin = 500 * time.Millisecond
			}
			storetest.Run(t, storetest.Factory{Margin: margin, Open: func(tb testing.TB) *storetest.Backend {
				return backend(tb, newDatabase(tb, e.url(tb)), (*database).open)
			}})
		})
	}
}

// TestRandomHistoriesOfTheLedgerAgreeWithTheModel plays twenty; STORETEST_HISTORIES=10000 plays ten thousand.
func TestRandomHistoriesOfTheLedgerAgreeWithTheModel(t *testing.T) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			e.url(t)
			margin := time.Duration(0)
			if e.name == "CockroachDB" {
				margin = 500 * time.Millisecond
			}
			storetest.Histories(t, storetest.Factory{Margin: margin, Open: func(tb testing.TB) *storetest.Backend {
				return backend(tb, newDatabase(tb, e.url(tb)), (*database).open)
			}}, 20)
		})
	}
}

// backend is a database as the suite wants it, with stores from open.
func backend[S ledger.Store](tb testing.TB, d *database, open func(*database, testing.TB) S) *storetest.Backend {
	b := &storetest.Backend{
		Store: open(d, tb), Clock: d.clock,
		Another: func(tb testing.TB) ledger.Store { return open(d, tb) },
		Reopen:  func(tb testing.TB) ledger.Store { return open(d, tb) },
		Residue: func(tb testing.TB) int { return d.count(tb, "idemd_entries") + d.count(tb, "idemd_bodies") },
	}
	b.Spoil = func(tb testing.TB, scope ledger.ScopeID) {
		tb.Helper()
		const spoil = "UPDATE idemd_entries SET answer = 'an answer of another version' WHERE scope_id = $1"
		if tag, err := connect(tb, d.url).Exec(context.Background(), spoil, scope[:]); err != nil || tag.RowsAffected() != 1 {
			tb.Errorf("%s: %s, %v", spoil, tag, err)
		}
	}
	if !d.cockroach {
		// CockroachDB does not show who waits for a row. TestC80TakeoverThatWaitsForTheRowGetsItsWholeLease runs on both.
		b.Block = d.block
	}
	return b
}

// block locks a row as a hand in psql would.
func (d *database) block(tb testing.TB, scope ledger.ScopeID) (waiting func() bool, release func()) {
	tb.Helper()
	ctx := context.Background()
	conn := connect(tb, d.url)
	tx, err := conn.Begin(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT 1 FROM idemd_entries WHERE scope_id = $1 FOR UPDATE", scope[:]); err != nil {
		tb.Fatal(err)
	}
	return d.whoWaits(tb), func() {
		if err := tx.Rollback(ctx); err != nil {
			tb.Errorf("releasing the row: %v", err)
		}
	}
}
