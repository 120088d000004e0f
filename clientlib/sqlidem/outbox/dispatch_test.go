package outbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
)

const week = 7 * 24 * time.Hour

func everyPostgres(t *testing.T, test func(*testing.T, *rig)) {
	t.Helper()
	d := sqldbtest.PostgreSQL(t)
	r := pgxRig(t, d, outbox.Config{ClockSQL: d.ClockSQL})
	if err := r.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	test(t, r)
}

func TestSeveralDispatchersPublishEverythingInOrderWithinEachAggregate(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		const aggregates, each = 12, 7
		b := &broker{}
		var wait sync.WaitGroup
		writers, dispatchers := make(chan struct{}), 3
		for i := range aggregates {
			wait.Go(func() {
				for range each {
					r.write(t, event(string(rune('a'+i))))
				}
			})
		}
		go func() {
			wait.Wait()
			close(writers)
		}()
		var running sync.WaitGroup
		for range dispatchers {
			config := quick()
			config.BatchSize = 3 // several batches, and rounds, for each aggregate
			d := r.runs(t, b.publisher("some"), config)
			running.Go(func() {
				for done := false; !done; {
					select {
					case <-writers:
						done = true // one more pass, after the last event
					default:
					}
					once(t, d)
				}
			})
		}
		running.Wait()
		once(t, r.runs(t, b.publisher("last"), quick())) // what the others left to each other
		for i := range aggregates {
			// Nobody died or stalled, so there are not even repetitions.
			same(t, "published", b.versions(order(string(rune('a'+i)))), upTo(each))
		}
		stats, err := r.Stats(t.Context())
		same(t, "left", stats, outbox.Stats{})
		same(t, "error", err, error(nil))
	})
}

// stalled is a dispatcher in the middle of publishing event 1 of an aggregate, deaf to its context. It goes on when let is closed, and ran
// is closed when its pass is over. The context is the one that it publishes under.
func stalled(t *testing.T, r *rig, b *broker, config outbox.DispatcherConfig) (publishing context.Context, let, ran chan struct{}) {
	t.Helper()
	at, let, ran := make(chan context.Context), make(chan struct{}), make(chan struct{})
	b.before = func(ctx context.Context, by string, e outbox.Envelope) error {
		if by == "slow" && e.Version == 1 {
			at <- ctx
			<-let
		}
		return nil
	}
	d := r.runs(t, b.publisher("slow"), config)
	go func() {
		defer close(ran)
		once(t, d)
	}()
	select {
	case publishing = <-at:
	case <-ran:
		t.Fatal("the slow dispatcher had nothing to publish")
	}
	return publishing, let, ran
}

// Field case C82: two dispatchers, events 1 and 2 of one aggregate, the first one slow: 2 is never published before 1.
func TestC82_EventTwoIsNeverPublishedBeforeEventOneWhenTheFirstDispatcherIsSlow(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"))
		b := &broker{}
		_, let, ran := stalled(t, r, b, quick())

		fast := r.runs(t, b.publisher("fast"), quick())
		once(t, fast)
		same(t, "published while the slow one holds the aggregate", b.versions(order("a")), []int64(nil))

		r.write(t, event("b"))
		once(t, fast)
		same(t, "of another aggregate meanwhile", b.versions(order("b")), []int64{1})

		close(let)
		<-ran
		once(t, fast)
		same(t, "in the end", b.versions(order("a")), []int64{1, 2})
	})
}

// The same, and the slow one is so slow that its lease is over and another takes the aggregate.
func TestC82_ADispatcherThatLosesItsLeaseNeitherRecordsNorGoesOn(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("a"))
		b, lost := &broker{}, make(chan outbox.Aggregate, 1)
		config := quick()
		// So that it finds out soon. It cannot extend, since its lease is another's by then.
		config.Heartbeat = 5 * time.Millisecond
		config.Hooks.LeaseLost = func(a outbox.Aggregate) { lost <- a }
		publishing, let, ran := stalled(t, r, b, config)
		// Its heart beats, so that its lease is not over by itself: it is taken away, as an operator does by unparking.
		r.Exec(t, "UPDATE idem_outbox_deliveries SET fence = fence + 1, lease_until = '1970-01-01 00:00:00+00'")
		fast := r.runs(t, b.publisher("fast"), quick())
		once(t, fast)
		same(t, "published by the one that took over", b.versions(order("a")), []int64{1, 2, 3})

		<-publishing.Done() // it knows
		if errors.Is(context.Cause(publishing), context.DeadlineExceeded) {
			t.Error("it was not told that its lease was lost, and came to the end of its time")
		}
		close(let)
		<-ran
		select {
		case a := <-lost:
			same(t, "told of its loss", a, order("a"))
		default:
			t.Error("the slow one was believed")
		}
		same(t, "published, the late repetition of what it had in hand with it", b.versions(order("a")), []int64{1, 2, 3, 1})
		same(t, "recorded", r.Int(t, "SELECT published_version FROM idem_outbox_deliveries"), int64(3))
		r.write(t, event("a"))
		once(t, fast)
		same(t, "in the end", firsts(b.versions(order("a"))), []int64{1, 2, 3, 4})
	})
}

