package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// database is a migrated database whose clock runs, and can be set ahead for all daemons at once.
type database struct {
	// urls are the ways to it, one for each of its nodes.
	urls      []string
	clockSQL  string
	cockroach bool
	ahead     time.Duration
}

// storesClock is how the store has the database read its clock. If it did so in other words, the leases of real daemons would never end here.
const storesClock = "(extract(epoch FROM clock_timestamp()) * 1000000)::INT8"

// onEachEngine runs a test on an empty database of each engine. What is not installed is skipped.
func onEachEngine(t *testing.T, test func(t *testing.T, urls ...string)) {
	t.Helper()
	for name, urls := range map[string]func(testing.TB) []string{
		"PostgreSQL":                 func(t testing.TB) []string { return []string{pgtest.URL(t)} },
		"CockroachDB":                func(t testing.TB) []string { return []string{pgtest.CockroachURL(t)} },
		"three nodes of CockroachDB": threeNodes,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, urls(t)...)
		})
	}
}

func threeNodes(t testing.TB) []string {
	if scale() < 2 {
		t.Skip("SKIPPED: starts three nodes of CockroachDB. make histories runs it, with SCALE=2 or more")
	}
	return pgtest.StartCluster(t, 3).URLs(t)
}

func prepare(t testing.TB, urls ...string) *database {
	t.Helper()
	if err := sqlstore.Migrate(t.Context(), sqlstore.Config{URL: urls[0]}, nil); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), urls[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	d := &database{urls: urls, cockroach: conn.PgConn().ParameterStatus("crdb_version") != ""}
	d.clockSQL = "(" + storesClock + " + (SELECT ahead_us FROM proof_clock))"
	setUp := []string{"CREATE TABLE proof_clock (ahead_us INT8 NOT NULL)", "INSERT INTO proof_clock VALUES (0)"}
	if !d.cockroach {
		// A subselect would see the table as it stood when the statement began. A function sees the clock move, as clock_timestamp() does.
		setUp = append(setUp, "CREATE FUNCTION proof_now() RETURNS INT8 LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN "+d.clockSQL+"; END'")
		d.clockSQL = "proof_now()"
	}
	for _, text := range setUp {
		if _, err := conn.Exec(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// way is the nth way to the database.
func (d *database) way(t testing.TB, n int) *pgtest.Proxy {
	t.Helper()
	return pgtest.NewProxy(t, d.urls[n%len(d.urls)])
}

// program is the URL of the nth way to the database for a real daemon, in which the clock that can be set ahead takes the place of the database's.
func (d *database) program(t testing.TB, n int) string {
	t.Helper()
	way := d.way(t, n)
	way.Replace(storesClock, d.clockSQL)
	return way.URL()
}

// lapse sets the clock ahead, again and again until the database says that it is done: setting it twice is setting it once.
func (d *database) lapse(ctx context.Context) error {
	d.ahead += lapseBy
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for {
		err := d.execute(ctx, fmt.Sprintf("UPDATE proof_clock SET ahead_us = %d", d.ahead.Microseconds()))
		if err == nil || ctx.Err() != nil {
			return err
		}
		pass(ctx, 20*time.Millisecond)
	}
}

func (d *database) execute(ctx context.Context, text string) error {
	conn, err := pgx.Connect(ctx, d.urls[0])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	_, err = conn.Exec(ctx, text)
	return err
}

// daemons start n of them, each by a way of its own to the database.
func (d *database) daemons(t testing.TB, n int) (daemons []daemon, proxies []*pgtest.Proxy) {
	t.Helper()
	for i := range n {
		proxy := d.way(t, i)
		daemons, proxies = append(daemons, d.daemon(t, proxy.URL())), append(proxies, proxy)
	}
	return daemons, proxies
}

// daemon starts one that goes to the database by a URL.
func (d *database) daemon(t testing.TB, url string) daemon {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), sqlstore.Config{URL: url, ClockSQL: d.clockSQL, MaxConns: 4, ConnectTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return open(t, store)
}

// sqlStates are what a database may say of a statement that it will not finish: conflicts, of which nothing is left; an outcome that the
// database itself does not know; and shutting down, after which it may have committed or not.
var sqlStates = []string{"40001", "40P01", "40003", "57P01"}

// faults are what a way to the database does to statements.
var faults = map[pgtest.Fault]string{
	pgtest.CutBefore: "connection cut before a statement", pgtest.CutAfter: "connection cut after a statement",
	pgtest.FailBefore: "before a statement", pgtest.FailAfter: "after a statement",
	pgtest.StallBefore: "statement stalled on its way", pgtest.StallAfter: "answer stalled on its way",
}

// badWeather plants faults in the ways to the database: connections are cut before and after a statement, errors come with and without the statement having
// been carried out, and statements and answers are stalled, on their way and by whoever has locked the rows.
func (d *database) badWeather(proxies []*pgtest.Proxy) func(context.Context, *rand.Rand) {
	return func(ctx context.Context, rng *rand.Rand) {
		for ctx.Err() == nil {
			p := proxies[rng.IntN(len(proxies))]
			before := p.Hits()
			fault, code := pgtest.Fault(1+rng.IntN(len(faults))), sqlStates[rng.IntN(len(sqlStates))]
			if fault == pgtest.FailAfter && (code == "40001" || code == "40P01") {
				code = "40003" // those two say that nothing is left: a database that says so afterwards would be lying
			}
			p.Arm(fault, "/* idemd:", code, 1+rng.IntN(3))
			if rng.IntN(6) == 0 {
				d.stall(ctx, stallLength(rng))
			}
			length, name := time.Duration(1+rng.IntN(20))*time.Millisecond, faults[fault]
			switch fault {
			case pgtest.CutBefore, pgtest.CutAfter:
			case pgtest.FailBefore, pgtest.FailAfter:
				name = code + " " + name
			case pgtest.StallBefore, pgtest.StallAfter:
				length = stallLength(rng)
				name += forSeconds(length)
			}
			pass(ctx, length)
			p.Disarm()
			count(name, p.Hits()-before)
		}
	}
}

// stallLength is how long something is stalled: for moments, and in the long form for seconds now and then.
func stallLength(rng *rand.Rand) time.Duration {
	if scale() > 1 && rng.IntN(10) == 0 {
		return time.Duration(1+rng.IntN(3)) * time.Second
	}
	return time.Duration(rng.IntN(40)) * time.Millisecond
}

// forSeconds names a stall of seconds for what it is.
func forSeconds(length time.Duration) string {
	if length < time.Second {
		return ""
	}
	return ", for seconds"
}

// stall holds writes up for a while.
func (d *database) stall(ctx context.Context, length time.Duration) {
	release, err := d.lock(ctx)
	if err != nil {
		return
	}
	defer release()
	pass(ctx, length)
	count("rows locked"+forSeconds(length), 1)
}

// lock has a transaction lock the rows of all entries, so that nobody writes one until it is over. On CockroachDB, where an update is the only lock that
// everybody minds, nobody reads one either; new entries are made there meanwhile.
func (d *database) lock(ctx context.Context) (release func(), err error) {
	conn, err := pgx.Connect(ctx, d.urls[0])
	if err != nil {
		return nil, err
	}
	release = func() { _ = conn.Close(context.Background()) }
	lock := "LOCK TABLE idemd_entries IN EXCLUSIVE MODE"
	if d.cockroach {
		lock = "UPDATE idemd_entries SET written_at = written_at"
	}
	if _, err := conn.Exec(ctx, "BEGIN; "+lock); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// TestALockStallsCalls: if it did not, nothing would be stalled in any history, and nobody would know. A call that was given up meanwhile goes well when it is
// sent again.
func TestALockStallsCalls(t *testing.T) {
	t.Parallel()
	onEachEngine(t, aLockStallsCalls)
}

func aLockStallsCalls(t *testing.T, urls ...string) {
	d := prepare(t, urls...)
	ledger := d.daemon(t, urls[len(urls)-1])
	granted := ledger.begin(t.Context(), "key", uuid.New(), call{kind: begin}, 0)
	release, err := d.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if got := ledger.extend(short(), "key", granted.token); got.what == "renewed" { // a report would outlast its caller's time
		t.Errorf("an extension while the row was locked: %v", got)
	}
	if d.cockroach {
		if got := ledger.lookup(short(), "key"); got.what == "view" {
			t.Errorf("a lookup while the row was locked: %v", got)
		}
	}
	release()
	if got := ledger.extend(t.Context(), "key", granted.token); got.what != "renewed" {
		t.Errorf("the extension sent again: %v", got)
	}
}

func TestDaemonsOnPostgreSQLUnderFaults(t *testing.T) {
	t.Parallel()
	underFaults(t, 3, pgtest.URL(t))
}

func TestDaemonsOnCockroachDBUnderFaults(t *testing.T) {
	t.Parallel()
	underFaults(t, 2, pgtest.CockroachURL(t))
}

func TestDaemonsOnThreeNodesOfCockroachDBUnderFaults(t *testing.T) {
	t.Parallel()
	underFaults(t, 1, threeNodes(t)...)
}

func underFaults(t *testing.T, n int, urls ...string) {
	d := prepare(t, urls...)
	daemons, proxies := d.daemons(t, 3)
	seeds(t, n, func(seed uint64) {
		play{
			daemons: daemons, keys: 6, clients: 12, steps: 20, limit: fewRuns, deadlines: true, operators: true, lapse: d.lapse,
			weather: d.badWeather(proxies),
		}.run(t, seed)
	})
}

// TestThePostgreSQLIsKilled: killed -9 and started again on its data, time and again, under two daemons with clients.
func TestThePostgreSQLIsKilled(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	d := prepare(t, server.URL(t))
	daemons, _ := d.daemons(t, 2)
	seeds(t, 1, func(seed uint64) {
		play{
			daemons: daemons, keys: 8, clients: 12, steps: 25, limit: fewRuns, deadlines: true, operators: true, lapse: d.lapse,
			weather: func(ctx context.Context, rng *rand.Rand) {
				for ctx.Err() == nil {
					pass(ctx, time.Duration(rng.IntN(250))*time.Millisecond)
					server.Kill(t)
					pass(ctx, time.Duration(rng.IntN(50))*time.Millisecond)
					server.Restart(t)
					count("database killed", 1)
				}
			},
		}.run(t, seed)
	})
}

// TestNodesOfCockroachDBAreKilled: a node is killed with SIGKILL and started again on its data, time and again, while as many daemons work as there
// are nodes. Of three nodes two are enough, so the daemons go on by way of the others.
func TestNodesOfCockroachDBAreKilled(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.StartCluster(t, nodes)
			d := prepare(t, cluster.URLs(t)...)
			var daemons []daemon
			for i := range max(nodes, 2) {
				daemons = append(daemons, d.daemon(t, d.urls[i%nodes]))
			}
			seeds(t, 1, func(seed uint64) {
				play{
					daemons: daemons, keys: 20, clients: 12, steps: 50, pace: 200 * time.Millisecond, limit: fewRuns, deadlines: true, operators: true, lapse: d.lapse,
					weather: func(ctx context.Context, rng *rand.Rand) { killNodes(ctx, t, rng, cluster) },
				}.run(t, seed)
			})
		})
	}
}

// killNodes kills one node after the other until the context ends, and at least one.
func killNodes(ctx context.Context, t *testing.T, rng *rand.Rand, cluster *pgtest.Cluster) {
	for kills := 0; kills == 0 || ctx.Err() == nil; kills++ {
		n := rng.IntN(cluster.Nodes())
		pass(ctx, time.Duration(rng.IntN(1500))*time.Millisecond)
		cluster.Kill(t, n)
		pass(ctx, time.Duration(rng.IntN(1000))*time.Millisecond)
		cluster.Restart(t, n)
		count("node of CockroachDB killed", 1)
	}
}
