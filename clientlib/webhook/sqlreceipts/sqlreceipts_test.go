package sqlreceipts_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/webhook"
	"github.com/idemd/idemd/clientlib/webhook/sqlreceipts"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// receipts are what the tests need of a *sqlreceipts.Receipts, whichever its driver.
type receipts interface {
	webhook.Receipts
	Migrate(ctx context.Context) error
	Sweep(ctx context.Context, receiver string, age time.Duration) (int, error)
}

// service is a service with its database, whose effects are rows.
type service struct {
	*sqldbtest.Database
	receipts receipts
	// effect is work whose effect is a row, followed by after.
	effect func(after func() error) webhook.Handler
}

// everywhere runs a test on each engine, through each driver.
func everywhere(t *testing.T, test func(*testing.T, *service)) {
	t.Parallel()
	for _, driver := range []string{"pgx", "sql"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			sqldbtest.OnEveryEngine(t, func(t *testing.T, d *sqldbtest.Database) {
				d.Exec(t, "CREATE TABLE effects (delivery TEXT NOT NULL)")
				s := newService(t, d, driver)
				if err := s.receipts.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				test(t, s)
			})
		})
	}
}

const insertEffect = "INSERT INTO effects VALUES ($1)"

// newService is one more process of a service.
func newService(t *testing.T, d *sqldbtest.Database, driver string) *service {
	t.Helper()
	if driver == "pgx" {
		r, err := sqlreceipts.NewPgx(d.Pool, sqlreceipts.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return &service{d, r, func(after func() error) webhook.Handler {
			return r.InTx(func(ctx context.Context, tx pgx.Tx, d webhook.Delivery) error {
				if _, err := tx.Exec(ctx, insertEffect, d.ID); err != nil {
					return err
				}
				return after()
			})
		}}
	}
	r, err := sqlreceipts.NewSQL(d.SQL, sqlreceipts.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &service{d, r, func(after func() error) webhook.Handler {
		return r.InTx(func(ctx context.Context, tx *sql.Tx, d webhook.Delivery) error {
			if _, err := tx.ExecContext(ctx, insertEffect, d.ID); err != nil {
				return err
			}
			return after()
		})
	}}
}

func well() error { return nil }

func (s *service) run(t *testing.T, id string, work webhook.Handler, want webhook.Standing) {
	t.Helper()
	if standing, err := s.receipts.Run(t.Context(), "shop", id, work); standing != want || err != nil {
		t.Errorf("delivery %s: %v, %v, want %v", id, standing, err, want)
	}
}

// effects is how often the work of a delivery had its effect.
func (s *service) effects(t *testing.T, id string) int64 {
	t.Helper()
	return s.Int(t, "SELECT count(*) FROM effects WHERE delivery = $1", id)
}

func delivery(id, body string) webhook.Delivery {
	print, err := fingerprint.Bytes([]byte(body + "."))
	if err != nil {
		panic(err)
	}
	return webhook.Delivery{
		Receiver: "shop", ID: id, Type: "paid", Body: []byte(body), Fingerprint: print, Header: http.Header{"Content-Type": {"text/plain"}},
		ReceivedAt: time.Unix(1700000000, 0), Sequence: 7, Sequenced: true,
	}
}

func (s *service) keep(t *testing.T, d webhook.Delivery) webhook.Standing {
	t.Helper()
	standing, err := s.receipts.Keep(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return standing
}

func (s *service) unfinished(t *testing.T) (ids []string) {
	t.Helper()
	if err := s.receipts.Unfinished(t.Context(), "shop", func(id string) error {
		ids = append(ids, id)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return ids
}

func TestAReceiptOutlivesItsProcessAndComesBackWhole(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		d := delivery("1", "")
		if standing := s.keep(t, d); standing != webhook.Fresh {
			t.Fatal(standing)
		}
		s = newService(t, s.Database, "pgx")
		if ids := s.unfinished(t); !slices.Equal(ids, []string{"1"}) {
			t.Fatalf("unfinished: %v", ids)
		}
		var got webhook.Delivery
		s.run(t, "1", func(ctx context.Context, d webhook.Delivery) error {
			got = d
			if key, _ := clientlib.KeyFrom(ctx); key != webhook.DownstreamKey("shop", "1") {
				t.Errorf("the key for calls downstream is %q", key)
			}
			return nil
		}, webhook.Done)
		if got.Receiver != "shop" || got.ID != "1" || got.Type != d.Type || len(got.Body) != 0 || got.Sequence != 7 || !got.ReceivedAt.Equal(d.ReceivedAt) ||
			got.Header.Get("Content-Type") != "text/plain" || !got.Fingerprint.Equal(d.Fingerprint) {
			t.Errorf("%+v came back as %+v", d, got)
		}
		if ids := s.unfinished(t); len(ids) != 0 {
			t.Errorf("unfinished: %v", ids)
		}
		if standing := s.keep(t, d); standing != webhook.Done {
			t.Errorf("redelivered: %v", standing)
		}
		if n := s.Int(t, "SELECT count(*) FROM idem_webhook_receipts WHERE body IS NOT NULL OR envelope IS NOT NULL"); n != 0 {
			t.Error("the body is kept after the work is done")
		}
	})
}

func TestTheSameIdWithAnotherBodyIsRefused(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.keep(t, delivery("1", "five"))
		for range 2 {
			if _, err := s.receipts.Keep(t.Context(), delivery("1", "six")); !errors.Is(err, webhook.ErrOtherBody) {
				t.Error(err)
			}
			s.run(t, "1", s.effect(well), webhook.Done)
		}
		if n := s.effects(t, "1"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestManyThatRunTheSameDeliveryHaveOneEffect(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.keep(t, delivery("1", "a"))
		var runs sync.WaitGroup
		for range 8 {
			runs.Go(func() { s.run(t, "1", s.effect(well), webhook.Done) })
		}
		runs.Wait()
		if n := s.effects(t, "1"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAnAttemptThatFailsLeavesNothingAndIsTriedAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.keep(t, delivery("1", "a"))
		no := errors.New("no")
		if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(func() error { return no })); !errors.Is(err, no) || standing != webhook.Waiting {
			t.Error(standing, err)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = s.receipts.Run(t.Context(), "shop", "1", s.effect(func() error { panic("a bug") }))
		}()
		if n := s.effects(t, "1"); n != 0 {
			t.Errorf("%d effects of attempts that failed", n)
		}
		s.run(t, "1", s.effect(well), webhook.Done)
		if n := s.effects(t, "1"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// TestAFinalFailureUndoesTheWorkAndIsOver, also where its text is nothing that the table takes.
func TestAFinalFailureUndoesTheWorkAndIsOver(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		for id, text := range map[string]string{"1": "no such customer", "2": "\x00\xff" + strings.Repeat("é", 600)} {
			s.keep(t, delivery(id, "a"))
			final := func() error { return clientlib.Final(errors.New(text)) }
			if standing, err := s.receipts.Run(t.Context(), "shop", id, s.effect(final)); err == nil || standing != webhook.Failed {
				t.Error(standing, err)
			}
			if n := s.effects(t, id); n != 0 {
				t.Errorf("%d effects", n)
			}
			if standing := s.keep(t, delivery(id, "a")); standing != webhook.Failed {
				t.Error(standing)
			}
			s.run(t, id, s.effect(well), webhook.Failed)
			if n := s.effects(t, id); n != 0 {
				t.Errorf("%d effects after the failure", n)
			}
		}
		if ids := s.unfinished(t); len(ids) != 0 {
			t.Error(ids)
		}
	})
}

// TestWhoWaitedBehindAFinalFailureDoesNotRunTheWork: the receipt is settled while an attempt waits for the inbox.
func TestWhoWaitedBehindAFinalFailureDoesNotRunTheWork(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.keep(t, delivery("1", "a"))
		other, err := s.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Rollback(context.Background()) }()
		const claim = "INSERT INTO idem_inbox (subscriber, message_id, shard, algorithm) VALUES ('webhook:shop', '1', 0, '')"
		if _, err := other.Exec(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(t, "1", s.effect(well), webhook.Failed)
		}()
		s.AwaitRunning(t, "INSERT INTO idem_inbox", 1)
		s.Exec(t, "UPDATE idem_webhook_receipts SET state = 2, settled_at = clock_timestamp()")
		if err := other.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-ended
		if n := s.effects(t, "1"); n != 0 {
			t.Errorf("%d effects of a delivery that had failed for good", n)
		}
	})
}

// lateError does something when its text is asked for: between the end of the work's transaction and the note of what came of it.
type lateError struct {
	once *sync.Once
	do   func()
}

func (e lateError) Error() string {
	e.once.Do(e.do)
	return "no such customer"
}

// TestAFinalFailureDoesNotHideThatAnotherAttemptDidIt: whoever comes between the rollback and the note is free to have the effect.
func TestAFinalFailureDoesNotHideThatAnotherAttemptDidIt(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.keep(t, delivery("1", "a"))
		another := lateError{&sync.Once{}, func() { s.run(t, "1", s.effect(well), webhook.Done) }}
		s.run(t, "1", s.effect(func() error { return clientlib.Final(another) }), webhook.Done)
		if n := s.effects(t, "1"); n != 1 {
			t.Errorf("%d effects", n)
		}
		if standing := s.keep(t, delivery("1", "a")); standing != webhook.Done {
			t.Error(standing)
		}
	})
}

