package storetest

import (
	"time"

	"github.com/idemd/idemd/ledger"
)

// guardCases: every guard, where it holds and where it does not.
func guardCases() []testCase {
	out := []testCase{
		{"an absent guard holds where there is no row", func(b *bench) { b.expect(fresh(b.claim()), true) }},
		{"an absent guard does not hold where there is a row, whatever its state", absentGuardOnRows},
		{"an absent guard holds again once the row was forgotten", absentGuardAfterForgetting},
		{"a revision guard holds for the row as it was read, whatever its state", revisionGuardHolds},
		{"a revision guard does not hold for an older or a newer revision", revisionGuardOtherRevision},
		{"a revision guard does not hold for the same revision of another incarnation", revisionGuardOtherIncarnation},
		{"a revision guard does not hold where there is no row", revisionGuardWithoutRow},
		{"a revision guard does not hold for a stranger's row at the same revision, written after the row was forgotten", revisionGuardStranger},
		{"a revision guard holds for a lapsed row: it does not look at the clock", revisionGuardIgnoresClock},
		{"a revision guard holds only once for the same revision", revisionGuardOnce},
	}
	for _, c := range claimGuardTable() {
		verb := "does not hold"
		if c.holds {
			verb = "holds"
		}
		out = append(out, testCase{"a claim guard " + verb + " " + c.name, func(b *bench) { claimGuardCase(b, c) }})
	}
	return append(out, testCase{"a claim guard does not hold where there is no row", claimGuardWithoutRow})
}

// expect applies w and checks that its guard holds or does not.
func (b *bench) expect(w ledger.Write, holds bool) {
	b.Helper()
	if applied := b.apply(w); applied != holds {
		b.Errorf("guard %+v: holds is %t, want %t", w.Guard, applied, holds)
	}
}

func absentGuardOnRows(b *bench) {
	for _, state := range []ledger.State{ledger.Pending, ledger.Completed, ledger.FailedFinal, ledger.FailedRetryable} {
		for _, closed := range []bool{false, true} {
			e := b.entry(b.scope())
			e.State, e.Closed, e.Response, e.Failure = state, closed, nil, nil
			row := b.put(e)
			b.expect(fresh(b.entry(row.Scope)), false)
		}
	}
}

func absentGuardAfterForgetting(b *bench) {
	row := b.put(b.entry(b.scope()))
	b.forget(1, rowOf(row))
	b.expect(fresh(b.entry(row.Scope)), true)
}

func revisionGuardHolds(b *bench) {
	scope := b.scope()
	row := b.put(b.entry(scope))
	for range 20 {
		row = b.mustApply(over(row, b.entry(scope)))
	}
}

func revisionGuardOtherRevision(b *bench) {
	first := b.put(b.claim())
	changed := b.entry(first.Scope)
	changed.Incarnation = first.Incarnation
	second := b.mustApply(over(first, changed))
	for _, revision := range []int64{second.Revision - 1, second.Revision + 1, 0, -1} {
		w := over(second, b.entry(first.Scope))
		w.Guard.Revision = revision
		b.expect(w, false)
	}
	b.expect(over(second, b.entry(first.Scope)), true)
}

func revisionGuardOtherIncarnation(b *bench) {
	row := b.put(b.claim())
	for _, incarnation := range []ledger.Time{row.Incarnation - 1, row.Incarnation + 1, 0, ledger.Never} {
		w := over(row, b.entry(row.Scope))
		w.Guard.Incarnation = incarnation
		b.expect(w, false)
	}
}

func revisionGuardWithoutRow(b *bench) {
	e := b.entry(b.scope())
	e.Revision = 1
	b.expect(over(e, e), false)
	e.Revision, e.Incarnation = 0, 0
	b.expect(over(e, b.entry(e.Scope)), false)
}

