package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Names of candidates, as the targets below refer to them.
const (
	nameEcho       = "echo"
	nameEchoStream = "echo stream"
	nameEmbedded   = "idemd, embedded"
	nameSessions   = "idemd, sessions"
	namePostgres   = "idemd, PostgreSQL"
	nameByHand     = "pgx, PostgreSQL"
	nameFar        = "idemd, PostgreSQL far"
	nameByHandFar  = "pgx, PostgreSQL far"
	nameCockroach  = "idemd, CockroachDB"
	nameByHandCRDB = "pgx, CockroachDB"
	nameRedis      = "Redis"
	nameEchoReplay = "echo of a replay"
	nameReplay     = "idemd, replay"
	nameAloneEcho  = "echo, alone"
	nameAloneBare  = "SQLite, alone"
	nameAlone      = "idemd, alone"
)

// names are all candidates, in the order of the table.
var names = []string{
	nameEcho, nameEmbedded, nameEchoStream, nameSessions, namePostgres, nameByHand, nameFar, nameByHandFar, nameCockroach, nameByHandCRDB, nameRedis,
	nameEchoReplay, nameReplay, nameAloneEcho, nameAloneBare, nameAlone,
}

// selection is what is to be measured: names of candidates, or how they begin; empty: all.
type selection []string

// Set implements [flag.Value].
func (s *selection) Set(wanted string) error {
	if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, wanted) }) {
		return fmt.Errorf("no candidate's name begins so; there are: %s", strings.Join(names, " · "))
	}
	*s = append(*s, wanted)
	return nil
}

// String implements [flag.Value].
func (s *selection) String() string { return strings.Join(*s, " · ") }

// has says whether any of these candidates is selected.
func (s *selection) has(candidates ...string) bool {
	return len(*s) == 0 || slices.ContainsFunc(*s, func(wanted string) bool {
		return slices.ContainsFunc(candidates, func(name string) bool {
			return name == wanted || strings.HasPrefix(name, wanted) && !slices.Contains(names, wanted)
		})
	})
}

// target is a ratio that the project wants to reach.
type target struct {
	what string
	// ratio is of what was measured, 0 where not both were.
	ratio func(map[string][]run) float64
	want  float64
	// atMost: the ratio must not be above want, instead of not below.
	atMost bool
}

// rate is the ratio of the medians of two candidates.
func rate(above, below string) func(map[string][]run) float64 {
	return func(runs map[string][]run) float64 {
		return ratio(median(runs[above], perSecond), median(runs[below], perSecond))
	}
}

func ratio(above, below float64) float64 {
	if below == 0 {
		return 0
	}
	return above / below
}

var targets = []target{
	{"embedded store, pairs, to the echo", rate(nameEmbedded, nameEcho), 0.45, false},
	{"embedded store, pairs on Session streams, to Redis", rate(nameSessions, nameRedis), 1.1, false},
	{"embedded store, pairs on Session streams, to the echo stream", rate(nameSessions, nameEchoStream), 0, false},
	{"PostgreSQL through idemd to pgx", rate(namePostgres, nameByHand), 2.5, false},
	{"PostgreSQL through idemd to pgx, far", rate(nameFar, nameByHandFar), 0, false},
	{"CockroachDB through idemd to pgx", rate(nameCockroach, nameByHandCRDB), 2.5, false},
	{"replays to the echo", rate(nameReplay, nameEchoReplay), 0.8, false},
	{"embedded store, pairs, to Redis", rate(nameEmbedded, nameRedis), 0, false},
	{"one caller alone, embedded, median of a pair, to two SQLite transactions and two echo calls", func(runs map[string][]run) float64 {
		if len(runs[nameAloneBare]) == 0 || len(runs[nameAloneEcho]) == 0 {
			return 0
		}
		return ratio(median(runs[nameAlone], p50), median(runs[nameAloneBare], p50)+median(runs[nameAloneEcho], p50))
	}, 1.3, true},
}

