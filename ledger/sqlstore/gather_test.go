package sqlstore_test

import (
	"context"
	"errors"
	"testing"
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
		waitUntil(t, func() bool { return s.Stats().Queued == i+1 })
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

// C65 on the SQL store's side: writes that wait for the same connection share one transaction, each gets its own outcome.
func TestWritesThatArriveWhileTheStoreIsBusyShareATransaction(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	mustWrite(t, s, begin(scopeOf(9)))
	before := s.Stats()
	out := gathered(t, s, begin(scopeOf(3)), begin(scopeOf(9)), begin(scopeOf(1)), begin(scopeOf(1)), complete(mustGet(t, s, scopeOf(9))))
	for i, want := range []bool{true, false, true, false, true} {
		if o := <-out[i]; o.err != nil || o.Applied != want {
			t.Errorf("write %d: applied %t, want %t, %v", i, o.Applied, want, o.err)
		}
	}
	if after := s.Stats(); after.Batches != before.Batches+1 || after.Writes != before.Writes+5 || after.Queued != 0 {
		t.Errorf("before %+v, after %+v: want one batch of five", before, after)
	}
	// A setting of the batch's transaction only: on a connection that a pooler lends, it would be everybody's.
	var lockWait string
	if err := sqlstore.Conn(t, s).QueryRow(context.Background(), "SHOW lock_timeout").Scan(&lockWait); err != nil || lockWait != "0" {
		t.Errorf("afterwards the connection's lock_timeout is %q, %v", lockWait, err)
	}
}

func TestABadWriteOfABatchFailsAlone(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	bad := begin(scopeOf(2))
	bad.Put.State = 9 // which the schema refuses
	out := gathered(t, s, begin(scopeOf(1)), bad, begin(scopeOf(3)))
	mustApply(t, out[0])
	mustApply(t, out[2])
	o := <-out[1]
	checkClass(t, o.err, ledger.ErrUnavailable)
	if n := d.count(t, "idemd_entries"); n != 2 {
		t.Errorf("there are %d rows, want those of the two others", n)
	}
	if stats := s.Stats(); stats.Redone != 1 || stats.Apart != 0 {
		t.Errorf("%+v", stats)
	}
}

// Two bad ones: the second is found when the batch is sent again. Everybody is settled by itself then.
func TestTwoBadWritesOfABatchFailAlone(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	s := oneConnection(t, d, d.url)
	bad, worse := begin(scopeOf(2)), begin(scopeOf(4))
	bad.Put.State, worse.Put.State = 9, 9
	out := gathered(t, s, begin(scopeOf(1)), bad, begin(scopeOf(3)), worse)
	mustApply(t, out[0])
	mustApply(t, out[2])
	for _, i := range []int{1, 3} {
		o := <-out[i]
		checkClass(t, o.err, ledger.ErrUnavailable)
	}
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

// Where the engine reports a conflict that is nobody's in particular, each goes by itself instead of all again.
func TestAContendedBatchGoesOnOneByOne(t *testing.T) {
	d := newDatabase(t, pgtest.URL(t))
	proxy := pgtest.NewProxy(t, d.url)
	s := oneConnection(t, d, proxy.URL())
	mustWrite(t, s, begin(scopeOf(100))) // prepares the statement
	for n, code := range []string{"40001", "40P01"} {
		proxy.Arm(pgtest.FailBefore, "idemd:put-absent", code, 1)
		for _, out := range gathered(t, s, begin(scopeOf(byte(1+10*n))), begin(scopeOf(byte(2+10*n)))) {
			mustApply(t, out)
		}
		if stats := s.Stats(); stats.Apart != int64(2*(n+1)) || stats.Redone != 0 {
			t.Errorf("%s: %+v", code, stats)
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