// The lease of a dispatcher that is gone is judged by the database's clock.
func TestAnAggregateIsTakenOverWhenItsLeaseIsOverAndNotBefore(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		b := &broker{}
		once(t, r.runs(t, b.publisher("gone"), quick()))
		r.write(t, event("a"))
		r.Exec(t, "UPDATE idem_outbox_deliveries SET owner = 'gone', fence = fence + 1, lease_until = "+r.ClockSQL+" + INTERVAL '30 seconds'")
		next := r.runs(t, b.publisher("next"), quick())
		r.Advance(t, 29*time.Second)
		once(t, next)
		same(t, "before", b.versions(order("a")), []int64{1})
		r.Advance(t, 2*time.Second) // the second more is for clocks that differ, on CockroachDB
		once(t, next)
		same(t, "after", b.versions(order("a")), []int64{1, 2})
	})
}

// A dispatcher that wakes up after its lease, and after another has come and gone, is not believed.
func TestAClaimPutsAnEndToTheOneBeforeIt(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"))
		b, lost := &broker{}, make(chan outbox.Aggregate, 1)
		config := quick()
		config.BatchSize = 1
		config.Hooks.Published = func(outbox.Aggregate, int, time.Duration) { t.Error("what is not recorded is told to be published") }
		config.Hooks.LeaseLost = func(a outbox.Aggregate) { lost <- a }
		_, let, ran := stalled(t, r, b, config)
		r.Advance(t, 31*time.Second)
		once(t, r.runs(t, b.publisher("fast"), quick()))
		close(let)
		<-ran
		select {
		case a := <-lost:
			same(t, "told of its loss", a, order("a"))
		default:
			t.Error("the slow one was believed")
		}
		same(t, "published", b.versions(order("a")), []int64{1, 2, 1})
	})
}

// What it says is true and comes too late: whoever took over goes by what is recorded, so nothing that is not recorded may go.
func TestWhatIsSaidUnderALostClaimDeletesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"))
		b, config := &broker{}, quick()
		config.DeletePublished = true
		_, let, ran := stalled(t, r, b, config)
		r.Advance(t, 31*time.Second)
		down := scripted(func([]outbox.Envelope) (int, error) { return 0, errors.New("not now") })
		same(t, "the one that took over", once(t, r.runs(t, down, config)), outbox.Report{Failed: 1})
		close(let)
		<-ran
		same(t, "events that are left", r.Int(t, "SELECT count(*) FROM idem_outbox"), int64(2))
		r.Advance(t, time.Minute)
		same(t, "published by the next", once(t, r.runs(t, b.publisher("next"), config)), outbox.Report{Published: 2})
	})
}

// One that sleeps until its aggregate was forgotten, and has begun again at version 1, is not believed either: it speaks of other events.
func TestAClaimFromBeforeAnAggregateWasForgottenIsNotBelieved(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		b := &broker{}
		_, let, ran := stalled(t, r, b, quick())
		r.Advance(t, 31*time.Second)
		once(t, r.runs(t, b.publisher("fast"), quick()))
		r.Advance(t, 9*week)
		same(t, "deleted", deleted(t, r, outbox.SweepConfig{Age: week, IdleAggregates: 8 * week}), 1)
		same(t, "the next version", r.write(t, event("a"))[0].Version, int64(1))
		down := scripted(func([]outbox.Envelope) (int, error) { return 0, errors.New("not now") })
		same(t, "the next claim comes to nothing", once(t, r.runs(t, down, quick())), outbox.Report{Failed: 1})
		close(let)
		<-ran
		r.Advance(t, time.Minute)
		same(t, "published of what was written since", once(t, r.runs(t, b.publisher("next"), quick())), outbox.Report{Published: 1})
	})
}

