package sqldb

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
)

// SQL is a database through database/sql. Nothing can keep those whom its transactions are handed to from ending them.
func SQL(db *sql.DB) (Driver[*sql.Tx], error) {
	if db == nil {
		return nil, errors.New("a *sql.DB is needed")
	}
	return sqlDriver{sqlQueries{db}, db}, nil
}

type sqlDriver struct {
	sqlQueries
	db *sql.DB
}

func (sqlDriver) In(tx *sql.Tx) (Querier, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	return sqlQueries{tx}, nil
}

func (d sqlDriver) Acquire(ctx context.Context) (Conn[*sql.Tx], error) {
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

type sqlQueries struct{ q sqlQuerier }

func (q sqlQueries) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	result, err := q.q.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (q sqlQueries) Scan(ctx context.Context, text string, args []any, into ...any) error {
	err := q.q.QueryRowContext(ctx, text, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrNoRow
	}
	return err
}

func (q sqlQueries) Each(ctx context.Context, text string, args []any, row func(func(...any) error) error) error {
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

func (c *sqlConn) Begin(ctx context.Context, isolation sql.IsolationLevel) (*sql.Tx, Txn, error) {
	tx, err := c.conn.BeginTx(ctx, &sql.TxOptions{Isolation: isolation})
	if err != nil {
		return nil, nil, err
	}
	return tx, sqlTxn{sqlQueries{tx}, tx}, nil
}

func (c *sqlConn) Restarting(ctx context.Context, isolation sql.IsolationLevel, retries int, fn func(*sql.Tx, Txn) error) error {
	tx, t, err := c.Begin(ctx, isolation)
	if err != nil {
		return err
	}
	return crdb.ExecuteInTx(crdb.WithMaxRetries(ctx, retries), crdbTx{tx}, func() error { return fn(tx, t) })
}

func (c *sqlConn) Release(sound bool) {
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

func (t sqlTxn) Script(ctx context.Context, statements ...string) error {
	for _, text := range statements {
		if _, err := t.tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

func (t sqlTxn) Commit(context.Context) error   { return t.tx.Commit() }
func (t sqlTxn) Rollback(context.Context) error { return t.tx.Rollback() }

// crdbTx is a *sql.Tx as cockroach-go wants it.
type crdbTx struct{ tx *sql.Tx }

func (t crdbTx) Exec(ctx context.Context, text string, args ...any) error {
	_, err := t.tx.ExecContext(ctx, text, args...)
	return err
}

func (t crdbTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t crdbTx) Rollback(context.Context) error { return t.tx.Rollback() }
