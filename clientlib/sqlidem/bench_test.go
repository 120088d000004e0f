package sqlidem_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// What a guard costs: the bare transaction, the same in a Do, and a replay.
func BenchmarkDo(b *testing.B) {
	d := newDatabase(b, pgtest.URL(b), "pgx")
	pool := must(pgxpool.New(b.Context(), d.url))
	defer pool.Close()
	db := must(sqlidem.NewPgx(pool, sqlidem.Config{}))
	insert := func(ctx context.Context, tx pgx.Tx) (clientlib.Response, error) {
		_, err := tx.Exec(ctx, "INSERT INTO effects (intent, note) VALUES ('k', 'charged')")
		return answer("charged"), err
	}
	request := asked("a")
	do := func(b *testing.B, key string) {
		if _, err := sqlidem.Do(b.Context(), db, ref(key), request, insert, sqlidem.Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("bare transaction", func(b *testing.B) {
		for b.Loop() {
			if err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error {
				_, err := insert(b.Context(), tx)
				return err
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			do(b, uuid.NewString())
		}
	})
	b.Run("replay", func(b *testing.B) {
		for b.Loop() {
			do(b, "replayed")
		}
	})
}
