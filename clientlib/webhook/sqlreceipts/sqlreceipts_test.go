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
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/webhook"
	"github.com/idemd/idemd/clientlib/webhook/sqlreceipts"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// service is a service with its database, whose effects are rows.
type service struct {
	pool     *pgxpool.Pool
	box      *inbox.Inbox[pgx.Tx]
	receipts *sqlreceipts.Receipts[pgx.Tx]
}

func newService(t *testing.T, url string) *service {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	box, err := inbox.NewPgx(pool, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	receipts, err := sqlreceipts.New(db, box, sqlreceipts.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(box.Migrate(t.Context()), receipts.Migrate(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	s := &service{pool, box, receipts}
	s.exec(t, "CREATE TABLE IF NOT EXISTS effects (delivery TEXT NOT NULL)")
	return s
}

func (s *service) exec(t *testing.T, text string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(context.Background(), text, args...); err != nil {
		t.Fatal(err)
	}
}

func (s *service) count(t *testing.T, query string, args ...any) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// effect is work whose effect is a row, followed by after.
func (s *service) effect(after func() error) webhook.Handler {
	return s.receipts.InTx(func(ctx context.Context, tx pgx.Tx, d webhook.Delivery) error {
		if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", d.ID); err != nil {
			return err
		}
		if after != nil {
			return after()
		}
		return nil
	})
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
	url := pgtest.URL(t)
	d := delivery("1", "")
	if standing := newService(t, url).keep(t, d); standing != webhook.Fresh {
		t.Fatal(standing)
	}
	s := newService(t, url)
	if ids := s.unfinished(t); !slices.Equal(ids, []string{"1"}) {
		t.Fatalf("unfinished: %v", ids)
	}
	var got webhook.Delivery
	standing, err := s.receipts.Run(t.Context(), "shop", "1", s.receipts.InTx(func(ctx context.Context, _ pgx.Tx, d webhook.Delivery) error {
		got = d
		if key, _ := clientlib.KeyFrom(ctx); key != webhook.DownstreamKey("shop", "1") {
			t.Errorf("the key for calls downstream is %q", key)
		}
		return nil
	}))
	if err != nil || standing != webhook.Done {
		t.Fatal(standing, err)
	}
	if got.Type != d.Type || len(got.Body) != 0 || got.Sequence != 7 || !got.ReceivedAt.Equal(d.ReceivedAt) ||
		got.Header.Get("Content-Type") != "text/plain" || !got.Fingerprint.Equal(d.Fingerprint) {
		t.Errorf("%+v came back as %+v", d, got)
	}
	if ids := s.unfinished(t); len(ids) != 0 {
		t.Errorf("unfinished: %v", ids)
	}
	if standing := s.keep(t, d); standing != webhook.Done {
		t.Errorf("redelivered: %v", standing)
	}
	if n := s.count(t, "SELECT count(*) FROM idem_webhook_receipts WHERE body IS NOT NULL OR envelope IS NOT NULL"); n != 0 {
		t.Error("the body is kept after the work is done")
	}
}

func TestTheSameIdWithAnotherBodyIsRefused(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	s.keep(t, delivery("1", "five"))
	for range 2 {
		if _, err := s.receipts.Keep(t.Context(), delivery("1", "six")); !errors.Is(err, webhook.ErrOtherBody) {
			t.Error(err)
		}
		if _, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.count(t, "SELECT count(*) FROM effects"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestManyThatRunTheSameDeliveryHaveOneEffect(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	s.keep(t, delivery("1", "a"))
	var runs sync.WaitGroup
	for range 8 {
		runs.Go(func() {
			if standing, err := s.receipts.Run(context.Background(), "shop", "1", s.effect(nil)); err != nil || standing != webhook.Done {
				t.Error(standing, err)
			}
		})
	}
	runs.Wait()
	if n := s.count(t, "SELECT count(*) FROM effects"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestAnAttemptThatFailsLeavesNothingAndIsTriedAgain(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	s.keep(t, delivery("1", "a"))
	no := errors.New("no")
	if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(func() error { return no })); !errors.Is(err, no) || standing != webhook.Waiting {
		t.Error(standing, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = s.receipts.Run(t.Context(), "shop", "1", s.effect(func() error { panic("a bug") }))
	}()
	if n := s.count(t, "SELECT count(*) FROM effects"); n != 0 {
		t.Errorf("%d effects of attempts that failed", n)
	}
	if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(nil)); err != nil || standing != webhook.Done {
		t.Error(standing, err)
	}
	if n := s.count(t, "SELECT count(*) FROM effects"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestAFinalFailureUndoesTheWorkAndIsOver(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	s.keep(t, delivery("1", "a"))
	final := func() error { return clientlib.Final(errors.New("no such customer")) }
	if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(final)); err == nil || standing != webhook.Failed {
		t.Error(standing, err)
	}
	if n := s.count(t, "SELECT count(*) FROM effects"); n != 0 {
		t.Errorf("%d effects", n)
	}
	if standing := s.keep(t, delivery("1", "a")); standing != webhook.Failed {
		t.Error(standing)
	}
	if ids := s.unfinished(t); len(ids) != 0 {
		t.Error(ids)
	}
}

// The process dies after the effect was committed, and before the receipt says so.
func TestAnEffectWithoutItsNoteIsNotRepeated(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	s.keep(t, delivery("1", "a"))
	s.exec(t, "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'the process is dead'; END $$ LANGUAGE plpgsql")
	s.exec(t, "CREATE TRIGGER dead BEFORE UPDATE ON idem_webhook_receipts FOR EACH ROW EXECUTE FUNCTION refuse()")
	var notNow *webhook.NotNow
	if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(nil)); standing != webhook.Waiting || !errors.As(err, &notNow) {
		t.Error(standing, err)
	}
	s.exec(t, "DROP TRIGGER dead ON idem_webhook_receipts")
	if ids := s.unfinished(t); !slices.Equal(ids, []string{"1"}) {
		t.Errorf("unfinished: %v", ids)
	}
	if standing, err := s.receipts.Run(t.Context(), "shop", "1", s.effect(nil)); standing != webhook.Done || err != nil {
		t.Error(standing, err)
	}
	if n := s.count(t, "SELECT count(*) FROM effects"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestSweptReceiptsAreForgottenAndUnfinishedOnesAreNot(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	for i := range 3 {
		s.keep(t, delivery(strconv.Itoa(i), "a"))
	}
	for i := range 2 {
		if _, err := s.receipts.Run(t.Context(), "shop", strconv.Itoa(i), s.effect(nil)); err != nil {
			t.Fatal(err)
		}
	}
	s.exec(t, "UPDATE idem_webhook_receipts SET settled_at = settled_at - INTERVAL '2 days', received_at = received_at - INTERVAL '2 days' WHERE delivery_id <> '1'")
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
	if standing, err := s.receipts.Run(t.Context(), "shop", "0", s.effect(nil)); standing != webhook.Done || err != nil {
		t.Error(standing, err)
	}
	if n := s.count(t, "SELECT count(*) FROM effects WHERE delivery = '0'"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestUnfinishedPagesThroughALongBacklog(t *testing.T) {
	s := newService(t, pgtest.URL(t))
	s.exec(t, `INSERT INTO idem_webhook_receipts (receiver, delivery_id, state, algorithm, fingerprint, received_at)
SELECT 'shop', i::TEXT, 0, 'a', '\x00', TIMESTAMPTZ '2026-01-01' + (i / 7) * INTERVAL '1 second' FROM generate_series(1, 2500) i`)
	ids := s.unfinished(t)
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 2500 {
		t.Errorf("%d of 2500", len(ids))
	}
}

// From the request to the row: two processes, every delivery three times, and a handler that fails now and then.
func TestDeliveriesToTwoProcessesHaveOneEffectEach(t *testing.T) {
	url := pgtest.URL(t)
	const deliveries = 60
	var failing atomic.Int64
	receivers := make([]*webhook.Receiver, 2)
	for i := range receivers {
		s := newService(t, url)
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
	watch := newService(t, url)
	end := time.NewTimer(60 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for len(watch.unfinished(t)) > 0 {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("%d are unfinished", len(watch.unfinished(t)))
		}
	}
	if n, distinct := watch.count(t, "SELECT count(*) FROM effects"), watch.count(t, "SELECT count(DISTINCT delivery) FROM effects"); n != deliveries || distinct != n {
		t.Errorf("%d effects of %d deliveries, for %d", n, distinct, deliveries)
	}
}

// anybody opens what has a header Id: these tests are not about signatures.
type anybody struct{}

func (anybody) Validate() error { return nil }

func (anybody) Open(h http.Header, body []byte, _ time.Time) (webhook.Delivery, error) {
	print, err := fingerprint.Bytes(body)
	return webhook.Delivery{ID: h.Get("Id"), Fingerprint: print}, err
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	if _, err := sqlreceipts.New[pgx.Tx](nil, nil, sqlreceipts.Config{}); err == nil {
		t.Error("receipts without a database were accepted")
	}
	for _, prefix := range []string{"x; DROP TABLE", "Upper", "a.b.c", `"`, "1a", strings.Repeat("a", 41)} {
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
