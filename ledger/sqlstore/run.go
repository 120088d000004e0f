package sqlstore

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	crdbpgx "github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5"
	"github.com/jackc/pgx/v5"
)

// The pauses between tries of a statement that others got in the way of: the first, doubled each time up to the longest, each
// shortened at random so that the contenders do not meet again.
const (
	maxTries     = 10
	firstPause   = 4 * time.Millisecond
	longestPause = 250 * time.Millisecond
	// unsentTries is how many connections found dead are put up with: a restart of the database kills all that were idle.
	unsentTries = 3
	// graceForStatement is what is added to the database's own limit before the connection is given up.
	graceForStatement = 5 * time.Second
)

// read runs fn, which changes nothing, and repeats it while that can help.
func read[T any](ctx context.Context, s *Store, op string, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	return run(ctx, s, op, reading, fn)
}

// write runs fn, one statement that changes something, and repeats it only while it certainly did not happen.
func write[T any](ctx context.Context, s *Store, op string, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	return run(ctx, s, op, writing, fn)
}

func run[T any](ctx context.Context, s *Store, op string, k kind, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	var value T
	err := s.retry(ctx, op, func() (err error) {
		value, err = once(ctx, s, op, k, fn)
		return err
	})
	return value, err
}

// once runs fn on a connection of the pool. A caller that leaves does not take the connection with it: the statement is let finish, so
// that a thousand short deadlines do not cost a thousand connections, and its outcome is unknown to that caller only.
func once[T any](ctx context.Context, s *Store, op string, k kind, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	var zero T
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return zero, ended(ctx, op, unavailable)
		}
		return zero, s.classified(ctx, op, reading, err) // reading: nothing was sent
	}
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		limited, cancel := context.WithTimeout(own(ctx), s.cfg.StatementTimeout+graceForStatement)
		defer cancel()
		value, err := fn(limited, conn.Conn())
		conn.Release()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, s.classified(own(ctx), op, k, r.err)
	case <-ctx.Done():
	}
	select {
	case r := <-results: // both at once: what is known counts
		return r.value, s.classified(own(ctx), op, k, r.err)
	default:
	}
	if k == writing {
		return zero, ended(ctx, op, unknown)
	}
	return zero, ended(ctx, op, unavailable)
}

// own is ctx as the statement saw it: without the caller's end.
func own(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// retry repeats try while its error says that nothing happened and that another try can help. It gives up when the tries are used up or
// the caller's time is.
func (s *Store) retry(ctx context.Context, op string, try func() error) error {
	pause, dead := firstPause, 0
	for n := 1; ; n++ {
		err := try()
		switch classIn(err) {
		case unsent:
			if dead++; dead >= unsentTries {
				return unsentError(op, err)
			}
			continue
		case contended:
		default:
			return err
		}
		if n >= maxTries {
			return retriesExhausted(op, err, n)
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ended(ctx, op, contended)
		}
		pause = min(2*pause, longestPause)
	}
}

func unsentError(op string, err error) error {
	return &Error{Op: op, class: unavailable, cause: causeOf(err), Reason: "the connections to the database are dead"}
}

// snapshotTx runs fn once in a read-only transaction with one snapshot. On CockroachDB cockroach-go runs it, again where its own
// restart protocol says so. Never on PostgreSQL: cockroach-go reports success there when COMMIT failed.
func (s *Store) snapshotTx(ctx context.Context, fn func(pgx.Tx) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if s.engine == cockroachDB {
		return crdbpgx.ExecuteTx(crdb.WithMaxRetries(ctx, maxTries), conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, fn)
	}
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, conn, options, fn)
}

func logLevel(err error) slog.Level {
	if classIn(err) == contended {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func attrs(err, cause error) []slog.Attr {
	out := []slog.Attr{slog.String("error", err.Error())}
	if cause != nil {
		out = append(out, slog.String("cause", cause.Error()))
	}
	return out
}
