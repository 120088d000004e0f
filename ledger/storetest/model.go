package storetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/idemd/idemd/ledger"
)

// Model is the reference store: entries in memory, written by [ledger.Write.Apply] and nothing else. It keeps nothing beyond its own life.
// Callers own what they get and what they gave. Safe for concurrent use.
//
// A call that breaks the contract of [ledger.Store] (a page without a limit, a write without a guard) panics: it is a fault of the
// caller, and the reference is where it should show.
type Model struct {
	clock  *Clock
	margin time.Duration
	// byScope: pages by name list the entries of a name by scope id, and not by incarnation.
	byScope bool

	mu       sync.RWMutex
	entries  map[ledger.ScopeID]*ledger.Entry
	spoiled  map[ledger.ScopeID]bool // whose answer makes no sense
	settings map[settingKey]ledger.Setting
}

type settingKey struct{ kind, name string }

var _ ledger.Store = (*Model)(nil)

// NewModel returns an empty store on clock that reports margin.
func NewModel(clock *Clock, margin time.Duration) *Model {
	return &Model{
		clock: clock, margin: margin,
		entries:  map[ledger.ScopeID]*ledger.Entry{},
		spoiled:  map[ledger.ScopeID]bool{},
		settings: map[settingKey]ledger.Setting{},
	}
}

// Get implements [ledger.Store].
func (m *Model) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	if err := ctx.Err(); err != nil {
		return ledger.Reading{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.spoiled[scope] {
		return ledger.Reading{}, errSpoiled
	}
	return ledger.Reading{Entry: copyEntry(m.entries[scope]), Now: m.clock.Now()}, nil
}

var errSpoiled = fmt.Errorf("storetest: the answer was spoiled: %w", ledger.ErrBadRow)

// Spoil is [Backend.Spoil]. Whoever writes the entry anew puts it right.
func (m *Model) Spoil(scope ledger.ScopeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spoiled[scope] = true
}

// inSchema refuses a row of a kind that there is not, as the schemas do.
func inSchema(row *ledger.Entry) error {
	if row.State < ledger.Pending || row.State > ledger.FailedRetryable {
		return fmt.Errorf("storetest: no state %d: %w", row.State, ledger.ErrBadRow)
	}
	return nil
}

// Write implements [ledger.Store].
func (m *Model) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	mustBeWellFormed(w)
	if err := ctx.Err(); err != nil {
		return ledger.Written{}, err
	}
	w = copyWrite(w)
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	row, applied := w.Apply(m.entries[w.Scope], now)
	if !applied {
		return ledger.Written{}, nil
	}
	if err := inSchema(row); err != nil {
		return ledger.Written{}, err
	}
	m.entries[w.Scope] = row
	if w.Put != nil {
		delete(m.spoiled, w.Scope)
	}
	return ledger.Written{Applied: true, Stamps: ledger.StampsOf(row, now)}, nil
}

