package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

const (
	lease     = 10 * time.Second
	retention = time.Hour
)

// scopeOf is a scope of the test's own.
func scopeOf(n byte) (id ledger.ScopeID) {
	for i := range id {
		id[i] = n + byte(i)
	}
	return id
}

// claim is an entry as a first grant writes it.
func claim(scope ledger.ScopeID) *ledger.Entry {
	return &ledger.Entry{
		Scope: scope, Ref: ledger.Ref{Tenant: "t", Operation: "o", Key: fmt.Sprintf("%x", scope[:4])}, Incarnation: ledger.In(0),
		State: ledger.Pending, Fingerprints: []ledger.Fingerprint{{Algorithm: "a", Hash: make([]byte, 32)}},
		Terms:    ledger.Terms{OnAbandoned: ledger.Reclaim, MaxAttempts: 10, Retention: retention, Tombstone: retention},
		HoldFrom: ledger.Never, RunGrants: 1, Current: true,
		Last: ledger.Attempt{
			Number: 1, IDHash: ledger.IDHash{1}, Holder: "h", Lease: lease, BeganAt: ledger.In(0), LeaseUntil: ledger.In(lease),
		},
		DueAt: ledger.In(lease + retention),
	}
}

func begin(scope ledger.ScopeID) ledger.Write {
	return ledger.Write{Scope: scope, Guard: ledger.Guard{Kind: ledger.GuardAbsent}, Put: claim(scope)}
}

func complete(e *ledger.Entry) ledger.Write {
	return ledger.Write{
		Scope: e.Scope, Guard: ledger.Guard{Kind: ledger.GuardClaim, Incarnation: e.Incarnation, Attempt: e.Last.Number},
		Settle: &ledger.Settle{
			State: ledger.Completed, Ended: ledger.EndedCompleted, Report: ledger.Digest{1},
			Response: &ledger.Response{Body: []byte("done")}, Retention: retention, Tombstone: retention,
		},
	}
}

// takeover is the next attempt over e as it was read.
func takeover(e *ledger.Entry) ledger.Write {
	c := e.Clone()
	old := c.Last
	old.Ended, old.EndedAt = ledger.EndedTakenOver, ledger.In(0)
	c.Earlier = append(c.Earlier, old)
	c.Last = ledger.Attempt{
		Number: old.Number + 1, IDHash: ledger.IDHash{2}, Lease: lease, BeganAt: ledger.In(0), LeaseUntil: ledger.In(lease),
	}
	c.DueAt = ledger.In(lease + retention)
	return ledger.Write{
		Scope: e.Scope, Guard: ledger.Guard{Kind: ledger.GuardRevision, Incarnation: e.Incarnation, Revision: e.Revision}, Put: c,
	}
}

func mustWrite(t testing.TB, s ledger.Store, w ledger.Write) ledger.Stamps {
	t.Helper()
	written, err := s.Write(context.Background(), w)
	if err != nil || !written.Applied {
		t.Fatalf("Write: applied %t, %v", written.Applied, err)
	}
	return written.Stamps
}

func mustGet(t testing.TB, s ledger.Store, scope ledger.ScopeID) *ledger.Entry {
	t.Helper()
	r, err := s.Get(context.Background(), scope)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return r.Entry
}

// checkClass checks that err is of exactly one class, and says nothing of SQL or of what the driver said.
func checkClass(t testing.TB, err, want error) {
	t.Helper()
	for _, class := range []error{ledger.ErrUnavailable, ledger.ErrUnknown, ledger.ErrContended} {
		if errors.Is(err, class) != errors.Is(want, class) {
			t.Errorf("%v: of class %q is %t, want %q", err, class, errors.Is(err, class), want)
		}
	}
	if err == nil {
		return
	}
	for _, leak := range []string{"SELECT", "INSERT", "UPDATE", "idemd_entries", "secret_text", "planted", "pgconn", "EOF"} {
		if strings.Contains(err.Error(), leak) {
			t.Errorf("the message %q says %q", err, leak)
		}
	}
}

