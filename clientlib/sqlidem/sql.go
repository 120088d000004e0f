package sqlidem

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
)

// NewSQL makes a DB of a database/sql pool, with any driver for PostgreSQL whose errors have a method SQLState() string: pgx's and
// lib/pq's do. Work gets a *sql.Tx, which it must not commit or roll back: with this driver nothing can keep it from doing so, and the
// mutation would then stand without its answer. The next Do for the same intent is refused IN_PROGRESS for a day, then ABANDONED.
func NewSQL(db *sql.DB, config Config) (*DB[*sql.Tx], error) {
	if db == nil {
		return nil, errors.New("sqlidem: NewSQL needs a *sql.DB")
	}
	return newDB[*sql.Tx](sqlDriver{db}, config)
}

type sqlDriver struct{ db *sql.DB }

func (d sqlDriver) acquire(ctx context.Context) (conn[*sql.Tx], error) {
	c, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlConn{sqlQueries{c}, c}, nil
}

type sqlQuerier interface {
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row
}

// sqlQueries is a querier over database/sql.
type sqlQueries struct{ q sqlQuerier }

func (q sqlQueries) exec(ctx context.Context, text string, args ...any) (int64, error) {
	result, err := q.q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (q sqlQueries) scan(ctx context.Context, text string, args []any, into ...any) error {
	err := q.q.QueryRowContext(ctx, text, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return errNoRow
	}
	return err
}

func (q sqlQueries) each(ctx context.Context, text string, args []any, row func(func(...any) error) error) error {
	rows, err := q.q.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

type sqlConn struct {
	sqlQueries
	conn *sql.Conn
}

func (c *sqlConn) begin(ctx context.Context, isolation sql.IsolationLevel) (*sql.Tx, txn, error) {
	tx, err := c.conn.BeginTx(ctx, &sql.TxOptions{Isolation: isolation})
	if err != nil {
		return nil, nil, err
	}
	return tx, sqlTxn{sqlQueries{tx}, tx}, nil
}

func (c *sqlConn) restarting(ctx context.Context, isolation sql.IsolationLevel, retries int, fn func(*sql.Tx, txn) error) error {
	tx, t, err := c.begin(ctx, isolation)
	if err != nil {
		return err
	}
	return crdb.ExecuteInTx(crdb.WithMaxRetries(ctx, retries), crdbTx{tx}, func() error { return fn(tx, t) })
}

func (c *sqlConn) release(sound bool) {
	if !sound {
		// How database/sql is told to close a connection.
		_ = c.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	_ = c.conn.Close()
}

type sqlTxn struct {
	sqlQueries
	tx *sql.Tx
}

func (t sqlTxn) script(ctx context.Context, statements ...string) error {
	for _, text := range statements {
		if _, err := t.tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

func (t sqlTxn) commit(context.Context) error   { return t.tx.Commit() }
func (t sqlTxn) rollback(context.Context) error { return t.tx.Rollback() }

// crdbTx is a *sql.Tx as cockroach-go wants it.
type crdbTx struct{ tx *sql.Tx }

func (t crdbTx) Exec(ctx context.Context, text string, args ...any) error {
	_, err := t.tx.ExecContext(ctx, text, args...)
	return err
}

func (t crdbTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t crdbTx) Rollback(context.Context) error { return t.tx.Rollback() }