// TestAnEffectWithoutItsNoteIsNotRepeated: the receipt says that the work waits, and the inbox that it was done.
func TestAnEffectWithoutItsNoteIsNotRepeated(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		d := delivery("1", "a")
		s.keep(t, d)
		s.run(t, "1", s.effect(well), webhook.Done)
		s.Exec(t, "DELETE FROM idem_webhook_receipts")
		s.keep(t, d)
		if ids := s.unfinished(t); !slices.Equal(ids, []string{"1"}) {
			t.Errorf("unfinished: %v", ids)
		}
		s.run(t, "1", s.effect(well), webhook.Done)
		if n := s.effects(t, "1"); n != 1 {
			t.Errorf("%d effects", n)
		}
		if ids := s.unfinished(t); len(ids) != 0 {
			t.Errorf("unfinished: %v", ids)
		}
	})
}

// TestTheEffectAndItsNoteAreOneTransaction: where the note cannot be written there is no effect.
func TestTheEffectAndItsNoteAreOneTransaction(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.keep(t, delivery("1", "a"))
		s.Exec(t, "ALTER TABLE idem_webhook_receipts ADD CONSTRAINT never_done CHECK (state <> 1)")
		if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(well)); standing != webhook.Waiting || err == nil {
			t.Error(standing, err)
		}
		if n := s.effects(t, "1"); n != 0 {
			t.Errorf("%d effects", n)
		}
		s.Exec(t, "ALTER TABLE idem_webhook_receipts DROP CONSTRAINT never_done")
		s.run(t, "1", s.effect(well), webhook.Done)
	})
}

