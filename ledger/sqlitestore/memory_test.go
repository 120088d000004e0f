package sqlitestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// recalling is a store that answers Get from memory where it can, so that the suite asks of the memory what it asks of the file.
type recalling struct{ *Store }

func (r recalling) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	reading, ok := r.Recall(scope)
	if !ok || ctx.Err() != nil {
		return r.Store.Get(ctx, scope)
	}
	// A copy down to the last byte, since who calls Get may change what it got.
	e := reading.Entry.Clone()
	fingerprints, err := ledger.DecodeFingerprints(ledger.EncodeFingerprints(e.Fingerprints))
	e.Fingerprints = fingerprints
	if err == nil {
		e.Response, e.Failure, err = ledger.DecodeAnswer(ledger.EncodeAnswer(e.Response, e.Failure))
	}
	if err == nil {
		err = ledger.DecodeHistory(ledger.EncodeHistory(e), e)
	}
	if err != nil {
		return reading, err
	}
	reading.Entry = e
	return reading, nil
}

func TestConformanceFromMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Factory{Open: func(tb testing.TB) *storetest.Backend {
		b := openBackend(tb)
		reopen := b.Reopen
		b.Store = recalling{b.Store.(*Store)}
		b.Reopen = func(tb testing.TB) ledger.Store { return recalling{reopen(tb).(*Store)} }
		return b
	}})
}

func mustWrite(t *testing.T, s *Store, w ledger.Write) ledger.Stamps {
	t.Helper()
	written, err := s.Write(t.Context(), w)
	if err != nil || !written.Applied {
		t.Fatalf("applied %t, %v", written.Applied, err)
	}
	return written.Stamps
}

func mustGet(t *testing.T, s *Store, scope ledger.ScopeID) *ledger.Entry {
	t.Helper()
	r, err := s.Get(t.Context(), scope)
	if err != nil || r.Entry == nil {
		t.Fatalf("%+v, %v", r.Entry, err)
	}
	return r.Entry
}

// settledEntry writes an entry that is settled with a body, and reads it, so that it is known.
func settledEntry(t *testing.T, s *Store, n int64, body string) *ledger.Entry {
	t.Helper()
	scope := scopeOf(n)
	mustWrite(t, s, claimed(n))
	e := mustGet(t, s, scope)
	mustWrite(t, s, ledger.Write{
		Scope: scope, Guard: ledger.Guard{Kind: ledger.GuardClaim, Incarnation: e.Incarnation, Attempt: 1},
		Settle: &ledger.Settle{
			State: ledger.Completed, Ended: ledger.EndedCompleted, Report: ledger.Digest{1}, Response: &ledger.Response{Body: []byte(body)},
			Retention: time.Hour, Tombstone: time.Hour,
		},
	})
	return mustGet(t, s, scope)
}

func recalledBody(s *Store, n int64) string {
	r, ok := s.Recall(scopeOf(n))
	if !ok {
		return "not recalled"
	}
	return string(r.Entry.Response.Body)
}

func TestASettledEntryIsRecalledOnceItWasRead(t *testing.T) {
	t.Parallel()
	moving := storetest.NewClock(testStart)
	s := openForTest(t, Config{Dir: t.TempDir(), Clock: moving.Now})
	if _, ok := s.Recall(scopeOf(1)); ok {
		t.Error("an entry is recalled that there never was")
	}
	mustWrite(t, s, claimed(1))
	mustGet(t, s, scopeOf(1))
	if _, ok := s.Recall(scopeOf(1)); ok {
		t.Error("a pending entry is recalled")
	}
	e := settledEntry(t, s, 2, "answer")
	e.Response.Body[0] = 'X' // the caller's own
	moving.Advance(7 * 24 * time.Hour)
	r, ok := s.Recall(scopeOf(2))
	if !ok || string(r.Entry.Response.Body) != "answer" {
		t.Errorf("recalled %t: %+v", ok, r.Entry)
	}
	if r.Now != moving.Now() || r.Entry.ConditionAt(r.Now) != ledger.Expired {
		t.Errorf("it is recalled as of %v, %v after its retention was over", r.Now, moving.Now().Sub(r.Now))
	}
}

