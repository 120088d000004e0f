package ledger_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// TestOfManyBeginsOneIsGranted: G1, with several daemons on one store, on a fresh key and on one that is abandoned.
func TestOfManyBeginsOneIsGranted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.begin("abandoned", "a")
	b.clock.Advance(10 * time.Second)
	daemons := []*bench{b}
	for range 3 {
		d := benchOn(t, b.clock, b.model)
		daemons = append(daemons, d)
	}
	b.clock.Advance(10 * time.Second) // past the grace of the new ones
	for _, key := range []string{"fresh", "abandoned"} {
		var mu sync.Mutex
		var grants []*ledger.Grant
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				r, err := daemons[i%len(daemons)].tryBegin(key, fmt.Sprint("b", i))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case r.Granted != nil:
					grants = append(grants, r.Granted)
				case r.InProgress == nil:
					t.Errorf("told %+v", r)
				}
			})
		}
		wg.Wait()
		if len(grants) != 1 {
			t.Errorf("%s: %d were granted", key, len(grants))
		}
	}
}

// TestConcurrentCallersOnAFaultyStore: every caller repeats what it was not answered, as G3 says it may. However the store misbehaves, each key's
// effect happens once, and everybody is told the same answer.
func TestConcurrentCallersOnAFaultyStore(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	odds := storetest.Odds{Refuse: 0.05, Contend: 0.05, LoseReply: 0.1, LoseRequest: 0.1, Late: 0.1}
	b.faulty.Plan(storetest.OnWrites(storetest.Seeded(1, odds)))
	const keys, callers = 20, 8
	var mu sync.Mutex
	effects, answers := map[string]int{}, map[string]string{}
	var wg sync.WaitGroup
	for k := range keys {
		for c := range callers {
			wg.Go(func() {
				key, name := fmt.Sprint("k", k), fmt.Sprintf("k%d by %d", k, c)
				answer := b.persist(key, name, func() {
					mu.Lock()
					defer mu.Unlock()
					effects[key]++
				})
				mu.Lock()
				defer mu.Unlock()
				if before, ok := answers[key]; ok && before != answer {
					t.Errorf("%s: one was told %q, another %q", key, before, answer)
				}
				answers[key] = answer
			})
		}
	}
	wg.Wait()
	for k := range keys {
		if n := effects[fmt.Sprint("k", k)]; n != 1 {
			t.Errorf("the effect of k%d happened %d times", k, n)
		}
	}
	if len(b.faulty.Counts()) < 4 {
		t.Errorf("hardly anything went wrong: %v", b.faulty.Counts())
	}
}

// persist begins and completes, repeating each call until it is answered, and returns the answer.
func (b *bench) persist(key, attempt string, effect func()) string {
	b.t.Helper()
	for range 10_000 {
		r, err := b.tryBegin(key, attempt)
		switch {
		case reasonOf(err) == ledger.ReasonStoreUnavailable || err == nil && r.InProgress != nil:
			runtime.Gosched() // on a busy machine whoever holds it would else not get a turn for as many tries as there are
			continue
		case err != nil:
			b.t.Error(err)
			return ""
		case r.Completed != nil:
			return string(r.Completed.Response.Body)
		case r.Granted == nil:
			b.t.Errorf("%s is told %+v", attempt, r)
			return ""
		}
		effect()
		_, err = b.tryComplete(claim{b.ref(key), r.Granted}, attempt)
		for reasonOf(err) == ledger.ReasonStoreUnavailable {
			_, err = b.tryComplete(claim{b.ref(key), r.Granted}, attempt)
		}
		var refusal *ledger.Refusal
		if errors.As(err, &refusal) {
			b.t.Errorf("%s completes and is told %v", attempt, err)
		}
		return attempt
	}
	b.t.Errorf("%s got nowhere", attempt)
	return ""
}