func throughProxy(t *testing.T, d *database) (*sqlstore.Store, *pgtest.Proxy) {
	t.Helper()
	p := pgtest.NewProxy(t, d.url)
	return openStore(t, sqlstore.Config{URL: p.URL(), ClockSQL: d.clockSQL, MaxConns: 2}), p
}

// C11, and the ground of C10: the outcome of a write is not known, in each way in which that comes about, whether it happened or
// not. The store says so, does not send it again, and a reading tells.
func TestC11UnknownOutcomes(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s, proxy := throughProxy(t, d)
		faults := []struct {
			name     string
			fault    pgtest.Fault
			code     string
			happened bool
		}{
			{"cut after the commit", pgtest.CutAfter, "", true},
			{"cut before the commit", pgtest.CutBefore, "", false},
			{"40003 after the commit", pgtest.FailAfter, "40003", true},
			{"40003 before the commit", pgtest.FailBefore, "40003", false},
			{"57014 after the commit", pgtest.FailAfter, "57014", true},
			{"57P01 before the commit", pgtest.FailBefore, "57P01", false},
		}
		for i, f := range faults {
			scope := scopeOf(byte(1 + i))
			proxy.Arm(f.fault, "idemd:put-absent", f.code, 1)
			_, err := s.Write(context.Background(), begin(scope))
			checkClass(t, err, ledger.ErrUnknown)
			e := mustGet(t, s, scope)
			if (e != nil) != f.happened {
				t.Errorf("begin, %s: there is a row: %t", f.name, e != nil)
			}
			if e == nil {
				mustWrite(t, s, begin(scope))
				e = mustGet(t, s, scope)
			}
			if e.Revision != 1 {
				t.Errorf("begin, %s: revision %d, it was sent again", f.name, e.Revision)
			}
			proxy.Arm(f.fault, "idemd:settle", f.code, 1)
			_, err = s.Write(context.Background(), complete(e))
			checkClass(t, err, ledger.ErrUnknown)
			if e = mustGet(t, s, scope); (e.State == ledger.Completed) != f.happened {
				t.Errorf("complete, %s: state is %d", f.name, e.State)
			}
		}
		if want := 2 * len(faults); proxy.Hits() != want {
			t.Errorf("%d faults happened, want %d", proxy.Hits(), want)
		}
	})
}

// C16: 40001 and 40P01 in every statement, once, twice, and for ever.
func TestC16SerializationFailures(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s, proxy := throughProxy(t, d)
		for i, code := range []string{"40001", "40P01", "CR000"} {
			for times := 1; times <= 2; times++ {
				scope := scopeOf(byte(10*i + times))
				proxy.Arm(pgtest.FailBefore, "idemd:", code, times)
				mustWrite(t, s, begin(scope))
				proxy.Arm(pgtest.FailBefore, "idemd:", code, times)
				if e := mustGet(t, s, scope); e == nil || e.Revision != 1 {
					t.Errorf("%s %d times: %+v", code, times, e)
				}
				proxy.Arm(pgtest.FailBefore, "idemd:", code, times)
				if _, err := s.Page(context.Background(), ledger.PageQuery{Order: ledger.ByName, Limit: 1}); err != nil {
					t.Errorf("%s %d times: Page: %v", code, times, err)
				}
				everyOtherStatementIsRetried(t, s, scope, func() { proxy.Arm(pgtest.FailBefore, "idemd:", code, times) }, proxy.Hits)
			}
		}
		scope := scopeOf(200)
		proxy.Arm(pgtest.FailBefore, "idemd:", "40001", -1)
		_, err := s.Write(context.Background(), begin(scope))
		checkClass(t, err, ledger.ErrContended)
		_, err = s.Get(context.Background(), scope)
		checkClass(t, err, ledger.ErrContended)
		short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		if _, err = s.Write(short, begin(scopeOf(220))); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("at the end of the caller's time: %v", err)
		}
		proxy.Disarm()
		if e := mustGet(t, s, scope); e != nil {
			t.Errorf("a contended write happened")
		}
	})
}