// compare measures everything that is installed, and prints two tables.
func (l *lab) compare(ctx context.Context) error {
	machine := l.machine()
	all, err := l.candidates(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c *candidate) bool { return !l.only.has(c.name) })
	runs, err := rounds(ctx, all, l.rounds, l.length)
	if err != nil {
		return err
	}
	fmt.Printf("Measured on %s: %d callers on %d connections, answers of %d bytes, medians of %d rounds of %v.\n\n",
		machine, l.workers, l.connections, l.bodyBytes, l.rounds, l.length)
	fmt.Println("| candidate | what one is | median | lowest – highest | p50 | p99 | processor time for one |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
	for _, c := range all {
		if of := runs[c.name]; len(of) > 0 {
			low, high := of[0].perSecond, of[0].perSecond
			for _, r := range of {
				low, high = min(low, r.perSecond), max(high, r.perSecond)
			}
			fmt.Printf("| %s | %s | %.0f %s | %.0f – %.0f | %s | %s | %s |\n",
				c.name, c.what, median(of, perSecond), c.unit, low, high, inMillis(median(of, p50)), inMillis(median(of, p99)), c.processor(of))
		}
	}
	fmt.Println("\n| ratio | measured | target | |")
	fmt.Println("| --- | --- | --- | --- |")
	for _, t := range targets {
		if got := t.ratio(runs); got > 0 {
			fmt.Printf("| %s | %.2f | %s |\n", t.what, got, t.verdict(got))
		}
	}
	return nil
}

// verdict is what is wanted, and whether it is so.
func (t *target) verdict(got float64) string {
	switch {
	case t.want == 0:
		return "none | "
	case t.atMost && got <= t.want:
		return fmt.Sprintf("at most %g | met", t.want)
	case t.atMost:
		return fmt.Sprintf("at most %g | **missed**", t.want)
	case got >= t.want:
		return fmt.Sprintf("%g | met", t.want)
	default:
		return fmt.Sprintf("%g | **missed**", t.want)
	}
}

// processor says how much processor time one took, whose it was, and the sum.
func (c *candidate) processor(of []run) string {
	sum := median(of, callersCPU)
	text := fmt.Sprintf("%.0f µs callers", sum*1e6)
	for i, s := range c.servers {
		cpu := median(of, func(r run) float64 { return r.serversCPU[i] })
		sum += cpu
		text += fmt.Sprintf(" + %.0f µs %s", cpu*1e6, s.name)
	}
	if len(c.servers) > 0 {
		text += fmt.Sprintf(" = %.0f µs", sum*1e6)
	}
	return text
}

func inMillis(seconds float64) string { return fmt.Sprintf("%.2f ms", seconds*1000) }

// candidates starts everything, and returns what there is to measure. What is not installed is said, and left out.
func (l *lab) candidates(ctx context.Context) ([]*candidate, error) {
	embedded, err := l.startDaemon(ctx, "")
	if err != nil {
		return nil, err
	}
	conns, err := l.dial(embedded.addr, l.connections)
	if err != nil {
		return nil, err
	}
	clients := ledgerClients(conns)
	size, err := messageSizes(ctx, clients[0], l.bodyBytes)
	if err != nil {
		return nil, err
	}
	echoServer, echoConns, err := l.startEcho(ctx)
	if err != nil {
		return nil, err
	}
	pair := [][2]int{{size.begin, size.granted}, {size.complete, size.completed}}
	streamed, err := streamedEchoes(ctx, echoConns, pair...)
	if err != nil {
		return nil, err
	}
	onStreams, err := l.sessions(conns)
	if err != nil {
		return nil, err
	}
	replay, err := replays(ctx, clients, l.bodyBytes)
	if err != nil {
		return nil, err
	}
	bare, err := l.bareSQLite(ctx)
	if err != nil {
		return nil, err
	}
	pairOf := fmt.Sprintf("requests of %d and %d bytes, answers of %d and %d", size.begin, size.complete, size.granted, size.completed)
	out := []*candidate{
		{nameEcho, "two unary calls: " + pairOf, unitPairs, l.workers, echoes(echoConns, pair...), echoServer.as("echo")},
		{nameEmbedded, "Begin, Complete, synced", unitPairs, l.workers, pairs(clients, tenant, l.bodyBytes), embedded.as("idemd")},
		{nameEchoStream, "the same two messages on a stream for each connection", unitPairs, l.workers, streamed, echoServer.as("echo")},
		{nameSessions, "Begin, Complete on a Session stream for each connection, synced", unitPairs, l.workers, pairs(onStreams, tenant, l.bodyBytes), embedded.as("idemd")},
	}
	more, err := l.databases(ctx)
	if err != nil {
		return nil, err
	}
	out = append(out, more...)
	return append(out,
		&candidate{nameEchoReplay, fmt.Sprintf("a unary call: %d bytes, answer of %d", size.begin, size.replayed), unitCalls, l.workers,
			echoes(echoConns, [2]int{size.begin, size.replayed}), echoServer.as("echo")},
		&candidate{nameReplay, "Begin of one of 1,000 settled keys", unitCalls, l.workers, replay, embedded.as("idemd")},
		&candidate{nameAloneEcho, "one caller: two unary calls", unitPairs, 1, echoes(echoConns, pair...), echoServer.as("echo")},
		&candidate{nameAloneBare, "one caller, no daemon: two SQLite transactions, synced", unitPairs, 1, bare, nil},
		&candidate{nameAlone, "one caller: Begin, Complete, synced", unitPairs, 1, pairs(clients, tenant, l.bodyBytes), embedded.as("idemd")},
	), nil
}