func TestADeliveryThatWasNeverPutDownIsNotRun(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(well)); standing != webhook.Waiting || !errors.Is(err, webhook.ErrNoReceipt) {
			t.Error(standing, err)
		}
		if n := s.effects(t, "1"); n != 0 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestSweptReceiptsAreForgottenAndUnfinishedOnesAreNot(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		for i := range 3 {
			s.keep(t, delivery(strconv.Itoa(i), "a"))
		}
		for i := range 2 {
			s.run(t, strconv.Itoa(i), s.effect(well), webhook.Done)
		}
		s.Exec(t, "UPDATE idem_webhook_receipts SET settled_at = settled_at - INTERVAL '2 days', received_at = received_at - INTERVAL '2 days' WHERE delivery_id <> '1'")
		if n, err := s.receipts.Sweep(t.Context(), "another", 24*time.Hour); n != 0 || err != nil {
			t.Errorf("%d of another receiver were swept: %v", n, err)
		}
		if n, err := s.receipts.Sweep(t.Context(), "shop", 24*time.Hour); n != 1 || err != nil {
			t.Errorf("%d swept: %v", n, err)
		}
		if ids := s.unfinished(t); !slices.Equal(ids, []string{"2"}) {
			t.Errorf("unfinished: %v", ids)
		}
		if _, err := s.receipts.Sweep(t.Context(), "shop", 0); err == nil {
			t.Error("a sweep without an age was accepted")
		}
		// The receipt is forgotten, and the inbox is not: a very late redelivery has no second effect.
		if standing := s.keep(t, delivery("0", "a")); standing != webhook.Fresh {
			t.Error(standing)
		}
		s.run(t, "0", s.effect(well), webhook.Done)
		if n := s.effects(t, "0"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestASweepGoesOnToTheEndOfALongPast(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.Exec(t, `INSERT INTO idem_webhook_receipts (receiver, delivery_id, state, algorithm, fingerprint, settled_at)
SELECT 'shop', i::TEXT, 1 + i % 2, 'a', '\x00', TIMESTAMPTZ '2026-01-01' + (i / 700) * INTERVAL '1 second' FROM generate_series(1, 1600) AS g (i)`)
		if n, err := s.receipts.Sweep(t.Context(), "shop", time.Hour); n != 1600 || err != nil {
			t.Errorf("%d of 1600: %v", n, err)
		}
	})
}