// everyOtherStatementIsRetried sends each statement that there is for a row and for settings, each after fail, and sees that it met its fault and
// went through all the same.
func everyOtherStatementIsRetried(t *testing.T, s *sqlstore.Store, scope ledger.ScopeID, fail func(), hits func() int) {
	t.Helper()
	ctx := context.Background()
	writing := func(w ledger.Write) func() (bool, error) {
		return func() (bool, error) { r, err := s.Write(ctx, w); return r.Applied, err }
	}
	setting := ledger.Setting{Kind: "kind", Name: fmt.Sprintf("%x", scope), Body: []byte("x")}
	gone := ledger.Setting{Kind: "kind", Name: setting.Name}
	for _, x := range []struct {
		name string
		of   func(*ledger.Entry) func() (bool, error)
	}{
		{"extend", func(e *ledger.Entry) func() (bool, error) {
			return writing(ledger.Write{Scope: scope, Guard: complete(e).Guard, Extend: &ledger.Extend{Lease: lease}})
		}},
		{"replace", func(e *ledger.Entry) func() (bool, error) { return writing(takeover(e)) }},
		{"settle", func(e *ledger.Entry) func() (bool, error) { return writing(complete(e)) }},
		{"page by due time", func(*ledger.Entry) func() (bool, error) {
			return func() (bool, error) {
				_, err := s.Page(ctx, ledger.PageQuery{Order: ledger.ByDue, Shard: scope.Shard(), Limit: 1})
				return true, err
			}
		}},
		{"forget", func(e *ledger.Entry) func() (bool, error) {
			return func() (bool, error) {
				n, err := s.Forget(ctx, []ledger.Row{{Scope: scope, Incarnation: e.Incarnation, Revision: e.Revision}})
				return n == 1, err
			}
		}},
		{"make a setting", func(*ledger.Entry) func() (bool, error) {
			return func() (bool, error) { return s.PutSetting(ctx, setting, 0) }
		}},
		{"change a setting", func(*ledger.Entry) func() (bool, error) {
			return func() (bool, error) { return s.PutSetting(ctx, setting, 1) }
		}},
		{"read settings", func(*ledger.Entry) func() (bool, error) {
			return func() (bool, error) { r, err := s.Settings(ctx, "kind"); return len(r.List) > 0, err }
		}},
		{"delete a setting", func(*ledger.Entry) func() (bool, error) {
			return func() (bool, error) { return s.PutSetting(ctx, gone, 2) }
		}},
		{"ready", func(*ledger.Entry) func() (bool, error) {
			return func() (bool, error) { now, err := s.Ready(ctx); return now > 0, err }
		}},
	} {
		call, before := x.of(mustGet(t, s, scope)), hits()
		fail()
		if done, err := call(); err != nil || !done || hits() == before {
			t.Errorf("%s: done %t after %d faults, %v", x.name, done, hits()-before, err)
		}
	}
}

// C17: the insert conflicts, then the row is forgotten before it is read, with a competitor in between and without one.
func TestC17ConflictThenForgotten(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		ctx := context.Background()
		s := d.open(t)
		scope := scopeOf(1)
		for _, competitor := range []bool{false, true} {
			mustWrite(t, s, begin(scope))
			if w, err := s.Write(ctx, begin(scope)); err != nil || w.Applied {
				t.Fatalf("the second insert: applied %t, %v", w.Applied, err)
			}
			row := mustGet(t, s, scope)
			n, err := s.Forget(ctx, []ledger.Row{{Scope: scope, Incarnation: row.Incarnation, Revision: row.Revision}})
			if err != nil || n != 1 {
				t.Fatalf("Forget: %d, %v", n, err)
			}
			d.Advance(time.Second)
			if !competitor {
				if e := mustGet(t, s, scope); e != nil {
					t.Errorf("a forgotten row is there: %+v", e)
				}
				continue
			}
			mustWrite(t, s, begin(scope))
			mustWrite(t, s, complete(mustGet(t, s, scope)))
			if e := mustGet(t, s, scope); e == nil || e.State != ledger.Completed || string(e.Response.Body) != "done" {
				t.Errorf("the competitor's answer reads as %+v", e)
			}
		}
	})
}

