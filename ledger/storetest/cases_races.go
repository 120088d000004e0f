package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/ledger"
)

// raceCases: whoever comes at the same time, one order of things explains what everybody was told.
func raceCases() []testCase {
	return []testCase{
		{"of 64 that put a row at once one does, and all others see its row afterwards", freshRace},
		{"of many that write over the same revision one does, round after round", revisionRace},
		{"of many that settle one claim at once one does, and every extension came before it", settleRace},
		{"extensions at once all go through, each with a revision of its own, and the longest stands", extendRace},
		{"a takeover and the holder's report at once: one of them is refused", takeoverRace},
		{"of writes to many rows at once, some of them refused, each is told its own outcome", mixedRace},
		{"forgetting a row and writing over it at once: one of them is refused", forgetRace},
		{"a write is seen at once through another handle", seenElsewhere},
		{"reads and guarded writes at once are linearizable", linearizable},
		{"rows that stay are each listed once while others are written at once", pagesWhileWriting},
	}
}

// result is what one racer was told.
type result struct {
	written ledger.Written
	err     error
}

// race makes all writes at once, through two handles, and fails on errors: nothing goes wrong here but contention.
func (b *bench) race(writes []ledger.Write) []ledger.Written {
	b.Helper()
	stores := []ledger.Store{b.Store, b.another()}
	results := make([]result, len(writes))
	b.together(len(writes), func(i int) {
		results[i].written, results[i].err = persist(b.ctx, stores[i%2], writes[i])
	})
	out := make([]ledger.Written, len(writes))
	for i, r := range results {
		if r.err != nil {
			b.Fatalf("writer %d of %d: %v", i, len(writes), r.err)
		}
		out[i] = r.written
	}
	return out
}

// only returns the one writer that was applied.
func (b *bench) only(written []ledger.Written) int {
	b.Helper()
	winner, n := 0, 0
	for i, w := range written {
		if w.Applied {
			winner = i
			n++
		}
	}
	if n != 1 {
		b.Fatalf("%d of %d writes were applied, want one", n, len(written))
	}
	return winner
}

// freshRace repeats the race: a store that looks before it writes can win one by luck.
func freshRace(b *bench) {
	for range 5 {
		b.freshRaceFor(b.scope())
	}
}

func (b *bench) freshRaceFor(scope ledger.ScopeID) {
	b.Helper()
	const racers = 64
	stores := []ledger.Store{b.Store, b.another()}
	entries := make([]*ledger.Entry, racers)
	for i := range entries {
		entries[i] = b.claim()
		entries[i].Scope = scope
		entries[i].Last.Holder = fmt.Sprintf("racer %d", i)
	}
	results := make([]result, racers)
	seen := make([]string, racers)
	b.together(racers, func(i int) {
		store := stores[i%2]
		results[i].written, results[i].err = persist(b.ctx, store, fresh(entries[i]))
		r, err := store.Get(b.ctx, scope)
		switch {
		case err != nil:
			seen[i] = err.Error()
		case r.Entry == nil:
			seen[i] = "no row"
		default:
			seen[i] = r.Entry.Last.Holder
		}
	})
	written := make([]ledger.Written, racers)
	for i, r := range results {
		if r.err != nil {
			b.Fatalf("racer %d: %v", i, r.err)
		}
		written[i] = r.written
	}
	winner := fmt.Sprintf("racer %d", b.only(written))
	for i, who := range seen {
		if who != winner {
			b.Errorf("after its put racer %d saw %q, want %q", i, who, winner)
		}
	}
}

func revisionRace(b *bench) {
	row := b.put(b.claim())
	for range 15 {
		writes := make([]ledger.Write, 8)
		for i := range writes {
			next := copyEntry(row)
			next.Last.Holder = fmt.Sprintf("racer %d", i)
			writes[i] = over(row, next)
		}
		winner := b.only(b.race(writes))
		want := copyEntry(row)
		want.Last.Holder = fmt.Sprintf("racer %d", winner)
		want.Revision++
		row = b.get(row.Scope)
		if diff := differences(want, row); diff != "" {
			b.Fatalf("racer %d was told that it wrote:\n%s", winner, diff)
		}
	}
}

