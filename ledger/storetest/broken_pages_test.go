package storetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/ledger"
)

// choosing breaks what a page selects.
func choosing(selects func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool) func(*brokenStore) {
	return func(s *brokenStore) { s.selects = selects }
}

// paging breaks a page that was right.
func paging(change func(s *brokenStore, q ledger.PageQuery, p *ledger.Page)) func(*brokenStore) {
	return func(s *brokenStore) { s.paged = change }
}

// asking breaks the question that a page answers.
func asking(change func(q *ledger.PageQuery)) func(*brokenStore) {
	return choosing(func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool {
		change(&q)
		return selects(q, e, now)
	})
}

func pageDefects() []defect { return append(scopePageDefects(), duePageDefects()...) }

const everyRowInOrder = "pages by name list every row once, in order of tenant, operation and the store's own order by their bytes, at every page size"

func scopePageDefects() []defect {
	zero := ledger.Cursor{}
	return []defect{
		{"promises more of nothing", paging(func(_ *brokenStore, _ ledger.PageQuery, p *ledger.Page) {
			if len(p.Entries) == 0 {
				p.More, p.Next.Tenant, p.Next.DueAt = true, p.Next.Tenant+"a", p.Next.DueAt+1
			}
		}), []string{"a page of an empty store is empty and the last"}},
		{"doubles a row", paging(func(_ *brokenStore, _ ledger.PageQuery, p *ledger.Page) {
			if n := len(p.Entries); n > 1 && p.More {
				p.Next = ledger.CursorOf(p.Entries[n-2])
			}
		}), []string{everyRowInOrder, "a row that stays is listed once while others come, change and go during the paging"}},
		{"misses a row between pages", paging(func(_ *brokenStore, q ledger.PageQuery, p *ledger.Page) {
			if q.After != zero && len(p.Entries) > 0 {
				p.Entries = p.Entries[1:]
			}
		}), []string{everyRowInOrder, "rows that stay are each listed once while others are written at once"}},
		{"orders texts without case", func(s *brokenStore) {
			s.compare = func(order ledger.PageOrder, a, b ledger.Cursor) int {
				if order == ledger.ByDue {
					return compareCursors(order, a, b)
				}
				return cmp.Or(strings.Compare(strings.ToLower(a.Tenant), strings.ToLower(b.Tenant)), compareCursors(order, a, b))
			}
		}, []string{everyRowInOrder}},
		{"gives one row too many", paging(func(s *brokenStore, q ledger.PageQuery, p *ledger.Page) {
			if q.Limit++; p.More {
				*p, _ = s.Model.Page(context.Background(), q)
			}
		}), []string{"a page holds at most as many rows as it was asked for"}},
		{"ignores the operation", asking(func(q *ledger.PageQuery) { q.Operation = "" }),
			[]string{"pages by name narrow to a tenant, and to an operation of it"}},
		{"takes closed rows for their state", choosing(func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool {
			open := *e
			open.Closed = false
			return selects(q, &open, now)
		}), []string{"pages by name narrow to stored states that are not closed"}},
		{"leaves out the instant itself", asking(func(q *ledger.PageQuery) {
			if q.CreatedUntil != 0 && q.CreatedUntil != ledger.Never {
				q.CreatedUntil--
			}
		}), []string{"pages by name narrow to incarnations up to an instant, that instant included"}},
		{"narrows by one thing only", asking(func(q *ledger.PageQuery) {
			if len(q.States) > 0 {
				q.CreatedUntil = 0
			}
		}), []string{"pages by name narrow by everything at once"}},
		{"starts from the start where the bound is no row", paging(func(s *brokenStore, q ledger.PageQuery, p *ledger.Page) {
			if s.entries[q.After.Scope] == nil {
				q.After = zero
				*p, _ = s.Model.Page(context.Background(), q)
			}
		}), []string{
			"pages by name go on from any position, also one where no row is",
			"a row that stays is listed once while others come, change and go during the paging",
		}},
		{"shows lean entries always", paging(func(_ *brokenStore, _ ledger.PageQuery, p *ledger.Page) {
			for i, e := range p.Entries {
				p.Entries[i] = lean(e)
			}
		}), []string{"a full page shows whole entries"}},
		{"shows whole entries always", paging(func(s *brokenStore, q ledger.PageQuery, p *ledger.Page) {
			q.Lean = false
			*p, _ = s.Model.Page(context.Background(), q)
		}), []string{"a lean page leaves out answer, earlier attempts, evidence and resolutions, and nothing else"}},
	}
}

