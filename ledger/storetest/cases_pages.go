package storetest

import (
	"slices"
	"time"

	"github.com/idemd/idemd/ledger"
)

// pageCases: pages by scope.
func pageCases() []testCase {
	return []testCase{
		{"a page of an empty store is empty and the last", emptyPage},
		{"pages by name list every row once, in order of tenant, operation and the store's own order by their bytes, at every page size", pagesByName},
		{"a page holds at most as many rows as it was asked for", pageLimit},
		{"pages by name narrow to a tenant, and to an operation of it", pagesOfTenant},
		{"pages by name narrow to stored states that are not closed", pagesOfStates},
		{"pages by name narrow to incarnations up to an instant, that instant included", pagesCreatedUntil},
		{"pages by name narrow by everything at once", pagesByEverything},
		{"pages by name go on from any position, also one where no row is", pagesFromAnywhere},
		{"a row that stays is listed once while others come, change and go during the paging", pagesWhileChanging},
		{"a full page shows whole entries", fullPage},
		{"a lean page leaves out answer, earlier attempts, evidence and resolutions, and nothing else", leanPage},
	}
}

// dueCases: pages by due time.
func dueCases() []testCase {
	return []testCase{
		{"pages by due time list each shard's due rows once, in order of due time and scope id, at every page size", pagesByDue},
		{"a row is due at its very instant and not one step before", dueAtTheInstant},
		{"a row that is never due is in no page by due time", neverDue},
		{"pages by due time reach up to an instant, that instant included, whatever the clock says", dueUntilAnInstant},
		{"pages by due time go on from a remembered bound and see what has become due since", dueFromBound},
		{"pages by due time follow a row whose due time was moved", dueTimeMoves},
	}
}

// maxPages bounds how many pages a listing may take: a store that never says that it is done is caught, not waited for.
const maxPages = 5000

// pages lists page by page from q.After to the end.
func (b *bench) pages(q ledger.PageQuery) []*ledger.Entry {
	b.Helper()
	var out []*ledger.Entry
	for range maxPages {
		page := b.page(q)
		out = append(out, page.Entries...)
		if !page.More {
			return out
		}
		q.After = b.onwards(q, page)
	}
	b.Fatalf("no end of pages after %d of them", maxPages)
	return nil
}

// onwards is where the next page starts, which must be behind where this one did.
func (b *bench) onwards(q ledger.PageQuery, page ledger.Page) ledger.Cursor {
	b.Helper()
	if b.compareCursors(q.Order, page.Next, q.After) <= 0 {
		b.Fatalf("there is more, and the next page would start at %+v again, after %+v", page.Next, q.After)
	}
	return page.Next
}

// page reads one page and checks what holds for every page.
func (b *bench) page(q ledger.PageQuery) ledger.Page {
	b.Helper()
	page, err := b.Store.Page(b.ctx, q)
	if err != nil {
		b.Fatalf("Page: %v", err)
	}
	if page.Now != b.Clock.Now() {
		b.Errorf("Page read the clock as %d, it is at %d", page.Now, b.Clock.Now())
	}
	if len(page.Entries) > q.Limit {
		b.Errorf("a page of at most %d rows has %d", q.Limit, len(page.Entries))
	}
	if n := len(page.Entries); n > 0 && b.compareCursors(q.Order, page.Next, ledger.CursorOf(page.Entries[n-1])) < 0 {
		b.Errorf("the next page would start at %+v, before the last row %s", page.Next, outline(page.Entries[n-1]))
	}
	return page
}

// sameRows checks that got is want, in order.
func (b *bench) sameRows(got, want []*ledger.Entry) {
	b.Helper()
	for i := range max(len(got), len(want)) {
		var g, w *ledger.Entry
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if diff := differences(w, g); diff != "" {
			b.Errorf("row %d of %d is\n  %s, want\n  %s\n%s", i+1, len(want), outline(g), outline(w), diff)
			return
		}
	}
}