// Field case C82: a poison event parks its aggregate only.
func TestC82_APoisonEventParksItsAggregateOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b, poison := &broker{}, true
		b.before = func(_ context.Context, _ string, e outbox.Envelope) error {
			if poison && e.AggregateID == "sick" && e.Version == 2 {
				return errors.New("unreadable")
			}
			return nil
		}
		for range 3 {
			r.write(t, event("sick"), event("well"))
		}
		config, parked := quick(), 0
		config.Hooks.Parked = func(a outbox.Aggregate, version int64, _ error) {
			parked++
			same(t, "the parked event", []any{a, version}, []any{order("sick"), int64(2)})
		}
		d := r.runs(t, b.publisher("one"), config)
		same(t, "the first pass, which tries the sick one once", once(t, d), outbox.Report{Published: 4, Failed: 1})
		same(t, "published of the sick one", b.versions(order("sick")), []int64{1})
		same(t, "published of the well one", b.versions(order("well")), []int64{1, 2, 3})
		same(t, "tried again before its pause is over", once(t, d), outbox.Report{})
		for range 2 {
			r.Advance(t, time.Minute)
			once(t, d)
		}
		list, err := r.Parked(t.Context(), 10)
		if err != nil || len(list) != 1 || parked != 1 {
			t.Fatalf("parked: %+v, %v, %d times told", list, err, parked)
		}
		list[0].ParkedAt = time.Time{}
		same(t, "visible", list[0], outbox.Parked{Aggregate: order("sick"), Version: 2, Attempts: 3, LastError: "unreadable"})
		r.Advance(t, time.Hour)
		r.write(t, event("sick"), event("well"))
		same(t, "later", once(t, d), outbox.Report{Published: 1})
		stats, err := r.Stats(t.Context())
		if err != nil || stats.Pending != 3 || stats.Parked != 1 || stats.OldestPending < time.Hour/2 {
			t.Errorf("stats: %+v, %v", stats, err)
		}

		if err := r.Unpark(t.Context(), order("sick")); err != nil {
			t.Fatal(err)
		}
		same(t, "failing once more, with its attempts forgotten", once(t, d), outbox.Report{Failed: 1})
		r.Advance(t, time.Minute)
		poison = false
		if err := r.Unpark(t.Context(), order("sick")); !errors.Is(err, outbox.ErrNotParked) {
			t.Errorf("unparked twice: %v", err)
		}
		once(t, d)
		same(t, "after it was cured", b.versions(order("sick")), []int64{1, 2, 3, 4})
	})
}

func TestPausesDoubleUpToTheLongest(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"))
		config := quick()
		config.MaxAttempts, config.FirstPause, config.LongestPause = 10, time.Second, 5*time.Second
		d := r.runs(t, scripted(func([]outbox.Envelope) (int, error) { return 0, errors.New("not now") }), config)
		for n, want := range []int64{1000, 2000, 4000, 5000, 5000} {
			once(t, d)
			got := r.Int(t, "SELECT (extract(epoch FROM next_at - "+r.ClockSQL+") * 1000)::INT8 FROM idem_outbox_deliveries")
			if got < want/2 || got > want {
				t.Errorf("after failure %d it pauses for %d ms, want %d to %d", n+1, got, want/2, want)
			}
			r.Advance(t, time.Minute)
		}
	})
}

// A page of the search for work is 500 events long.
func TestTheBacklogOfAParkedAggregateHidesNoOther(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		backlog := make([]outbox.Event, 501)
		for i := range backlog {
			backlog[i] = event("a")
		}
		if _, err := r.tryWrite(t.Context(), backlog...); err != nil {
			t.Fatal(err)
		}
		b := &broker{before: func(_ context.Context, _ string, e outbox.Envelope) error {
			if e.AggregateID == "a" {
				return outbox.Poison(errors.New("unreadable"))
			}
			return nil
		}}
		r.write(t, event("b"))
		d := r.runs(t, b.publisher("one"), quick())
		same(t, "the first pass", once(t, d), outbox.Report{Published: 1, Failed: 1, Parked: 1})
		r.write(t, event("b"))
		same(t, "and the next", once(t, d), outbox.Report{Published: 1})
	})
}

