package storetest

import (
	"github.com/idemd/idemd/ledger"
)

// forgetCases: rows are deleted as they were read, or not at all.
func forgetCases() []testCase {
	return []testCase{
		{"forgetting deletes the row as it was read, its body too", forgetsTheRow},
		{"forgetting leaves a row alone that was written since", forgetsNoChangedRow},
		{"forgetting leaves a stranger's row alone that came after the one that was read", forgetsNoStranger},
		{"forgetting counts the rows that it deleted and passes over those that are gone", forgetsAndCounts},
		{"forgetting nothing is nothing", func(b *bench) { b.forget(0) }},
		{"forgetting takes a whole batch at once", forgetsABatch},
		{"what comes after a forgotten row has nothing of it", nothingIsInherited},
	}
}

// forget forgets rows and checks how many went.
func (b *bench) forget(want int, rows ...ledger.Row) {
	b.Helper()
	got, err := b.Store.Forget(b.ctx, rows)
	if err != nil {
		b.Fatalf("Forget: %v", err)
	}
	if got != want {
		b.Errorf("forgot %d of %d rows, want %d", got, len(rows), want)
	}
}

func forgetsTheRow(b *bench) {
	stays := b.put(b.claim())
	for _, size := range []int{10, 300_000} {
		row := b.put(b.claim())
		s := b.completion()
		s.Response = &ledger.Response{Body: b.bytes(size)}
		row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
		b.forget(1, rowOf(row))
		if got := b.get(row.Scope); got != nil {
			b.Errorf("still there: %s", outline(got))
		}
		b.forget(0, rowOf(row))
	}
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 10}), []*ledger.Entry{stays})
	b.leavesBehind(1)
}

func forgetsNoChangedRow(b *bench) {
	row := b.put(b.claim())
	changed := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
	b.forget(0, rowOf(row))
	older := rowOf(changed)
	older.Revision++
	b.forget(0, older)
	if diff := differences(changed, b.get(row.Scope)); diff != "" {
		b.Error(diff)
	}
}

func forgetsNoStranger(b *bench) {
	row := b.put(b.claim())
	b.forget(1, rowOf(row))
	b.Clock.Advance(b.tick)
	next := b.claim()
	next.Scope = row.Scope
	stranger := b.put(next)
	b.forget(0, rowOf(row))
	if diff := differences(stranger, b.get(row.Scope)); diff != "" {
		b.Error(diff)
	}
}

func forgetsAndCounts(b *bench) {
	var rows []ledger.Row
	var stay []*ledger.Entry
	for i := range 30 {
		row := b.put(b.entry(b.scope()))
		rows = append(rows, rowOf(row))
		if i%3 == 0 {
			stay = append(stay, b.mustApply(over(row, b.entry(row.Scope))))
		}
	}
	for range 5 {
		rows = append(rows, ledger.Row{Scope: b.scope(), Incarnation: 1, Revision: 1})
	}
	b.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	b.forget(20, rows...)
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 7}), b.inOrder(ledger.ByName, stay))
	b.forget(0, rows...)
}

func forgetsABatch(b *bench) {
	var rows []ledger.Row
	for i := range ledger.MaxForgetBatch {
		e := b.claim()
		e.Ref = ledger.Ref{Tenant: "t", Operation: "o", Key: "k"}
		e.Last.Report = ledger.Digest{byte(i)}
		written := b.write(b.Store, fresh(e))
		rows = append(rows, ledger.Row{Scope: e.Scope, Incarnation: written.Stamps.Incarnation, Revision: written.Stamps.Revision})
	}
	b.forget(ledger.MaxForgetBatch, rows...)
	b.sameRows(b.pages(ledger.PageQuery{Order: ledger.ByName, Limit: 100}), nil)
	b.leavesBehind(0)
}

func nothingIsInherited(b *bench) {
	row := b.put(b.fullest(b.scope()))
	big := copyEntry(row)
	big.Response.Body = b.bytes(300_000)
	row = b.mustApply(over(row, big))
	b.forget(1, rowOf(row))
	next := b.claim()
	next.Scope = row.Scope
	got := b.put(next)
	if got.Response != nil || got.Evidence != nil || len(got.Earlier) != 0 || len(got.Resolutions) != 0 || got.Revision != 1 {
		b.Errorf("the new row holds %s with %d earlier attempts", outline(got), len(got.Earlier))
	}
	s := b.completion()
	s.Response = &ledger.Response{}
	got = b.mustApply(ledger.Write{Scope: got.Scope, Guard: claimOf(got), Settle: s})
	if len(got.Response.Body) != 0 {
		b.Errorf("an empty answer came back with a body of %d bytes", len(got.Response.Body))
	}
}