// compareCursors compares by the order that the store has, which of those by name is one of two.
func (b *bench) compareCursors(order ledger.PageOrder, x, y ledger.Cursor) int {
	if b.ByAge {
		return compareCursors(order, x, y)
	}
	return compareByScope(order, x, y)
}

func (b *bench) inOrder(order ledger.PageOrder, rows []*ledger.Entry) []*ledger.Entry {
	return slices.SortedFunc(slices.Values(rows), func(x, y *ledger.Entry) int {
		return b.compareCursors(order, ledger.CursorOf(x), ledger.CursorOf(y))
	})
}

func (b *bench) chosen(q ledger.PageQuery, rows []*ledger.Entry, now ledger.Time) []*ledger.Entry {
	var out []*ledger.Entry
	for _, row := range b.inOrder(q.Order, rows) {
		switch {
		case !selects(q, row, now):
		case q.Lean:
			out = append(out, lean(row))
		default:
			out = append(out, row)
		}
	}
	return out
}

// sizes are the page sizes that a listing of n rows is tried with.
func sizes(n int) []int { return []int{1, 2, 3, 7, max(n-1, 1), max(n, 1), n + 1, ledger.MaxPageRows} }

// populate puts rows of many tenants, operations, states and ages.
func (b *bench) populate() []*ledger.Entry {
	b.Helper()
	tenants := []string{"a", "A", "B", "b", "_", "ab", "a:b", "a b", "é", "e\u0301", "😀", "\U0010ffff", "\uffee", "z", "zz"}
	operations := []string{"charge", "Charge", "charge/v2", "😀", "é"}
	var rows []*ledger.Entry
	for i := range 70 {
		b.Clock.Advance(time.Second)
		e := b.entry(b.scope())
		e.Incarnation = b.Clock.Now()
		if e.Ref != (ledger.Ref{}) {
			e.Ref.Tenant, e.Ref.Operation = tenants[b.IntN(len(tenants))], operations[b.IntN(len(operations))]
		}
		if i%10 == 0 {
			e.Response, e.Failure, e.Closed = nil, nil, true
		}
		b.write(b.Store, fresh(e))
		rows = append(rows, b.get(e.Scope))
	}
	return rows
}

func emptyPage(b *bench) {
	for _, q := range []ledger.PageQuery{
		{Order: ledger.ByName, Limit: 10},
		{Order: ledger.ByName, Limit: 10, Tenant: "a", Operation: "b", States: []ledger.State{ledger.Pending}},
		{Order: ledger.ByDue, Limit: 10, Shard: 3},
	} {
		if page := b.page(q); len(page.Entries) != 0 || page.More {
			b.Errorf("%+v: %d rows, more %t", q, len(page.Entries), page.More)
		}
	}
}

func pagesByName(b *bench) {
	rows := b.inOrder(ledger.ByName, b.populate())
	for _, limit := range sizes(len(rows)) {
		b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: limit}), rows)
	}
}

func pageLimit(b *bench) {
	rows := b.inOrder(ledger.ByName, b.populate())
	page := b.page(ledger.PageQuery{Order: ledger.ByName, Limit: 7})
	b.sameRows(page.Entries, rows[:7])
	if !page.More {
		b.Errorf("more is false after 7 of %d rows", len(rows))
	}
	// More may be true behind the last row, as a store need not look ahead; then there is nothing on the page behind it.
	page = b.page(ledger.PageQuery{Order: ledger.ByName, Limit: len(rows)})
	b.sameRows(page.Entries, rows)
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 5, After: page.Next}), nil)
}

