package sqlstore_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
)

// benchmarkStores runs step on every engine, with so many goroutines, after fill.
func benchmarkStores(b *testing.B, goroutines []int, fill, step func(b *testing.B, s ledger.Store)) {
	for _, e := range engines {
		b.Run(e.name, func(b *testing.B) {
			d := newDatabase(b, e.url(b))
			s := openStore(b, sqlstore.Config{URL: d.url})
			fill(b, s)
			for _, n := range goroutines {
				b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
					work := make(chan struct{})
					var wg sync.WaitGroup
					for range n {
						wg.Go(func() {
							for range work {
								step(b, s)
							}
						})
					}
					b.ResetTimer()
					for range b.N { // not Loop, which stops the clock before the last steps are done
						work <- struct{}{}
					}
					close(work)
					wg.Wait()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
				})
			}
		})
	}
}

func empty(*testing.B, ledger.Store) {}

func randomScope() (id ledger.ScopeID) {
	for i := 0; i < len(id); i += 8 {
		binary.BigEndian.PutUint64(id[i:], rand.Uint64())
	}
	return id
}

// BenchmarkPair is a Begin on a fresh key and its Complete with 240 bytes: two durable writes.
func BenchmarkPair(b *testing.B) {
	body := make([]byte, 240)
	benchmarkStores(b, []int{1, 64}, empty, func(b *testing.B, s ledger.Store) {
		scope := randomScope()
		begun, err := s.Write(context.Background(), begin(scope))
		if err != nil || !begun.Applied {
			b.Error(begun.Applied, err)
			return
		}
		w := complete(&ledger.Entry{Scope: scope, Incarnation: begun.Stamps.Incarnation, Last: ledger.Attempt{Number: 1}})
		w.Settle.Response = &ledger.Response{Body: body}
		done, err := s.Write(context.Background(), w)
		if err != nil || !done.Applied {
			b.Error(done.Applied, err)
		}
	})
}

// BenchmarkGet reads one of a thousand settled entries.
func BenchmarkGet(b *testing.B) {
	var scopes []ledger.ScopeID
	fill := func(b *testing.B, s ledger.Store) {
		scopes = make([]ledger.ScopeID, 1000)
		for i := range scopes {
			scopes[i] = randomScope()
			mustWrite(b, s, begin(scopes[i]))
			mustWrite(b, s, complete(mustGet(b, s, scopes[i])))
		}
	}
	benchmarkStores(b, []int{1, 64}, fill, func(b *testing.B, s ledger.Store) {
		if r, err := s.Get(context.Background(), scopes[rand.IntN(len(scopes))]); err != nil || r.Entry == nil {
			b.Error(r.Entry, err)
		}
	})
}

// BenchmarkTakeover is a takeover: the row is read, locked and replaced.
func BenchmarkTakeover(b *testing.B) {
	benchmarkStores(b, []int{1}, empty, func(b *testing.B, s ledger.Store) {
		scope := scopeOf(1)
		r, err := s.Get(context.Background(), scope)
		if err != nil {
			b.Fatal(err)
		}
		if r.Entry == nil {
			mustWrite(b, s, begin(scope))
			return
		}
		r.Entry.Earlier = nil
		r.Entry.Last.Number = 1
		mustWrite(b, s, takeover(r.Entry))
	})
}
