package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

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
	d.clockSQL = "((extract(epoch FROM clock_timestamp()) * 1000000)::INT8 + (SELECT ahead_us FROM proof_clock))"
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

// prepareForPrograms does the same for real daemons, whose clock's expression is their own: a clock_timestamp() of ours stands before the database's
// in the search path.
func prepareForPrograms(t testing.TB) *database {
	t.Helper()
	u, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("search_path", "public,pg_catalog")
	u.RawQuery = query.Encode()
	d := prepare(t, u.String())
	err = d.execute(t.Context(), "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS "+
		"'BEGIN RETURN pg_catalog.clock_timestamp() + (SELECT ahead_us FROM proof_clock) * interval ''1 microsecond''; END'")
	if err != nil {
		t.Fatal(err)
	}
	return d
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
	for range n {
		proxy := pgtest.NewProxy(t, d.urls[0])
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

// badWeather plants faults in the ways to the database: connections are cut before and after a statement, and errors come with and without
// the statement having been carried out.
func badWeather(proxies []*pgtest.Proxy, stall func(context.Context, time.Duration)) func(context.Context, *rand.Rand) {
	return func(ctx context.Context, rng *rand.Rand) {
		for ctx.Err() == nil {
			p := proxies[rng.IntN(len(proxies))]
			before := p.Hits()
			fault, code := pgtest.Fault(1+rng.IntN(4)), sqlStates[rng.IntN(len(sqlStates))]
			if fault == pgtest.FailAfter && (code == "40001" || code == "40P01") {
				code = "40003" // those two say that nothing is left: a database that says so afterwards would be lying
			}
			p.Arm(fault, "/* idemd:", code, 1+rng.IntN(3))
			if stall != nil && rng.IntN(6) == 0 {
				length := time.Duration(rng.IntN(40)) * time.Millisecond
				if scale() > 1 && rng.IntN(10) == 0 {
					length = time.Duration(1+rng.IntN(3)) * time.Second
					count("statements stalled for seconds", 1)
				}
				stall(ctx, length)
				count("statements stalled", 1)
			}
			pass(ctx, time.Duration(1+rng.IntN(20))*time.Millisecond)
			p.Disarm()
			name := map[pgtest.Fault]string{pgtest.CutBefore: "cut before", pgtest.CutAfter: "cut after", pgtest.FailBefore: code + " before", pgtest.FailAfter: code + " after"}[fault]
			count(name, p.Hits()-before)
		}
	}
}

// stall holds every write up for a while.
func (d *database) stall(ctx context.Context, length time.Duration) {
	conn, err := pgx.Connect(ctx, d.urls[0])
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(ctx, "BEGIN; LOCK TABLE idemd_entries IN EXCLUSIVE MODE"); err == nil {
		pass(ctx, length)
	}
}

func TestDaemonsOnPostgreSQLUnderFaults(t *testing.T) {
	t.Parallel()
	underFaults(t, 3, func() *database { return prepare(t, pgtest.URL(t)) })
}

func TestDaemonsOnCockroachDBUnderFaults(t *testing.T) {
	t.Parallel()
	underFaults(t, 2, func() *database { return prepare(t, pgtest.CockroachURL(t)) })
}

func underFaults(t *testing.T, n int, fresh func() *database) {
	d := fresh()
	daemons, proxies := d.daemons(t, 3)
	stall := d.stall
	if d.cockroach {
		stall = nil // it has no LOCK TABLE
	}
	seeds(t, n, func(seed uint64) {
		play{
			daemons: daemons, keys: 6, clients: 12, steps: 20, limit: fewRuns, deadlines: true, operators: true, lapse: d.lapse,
			weather: badWeather(proxies, stall),
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
