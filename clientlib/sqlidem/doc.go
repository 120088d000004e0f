// Package sqlidem makes work safe to retry whose effect is in the service's own PostgreSQL (14 or later) or CockroachDB (21.1 or
// later), with what no remote ledger can promise alone: the record and the effect commit together, or neither does.
//
// There are two levels, in tables that stand beside the service's own ([Migrate] makes them, idemd ddl prints them).
//
// Level 1 is [Do]. It needs no daemon: claim, mutation and answer are one transaction.
//
//	db, err := sqlidem.NewPgx(pool, sqlidem.Config{}) // or NewSQL(sqlDB, ...)
//	err = sqlidem.Migrate(ctx, db)
//	result, err := sqlidem.Do(ctx, db, ref, fingerprint, func(ctx context.Context, tx pgx.Tx) (clientlib.Response, error) {
//		_, err := tx.Exec(ctx, "UPDATE accounts SET ...")
//		return clientlib.Response{Body: answer}, err
//	}, sqlidem.Options{Wait: 5 * time.Second})
//
// Level 2 is [Receipts]. The daemon holds the entry, for operators and for many services at once, and the mutation's transaction
// writes a receipt, from which the entry is settled after a crash.
//
// What is decided is decided by the daemon's own table (docs/states.md), and errors are those of clientlib, so that callers
// handle one kind. docs/sqlidem.md says what each level needs and what it leaves open.
package sqlidem
