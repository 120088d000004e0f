package outbox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
)

func TestEventsAreNumberedWithinTheirAggregateWithoutGaps(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		const writers, each = 6, 8
		var wait sync.WaitGroup
		for range writers {
			wait.Go(func() {
				for i := range each {
					if i%3 == 2 { // one of three is rolled back, and its number is given to the next
						tx, err := r.begin(context.Background())
						if err != nil {
							t.Error(err)
							return
						}
						_, _ = tx.write(context.Background(), event("a"))
						_ = tx.rollback(context.Background())
						continue
					}
					r.write(t, event("a"), event("b"))
				}
			})
		}
		wait.Wait()
		committed := int64(writers * (each - each/3))
		for _, id := range []string{"a", "b"} {
			got := [4]int64{
				r.Int(t, "SELECT count(*) FROM idem_outbox WHERE aggregateid = $1", id), r.Int(t, "SELECT count(DISTINCT version) FROM idem_outbox WHERE aggregateid = $1", id),
				r.Int(t, "SELECT min(version) FROM idem_outbox WHERE aggregateid = $1", id), r.Int(t, "SELECT max(version) FROM idem_outbox WHERE aggregateid = $1", id),
			}
			same(t, "events, different versions, first and last of "+id, got, [4]int64{committed, committed, 1, committed})
		}
	})
}

func TestARolledBackMutationTellsNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		tx, err := r.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.write(t.Context(), event("a"), event("b")); err != nil {
			t.Fatal(err)
		}
		if err := tx.rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		b := &broker{}
		once(t, r.runs(t, b.publisher("one"), quick()))
		same(t, "published", b.count(), 0)
	})
}

func TestWhatIsPublishedIsWhatWasWritten(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		given := uuid.MustParse("0e0f3b6c-46a0-4a3e-9f0c-3c1d35e3b0b1")
		written, err := r.tryWrite(t.Context(),
			outbox.Event{AggregateType: "order", AggregateID: "ä/17", Type: "OrderPaid", Payload: []byte{0, 1, 0xff}, Headers: map[string]string{"trace": "é \"quoted\"", "empty": ""}},
			outbox.Event{ID: given, AggregateType: "customer", AggregateID: "9", Type: "Moved"},
			outbox.Event{AggregateType: "order", AggregateID: "ä/17", Type: "OrderSent", Payload: []byte(`{"n": 9007199254740993}`)})
		if err != nil {
			t.Fatal(err)
		}
		same(t, "versions, in the order of what was given", []int64{written[0].Version, written[1].Version, written[2].Version}, []int64{1, 1, 2})
		if written[0].ID == uuid.Nil || written[1].ID != given || written[0].ID == written[2].ID {
			t.Errorf("ids %v, %v, %v", written[0].ID, written[1].ID, written[2].ID)
		}
		b := &broker{}
		once(t, r.runs(t, b.publisher("one"), quick()))
		byID := map[uuid.UUID]outbox.Envelope{}
		for _, e := range b.got {
			byID[e.ID] = e
		}
		for _, want := range written {
			got := byID[want.ID]
			if want.Headers == nil {
				want.Headers = map[string]string{}
			}
			if string(got.Payload) != string(want.Payload) || !got.WrittenAt.Equal(want.WrittenAt) {
				t.Errorf("event %v: payload %q at %v, want %q at %v", want.ID, got.Payload, got.WrittenAt, want.Payload, want.WrittenAt)
			}
			got.Payload, want.Payload, got.WrittenAt = nil, nil, want.WrittenAt
			same(t, "event", got, want)
		}
	})
}

