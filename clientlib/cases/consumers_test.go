package cases

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
	"github.com/idemd/idemd/clientlib/webhook"
)

// consumer books messages of a queue. What it has not acknowledged comes again.
type consumer struct {
	t    *testing.T
	pool *pgxpool.Pool
	box  *inbox.Inbox[pgx.Tx]
}

func newConsumer(t *testing.T) *consumer {
	pool := newPool(t)
	box, err := inbox.NewPgx(pool, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(t, pool, "CREATE TABLE booked (message TEXT NOT NULL)")
	return &consumer{t, pool, box}
}

// consume handles one delivery of a message. Its error, and its panic, mean that nothing is acknowledged.
func (c *consumer) consume(ctx context.Context, id, payload string) (inbox.Outcome, error) {
	message := inbox.Message{Subscriber: "billing", ID: id, Fingerprint: bytesOf(payload)}
	return c.box.Handle(ctx, message, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO booked VALUES ($1)", id)
		return err
	})
}

func (c *consumer) wantBooked(id string, n int) {
	c.t.Helper()
	if got := query(c.t, c.pool, "SELECT count(*) FROM booked WHERE message = $1", id); got != n {
		c.t.Errorf("%s was booked %d times, want %d", id, got, n)
	}
}

func (c *consumer) want(wanted inbox.Outcome, got inbox.Outcome, err error) {
	c.t.Helper()
	if err != nil || got != wanted {
		c.t.Errorf("%v, %v; want %v", got, err, wanted)
	}
}

func TestAConsumerCommitsAndDiesBeforeItsAck(t *testing.T) {
	c := newConsumer(t)
	outcome, err := c.consume(t.Context(), "m1", "paid") // and it dies here
	c.want(inbox.Processed, outcome, err)
	outcome, err = c.consume(t.Context(), "m1", "paid")
	c.want(inbox.Duplicate, outcome, err)
	c.wantBooked("m1", 1)
}

