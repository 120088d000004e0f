package sqlidem

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

// NewPgx makes a DB of a pgx pool or connection. Work gets a pgx.Tx whose Commit and Rollback refuse: the transaction is not the work's
// to end. A savepoint (tx.Begin) is.
func NewPgx(db PgxDB, config Config) (*DB[pgx.Tx], error) {
	if db == nil {
		return nil, errors.New("sqlidem: NewPgx needs a pool or a connection")
	}
	return newDB[pgx.Tx](pgxDriver{db}, config)
}

type pgxDriver struct{ db PgxDB }

func (d pgxDriver) acquire(ctx context.Context) (conn[pgx.Tx], error) {
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

// pgxQueries is a querier over pgx.
type pgxQueries struct{ q pgxQuerier }

func (q pgxQueries) exec(ctx context.Context, text string, args ...any) (int64, error) {
	tag, err := q.q.Exec(ctx, text, args...)
	return tag.RowsAffected(), err
}

func (q pgxQueries) scan(ctx context.Context, text string, args []any, into ...any) error {
	err := q.q.QueryRow(ctx, text, args...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoRow
	}
	return err
}

func (q pgxQueries) each(ctx context.Context, text string, args []any, row func(func(...any) error) error) error {
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

func (c *pgxConn) begin(ctx context.Context, isolation sql.IsolationLevel) (pgx.Tx, txn, error) {
	tx, err := c.db.BeginTx(ctx, pgxOptions(isolation))
	if err != nil {
		return nil, nil, err
	}
	return workTx{tx}, pgxTxn{pgxQueries{tx}, tx}, nil
}

func (c *pgxConn) restarting(ctx context.Context, isolation sql.IsolationLevel, retries int, fn func(pgx.Tx, txn) error) error {
	return crdbpgx.ExecuteTx(crdb.WithMaxRetries(ctx, retries), c.db, pgxOptions(isolation), func(tx pgx.Tx) error {
		return fn(workTx{tx}, pgxTxn{pgxQueries{tx}, tx})
	})
}

func (c *pgxConn) release(sound bool) {
	if !sound {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
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

func (t pgxTxn) script(ctx context.Context, statements ...string) error {
	return t.tx.Conn().PgConn().Exec(ctx, strings.Join(statements, "; ")).Close()
}

func (t pgxTxn) commit(ctx context.Context) error   { return t.tx.Commit(ctx) }
func (t pgxTxn) rollback(ctx context.Context) error { return t.tx.Rollback(ctx) }

// workTx is the transaction in the hands of work.
type workTx struct{ pgx.Tx }

// errNotYours is what work is told that tries to end its transaction.
var errNotYours = errors.New("sqlidem: the transaction ends when the work returns; return an error to have it rolled back")

// Commit refuses.
func (workTx) Commit(context.Context) error { return errNotYours }

// Rollback refuses.
func (workTx) Rollback(context.Context) error { return errNotYours }