// Whoever changes a settled row is seen at once: closing, erasing and resolving replace it, forgetting deletes it.
func TestWhatIsChangedIsRecalledNoMore(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	e := settledEntry(t, s, 1, "answer")
	closed := e.Clone()
	closed.Closed, closed.Response = true, nil
	over := ledger.Write{Scope: e.Scope, Guard: ledger.Guard{Kind: ledger.GuardRevision, Incarnation: e.Incarnation, Revision: e.Revision}, Put: closed}
	mustWrite(t, s, over)
	if got := recalledBody(s, 1); got != "not recalled" {
		t.Errorf("after it was closed: %s", got)
	}
	if mustGet(t, s, scopeOf(1)); recalledBody(s, 1) != "not recalled" {
		t.Error("a closed entry is recalled")
	}
	e = settledEntry(t, s, 2, "answer")
	if n, err := s.Forget(t.Context(), []ledger.Row{{Scope: e.Scope, Incarnation: e.Incarnation, Revision: e.Revision}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if got := recalledBody(s, 2); got != "not recalled" {
		t.Errorf("after it was forgotten: %s", got)
	}
	settledEntry(t, s, 2, "another")
	if got := recalledBody(s, 2); got != "another" {
		t.Errorf("what came after it: %s", got)
	}
}

// A read that began before a change, or found the row in the middle of one, may have seen it as it was: that is not taken in.
func TestAReadingFromBeforeAChangeIsNotRemembered(t *testing.T) {
	t.Parallel()
	m := newMemory(1 << 20)
	e := &ledger.Entry{Scope: scopeOf(1), State: ledger.Completed}
	early := m.before()
	m.forget(e.Scope)
	during := m.before()
	m.remember(during, e, 1)
	if m.recall(e.Scope) != nil {
		t.Error("taken in while it is being changed")
	}
	m.ended()
	m.remember(early, e, 1)
	m.remember(during, e, 1)
	if m.recall(e.Scope) != nil {
		t.Error("taken in as it was before the change")
	}
	m.remember(m.before(), e, 1)
	if m.recall(e.Scope) == nil {
		t.Error("not taken in after the change")
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	s := openForTest(t, Config{Dir: t.TempDir(), MemoryBytes: limit})
	for n := range int64(100) {
		settledEntry(t, s, n, fmt.Sprintf("%0300d", n))
		if recalledBody(s, 0) == "not recalled" {
			t.Fatalf("the one that is asked for all the time is gone after %d others", n)
		}
		if held := s.Stats().RememberedBytes; held > limit {
			t.Fatalf("%d bytes are held, more than %d", held, limit)
		}
	}
	if recalledBody(s, 99) == "not recalled" || recalledBody(s, 1) != "not recalled" {
		t.Error("it is not the least recently used one that went")
	}
	settledEntry(t, s, 200, string(make([]byte, limit/4)))
	if recalledBody(s, 200) != "not recalled" || recalledBody(s, 0) == "not recalled" {
		t.Error("one large answer pushed out many small ones")
	}
}

// Readers, and one that writes over the row again and again: nobody recalls a revision older than one that was acknowledged, or seen, before it asked.
func TestRecallNeverGoesBack(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	e := settledEntry(t, s, 1, "answer")
	var newest atomic.Int64 // the newest revision that was acknowledged or seen
	newest.Store(e.Revision)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for reader := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				least := newest.Load()
				r, ok := s.Recall(e.Scope)
				if !ok || reader == 0 {
					var err error
					if r, err = s.Get(context.Background(), e.Scope); err != nil {
						t.Error(err)
						return
					}
				}
				if r.Entry.Revision < least {
					t.Errorf("revision %d after %d was known (recalled: %t)", r.Entry.Revision, least, ok)
					return
				}
				newest.CompareAndSwap(least, max(least, r.Entry.Revision))
			}
		})
	}
	for range 300 {
		over := ledger.Write{Scope: e.Scope, Guard: ledger.Guard{Kind: ledger.GuardRevision, Incarnation: e.Incarnation, Revision: e.Revision}, Put: e}
		e.Revision = mustWrite(t, s, over).Revision
		newest.Store(max(newest.Load(), e.Revision))
	}
	close(done)
	wg.Wait()
	if s.Stats().Recalled == 0 {
		t.Error("nothing was ever recalled")
	}
}