func pagesOfTenant(b *bench) {
	rows := b.populate()
	for _, row := range rows[:20] {
		for _, q := range []ledger.PageQuery{
			{Order: ledger.ByName, Tenant: row.Ref.Tenant, Limit: 2},
			{Order: ledger.ByName, Tenant: row.Ref.Tenant, Operation: row.Ref.Operation, Limit: 1},
			{Order: ledger.ByName, Tenant: row.Ref.Tenant, Operation: row.Ref.Operation, Limit: ledger.MaxPageRows},
		} {
			b.sameRows(b.pages(q), b.chosen(q, rows, b.Clock.Now()))
		}
	}
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Tenant: "nobody", Limit: 10}), nil)
}

func pagesOfStates(b *bench) {
	rows := b.populate()
	for _, states := range [][]ledger.State{
		{ledger.Pending}, {ledger.Completed}, {ledger.FailedFinal}, {ledger.FailedRetryable},
		{ledger.Completed, ledger.FailedFinal}, {ledger.Pending, ledger.Completed, ledger.FailedFinal, ledger.FailedRetryable}, {},
	} {
		for _, limit := range []int{1, 5, ledger.MaxPageRows} {
			q := ledger.PageQuery{Order: ledger.ByName, States: states, Limit: limit}
			b.sameRows(b.pages(q), b.chosen(q, rows, b.Clock.Now()))
		}
	}
}

func pagesCreatedUntil(b *bench) {
	rows := b.populate()
	for _, until := range []ledger.Time{rows[20].Incarnation, rows[20].Incarnation - 1, rows[20].Incarnation + 1, 1, ledger.Never, 0} {
		for _, limit := range []int{1, 4, ledger.MaxPageRows} {
			q := ledger.PageQuery{Order: ledger.ByName, CreatedUntil: until, Limit: limit}
			b.sameRows(b.pages(q), b.chosen(q, rows, b.Clock.Now()))
		}
	}
}

func pagesByEverything(b *bench) {
	rows := b.populate()
	for range 40 {
		row := rows[b.IntN(len(rows))]
		q := ledger.PageQuery{
			Order: ledger.ByName, Tenant: row.Ref.Tenant, States: []ledger.State{row.State, ledger.Pending},
			CreatedUntil: rows[b.IntN(len(rows))].Incarnation, Limit: 1 + b.IntN(4),
		}
		if b.IntN(2) == 0 {
			q.Operation = row.Ref.Operation
		}
		b.sameRows(b.pages(q), b.chosen(q, rows, b.Clock.Now()))
	}
}

func pagesFromAnywhere(b *bench) {
	rows := b.inOrder(ledger.ByName, b.populate())
	middle := rows[len(rows)/2]
	var past ledger.ScopeID
	for i := range past {
		past[i] = 0xff
	}
	for _, after := range []ledger.Cursor{
		{Tenant: "a"},
		{Tenant: "a", Operation: "charge"},
		{Tenant: "a", Operation: "charge", Scope: past},
		{Tenant: "m", Operation: "zzz"},
		{Tenant: middle.Ref.Tenant, Operation: middle.Ref.Operation, Scope: middle.Scope},
		{Tenant: "\U0010ffff", Operation: "\U0010ffff", Scope: past},
	} {
		var want []*ledger.Entry
		for _, row := range rows {
			if b.compareCursors(ledger.ByName, ledger.CursorOf(row), after) > 0 {
				want = append(want, row)
			}
		}
		b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, After: after, Limit: 4}), want)
	}
	var ofTenant []*ledger.Entry
	for _, row := range rows {
		if row.Ref.Tenant == middle.Ref.Tenant && b.compareCursors(ledger.ByName, ledger.CursorOf(row), ledger.CursorOf(middle)) > 0 {
			ofTenant = append(ofTenant, row)
		}
	}
	b.sameRows(b.pages(ledger.PageQuery{
		Order: ledger.ByName, Tenant: middle.Ref.Tenant, After: ledger.CursorOf(middle), Limit: 2,
	}), ofTenant)
}