func TestAnOperatorSkipsAnEventOnce(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b := &broker{before: func(_ context.Context, _ string, e outbox.Envelope) error {
			if e.Version <= 2 {
				return outbox.Poison(errors.New("unreadable"))
			}
			return nil
		}}
		r.write(t, event("a"), event("a"), event("a"))
		d := r.runs(t, b.publisher("one"), quick())
		same(t, "parked at the first attempt, since the publisher is sure", once(t, d), outbox.Report{Failed: 1, Parked: 1})
		if err := r.Skip(t.Context(), order("a"), 2); !errors.Is(err, outbox.ErrNotParked) {
			t.Errorf("skipping an event that it is not parked at: %v", err)
		}
		if err := r.Skip(t.Context(), order("a"), 1); err != nil {
			t.Fatal(err)
		}
		if err := r.Skip(t.Context(), order("a"), 1); !errors.Is(err, outbox.ErrNotParked) {
			t.Errorf("skipping it again: %v", err)
		}
		same(t, "parked at the next one", once(t, d), outbox.Report{Failed: 1, Parked: 1})
		if err := r.Skip(t.Context(), order("a"), 2); err != nil {
			t.Fatal(err)
		}
		once(t, d)
		same(t, "published", b.versions(order("a")), []int64{3})
	})
}

func TestAnOutageOfTheBrokerParksNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b, away := &broker{}, true
		b.before = func(context.Context, string, outbox.Envelope) error {
			if away {
				return errors.New("connection refused")
			}
			return nil
		}
		for _, id := range []string{"a", "b", "c", "d"} {
			r.write(t, event(id))
		}
		var told []bool
		config := quick()
		config.Concurrency = 1
		config.Hooks.Outage = func(away bool) { told = append(told, away) }
		d := r.runs(t, b.publisher("one"), config)
		for range 4 * config.MaxAttempts {
			once(t, d)
			r.Advance(t, time.Hour)
		}
		same(t, "attempts that count", r.Int(t, "SELECT sum(attempts)::INT8 FROM idem_outbox_deliveries"), int64(2))
		same(t, "parked", r.Int(t, "SELECT count(*) FROM idem_outbox_deliveries WHERE parked_at IS NOT NULL"), int64(0))
		away = false
		same(t, "published when it is back", once(t, d).Published, 4)
		same(t, "told", told, []bool{true, false})
	})
}

// Others are published in between, so the broker is there, however many events are poison.
func TestSeveralPoisonEventsAreNoOutage(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b := &broker{before: func(_ context.Context, _ string, e outbox.Envelope) error {
			if e.AggregateID[1:] == "sick" {
				return errors.New("unreadable")
			}
			return nil
		}}
		r.write(t, event("1sick"), event("3sick"), event("5sick"), event("7sick"))
		config := quick()
		config.Concurrency = 1 // one after the other, in this order
		d := r.runs(t, b.publisher("one"), config)
		parked := 0
		for range config.MaxAttempts {
			r.write(t, event("2well"), event("4well"), event("6well"))
			parked += once(t, d).Parked
			r.Advance(t, time.Hour)
		}
		same(t, "parked", parked, 4)
	})
}

func TestWhatThePublisherCallsAnOutageNeverCounts(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		b, away := &broker{}, true
		b.before = func(context.Context, string, outbox.Envelope) error {
			if away {
				return outbox.Unavailable(errors.New("no quota left"))
			}
			return nil
		}
		r.write(t, event("a"))
		d := r.runs(t, b.publisher("one"), quick())
		for range 10 {
			same(t, "failed", once(t, d), outbox.Report{Failed: 1})
			r.Advance(t, time.Minute)
		}
		away = false
		same(t, "published when it is back", once(t, d), outbox.Report{Published: 1})
	})
}

func TestAMissingEventParksItsAggregateLoudly(t *testing.T) {
	everywhere(t, func(t *testing.T, r *rig) {
		r.write(t, event("a"), event("a"), event("a"), event("b"))
		r.Exec(t, "DELETE FROM idem_outbox WHERE aggregateid = 'a' AND version = 2 OR aggregateid = 'b'")
		b := &broker{}
		d := r.runs(t, b.publisher("one"), quick())
		same(t, "report", once(t, d), outbox.Report{Published: 1, Parked: 2})
		list, err := r.Parked(t.Context(), 10)
		if err != nil || len(list) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, p := range list {
			if err := r.Skip(t.Context(), p.Aggregate, p.Version); err != nil {
				t.Error(err)
			}
		}
		once(t, d)
		same(t, "published once they are given up", b.versions(order("a")), []int64{1, 3})
	})
}
