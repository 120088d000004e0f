package watermillidem_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
	watermillidem "github.com/idemd/idemd/clientlib/sqlidem/watermill"
)

func TestMain(m *testing.M) { sqldbtest.Main(m) }

// rig is a service with an outbox and an inbox in one database.
type rig struct {
	*sqldbtest.Database
	outbox *outbox.Outbox[pgx.Tx]
	inbox  *inbox.Inbox[pgx.Tx]
}

func newRig(t *testing.T) *rig {
	t.Helper()
	d := sqldbtest.PostgreSQL(t)
	r := &rig{
		Database: d,
		outbox:   must[*outbox.Outbox[pgx.Tx]](t)(outbox.NewPgx(d.Pool, outbox.Config{})),
		inbox:    must[*inbox.Inbox[pgx.Tx]](t)(inbox.NewPgx(d.Pool, inbox.Config{})),
	}
	if err := errors.Join(r.outbox.Migrate(t.Context()), r.inbox.Migrate(t.Context())); err != nil {
		t.Fatal(err)
	}
	d.Exec(t, "CREATE TABLE effects (seq BIGSERIAL PRIMARY KEY, event TEXT NOT NULL)")
	return r
}

func (r *rig) write(t *testing.T, events ...outbox.Event) []outbox.Envelope {
	t.Helper()
	var written []outbox.Envelope
	err := pgx.BeginFunc(t.Context(), r.Pool, func(tx pgx.Tx) (err error) {
		written, err = r.outbox.Write(t.Context(), tx, events...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return written
}

func paid(order string) outbox.Event {
	return outbox.Event{AggregateType: "order", AggregateID: order, Type: "OrderPaid", Payload: []byte("paid"), Headers: map[string]string{"trace": "t1"}}
}

// dispatch publishes what is written, once, and lets a publisher stand in the way.
func (r *rig) dispatch(t *testing.T, p outbox.Publisher) outbox.Report {
	t.Helper()
	d := must[*outbox.Dispatcher](t)(outbox.NewDispatcher(r.outbox, p, outbox.DispatcherConfig{}))
	return must[outbox.Report](t)(d.RunOnce(t.Context()))
}

func toOrders(p message.Publisher) outbox.Publisher {
	return watermillidem.NewPublisher(p, watermillidem.PublisherConfig{Topic: func(outbox.Envelope) string { return topic }})
}

// effect is the handler: it remembers the event in its transaction.
func effect(msg *message.Message) error {
	tx, ok := watermillidem.TxFrom[pgx.Tx](msg.Context())
	if !ok {
		return errors.New("the handler has no transaction")
	}
	_, err := tx.Exec(msg.Context(), "INSERT INTO effects (event) VALUES ($1)", msg.UUID)
	return err
}

func (r *rig) effects(t *testing.T) int64 {
	t.Helper()
	return r.Int(t, "SELECT count(*) FROM effects")
}

// outcomes counts what became of messages.
type outcomes struct {
	mu    sync.Mutex
	count map[inbox.Outcome]int
}

func (o *outcomes) observe(_ *message.Message, outcome inbox.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count == nil {
		o.count = map[inbox.Outcome]int{}
	}
	o.count[outcome]++
}

func (o *outcomes) of(outcome inbox.Outcome) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count[outcome]
}

// route runs a router with the handler behind the inbox, until the test ends.
func (r *rig) route(t *testing.T, s message.Subscriber, handler message.NoPublishHandlerFunc) *outcomes {
	t.Helper()
	seen := &outcomes{}
	once := must[message.HandlerMiddleware](t)(watermillidem.Middleware(r.inbox, watermillidem.MiddlewareConfig{Subscriber: group, Observe: seen.observe}))
	router := must[*message.Router](t)(message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{}))
	router.AddConsumerHandler(group, topic, s, handler).AddMiddleware(once)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			t.Errorf("the router: %v", err)
		}
	})
	return seen
}

