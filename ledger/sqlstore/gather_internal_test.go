package sqlstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/ledger"
)

// put puts a write in a lane that nobody flies for: what waits is taken by the test.
func (g *gatherer) put(l *lane, scope byte, size int) *call {
	c := &call{ctx: context.Background(), scope: ledger.ScopeID{scope}, size: size, done: make(chan struct{})}
	l.places <- struct{}{}
	g.queue(l, c)
	return c
}

// grounded is a gatherer whose lanes all seem to have a batch on its way.
func grounded() *gatherer {
	g := newGatherer(&Store{cfg: Config{MaxConns: 4}, sql: newStatements(postgreSQL, "")})
	for _, l := range g.lanes() {
		l.flying = l.most
	}
	return g
}

// next is the scopes of a lane's next batch, which does not land.
func (g *gatherer) next(l *lane) (out []byte) {
	for _, c := range g.take(l).calls {
		out = append(out, c.scope[0])
	}
	l.flying = l.most
	return out
}

func TestABatchIsInTheOrderOfItsScopes(t *testing.T) {
	g := grounded()
	for _, scope := range []byte{3, 1, 2} {
		g.put(&g.settles, scope, 0)
	}
	if got := g.next(&g.settles); !slices.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("the order is %v", got)
	}
	if len(g.settles.places) != 0 {
		t.Error("who was taken still has a place in the lane")
	}
}

func TestReportsDoNotWaitBehindNewGrants(t *testing.T) {
	g := grounded()
	for n := range 3 * maxBatch {
		g.put(&g.grants, byte(n), 0)
	}
	g.put(&g.settles, 255, 0)
	if got := g.next(&g.settles); !slices.Equal(got, []byte{255}) {
		t.Errorf("while hundreds of new grants wait, the next batch of reports holds %v", got)
	}
}

// While a write of a scope is on its way, others of the same scope keep their place, and are taken afterwards; they hold up nobody else.
func TestTwoBatchesNeverHoldWritesOfOneScope(t *testing.T) {
	g := grounded()
	g.put(&g.settles, 1, 0)
	first := g.take(&g.settles)
	g.put(&g.settles, 1, 0)
	g.put(&g.settles, 2, 0)
	g.put(&g.extensions, 1, 0)
	g.put(&g.grants, 1, 0)
	for _, x := range []struct {
		lane *lane
		want []byte
	}{{&g.settles, []byte{2}}, {&g.extensions, nil}, {&g.grants, nil}} {
		if got := g.next(x.lane); !slices.Equal(got, x.want) {
			t.Errorf("while a batch with scope 1 is on its way, the next one holds %v, want %v", got, x.want)
		}
	}
	g.landed(first)
	if got := g.next(&g.extensions); !slices.Equal(got, []byte{1}) {
		t.Errorf("after it landed, the next one holds %v", got)
	}
	if got := g.next(&g.settles); len(got) != 0 {
		t.Errorf("and another one at the same time %v", got)
	}
}

// A lane that came to rest because everything in it waited for another lane's batch goes on when that has landed.
func TestALaneGoesOnWhenTheBatchItWaitedForHasLanded(t *testing.T) {
	g := closed(t)
	g.put(&g.settles, 1, 0)
	first := g.take(&g.settles)
	c := g.put(&g.extensions, 1, 0)
	if b := g.take(&g.extensions); len(b.calls) != 0 {
		t.Fatal("it did not wait")
	}
	g.landed(first)
	<-c.done
	if !errors.Is(c.err, ledger.ErrUnavailable) || c.progress.Load() != sent {
		t.Errorf("%v, progress %d", c.err, c.progress.Load())
	}
}

// What waited in a lane while a write of its scope turned out to be held up follows that, instead of holding up a batch.
func TestAWriteThatWaitsFollowsAnotherOfItsScopeThatGoesByItself(t *testing.T) {
	g := closed(t)
	c := g.put(&g.settles, 1, 0)
	g.put(&g.settles, 2, 0)
	g.apart[ledger.ScopeID{1}] = 1
	if got := g.next(&g.settles); !slices.Equal(got, []byte{2}) {
		t.Fatalf("the batch holds %v", got)
	}
	<-c.done
	if !errors.Is(c.err, ledger.ErrUnavailable) || c.progress.Load() != byItself {
		t.Errorf("%v, progress %d", c.err, c.progress.Load())
	}
}

// closed is a grounded gatherer of a store that is closed: what is sent all the same is told so.
func closed(t *testing.T) *gatherer {
	g := grounded()
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	g.store.pool, g.store.log = pool, slog.New(slog.DiscardHandler)
	return g
}

// Of several inserts of one scope in a batch the first that came is sent. The others know what became of them when it is done: nothing.
func TestABatchSendsTheFirstInsertOfAScope(t *testing.T) {
	g := grounded()
	first, second := g.put(&g.grants, 1, 0), g.put(&g.grants, 1, 0)
	g.put(&g.grants, 2, 0)
	b := g.take(&g.grants)
	if len(b.calls) != 2 || b.calls[0] != first || len(b.late) != 1 || b.late[0] != second {
		t.Fatalf("%d are sent and %d are not", len(b.calls), len(b.late))
	}
	first.written.Applied = true
	b.finish(nil)
	<-second.done
	if !first.written.Applied || second.written.Applied || second.err != nil {
		t.Errorf("%+v and %+v, %v", first.written, second.written, second.err)
	}
}

func TestABatchHoldsSoManyWritesAndBytesAndAtLeastOne(t *testing.T) {
	g := grounded()
	g.put(&g.others, 1, 2*maxBatchBytes)
	g.put(&g.others, 2, maxBatchBytes-1)
	g.put(&g.others, 3, 1)
	g.put(&g.others, 4, 1)
	for _, want := range [][]byte{{1}, {2, 3}, {4}} {
		if got := g.next(&g.others); !slices.Equal(got, want) {
			t.Errorf("the batch holds %v, want %v", got, want)
		}
	}
	for n := range 2 * maxBatch {
		g.put(&g.grants, byte(n), 0)
	}
	if b := g.take(&g.grants); len(b.calls)+len(b.late) != maxBatch {
		t.Errorf("it holds %d writes", len(b.calls)+len(b.late))
	}
}

func TestAWriteWhoseCallerIsGoneLeavesTheLaneUnsent(t *testing.T) {
	g := grounded()
	over, cancel := context.WithCancel(context.Background())
	c := g.put(&g.grants, 1, 0)
	c.ctx = over
	g.put(&g.grants, 2, 0).progress.Store(withdrawn)
	g.put(&g.grants, 3, 0)
	cancel()
	if got := g.next(&g.grants); !slices.Equal(got, []byte{3}) {
		t.Errorf("the batch holds %v", got)
	}
	<-c.done
	if !errors.Is(c.err, context.Canceled) || errors.Is(c.err, ledger.ErrUnknown) || errors.Is(c.err, ledger.ErrUnavailable) {
		t.Errorf("its caller is told %v", c.err)
	}
	if len(g.grants.places) != 0 {
		t.Errorf("%d places are taken in an empty lane", len(g.grants.places))
	}
}
