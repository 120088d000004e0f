package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// running runs a dispatcher until stop is called, which waits for its end.
func running(t *testing.T, d *outbox.Dispatcher) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestADispatcherThatIsStoppedFinishesWhatItHasInHandAndGivesItsAggregatesBack(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("a"))
		at, let := make(chan struct{}), make(chan struct{})
		b := &broker{before: func(_ context.Context, by string, e outbox.Envelope) error {
			if by == "stopped" && e.Version == 2 {
				close(at)
				<-let
			}
			return nil
		}}
		config := quick()
		config.BatchSize = 2
		d := r.runs(t, b.publisher("stopped"), config)
		stop := running(t, d)
		<-at
		stopped := make(chan struct{})
		go func() {
			stop()
			close(stopped)
		}()
		sqldbtest.Await(t, "the dispatcher is told to stop", func() bool {
			select {
			case <-stopped:
				t.Error("it did not wait for what it has in hand")
			default:
			}
			return true
		})
		close(let)
		<-stopped
		got := b.versions(order("a"))
		if !slices.Equal(got, []int64{1, 2}) && !slices.Equal(got, []int64{1, 2, 3}) { // 3 if the batch ended before it was told
			t.Errorf("published %v, want its batch", got)
		}
		once(t, r.runs(t, b.publisher("next"), quick()))
		same(t, "published, without waiting for a lease", b.versions(order("a")), []int64{1, 2, 3})
	})
}

// However long the backlog is.
func TestADispatcherThatIsStoppedBeginsNoFurtherBatch(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("a"))
		ctx, stop := context.WithCancel(t.Context())
		b := &broker{before: func(context.Context, string, outbox.Envelope) error {
			stop()
			return nil
		}}
		config := quick()
		config.BatchSize = 1
		if err := r.runs(t, b.publisher("stopped"), config).Run(ctx); err != nil {
			t.Error(err)
		}
		same(t, "published", b.versions(order("a")), []int64{1})
	})
}

// latecomer is a connection on which the answer to a claim comes at the very moment that the dispatcher is stopped.
type latecomer struct {
	net.Conn
	claims *atomic.Bool
	stop   func()
	given  chan struct{} // closed when somebody gives up on the answer
	once   *sync.Once
}

func (c latecomer) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("idem:outbox-claim")) {
		c.claims.Store(true)
	}
	return c.Conn.Write(b)
}

func (c latecomer) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.claims.CompareAndSwap(true, false) {
		c.stop()
		limit := time.NewTimer(time.Second)
		defer limit.Stop()
		select {
		case <-c.given:
			return 0, os.ErrDeadlineExceeded
		case <-limit.C:
		}
	}
	return n, err
}

func (c latecomer) SetDeadline(t time.Time) error {
	if !t.IsZero() {
		c.once.Do(func() { close(c.given) })
	}
	return c.Conn.SetDeadline(t)
}

func TestAClaimThatIsAnsweredWhileTheDispatcherStopsIsGivenBack(t *testing.T) {
	t.Parallel()
	everyPostgres(t, func(t *testing.T, direct *rig) {
		ctx, stop := context.WithCancel(t.Context())
		config, err := pgxpool.ParseConfig(direct.URL)
		if err != nil {
			t.Fatal(err)
		}
		dial := config.ConnConfig.DialFunc
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return latecomer{conn, new(atomic.Bool), stop, make(chan struct{}), new(sync.Once)}, err
		}
		// The text of a statement goes over the connection with each execution.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		d := *direct.Database
		if d.Pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(d.Pool.Close)
		direct.write(t, event("a"))
		b := &broker{}
		r := pgxRig(t, &d, outbox.Config{ClockSQL: d.ClockSQL})
		if err := r.runs(t, b.publisher("stopped"), quick()).Run(ctx); err != nil {
			t.Error(err)
		}
		same(t, "aggregates that are held by a dispatcher that is gone",
			direct.Int(t, "SELECT count(*) FROM idem_outbox_deliveries WHERE lease_until > test_now()"), 0)
		once(t, direct.runs(t, b.publisher("next"), quick()))
		same(t, "published", b.versions(order("a")), []int64{1})
	})
}

func TestAPublisherThatDoesNotEndIsInterruptedAndNoEventIsBlamed(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		at := make(chan struct{})
		b := &broker{before: func(ctx context.Context, by string, _ outbox.Envelope) error {
			if by == "stopped" {
				close(at)
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}}
		config := quick()
		config.StopTimeout = time.Millisecond
		stop := running(t, r.runs(t, b.publisher("stopped"), config))
		<-at
		stop()
		same(t, "attempts", r.Int(t, "SELECT attempts FROM idem_outbox_deliveries"), int64(0))
		once(t, r.runs(t, b.publisher("next"), quick()))
		same(t, "published, without waiting for a lease", b.versions(order("a")), []int64{1})
	})
}