func duePageDefects() []defect {
	return []defect{
		{"mixes the shards", choosing(func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool {
			q.Shard = e.Scope.Shard()
			return selects(q, e, now)
		}), []string{"pages by due time list each shard's due rows once, in order of due time and scope id, at every page size"}},
		{"orders what is due by scope", func(s *brokenStore) {
			s.compare = func(order ledger.PageOrder, a, b ledger.Cursor) int {
				if order == ledger.ByDue {
					return bytes.Compare(a.Scope[:], b.Scope[:])
				}
				return compareCursors(order, a, b)
			}
		}, []string{"pages by due time list each shard's due rows once, in order of due time and scope id, at every page size"}},
		{"is due a step late", choosing(func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool { return selects(q, e, now-1) }),
			[]string{"a row is due at its very instant and not one step before"}},
		{"is due a step early", choosing(func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool { return selects(q, e, now+1) }),
			[]string{"a row is due at its very instant and not one step before"}},
		{"looks at the clock only", asking(func(q *ledger.PageQuery) { q.DueUntil = 0 }),
			[]string{"pages by due time reach up to an instant, that instant included, whatever the clock says"}},
		{"takes never for the past", choosing(func(q ledger.PageQuery, e *ledger.Entry, now ledger.Time) bool {
			past := *e
			if past.DueAt == ledger.Never {
				past.DueAt = 0
			}
			return selects(q, &past, now)
		}), []string{"a row that is never due is in no page by due time"}},
		{"goes on from the next instant", func(s *brokenStore) {
			s.compare = func(order ledger.PageOrder, a, b ledger.Cursor) int {
				if order == ledger.ByDue {
					return cmp.Compare(a.DueAt, b.DueAt)
				}
				return compareCursors(order, a, b)
			}
		}, []string{"pages by due time go on from a remembered bound and see what has become due since"}},
	}
}

// forgetting breaks Forget by judging rows another way.
func forgetting(matches func(e *ledger.Entry, r ledger.Row) bool) func(*brokenStore) {
	return func(s *brokenStore) {
		s.forgets = func(s *brokenStore, rows []ledger.Row) (int, error) {
			n := 0
			for _, r := range rows {
				if e := s.entries[r.Scope]; e != nil && matches(e, r) {
					delete(s.entries, r.Scope)
					n++
				}
			}
			return n, nil
		}
	}
}

func asRead(e *ledger.Entry, r ledger.Row) bool {
	return e.Incarnation == r.Incarnation && e.Revision == r.Revision
}

func forgetDefects() []defect {
	return []defect{
		{"counts and forgets nothing", func(s *brokenStore) {
			s.forgets = func(_ *brokenStore, rows []ledger.Row) (int, error) { return len(rows), nil }
		}, []string{
			"forgetting deletes the row as it was read, its body too", "an absent guard holds again once the row was forgotten",
			"forgetting counts the rows that it deleted and passes over those that are gone",
		}},
		{"forgets rows that were written since", forgetting(func(e *ledger.Entry, r ledger.Row) bool { return e.Incarnation == r.Incarnation }),
			[]string{"forgetting leaves a row alone that was written since"}},
		{"forgets a stranger's row", forgetting(func(e *ledger.Entry, r ledger.Row) bool { return e.Revision == r.Revision }),
			[]string{"forgetting leaves a stranger's row alone that came after the one that was read"}},
		{"can not forget nothing", func(s *brokenStore) {
			s.forgets = func(*brokenStore, []ledger.Row) (int, error) { return 0, errors.New("syntax error at )") }
		}, []string{"forgetting nothing is nothing"}},
		{"forgets half a batch", func(s *brokenStore) {
			forgetting(asRead)(s)
			whole := s.forgets
			s.forgets = func(s *brokenStore, rows []ledger.Row) (int, error) { return whole(s, rows[:min(len(rows), 500)]) }
		}, []string{"forgetting takes a whole batch at once"}},
		{"leaves bodies of forgotten rows behind", func(s *brokenStore) {
			forgetting(func(e *ledger.Entry, r ledger.Row) bool {
				s.stash[e.Scope] = e
				return asRead(e, r)
			})(s)
			s.row = func(s *brokenStore, _, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
				if old := s.stash[row.Scope]; old != nil && row.Response != nil && len(row.Response.Body) == 0 {
					row.Response.Body = old.Response.Body
				}
			}
		}, []string{"what comes after a forgotten row has nothing of it"}},
		{"forgets and writes without looking at each other", func(s *brokenStore) {
			forgetting(func(e *ledger.Entry, r ledger.Row) bool { return true })(s)
			judging(ledger.GuardRevision, func(g ledger.Guard, e *ledger.Entry, now ledger.Time) bool {
				return e == nil || g.Holds(e, now)
			})(s)
		}, []string{"forgetting a row and writing over it at once: one of them is refused"}},
	}
}