func TestAnInvalidEventIsRefusedAndTheTransactionGoesOn(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		tx, err := r.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(*outbox.Event){
			"no aggregate type":    func(e *outbox.Event) { e.AggregateType = "" },
			"no aggregate id":      func(e *outbox.Event) { e.AggregateID = "" },
			"no type":              func(e *outbox.Event) { e.Type = "" },
			"too long":             func(e *outbox.Event) { e.AggregateID = strings.Repeat("x", 256) },
			"control character":    func(e *outbox.Event) { e.Type = "a\tb" },
			"not UTF-8":            func(e *outbox.Event) { e.AggregateID = "\xff" },
			"payload":              func(e *outbox.Event) { e.Payload = make([]byte, outbox.DefaultMaxPayloadBytes+1) },
			"header name":          func(e *outbox.Event) { e.Headers = map[string]string{"": "x"} },
			"header value":         func(e *outbox.Event) { e.Headers = map[string]string{"x": "a\x00b"} },
			"headers in all":       func(e *outbox.Event) { e.Headers = map[string]string{"x": strings.Repeat("y", outbox.MaxHeadersBytes)} },
			"the second of events": func(e *outbox.Event) { e.Type = "" },
		} {
			bad := event("a")
			change(&bad)
			if _, err := tx.write(t.Context(), event("a"), bad); !errors.Is(err, outbox.ErrInvalidEvent) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		written, err := tx.write(t.Context(), event("a"))
		if err != nil || written[0].Version != 1 {
			t.Fatalf("after the refusals: %v, %v", written, err)
		}
		if err := tx.commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, "events", r.Int(t, "SELECT count(*) FROM idem_outbox"), int64(1))
	})
}

// Two that write for the same aggregates in one call each cannot wait for each other, in whatever order they name them.
func TestOneCallTakesItsAggregatesInOneOrder(t *testing.T) {
	t.Parallel()
	everyPostgres(t, func(t *testing.T, r *rig) {
		holder, err := r.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.write(t.Context(), event("a")); err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() {
			_, err := r.tryWrite(context.Background(), event("b"), event("a"))
			waited <- err
		}()
		r.AwaitRunning(t, "idem:outbox-write", 1)
		if _, err := holder.write(t.Context(), event("b")); err != nil {
			t.Errorf("b was taken by the one that waits for a: %v", err)
		}
		if err := errors.Join(holder.commit(t.Context()), <-waited); err != nil {
			t.Error(err)
		}
	})
}

func TestASweepDeletesWhatIsPublishedAndOld(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		for range 20 {
			r.write(t, event("a"), event("b"))
		}
		b := &broker{before: func(_ context.Context, _ string, e outbox.Envelope) error {
			if e.AggregateID == "b" && e.Version > 5 {
				return errors.New("no")
			}
			return nil
		}}
		once(t, r.runs(t, b.publisher("one"), quick()))
		same(t, "deleted while young", deleted(t, r, outbox.SweepConfig{Age: week}), 0)
		r.Advance(t, 2*week)
		r.write(t, event("a"))
		r.Exec(t, "UPDATE idem_outbox SET created_at = created_at + INTERVAL '14 days' WHERE version = 21") // created_at goes by the real clock
		same(t, "deleted, in batches of three", deleted(t, r, outbox.SweepConfig{Age: week, BatchSize: 3}), 25)
		same(t, "left of a", r.Int(t, "SELECT count(*) FROM idem_outbox WHERE aggregateid = 'a'"), int64(1))
		same(t, "left of b, unpublished", r.Int(t, "SELECT count(*) FROM idem_outbox WHERE aggregateid = 'b'"), int64(15))
		same(t, "the next version of a", r.write(t, event("a"))[0].Version, int64(22))
	})
}

func TestIdleAggregatesAreForgottenWhereThatIsAskedFor(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("idle"), event("idle"), event("busy"), event("parked"))
		b := &broker{before: func(_ context.Context, _ string, e outbox.Envelope) error {
			if e.AggregateID == "parked" {
				return outbox.Poison(errors.New("no"))
			}
			return nil
		}}
		d := r.runs(t, b.publisher("one"), quick())
		once(t, d)
		r.Advance(t, 4*week)
		same(t, "deleted, the events first", deleted(t, r, outbox.SweepConfig{Age: week, IdleAggregates: 8 * week, BatchSize: 1}), 3)
		same(t, "aggregates while they are not idle for long enough", r.Int(t, "SELECT count(*) FROM idem_outbox_versions"), int64(3))
		r.write(t, event("busy"))
		once(t, d)
		r.Advance(t, 5*week)
		deleted(t, r, outbox.SweepConfig{Age: 52 * week, IdleAggregates: 8 * week, BatchSize: 1})
		same(t, "the next version of the idle one", r.write(t, event("idle"))[0].Version, int64(1))
		same(t, "of the busy one", r.write(t, event("busy"))[0].Version, int64(3))
		same(t, "of the parked one", r.write(t, event("parked"))[0].Version, int64(2))
		once(t, d)
		same(t, "published of the idle one", b.versions(order("idle")), []int64{1, 2, 1})
	})
}

