// Package sqldb is the one face that packages which keep tables in a service's own database give to pgx v5 and database/sql, on
// PostgreSQL 14 or later and CockroachDB 21.1 or later.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Querier runs statements: on a pool, on a connection, or in a transaction.
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
	// Acquire pins one connection.
	Acquire(ctx context.Context) (Conn[T], error)
}

// Conn is a pinned connection. It is released once.
type Conn[T any] interface {
	Querier
	Begin(ctx context.Context, isolation sql.IsolationLevel) (T, Txn, error)
	// Restarting runs fn in a transaction by CockroachDB's restart protocol, at most retries times more than once, and commits it. Its
	// errors are cockroach-go's.
	Restarting(ctx context.Context, isolation sql.IsolationLevel, retries int, fn func(T, Txn) error) error
	// Release gives the connection back; one that is not sound is closed.
	Release(sound bool)
}

// Txn is a transaction in the hands of whoever began it.
type Txn interface {
	Querier
	// Script runs statements without parameters, in one round trip where the driver can.
	Script(ctx context.Context, statements ...string) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// ErrNoRow is what Scan returns where there is no row.
var ErrNoRow = errors.New("no row")

// CloseTimeout bounds a rollback, and the closing of a connection, which go on when their caller's context has ended.
const CloseTimeout = 5 * time.Second

// Transact runs fn once in a transaction of its own, and commits it unless fn fails. In combination with [Retry] it is run until it gets
// through.
func Transact[T any](ctx context.Context, d Driver[T], fn func(ctx context.Context, tx T) error) error {
	c, err := d.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release(true)
	tx, t, err := c.Begin(ctx, sql.LevelDefault)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // also where fn panics
			RollBack(t)
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	done = true
	return t.Commit(ctx)
}

// RollBack ends a transaction of which nothing is to remain. Where that fails the connection is broken, and nothing remains either.
func RollBack(t Txn) {
	ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	_ = t.Rollback(ctx)
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

// Text shortens what somebody else wrote to so many characters, and makes it what a text column takes: UTF-8 without U+0000.
func Text(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, string(utf8.RuneError)), "\x00", " ")
	if count := utf8.RuneCountInString(s); count > limit {
		return string([]rune(s)[:limit])
	}
	return s
}
