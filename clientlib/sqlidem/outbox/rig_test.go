package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
)

// transaction is a transaction of the service's, through one of the drivers.
type transaction struct {
	write    func(ctx context.Context, events ...outbox.Event) ([]outbox.Envelope, error)
	commit   func(ctx context.Context) error
	rollback func(ctx context.Context) error
}

// operator is an outbox without the type of its transactions.
type operator interface {
	Migrate(ctx context.Context) error
	Parked(ctx context.Context, limit int) ([]outbox.Parked, error)
	Unpark(ctx context.Context, aggregate outbox.Aggregate) error
	Skip(ctx context.Context, aggregate outbox.Aggregate, version int64) error
	Stats(ctx context.Context) (outbox.Stats, error)
	Sweep(ctx context.Context, config outbox.SweepConfig) (int, error)
}

// rig is an outbox on a fresh database, through one of the drivers. Leases and pauses go by a clock that the test moves.
type rig struct {
	*sqldbtest.Database
	operator
	begin      func(ctx context.Context) (transaction, error)
	dispatcher func(outbox.Publisher, outbox.DispatcherConfig) (*outbox.Dispatcher, error)
}

// everywhere runs a test on each engine, through each driver.
func everywhere(t *testing.T, test func(*testing.T, *rig)) {
	t.Parallel()
	for name, build := range map[string]func(testing.TB, *sqldbtest.Database, outbox.Config) *rig{"pgx": pgxRig, "sql": sqlRig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
				r := build(t, d, outbox.Config{ClockSQL: d.ClockSQL})
				if err := r.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				test(t, r)
			})
		})
	}
}

func pgxRig(t testing.TB, d *sqldbtest.Database, config outbox.Config) *rig {
	box, err := outbox.NewPgx(d.Pool, config)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{
		Database: d, operator: box,
		begin: func(ctx context.Context) (transaction, error) {
			tx, err := d.Pool.Begin(ctx)
			return transaction{
				write: func(ctx context.Context, events ...outbox.Event) ([]outbox.Envelope, error) {
					return box.Write(ctx, tx, events...)
				},
				commit: func(ctx context.Context) error { return tx.Commit(ctx) }, rollback: func(ctx context.Context) error { return tx.Rollback(ctx) },
			}, err
		},
		dispatcher: func(p outbox.Publisher, c outbox.DispatcherConfig) (*outbox.Dispatcher, error) {
			return outbox.NewDispatcher[pgx.Tx](box, p, c)
		},
	}
}

func sqlRig(t testing.TB, d *sqldbtest.Database, config outbox.Config) *rig {
	box, err := outbox.NewSQL(d.SQL, config)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{
		Database: d, operator: box,
		begin: func(ctx context.Context) (transaction, error) {
			tx, err := d.SQL.BeginTx(ctx, nil)
			return transaction{
				write: func(ctx context.Context, events ...outbox.Event) ([]outbox.Envelope, error) {
					return box.Write(ctx, tx, events...)
				},
				commit: func(context.Context) error { return tx.Commit() }, rollback: func(context.Context) error { return tx.Rollback() },
			}, err
		},
		dispatcher: func(p outbox.Publisher, c outbox.DispatcherConfig) (*outbox.Dispatcher, error) {
			return outbox.NewDispatcher[*sql.Tx](box, p, c)
		},
	}
}

// event is an event of an aggregate of type "order".
func event(id string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: id, Type: "OrderPaid", Payload: []byte("paid " + id)}
}

func order(id string) outbox.Aggregate { return outbox.Aggregate{Type: "order", ID: id} }

// write writes events, each in a transaction of its own, again where the database says so.
func (r *rig) write(t testing.TB, events ...outbox.Event) (written []outbox.Envelope) {
	t.Helper()
	for _, e := range events {
		out, err := r.tryWrite(context.Background(), e)
		for isRetryable(err) {
			out, err = r.tryWrite(context.Background(), e)
		}
		if err != nil {
			t.Errorf("writing an event: %v", err)
			return written
		}
		written = append(written, out...)
	}
	return written
}

func (r *rig) tryWrite(ctx context.Context, events ...outbox.Event) ([]outbox.Envelope, error) {
	tx, err := r.begin(ctx)
	if err != nil {
		return nil, err
	}
	out, err := tx.write(ctx, events...)
	if err != nil {
		_ = tx.rollback(ctx)
		return nil, err
	}
	return out, tx.commit(ctx)
}

func isRetryable(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && slices.Contains([]string{"40001", "40P01"}, state.SQLState())
}

// runs makes a dispatcher.
func (r *rig) runs(t testing.TB, p outbox.Publisher, c outbox.DispatcherConfig) *outbox.Dispatcher {
	t.Helper()
	d, err := r.dispatcher(p, c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// once runs one pass.
func once(t testing.TB, d *outbox.Dispatcher) outbox.Report {
	t.Helper()
	report, err := d.RunOnce(context.Background())
	if err != nil {
		t.Errorf("RunOnce: %v", err)
	}
	return report
}

// broker remembers what was published to it.
type broker struct {
	// before is asked before an event is taken in. May be nil.
	before func(ctx context.Context, by string, e outbox.Envelope) error

	mu  sync.Mutex
	got []outbox.Envelope
}

// publisher publishes one by one under a name.
func (b *broker) publisher(by string) outbox.Publisher {
	return outbox.OneByOne(func(ctx context.Context, e outbox.Envelope) error {
		if b.before != nil {
			if err := b.before(ctx, by, e); err != nil {
				return err
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.got = append(b.got, e)
		return nil
	})
}

// versions are the versions of an aggregate's events as they came.
func (b *broker) versions(a outbox.Aggregate) (out []int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.got {
		if e.Aggregate() == a {
			out = append(out, e.Version)
		}
	}
	return out
}

func (b *broker) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.got)
}

// firsts are versions without repetitions, in the order in which each came first.
func firsts(versions []int64) (out []int64) {
	seen := map[int64]bool{}
	for _, v := range versions {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

// upTo is 1, 2, … n.
func upTo(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(i) + 1
	}
	return out
}

func same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

// quick is a config for tests: pauses are judged by the clock that the test moves, so their length costs nothing.
func quick() outbox.DispatcherConfig {
	return outbox.DispatcherConfig{Lease: 30 * time.Second, MaxAttempts: 3, FirstPause: time.Second, LongestPause: time.Minute}
}