// C18: at READ COMMITTED, the first has inserted and not committed when the second begins. It waits, and then sees the row.
func TestC18InsertMeetsUncommittedInsert(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := d.open(t)
	ctx := context.Background()
	for n, commit := range []bool{true, false} {
		scope := scopeOf(byte(1 + n))
		text, args := sqlstore.StatementFor(s, begin(scope))
		first, err := connect(t, d.url).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := first.Exec(ctx, text, args...); err != nil {
			t.Fatal(err)
		}
		second := make(chan ledger.Written, 1)
		go func() {
			w, err := s.Write(ctx, begin(scope))
			if err != nil {
				t.Errorf("the second insert: %v", err)
			}
			second <- w
		}()
		waitUntil(t, d.whoWaits(t))
		if commit {
			err = first.Commit(ctx)
		} else {
			err = first.Rollback(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		if w := <-second; w.Applied == commit {
			t.Errorf("the first one's commit is %t, and the second was applied: %t", commit, w.Applied)
		}
		if e := mustGet(t, s, scope); e == nil || e.Revision != 1 {
			t.Errorf("the second sees %+v", e)
		}
	}
}

// C20, as far as the store goes: a pool of four, and far more callers than that on one key and on several: all get through.
func TestC20MoreCallersThanConnections(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s := d.open(t)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		granted := map[ledger.ScopeID]int{}
		var wg sync.WaitGroup
		for caller := range 64 {
			wg.Go(func() {
				for n := range 9 {
					scope := scopeOf(byte(100 + n*(caller%2))) // every other caller: always the same key
					w, err := s.Write(ctx, begin(scope))
					if err == nil && w.Applied {
						mu.Lock()
						granted[scope]++
						mu.Unlock()
					}
					r, getErr := s.Get(ctx, scope)
					if err != nil || getErr != nil || r.Entry == nil {
						t.Errorf("%v, %v, %v", err, getErr, r.Entry)
					}
				}
			})
		}
		wg.Wait()
		for scope, n := range granted {
			if n != 1 {
				t.Errorf("%x was granted %d times", scope[:2], n)
			}
		}
		if len(granted) != 9 {
			t.Errorf("%d keys were granted, want 9", len(granted))
		}
	})
}

// C51, C52: parts that meet when joined, and texts that some layer folds, trims or takes for its own, are kept apart and exactly.
func TestC51C52TextsAreKeptExactly(t *testing.T) {
	texts := []string{
		" ", "  ", " a", "a ", "a", "A", "\"a\"", "'", "''", "\\", "\\x00", "%", "_", "a/b", "a:b", "b:c", "a|b", "é", "e\u0301", "ß", "ss", "İ", "i", "ı",
		"\u200b", "\ufeff", "\u00a0", "\U0010ffff", strings.Repeat("😀", 200), strings.Repeat("x", 255), "-0", "00", "0", "null", "NULL", "1e0", "1",
	}
	onEveryEngine(t, func(t *testing.T, d *database) {
		s := d.open(t)
		secret, err := ledger.NewSecret(make([]byte, ledger.SecretBytes))
		if err != nil {
			t.Fatal(err)
		}
		refs := []ledger.Ref{
			{Tenant: "a", Operation: "b:c", Key: "d"}, {Tenant: "a:b", Operation: "c", Key: "d"}, {Tenant: "a", Operation: "b", Key: "c:d"},
		}
		for _, text := range texts {
			refs = append(refs, ledger.Ref{Tenant: "t", Operation: text, Key: text})
		}
		for _, ref := range refs {
			w := begin(secret.Scope(ref))
			w.Put.Ref, w.Put.Last.Holder, w.Put.Last.Principal = ref, ref.Key, ref.Operation
			mustWrite(t, s, w)
		}
		for _, ref := range refs {
			e := mustGet(t, s, secret.Scope(ref))
			if e == nil || e.Ref != ref || e.Last.Holder != ref.Key || e.Last.Principal != ref.Operation {
				t.Errorf("%q reads as %+v", ref, e)
			}
			page, err := s.Page(context.Background(), ledger.PageQuery{Order: ledger.ByName, Tenant: ref.Tenant, Operation: ref.Operation, Limit: 10})
			if err != nil || len(page.Entries) != 1 || page.Entries[0].Ref != ref {
				t.Errorf("the page of %q has %d entries, %v", ref, len(page.Entries), err)
			}
		}
	})
}

