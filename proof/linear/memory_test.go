package linear

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/storetest"
)

// storms draws faults for every call to a store: replies are lost before and after the write, writes land late, others get in between, and the
// store is away.
func storms(seed uint64) storetest.Plan {
	return storetest.Seeded(seed, storetest.Odds{Refuse: 0.02, Contend: 0.03, LoseReply: 0.06, LoseRequest: 0.04, Late: 0.05})
}

// faultyDaemons are daemons on one store, each with faults of its own.
func faultyDaemons(t testing.TB, store ledger.Store, seed uint64, n int) (daemons []daemon, faulty []*storetest.Faulty) {
	for i := range n {
		f := storetest.NewFaulty(store, nil)
		daemons = append(daemons, open(t, f))
		f.Plan(storms(seed + uint64(i)<<32))
		faulty = append(faulty, f)
	}
	return daemons, faulty
}

// TestTheReferenceStoreUnderFaults: the ledger's own logic, where a store can do nothing wrong.
func TestTheReferenceStoreUnderFaults(t *testing.T) {
	t.Parallel()
	seeds(t, 200, func(seed uint64) {
		clock := storetest.NewRunningClock()
		daemons, faulty := faultyDaemons(t, storetest.NewModel(clock, 0), seed, 3)
		play{
			daemons: daemons, keys: 3, clients: 6, steps: 22, limit: fewRuns, deadlines: true, operators: true,
			lapse: func(context.Context) error { clock.Advance(lapseBy); return nil },
		}.run(t, seed)
		countFaults(faulty)
	})
}

// TestEveryCallIsAnsweredWhereNothingGoesWrong: contention alone never makes the ledger give a call up, nor call a store away that is there.
func TestEveryCallIsAnsweredWhereNothingGoesWrong(t *testing.T) {
	t.Parallel()
	seeds(t, 120, func(seed uint64) {
		clock := storetest.NewRunningClock()
		store := storetest.NewModel(clock, 0)
		p := play{
			daemons: []daemon{open(t, store), open(t, store)}, keys: 3, clients: 6, steps: 22, limit: fewRuns, operators: true,
			lapse: func(context.Context) error { clock.Advance(lapseBy); return nil },
		}
		h := p.record(t, seed)
		h.check(t, p.limit, seed)
		if h.unanswered > 0 {
			t.Errorf("seed %d: %d calls were not answered", seed, h.unanswered)
		}
	})
}

// TestTheEmbeddedStoreUnderFaults: one daemon, as it has to be.
func TestTheEmbeddedStoreUnderFaults(t *testing.T) {
	t.Parallel()
	seeds(t, 6, func(seed uint64) {
		clock := storetest.NewRunningClock()
		store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Dir: t.TempDir(), Clock: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}()
		daemons, faulty := faultyDaemons(t, store, seed, 1)
		play{
			daemons: daemons, keys: 5, clients: 10, steps: 22, limit: fewRuns, deadlines: true, operators: true,
			lapse: func(context.Context) error { clock.Advance(lapseBy); return nil },
		}.run(t, seed)
		countFaults(faulty)
	})
}

// TestDaemonsWhoseStoreComesAndGoes: after each absence holders come back first, and nobody is told what is not so.
func TestDaemonsWhoseStoreComesAndGoes(t *testing.T) {
	t.Parallel()
	seeds(t, 20, func(seed uint64) {
		clock := storetest.NewRunningClock()
		daemons, faulty := faultyDaemons(t, storetest.NewModel(clock, 0), seed, 2)
		play{
			daemons: daemons, keys: 3, clients: 6, steps: 22, limit: fewRuns, operators: true,
			lapse: func(context.Context) error { clock.Advance(lapseBy); return nil },
			weather: func(ctx context.Context, rng *rand.Rand) {
				for ctx.Err() == nil {
					f := faulty[rng.IntN(len(faulty))]
					f.Down()
					pass(ctx, time.Duration(rng.IntN(300))*time.Microsecond)
					f.Up()
					pass(ctx, time.Duration(rng.IntN(900))*time.Microsecond)
				}
			},
		}.run(t, seed)
		countFaults(faulty)
	})
}

// pass lets time pass.
func pass(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// injected counts the faults of all tests of the package by kind.
var injected struct {
	mu sync.Mutex
	by map[string]int
}

func count(kind string, n int) {
	injected.mu.Lock()
	defer injected.mu.Unlock()
	if injected.by == nil {
		injected.by = map[string]int{}
	}
	injected.by[kind] += n
}

func countFaults(faulty []*storetest.Faulty) {
	for _, f := range faulty {
		for kind, n := range f.Counts() {
			count(kind.String(), n)
		}
	}
}
