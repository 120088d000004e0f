// Package sqlstore keeps the ledger in PostgreSQL (14 or later) or CockroachDB (21.1 or later): one store, one set of statements,
// two schemas.
//
// Every write is one conditional statement, alone in its transaction or, under load, gathered with other writes (group commit, see [gatherer]), so there
// is no transaction to hold open and nothing half done. Three rules keep it right, each with a test:
//
//   - Time enters SQL in one place, [Config.ClockSQL]. It is read after the row is locked, once for a statement, and every stamp
//     of the statement comes from that reading. No time of this process is ever bound as a parameter.
//   - One statement never changes one table twice, and never both inserts and reads back: CockroachDB refuses the first, and
//     PostgreSQL answers the second from a stale snapshot when two callers race.
//   - A statement whose outcome is not known ([ledger.ErrUnknown]) is never sent again. Only errors that say that nothing happened
//     are retried.
package sqlstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/ledger"
)

// Store is a [ledger.Store] on a PostgreSQL or CockroachDB database.
type Store struct {
	cfg    Config
	engine engine
	sql    *statements
	pool   *pgxpool.Pool
	gather *gatherer
	reads  *readGatherer
	log    *slog.Logger
}

var _ ledger.Store = (*Store)(nil)

// Open connects to the database and checks that it can keep a ledger: a known engine and version, durable commits, a primary, a
// UTF-8 database, the schema this build was written for. Each refusal says what to do about it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	engine, err := probe(ctx, cfg)
	if err != nil {
		return nil, err
	}
	poolConfig, err := cfg.pool(engine)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, cfg.connectError(err)
	}
	s := &Store{cfg: cfg, engine: engine, sql: newStatements(engine, cfg.ClockSQL), pool: pool, log: cfg.Logger}
	s.gather, s.reads = newGatherer(s), newReadGatherer(s)
	if _, err := s.Ready(ctx); err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// Close gives the connections back. It waits for the statements in flight; writes that wait for a connection are not done.
func (s *Store) Close() error {
	s.gather.close()
	s.pool.Close()
	return nil
}

// Margin is how far apart the clocks of the store can be: zero on PostgreSQL, [Config.ClockMargin] on CockroachDB, where each
// statement sees the clock of the node it was sent to.
func (s *Store) Margin() time.Duration {
	if s.engine == cockroachDB {
		return s.cfg.ClockMargin
	}
	return 0
}

// Engine names the database engine: "PostgreSQL" or "CockroachDB".
func (s *Store) Engine() string { return s.engine.String() }

// Ready reports the store's clock if the database answers, still is a durable primary, and has the right schema.
func (s *Store) Ready(ctx context.Context) (ledger.Time, error) {
	type answer struct {
		now    int64
		schema schemaState
		health health
	}
	a, err := read(ctx, s, "ready", func(ctx context.Context, conn *pgx.Conn) (a answer, err error) {
		row := conn.QueryRow(ctx, s.sql.ready)
		err = row.Scan(&a.now, &a.schema.applied, &a.schema.needs, &a.health.recovering, &a.health.fsync, &a.health.synchronousCommit)
		return a, err
	})
	switch {
	case isUndefinedTable(err):
		return 0, schemaState{}.check()
	case err != nil:
		return 0, err
	}
	if err := a.schema.check(); err != nil {
		return 0, err
	}
	if err := a.health.check(s.cfg); err != nil {
		return 0, err
	}
	return ledger.Time(a.now), nil
}

// inSnapshot runs fn in a read-only transaction that sees one snapshot. fn may be run more than once.
func (s *Store) inSnapshot(ctx context.Context, op string, fn func(pgx.Tx) error) error {
	return s.retry(ctx, op, func() error {
		return s.classified(ctx, op, reading, s.snapshotTx(ctx, fn))
	})
}

// notUsable is the error for a row whose bytes this build cannot decode.
func notUsable(what string, err error) error {
	return &Error{Op: "read", class: badRow, Reason: "the stored " + what + " cannot be decoded", cause: err}
}
