package storetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// TestTheSuiteCatchesBrokenStores breaks the model in one respect after another, and runs the cases that are there to notice. A case that
// no broken store fails says nothing about stores, so every case of the suite must be among those that caught one.
func TestTheSuiteCatchesBrokenStores(t *testing.T) {
	t.Parallel()
	cases := map[string]testCase{}
	for _, c := range suite() {
		if _, twice := cases[c.name]; twice {
			t.Errorf("two cases are named %q", c.name)
		}
		cases[c.name] = c
	}
	caught := map[string]bool{}
	for _, d := range defects() {
		for _, name := range d.caughtBy {
			caught[name] = true
		}
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			for _, name := range d.caughtBy {
				c, known := cases[name]
				if !known {
					t.Fatalf("no case is named %q", name)
				}
				if complaints := complaintsAbout(t, c, d); len(complaints) == 0 {
					t.Errorf("not caught by the case %q", name)
				} else {
					t.Logf("%s: %.300s", name, complaints[0])
				}
			}
		})
	}
	for name := range cases {
		if !caught[name] {
			t.Errorf("no broken store fails the case %q", name)
		}
	}
}

func defects() []defect {
	return slices.Concat(guardDefects(), writeDefects(), contentDefects(), pageDefects(), forgetDefects(), settingDefects(),
		badRowDefects(), otherDefects())
}

// defect is one thing wrong with a store.
type defect struct {
	name     string
	breaks   func(*brokenStore)
	caughtBy []string
}

// complaintsAbout runs one case on a store with the defect and returns what the case complained of.
func complaintsAbout(t *testing.T, c testCase, d defect) []string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		c.run(newBench(r, Factory{Open: func(testing.TB) *Backend { return openBroken(d) }}))
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.complaints
}

// recorder notes failures instead of failing. What it does not override (Context, Cleanup, TempDir) is the real test's.
type recorder struct {
	testing.TB
	mu         sync.Mutex
	complaints []string
}

