package sqlstore_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

type readOutcome struct {
	ledger.Reading
	err error
}

func get(ctx context.Context, s *sqlstore.Store, scope ledger.ScopeID) <-chan readOutcome {
	out := make(chan readOutcome, 1)
	go func() {
		r, err := s.Get(ctx, scope)
		out <- readOutcome{r, err}
	}()
	return out
}

// readTogether reads all of the scopes in one batch, on a store with one connection.
func readTogether(t *testing.T, s *sqlstore.Store, scopes ...ledger.ScopeID) (out []<-chan readOutcome) {
	t.Helper()
	release := sqlstore.HoldConn(t, s)
	for i, scope := range scopes {
		out = append(out, get(context.Background(), s, scope))
		waitUntil(t, func() bool { return sqlstore.WaitingReads(s) == i+1 })
	}
	release()
	return out
}

// Reads that wait for the same connection share one statement. Each gets its own entry whole, wherever its parts stand, or is told that there is none.
func TestReadsThatArriveWhileTheStoreIsBusyShareAStatement(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	settled, pending, large, missing := scopeOf(1), scopeOf(2), scopeOf(3), scopeOf(4)
	want := map[ledger.ScopeID]*ledger.Entry{}
	for _, scope := range []ledger.ScopeID{settled, pending, large} {
		mustWrite(t, s, begin(scope))
	}
	mustWrite(t, s, complete(mustGet(t, s, settled)))
	w := complete(mustGet(t, s, large))
	w.Settle.Response = &ledger.Response{Body: make([]byte, 100_000)}
	mustWrite(t, s, w)
	for _, scope := range []ledger.ScopeID{settled, pending, large} {
		want[scope] = mustGet(t, s, scope)
	}
	if got := want[large].Response; got == nil || len(got.Body) != 100_000 {
		t.Fatal("the large answer is not read whole")
	}
	before := s.Stats()
	scopes := []ledger.ScopeID{settled, missing, pending, settled, large}
	var twice []*ledger.Entry
	for i, out := range readTogether(t, s, scopes...) {
		r := <-out
		if r.err != nil || r.Now != d.Now() || !reflect.DeepEqual(r.Entry, want[scopes[i]]) {
			t.Errorf("read %d: %+v, want %+v", i, r, want[scopes[i]])
		}
		if scopes[i] == settled {
			twice = append(twice, r.Entry)
		}
	}
	if twice[0] == twice[1] || &twice[0].Response.Body[0] == &twice[1].Response.Body[0] {
		t.Error("two callers were given the same memory")
	}
	if after := s.Stats(); after.ReadBatches != before.ReadBatches+1 || after.Reads != before.Reads+5 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	r := <-readTogether(t, s, missing)[0]
	if r.err != nil || r.Entry != nil || r.Now != d.Now() {
		t.Errorf("alone, and there is none: %+v", r)
	}
}

// A batch of reads that fails is not its callers' failure: each reads by itself.
func TestReadsWhoseBatchFailsGoOnByThemselves(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	proxy := pgtest.NewProxy(t, d.url)
	s := oneConnection(t, d, proxy.URL())
	mustWrite(t, s, begin(scopeOf(1)))
	mustGet(t, s, scopeOf(1))
	for n, f := range []pgtest.Fault{pgtest.FailBefore, pgtest.FailAfter, pgtest.CutBefore, pgtest.CutAfter} {
		proxy.Arm(f, "idemd:get", "57014", 1)
		outs := readTogether(t, s, scopeOf(1), scopeOf(2))
		if r := <-outs[0]; r.err != nil || r.Entry == nil {
			t.Errorf("fault %d: %+v", f, r)
		}
		if r := <-outs[1]; r.err != nil || r.Entry != nil {
			t.Errorf("fault %d: %+v", f, r)
		}
		if proxy.Hits() != n+1 {
			t.Errorf("%d faults happened", proxy.Hits())
		}
	}
}

func TestACallerThatLeavesDoesNotWaitForItsRead(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	release := sqlstore.HoldConn(t, s)
	defer release()
	ctx, cancel := context.WithCancel(context.Background())
	out := get(ctx, s, scopeOf(1))
	waitUntil(t, func() bool { return sqlstore.WaitingReads(s) == 1 })
	cancel()
	if r := <-out; !errors.Is(r.err, context.Canceled) || errors.Is(r.err, ledger.ErrUnavailable) {
		t.Errorf("%v", r.err)
	}
}