// databases are the candidates that need something installed.
func (l *lab) databases(ctx context.Context) ([]*candidate, error) {
	var out []*candidate
	for _, engine := range []struct {
		name, through, byHand string
		start                 func(context.Context, int) ([]string, error)
	}{
		{"PostgreSQL", namePostgres, nameByHand, l.postgres},
		{"CockroachDB", nameCockroach, nameByHandCRDB, l.cockroachDB},
	} {
		measured := []string{engine.through, engine.byHand}
		if engine.name == "PostgreSQL" {
			measured = append(measured, nameFar, nameByHandFar)
		}
		if !l.only.has(measured...) {
			continue
		}
		before := children()
		urls, err := engine.start(ctx, len(measured))
		if errors.Is(err, errMissing) {
			fmt.Fprintln(os.Stderr, "left out:", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		var database []server
		for _, pid := range children() {
			if !slices.Contains(before, pid) {
				database = append(database, server{engine.name, pid})
			}
		}
		for i := 0; i < len(measured); i += 2 {
			far := i > 0
			both, err := l.onDatabase(ctx, [2]string(measured[i:]), [2]string(urls[i:]), database, far)
			if err != nil {
				return nil, err
			}
			out = append(out, both...)
		}
	}
	if !l.only.has(nameRedis) {
		return out, nil
	}
	redis, err := l.redisPairs(ctx)
	switch {
	case errors.Is(err, errMissing):
		fmt.Fprintln(os.Stderr, "left out:", err)
	case err != nil:
		return nil, err
	default:
		out = append(out, redis)
	}
	return out, nil
}

// onDatabase are the daemon and the hand-written table, each with an empty database on the same server. Far: with a distance before it, and more callers.
func (l *lab) onDatabase(ctx context.Context, names, urls [2]string, database []server, far bool) ([]*candidate, error) {
	workers, where := l.workers, ""
	distances := [2][]server{}
	if far {
		workers, where = farCallers*l.workers, fmt.Sprintf("; %d callers, and %v each way to the database", farCallers*l.workers, l.distance)
		for i := range urls {
			var err error
			if urls[i], distances[i], err = l.away(ctx, urls[i]); err != nil {
				return nil, err
			}
		}
	}
	d, err := l.startDaemon(ctx, urls[0])
	if err != nil {
		return nil, err
	}
	conns, err := l.dial(d.addr, l.connections)
	if err != nil {
		return nil, err
	}
	byHand, err := l.handWritten(ctx, urls[1])
	if err != nil {
		return nil, err
	}
	return []*candidate{
		{
			names[0], "Begin, Complete, synced" + where, unitPairs, workers, pairs(ledgerClients(conns), tenant, l.bodyBytes),
			slices.Concat(d.as("idemd"), database, distances[0]),
		},
		{
			names[1], fmt.Sprintf("INSERT, UPDATE from the caller, %d connections, synced%s", l.pool, where), unitPairs, workers, byHand,
			slices.Concat(database, distances[1]),
		},
	}, nil
}

// farCallers is how many times as many callers there are where the database is far: each of them waits longer.
const farCallers = 4
