package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

type outcome struct {
	ledger.Written
	err error
}

// gathered sends all of the writes in one batch: it holds the pool's only connection back until all wait for it. Their outcomes are in order.
func gathered(t *testing.T, s *sqlstore.Store, writes ...ledger.Write) []<-chan outcome {
	t.Helper()
	release := sqlstore.HoldConn(t, s)
	out := make([]<-chan outcome, len(writes))
	for i, w := range writes {
		out[i] = send(context.Background(), s, w)
		waitUntil(t, func() bool { return sqlstore.InLine(s) == i+1 })
	}
	release()
	return out
}

func send(ctx context.Context, s *sqlstore.Store, w ledger.Write) <-chan outcome {
	out := make(chan outcome, 1)
	go func() {
		written, err := s.Write(ctx, w)
		out <- outcome{written, err}
	}()
	return out
}

func mustApply(t *testing.T, out <-chan outcome) {
	t.Helper()
	if o := <-out; o.err != nil || !o.Applied {
		t.Errorf("applied %t, %v", o.Applied, o.err)
	}
}

func oneConnection(t *testing.T, d *database, url string) *sqlstore.Store {
	return openStore(t, sqlstore.Config{URL: url, ClockSQL: d.clockSQL, MaxConns: 1})
}

// C65 on the SQL store's side: writes of one kind that wait for the same connection share one transaction, each gets its own outcome.
func TestWritesThatArriveWhileTheStoreIsBusyShareATransaction(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s := oneConnection(t, d, d.url)
		there, other := scopeOf(9), ledger.Time(1)
		mustWrite(t, s, begin(there))
		share := func(what string, batches int64, want []bool, writes ...ledger.Write) {
			t.Helper()
			before := s.Stats()
			for i, out := range gathered(t, s, writes...) {
				if o := <-out; o.err != nil || o.Applied != want[i] {
					t.Errorf("%s, write %d: applied %t, want %t, %v", what, i, o.Applied, want[i], o.err)
				}
			}
			after := s.Stats()
			if after.Batches != before.Batches+batches || after.Writes != before.Writes+int64(len(writes)) || after.Queued != 0 || after.Apart != 0 {
				t.Errorf("%s: before %+v, after %+v: want %d more batches, %d more writes", what, before, after, batches, len(writes))
			}
		}
		share("begins", 1, []bool{true, false, true, false, true},
			begin(scopeOf(3)), begin(there), begin(scopeOf(1)), begin(scopeOf(1)), begin(scopeOf(2)))
		stranger, extending := complete(mustGet(t, s, scopeOf(1))), func(scope ledger.ScopeID) ledger.Write {
			w := complete(mustGet(t, s, scope))
			w.Settle, w.Extend = nil, &ledger.Extend{Lease: lease}
			return w
		}
		lost := extending(scopeOf(2))
		stranger.Guard.Incarnation, lost.Guard.Attempt = other, 7
		share("extensions", 1, []bool{true, false, true}, extending(scopeOf(3)), lost, extending(scopeOf(1)))
		share("reports", 1, []bool{true, false, true, true}, complete(mustGet(t, s, scopeOf(3))), stranger, complete(mustGet(t, s, there)), complete(mustGet(t, s, scopeOf(2))))
		share("two reports for one entry", 2, []bool{true, false}, complete(mustGet(t, s, scopeOf(1))), complete(mustGet(t, s, scopeOf(1))))
		if d.cockroach {
			return
		}
		// A setting of the batch's transaction only: on a connection that a pooler lends, it would be everybody's.
		var lockWait string
		if err := sqlstore.Conn(t, s).QueryRow(context.Background(), "SHOW lock_timeout").Scan(&lockWait); err != nil || lockWait != "0" {
			t.Errorf("afterwards the connection's lock_timeout is %q, %v", lockWait, err)
		}
	})
}