func revisionGuardStranger(b *bench) {
	row := b.put(b.claim())
	b.forget(1, rowOf(row))
	b.Clock.Advance(b.tick)
	stranger := b.claim()
	stranger.Scope = row.Scope
	if got := b.put(stranger); got.Revision != row.Revision || got.Incarnation == row.Incarnation {
		b.Fatalf("want the same revision of another incarnation, got %s after %s", outline(got), outline(row))
	}
	b.expect(over(row, b.entry(row.Scope)), false)
}

func revisionGuardIgnoresClock(b *bench) {
	row := b.put(b.claim())
	b.Clock.Advance(claimLease + claimRetention + time.Second)
	b.expect(over(row, b.entry(row.Scope)), true)
}

func revisionGuardOnce(b *bench) {
	row := b.put(b.claim())
	for _, first := range []bool{true, false} {
		next := b.entry(row.Scope)
		next.Incarnation = row.Incarnation
		b.expect(over(row, next), first)
	}
}

// claimGuardRow is a row and a guard that differ from a live claim and its holder in one respect.
type claimGuardRow struct {
	name string
	// row changes the entry before it is put, in the bench's generator's hands.
	row func(*bench, *ledger.Entry)
	// after is how long after the put the write comes.
	after func(*bench) time.Duration
	// guard changes the guard of the row's holder.
	guard func(*bench, *ledger.Guard)
	holds bool
}

func claimGuardTable() []claimGuardRow {
	return []claimGuardRow{
		{name: "for the holder of the current claim", holds: true},
		{name: "after the lease: only a takeover ends a claim", after: later(claimLease + time.Second), holds: true},
		{name: "with another attempt's number", guard: func(b *bench, g *ledger.Guard) { g.Attempt++ }},
		{name: "with no attempt's number", guard: func(b *bench, g *ledger.Guard) { g.Attempt = 0 }},
		{name: "with an earlier attempt's number", row: secondAttempt, guard: func(b *bench, g *ledger.Guard) { g.Attempt = 1 }},
		{name: "for the second attempt", row: secondAttempt, holds: true},
		{name: "with an earlier incarnation", guard: func(b *bench, g *ledger.Guard) { g.Incarnation-- }},
		{name: "with a later incarnation", guard: func(b *bench, g *ledger.Guard) { g.Incarnation++ }},
		{name: "when the latest attempt is no longer current", row: func(b *bench, e *ledger.Entry) { e.Current = false }},
		{name: "when the entry is completed", row: inState(ledger.Completed)},
		{name: "when the entry failed for good", row: inState(ledger.FailedFinal)},
		{name: "when the entry failed and may be tried again", row: inState(ledger.FailedRetryable)},
		{name: "when the entry is closed", row: func(b *bench, e *ledger.Entry) { e.Closed = true }},
		{name: "one step before the entry lapses", after: func(b *bench) time.Duration { return claimLease + claimRetention - b.tick }, holds: true},
		{name: "at the very instant the entry lapses", after: later(claimLease + claimRetention)},
		{name: "after the entry has lapsed", after: later(claimLease + claimRetention + time.Minute)},
		{name: "past the due time of an entry that is held from before it", row: heldFrom(time.Minute), after: later(10 * time.Hour), holds: true},
		{name: "past the due time of an entry that is held from that very instant", row: heldFrom(claimLease + claimRetention),
			after: later(10 * time.Hour), holds: true},
		{name: "at the due time of an entry that would be held one step later",
			row:   func(b *bench, e *ledger.Entry) { heldFrom(claimLease+claimRetention+b.tick)(b, e) },
			after: later(claimLease + claimRetention)},
		{name: "past the due time of an entry that is always held", row: func(b *bench, e *ledger.Entry) { e.HoldFrom = 0 },
			after: later(10 * time.Hour), holds: true},
		{name: "for an entry that is never due", row: func(b *bench, e *ledger.Entry) { e.HoldFrom, e.DueAt = 0, ledger.Never },
			after: later(10 * time.Hour), holds: true},
		{name: "for the principal that the entry is bound to", row: bound, holds: true},
		{name: "for another principal than the one it is bound to", row: bound,
			guard: func(b *bench, g *ledger.Guard) { g.Principal[15] ^= 1 }},
		{name: "for nobody when the entry is bound", row: bound,
			guard: func(b *bench, g *ledger.Guard) { g.Principal = ledger.PrincipalHash{} }},
		{name: "for any principal when the entry is bound to nobody",
			guard: func(b *bench, g *ledger.Guard) { g.Principal = b.principal() }, holds: true},
		{name: "in doubt where doubt does not matter", row: doubted, holds: true},
		{name: "in doubt where the guard asks for none", row: doubted, guard: func(b *bench, g *ledger.Guard) { g.Undoubted = true }},
		{name: "out of doubt where the guard asks for none", guard: func(b *bench, g *ledger.Guard) { g.Undoubted = true }, holds: true},
	}
}

