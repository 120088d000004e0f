package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/ledger"
)

// sequenceCases: a store and the Model, given the same random operations, agree after every step.
func sequenceCases() []testCase {
	return []testCase{{"any sequence of operations leaves the store and the reference model in agreement, step by step", sequences}}
}

// stepsOfSequences is how many steps the random sequences take in all, unless STORETEST_STEPS says otherwise.
const stepsOfSequences = 1000

// stepsPerSequence keeps one sequence short enough to be read once it fails, and long enough for rows to live through much.
const stepsPerSequence = 250

// operation is one step. What it does to which row follows from it and the model's state, so that a sequence still makes sense when
// steps are taken out of it.
type operation struct {
	kind  string
	scope int
	seed  uint64
}

func (o operation) String() string { return fmt.Sprintf("%s(%d, %d)", o.kind, o.scope, o.seed) }

// operationKinds are drawn evenly: a kind that should come more often stands here more often.
var operationKinds = []string{
	"fresh", "fresh", "over", "over", "stale", "complete", "fail", "give up", "extend", "extend", "stranger", "forget", "forget stale",
	"advance", "advance", "advance past due", "page by name", "page by due", "setting", "setting", "delete setting",
}

func sequences(b *bench) {
	total := countFromEnvironment("STORETEST_STEPS", stepsOfSequences)
	for done := 0; done < total; done += stepsPerSequence {
		backend := b.Backend
		if done > 0 {
			backend = b.f.Open(b)
		}
		seed := b.Uint64()
		operations := draw(newGenerator(seed), min(stepsPerSequence, total-done))
		complaint := newSequence(b, backend, seed).run(operations)
		if complaint == "" {
			continue
		}
		operations, complaint = shrink(operations, complaint, func(shorter []operation) string {
			return newSequence(b, b.f.Open(b), seed).run(shorter)
		})
		b.Fatalf("seed %d: the store and the model disagree after\n  %s\n%s", seed, showOperations(operations), complaint)
	}
}

func draw(g generator, n int) []operation {
	out := make([]operation, n)
	for i := range out {
		out[i] = operation{kind: operationKinds[g.IntN(len(operationKinds))], scope: g.IntN(scopesOfSequence), seed: g.Uint64()}
	}
	return out
}

func showOperations(operations []operation) string {
	lines := make([]string, len(operations))
	for i, o := range operations {
		lines[i] = o.String()
	}
	return strings.Join(lines, "\n  ")
}

// maxShrinks bounds the work of shrinking: each try opens a store.
const maxShrinks = 60

// shrink takes steps out of a failing sequence for as long as it goes on failing.
func shrink[S any](operations []S, complaint string, run func([]S) string) ([]S, string) {
	tries := 0
	for size := len(operations) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(operations) && tries < maxShrinks; {
			tries++
			shorter := slices.Concat(operations[:from], operations[from+size:])
			if c := run(shorter); c != "" {
				operations, complaint = shorter, c
			} else {
				from += size
			}
		}
	}
	return operations, complaint
}

// scopesOfSequence is how few rows a sequence works on, so that its steps meet.
const scopesOfSequence = 6

// sequence runs operations on a store and on the model. It tells the first disagreement instead of failing, so that it can be shrunk.
type sequence struct {
	b      *bench
	store  *Backend
	clock  *Clock
	model  *Model
	scopes []ledger.ScopeID
}

func newSequence(b *bench, store *Backend, seed uint64) *sequence {
	clock := NewClock(store.Clock.Now())
	s := &sequence{b: b, store: store, clock: clock, model: store.model(clock, b.f.Margin)}
	g := newGenerator(seed)
	for i := range scopesOfSequence {
		id := g.scope()
		if i%2 == 0 {
			id[0] = 3 // some share a shard
		}
		s.scopes = append(s.scopes, id)
	}
	return s
}

func (s *sequence) run(operations []operation) string {
	for i, o := range operations {
		if complaint := s.step(o); complaint != "" {
			return fmt.Sprintf("step %d, %s: %s", i+1, o, complaint)
		}
		if i%25 == 24 || i == len(operations)-1 {
			if complaint := s.comparePages(newGenerator(o.seed)); complaint != "" {
				return fmt.Sprintf("after step %d, %s: %s", i+1, o, complaint)
			}
		}
	}
	return ""
}