// Its next event would have the version of one that is still in the table.
func TestAnAggregateWhoseEventsAreKeptIsNotForgotten(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b := &broker{}
		d := r.runs(t, b.publisher("one"), quick())
		r.write(t, event("a"))
		once(t, d)
		r.Advance(t, 9*week)
		same(t, "deleted", deleted(t, r, outbox.SweepConfig{Age: 52 * week, IdleAggregates: 8 * week}), 0)
		r.write(t, event("a"))
		once(t, d)
		same(t, "published", b.versions(order("a")), []int64{1, 2})
	})
}

// A sweep that meets a writer waits for it, and then leaves the aggregate alone.
func TestAnAggregateIsNotForgottenUnderItsWriter(t *testing.T) {
	t.Parallel()
	everyPostgres(t, func(t *testing.T, r *rig) {
		b := &broker{}
		d := r.runs(t, b.publisher("one"), quick())
		r.write(t, event("a"))
		once(t, d)
		r.Advance(t, 9*week)
		tx, err := r.begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.write(t.Context(), event("a")); err != nil {
			t.Fatal(err)
		}
		swept := make(chan int, 1)
		go func() { swept <- deleted(t, r, outbox.SweepConfig{Age: week, IdleAggregates: 8 * week}) }()
		r.AwaitRunning(t, "idem:outbox-forget", 1)
		if err := tx.commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		same(t, "deleted", <-swept, 1)
		same(t, "the next version", r.write(t, event("a"))[0].Version, int64(3))
		once(t, d)
		same(t, "published", b.versions(order("a")), []int64{1, 2, 3})
	})
}

// Where Debezium or a changefeed reads the table nobody else says what was published. A dispatcher that comes later begins with what is
// there.
func TestAnOutboxThatOthersReadIsSweptByAgeAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("b"))
		r.Advance(t, 2*week)
		same(t, "deleted", deleted(t, r, outbox.SweepConfig{Age: week, Unpublished: true, BatchSize: 2}), 3)
		stats, err := r.Stats(t.Context())
		if err != nil || stats.Pending != 0 {
			t.Errorf("%+v, %v", stats, err)
		}
		r.write(t, event("a"))
		b := &broker{}
		once(t, r.runs(t, b.publisher("one"), quick()))
		same(t, "published of a", b.versions(order("a")), []int64{3})
	})
}

func deleted(t *testing.T, r *rig, c outbox.SweepConfig) int {
	t.Helper()
	n, err := r.Sweep(t.Context(), c)
	if err != nil {
		t.Errorf("Sweep: %v", err)
	}
	return n
}

// Debezium's event router warns of every update of an outbox table and drops it, so there must be none.
func TestRowsOfTheOutboxAreNeverUpdated(t *testing.T) {
	t.Parallel()
	everyPostgres(t, func(t *testing.T, r *rig) {
		r.Exec(t, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''updated''; END'")
		r.Exec(t, "CREATE TRIGGER refuse BEFORE UPDATE ON idem_outbox FOR EACH ROW EXECUTE FUNCTION refuse()")
		r.write(t, event("a"), event("a"), event("b"))
		b := &broker{}
		same(t, "published", once(t, r.runs(t, b.publisher("one"), quick())).Published, 3)
		r.Advance(t, 2*week)
		same(t, "deleted", deleted(t, r, outbox.SweepConfig{Age: week}), 3)
		// The columns that the router looks for under its default configuration.
		same(t, "columns", r.Int(t, `SELECT count(*) FROM information_schema.columns WHERE table_name = 'idem_outbox' AND is_nullable = 'NO' AND
			(column_name = 'id' AND data_type = 'uuid' OR column_name IN ('aggregatetype', 'aggregateid', 'type') AND character_maximum_length = 255
			OR column_name = 'payload' AND data_type = 'bytea')`), int64(5))
	})
}
