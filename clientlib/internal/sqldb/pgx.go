package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	crdbpgx "github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PgxDB is a *pgxpool.Pool, or one connection: a *pgxpool.Conn or a *pgx.Conn, for one goroutine at a time.
type PgxDB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	pgxQuerier
}

type pgxQuerier interface {
	Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// Pgx is a database through pgx. The transactions that it begins refuse to be committed or rolled back by those whom they are handed to.
func Pgx(db PgxDB) (Driver[pgx.Tx], error) {
	if db == nil {
		return nil, errors.New("a pool or a connection is needed")
	}
	return pgxDriver{pgxQueries{db}, db}, nil
}

type pgxDriver struct {
	pgxQueries
	db PgxDB
}

func (pgxDriver) In(tx pgx.Tx) (Querier, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	return pgxQueries{tx}, nil
}

var errNoTransaction = errors.New("a transaction is needed")

func (d pgxDriver) Acquire(ctx context.Context) (Conn[pgx.Tx], error) {
	pool, ok := d.db.(*pgxpool.Pool)
	if !ok {
		return &pgxConn{pgxQueries: pgxQueries{d.db}, db: d.db}, nil
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &pgxConn{pgxQueries: pgxQueries{c}, db: c, pooled: c}, nil
}

type pgxQueries struct{ q pgxQuerier }

func (q pgxQueries) Exec(ctx context.Context, text string, args ...any) (int64, error) {
	tag, err := q.q.Exec(ctx, text, args...)
	return tag.RowsAffected(), err
}

func (q pgxQueries) Scan(ctx context.Context, text string, args []any, into ...any) error {
	err := q.q.QueryRow(ctx, text, args...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNoRow
	}
	return err
}

func (q pgxQueries) Each(ctx context.Context, text string, args []any, row func(func(...any) error) error) error {
	rows, err := q.q.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

type pgxConn struct {
	pgxQueries
	db     PgxDB
	pooled *pgxpool.Conn // nil where the connection is the caller's
}

func (c *pgxConn) Begin(ctx context.Context, isolation sql.IsolationLevel) (pgx.Tx, Txn, error) {
	tx, err := c.db.BeginTx(ctx, pgxOptions(isolation))
	if err != nil {
		return nil, nil, err
	}
	return lentTx{tx}, pgxTxn{pgxQueries{tx}, tx}, nil
}

func (c *pgxConn) Restarting(ctx context.Context, isolation sql.IsolationLevel, retries int, fn func(pgx.Tx, Txn) error) error {
	return crdbpgx.ExecuteTx(crdb.WithMaxRetries(ctx, retries), c.db, pgxOptions(isolation), func(tx pgx.Tx) error {
		return fn(lentTx{tx}, pgxTxn{pgxQueries{tx}, tx})
	})
}

func (c *pgxConn) Release(sound bool) {
	if !sound {
		ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
		defer cancel()
		switch own := c.db.(type) {
		case *pgxpool.Conn:
			_ = own.Conn().Close(ctx)
		case *pgx.Conn:
			_ = own.Close(ctx)
		}
	}
	if c.pooled != nil {
		c.pooled.Release()
	}
}

func pgxOptions(isolation sql.IsolationLevel) pgx.TxOptions {
	if isolation == sql.LevelDefault {
		return pgx.TxOptions{}
	}
	return pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(strings.ToLower(isolation.String()))}
}

type pgxTxn struct {
	pgxQueries
	tx pgx.Tx
}

func (t pgxTxn) Script(ctx context.Context, statements ...string) error {
	return t.tx.Conn().PgConn().Exec(ctx, strings.Join(statements, "; ")).Close()
}

func (t pgxTxn) Commit(ctx context.Context) error   { return t.tx.Commit(ctx) }
func (t pgxTxn) Rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }

// lentTx is a transaction in the hands of a closure.
type lentTx struct{ pgx.Tx }

// errNotYours is what a closure is told that tries to end its transaction.
var errNotYours = errors.New("sqlidem: the transaction ends when this function returns; return an error to have it rolled back")

// Commit refuses.
func (lentTx) Commit(context.Context) error { return errNotYours }

// Rollback refuses.
func (lentTx) Rollback(context.Context) error { return errNotYours }
