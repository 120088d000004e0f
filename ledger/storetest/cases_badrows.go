package storetest

import (
	"context"
	"errors"
	"sync"

	"github.com/idemd/idemd/ledger"
)

// badRowCases: one bad row is its own fault, and nobody else's.
func badRowCases() []testCase {
	return []testCase{
		{"a row that makes no sense is told as its own fault, by each reading, and the store is there", senselessRow},
		{"a page goes past a row that makes no sense, and names it", pageWithASenselessRow},
		{"a row that makes no sense is put right by writing it anew", senselessRowWrittenAnew},
		{"a write that the schema refuses is told as the row's fault, and does nothing", refusedWrites},
		{"writes that are on their way with one that the schema refuses are done", refusedAmongOthers},
		{"a text that the store cannot hold is refused as the row's fault, or kept whole", unholdableTexts},
	}
}

// settled puts an entry with an answer.
func (b *bench) settled() *ledger.Entry {
	b.Helper()
	row := b.put(b.claim())
	return b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: b.completion()})
}

// spoiled puts an entry with an answer that makes no sense.
func (b *bench) spoiled() *ledger.Entry {
	b.Helper()
	if b.Spoil == nil {
		b.Skip("no row can be spoiled here")
	}
	row := b.settled()
	b.Spoil(b, row.Scope)
	return row
}

// wantBadRow checks that err is about a row, and about nothing else.
func (b *bench) wantBadRow(what string, err error) {
	b.Helper()
	if !errors.Is(err, ledger.ErrBadRow) {
		b.Errorf("%s: %v, want a bad row", what, err)
	}
	for _, other := range []error{
		ledger.ErrUnavailable, ledger.ErrUnknown, ledger.ErrContended, ledger.FaultDamaged, context.Canceled, context.DeadlineExceeded,
	} {
		if errors.Is(err, other) {
			b.Errorf("%s: a bad row is told as %q too: %v", what, other, err)
		}
	}
}

func senselessRow(b *bench) {
	bad, good := b.spoiled(), b.settled()
	var readings sync.WaitGroup
	for range 8 { // together, since a store may answer them together
		readings.Go(func() {
			_, err := b.Store.Get(b.ctx, bad.Scope)
			b.wantBadRow("Get", err)
			if r, err := b.Store.Get(b.ctx, good.Scope); err != nil || differences(good, r.Entry) != "" {
				b.Errorf("Get of another row: %v, %s", err, differences(good, r.Entry))
			}
		})
	}
	readings.Wait()
	if _, err := b.Store.Ready(b.ctx); err != nil {
		b.Errorf("Ready: %v", err)
	}
	if b.write(b.Store, fresh(b.entry(bad.Scope))).Applied {
		b.Error("the row counts as absent")
	}
	b.put(b.claim())
}

func pageWithASenselessRow(b *bench) {
	var rows []*ledger.Entry
	for range 5 {
		rows = append(rows, b.settled())
	}
	bad := b.spoiled()
	for range 5 {
		rows = append(rows, b.settled())
	}
	b.Clock.Advance(2 * claimRetention)
	for limit := 1; limit <= 12; limit += 3 {
		b.pagesPast(ledger.PageQuery{Order: ledger.ByName, Limit: limit}, rows, bad)
		b.pagesPast(ledger.PageQuery{Order: ledger.ByDue, Shard: bad.Scope.Shard(), Limit: limit}, rows, bad)
	}
}

// pagesPast checks that the pages of q list all of rows that are theirs, and name the bad one.
func (b *bench) pagesPast(q ledger.PageQuery, rows []*ledger.Entry, bad *ledger.Entry) {
	b.Helper()
	listed, named := map[ledger.ScopeID]int{}, 0
	for more := true; more; {
		page, err := b.Store.Page(b.ctx, q)
		if err != nil {
			b.Fatalf("Page: %v", err)
		}
		if n := len(page.Entries) + len(page.Bad); n > q.Limit || n == 0 && page.More {
			b.Fatalf("a page of %d rows at most has %d, and more: %t", q.Limit, n, page.More)
		}
		for _, e := range page.Entries {
			listed[e.Scope]++
		}
		for _, r := range page.Bad {
			b.wantBadRow("Page", r.Err)
			if r.Scope != bad.Scope {
				b.Errorf("a page names %x, which is not bad", r.Scope)
			}
			named++
		}
		more, q.After = page.More, page.Next
	}
	for _, e := range rows {
		if want := q.Order == ledger.ByName || e.Scope.Shard() == q.Shard; (listed[e.Scope] == 1) != want {
			b.Errorf("order %d, %d a page: scope %x is listed %d times", q.Order, q.Limit, e.Scope, listed[e.Scope])
		}
	}
	if named != 1 || listed[bad.Scope] != 0 {
		b.Errorf("order %d, %d a page: the bad row is named %d times and listed %d times", q.Order, q.Limit, named, listed[bad.Scope])
	}
}

func senselessRowWrittenAnew(b *bench) {
	bad := b.spoiled()
	if !b.write(b.Store, over(bad, bad)).Applied {
		b.Fatal("not written")
	}
	want := copyEntry(bad)
	want.Revision++
	if diff := differences(want, b.get(bad.Scope)); diff != "" {
		b.Error(diff)
	}
}

// refused is an entry of a state that there is not.
func (b *bench) refused(scope ledger.ScopeID) *ledger.Entry {
	e := b.claim()
	e.Scope, e.State = scope, ledger.FailedRetryable+1
	return e
}

func refusedWrites(b *bench) {
	row := b.put(b.claim())
	absent := b.scope()
	s := b.completion()
	s.State = ledger.FailedRetryable + 1
	for what, w := range map[string]ledger.Write{
		"where there is no row": fresh(b.refused(absent)),
		"over a row":            over(row, b.refused(row.Scope)),
		"a settlement":          {Scope: row.Scope, Guard: claimOf(row), Settle: s},
	} {
		written, err := persist(b.ctx, b.Store, w)
		b.wantBadRow(what, err)
		if written != (ledger.Written{}) {
			b.Errorf("%s: told of %+v", what, written)
		}
	}
	if e := b.get(absent); e != nil {
		b.Errorf("a row that was refused is there: %s", outline(e))
	}
	if diff := differences(row, b.get(row.Scope)); diff != "" {
		b.Errorf("the row that stood there has changed:\n%s", diff)
	}
	b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: b.completion()})
}

func refusedAmongOthers(b *bench) {
	writes := make([]ledger.Write, 40)
	for i := range writes {
		if writes[i] = fresh(b.claim()); i%8 == 3 {
			writes[i] = fresh(b.refused(b.scope()))
		}
	}
	var group sync.WaitGroup
	for i, w := range writes {
		group.Go(func() {
			written, err := persist(b.ctx, b.Store, w)
			if i%8 == 3 {
				b.wantBadRow("a refused write", err)
			} else if err != nil || !written.Applied {
				b.Errorf("a write beside it: applied %t, %v", written.Applied, err)
			}
		})
	}
	group.Wait()
}

func unholdableTexts(b *bench) {
	e := b.claim()
	e.Last.Principal = "a\x00b"
	written, err := persist(b.ctx, b.Store, fresh(e))
	if err != nil {
		b.wantBadRow("a NUL", err)
		if got := b.get(e.Scope); got != nil {
			b.Errorf("refused, and there: %s", outline(got))
		}
		return
	}
	if got := b.get(e.Scope); !written.Applied || got == nil || got.Last.Principal != e.Last.Principal {
		b.Errorf("applied %t, and kept as %+v", written.Applied, got)
	}
}