func mustBeWellFormed(w ledger.Write) {
	claim := w.Guard.Kind == ledger.GuardClaim
	kinds := 0
	for _, set := range []bool{w.Put != nil, w.Settle != nil, w.Extend != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 || claim == (w.Put != nil) {
		panic(fmt.Sprintf("storetest: malformed write: guard %d, put %t, settle %t, extend %t",
			w.Guard.Kind, w.Put != nil, w.Settle != nil, w.Extend != nil))
	}
}

// Page implements [ledger.Store].
func (m *Model) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	if q.Limit < 1 || q.Limit > ledger.MaxPageRows || (q.Operation != "" && q.Tenant == "") ||
		(q.Order != ledger.ByName && q.Order != ledger.ByDue) {
		panic(fmt.Sprintf("storetest: malformed page query: %+v", q))
	}
	if err := ctx.Err(); err != nil {
		return ledger.Page{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	now := m.clock.Now()
	var rows []*ledger.Entry
	for _, e := range m.entries {
		if m.compareCursors(q.Order, ledger.CursorOf(e), q.After) > 0 && selects(q, e, now) {
			rows = append(rows, e)
		}
	}
	slices.SortFunc(rows, func(a, b *ledger.Entry) int { return m.compareCursors(q.Order, ledger.CursorOf(a), ledger.CursorOf(b)) })
	page := ledger.Page{Next: q.After, More: len(rows) > q.Limit, Now: now}
	for _, e := range rows[:min(q.Limit, len(rows))] {
		switch {
		case q.Lean:
			page.Entries = append(page.Entries, copyEntry(lean(e)))
		case m.spoiled[e.Scope]:
			page.Bad = append(page.Bad, ledger.BadRow{Scope: e.Scope, Err: errSpoiled})
		default:
			page.Entries = append(page.Entries, copyEntry(e))
		}
		page.Next = ledger.CursorOf(e)
	}
	return page, nil
}

// selects reports whether a row belongs to what q lists, wherever its page starts.
func selects(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool {
	if q.Order == ledger.ByDue {
		return e.Scope.Shard() == q.Shard && e.DueAt <= dueUntil(q, now)
	}
	return (q.Tenant == "" || e.Ref.Tenant == q.Tenant) &&
		(q.Operation == "" || e.Ref.Operation == q.Operation) &&
		(len(q.States) == 0 || (!e.Closed && slices.Contains(q.States, e.State))) &&
		(q.CreatedUntil == 0 || e.Incarnation <= q.CreatedUntil)
}

func dueUntil(q ledger.PageQuery, now ledger.Time) ledger.Time {
	if q.DueUntil != 0 {
		return q.DueUntil
	}
	return now
}

func (m *Model) compareCursors(order ledger.PageOrder, a, b ledger.Cursor) int {
	if m.byScope {
		return compareByScope(order, a, b)
	}
	return compareCursors(order, a, b)
}

// compareByScope compares as stores do whose pages by name are not by age.
func compareByScope(order ledger.PageOrder, a, b ledger.Cursor) int {
	a.Incarnation, b.Incarnation = 0, 0
	return compareCursors(order, a, b)
}

func compareCursors(order ledger.PageOrder, a, b ledger.Cursor) int {
	if order == ledger.ByDue {
		return cmp.Or(cmp.Compare(a.DueAt, b.DueAt), bytes.Compare(a.Scope[:], b.Scope[:]))
	}
	return cmp.Or(
		strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Operation, b.Operation), cmp.Compare(a.Incarnation, b.Incarnation), bytes.Compare(a.Scope[:], b.Scope[:]),
	)
}

// lean is e as a lean page shows it.
func lean(e *ledger.Entry) *ledger.Entry {
	c := *e
	c.Response, c.Failure, c.Earlier, c.Evidence, c.Resolutions = nil, nil, nil, nil, nil
	return &c
}

// Forget implements [ledger.Store].
func (m *Model) Forget(ctx context.Context, rows []ledger.Row) (int, error) {
	if len(rows) > ledger.MaxForgetBatch {
		panic(fmt.Sprintf("storetest: %d rows in one batch of Forget", len(rows)))
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	forgotten := 0
	for _, r := range rows {
		if e := m.entries[r.Scope]; e != nil && e.Incarnation == r.Incarnation && e.Revision == r.Revision {
			delete(m.entries, r.Scope)
			delete(m.spoiled, r.Scope)
			forgotten++
		}
	}
	return forgotten, nil
}

// Settings implements [ledger.Store].
func (m *Model) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	if err := ctx.Err(); err != nil {
		return ledger.Settings{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := ledger.Settings{Now: m.clock.Now()}
	for key, s := range m.settings {
		if key.kind == kind {
			s.Body = slices.Clone(s.Body)
			out.List = append(out.List, s)
		}
	}
	slices.SortFunc(out.List, func(a, b ledger.Setting) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// PutSetting implements [ledger.Store].
func (m *Model) PutSetting(ctx context.Context, s ledger.Setting, expect int64) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	key := settingKey{s.Kind, s.Name}
	if m.settings[key].Revision != expect {
		return false, nil
	}
	if s.Body == nil {
		delete(m.settings, key)
		return true, nil
	}
	s.Body = append([]byte{}, s.Body...)
	s.Revision = expect + 1
	s.UpdatedAt = m.clock.Now()
	m.settings[key] = s
	return true, nil
}

// Ready implements [ledger.Store].
func (m *Model) Ready(ctx context.Context) (ledger.Time, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return m.clock.Now(), nil
}

// Margin implements [ledger.Store].
func (m *Model) Margin() time.Duration { return m.margin }

// Len is how many rows there are.
func (m *Model) Len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return len(m.entries)
}
