package storetest

import (
	"fmt"
	"sync"
	"time"

	"github.com/idemd/idemd/ledger"
)

// durabilityCases: what was acknowledged is there when the store is opened again.
func durabilityCases() []testCase {
	return []testCase{
		{"reopened, the store holds every entry and setting that it acknowledged, as it was", reopened},
		{"reopened, the store holds what many writers were told they wrote at once", reopenedAfterRace},
		{"reopened, forgotten rows and deleted settings stay gone", reopenedWithoutForgotten},
		{"reopened, guards hold as before and the clock has not gone back", reopenedGuards},
	}
}

// reopen opens the backend again, or skips the case where nothing outlives the store.
func (b *bench) reopen() {
	b.Helper()
	if b.Reopen == nil {
		b.Skip("nothing outlives this store")
	}
	b.Store = b.Reopen(b)
}

func reopened(b *bench) {
	rows := b.populate()
	for i := range rows {
		if i%3 == 0 {
			rows[i] = b.mustApply(over(rows[i], b.entry(rows[i].Scope)))
		}
	}
	rows = append(rows, b.put(b.fullest(b.scope())))
	claim := b.put(b.claim())
	s := b.completion()
	s.Response = &ledger.Response{Body: b.bytes(1 << 20)}
	rows = append(rows, b.mustApply(ledger.Write{Scope: claim.Scope, Guard: claimOf(claim), Settle: s}))
	b.setting(ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x")}, 0, true)
	setting := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x"), Revision: 1, UpdatedAt: b.Clock.Now()}
	for range 2 {
		b.reopen()
		b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 11}), b.inOrder(ledger.ByName, rows))
		b.duePages(rows, 5, false)
		b.sameSettings("policy", setting)
	}
}

func reopenedAfterRace(b *bench) {
	const writers = 8
	acknowledged := make([][]*ledger.Entry, writers)
	seeds := make([]uint64, writers)
	for i := range seeds {
		seeds[i] = b.Uint64()
	}
	var mu sync.Mutex
	var failures []error
	b.together(writers, func(i int) {
		g := newGenerator(seeds[i])
		for range 10 {
			e := g.entry(g.scope())
			written, err := persist(b.ctx, b.Store, fresh(e))
			if err != nil || !written.Applied {
				mu.Lock()
				failures = append(failures, fmt.Errorf("writer %d: applied %t, %w", i, written.Applied, err))
				mu.Unlock()
				return
			}
			e.Revision = 1
			acknowledged[i] = append(acknowledged[i], e)
		}
	})
	for _, err := range failures {
		b.Error(err)
	}
	b.reopen()
	for _, list := range acknowledged {
		for _, e := range list {
			if diff := differences(e, b.get(e.Scope)); diff != "" {
				b.Errorf("acknowledged, and after reopening:\n%s", diff)
			}
		}
	}
}

func reopenedWithoutForgotten(b *bench) {
	stays, goes := b.put(b.claim()), b.put(b.claim())
	s := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x")}
	b.setting(s, 0, true)
	b.forget(1, rowOf(goes))
	s.Body = nil
	b.setting(s, 1, true)
	b.reopen()
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 10}), []*ledger.Entry{stays})
	b.sameSettings("policy")
}

func reopenedGuards(b *bench) {
	row := b.put(b.claim())
	b.Clock.Advance(time.Second)
	before := b.Clock.Now()
	b.reopen()
	now, err := b.Store.Ready(b.ctx)
	if err != nil || now < before {
		b.Errorf("Ready answers %d, %v; it was %d before", now, err, before)
	}
	b.expect(fresh(copyEntry(row)), false)
	w := over(row, b.entry(row.Scope))
	w.Guard.Revision++
	b.expect(w, false)
	row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
	b.expect(b.claimed("complete", row), true)
}