func later(d time.Duration) func(*bench) time.Duration {
	return func(*bench) time.Duration { return d }
}

func secondAttempt(b *bench, e *ledger.Entry) {
	first := e.Last
	first.BeganAt, first.LeaseUntil, first.EndedAt, first.Ended = 1, 2, 3, ledger.EndedTakenOver
	e.Earlier = []ledger.Attempt{first}
	e.Last.Number, e.Last.IDHash = 2, b.idHash()
}

func inState(state ledger.State) func(*bench, *ledger.Entry) {
	return func(b *bench, e *ledger.Entry) {
		e.State = state
		e.SettledAt, e.SettledBy, e.Settlement = ledger.In(0), 1, b.digest()
		e.Last.EndedAt, e.Last.Ended, e.Last.Report = ledger.In(0), ledger.Ended(state-1), e.Settlement
		if state == ledger.Completed {
			e.Response = b.response()
		} else {
			e.Failure = b.failure()
		}
	}
}

func heldFrom(d time.Duration) func(*bench, *ledger.Entry) {
	return func(b *bench, e *ledger.Entry) { e.HoldFrom = ledger.In(d) }
}

func bound(b *bench, e *ledger.Entry) { e.Terms.Bound = b.principal() }

func doubted(b *bench, e *ledger.Entry) { e.Doubt = true }

// claimGuardCase tries each kind of write that a claim guards, each on a row of its own.
func claimGuardCase(b *bench, c claimGuardRow) {
	for _, kind := range []string{"complete", "fail", "give up", "extend"} {
		e := b.claim()
		if c.row != nil {
			c.row(b, e)
		}
		row := b.put(e)
		if c.after != nil {
			b.Clock.Advance(c.after(b))
		}
		w := b.claimed(kind, row)
		if c.guard != nil {
			c.guard(b, &w.Guard)
		}
		if applied := b.apply(w); applied != c.holds {
			b.Errorf("%s: holds is %t, want %t", kind, applied, c.holds)
		}
	}
}

// claimed is a write of that kind by the holder of row's claim.
func (b *bench) claimed(kind string, row *ledger.Entry) ledger.Write {
	w := ledger.Write{Scope: row.Scope, Guard: claimOf(row)}
	switch kind {
	case "complete":
		w.Settle = b.completion()
	case "fail":
		w.Settle = &ledger.Settle{
			State: ledger.FailedRetryable, Ended: ledger.EndedRetryable, Report: b.digest(), Failure: b.failure(),
			Retention: claimRetention, Tombstone: claimTombstone,
		}
	case "give up":
		w.Settle = b.givingUp()
	case "extend":
		w.Extend = &ledger.Extend{}
	}
	return w
}

func claimGuardWithoutRow(b *bench) {
	for _, kind := range []string{"complete", "fail", "give up", "extend"} {
		row := b.entry(b.scope())
		b.expect(b.claimed(kind, row), false)
	}
}