func TestAnEventWrittenWithAMutationHasItsEffectOnce(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, r *rig, b broker) {
		written := r.write(t, paid("17"), paid("18"), paid("17"))
		seen := make(chan *message.Message, 10)
		o := r.route(t, b.subscriber(t), func(msg *message.Message) error {
			seen <- msg.Copy()
			return effect(msg)
		})
		r.dispatch(t, toOrders(b.publisher))
		sqldbtest.Await(t, "all are handled", func() bool { return o.of(inbox.Processed) == 3 })
		if n := r.effects(t); n != 3 {
			t.Errorf("%d effects of 3 events", n)
		}
		byID := map[string]*message.Message{}
		for range 3 {
			msg := <-seen
			byID[msg.UUID] = msg
		}
		for _, e := range written {
			msg := byID[e.ID.String()]
			if msg == nil || string(msg.Payload) != "paid" || msg.Metadata.Get("trace") != "t1" || msg.Metadata.Get(watermillidem.MetadataAggregateID) != e.AggregateID ||
				msg.Metadata.Get(watermillidem.MetadataEventType) != "OrderPaid" || msg.Metadata.Get(watermillidem.MetadataAggregateType) != "order" {
				t.Errorf("event %v came as %+v", e.ID, msg)
			}
		}
	})
}

func TestARedeliveryHasNoSecondEffect(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, r *rig, b broker) {
		r.write(t, paid("17"))
		r.dispatch(t, toOrders(b.publisher))
		// A handler that fails is rolled back, and the redelivery runs again.
		var runs int
		o := r.route(t, b.subscriber(t), func(msg *message.Message) error {
			runs++
			if err := effect(msg); err != nil || runs > 2 {
				return err
			}
			return errors.New("not this time")
		})
		sqldbtest.Await(t, "it is handled", func() bool { return o.of(inbox.Processed) == 1 })
		if n := r.effects(t); n != 1 || runs != 3 {
			t.Errorf("%d effects after %d runs, want 1 after 3", n, runs)
		}
	})
}

// handleAndDie takes a message and commits its effect, and is gone before it acknowledges.
func (r *rig) handleAndDie(t *testing.T, s message.Subscriber) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	messages := must[<-chan *message.Message](t)(s.Subscribe(ctx, topic))
	msg := <-messages
	outcome, err := r.inbox.Handle(t.Context(), inbox.Message{Subscriber: group, ID: msg.UUID}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO effects (event) VALUES ($1)", msg.UUID)
		return err
	})
	if outcome != inbox.Processed || err != nil {
		t.Fatalf("%v, %v", outcome, err)
	}
	cancel()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAConsumerCommitsAndDiesBeforeItsAck(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, r *rig, b broker) {
		r.write(t, paid("17"))
		r.dispatch(t, toOrders(b.publisher))
		r.handleAndDie(t, b.subscriber(t))
		o := r.route(t, b.subscriber(t), effect)
		sqldbtest.Await(t, "the redelivery is acknowledged", func() bool { return o.of(inbox.Duplicate) >= 1 })
		if n := r.effects(t); n != 1 || o.of(inbox.Processed) != 0 {
			t.Errorf("%d effects, %d of the redelivery", n, o.of(inbox.Processed))
		}
	})
}

// loses is a dispatcher's publisher whose process ends when the broker has the message, and before that is recorded.
type loses struct {
	outbox.Publisher
	r *rig
	t *testing.T
}

func (l loses) Publish(ctx context.Context, events []outbox.Envelope) (int, error) {
	n, err := l.Publisher.Publish(ctx, events)
	// From here on nobody believes the first one.
	l.r.Exec(l.t, "UPDATE idem_outbox_deliveries SET fence = fence + 1, lease_until = '1970-01-01 00:00:00+00'")
	return n, err
}

