package outbox_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/idemd/idemd/clientlib/internal/sqldbtest"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
)

// BenchmarkDispatch publishes b.N events, of one aggregate, of a hundred, or each of its own, to a publisher that costs nothing: what is measured is what the
// outbox costs.
func BenchmarkDispatch(b *testing.B) {
	for _, aggregates := range []int{1, 100, 100_000} {
		b.Run("aggregates="+strconv.Itoa(aggregates), func(b *testing.B) {
			d := sqldbtest.PostgreSQL(b)
			r := pgxRig(b, d, outbox.Config{})
			if err := r.Migrate(context.Background()); err != nil {
				b.Fatal(err)
			}
			for n := 0; n < b.N; n += 500 {
				var events []outbox.Event
				for i := n; i < min(b.N, n+500); i++ {
					events = append(events, event(strconv.Itoa(i%aggregates)))
				}
				if _, err := r.tryWrite(context.Background(), events...); err != nil {
					b.Fatal(err)
				}
			}
			dispatcher := r.runs(b, scripted(func(events []outbox.Envelope) (int, error) { return len(events), nil }), outbox.DispatcherConfig{})
			b.ResetTimer()
			if report := once(b, dispatcher); report.Published != b.N {
				b.Fatalf("%+v of %d", report, b.N)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkWrite writes events in transactions of their own, each of one event and nothing else.
func BenchmarkWrite(b *testing.B) {
	for _, aggregates := range []int{1, 100_000} {
		b.Run("aggregates="+strconv.Itoa(aggregates), func(b *testing.B) {
			d := sqldbtest.PostgreSQL(b)
			r := pgxRig(b, d, outbox.Config{})
			if err := r.Migrate(context.Background()); err != nil {
				b.Fatal(err)
			}
			next := make(chan int)
			go func() {
				defer close(next)
				for n := range b.N {
					next <- n
				}
			}()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r.write(b, event(strconv.Itoa(<-next%aggregates)))
				}
			})
		})
	}
}