func settleRace(b *bench) {
	for range 10 {
		row := b.put(b.claim())
		writes := make([]ledger.Write, 16)
		for i := range writes {
			writes[i] = ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}}
			if i%2 == 0 {
				s := b.completion()
				s.Response = &ledger.Response{Code: int32(i)}
				writes[i].Settle, writes[i].Extend = s, nil
			}
		}
		settled, extended := int32(-1), int64(0)
		for i, written := range b.race(writes) {
			switch {
			case !written.Applied:
			case i%2 != 0:
				extended++
			case settled >= 0:
				b.Fatalf("writers %d and %d both settled the claim", settled, i)
			default:
				settled = int32(i)
			}
		}
		got := b.get(row.Scope)
		if settled < 0 || got.State != ledger.Completed || got.Response == nil || got.Response.Code != settled || got.Revision != 2+extended {
			b.Fatalf("writer %d settled after %d extensions, the row is %s with %+v", settled, extended, outline(got), got.Response)
		}
	}
}

func extendRace(b *bench) {
	row := b.put(b.claim())
	writes := make([]ledger.Write, 16)
	for i := range writes {
		writes[i] = ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{Lease: time.Duration(i+1) * time.Second}}
	}
	written := b.race(writes)
	order := make([]int, len(writes))
	for i, w := range written {
		revision := w.Stamps.Revision
		if !w.Applied || revision < 2 || revision > 17 || order[revision-2] != 0 {
			b.Fatalf("extension %d: applied %t at revision %d", i, w.Applied, revision)
		}
		order[revision-2] = i + 1
	}
	for _, i := range order {
		row, _ = writes[i-1].Apply(row, b.Clock.Now())
		if want := ledger.StampsOf(row, b.Clock.Now()); written[i-1].Stamps != want {
			b.Errorf("extension %d was told\n%+v, want\n%+v", i-1, written[i-1].Stamps, want)
		}
	}
	if got := b.get(row.Scope); got.Last.Lease != 16*time.Second || got.Last.LeaseUntil != b.Clock.Now().Add(16*time.Second) {
		b.Errorf("the lease is %v until %d, want the longest", got.Last.Lease, got.Last.LeaseUntil)
	}
}

func takeoverRace(b *bench) {
	for range 15 {
		row := b.put(b.claim())
		next := copyEntry(row)
		ended := next.Last
		ended.Ended = ledger.EndedTakenOver
		next.Earlier = []ledger.Attempt{ended}
		next.Last.Number, next.Last.IDHash, next.Last.Holder = 2, b.idHash(), "worker-2"
		report := ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: b.completion()}
		written := b.race([]ledger.Write{over(row, next), report})
		b.only(written)
		got := b.get(row.Scope)
		if taken := got.Last.Number == 2 && got.State == ledger.Pending; taken != written[0].Applied || got.Revision != 2 {
			b.Fatalf("takeover applied %t, report applied %t, the row is %s", written[0].Applied, written[1].Applied, outline(got))
		}
	}
}

// mixedRace is for stores that gather what comes at once into one transaction: no write may be told another's outcome.
func mixedRace(b *bench) {
	for range 5 {
		var writes []ledger.Write
		var wants []ledger.Written
		for i := range 48 {
			row := b.put(b.claim())
			w := b.claimed([]string{"complete", "fail", "give up", "extend"}[i%4], row)
			if w.Extend != nil {
				w.Extend.Lease = time.Duration(i+1) * time.Second
			}
			switch i % 3 {
			case 0:
				w.Guard.Attempt++
			case 1:
				w = over(row, b.entry(row.Scope))
			}
			want := ledger.Written{}
			if after, holds := w.Apply(row, b.Clock.Now()); holds {
				want = ledger.Written{Applied: true, Stamps: ledger.StampsOf(after, b.Clock.Now())}
			}
			writes, wants = append(writes, w), append(wants, want)
		}
		for i, got := range b.race(writes) {
			if got != wants[i] {
				b.Errorf("of %d writes number %d was told\n%+v, want\n%+v", len(writes), i, got, wants[i])
			}
		}
	}
}