func (s *sequence) step(o operation) string {
	g := newGenerator(o.seed)
	scope := s.scopes[o.scope]
	row := s.row(scope)
	switch o.kind {
	case "advance":
		s.advance(time.Duration(g.Int64N(int64(2*time.Hour/time.Microsecond))) * time.Microsecond)
		return ""
	case "advance past due":
		if row != nil && row.DueAt != ledger.Never && row.DueAt > s.clock.Now() {
			s.advance(row.DueAt.Sub(s.clock.Now()) + time.Duration(g.IntN(3)-1)*s.b.tick)
		}
		return ""
	case "page by name", "page by due":
		return s.comparePage(g, o.kind == "page by due")
	case "setting", "delete setting":
		return s.setting(g, o.kind == "delete setting")
	case "forget", "forget stale":
		return s.forget(g, o.kind == "forget stale")
	}
	w, ok := s.write(g, o.kind, scope, row)
	if !ok {
		return ""
	}
	return s.compareWrite(w)
}

func (s *sequence) row(scope ledger.ScopeID) *ledger.Entry {
	r, err := s.model.Get(s.b.ctx, scope)
	if err != nil {
		s.b.Fatalf("model: %v", err)
	}
	return r.Entry
}

// advance moves both clocks, by whole steps and never back.
func (s *sequence) advance(d time.Duration) {
	d = max(d.Truncate(s.b.tick), 0)
	s.clock.Advance(d)
	s.store.Clock.Advance(d)
}

// write makes the write of that kind, where there is one for the row as it is.
func (s *sequence) write(g generator, kind string, scope ledger.ScopeID, row *ledger.Entry) (ledger.Write, bool) {
	b := &bench{TB: s.b, generator: g}
	next := s.content(b, scope)
	switch {
	case kind == "fresh":
		return fresh(next), true
	case row == nil:
		return ledger.Write{}, false
	case kind == "over":
		w := over(row, next)
		w.MinIncarnation = row.Incarnation + ledger.Time(g.IntN(3))
		return w, true
	case kind == "stale":
		w := over(row, next)
		w.Guard.Revision += int64(g.IntN(3) - 1)
		w.Guard.Incarnation += ledger.Time(g.IntN(3) - 1)
		return w, true
	case kind == "stranger":
		w := b.claimed([]string{"complete", "fail", "give up", "extend"}[g.IntN(4)], row)
		w.Guard.Attempt += int32(g.IntN(2))
		w.Guard.Incarnation += ledger.Time(g.IntN(2))
		w.Guard.Undoubted = g.IntN(2) == 0
		if g.IntN(2) == 0 {
			w.Guard.Principal = g.principal()
		}
		return w, true
	}
	w := b.claimed(kind, row)
	if w.Extend != nil {
		w.Extend.Lease = []time.Duration{0, time.Second, time.Hour}[g.IntN(3)]
		w.Extend.Margin = []time.Duration{0, 500 * time.Millisecond}[g.IntN(2)]
	}
	if w.Settle != nil {
		w.Settle.Retention, w.Settle.Tombstone = g.length(), g.length()
	}
	return w, true
}

// content is mostly a claim, on which most can happen, else anything.
func (s *sequence) content(b *bench, scope ledger.ScopeID) *ledger.Entry {
	if b.IntN(4) == 0 {
		e := b.entry(scope)
		e.Incarnation = ledger.In(0)
		return e
	}
	e := b.claim()
	e.Scope = scope
	e.HoldFrom = []ledger.Time{0, ledger.Never, ledger.Never, ledger.In(30 * time.Minute), ledger.In(claimLease + claimRetention)}[b.IntN(5)]
	e.Doubt = b.IntN(4) == 0
	if b.IntN(3) == 0 {
		e.Terms.Bound = b.principal()
	}
	return e
}

func (s *sequence) compareWrite(w ledger.Write) string {
	want, err := s.model.Write(s.b.ctx, w)
	if err != nil {
		s.b.Fatalf("model: %v", err)
	}
	got, err := persist(s.b.ctx, s.store.Store, w)
	if err != nil {
		return fmt.Sprintf("Write: %v", err)
	}
	if got != want {
		return fmt.Sprintf("Write answers\n%+v, want\n%+v", got, want)
	}
	r, err := s.store.Store.Get(s.b.ctx, w.Scope)
	if err != nil {
		return fmt.Sprintf("Get: %v", err)
	}
	if r.Now != s.clock.Now() {
		return fmt.Sprintf("Get tells the time %d, want %d", r.Now, s.clock.Now())
	}
	return differences(s.row(w.Scope), r.Entry)
}

func (s *sequence) forget(g generator, stale bool) string {
	var rows []ledger.Row
	for _, scope := range s.scopes {
		if row := s.row(scope); row != nil && g.IntN(3) == 0 {
			named := rowOf(row)
			if stale {
				named.Revision -= int64(g.IntN(2))
				named.Incarnation -= ledger.Time(g.IntN(2))
			}
			rows = append(rows, named)
		}
	}
	want, err := s.model.Forget(s.b.ctx, rows)
	if err != nil {
		s.b.Fatalf("model: %v", err)
	}
	got, err := s.store.Store.Forget(s.b.ctx, rows)
	if err != nil || got != want {
		return fmt.Sprintf("Forget answers %d, %v, want %d", got, err, want)
	}
	return ""
}