func TestUnfinishedPagesThroughALongBacklog(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.Exec(t, `INSERT INTO idem_webhook_receipts (receiver, delivery_id, state, algorithm, fingerprint, received_at)
SELECT 'shop', i::TEXT, 0, 'a', '\x00', TIMESTAMPTZ '2026-01-01' + (i / 7) * INTERVAL '1 second' FROM generate_series(1, 2500) AS g (i)`)
		ids := s.unfinished(t)
		slices.Sort(ids)
		if len(slices.Compact(ids)) != 2500 {
			t.Errorf("%d of 2500", len(ids))
		}
	})
}

// From the request to the row: two processes, every delivery three times, and a handler that fails now and then.
func TestDeliveriesToTwoProcessesHaveOneEffectEach(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		const deliveries = 60
		var failing atomic.Int64
		receivers := make([]*webhook.Receiver, 2)
		for i := range receivers {
			receiver, err := webhook.New(webhook.Config{
				Name: "shop", Sender: anybody{}, Receipts: s.receipts, FirstPause: time.Millisecond, Rescan: 100 * time.Millisecond,
				Logger: slog.New(slog.DiscardHandler), MaxAttempts: 50,
				Handler: s.effect(func() error {
					if failing.Add(1)%5 == 0 {
						return errors.New("now and then")
					}
					return nil
				}),
			})
			if err != nil {
				t.Fatal(err)
			}
			receivers[i] = receiver
			ctx, cancel := context.WithCancel(context.Background())
			over := make(chan error, 1)
			go func() { over <- receiver.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-over; err != nil {
					t.Error(err)
				}
			})
		}
		var senders sync.WaitGroup
		for i := range 3 * deliveries {
			senders.Go(func() {
				r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", strings.NewReader("{}"))
				r.Header.Set("Id", strconv.Itoa(i%deliveries))
				w := httptest.NewRecorder()
				receivers[i%2].ServeHTTP(w, r)
				if w.Code/100 != 2 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		senders.Wait()
		sqldbtest.Await(t, "all are worked off", func() bool { return len(s.unfinished(t)) == 0 })
		n, distinct := s.Int(t, "SELECT count(*) FROM effects"), s.Int(t, "SELECT count(DISTINCT delivery) FROM effects")
		if n != deliveries || distinct != n {
			t.Errorf("%d effects of %d deliveries, for %d", n, distinct, deliveries)
		}
	})
}

func TestMigrationsRunTogetherAndAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, s *service) {
		s.Exec(t, "DROP TABLE idem_webhook_receipts")
		s.Exec(t, "DROP TABLE idem_schema")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := s.receipts.Migrate(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		s.keep(t, delivery("1", "a"))
	})
}

// anybody opens what has a header Id: these tests are not about signatures.
type anybody struct{}

func (anybody) Validate() error { return nil }

func (anybody) Open(h http.Header, body []byte, _ time.Time) (webhook.Delivery, error) {
	print, err := fingerprint.Bytes(body)
	return webhook.Delivery{ID: h.Get("Id"), Fingerprint: print}, err
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	if _, err := sqlreceipts.NewPgx(nil, sqlreceipts.Config{}); err == nil {
		t.Error("receipts without a pool were accepted")
	}
	if _, err := sqlreceipts.NewSQL(nil, sqlreceipts.Config{}); err == nil {
		t.Error("receipts without a database were accepted")
	}
	for _, prefix := range []string{"x; DROP TABLE", "Upper", "a.b.c", `"`, "1a", strings.Repeat("a", 33)} {
		if (sqlreceipts.Config{TablePrefix: prefix}).Validate() == nil {
			t.Errorf("prefix %q was accepted", prefix)
		}
	}
	other := &sqlreceipts.Receipts[*sql.Tx]{}
	handler := other.InTx(func(context.Context, *sql.Tx, webhook.Delivery) error { return nil })
	if handler(t.Context(), webhook.Delivery{}) == nil {
		t.Error("a handler ran outside of its transaction")
	}
}