func TestTwoIdenticalRequestsRaceAtAConsumer(t *testing.T) {
	c := newConsumer(t)
	var all sync.WaitGroup
	outcomes := make([]inbox.Outcome, 8)
	for i := range outcomes {
		all.Go(func() {
			var err error
			if outcomes[i], err = c.consume(t.Context(), "m1", "paid"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	processed := 0
	for _, outcome := range outcomes {
		if outcome == inbox.Processed {
			processed++
		}
	}
	if processed != 1 {
		t.Errorf("%d consumers processed it", processed)
	}
	c.wantBooked("m1", 1)
}

func TestTheSameKeyWithAnotherPayloadAtAConsumer(t *testing.T) {
	c := newConsumer(t)
	outcome, err := c.consume(t.Context(), "m1", "five")
	c.want(inbox.Processed, outcome, err)
	if _, err := c.consume(t.Context(), "m1", "six"); !errors.Is(err, inbox.ErrOtherPayload) {
		t.Errorf("another message under the same id: %v", err)
	}
	c.wantBooked("m1", 1)
}

// The inbox has no tombstones: it remembers an id, or does not. So what matters is that a sweep leaves alone what can still come.
func TestARecordExpiresAndAGenuineLateRetryArrivesAtAConsumer(t *testing.T) {
	c := newConsumer(t)
	outcome, err := c.consume(t.Context(), "m1", "paid")
	c.want(inbox.Processed, outcome, err)
	run(t, c.pool, "UPDATE idem_inbox SET received_at = received_at - INTERVAL '6 days'")
	if n, err := c.box.Sweep(t.Context(), inbox.SweepConfig{Age: 7 * 24 * time.Hour}); n != 0 || err != nil {
		t.Errorf("the sweep forgot %d: %v", n, err)
	}
	outcome, err = c.consume(t.Context(), "m1", "paid")
	c.want(inbox.Duplicate, outcome, err)
	c.wantBooked("m1", 1)
}

// The dispatcher publishes, and does not come to know that it did: it publishes again, under the same id.
func TestTheOutboxDispatcherPublishesTheSameEventTwice(t *testing.T) {
	c := newConsumer(t)
	box, err := outbox.NewPgx(c.pool, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
		_, err := box.Write(t.Context(), tx, outbox.Event{AggregateType: "order", AggregateID: "17", Type: "OrderPaid", Payload: []byte("paid")})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var published []string
	dispatcher, err := outbox.NewDispatcher(box, outbox.OneByOne(func(ctx context.Context, e outbox.Envelope) error {
		published = append(published, e.ID.String())
		if _, err := c.consume(ctx, e.ID.String(), string(e.Payload)); err != nil {
			t.Error(err)
		}
		if len(published) == 1 {
			return errors.New("the broker has it, and its word for that was lost")
		}
		return nil
	}), outbox.DispatcherConfig{FirstPause: time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	for len(published) < 2 && t.Context().Err() == nil {
		if _, err := dispatcher.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(published) != 2 || published[0] != published[1] {
		t.Fatalf("published %v: the same event twice, under one id, is what this is about", published)
	}
	c.wantBooked(published[0], 1)
}

const secret = "It's a Secret to Everybody"

// hook is a receiver of GitHub's deliveries.
type hook struct {
	t        *testing.T
	ledger   *idemtest.Ledger
	receiver *webhook.Receiver
	booked   chan string // bodies, as the handler gets them
	worked   chan webhook.Standing
}

func newHook(t *testing.T) *hook {
	h := &hook{t: t, ledger: idemtest.New(t), booked: make(chan string, 100), worked: make(chan webhook.Standing, 100)}
	receipts, err := webhook.NewLedger(webhook.LedgerConfig{
		Ledger: h.ledger.Client(clientlib.Config{}), Entries: h.ledger.Admin(), Abandoned: clientlib.Refuse(),
	})
	if err != nil {
		t.Fatal(err)
	}
	h.receiver, err = webhook.New(webhook.Config{
		Name: "github", Sender: webhook.GitHub{Secrets: []string{secret}}, Receipts: receipts, Logger: silent,
		Handler: func(_ context.Context, d webhook.Delivery) error {
			h.booked <- string(d.Body)
			return nil
		},
		Hooks: webhook.Hooks{Worked: func(_ string, _ int, standing webhook.Standing, _ error) { h.worked <- standing }},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- h.receiver.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *hook) deliver(id, body string) (status int, standing string) {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	r := httptest.NewRequestWithContext(h.t.Context(), http.MethodPost, "/hooks", strings.NewReader(body))
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	r.Header.Set("X-GitHub-Delivery", id)
	r.Header.Set("X-GitHub-Event", "push")
	w := httptest.NewRecorder()
	h.receiver.ServeHTTP(w, r)
	return w.Code, w.Header().Get(webhook.StandingHeader)
}

func (h *hook) wantDone(status int, standing string) {
	h.t.Helper()
	if status != http.StatusOK || standing != "done" {
		h.t.Errorf("the redelivery was told %d %q", status, standing)
	}
	if n := len(h.booked); n != 1 {
		h.t.Errorf("the delivery was handled %d times", n)
	}
}

func (h *hook) deliverAndWork(id, body string) {
	h.t.Helper()
	if status, standing := h.deliver(id, body); status != http.StatusAccepted || standing != "fresh" {
		h.t.Fatalf("%d %q", status, standing)
	}
	select {
	case <-h.worked:
	case <-time.After(patience):
		h.t.Fatal("it was not worked off")
	}
}

func TestAWebhookReplayedWithTheSameDeliveryId(t *testing.T) {
	h := newHook(t)
	h.deliverAndWork("72d3162e", `{"ref":"main"}`)
	for range 3 {
		h.wantDone(h.deliver("72d3162e", `{"ref":"main"}`))
	}
}

func TestTheSameKeyWithAnotherPayloadAtAWebhook(t *testing.T) {
	h := newHook(t)
	h.deliverAndWork("72d3162e", `{"ref":"main"}`)
	if status, _ := h.deliver("72d3162e", `{"ref":"other"}`); status != http.StatusConflict {
		t.Errorf("another body under the same id: %d", status)
	}
	h.wantDone(h.deliver("72d3162e", `{"ref":"main"}`))
}

func TestARecordExpiresAndAGenuineLateRetryArrivesAtAWebhook(t *testing.T) {
	h := newHook(t)
	h.deliverAndWork("72d3162e", `{"ref":"main"}`)
	h.ledger.Advance(retention)
	h.wantDone(h.deliver("72d3162e", `{"ref":"main"}`))
}