func pagesWhileChanging(b *bench) {
	rows := b.inOrder(ledger.ByName, b.populate())
	stays := map[ledger.ScopeID]bool{}
	for i, row := range rows {
		stays[row.Scope] = i%3 != 0
	}
	seen := map[ledger.ScopeID]int{}
	q := ledger.PageQuery{Order: ledger.ByName, Limit: 3, Lean: true}
	for range maxPages {
		page := b.page(q)
		for _, e := range page.Entries {
			seen[e.Scope]++
		}
		if !page.More {
			break
		}
		q.After = b.onwards(q, page)
		b.disturb(rows, stays, page.Entries)
	}
	for _, row := range rows {
		if stays[row.Scope] && seen[row.Scope] != 1 {
			b.Errorf("%s stayed and was listed %d times", outline(row), seen[row.Scope])
		}
	}
}

// disturb forgets, changes and adds rows between two pages: among them those that a page has just ended with.
func (b *bench) disturb(rows []*ledger.Entry, stays map[ledger.ScopeID]bool, listed []*ledger.Entry) {
	b.Helper()
	for range 2 {
		row := rows[b.IntN(len(rows))]
		if len(listed) > 0 && b.IntN(2) == 0 {
			row = listed[len(listed)-1]
		}
		current := b.get(row.Scope)
		switch {
		case current == nil:
		case !stays[row.Scope]:
			b.forget(1, rowOf(current))
		default:
			changed := b.entry(row.Scope)
			changed.Ref, changed.Incarnation = current.Ref, current.Incarnation
			b.write(b.Store, over(current, changed))
		}
		newcomer := b.entry(b.scope())
		newcomer.Ref.Tenant = row.Ref.Tenant
		b.write(b.Store, fresh(newcomer))
	}
}

func fullPage(b *bench) {
	rows := b.populate()
	rows = append(rows, b.put(b.fullest(b.scope())))
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 50}), b.inOrder(ledger.ByName, rows))
	b.duePages(rows, 50, false)
}

func leanPage(b *bench) {
	rows := b.populate()
	rows = append(rows, b.put(b.fullest(b.scope())))
	var want []*ledger.Entry
	for _, row := range b.inOrder(ledger.ByName, rows) {
		want = append(want, lean(row))
	}
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 50, Lean: true}), want)
	b.duePages(rows, 50, true)
}

// duePages compares what is due in every shard with the rows there are.
func (b *bench) duePages(rows []*ledger.Entry, limit int, isLean bool) {
	b.Helper()
	for shard := range ledger.Shards {
		q := ledger.PageQuery{Order: ledger.ByDue, Shard: shard, Limit: limit, Lean: isLean}
		b.sameRows(b.pages(q), b.chosen(q, rows, b.Clock.Now()))
	}
}

// populateDue puts rows that are due at, around and long after now, several at the same instant, in few shards and in all.
func (b *bench) populateDue(n int) []*ledger.Entry {
	b.Helper()
	var rows []*ledger.Entry
	for range n {
		e := b.claim()
		e.Ref = ledger.Ref{Tenant: "t", Operation: "o", Key: b.text(20)}
		if b.IntN(2) == 0 {
			e.Scope[0] = byte(0xa0 | b.IntN(2))
		}
		e.DueAt = b.Clock.Now() + ledger.Time(b.IntN(7)-3)*ledger.Time(b.tick.Microseconds())
		switch b.IntN(8) {
		case 0:
			e.DueAt = ledger.Never
		case 1:
			e.DueAt = 1
		case 2:
			e.DueAt = b.Clock.Now().Add(time.Hour)
		}
		b.write(b.Store, fresh(e))
		rows = append(rows, b.get(e.Scope))
	}
	return rows
}

func pagesByDue(b *bench) {
	rows := b.populateDue(150)
	for _, limit := range []int{1, 2, 5, 1000} {
		b.duePages(rows, limit, false)
	}
	b.Clock.Advance(2 * b.tick)
	b.duePages(rows, 4, false)
	b.Clock.Advance(2 * time.Hour)
	b.duePages(rows, 4, true)
}