func (r *recorder) Helper()             {}
func (r *recorder) Log(...any)          {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Error(args ...any)   { r.note(fmt.Sprint(args...)) }
func (r *recorder) Errorf(format string, args ...any) {
	r.note(fmt.Sprintf(format, args...))
}

func (r *recorder) Fatal(args ...any) {
	r.note(fmt.Sprint(args...))
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.note(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (r *recorder) Skip(...any) { runtime.Goexit() }

func (r *recorder) note(complaint string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complaints = append(r.complaints, complaint)
}

// brokenStore is a model with something wrong. Hooks that are nil leave it right.
type brokenStore struct {
	*Model
	clock *Clock
	// holds judges a guard.
	holds func(s *brokenStore, w ledger.Write, e *ledger.Entry, now ledger.Time) bool
	// given changes a write before it is looked at.
	given func(w *ledger.Write)
	// row changes the row as it is kept.
	row func(s *brokenStore, before, row *ledger.Entry, w ledger.Write, now ledger.Time)
	// told changes what the writer is told.
	told func(*ledger.Written)
	// read changes an entry that Get answers.
	read func(s *brokenStore, e *ledger.Entry) *ledger.Entry
	// selects, position and compare replace what makes up a page; paged changes the page.
	selects  func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool
	compare  func(order ledger.PageOrder, a, b ledger.Cursor) int
	paged    func(s *brokenStore, q ledger.PageQuery, p *ledger.Page)
	forgets  func(s *brokenStore, rows []ledger.Row) (int, error)
	settings func(s *brokenStore, list *ledger.Settings)
	puts     func(s *brokenStore, x ledger.Setting, expect int64) (bool, error)
	reopens  func(s *brokenStore) ledger.Store
	another  func(s *brokenStore) ledger.Store
	ready    func(now ledger.Time) ledger.Time
	// blames changes what a call about a bad row is told.
	blames func(error) error
	// lax takes rows of any kind, and sticky ones stay bad when they are written anew.
	lax, sticky bool
	// unguarded lets go of the lock between looking and writing.
	unguarded bool
	// deaf does not hear that a context is over.
	deaf bool
	// shares keeps what it was given and gives what it keeps.
	shares bool
	// dragged fails the write that comes after one whose caller went away.
	dragged bool
	left    atomic.Bool
	// stash is what some defects remember.
	stash map[ledger.ScopeID]*ledger.Entry

	inGap  atomic.Int32
	gate   *gate
	before bool // the clock is read before the gate, not behind it
}

func openBroken(d defect) *Backend {
	clock := NewClock(1_767_225_600_000_000)
	s := &brokenStore{Model: NewModel(clock, 0), clock: clock, stash: map[ledger.ScopeID]*ledger.Entry{}, gate: newGate()}
	d.breaks(s)
	b := &Backend{
		Store: s, Clock: clock, Block: s.gate.block, ByAge: true,
		Another: func(testing.TB) ledger.Store { return s },
		Reopen:  func(testing.TB) ledger.Store { return s },
		Spoil:   func(_ testing.TB, scope ledger.ScopeID) { s.Spoil(scope) },
	}
	if s.another != nil {
		b.Another = func(testing.TB) ledger.Store { return s.another(s) }
	}
	if s.reopens != nil {
		b.Reopen = func(testing.TB) ledger.Store { return s.reopens(s) }
	}
	return b
}

func (s *brokenStore) context(ctx context.Context) context.Context {
	if s.deaf {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

func (s *brokenStore) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	r, err := s.Model.Get(s.context(ctx), scope)
	if s.shares {
		s.mu.RLock()
		defer s.mu.RUnlock()
		r.Entry = s.entries[scope]
	}
	if err != nil && s.blames != nil {
		err = s.blames(err)
	}
	if r.Entry != nil && s.read != nil {
		r.Entry = s.read(s, r.Entry)
	}
	return r, err
}

func (s *brokenStore) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	if err := s.context(ctx).Err(); err != nil {
		s.left.Store(true)
		return ledger.Written{}, err
	}
	if s.dragged && s.left.Swap(false) {
		return ledger.Written{}, ledger.ErrUnavailable
	}
	if !s.shares {
		w = copyWrite(w)
	}
	if s.given != nil {
		s.given(&w)
	}
	now := s.clock.Now()
	if err := s.gate.pass(ctx, w.Scope); err != nil {
		return ledger.Written{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.before {
		now = s.clock.Now()
	}
	before := s.entries[w.Scope]
	holds := w.Guard.Holds(before, now)
	if s.holds != nil {
		holds = s.holds(s, w, before, now)
	}
	if !holds {
		return ledger.Written{}, nil
	}
	if s.unguarded {
		s.mu.Unlock()
		s.linger()
		s.mu.Lock()
	}
	if before == nil && w.Put == nil {
		return ledger.Written{Applied: true}, nil
	}
	row := s.change(before, w, now)
	if err := inSchema(row); err != nil && !s.lax {
		if s.blames != nil {
			err = s.blames(err)
		}
		return ledger.Written{}, err
	}
	s.entries[w.Scope] = row
	if w.Put != nil && !s.sticky {
		delete(s.spoiled, w.Scope)
	}
	written := ledger.Written{Applied: true, Stamps: ledger.StampsOf(row, now)}
	if s.told != nil {
		s.told(&written)
	}
	return written, nil
}

// change is what the write makes of the row, as if its guard held.
func (s *brokenStore) change(before *ledger.Entry, w ledger.Write, now ledger.Time) *ledger.Entry {
	forced := w
	forced.Guard = ledger.Guard{Kind: ledger.GuardAbsent}
	if before != nil {
		forced.Guard = ledger.Guard{Kind: ledger.GuardRevision, Incarnation: before.Incarnation, Revision: before.Revision}
	}
	row, _ := forced.Apply(before, now)
	if s.row != nil {
		row = copyEntry(row)
		s.row(s, before, row, w, now)
	}
	return row
}

// lingerMax is how long a writer that is alone stays in the gap: long enough for others to be scheduled on a machine that is busy.
const lingerMax = 100 * time.Millisecond

// linger stays in the gap between looking and writing until somebody else is there too, or nobody comes.
func (s *brokenStore) linger() {
	s.inGap.Add(1)
	defer s.inGap.Add(-1)
	for began := time.Now(); time.Since(began) < lingerMax && s.inGap.Load() < 2; {
		runtime.Gosched()
	}
}

func (s *brokenStore) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	ctx = s.context(ctx)
	if s.selects == nil && s.compare == nil {
		page, err := s.Model.Page(ctx, q)
		if err == nil && s.paged != nil {
			s.paged(s, q, &page)
		}
		return page, err
	}
	chosen, compare := s.selects, s.compare
	if chosen == nil {
		chosen = selects
	}
	if compare == nil {
		compare = compareCursors
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	page := ledger.Page{Next: q.After, Now: s.clock.Now()}
	for _, e := range s.entries {
		if compare(q.Order, ledger.CursorOf(e), q.After) > 0 && chosen(q, e, page.Now) {
			page.Entries = append(page.Entries, copyEntry(e))
		}
	}
	slices.SortFunc(page.Entries, func(a, b *ledger.Entry) int { return compare(q.Order, ledger.CursorOf(a), ledger.CursorOf(b)) })
	if page.More = len(page.Entries) > q.Limit; page.More {
		page.Entries = page.Entries[:q.Limit]
	}
	if n := len(page.Entries); n > 0 {
		page.Next = ledger.CursorOf(page.Entries[n-1])
	}
	return page, nil
}

func (s *brokenStore) Forget(ctx context.Context, rows []ledger.Row) (int, error) {
	if s.forgets != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.forgets(s, rows)
	}
	return s.Model.Forget(s.context(ctx), rows)
}

func (s *brokenStore) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	list, err := s.Model.Settings(s.context(ctx), kind)
	if s.settings != nil {
		s.settings(s, &list)
	}
	return list, err
}

func (s *brokenStore) PutSetting(ctx context.Context, x ledger.Setting, expect int64) (bool, error) {
	if s.puts != nil {
		return s.puts(s, x, expect)
	}
	return s.Model.PutSetting(s.context(ctx), x, expect)
}

func (s *brokenStore) Ready(ctx context.Context) (ledger.Time, error) {
	now, err := s.Model.Ready(s.context(ctx))
	if s.ready != nil {
		now = s.ready(now)
	}
	return now, err
}

// gate makes writes to one row wait.
type gate struct {
	mu      sync.Mutex
	scope   ledger.ScopeID
	closed  chan struct{}
	waiting atomic.Int32
}

func newGate() *gate { return &gate{} }

func (g *gate) block(_ testing.TB, scope ledger.ScopeID) (waiting func() bool, release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.scope, g.closed = scope, make(chan struct{})
	return func() bool { runtime.Gosched(); return g.waiting.Load() > 0 }, func() { close(g.closed) }
}

func (g *gate) pass(ctx context.Context, scope ledger.ScopeID) error {
	g.mu.Lock()
	closed := g.closed
	if g.scope != scope {
		closed = nil
	}
	g.mu.Unlock()
	if closed == nil {
		return nil
	}
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	return Until(closed)(ctx)
}

// eachClaimGuard returns the names of the claim guard cases whose name holds one of the parts.
func eachClaimGuard(parts ...string) []string {
	var out []string
	for _, c := range guardCases() {
		for _, part := range parts {
			if strings.HasPrefix(c.name, "a claim guard") && strings.Contains(c.name, part) {
				out = append(out, c.name)
			}
		}
	}
	if len(out) < len(parts) {
		panic(fmt.Sprintf("no claim guard case for one of %q", parts))
	}
	return out
}