// What a write of a batch does to its row, and the stamps that it tells, are what ledger says.
// In the bubble time stands still while anybody works or the database is asked, and goes on when all only wait: for a timer then.
func TestALoneWriteWaitsForNoTimer(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		synctest.Test(t, func(t *testing.T) {
			s := d.real(t)
			began := time.Now()
			for n := range byte(10) {
				mustWrite(t, s, begin(scopeOf(n)))
				r, err := s.Get(t.Context(), scopeOf(n))
				if err != nil {
					t.Fatal(err)
				}
				mustWrite(t, s, complete(r.Entry))
			}
			if waited := time.Since(began); waited != 0 {
				t.Errorf("a caller who is alone waited %v for timers in ten pairs", waited)
			}
		})
	})
}

func TestAWriteDoesTheSameInABatchAsByItself(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		gatherOneOfEach(t, d, oneConnection(t, d, d.url), 1)
		// Without prepared statements the types of the arrays have to be told in another way.
		gatherOneOfEach(t, d, openStore(t, sqlstore.Config{URL: d.url, ClockSQL: d.clockSQL, MaxConns: 1, Pooler: true}), 101)
	})
}

func gatherOneOfEach(t *testing.T, d *database, s *sqlstore.Store, first byte) {
	scopes := []ledger.ScopeID{scopeOf(first), scopeOf(first + 1), scopeOf(first + 2), scopeOf(first + 3)}
	bound, notApplied := ledger.PrincipalHash{7}, 0
	rows := func() (out []*ledger.Entry) {
		for _, scope := range scopes {
			out = append(out, mustGet(t, s, scope))
		}
		return out
	}
	step := func(what string, of func(i int) ledger.Write) {
		t.Helper()
		d.Advance(time.Second)
		before, writes := rows(), make([]ledger.Write, len(scopes))
		for i := range scopes {
			writes[i] = of(i)
		}
		outs := gathered(t, s, writes...)
		for i, out := range outs {
			o := <-out
			want, applied := writes[i].Apply(before[i], d.Now())
			if o.err != nil || o.Applied != applied {
				t.Fatalf("%s %d: applied %t, want %t, %v", what, i, o.Applied, applied, o.err)
			}
			if !applied {
				notApplied++
			}
			if applied && o.Stamps != ledger.StampsOf(want, d.Now()) {
				t.Errorf("%s %d: the stamps are %+v, want %+v", what, i, o.Stamps, ledger.StampsOf(want, d.Now()))
			}
			if got := mustGet(t, s, scopes[i]); !reflect.DeepEqual(got, want) {
				t.Errorf("%s %d: the row is\n%+v, want\n%+v", what, i, got, want)
			}
		}
		if stats := s.Stats(); stats.Apart != 0 {
			t.Errorf("%s: %+v: some went by themselves", what, stats)
		}
	}
	step("begin", func(i int) ledger.Write {
		w := begin(scopes[i])
		w.Put.Last.Principal, w.Put.Ref.Key = "who", fmt.Sprint(i)
		switch i {
		case 0:
			w.Put.HoldFrom, w.Put.DueAt = ledger.In(2*time.Second), ledger.In(lease+retention) // held after two seconds, and lapses after an hour
		case 1:
			w.Put.Terms.Bound, w.Put.HoldFrom, w.Put.DueAt = bound, 0, ledger.Never
		case 2:
			w.Put.Last.Lease, w.Put.Last.LeaseUntil, w.Put.Terms.Retention = time.Second, ledger.In(time.Second), time.Second
		}
		return w
	})
	guard := func(i int) ledger.Guard {
		g := complete(rows()[i]).Guard
		g.Principal = bound
		return g
	}
	step("extend", func(i int) ledger.Write {
		return ledger.Write{Scope: scopes[i], Guard: guard(i), Extend: &ledger.Extend{Lease: time.Duration(i%2) * time.Minute, Margin: time.Second}}
	})
	d.Advance(10 * time.Second) // the third has lapsed
	step("settle", func(i int) ledger.Write {
		w := complete(rows()[i])
		w.Guard = guard(i)
		w.Settle.Retention = time.Duration(i) * retention
		if i == 3 {
			w.Guard.Principal, w.Settle.Response, w.Settle.State, w.Settle.Failure = ledger.PrincipalHash{}, nil, ledger.FailedFinal, &ledger.Failure{Code: 5}
		}
		return w
	})
	if notApplied != 1 {
		t.Errorf("%d writes were not applied, want the report for what has lapsed", notApplied)
	}
}

