package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// The defaults of [Config].
const (
	DefaultMaxConns         = 16
	DefaultClockMargin      = 500 * time.Millisecond
	DefaultStatementTimeout = 10 * time.Second
	DefaultConnectTimeout   = 5 * time.Second
)

const (
	connLifetime       = 10 * time.Minute
	connLifetimeJitter = time.Minute
	pingTimeout        = time.Second
	// idleInTransaction ends a transaction whose daemon went away in the middle: only pages and migrations have any.
	idleInTransaction = 30 * time.Second
	applicationName   = "idemd"
)

// Config says which database to use and how.
type Config struct {
	// URL names the database: postgres://user:password@host:port/database?sslmode=verify-full. Required. Its pool_* parameters are
	// ignored: the fields below decide.
	URL string
	// MaxConns is the size of the pool, which is filled at once and kept; 0: DefaultMaxConns. With several daemons on one database the
	// sum counts: about four for each core of the database is as much as helps.
	MaxConns int
	// Pooler says that the URL leads to a pooler that gives a connection for a transaction only (PgBouncer's pool_mode transaction). Then
	// nothing is prepared and no session setting is asked for; StatementTimeout must be set on the role instead (ALTER ROLE … SET
	// statement_timeout).
	Pooler bool
	// AllowUnsafeDurability opens a PostgreSQL with fsync or synchronous_commit off. A crash can then lose entries that were acknowledged,
	// and a duplicate will run again.
	AllowUnsafeDurability bool
	// ClockMargin is how far apart the clocks of CockroachDB's nodes can be; 0: DefaultClockMargin, which is CockroachDB's own limit
	// (--max-offset). Lower values are refused. It means nothing on PostgreSQL, which has one clock.
	ClockMargin time.Duration
	// StatementTimeout is how long the database may take over one statement; 0: DefaultStatementTimeout.
	StatementTimeout time.Duration
	// ConnectTimeout is how long a connection may take to come up; 0: DefaultConnectTimeout.
	ConnectTimeout time.Duration
	// Logger is told what callers are not: the database's own words about an error. Nil: silence. Keys, bodies and passwords
	// never reach it.
	Logger *slog.Logger

	// ClockSQL is for tests only: an SQL expression of type INT8 to use as the store's clock, in microseconds since the Unix epoch.
	// Empty: the database's clock. A test that moves the time keeps it in a table and passes, say, "(SELECT now_us FROM idem_test_clock)".
	ClockSQL string
}

// Validate refuses a config that cannot work, naming the field. It never quotes the URL.
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults is the config that is in force.
func (c Config) withDefaults() (Config, error) {
	if c.MaxConns == 0 {
		c.MaxConns = DefaultMaxConns
	}
	if c.ClockMargin == 0 {
		c.ClockMargin = DefaultClockMargin
	}
	if c.StatementTimeout == 0 {
		c.StatementTimeout = DefaultStatementTimeout
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.URL == "":
		return c, errors.New("sqlstore: URL is required: postgres://user@host:port/database")
	case c.MaxConns < 0 || c.MaxConns > 10_000:
		return c, errors.New("sqlstore: MaxConns must be between 1 and 10000")
	case c.ClockMargin < DefaultClockMargin:
		return c, fmt.Errorf("sqlstore: ClockMargin must be at least %v: CockroachDB tolerates clocks that far apart", DefaultClockMargin)
	case c.StatementTimeout < 0:
		return c, errors.New("sqlstore: StatementTimeout must not be negative")
	case c.ConnectTimeout < 0:
		return c, errors.New("sqlstore: ConnectTimeout must not be negative")
	}
	if _, err := c.parse(); err != nil {
		return c, err
	}
	return c, nil
}

// parse reads the URL. The driver's error quotes it, and masks the password as well as it can; an operator's log gets neither.
func (c Config) parse() (*pgxpool.Config, error) {
	parsed, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, errors.New("sqlstore: URL is not a valid database URL: want postgres://user:password@host:port/database, " +
			"with what is special in a URL percent-encoded, and files that it names readable")
	}
	return parsed, nil
}

// single is the config of one connection outside the pool.
func (c Config) single() (*pgx.ConnConfig, error) {
	parsed, err := c.parse()
	if err != nil {
		return nil, err
	}
	conn := parsed.ConnConfig
	conn.ConnectTimeout = c.ConnectTimeout
	conn.RuntimeParams["application_name"] = applicationName
	if c.Pooler {
		conn.DefaultQueryExecMode = pgx.QueryExecModeExec
		conn.StatementCacheCapacity, conn.DescriptionCacheCapacity = 0, 0
	}
	return conn, nil
}

func (c Config) pool(e engine) (*pgxpool.Config, error) {
	conn, err := c.single()
	if err != nil {
		return nil, err
	}
	pool, err := c.parse()
	if err != nil {
		return nil, err
	}
	pool.ConnConfig = conn
	pool.MaxConns = int32(c.MaxConns)
	pool.MinConns, pool.MinIdleConns = pool.MaxConns, 0
	pool.MaxConnLifetime, pool.MaxConnLifetimeJitter = connLifetime, connLifetimeJitter
	pool.MaxConnIdleTime = connLifetime
	pool.PingTimeout = pingTimeout
	if !c.Pooler {
		for name, value := range e.sessionSettings(c) {
			conn.RuntimeParams[name] = value
		}
	}
	if e == postgreSQL {
		// A connection made after a failover must not end on the standby that was the primary: it would answer from the past.
		conn.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return pool, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }

// connect opens one connection outside the pool.
func (c Config) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := c.single()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, c.connectError(err)
	}
	return conn, nil
}

// connectError says where a connection was tried and what came of it, without the driver's text, which may quote the URL.
func (c Config) connectError(err error) error {
	where := "the database"
	if parsed, parseErr := c.parse(); parseErr == nil {
		cc := parsed.ConnConfig
		where = fmt.Sprintf("database %q at %s as user %q", cc.Database, net.JoinHostPort(cc.Host, strconv.Itoa(int(cc.Port))), cc.User)
	}
	reason := "the connection failed"
	var pgErr *pgconn.PgError
	var netErr *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err):
		reason = "no answer in time"
	case errors.As(err, &pgErr):
		reason = fmt.Sprintf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
	case errors.As(err, &netErr):
		reason = netErr.Err.Error()
	}
	return &Error{Op: "connect", Reason: fmt.Sprintf("cannot connect to %s: %s", where, reason), class: unavailable, cause: err}
}
