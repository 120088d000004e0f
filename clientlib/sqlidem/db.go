package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultTablePrefix is what the names of this package's tables begin with.
const DefaultTablePrefix = "idem_"

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

var prefixForm = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,31}$`)

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	switch {
	case c.TablePrefix != "" && !prefixForm.MatchString(c.TablePrefix):
		return errors.New("sqlidem: Config.TablePrefix must be lower-case letters, digits and underscores, with a schema and a dot before them or without")
	case c.CommitTimeout < 0:
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
	driver  driver[T]
	config  Config
	dialect atomic.Pointer[dialect] // nil until the server was asked what it is
}

func newDB[T any](driver driver[T], config Config) (*DB[T], error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &DB[T]{driver: driver, config: config.withDefaults()}, nil
}

// driver is what differs between pgx and database/sql.
type driver[T any] interface {
	// acquire pins one connection.
	acquire(ctx context.Context) (conn[T], error)
}

// querier runs statements: on a connection, or in a transaction.
type querier interface {
	exec(ctx context.Context, text string, args ...any) (rows int64, err error)
	// scan reads one row. It returns errNoRow where there is none.
	scan(ctx context.Context, text string, args []any, into ...any) error
	// each reads rows, one call of row for each.
	each(ctx context.Context, text string, args []any, row func(scan func(into ...any) error) error) error
}

// conn is a pinned connection. It is released once.
type conn[T any] interface {
	querier
	begin(ctx context.Context, isolation sql.IsolationLevel) (T, txn, error)
	// restarting runs fn in a transaction by CockroachDB's restart protocol, at most retries times more than once, and commits it. Its
	// errors are cockroach-go's.
	restarting(ctx context.Context, isolation sql.IsolationLevel, retries int, fn func(T, txn) error) error
	// release gives the connection back; one that is not sound is closed.
	release(sound bool)
}

// txn is a transaction as this package uses it.
type txn interface {
	querier
	// script runs statements without parameters, in one round trip where the driver can.
	script(ctx context.Context, statements ...string) error
	commit(ctx context.Context) error
	rollback(ctx context.Context) error
}

var errNoRow = errors.New("sqlidem: no row")

// Engine is a kind of database.
type Engine int

// The engines.
const (
	PostgreSQL Engine = iota + 1
	CockroachDB
)

// String is the engine's name.
func (e Engine) String() string {
	if e == CockroachDB {
		return "CockroachDB"
	}
	return "PostgreSQL"
}

const (
	minPostgreSQL       = 14
	minCockroachDBMajor = 21
	minCockroachDBMinor = 1
)

var (
	postgreSQLVersion  = regexp.MustCompile(`^PostgreSQL (\d+)`)
	cockroachDBVersion = regexp.MustCompile(`^CockroachDB .*\bv(\d+)\.(\d+)`)
)

// engineOf reads the answer of version().
func engineOf(version string) (Engine, error) {
	if m := cockroachDBVersion.FindStringSubmatch(version); m != nil {
		major, _ := strconv.Atoi(m[1])
		minor, _ := strconv.Atoi(m[2])
		if major < minCockroachDBMajor || major == minCockroachDBMajor && minor < minCockroachDBMinor {
			return 0, fmt.Errorf("sqlidem: CockroachDB %d.%d is too old: %d.%d or later is needed", major, minor, minCockroachDBMajor, minCockroachDBMinor)
		}
		return CockroachDB, nil
	}
	if m := postgreSQLVersion.FindStringSubmatch(version); m != nil {
		if major, _ := strconv.Atoi(m[1]); major < minPostgreSQL {
			return 0, fmt.Errorf("sqlidem: PostgreSQL %d is too old: %d or later is needed", major, minPostgreSQL)
		}
		return PostgreSQL, nil
	}
	return 0, fmt.Errorf("sqlidem: the server is neither PostgreSQL nor CockroachDB: its version() is %q", version)
}

// dialectOn is the server's dialect. The server is asked once.
func (d *DB[T]) dialectOn(ctx context.Context, q querier) (*dialect, error) {
	if known := d.dialect.Load(); known != nil {
		return known, nil
	}
	var version string
	if err := q.scan(ctx, "SELECT version()", nil, &version); err != nil {
		return nil, err
	}
	engine, err := engineOf(version)
	if err != nil {
		return nil, err
	}
	made := newDialect(engine, d.config)
	d.dialect.Store(made)
	return made, nil
}

// tables are the names of the tables under one prefix. Indexes and constraints take their name without the schema.
type tables struct{ prefix string }

func (t tables) named(name string) string { return t.prefix + name }

func (t tables) index(name string) string {
	_, bare, found := strings.Cut(t.prefix, ".")
	if !found {
		bare = t.prefix
	}
	return bare + name
}