func settingDefects() []defect {
	putting := func(put func(s *brokenStore, x ledger.Setting, expect int64) (bool, error)) func(*brokenStore) {
		return func(s *brokenStore) { s.puts = put }
	}
	unlooked := putting(func(s *brokenStore, x ledger.Setting, expect int64) (bool, error) {
		if s.revisionOfSetting(x) != expect {
			return false, nil
		}
		s.linger()
		s.mu.Lock()
		defer s.mu.Unlock()
		x.Revision, x.UpdatedAt = expect+1, s.clock.Now()
		s.Model.settings[settingKey{x.Kind, x.Name}] = x
		return true, nil
	})
	return []defect{
		{"has settings of its own", func(s *brokenStore) {
			s.settings = func(_ *brokenStore, l *ledger.Settings) { l.List = append(l.List, ledger.Setting{Name: "schema"}) }
		}, []string{"a kind without settings is an empty list"}},
		{"stamps a setting at its creation only", func(s *brokenStore) {
			s.settings = func(s *brokenStore, l *ledger.Settings) {
				for i := range l.List {
					l.List[i].UpdatedAt = l.List[i].UpdatedAt.Add(time.Duration(1-l.List[i].Revision) * time.Second)
				}
			}
		}, []string{"a setting is created once, written over its revision, and stamped by the store's clock"}},
		{"ignores the revision of a setting", putting(func(s *brokenStore, x ledger.Setting, _ int64) (bool, error) {
			return s.Model.PutSetting(context.Background(), x, s.revisionOfSetting(x))
		}), []string{"a setting is not written over another revision", "of many that write over the same revision of a setting one does"}},
		{"deletes a setting at any revision", putting(func(s *brokenStore, x ledger.Setting, expect int64) (bool, error) {
			if x.Body == nil {
				expect = s.revisionOfSetting(x)
			}
			return s.Model.PutSetting(context.Background(), x, expect)
		}), []string{"a setting is deleted at its revision only, and its name is free again"}},
		{"folds the kinds of settings", putting(func(s *brokenStore, x ledger.Setting, expect int64) (bool, error) {
			x.Kind = strings.TrimSpace(x.Kind)
			return s.Model.PutSetting(context.Background(), x, expect)
		}), []string{"settings are kept by kind and listed by name, in order of their bytes"}},
		{"lists settings in no order", func(s *brokenStore) {
			s.settings = func(_ *brokenStore, l *ledger.Settings) { slices.Reverse(l.List) }
		}, []string{"settings are kept by kind and listed by name, in order of their bytes"}},
		{"takes an empty setting for a deleted one", putting(func(s *brokenStore, x ledger.Setting, expect int64) (bool, error) {
			if len(x.Body) == 0 {
				x.Body = nil
			}
			return s.Model.PutSetting(context.Background(), x, expect)
		}), []string{"names and bodies of settings come back as they are, the empty ones too"}},
		{"looks at a setting and then writes it", unlooked, []string{
			"of many that create a setting at once one does", "of many that write over the same revision of a setting one does",
		}},
		{"shows settings to others later", func(s *brokenStore) {
			s.another = func(s *brokenStore) ledger.Store {
				old := NewModel(s.clock, 0)
				return old
			}
		}, []string{"a setting written through one handle is seen through another at once"}},
	}
}

