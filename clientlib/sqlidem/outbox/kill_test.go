package outbox_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
)

// The kill test starts this test binary again, as processes that dispatch and consume, and kills them (kill -9) at random moments while
// others write. Then it looks at what reached the broker, and at what the consumers' handlers did.

const (
	// killsVariable says how many processes to kill. Default: 15.
	killsVariable  = "IDEMD_TEST_KILLS"
	victimVariable = "IDEMD_TEST_DISPATCHER_DATABASE"
)

// The broker is a table that is written outside any transaction of the outbox. seq is the order in which messages became visible.
const killTables = `
CREATE TABLE broker (seq BIGSERIAL PRIMARY KEY, aggregate TEXT NOT NULL, version INT8 NOT NULL, id TEXT NOT NULL, acked BOOL NOT NULL DEFAULT false);
CREATE INDEX ON broker (acked) WHERE NOT acked;
CREATE TABLE effects (id TEXT NOT NULL, aggregate TEXT NOT NULL)`

// victim is a process that dispatches and consumes until it is killed, or the test's process is gone.
func victim() {
	ctx := context.Background()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	pool, err := pgxpool.New(ctx, os.Getenv(victimVariable))
	fatal(err)
	box, err := outbox.NewPgx(pool, outbox.Config{})
	fatal(err)
	received, err := inbox.NewPgx(pool, inbox.Config{})
	fatal(err)
	publisher := outbox.OneByOne(func(ctx context.Context, e outbox.Envelope) error {
		_, err := pool.Exec(ctx, "INSERT INTO broker (aggregate, version, id) VALUES ($1, $2, $3)", e.AggregateID, e.Version, e.ID.String())
		return err
	})
	d, err := outbox.NewDispatcher(box, publisher, outbox.DispatcherConfig{
		Lease: 1500 * time.Millisecond, PollInterval: 20 * time.Millisecond, BatchSize: 5, Concurrency: 4, FirstPause: 10 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	fatal(err)
	go func() { fatal(consume(ctx, pool, received)) }()
	fatal(d.Run(ctx))
}

// consume handles what is not acknowledged, over and over, and acknowledges after the commit, as a consumer of a broker does.
func consume(ctx context.Context, pool *pgxpool.Pool, received *inbox.Inbox[pgx.Tx]) error {
	for {
		rows, err := pool.Query(ctx, "SELECT seq, id, aggregate FROM broker WHERE NOT acked ORDER BY random() LIMIT 10")
		if err != nil {
			return err
		}
		type delivery struct {
			Seq           int64
			ID, Aggregate string
		}
		deliveries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[delivery])
		if err != nil {
			return err
		}
		for _, m := range deliveries {
			_, err := received.Handle(ctx, inbox.Message{Subscriber: "consumer", ID: m.ID}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1, $2)", m.ID, m.Aggregate)
				return err
			})
			if err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, "UPDATE broker SET acked = true WHERE seq = $1", m.Seq); err != nil {
				return err
			}
		}
	}
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// startVictim starts a process; it ends with its standard input.
func startVictim(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimVariable+"="+url)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("a process ended before it was killed: %v", err)
	}
	_ = cmd.Wait()
}

func TestDispatchersKilledAtRandomMomentsLoseNothingAndKeepTheOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it kills processes for some seconds; go test without -short runs it")
	}
	t.Parallel()
	kills := 15
	if given, err := strconv.Atoi(os.Getenv(killsVariable)); err == nil {
		kills = given
	}
	d := sqldbtest.PostgreSQL(t)
	r := pgxRig(t, d, outbox.Config{})
	received, err := inbox.NewPgx(d.Pool, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, migrate := range []func(context.Context) error{r.Migrate, received.Migrate} {
		if err := migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d.Exec(t, killTables)

	stopWriting, written := writeLoad(t, r)
	victims := []*exec.Cmd{startVictim(t, d.URL), startVictim(t, d.URL)}
	for range kills {
		// Let it get to work, then kill in the middle of it, wherever that is.
		before := d.Int(t, "SELECT count(*) FROM broker")
		sqldbtest.Await(t, "something more is published", func() bool { return d.Int(t, "SELECT count(*) FROM broker") > before })
		<-time.After(rand.N(150 * time.Millisecond))
		i := rand.IntN(len(victims))
		kill(t, victims[i])
		victims[i] = startVictim(t, d.URL)
	}
	stopWriting()
	sqldbtest.Await(t, "everything is delivered and acknowledged", func() bool {
		return d.Int(t, "SELECT count(*) FROM idem_outbox_pending") == 0 && d.Int(t, "SELECT count(*) FROM broker WHERE NOT acked") == 0
	})
	for _, v := range victims {
		kill(t, v)
	}
	checkDeliveries(t, d, written)
	t.Logf("%d kills: %d events written, %d messages at the broker, %d effects", kills, d.Int(t, "SELECT count(*) FROM idem_outbox"),
		d.Int(t, "SELECT count(*) FROM broker"), d.Int(t, "SELECT count(*) FROM effects"))
}

const loadAggregates = 10

// writeLoad writes events of a few aggregates until it is stopped.
func writeLoad(t *testing.T, r *rig) (stop func(), written []*atomic.Int64) {
	t.Helper()
	var wait sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for i := range loadAggregates {
		count := &atomic.Int64{}
		written = append(written, count)
		wait.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				r.write(t, event(strconv.Itoa(i)))
				count.Add(1)
				<-tick.C
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wait.Wait()
	})
	t.Cleanup(stop)
	return stop, written
}

func checkDeliveries(t *testing.T, d *sqldbtest.Database, written []*atomic.Int64) {
	t.Helper()
	for i, count := range written {
		aggregate := strconv.Itoa(i)
		rows, err := d.Pool.Query(t.Context(), "SELECT version FROM broker WHERE aggregate = $1 ORDER BY seq", aggregate)
		if err != nil {
			t.Fatal(err)
		}
		versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		same(t, "first deliveries of aggregate "+aggregate, firsts(versions), upTo(int(count.Load())))
		same(t, "effects of aggregate "+aggregate, d.Int(t, "SELECT count(*) FROM effects WHERE aggregate = $1", aggregate), count.Load())
	}
	same(t, "effects that happened twice", d.Int(t, "SELECT count(*) - count(DISTINCT id) FROM effects"), int64(0))
}
