package sqldb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// PgxDB is a *pgxpool.Pool or whatever else begins pgx transactions.
type PgxDB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	pgxQuerier
}

type pgxQuerier interface {
	Exec(ctx context.Context, text string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// Pgx is a database through pgx.
func Pgx(db PgxDB) (Driver[pgx.Tx], error) {
	if db == nil {
		return nil, errors.New("a pool is needed")
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

func (d pgxDriver) Transact(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, d.db, func(tx pgx.Tx) error { return fn(ctx, tx) })
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
