package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite" // the embedded store's own driver
)

// The table that teams write: a row for each key, an index on when it may go, one statement for each step. It has neither fences, attempts, a
// history nor takeover.
const (
	tableSQL = `CREATE TABLE idempotency_keys (
	tenant VARCHAR(128) NOT NULL, operation VARCHAR(255) NOT NULL, key VARCHAR(255) NOT NULL, fingerprint BYTEA NOT NULL,
	state SMALLINT NOT NULL, response BYTEA, locked_until TIMESTAMPTZ NOT NULL, expires_at TIMESTAMPTZ NOT NULL,
	PRIMARY KEY (tenant, operation, key))`
	indexSQL = `CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at)`
	beginSQL = `INSERT INTO idempotency_keys (tenant, operation, key, fingerprint, state, locked_until, expires_at)
	VALUES ($1, $2, $3, $4, 0, now() + interval '1 minute', now() + interval '7 days') ON CONFLICT DO NOTHING`
	completeSQL = `UPDATE idempotency_keys SET state = 1, response = $4, expires_at = now() + interval '7 days'
	WHERE tenant = $1 AND operation = $2 AND key = $3 AND state = 0`
)

// handWritten returns a step that makes a pair with that table: straight from pgx, without a daemon.
func (l *lab) handWritten(ctx context.Context, url string) (func(context.Context, int) error, error) {
	if err := execute(ctx, url, tableSQL, indexSQL); err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns, cfg.MinConns = int32(l.pool), int32(l.pool)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	l.atEnd(pool.Close)
	return func(ctx context.Context, _ int) error {
		key := uuid.New()
		hash := sha256.Sum256(key[:])
		tag, err := pool.Exec(ctx, beginSQL, tenant, operation, key.String(), hash[:])
		if err != nil {
			return err
		}
		if tag.RowsAffected() != 1 {
			return errors.New("a fresh key was there")
		}
		tag, err = pool.Exec(ctx, completeSQL, tenant, operation, key.String(), randomBytes(l.bodyBytes))
		if err == nil && tag.RowsAffected() != 1 {
			err = errors.New("what was begun was not there")
		}
		return err
	}, nil
}

// execute runs statements one by one.
func execute(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// bareSQLite returns a step that makes two durable SQLite transactions on a table like that, an insert and an update, in this process.
func (l *lab) bareSQLite(ctx context.Context) (func(context.Context, int) error, error) {
	path := filepath.Join(l.dir, "bare.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(5000)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	l.atEnd(func() { _ = db.Close() })
	for _, s := range []string{
		`CREATE TABLE keys (tenant TEXT, operation TEXT, key TEXT, fingerprint BLOB, state INTEGER, response BLOB, expires_at INTEGER,
			PRIMARY KEY (tenant, operation, key)) WITHOUT ROWID`,
		`CREATE INDEX keys_expires_at ON keys (expires_at)`,
	} {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return nil, err
		}
	}
	begin, err := db.PrepareContext(ctx, `INSERT INTO keys VALUES (?, ?, ?, ?, 0, NULL, unixepoch() + 604800)`)
	if err != nil {
		return nil, err
	}
	complete, err := db.PrepareContext(ctx, `UPDATE keys SET state = 1, response = ?, expires_at = unixepoch() + 604801 WHERE tenant = ? AND operation = ? AND key = ?`)
	if err != nil {
		return nil, err
	}
	l.atEnd(func() { _, _ = begin.Close(), complete.Close() })
	return func(ctx context.Context, _ int) error {
		key := uuid.New()
		hash := sha256.Sum256(key[:])
		if _, err := begin.ExecContext(ctx, tenant, operation, key.String(), hash[:]); err != nil {
			return err
		}
		_, err := complete.ExecContext(ctx, randomBytes(l.bodyBytes), tenant, operation, key.String())
		return err
	}, nil
}