// Nor are failures forgotten: dispatchers that are stopped often would never park anything.
func TestAnInterruptionForgetsNoFailures(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		at := make(chan struct{})
		b := &broker{before: func(ctx context.Context, by string, _ outbox.Envelope) error {
			if by == "stopped" {
				close(at)
				<-ctx.Done()
				return ctx.Err()
			}
			return errors.New("unreadable")
		}}
		config := quick()
		config.StopTimeout = time.Millisecond
		for range 2 {
			once(t, r.runs(t, b.publisher("failing"), config))
			r.Advance(t, time.Minute)
		}
		stop := running(t, r.runs(t, b.publisher("stopped"), config))
		<-at
		stop()
		same(t, "attempts", r.Int(t, "SELECT attempts FROM idem_outbox_deliveries"), int64(2))
		r.Advance(t, time.Minute)
		same(t, "the third failure", once(t, r.runs(t, b.publisher("failing"), config)), outbox.Report{Failed: 1, Parked: 1})
	})
}

func TestAWokenDispatcherDoesNotWaitForItsPoll(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b := &broker{}
		config := quick()
		config.PollInterval = time.Hour
		d := r.runs(t, b.publisher("one"), config)
		running(t, d)
		for n := 1; n <= 3; n++ {
			r.write(t, event("a"))
			sqldbtest.Await(t, "the event is published", func() bool {
				d.Wake() // as often as we look, since it may not have begun to rest
				return b.count() == n
			})
		}
	})
}

// Nobody else can claim the aggregate meanwhile, so nobody else will look.
func TestWhatIsWrittenWhileItsAggregateIsPublishedDoesNotWaitForThePoll(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		at, let := make(chan struct{}), make(chan struct{})
		b := &broker{before: func(_ context.Context, _ string, e outbox.Envelope) error {
			if e.Version == 1 {
				close(at)
				<-let
			}
			return nil
		}}
		config := quick()
		config.PollInterval = time.Hour
		running(t, r.runs(t, b.publisher("one"), config))
		<-at
		r.write(t, event("a"))
		<-time.After(200 * time.Millisecond) // it has looked, most likely, and rests
		close(let)
		sqldbtest.Await(t, "the second one is published", func() bool { return b.count() == 2 })
	})
}

// A slow publisher keeps its aggregate for as long as it lives, however short the lease.
func TestALeaseIsExtendedWhileThePublisherIsAtWork(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"))
		b := &broker{}
		config := quick()
		config.Heartbeat = 5 * time.Millisecond
		_, let, ran := stalled(t, r, b, config)
		fast := r.runs(t, b.publisher("fast"), quick())
		for range 3 {
			r.Advance(t, 20*time.Second)
			sqldbtest.Await(t, "the lease is extended", func() bool {
				return r.Int(t, "SELECT count(*) FROM idem_outbox_deliveries WHERE lease_until >= "+r.ClockSQL+" + INTERVAL '29 seconds'") == 1
			})
			once(t, fast)
		}
		same(t, "published meanwhile", b.count(), 0)
		close(let)
		<-ran
		same(t, "in the end", b.versions(order("a")), []int64{1, 2})
	})
}

// While the database is away a lease cannot be extended. When it is over the publisher is told to stop: somebody else may be at it.
func TestAPublisherIsToldWhenItsLeaseIsOver(t *testing.T) {
	t.Parallel()
	everyPostgres(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		config := quick()
		config.Lease, config.Heartbeat = 2*time.Second, 100*time.Millisecond
		publishing, let, ran := stalled(t, r, &broker{}, config)
		r.Exec(t, "ALTER TABLE idem_outbox_deliveries RENAME TO away")
		<-publishing.Done()
		if errors.Is(publishing.Err(), context.DeadlineExceeded) {
			t.Error("it came to the end of its time")
		}
		r.Exec(t, "ALTER TABLE away RENAME TO idem_outbox_deliveries")
		close(let)
		<-ran
	})
}

// Writers hold their aggregate from Write to commit. Dispatchers must not wait for them.
func TestATransactionThatTakesItsTimeHoldsUpNoDispatcher(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		tx, err := r.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.write(t.Context(), event("a")); err != nil {
			t.Fatal(err)
		}
		b := &broker{}
		if !r.Cockroach {
			r.write(t, event("b"))
			d := r.runs(t, b.publisher("one"), quick())
			same(t, "published while it is open", once(t, d).Published, 2)
			same(t, "of its aggregate", b.versions(order("a")), []int64{1})
			if err := tx.commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			once(t, d)
			same(t, "when it is committed", b.versions(order("a")), []int64{1, 2})
			return
		}
		// CockroachDB at SERIALIZABLE lets no reader pass a row that was written and not committed, so there the search for work waits. It
		// must go on when the writer ends, however it ends.
		found := make(chan outbox.Report)
		go func() { found <- once(t, r.runs(t, b.publisher("one"), quick())) }()
		if err := tx.rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, "published", (<-found).Published, 1)
	})
}

// scripted is a publisher that answers with what it is told to.
type scripted func(events []outbox.Envelope) (int, error)

