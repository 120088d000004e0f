package load

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/storetest"
)

const (
	waiterKeys   = 50
	waitersOfKey = 100
)

func refOf(key string) ledger.Ref { return ledger.Ref{Tenant: "acme", Operation: "load", Key: key} }

func begin(ctx context.Context, l *ledger.Ledger, key string, wait time.Duration) (ledger.BeginResult, error) {
	id := uuid.New()
	return l.Begin(ctx, ledger.Caller{}, ledger.BeginRequest{
		Ref: refOf(key), AttemptID: id, AttemptIDText: id.String(), Wait: wait, Lease: 10 * time.Minute,
		Fingerprints: []ledger.Fingerprint{{Algorithm: "test", Hash: make([]byte, 32)}},
	})
}

func complete(ctx context.Context, l *ledger.Ledger, key string, token []byte) error {
	_, err := l.Complete(ctx, ledger.Caller{}, ledger.CompleteRequest{Ref: refOf(key), Token: token, Response: &ledger.Response{Body: make([]byte, 200)}})
	return err
}

func open(t testing.TB, store ledger.Store) *ledger.Ledger {
	t.Helper()
	l, err := ledger.New(t.Context(), ledger.Config{Store: store, SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// claims takes one claim on each of n keys, and returns their tokens.
func claims(t testing.TB, l *ledger.Ledger, n int) map[string][]byte {
	t.Helper()
	tokens := map[string][]byte{}
	for i := range n {
		key := fmt.Sprint("waited for ", i)
		out, err := begin(t.Context(), l, key, 0)
		if err != nil || out.Granted == nil {
			t.Fatalf("a claim on a fresh key: %+v %v", out, err)
		}
		tokens[key] = out.Granted.Token
	}
	return tokens
}

// looks notes when which entry was read.
type looks struct {
	mu sync.Mutex
	at map[ledger.ScopeID][]time.Time
}

func (l *looks) plan(c storetest.Call) storetest.Fault {
	if c.Method == storetest.Get {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.at[c.Scope] = append(l.at[c.Scope], time.Now())
	}
	return storetest.Fault{}
}

func (l *looks) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = map[ledger.ScopeID][]time.Time{}
}

// TestC21FiveThousandWaitersAreOnePollForEachKey: 5,000 wait on 50 keys. Each key is looked at as if one waited, the looks of the keys do not fall
// together, and everybody is answered. What it costs a Complete is measured by BenchmarkC21CompleteAmongWaiters.
func TestC21FiveThousandWaitersAreOnePollForEachKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := storetest.NewRunningClock()
		seen := &looks{at: map[ledger.ScopeID][]time.Time{}}
		store := storetest.NewFaulty(storetest.NewModel(clock, 0), seen.plan)
		l := open(t, store)
		tokens := claims(t, l, waiterKeys)
		var answered atomic.Int32
		var waiters sync.WaitGroup
		for key := range tokens {
			for range waitersOfKey {
				waiters.Go(func() {
					if out, err := begin(t.Context(), l, key, 30*time.Second); err == nil && out.Completed != nil {
						answered.Add(1)
					}
				})
			}
		}
		<-time.After(5 * time.Second) // in which the looks come to their longest pause
		seen.reset()
		<-time.After(20 * time.Second)
		checkLooks(t, seen, 20*time.Second)
		for key, token := range tokens {
			if err := complete(t.Context(), l, key, token); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		}
		waiters.Wait()
		if n := answered.Load(); n != waiterKeys*waitersOfKey {
			t.Errorf("%d of %d waiters were told the answer", n, waiterKeys*waitersOfKey)
		}
	})
}

func checkLooks(t *testing.T, seen *looks, over time.Duration) {
	t.Helper()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if len(seen.at) != waiterKeys {
		t.Errorf("%d keys were looked at, of %d", len(seen.at), waiterKeys)
	}
	instants := map[time.Time]int{}
	pauses := map[time.Duration]bool{}
	for _, at := range seen.at {
		// A look at least every 750 ms, and none after less than 250 ms.
		if least, most := int(over/(750*time.Millisecond)), int(over/(250*time.Millisecond)); len(at) < least || len(at) > most+1 {
			t.Errorf("a key with %d waiters was read %d times in %v", waitersOfKey, len(at), over)
		}
		for i, when := range at {
			instants[when]++
			if i > 0 {
				pauses[when.Sub(at[i-1])] = true
			}
		}
	}
	if most := slices.Max(slices.Collect(maps.Values(instants))); most > 5 {
		t.Errorf("%d keys were read in the same instant", most)
	}
	if len(pauses) < 100 {
		t.Errorf("only %d different pauses between two looks: they are not spread", len(pauses))
	}
}

// BenchmarkC21CompleteAmongWaiters says what a Complete takes on the embedded store while nobody waits, and while 5,000 do, on other keys. The two p99
// should be within a factor of two.
func BenchmarkC21CompleteAmongWaiters(b *testing.B) {
	for _, waiting := range []int{0, waitersOfKey} {
		b.Run(fmt.Sprint(waiting*waiterKeys), func(b *testing.B) {
			store, err := sqlitestore.Open(b.Context(), sqlitestore.Config{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = store.Close() })
			l := open(b, store)
			ctx, stop := context.WithCancel(b.Context())
			var waiters sync.WaitGroup
			for key := range claims(b, l, waiterKeys) {
				for range waiting {
					waiters.Go(func() { _, _ = begin(ctx, l, key, time.Hour) })
				}
			}
			took := make([]time.Duration, 0, b.N)
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				key := fmt.Sprint("completed ", n)
				out, err := begin(ctx, l, key, 0)
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				began := time.Now()
				if err := complete(ctx, l, key, out.Granted.Token); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(began))
			}
			b.ReportMetric(float64(percentile(took, 99).Microseconds()), "p99-µs")
			b.ReportMetric(float64(percentile(took, 50).Microseconds()), "p50-µs")
			stop()
			waiters.Wait()
		})
	}
}

// percentile of all that was measured; it sorts them.
func percentile(took []time.Duration, p int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)*p/100, len(took)-1)]
}
