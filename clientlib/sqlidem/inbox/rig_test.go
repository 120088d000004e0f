package inbox_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
)

// work is what a handler does in its transaction.
type work func(ctx context.Context, exec func(text string, args ...any) error) error

// rig is an inbox on a fresh database, through one of the drivers.
type rig struct {
	*sqldbtest.Database
	handle  func(ctx context.Context, m inbox.Message, w work) (inbox.Outcome, error)
	receive func(ctx context.Context, m inbox.Message, w work, commitAnyway bool) (inbox.Outcome, error)
	sweep   func(ctx context.Context, config inbox.SweepConfig) (int, error)
	migrate func(ctx context.Context) error
}

// everywhere runs a test on each engine, through each driver.
func everywhere(t *testing.T, test func(*testing.T, *rig)) {
	t.Parallel()
	for name, build := range map[string]func(*testing.T, *sqldbtest.Database) *rig{"pgx": pgxRig, "sql": sqlRig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
				r := build(t, d)
				if err := r.migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				d.Exec(t, "CREATE TABLE effects (message TEXT NOT NULL)")
				test(t, r)
			})
		})
	}
}

func pgxRig(t *testing.T, d *sqldbtest.Database) *rig {
	box, err := inbox.NewPgx(d.Pool, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in := func(tx pgx.Tx) func(string, ...any) error {
		return func(text string, args ...any) error {
			_, err := tx.Exec(context.Background(), text, args...)
			return err
		}
	}
	return &rig{
		Database: d, sweep: box.Sweep, migrate: box.Migrate,
		handle: func(ctx context.Context, m inbox.Message, w work) (inbox.Outcome, error) {
			return box.Handle(ctx, m, func(ctx context.Context, tx pgx.Tx) error { return w(ctx, in(tx)) })
		},
		receive: func(ctx context.Context, m inbox.Message, w work, commitAnyway bool) (inbox.Outcome, error) {
			tx, err := d.Pool.Begin(ctx)
			if err != nil {
				return 0, err
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			outcome, err := box.Receive(ctx, tx, m.Subscriber, m.ID, func(ctx context.Context) error { return w(ctx, in(tx)) })
			if err == nil || commitAnyway {
				if failed := tx.Commit(ctx); failed != nil {
					return 0, failed
				}
			}
			return outcome, err
		},
	}
}

func sqlRig(t *testing.T, d *sqldbtest.Database) *rig {
	box, err := inbox.NewSQL(d.SQL, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in := func(tx *sql.Tx) func(string, ...any) error {
		return func(text string, args ...any) error {
			_, err := tx.ExecContext(context.Background(), text, args...)
			return err
		}
	}
	return &rig{
		Database: d, sweep: box.Sweep, migrate: box.Migrate,
		handle: func(ctx context.Context, m inbox.Message, w work) (inbox.Outcome, error) {
			return box.Handle(ctx, m, func(ctx context.Context, tx *sql.Tx) error { return w(ctx, in(tx)) })
		},
		receive: func(ctx context.Context, m inbox.Message, w work, commitAnyway bool) (inbox.Outcome, error) {
			tx, err := d.SQL.BeginTx(ctx, nil)
			if err != nil {
				return 0, err
			}
			defer func() { _ = tx.Rollback() }()
			outcome, err := box.Receive(ctx, tx, m.Subscriber, m.ID, func(ctx context.Context) error { return w(ctx, in(tx)) })
			if err == nil || commitAnyway {
				if failed := tx.Commit(); failed != nil {
					return 0, failed
				}
			}
			return outcome, err
		},
	}
}

func message(id string) inbox.Message { return inbox.Message{Subscriber: "billing", ID: id} }

// effect is a handler's mutation.
func effect(id string) work {
	return func(_ context.Context, exec func(string, ...any) error) error {
		return exec("INSERT INTO effects VALUES ($1)", id)
	}
}

func (r *rig) effects(t *testing.T, id string) int64 {
	t.Helper()
	return r.Int(t, "SELECT count(*) FROM effects WHERE message = $1", id)
}

func (r *rig) remembered(t *testing.T) int64 {
	t.Helper()
	return r.Int(t, "SELECT count(*) FROM idem_inbox")
}

const day = 24 * time.Hour
