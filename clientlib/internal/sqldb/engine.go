package sqldb

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
)

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
