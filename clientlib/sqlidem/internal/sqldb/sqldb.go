// Package sqldb is the one face that the inbox and the outbox give to pgx v5 and database/sql, on PostgreSQL 14 or later and
// CockroachDB 21.1 or later.
package sqldb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Querier runs statements: on a pool, or in a transaction.
type Querier interface {
	// Exec returns how many rows were touched.
	Exec(ctx context.Context, text string, args ...any) (int64, error)
	// Scan reads one row. It returns [ErrNoRow] where there is none.
	Scan(ctx context.Context, text string, args []any, into ...any) error
	// Each reads rows, one call of row for each.
	Each(ctx context.Context, text string, args []any, row func(scan func(into ...any) error) error) error
}

// Driver is a database through one of the two: T is the transaction that its users hold.
type Driver[T any] interface {
	Querier
	// In is the querier of a transaction that somebody else began and will end.
	In(tx T) (Querier, error)
	// Transact runs fn in a transaction of its own, and commits it unless fn fails.
	Transact(ctx context.Context, fn func(ctx context.Context, tx T) error) error
}

// ErrNoRow is what Scan returns where there is no row.
var ErrNoRow = errors.New("no row")

// Engine is a kind of database.
type Engine int

// The engines.
const (
	PostgreSQL Engine = iota + 1
	CockroachDB
)

// ParseEngine reads the word that idemd ddl takes.
func ParseEngine(name string) (Engine, error) {
	switch name {
	case "postgres":
		return PostgreSQL, nil
	case "cockroach":
		return CockroachDB, nil
	}
	return 0, fmt.Errorf("unknown engine %q: want postgres or cockroach", name)
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

// EngineOf asks the server what it is, and refuses one that is too old.
func EngineOf(ctx context.Context, q Querier) (Engine, error) {
	var version string
	if err := q.Scan(ctx, "SELECT version()", nil, &version); err != nil {
		return 0, err
	}
	return parseVersion(version)
}

func parseVersion(version string) (Engine, error) {
	if m := cockroachDBVersion.FindStringSubmatch(version); m != nil {
		major, _ := strconv.Atoi(m[1])
		minor, _ := strconv.Atoi(m[2])
		if major < minCockroachDBMajor || major == minCockroachDBMajor && minor < minCockroachDBMinor {
			return 0, fmt.Errorf("CockroachDB %d.%d is too old: %d.%d or later is needed", major, minor, minCockroachDBMajor, minCockroachDBMinor)
		}
		return CockroachDB, nil
	}
	if m := postgreSQLVersion.FindStringSubmatch(version); m != nil {
		if major, _ := strconv.Atoi(m[1]); major < minPostgreSQL {
			return 0, fmt.Errorf("PostgreSQL %d is too old: %d or later is needed", major, minPostgreSQL)
		}
		return PostgreSQL, nil
	}
	return 0, fmt.Errorf("the server is neither PostgreSQL nor CockroachDB: its version() is %q", version)
}

// DefaultTablePrefix is what the tables' names begin with where nothing else was asked for.
const DefaultTablePrefix = "idem_"

var prefixForm = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,31}$`)

// CheckPrefix refuses a table prefix that could not stand in a statement as it is. Empty is the default.
func CheckPrefix(prefix string) error {
	if prefix != "" && !prefixForm.MatchString(prefix) {
		return errors.New("TablePrefix must be lower-case letters, digits and underscores, with a schema and a dot before them or without")
	}
	return nil
}

// Naming replaces {name} by a table's name under the prefix, and {#name} by the name of an index, which takes no schema.
func Naming(prefix string, names ...string) *strings.Replacer {
	if prefix == "" {
		prefix = DefaultTablePrefix
	}
	_, bare, found := strings.Cut(prefix, ".")
	if !found {
		bare = prefix
	}
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, "{"+name+"}", prefix+name, "{#"+name+"}", bare+name)
	}
	return strings.NewReplacer(pairs...)
}

// Retryable says that a transaction certainly did not happen and that running it again can help: a serialization failure, a deadlock,
// or CockroachDB's restart.
func Retryable(err error) bool {
	switch SQLState(err) {
	case "40001", "40P01", "CR000":
		return true
	}
	return false
}

// SQLState is the SQLSTATE of an error of any driver that gives it, "" if there is none.
func SQLState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

const (
	maxTries     = 10
	firstPause   = 4 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// Retry runs try again while its error is [Retryable], a bounded number of times, with pauses that grow and differ.
func Retry(ctx context.Context, try func() error) error {
	pause := firstPause
	for n := 1; ; n++ {
		err := try()
		if n >= maxTries || !Retryable(err) {
			return err
		}
		if !Pause(ctx, pause/2+rand.N(pause/2+1)) {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// Pause waits, and says whether it was let wait to the end.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// RunDDL runs a schema's statements one by one, since CockroachDB has no atomic DDL in transactions. Each must do no harm when it is run
// again. Several may run at once: PostgreSQL's IF NOT EXISTS is not atomic, so a clash over a name is looked at again.
func RunDDL(ctx context.Context, q Querier, statements []string) error {
	for _, text := range statements {
		var err error
		for range maxTries {
			_, err = q.Exec(ctx, text)
			if code := SQLState(err); code != "23505" && code != "42P07" && code != "42710" && !Retryable(err) {
				break
			}
			if !Pause(ctx, firstPause+rand.N(longestPause)) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Tuples is "($1::TEXT, $2::TEXT), ($3::TEXT, …" for n rows of columns with these types, beginning at parameter first.
func Tuples(first, n int, types ...string) string {
	var b strings.Builder
	number := first
	for row := range n {
		if row > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		for i, columnType := range types {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "$%d::%s", number, columnType)
			number++
		}
		b.WriteByte(')')
	}
	return b.String()
}
