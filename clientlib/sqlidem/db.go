package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// DefaultTablePrefix is what the names of this package's tables begin with.
const DefaultTablePrefix = sqldb.DefaultTablePrefix

// DefaultCommitTimeout is how long a commit may take before its outcome counts as unknown.
const DefaultCommitTimeout = 10 * time.Second

// Config says which tables to use. The zero value is right for most.
type Config struct {
	// TablePrefix is what the tables' names begin with: lower-case letters, digits and underscores, at most 32, not beginning with a
	// digit. A schema may stand before it, as in "app.idem_". Default: DefaultTablePrefix.
	TablePrefix string
	// CommitTimeout bounds the commit of work that is done, and finding out what became of it, each. They go on when the caller's
	// context has ended, since the answer is worth keeping. Default: DefaultCommitTimeout.
	CommitTimeout time.Duration

	// ClockSQL is for tests only: an SQL expression of type INT8 to use as the clock, in microseconds since the Unix epoch. Empty: the
	// database's clock.
	ClockSQL string
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if err := sqldb.CheckPrefix(c.TablePrefix); err != nil {
		return fmt.Errorf("sqlidem: Config.%w", err)
	}
	if c.CommitTimeout < 0 {
		return errors.New("sqlidem: Config.CommitTimeout must not be negative")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.TablePrefix == "" {
		c.TablePrefix = DefaultTablePrefix
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = DefaultCommitTimeout
	}
	return c
}

// DB is a service's database. Make one with [NewPgx], and work gets a pgx.Tx; or with [NewSQL], and work gets a *sql.Tx. It holds no
// resources of its own and is not closed. It may be used by as many goroutines as what it was made from.
type DB[T any] struct {
	driver  sqldb.Driver[T]
	config  Config
	dialect atomic.Pointer[dialect] // nil until the server was asked what it is
}

// PgxDB is a *pgxpool.Pool, or one connection: a *pgxpool.Conn or a *pgx.Conn, for one goroutine at a time.
type PgxDB = sqldb.PgxDB

// NewPgx makes a DB of a pgx pool or connection. Work gets a pgx.Tx whose Commit and Rollback refuse: the transaction is not the work's
// to end. A savepoint (tx.Begin) is.
func NewPgx(db PgxDB, config Config) (*DB[pgx.Tx], error) {
	driver, err := sqldb.Pgx(db)
	return newDB(driver, config, err)
}

// NewSQL makes a DB of a database/sql pool, with any driver for PostgreSQL whose errors have a method SQLState() string: pgx's and
// lib/pq's do. Work gets a *sql.Tx, which it must not commit or roll back: with this driver nothing can keep it from doing so, and the
// mutation would then stand without its answer. The next Do for the same intent is refused IN_PROGRESS for a day, then ABANDONED.
func NewSQL(db *sql.DB, config Config) (*DB[*sql.Tx], error) {
	driver, err := sqldb.SQL(db)
	return newDB(driver, config, err)
}

func newDB[T any](driver sqldb.Driver[T], config Config, err error) (*DB[T], error) {
	if err != nil {
		return nil, fmt.Errorf("sqlidem: %w", err)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &DB[T]{driver: driver, config: config.withDefaults()}, nil
}

// Engine is a kind of database.
type Engine = sqldb.Engine

// The engines.
const (
	PostgreSQL  = sqldb.PostgreSQL
	CockroachDB = sqldb.CockroachDB
)

// dialectOn is the server's dialect. The server is asked once.
func (d *DB[T]) dialectOn(ctx context.Context, q sqldb.Querier) (*dialect, error) {
	if known := d.dialect.Load(); known != nil {
		return known, nil
	}
	engine, err := sqldb.EngineOf(ctx, q)
	if err != nil {
		return nil, err
	}
	made := newDialect(engine, d.config)
	d.dialect.Store(made)
	return made, nil
}
