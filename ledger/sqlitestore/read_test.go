package sqlitestore

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// TestPagesReadNoMoreThanTheyList: every page's rows come from an index in their order. Only those that an index does not tell apart may be sorted: of one
// microsecond, or of one beginning of a scope id.
func TestPagesReadNoMoreThanTheyList(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	pair(t, s, 1, 10)
	after := ledger.Cursor{Tenant: "a", Operation: "b", DueAt: 3, Scope: scopeOf(1)}
	for name, q := range map[string]ledger.PageQuery{
		"all":            {Order: ledger.ByName},
		"all, goes on":   {Order: ledger.ByName, After: after},
		"tenant":         {Order: ledger.ByName, Tenant: "a"},
		"tenant goes on": {Order: ledger.ByName, Tenant: "a", After: after},
		"operation":      {Order: ledger.ByName, Tenant: "a", Operation: "b"},
		"op. goes on":    {Order: ledger.ByName, Tenant: "a", Operation: "b", After: after},
		"states":         {Order: ledger.ByName, States: []ledger.State{ledger.Pending}, CreatedUntil: 9},
		"due":            {Order: ledger.ByDue, Shard: 2},
		"due goes on":    {Order: ledger.ByDue, Shard: 2, After: after},
		"all due":        {Order: ledger.ByDue, Shard: ledger.AllShards},
		"all due go on":  {Order: ledger.ByDue, Shard: ledger.AllShards, After: after},
	} {
		for _, q.Lean = range []bool{true, false} {
			q.Limit = 5
			for i, part := range pageStatements(q, testStart) {
				plan := planOf(t, s, part)
				last := strings.Count(plan, "USE TEMP B-TREE FOR LAST")
				if strings.Count(plan, "TEMP B-TREE") != last || strings.Contains(plan, "SCAN e") {
					t.Errorf("%s, part %d:\n%s", name, i, plan)
				}
			}
		}
	}
}

func planOf(t *testing.T, s *Store, part statementOf) string {
	t.Helper()
	var plan []string
	err := s.read(t.Context(), "plan", func(c *connection) error {
		return c.query(context.Background(), "EXPLAIN QUERY PLAN "+part.sql, append(part.args, int64(6)), func(row []any) error {
			line, _ := row[3].(string)
			plan = append(plan, line)
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}

// A page of all shards has what the pages of each have, in the order of due times, also where several entries are due at one instant.
func TestAllShardsAreOneOrder(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock(testStart)
	s := openForTest(t, Config{Dir: t.TempDir(), Clock: clock.Now})
	const entries = 100
	for n := range int64(entries) {
		pair(t, s, n, 10)
		if n%3 == 0 {
			clock.Advance(time.Second)
		}
	}
	clock.Advance(365 * 24 * time.Hour)
	collect := func(shard int) (all []*ledger.Entry) {
		q := ledger.PageQuery{Order: ledger.ByDue, Shard: shard, Limit: 7, Lean: true}
		for more := true; more; {
			page, err := s.Page(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page.Entries...)
			more, q.After = page.More, page.Next
		}
		return all
	}
	byDue := func(a, b *ledger.Entry) int {
		return cmp.Or(cmp.Compare(a.DueAt, b.DueAt), bytes.Compare(a.Scope[:], b.Scope[:]))
	}
	var parts []*ledger.Entry
	for shard := range ledger.Shards {
		parts = append(parts, collect(shard)...)
	}
	slices.SortFunc(parts, byDue)
	whole := collect(ledger.AllShards)
	if len(whole) != entries || !slices.EqualFunc(whole, parts, func(a, b *ledger.Entry) bool { return a.Scope == b.Scope }) {
		t.Errorf("%d entries in the whole order, %d in its parts, of %d", len(whole), len(parts), entries)
	}
}

// A sweep of the ledger on this store takes the whole order at once, and leaves nothing.
func TestASweepTakesAllShardsAtOnce(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock(testStart)
	s := openForTest(t, Config{Dir: t.TempDir(), Clock: clock.Now})
	for n := range int64(700) {
		pair(t, s, n, 10)
		clock.Advance(time.Millisecond)
	}
	pages := &pagesOf{Store: s}
	l, err := ledger.New(t.Context(), ledger.Config{Store: pages, SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []ledger.SweepProgress{{Examined: 700, Closed: 700}, {Examined: 700, Forgotten: 700}} {
		clock.Advance(8 * 24 * time.Hour)
		got, err := l.Sweep(t.Context(), ledger.SweepRequest{}, nil)
		if err != nil || got.Examined != want.Examined || got.Closed != want.Closed || got.Forgotten != want.Forgotten {
			t.Errorf("swept %+v, %v, want %+v", got, err, want)
		}
	}
	if n := pages.asked.Load(); n > 6 {
		t.Errorf("%d pages for twice 700 entries", n)
	}
}

// pagesOf counts the pages that a store is asked for.
type pagesOf struct {
	*Store
	asked atomic.Int64
}

func (p *pagesOf) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	p.asked.Add(1)
	return p.Store.Page(ctx, q)
}