func (s *brokenStore) revisionOfSetting(x ledger.Setting) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.Model.settings[settingKey{x.Kind, x.Name}].Revision
}

// staleReader reads what a row was one write ago.
type staleReader struct{ *brokenStore }

func (s staleReader) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	r, err := s.brokenStore.Get(ctx, scope)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if old := s.stash[scope]; old != nil {
		r.Entry = copyEntry(old)
	}
	return r, err
}

// remembering keeps of every row what it was one write ago.
func remembering(s *brokenStore) {
	s.row = func(s *brokenStore, before, _ *ledger.Entry, w ledger.Write, _ ledger.Time) {
		s.stash[w.Scope] = before
	}
	s.another = func(s *brokenStore) ledger.Store { return staleReader{s} }
}

func otherDefects() []defect {
	return []defect{
		{"is on another clock when it is ready", func(s *brokenStore) { s.ready = func(now ledger.Time) ledger.Time { return now + 1 } },
			[]string{"Ready, Get, Page and Settings tell the store's clock"}},
		{"knows no margin", func(s *brokenStore) { s.margin = time.Second }, []string{"Margin is what the backend says"}},
		{"looks at the row and then writes", func(s *brokenStore) { s.unguarded = true }, []string{
			"of 64 that put a row at once one does, and all others see its row afterwards",
			"of many that write over the same revision one does, round after round",
			"of many that settle one claim at once one does, and every extension came before it",
			"extensions at once all go through, each with a revision of its own, and the longest stands",
			"a takeover and the holder's report at once: one of them is refused",
			"reads and guarded writes at once are linearizable",
		}},
		{"reads what was, through another handle", remembering,
			[]string{"a write is seen at once through another handle", "reads and guarded writes at once are linearizable"}},
		{"is deaf to contexts", func(s *brokenStore) { s.deaf = true }, []string{
			"with a cancelled context nothing is done, and every method says so",
			"with a context past its deadline nothing is done, and every method says so",
		}},
		{"fails the writes beside one whose caller went away", func(s *brokenStore) { s.dragged = true },
			[]string{"callers that go away take nobody along who writes at the same time"}},
		{"tells a writer what another was told", func(s *brokenStore) {
			var last ledger.Written
			s.told = func(w *ledger.Written) { last, *w = *w, last }
		}, []string{"of writes to many rows at once, some of them refused, each is told its own outcome"}},
		{"writes half a row when its caller goes away", keeping(func(before, row *ledger.Entry, w ledger.Write, _ ledger.Time) {
			if before != nil {
				row.Settlement = ledger.Digest{}
			}
		}), []string{"a write cancelled in its course is there whole or not at all"}},
		{"acknowledges settings without keeping them", func(s *brokenStore) {
			s.reopens = func(s *brokenStore) ledger.Store { clear(s.Model.settings); return s }
		}, []string{"reopened, the store holds every entry and setting that it acknowledged, as it was"}},
		{"acknowledges a row without keeping it", func(s *brokenStore) {
			s.reopens = func(s *brokenStore) ledger.Store {
				for scope := range s.entries {
					delete(s.entries, scope)
					break
				}
				return s
			}
		}, []string{
			"reopened, the store holds every entry and setting that it acknowledged, as it was",
			"reopened, the store holds what many writers were told they wrote at once",
		}},
		{"brings forgotten rows back", func(s *brokenStore) {
			forgetting(func(e *ledger.Entry, r ledger.Row) bool {
				s.stash[e.Scope] = e
				return asRead(e, r)
			})(s)
			s.reopens = func(s *brokenStore) ledger.Store {
				for scope, e := range s.stash {
					s.entries[scope] = e
				}
				return s
			}
		}, []string{"reopened, forgotten rows and deleted settings stay gone"}},
		{"starts again with an old clock", func(s *brokenStore) {
			s.reopens = func(s *brokenStore) ledger.Store {
				s.ready = func(now ledger.Time) ledger.Time { return now.Add(-time.Second) }
				return s
			}
		}, []string{"reopened, guards hold as before and the clock has not gone back"}},
	}
}