func dueAtTheInstant(b *bench) {
	row := b.put(b.claim())
	q := ledger.PageQuery{Order: ledger.ByDue, Shard: row.Scope.Shard(), Limit: 10}
	b.sameRows(b.pages(q), nil)
	b.Clock.Advance(claimLease + claimRetention - b.tick)
	b.sameRows(b.pages(q), nil)
	b.Clock.Advance(b.tick)
	b.sameRows(b.pages(q), []*ledger.Entry{row})
}

func neverDue(b *bench) {
	e := b.claim()
	e.HoldFrom, e.DueAt = 0, ledger.Never
	row := b.put(e)
	b.Clock.Advance(20 * 365 * 24 * time.Hour)
	b.duePages([]*ledger.Entry{row}, 10, false)
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 10}), []*ledger.Entry{row})
}

func dueUntilAnInstant(b *bench) {
	rows := b.populateDue(100)
	for _, until := range []ledger.Time{
		1, b.Clock.Now() - 1, b.Clock.Now(), b.Clock.Now() + 1, b.Clock.Now().Add(time.Hour), ledger.Never - 1, ledger.Never,
	} {
		for _, limit := range []int{1, 6, ledger.MaxPageRows} {
			for _, shard := range []int{0, 1, 7} {
				q := ledger.PageQuery{Order: ledger.ByDue, Shard: shard, DueUntil: until, Limit: limit, Lean: limit == 6}
				b.sameRows(b.pages(q), b.chosen(q, rows, b.Clock.Now()))
			}
		}
	}
}

func dueFromBound(b *bench) {
	var rows []*ledger.Entry
	put := func(due time.Duration, last byte) {
		e := b.claim()
		e.Scope = ledger.ScopeID{0x05, 31: last}
		e.DueAt = ledger.In(due)
		rows = append(rows, b.put(e))
	}
	for i := range 6 {
		put(time.Duration(i)*time.Second, byte(0x80-i))
		put(time.Duration(i)*time.Second, byte(0x90+i))
	}
	b.Clock.Advance(2 * time.Second)
	q := ledger.PageQuery{Order: ledger.ByDue, Shard: 5, Limit: 4}
	page := b.page(q)
	b.sameRows(page.Entries, b.inOrder(ledger.ByDue, rows)[:4])
	q.After = page.Next
	for _, row := range page.Entries {
		b.forget(1, rowOf(row))
	}
	b.sameRows(b.pages(q), b.inOrder(ledger.ByDue, rows)[4:6])
	b.Clock.Advance(time.Second)
	b.sameRows(b.pages(q), b.inOrder(ledger.ByDue, rows)[4:8])

	// A bound that is no row: everything that is due from that instant on.
	q.After = ledger.Cursor{DueAt: rows[4].DueAt}
	b.Clock.Advance(time.Hour)
	b.sameRows(b.pages(q), b.inOrder(ledger.ByDue, rows)[4:])
	q.After = ledger.Cursor{DueAt: rows[4].DueAt, Scope: ledger.ScopeID{0x05, 31: 0x91}}
	b.sameRows(b.pages(q), b.inOrder(ledger.ByDue, rows)[5:])
}

func dueTimeMoves(b *bench) {
	row := b.put(b.claim())
	b.Clock.Advance(claimLease + claimRetention - time.Second)
	row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
	b.Clock.Advance(time.Minute)
	b.duePages(nil, 5, false)
	row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: b.completion()})
	b.Clock.Advance(claimRetention)
	b.duePages([]*ledger.Entry{row}, 5, false)
	closed := copyEntry(row)
	closed.Closed, closed.Response, closed.DueAt = true, nil, ledger.In(time.Minute)
	row = b.mustApply(over(row, closed))
	b.duePages(nil, 5, false)
	b.Clock.Advance(time.Minute)
	b.duePages([]*ledger.Entry{row}, 5, false)
}