// C80: a takeover that waits 2.5 s for the row gets its whole lease, whether the one it waited for changed the row's bytes or only
// held it. On the database's own clock.
func TestC80TakeoverThatWaitsForTheRowGetsItsWholeLease(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		ctx := context.Background()
		s := d.real(t)
		for n, hold := range []string{
			"SELECT 1 FROM idemd_entries WHERE scope_id = $1 FOR UPDATE",
			"UPDATE idemd_entries SET holder = 'touched' WHERE scope_id = $1",
		} {
			scope := scopeOf(byte(1 + n))
			mustWrite(t, s, begin(scope))
			row := mustGet(t, s, scope)
			tx, err := connect(t, d.url).Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(ctx, hold, scope[:]); err != nil {
				t.Fatal(err)
			}
			done := make(chan ledger.Stamps, 1)
			go func() { done <- mustWrite(t, s, takeover(row)) }()
			if !d.cockroach {
				waitUntil(t, d.whoWaits(t))
			}
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(2.5)"); err != nil {
				t.Fatal(err)
			}
			released, err := s.Ready(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			stamps := <-done
			if left := stamps.LeaseUntil.Sub(released); left < lease {
				t.Errorf("%s: %v of the lease are left when the row is released, want all of %v", hold, left, lease)
			}
			if stamps.BeganAt != stamps.Now || stamps.LeaseUntil.Sub(stamps.Now) != lease {
				t.Errorf("%s: the stamps are of more than one reading of the clock: %+v", hold, stamps)
			}
			if e := mustGet(t, s, scope); e.Last.Number != 2 || e.Revision != 2 {
				t.Errorf("%s: the row is %+v", hold, e)
			}
		}
	})
}

// whoWaits reports whether a statement of the store waits for a lock. PostgreSQL only.
func (d *database) whoWaits(t testing.TB) func() bool {
	conn := connect(t, d.url)
	return func() bool {
		var n int
		err := conn.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
AND wait_event_type = 'Lock' AND query LIKE '%idemd:%'`).Scan(&n)
		if err != nil {
			t.Errorf("looking for who waits: %v", err)
		}
		return n > 0
	}
}

func waitUntil(t testing.TB, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatal("it never came to that")
		}
	}
}

// A caller that leaves in the middle of a write is told that the outcome is not known, and does not cost the connection.
func TestCallerLeavesWhileAWriteIsUnderWay(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := d.open(t)
	scope := scopeOf(1)
	mustWrite(t, s, begin(scope))
	row := mustGet(t, s, scope)
	waiting, release := d.block(t, scope)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		_, err := s.Write(ctx, complete(row))
		result <- err
	}()
	waitUntil(t, func() bool { return s.Stats().Apart == 1 && waiting() }) // by itself: a batch would give the row up again
	cancel()
	err := <-result
	checkClass(t, err, ledger.ErrUnknown)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v does not wrap the context's error", err)
	}
	release()
	waitUntil(t, func() bool { return mustGet(t, s, scope).State == ledger.Completed })

	_, err = s.Write(ctx, begin(scopeOf(2)))
	if !errors.Is(err, context.Canceled) || errors.Is(err, ledger.ErrUnknown) {
		t.Errorf("a write on a context that was over before: %v", err)
	}
}
