package sqldb

import (
	"context"
	"database/sql"
	"errors"
)

// SQL is a database through database/sql.
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

func (d sqlDriver) Transact(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	// Also where fn panics. After a commit it does nothing.
	defer func() { _ = tx.Rollback() }()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
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