func (s scripted) Publish(_ context.Context, events []outbox.Envelope) (int, error) { return s(events) }

func TestBatchesAreBoundedInNumberAndInBytes(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for range 7 {
			e := event("small")
			e.Payload = make([]byte, 10)
			r.write(t, e)
		}
		for range 3 {
			e := event("large")
			e.Payload = make([]byte, 3000)
			r.write(t, e)
		}
		var mu sync.Mutex
		sizes := map[string][]int{}
		config := quick()
		config.BatchSize, config.BatchBytes = 3, 4000
		once(t, r.runs(t, scripted(func(events []outbox.Envelope) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			sizes[events[0].AggregateID] = append(sizes[events[0].AggregateID], len(events))
			return len(events), nil
		}), config))
		same(t, "batches of small events", sizes["small"], []int{3, 3, 1})
		same(t, "batches of large events", sizes["large"], []int{2, 1}) // the second begins below the limit
	})
}

func TestWhatAPublisherAcknowledgedBeforeItFailedIsNotPublishedAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("a"), event("a"))
		var asked [][2]int64
		d := r.runs(t, scripted(func(events []outbox.Envelope) (int, error) {
			asked = append(asked, [2]int64{events[0].Version, int64(len(events))})
			switch len(asked) {
			case 1:
				return 2, errors.New("the third is too much")
			case 2:
				panic("a mistake")
			case 3:
				return 1, nil // another mistake: one of two, and no error
			}
			return len(events), nil
		}), quick())
		for range 4 {
			once(t, d)
			r.Advance(t, time.Hour)
		}
		same(t, "asked for, first version and how many", asked, [][2]int64{{1, 4}, {3, 2}, {3, 2}, {4, 1}})
	})
}

func TestAPublisherThatCannotCountEndsNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"))
		count := -1
		d := r.runs(t, scripted(func([]outbox.Envelope) (int, error) { return count, nil }), quick())
		same(t, "fewer than none", once(t, d), outbox.Report{Failed: 1})
		r.Advance(t, time.Minute)
		count = 3
		same(t, "more than there are", once(t, d), outbox.Report{Published: 2})
	})
}

func TestPublishedEventsAreDeletedAtOnceWhereThatIsAskedFor(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("b"))
		b := &broker{}
		config := quick()
		config.DeletePublished = true
		once(t, r.runs(t, b.publisher("one"), config))
		same(t, "left", r.Int(t, "SELECT count(*) FROM idem_outbox"), int64(0))
		same(t, "the next version", r.write(t, event("a"))[0].Version, int64(3))
		once(t, r.runs(t, b.publisher("one"), config))
		same(t, "published", b.versions(order("a")), []int64{1, 2, 3})
	})
}

// Whether what was published is recorded cannot be known when the reply is lost. It is said again, and nothing is published out of order.
func TestALostReplyToTheRecordIsSaidAgain(t *testing.T) {
	t.Parallel()
	everyPostgres(t, func(t *testing.T, direct *rig) {
		for _, fault := range []struct {
			name string
			kind pgtest.Fault
		}{{"before", pgtest.CutBefore}, {"after", pgtest.CutAfter}} {
			proxy := pgtest.NewProxy(t, direct.URL)
			pool, err := pgxpool.New(t.Context(), proxy.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			d := *direct.Database
			d.Pool = pool
			r := pgxRig(t, &d, outbox.Config{ClockSQL: d.ClockSQL})
			direct.write(t, event(fault.name), event(fault.name))
			proxy.Arm(fault.kind, "idem:outbox-settle", "", 1)
			b := &broker{}
			same(t, "published with the connection cut "+fault.name, once(t, r.runs(t, b.publisher("one"), quick())).Published, 2)
			same(t, "what came to the broker", b.versions(order(fault.name)), []int64{1, 2})
			if proxy.Hits() == 0 {
				t.Error("the fault did not happen")
			}
		}
	})
}

func TestADispatcherIsNotRunTwice(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		at, let := make(chan struct{}), make(chan struct{})
		d := r.runs(t, scripted(func(events []outbox.Envelope) (int, error) {
			close(at)
			<-let
			return len(events), nil
		}), quick())
		running(t, d)
		<-at
		if _, err := d.RunOnce(t.Context()); err == nil {
			t.Error("RunOnce ran beside Run")
		}
		close(let)
	})
}

func TestADispatcherConfigThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]outbox.DispatcherConfig{
		"lease":     {Lease: -1},
		"short":     {Lease: 900 * time.Millisecond},
		"heartbeat": {Lease: time.Minute, Heartbeat: time.Minute},
		"batch":     {BatchSize: -1},
		"owner":     {Owner: "a\nb"},
	} {
		if c.Validate() == nil {
			t.Errorf("%s: nothing was refused", name)
		}
	}
	if err := (outbox.DispatcherConfig{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if (outbox.SweepConfig{}).Validate() == nil || (outbox.Config{TablePrefix: "A b"}).Validate() == nil {
		t.Error("a sweep without an age, or a bad prefix, was not refused")
	}
}