// setting writes or deletes one of few settings, over the right revision or another. Both sides name the revision that they listed, as
// a recreated setting may count on.
func (s *sequence) setting(g generator, remove bool) string {
	change := ledger.Setting{Kind: "policy", Name: []string{"a", "b"}[g.IntN(2)], Body: g.bytes(g.IntN(20))}
	if remove {
		change.Body = nil
	}
	off := int64(g.IntN(4)/3) * 1000
	var done [2]bool
	var lists [2][]ledger.Setting
	for i, store := range []ledger.Store{s.model, s.store.Store} {
		before, err := store.Settings(s.b.ctx, change.Kind)
		if err != nil {
			return fmt.Sprintf("Settings: %v", err)
		}
		expect := off
		for _, x := range before.List {
			if x.Name == change.Name {
				expect += x.Revision
			}
		}
		if remove && expect == 0 {
			return "" // nothing to delete
		}
		if done[i], err = putSetting(s.b.ctx, store, change, expect); err != nil {
			return fmt.Sprintf("PutSetting: %v", err)
		}
		after, err := store.Settings(s.b.ctx, change.Kind)
		if err != nil {
			return fmt.Sprintf("Settings: %v", err)
		}
		for j := range after.List {
			after.List[j].Revision = 0
		}
		lists[i] = after.List
	}
	if done[0] != done[1] {
		return fmt.Sprintf("PutSetting of %s answers %t, want %t", showSetting(change), done[1], done[0])
	}
	if !slices.EqualFunc(lists[0], lists[1], func(x, y ledger.Setting) bool {
		return showSetting(x) == showSetting(y) && string(x.Body) == string(y.Body)
	}) {
		return fmt.Sprintf("the settings are %v, want %v", lists[1], lists[0])
	}
	return ""
}

// comparePage compares one page, of any kind.
func (s *sequence) comparePage(g generator, byDue bool) string {
	q := ledger.PageQuery{Order: ledger.ByName, Limit: 1 + g.IntN(8), Lean: g.IntN(2) == 0}
	if byDue {
		q.Order, q.Shard = ledger.ByDue, s.scopes[g.IntN(len(s.scopes))].Shard()
		q.DueUntil = []ledger.Time{0, 0, ledger.Never}[g.IntN(3)]
	}
	if row := s.row(s.scopes[g.IntN(len(s.scopes))]); row != nil {
		if g.IntN(2) == 0 {
			q.After = ledger.CursorOf(row)
		}
		if !byDue && g.IntN(2) == 0 {
			q.Tenant, q.States = row.Ref.Tenant, []ledger.State{row.State}
		}
	}
	return s.compareListing(q)
}

// comparePages compares everything there is, in both orders.
func (s *sequence) comparePages(g generator) string {
	if complaint := s.compareListing(ledger.PageQuery{Order: ledger.ByName, Limit: 1 + g.IntN(5)}); complaint != "" {
		return complaint
	}
	for shard := range ledger.Shards {
		if complaint := s.compareListing(ledger.PageQuery{Order: ledger.ByDue, Shard: shard, Limit: 1 + g.IntN(5)}); complaint != "" {
			return complaint
		}
	}
	return ""
}

// compareListing lists from q.After to the end on both sides. Pages themselves may be cut differently: a store that filters while it
// reads may answer short ones.
func (s *sequence) compareListing(q ledger.PageQuery) string {
	want, complaint := s.listing(s.model, q)
	if complaint != "" {
		s.b.Fatalf("model: %s", complaint)
	}
	got, complaint := s.listing(s.store.Store, q)
	if complaint != "" {
		return complaint
	}
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) {
			return fmt.Sprintf("%+v lists %d rows, want %d", q, len(got), len(want))
		}
		if diff := differences(want[i], got[i]); diff != "" {
			return fmt.Sprintf("%+v lists as row %d\n  %s, want\n  %s\n%s", q, i+1, outline(got[i]), outline(want[i]), diff)
		}
	}
	return ""
}

func (s *sequence) listing(store ledger.Store, q ledger.PageQuery) ([]*ledger.Entry, string) {
	var out []*ledger.Entry
	for range maxPages {
		page, err := store.Page(s.b.ctx, q)
		switch {
		case err != nil:
			return nil, fmt.Sprintf("Page: %v", err)
		case page.Now != s.clock.Now():
			return nil, fmt.Sprintf("Page tells the time %d, want %d", page.Now, s.clock.Now())
		}
		out = append(out, page.Entries...)
		if !page.More {
			return out, ""
		}
		q.After = page.Next
	}
	return nil, fmt.Sprintf("no end of pages after %d of them", maxPages)
}
