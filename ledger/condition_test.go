package ledger_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// TestASweepChangesNothingThatAnybodyIsTold: an entry past its time behaves as such whether or not a sweep has been by, in lookups, lists and
// counts alike.
func TestASweepChangesNothingThatAnybodyIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(ledger.Policy{Tenant: "*", Operation: "charge", Lease: 10 * time.Second, Horizons: ledger.Horizons{ClientRetry: time.Hour}})
	b.complete(b.begin("done", "a1"), "x")
	b.fail(b.begin("gave up", "b1"), ledger.Unknown)
	b.begin("left", "c1")
	released := b.begin("released", "d1")
	b.resolve(released.ref, ledger.ResolveRelease, 1, true)

	for _, later := range []time.Duration{time.Hour + 10*time.Second, time.Hour - 10*time.Second, time.Minute} {
		b.clock.Advance(later)
		before := b.everythingTold()
		b.sweep()
		after := b.everythingTold()
		if !reflect.DeepEqual(before, after) {
			t.Errorf("before the sweep\n%+v\nafter\n%+v", before, after)
		}
	}
}

// told is what lookups, a list and the counts say about one ledger.
type told struct {
	lookups map[string]string
	list    map[string]ledger.Condition
	counts  map[ledger.Condition]int64
}

func (b *bench) everythingTold() told {
	b.t.Helper()
	out := told{map[string]string{}, map[string]ledger.Condition{}, map[ledger.Condition]int64{}}
	list, err := b.ledger.List(b.t.Context(), ledger.ListRequest{})
	b.must(err)
	for _, v := range list.Entries {
		out.list[v.Entry.Ref.Key] = v.Condition
	}
	stats, err := b.ledger.Stats(b.t.Context(), ledger.StatsRequest{})
	b.must(err)
	for _, s := range stats.By {
		for c, n := range s.Counts {
			out.counts[c] += n
		}
	}
	for _, key := range []string{"done", "gave up", "left", "released"} {
		v, err := b.ledger.Lookup(b.t.Context(), ledger.Caller{}, b.ref(key))
		if err != nil {
			out.lookups[key] = string(reasonOf(err))
			continue
		}
		out.lookups[key] = lookupOutcome(v).String()
	}
	return out
}
