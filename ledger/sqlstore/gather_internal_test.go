package sqlstore

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/idemd/idemd/ledger"
)

// line of a gatherer that nobody flies for: what waits is taken by the test.
func (g *gatherer) put(l *line, scope byte, size int) *call {
	c := &call{ctx: context.Background(), scope: ledger.ScopeID{scope}, size: size, done: make(chan struct{})}
	l.places <- struct{}{}
	g.queue(l, c)
	return c
}

func grounded() *gatherer {
	g := newGatherer(&Store{cfg: Config{MaxConns: 4}})
	g.flying = maxFlights
	return g
}

func scopesOf(batch []*call) (out []byte) {
	for _, c := range batch {
		out = append(out, c.scope[0])
	}
	return out
}

func TestABatchIsInTheOrderOfItsScopesAndOfArrivalWithinOne(t *testing.T) {
	g := grounded()
	a, b := g.put(&g.later, 3, 0), g.put(&g.later, 3, 0)
	g.put(&g.later, 1, 0)
	g.put(&g.sooner, 2, 0)
	batch := g.take()
	if got := scopesOf(batch); !slices.Equal(got, []byte{1, 2, 3, 3}) {
		t.Errorf("the order is %v", got)
	}
	if batch[2] != a || batch[3] != b {
		t.Error("two writes of one scope changed places")
	}
	if len(g.sooner.places)+len(g.later.places) != 0 {
		t.Error("who was taken still has a place in the line")
	}
}

func TestReportsGoAheadOfNewGrantsAndDoNotStarveThem(t *testing.T) {
	g := grounded()
	for n := range 2 * maxBatch {
		g.put(&g.later, byte(n%100), 0)
	}
	for n := range 2 * maxBatch {
		g.put(&g.sooner, byte(100+n%100), 0)
	}
	reports := 0
	for _, scope := range scopesOf(g.take()) {
		if scope >= 100 {
			reports++
		}
	}
	if reports != maxBatch-laterShare {
		t.Errorf("%d reports in the first batch of %d, want %d", reports, maxBatch, maxBatch-laterShare)
	}
}

// While a write of a scope is on its way, others of the same scope keep their place, and are taken afterwards; they hold up nobody else.
func TestTwoBatchesNeverHoldWritesOfOneScope(t *testing.T) {
	g := grounded()
	g.put(&g.later, 1, 0)
	first := g.take()
	g.put(&g.later, 1, 0)
	g.put(&g.sooner, 1, 0)
	g.put(&g.later, 2, 0)
	if got := scopesOf(g.take()); !slices.Equal(got, []byte{2}) {
		t.Errorf("while a batch with scope 1 is on its way, the next one holds %v", got)
	}
	g.landed(first)
	if got := scopesOf(g.take()); !slices.Equal(got, []byte{1, 1}) {
		t.Errorf("after it landed, the next one holds %v", got)
	}
}

func TestABatchHoldsSoManyBytesAndAtLeastOneWrite(t *testing.T) {
	g := grounded()
	g.put(&g.later, 1, 2*maxBatchBytes)
	g.put(&g.later, 2, maxBatchBytes-1)
	g.put(&g.later, 3, 1)
	g.put(&g.later, 4, 1)
	for _, want := range [][]byte{{1}, {2, 3}, {4}} {
		if got := scopesOf(g.take()); !slices.Equal(got, want) {
			t.Errorf("the batch holds %v, want %v", got, want)
		}
	}
}

func TestAWriteWhoseCallerIsGoneLeavesTheLineUnsent(t *testing.T) {
	g := grounded()
	over, cancel := context.WithCancel(context.Background())
	c := g.put(&g.later, 1, 0)
	c.ctx = over
	g.put(&g.later, 2, 0).progress.Store(withdrawn)
	g.put(&g.later, 3, 0)
	cancel()
	if got := scopesOf(g.take()); !slices.Equal(got, []byte{3}) {
		t.Errorf("the batch holds %v", got)
	}
	<-c.done
	if !errors.Is(c.err, context.Canceled) || errors.Is(c.err, ledger.ErrUnknown) || errors.Is(c.err, ledger.ErrUnavailable) {
		t.Errorf("its caller is told %v", c.err)
	}
	if len(g.later.places) != 0 {
		t.Errorf("%d places are taken in an empty line", len(g.later.places))
	}
}
