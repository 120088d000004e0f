package sqlstore

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// engine is the kind of database.
type engine int

const (
	postgreSQL engine = iota + 1
	cockroachDB
)

func (e engine) String() string {
	if e == cockroachDB {
		return "CockroachDB"
	}
	return "PostgreSQL"
}

// The oldest versions that the statements and schemas are written for.
const (
	minPostgreSQL       = 14
	minCockroachDBMajor = 21
	minCockroachDBMinor = 1
)

// clockSQL is the database's clock in microseconds since the Unix epoch: the one that moves within a transaction.
func (e engine) clockSQL() string {
	return "(extract(epoch FROM clock_timestamp()) * 1000000)::INT8"
}

// divide is the engine's operator of whole-number division: CockroachDB's / makes a decimal.
func (e engine) divide() string {
	if e == cockroachDB {
		return "//"
	}
	return "/"
}

// sessionSettings are what every connection of the pool asks for when it comes up. A pooler of transactions allows none of them.
func (e engine) sessionSettings(c Config) map[string]string {
	settings := map[string]string{
		"statement_timeout":                   milliseconds(c.StatementTimeout),
		"idle_in_transaction_session_timeout": milliseconds(idleInTransaction),
	}
	if e == postgreSQL {
		// Plans are cached for the life of a connection. One made while the table was small reads all of it, and would go on doing so
		// as it grows; every statement here has an index to go by.
		settings["enable_seqscan"] = "off"
		// A plan for the arrays of a batch at hand is hardly ever better than one for any arrays, and making it takes as long as carrying it out.
		// PostgreSQL would make one for every small batch: it takes arrays that it does not know to have ten elements.
		settings["plan_cache_mode"] = "force_generic_plan"
		// Compiling a plan costs more than any statement here takes, and the penalty that the line above puts on a scan that cannot be
		// avoided would set it off.
		settings["jit"] = "off"
		// A plan for any LIMIT takes a page for a tenth of the table, and would start helpers to read that.
		settings["max_parallel_workers_per_gather"] = "0"
	}
	if e == cockroachDB {
		// To set up an execution by columns costs more than it saves for the few rows that a statement here looks at.
		settings["vectorize"] = "off"
	}
	return settings
}

var (
	postgreSQLVersion  = regexp.MustCompile(`^PostgreSQL (\d+)`)
	cockroachDBVersion = regexp.MustCompile(`^CockroachDB .*\bv(\d+)\.(\d+)`)
)

// engineOf reads the answer of version().
func engineOf(version string) (engine, error) {
	if m := cockroachDBVersion.FindStringSubmatch(version); m != nil {
		major, _ := strconv.Atoi(m[1])
		minor, _ := strconv.Atoi(m[2])
		if major < minCockroachDBMajor || (major == minCockroachDBMajor && minor < minCockroachDBMinor) {
			return 0, fmt.Errorf("sqlstore: CockroachDB %d.%d is too old: %d.%d or later is needed",
				major, minor, minCockroachDBMajor, minCockroachDBMinor)
		}
		return cockroachDB, nil
	}
	if m := postgreSQLVersion.FindStringSubmatch(version); m != nil {
		if major, _ := strconv.Atoi(m[1]); major < minPostgreSQL {
			return 0, fmt.Errorf("sqlstore: PostgreSQL %d is too old: %d or later is needed", major, minPostgreSQL)
		}
		return postgreSQL, nil
	}
	return 0, fmt.Errorf("sqlstore: the server is neither PostgreSQL nor CockroachDB: its version() is %q", version)
}

// probe connects once and finds out what answers.
func probe(ctx context.Context, cfg Config) (engine, error) {
	conn, err := cfg.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	e, err := engineOn(ctx, conn)
	if err != nil || e != postgreSQL {
		return e, err
	}
	return e, checkEncoding(ctx, conn)
}

func engineOn(ctx context.Context, conn *pgx.Conn) (engine, error) {
	var version string
	if err := conn.QueryRow(ctx, "SELECT version()").Scan(&version); err != nil {
		return 0, classify("connect", reading, err)
	}
	return engineOf(version)
}

// checkEncoding refuses a database that cannot hold every text that the ledger takes.
func checkEncoding(ctx context.Context, conn *pgx.Conn) error {
	var encoding string
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_encoding')").Scan(&encoding); err != nil {
		return classify("connect", reading, err)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("sqlstore: the database is encoded in %s and cannot hold every key: create it with ENCODING 'UTF8'", encoding)
	}
	return nil
}

// health is what makes a server unfit although it answers.
type health struct {
	recovering        bool
	fsync             string
	synchronousCommit string
}

func (h health) check(cfg Config) error {
	if h.recovering {
		return &Error{Op: "ready", class: unavailable, Reason: "the server is a read-only standby, which answers from the past: " +
			"point the URL at the primary (with several hosts in it, add target_session_attrs=primary)"}
	}
	if cfg.AllowUnsafeDurability {
		return nil
	}
	for _, s := range []struct{ name, value string }{{"fsync", h.fsync}, {"synchronous_commit", h.synchronousCommit}} {
		if s.value == "off" {
			return fmt.Errorf("sqlstore: %w: the server runs with %s off: a crash would lose acknowledged entries and their duplicates would "+
				"run again. Turn it on (ALTER SYSTEM SET %s = on, then reload), or allow it with AllowUnsafeDurability", ledger.ErrUnavailable, s.name, s.name)
		}
	}
	return nil
}