func TestABadWriteOfABatchFailsAlone(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s := oneConnection(t, d, d.url)
		bad, worse := begin(scopeOf(2)), begin(scopeOf(4))
		bad.Put.Terms.Bound, worse.Put.Terms.Bound = ledger.PrincipalHash{1}, ledger.PrincipalHash{1}
		execute(t, d.url, "ALTER TABLE idemd_entries ADD CONSTRAINT refuses CHECK (bound IS NULL)")
		out := gathered(t, s, begin(scopeOf(1)), bad, begin(scopeOf(3)), worse, begin(scopeOf(5)))
		for i, o := range out {
			if i%2 == 0 {
				mustApply(t, o)
				continue
			}
			refused := <-o
			checkClass(t, refused.err, ledger.ErrBadRow)
		}
		if n := d.count(t, "idemd_entries"); n != 3 {
			t.Errorf("there are %d rows, want those of the three others", n)
		}
		if stats := s.Stats(); stats.Redone != 1 || stats.Apart != 5 {
			t.Errorf("%+v", stats)
		}
		// Nor does it fail for another caller of the same scope, who left the decision to it.
		out = gathered(t, s, bad, begin(bad.Scope))
		switch refused := <-out[0]; {
		case refused.err != nil:
			checkClass(t, refused.err, ledger.ErrBadRow)
		case refused.Applied: // they go by themselves in any order: it may find the other's row
			t.Error("the bad one was applied")
		}
		mustApply(t, out[1])
	})
}

