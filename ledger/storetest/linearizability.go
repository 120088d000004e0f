package storetest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/idemd/idemd/ledger"
)

// callRecord is what actors did to one row at once. Every applied write has a revision of its own, so the order of the writes is known, and
// what is left to judge is whether everything that anybody was told fits into that order and into real time.
type callRecord struct {
	mu     sync.Mutex
	ticks  int
	first  *ledger.Entry
	events []event
}

// event is one call, with when it was made and when it was answered.
type event struct {
	called, answered int
	// read is what Get answered; nil for a write.
	read *ledger.Entry
	// write is what Write was given, with its answer and the store's clock, which stands still.
	write   *ledger.Write
	written ledger.Written
	now     ledger.Time
}

func newCallRecord(first *ledger.Entry) *callRecord { return &callRecord{first: copyEntry(first)} }

func (h *callRecord) tick() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticks++
	return h.ticks
}

func (h *callRecord) add(e event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ticks++
	e.answered = h.ticks
	h.events = append(h.events, e)
}

// judge returns what does not fit.
func (h *callRecord) judge() []string {
	states, complaints := h.replay()
	for _, e := range h.events {
		low, high := h.window(e)
		switch {
		case e.write == nil:
			want := states[e.read.Revision]
			if !same(want, e.read) {
				complaints = append(complaints, fmt.Sprintf("read revision %d, which is not what was written: %s",
					e.read.Revision, differences(want, e.read)))
			}
			if e.read.Revision < low || e.read.Revision > high {
				complaints = append(complaints, fmt.Sprintf("read revision %d, when it must have been %d to %d", e.read.Revision, low, high))
			}
		case e.written.Applied:
			if r := e.written.Stamps.Revision; r <= low || r > high {
				complaints = append(complaints, fmt.Sprintf("wrote revision %d, when it must have been %d to %d", r, low+1, high))
			}
		default:
			if !h.refusable(e, states, low, high) {
				complaints = append(complaints,
					fmt.Sprintf("guard %+v was refused, and it held for all of revisions %d to %d", e.write.Guard, low, high))
			}
		}
	}
	return complaints
}

// replay applies the applied writes in order of revision and compares their stamps.
func (h *callRecord) replay() (map[int64]*ledger.Entry, []string) {
	var complaints []string
	var applied []event
	for _, e := range h.events {
		if e.write != nil && e.written.Applied {
			applied = append(applied, e)
		}
	}
	slices.SortFunc(applied, func(a, b event) int { return int(a.written.Stamps.Revision - b.written.Stamps.Revision) })
	row := h.first
	states := map[int64]*ledger.Entry{row.Revision: row}
	for _, e := range applied {
		next, holds := e.write.Apply(row, e.now)
		if !holds {
			complaints = append(complaints, fmt.Sprintf("guard %+v was let through at revision %d, on %s", e.write.Guard,
				e.written.Stamps.Revision, outline(row)))
			break
		}
		if want := ledger.StampsOf(next, e.now); want != e.written.Stamps {
			complaints = append(complaints, fmt.Sprintf("stamps are %+v, want %+v", e.written.Stamps, want))
			break
		}
		row = next
		states[row.Revision] = row
	}
	return states, complaints
}

// window is the range of revisions at which e can have looked at the row: not before anything that was answered before e was called, nor
// behind anything that was called after e was answered.
func (h *callRecord) window(e event) (low, high int64) {
	low, high = h.first.Revision, math.MaxInt64
	for _, other := range h.events {
		revision, wrote := other.revision()
		if revision == 0 {
			continue
		}
		if other.answered < e.called {
			low = max(low, revision)
		}
		if other.called > e.answered {
			if wrote {
				revision--
			}
			high = min(high, revision)
		}
	}
	return low, high
}

// revision is the revision that e saw or wrote, 0 where it tells none.
func (e event) revision() (revision int64, wrote bool) {
	switch {
	case e.write == nil:
		return e.read.Revision, false
	case e.written.Applied:
		return e.written.Stamps.Revision, true
	default:
		return 0, false
	}
}

func (h *callRecord) refusable(e event, states map[int64]*ledger.Entry, low, high int64) bool {
	for revision := low; revision <= high; revision++ {
		row := states[revision]
		if row == nil {
			return false
		}
		if !e.write.Guard.Holds(row, e.now) {
			return true
		}
	}
	return false
}

// actor reads and writes one row and notes what it was told.
type actor struct {
	store ledger.Store
	g     generator
	h     *callRecord
	last  *ledger.Entry
}

func (a *actor) step(ctx context.Context) error {
	e := event{called: a.h.tick(), now: a.last.Last.BeganAt}
	if a.g.IntN(3) == 0 {
		r, err := a.store.Get(ctx, a.last.Scope)
		if err != nil || r.Entry == nil {
			return fmt.Errorf("Get answers %v, %w", outline(r.Entry), err)
		}
		e.read = r.Entry
		a.last = copyEntry(r.Entry)
		a.h.add(e)
		return nil
	}
	w := a.write()
	written, err := persist(ctx, a.store, w)
	if err != nil {
		return fmt.Errorf("Write: %w", err)
	}
	e.write, e.written = &w, written
	a.h.add(e)
	return nil
}

// write is a takeover, an extension, or giving up a claim: the row never ends up in a state that nothing leaves.
func (a *actor) write() ledger.Write {
	row := a.last
	w := ledger.Write{Scope: row.Scope, Guard: claimOf(row)}
	switch a.g.IntN(4) {
	case 0:
		w.Extend = &ledger.Extend{}
	case 1:
		w.Settle = &ledger.Settle{State: ledger.Pending, Ended: ledger.EndedGaveUp, Report: a.g.digest()}
	default:
		next := copyEntry(row)
		next.Current, next.AbandonedAt = true, 0
		next.Last.Number++
		next.Last.IDHash = a.g.idHash()
		w = over(row, next)
	}
	return w
}