func TestTheOutboxDispatcherPublishesTheSameEventTwice(t *testing.T) {
	onEveryBroker(t, func(t *testing.T, r *rig, b broker) {
		r.write(t, paid("17"))
		d := must[*outbox.Dispatcher](t)(outbox.NewDispatcher(r.outbox, loses{toOrders(b.publisher), r, t}, outbox.DispatcherConfig{}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		sqldbtest.Await(t, "it is published", func() bool { return r.Int(t, "SELECT coalesce(max(fence), 0) FROM idem_outbox_deliveries") >= 2 })
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if report := r.dispatch(t, toOrders(b.publisher)); report.Published != 1 {
			t.Fatalf("the second dispatcher: %+v", report)
		}
		o := r.route(t, b.subscriber(t), effect)
		sqldbtest.Await(t, "both messages are acknowledged", func() bool { return o.of(inbox.Processed) == 1 && o.of(inbox.Duplicate) >= 1 })
		if n := r.effects(t); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAHandlerThatReturnsMessagesIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	once := must[message.HandlerMiddleware](t)(watermillidem.Middleware(r.inbox, watermillidem.MiddlewareConfig{Subscriber: group}))
	handler := once(func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage("m2", nil)}, effect(msg)
	})
	produced, err := handler(message.NewMessage("m1", nil))
	if !errors.Is(err, watermillidem.ErrMessagesReturned) || len(produced) != 0 || r.effects(t) != 0 {
		t.Errorf("%v, %v, %d effects", produced, err, r.effects(t))
	}
}

func TestTheSameIDWithAnotherPayloadIsRefusedWherePayloadsAreCompared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	once := must[message.HandlerMiddleware](t)(watermillidem.Middleware(r.inbox, watermillidem.MiddlewareConfig{Subscriber: group, ComparePayloads: true}))
	handler := once(func(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) })
	for payload, want := range []error{nil, inbox.ErrOtherPayload} {
		msg := message.NewMessage("m1", []byte{byte(payload)})
		if _, err := handler(msg); !errors.Is(err, want) {
			t.Errorf("payload %d: %v, want %v", payload, err, want)
		}
		if _, ok := watermillidem.TxFrom[pgx.Tx](msg.Context()); ok {
			t.Error("the transaction is still in the message's context after its end")
		}
	}
}

// flaky is a broker's publisher that fails at the n-th message of a call, and keeps what came before.
type flaky struct {
	calls [][]string
	fail  int
}

func (f *flaky) Publish(topic string, messages ...*message.Message) error {
	call := []string{topic}
	for _, m := range messages {
		call = append(call, m.Metadata.Get(watermillidem.MetadataVersion))
	}
	f.calls = append(f.calls, call)
	if len(f.calls) == f.fail {
		return errors.New("no")
	}
	return nil
}

func (*flaky) Close() error { return nil }

func TestEventsGoOneByOneOrInRunsOfOneTopic(t *testing.T) {
	t.Parallel()
	events := []outbox.Envelope{{Version: 1}, {Version: 2}, {Version: 3}, {Version: 4}}
	for i, name := range []string{"a", "a", "b", "a"} {
		events[i].AggregateType = name
	}
	for _, c := range []struct {
		batches   bool
		fail      int
		published int
		calls     string
	}{
		{false, 0, 4, "outbox.event.a 1, outbox.event.a 2, outbox.event.b 3, outbox.event.a 4"},
		{false, 3, 2, "outbox.event.a 1, outbox.event.a 2, outbox.event.b 3"},
		{true, 0, 4, "outbox.event.a 1 2, outbox.event.b 3, outbox.event.a 4"},
		{true, 2, 2, "outbox.event.a 1 2, outbox.event.b 3"},
	} {
		f := &flaky{fail: c.fail}
		n, err := watermillidem.NewPublisher(f, watermillidem.PublisherConfig{Batches: c.batches}).Publish(t.Context(), events)
		var calls []string
		for _, call := range f.calls {
			calls = append(calls, strings.Join(call, " "))
		}
		if got := strings.Join(calls, ", "); n != c.published || (err != nil) != (c.fail > 0) || got != c.calls {
			t.Errorf("%+v: published %d, %v, in calls %s", c, n, err, got)
		}
	}
}

func TestAMiddlewareThatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := watermillidem.Middleware[pgx.Tx](nil, watermillidem.MiddlewareConfig{Subscriber: group}); err == nil {
		t.Error("no inbox was not refused")
	}
	if _, err := watermillidem.Middleware(&inbox.Inbox[pgx.Tx]{}, watermillidem.MiddlewareConfig{}); err == nil {
		t.Error("no subscriber was not refused")
	}
}