// Statements that went well are nothing without their commit: where that fails, nobody of the batch is told that something was written.
func TestABatchWhoseCommitFailsIsToldToNobody(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	_, err := connect(t, d.url).Exec(context.Background(), `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON idemd_entries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range gathered(t, s, begin(scopeOf(1)), begin(scopeOf(2))) {
		o := <-out
		checkClass(t, o.err, ledger.ErrUnavailable)
		if o.Applied {
			t.Error("it was told that it was written")
		}
	}
	if n := d.count(t, "idemd_entries"); n != 0 {
		t.Errorf("there are %d rows", n)
	}
}

// A batch of unknown outcome is unknown to each of its callers, and sent again for none: each reads back its own.
func TestABatchOfUnknownOutcomeIsSettledCallByCall(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	proxy := pgtest.NewProxy(t, d.url)
	s := oneConnection(t, d, proxy.URL())
	for n, f := range []struct {
		fault    pgtest.Fault
		code     string
		happened bool
	}{{pgtest.CutAfter, "", true}, {pgtest.CutBefore, "", false}, {pgtest.FailAfter, "40003", true}, {pgtest.FailBefore, "57P01", false}} {
		scopes := []ledger.ScopeID{scopeOf(byte(10 * n)), scopeOf(byte(10*n + 1)), scopeOf(byte(10*n + 2))}
		proxy.Arm(f.fault, "idemd:put-absent", f.code, 1)
		for i, out := range gathered(t, s, begin(scopes[0]), begin(scopes[1]), begin(scopes[2])) {
			o := <-out
			checkClass(t, o.err, ledger.ErrUnknown)
			if e := mustGet(t, s, scopes[i]); (e != nil) != f.happened || e != nil && e.Revision != 1 {
				t.Errorf("fault %d: there is a row: %t", f.fault, e != nil)
			}
		}
	}
	if proxy.Hits() != 4 {
		t.Errorf("%d faults happened", proxy.Hits())
	}
}

// Where the engine reports a conflict, each goes by itself instead of all again.
func TestAContendedBatchGoesOnOneByOne(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		proxy := pgtest.NewProxy(t, d.url)
		s := oneConnection(t, d, proxy.URL())
		for n, code := range []string{"40001", "40P01"} {
			scopes := []ledger.ScopeID{scopeOf(byte(10 * n)), scopeOf(byte(10*n + 1)), scopeOf(byte(10*n + 2))}
			gather := func(statement string, of func(ledger.ScopeID) ledger.Write) {
				t.Helper()
				before := s.Stats()
				proxy.Arm(pgtest.FailBefore, statement, code, 1)
				for _, out := range gathered(t, s, of(scopes[0]), of(scopes[1]), of(scopes[2])) {
					mustApply(t, out)
				}
				if after := s.Stats(); after.Apart != before.Apart+3 || after.Redone != before.Redone+1 {
					t.Errorf("%s, %s: %+v", statement, code, after)
				}
			}
			gather("idemd:put-absent", begin)
			gather("idemd:settle", func(scope ledger.ScopeID) ledger.Write { return complete(mustGet(t, s, scope)) })
		}
	})
}

// On CockroachDB a lock can outlive the commit that its holder was told of by a moment. A batch that meets one is sent together once more before each goes
// by itself.
func TestABatchThatMeetsALockStaysTogetherIfItIsGoneTheNextMoment(t *testing.T) {
	d := newDatabase(t, pgtest.CockroachURL(t))
	proxy := pgtest.NewProxy(t, d.url)
	s := oneConnection(t, d, proxy.URL())
	for times, apart := range []int64{0, 0, 3} {
		scopes := []ledger.ScopeID{scopeOf(byte(10 * times)), scopeOf(byte(10*times + 1)), scopeOf(byte(10*times + 2))}
		var writes []ledger.Write
		for _, scope := range scopes {
			mustWrite(t, s, begin(scope))
			writes = append(writes, complete(mustGet(t, s, scope)))
		}
		before := s.Stats()
		proxy.Arm(pgtest.FailBefore, "idemd:unlocked", "55P03", times)
		for _, out := range gathered(t, s, writes...) {
			mustApply(t, out)
		}
		if after := s.Stats(); after.Apart != before.Apart+apart {
			t.Errorf("a lock met %d times: %d went by themselves", times, after.Apart-before.Apart)
		}
	}
	if proxy.Hits() != 3 {
		t.Errorf("%d faults happened", proxy.Hits())
	}
}

// Somebody else has locked the row of one write of a batch. The others go through while it is locked, and it does afterwards.
func TestALockedRowHoldsUpNobodyElseOfItsBatch(t *testing.T) {
	onEveryEngine(t, func(t *testing.T, d *database) {
		s := d.open(t)
		scopes := []ledger.ScopeID{scopeOf(1), scopeOf(2), scopeOf(3)}
		var writes []ledger.Write
		for _, scope := range scopes {
			mustWrite(t, s, begin(scope))
			writes = append(writes, complete(mustGet(t, s, scope)))
		}
		ctx := context.Background()
		tx, err := connect(t, d.url).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, "SELECT 1 FROM idemd_entries WHERE scope_id = $1 FOR UPDATE", scopes[1][:]); err != nil {
			t.Fatal(err)
		}
		var held []func()
		for range 4 {
			held = append(held, sqlstore.HoldConn(t, s))
		}
		var outs []<-chan outcome
		for i, w := range writes {
			outs = append(outs, send(ctx, s, w))
			waitUntil(t, func() bool { return s.Stats().Queued == i+1 })
		}
		for _, release := range held {
			release()
		}
		mustApply(t, outs[0])
		mustApply(t, outs[2])
		select {
		case o := <-outs[1]:
			t.Errorf("the row is locked, and its write: applied %t, %v", o.Applied, o.err)
		default:
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		mustApply(t, outs[1])
		if stats := s.Stats(); stats.Redone != 1 || stats.Apart != 3 {
			t.Errorf("%+v", stats)
		}
	})
}

// A batch that waits for a row, whether somebody changes it or only holds it, stamps all of its rows with the time at which it had the last of them. PostgreSQL only: on CockroachDB it does not wait.
func TestABatchReadsTheClockWhenAllOfItsRowsAreLocked(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := d.open(t)
	ctx := context.Background()
	extension := func(scope ledger.ScopeID) ledger.Write {
		w := complete(mustGet(t, s, scope))
		w.Settle, w.Extend = nil, &ledger.Extend{Lease: lease}
		return w
	}
	report := func(scope ledger.ScopeID) ledger.Write { return complete(mustGet(t, s, scope)) }
	waiting := d.whoWaits(t)
	for n, x := range []struct {
		of   func(ledger.ScopeID) ledger.Write
		hold string
	}{
		{extension, "SELECT 1 FROM idemd_entries WHERE scope_id = $1 FOR UPDATE"},
		{extension, "UPDATE idemd_entries SET holder = 'touched' WHERE scope_id = $1"},
		{report, "SELECT 1 FROM idemd_entries WHERE scope_id = $1 FOR UPDATE"},
		{report, "UPDATE idemd_entries SET holder = 'touched' WHERE scope_id = $1"},
	} {
		scopes := []ledger.ScopeID{scopeOf(byte(10 * n)), scopeOf(byte(10*n + 1)), scopeOf(byte(10*n + 2))}
		var writes []ledger.Write
		for _, scope := range scopes {
			mustWrite(t, s, begin(scope))
			writes = append(writes, x.of(scope))
		}
		tx, err := connect(t, d.url).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, x.hold, scopes[1][:]); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		text, args := sqlstore.StatementForMany(s, writes...)
		conn := connect(t, d.url)
		go func() {
			_, err := conn.Exec(ctx, text, args...)
			done <- err
		}()
		waitUntil(t, waiting)
		d.Advance(time.Second)
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i, scope := range scopes {
			var at int64
			if err := conn.QueryRow(ctx, "SELECT written_at FROM idemd_entries WHERE scope_id = $1", scope[:]).Scan(&at); err != nil {
				t.Fatal(err)
			}
			if ledger.Time(at) != d.Now() {
				t.Errorf("%s: row %d was stamped %v before all of them were locked", x.hold, i, d.Now().Sub(ledger.Time(at)))
			}
		}
	}
}

// A row that somebody holds for long costs its own caller the wait, and nobody else: not those of its batch, and not those that come while it waits.
func TestALockedRowHoldsUpItsOwnCallerOnly(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := openStore(t, sqlstore.Config{URL: d.url, ClockSQL: d.clockSQL, MaxConns: 4})
	locked := scopeOf(2)
	mustWrite(t, s, begin(locked))
	row := mustGet(t, s, locked)
	_, release := d.block(t, locked)
	late := []<-chan outcome{send(context.Background(), s, takeover(row))}
	waitUntil(t, func() bool { return s.Stats().Apart == 1 })
	// As many as there are connections, all for the same row: the pool is not theirs to use up.
	for range 4 {
		late = append(late, send(context.Background(), s, takeover(row)))
	}
	for n := range 20 {
		mustWrite(t, s, begin(scopeOf(byte(10+n))))
	}
	leaving, leave := context.WithCancel(context.Background())
	left := send(leaving, s, takeover(row))
	waitUntil(t, func() bool { return s.Stats().Apart == 6 })
	leave()
	if o := <-left; !errors.Is(o.err, context.Canceled) {
		t.Errorf("a caller that left got %v", o.err)
	}
	d.Advance(time.Second)
	release()
	applied := 0
	for _, out := range late {
		o := <-out
		if o.err != nil {
			t.Error(o.err)
		}
		if o.Applied {
			applied++
			if o.Stamps.Now != d.Now() {
				t.Errorf("it is stamped %v before the row was had", d.Now().Sub(o.Stamps.Now))
			}
		}
	}
	if applied != 1 {
		t.Errorf("%d of the takeovers of one revision were applied", applied)
	}
	mustWrite(t, s, complete(mustGet(t, s, locked)))
	if stats := s.Stats(); stats.Apart != 6 {
		t.Errorf("after the row was free: %+v: its writes still go by themselves", stats)
	}
}

// A caller that leaves before its write was sent is told that nothing was done, and nothing is.
func TestACallerThatLeavesTheLineDidNothing(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	release := sqlstore.HoldConn(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	out := send(ctx, s, begin(scopeOf(1)))
	waitUntil(t, func() bool { return s.Stats().Queued == 1 })
	cancel()
	if o := <-out; !errors.Is(o.err, context.Canceled) || errors.Is(o.err, ledger.ErrUnknown) || errors.Is(o.err, ledger.ErrUnavailable) {
		t.Errorf("it was told %v", o.err)
	}
	release()
	mustWrite(t, s, begin(scopeOf(2)))
	if e := mustGet(t, s, scopeOf(1)); e != nil {
		t.Errorf("its write happened: %+v", e)
	}
}

// A caller that leaves while its write is with the database does not know what became of it: it can still happen, and here it does.
func TestACallerThatLeavesAfterItsWriteWasSentDoesNotKnow(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := openStore(t, sqlstore.Config{URL: d.url, ClockSQL: d.clockSQL, MaxConns: 4})
	scope := scopeOf(2)
	mustWrite(t, s, begin(scope))
	row := mustGet(t, s, scope)
	waiting, release := d.block(t, scope)
	ctx, cancel := context.WithCancel(context.Background())
	out := send(ctx, s, takeover(row))
	waitUntil(t, func() bool { return s.Stats().Apart == 1 && waiting() })
	cancel()
	if o := <-out; !errors.Is(o.err, ledger.ErrUnknown) {
		t.Errorf("it was told %v", o.err)
	}
	release()
	waitUntil(t, func() bool { return mustGet(t, s, scope).Revision == row.Revision+1 })
}

// The same where its write is in a batch with others.
func TestACallerThatLeavesItsBatchDoesNotKnow(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	side := connect(t, d.url)
	_, err := side.Exec(context.Background(), `CREATE TABLE released (); CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN WHILE NOT EXISTS (SELECT FROM released) LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN NULL; END $$;
CREATE TRIGGER held AFTER INSERT ON idemd_entries FOR EACH STATEMENT EXECUTE FUNCTION held()`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	letGo := sqlstore.HoldConn(t, s)
	leaves, stays := send(ctx, s, begin(scopeOf(1))), send(context.Background(), s, begin(scopeOf(2)))
	waitUntil(t, func() bool { return sqlstore.InLine(s) == 2 })
	letGo()
	waitUntil(t, func() bool {
		var held bool
		err := side.QueryRow(context.Background(), "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'").Scan(&held)
		return err == nil && held
	})
	cancel()
	if o := <-leaves; !errors.Is(o.err, ledger.ErrUnknown) {
		t.Errorf("it was told %v", o.err)
	}
	execute(t, d.url, "INSERT INTO released DEFAULT VALUES")
	mustApply(t, stays)
	if mustGet(t, s, scopeOf(1)) == nil {
		t.Error("its write did not happen with the others'")
	}
}

func TestWritesThatWaitWhenTheStoreIsClosedAreToldSo(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	release := sqlstore.HoldConn(t, s)
	out := send(context.Background(), s, begin(scopeOf(1)))
	waitUntil(t, func() bool { return s.Stats().Queued == 1 })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	waitUntil(t, func() bool { return s.Stats().Queued == 0 })
	o := <-out
	checkClass(t, o.err, ledger.ErrUnavailable)
	release()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}