func forgetRace(b *bench) {
	for range 15 {
		row := b.put(b.claim())
		var written result
		var forgotten int
		var err error
		b.together(2, func(i int) {
			if i == 0 {
				written.written, written.err = persist(b.ctx, b.Store, over(row, copyEntry(row)))
				return
			}
			for range maxContended {
				forgotten, err = b.Store.Forget(b.ctx, []ledger.Row{rowOf(row)})
				if !errors.Is(err, ledger.ErrContended) {
					return
				}
			}
		})
		if err != nil || written.err != nil {
			b.Fatalf("Forget: %v; Write: %v", err, written.err)
		}
		got := b.get(row.Scope)
		if written.written.Applied == (forgotten == 1) || written.written.Applied != (got != nil) {
			b.Fatalf("forgot %d, write applied %t, the row is %s", forgotten, written.written.Applied, outline(got))
		}
	}
}

func seenElsewhere(b *bench) {
	other := b.another()
	row := b.put(b.claim())
	written := make(chan int64)
	go func() {
		defer close(written)
		for range 100 {
			w, err := persist(b.ctx, b.Store, ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
			if err != nil || !w.Applied {
				b.Errorf("extension: applied %t, %v", w.Applied, err)
				return
			}
			select {
			case written <- w.Stamps.Revision:
			case <-b.ctx.Done():
				return
			}
		}
	}()
	for revision := range written {
		if got := b.getFrom(other, row.Scope); got.Revision < revision {
			b.Errorf("revision %d was acknowledged, and then the other handle read revision %d", revision, got.Revision)
		}
	}
}

func linearizable(b *bench) {
	row := b.put(b.claim())
	h := newCallRecord(row)
	stores := []ledger.Store{b.Store, b.another()}
	const actors, steps = 8, 40
	seeds := make([]uint64, actors)
	for i := range seeds {
		seeds[i] = b.Uint64()
	}
	var mu sync.Mutex
	var failures []error
	b.together(actors, func(i int) {
		a := actor{store: stores[i%2], g: newGenerator(seeds[i]), h: h, last: row}
		for range steps {
			if err := a.step(b.ctx); err != nil {
				mu.Lock()
				failures = append(failures, err)
				mu.Unlock()
				return
			}
		}
	})
	for _, err := range failures {
		b.Error(err)
	}
	for _, complaint := range h.judge() {
		b.Error(complaint)
	}
}

func pagesWhileWriting(b *bench) {
	rows := b.populate()
	ctx, stop := context.WithCancel(b.ctx)
	var wg sync.WaitGroup
	for range 2 {
		g := newGenerator(b.Uint64())
		wg.Go(func() {
			for ctx.Err() == nil {
				e := g.entry(g.scope())
				e.Response = nil
				_, _ = b.Store.Write(ctx, fresh(e))
				changed := copyEntry(rows[g.IntN(len(rows))])
				changed.RunGrants++
				_, _ = b.Store.Write(ctx, over(changed, changed))
				_, _ = b.Store.Forget(ctx, []ledger.Row{{Scope: e.Scope, Incarnation: e.Incarnation, Revision: 1}})
			}
		})
	}
	for range 5 {
		seen := map[ledger.ScopeID]int{}
		for _, e := range b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 9, Lean: true}) {
			seen[e.Scope]++
		}
		for _, row := range rows {
			if seen[row.Scope] != 1 {
				b.Errorf("%s stayed and was listed %d times", outline(row), seen[row.Scope])
			}
		}
	}
	stop()
	wg.Wait()
}
