package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/cmd/idemd/internal/workload"
)

const benchHelp = `Put load on a daemon, and check while it runs that the daemon keeps its promises: one grant for each intent, one answer for every retry, the same
claim for a call that is sent again, another request under the same key refused, nothing lost. docs/performance.md says how to read the report.

The entries belong to a tenant of their own, idemd-bench- and a random id, which is erased at the end, also after SIGINT or SIGTERM. What could not
be erased is said, with the command that does it. Erased entries leave tombstones, which go with the next sweep after the length of the run and ten
minutes. It needs an operator's rights.

Without --rate each worker begins its next turn when the last one is done: that finds out how much the daemon can do. With --rate turns begin at
that rate whatever the daemon does, as callers do, and latencies count from when a turn was due: that finds out how long callers wait.

Exit codes: 0 all promises were kept, and every threshold; 1 not so, or it was called off; 2 the command line is wrong; 3 no daemon answers.`

// benchOperation is the operation of the load's entries.
const benchOperation = "bench"

// benchGrace is for how much longer than the run itself its entries must be known.
const benchGrace = 10 * time.Minute

// maxNotBegun and fewNotBegun are which part of the turns that were due, and how many beside those, may have found no worker: some are due as the
// time runs out.
const (
	maxNotBegun = 0.01
	fewNotBegun = 5
)

// benchFlags are the arguments of one bench.
type benchFlags struct {
	load                   workload.Config
	connections            int
	session                bool
	alone                  *callCounter // with session
	mix                    mixFlag
	keys                   choice
	warmup, duration, wait durationFlag
	maxP99                 durationFlag
	minRate                float64
	maxErrors              int64
}

func (w *world) benchCommand() *cobra.Command {
	f := benchFlags{
		mix: mixFlag(workload.DefaultMix), keys: choice{value: string(workload.UUIDv4), words: []string{string(workload.UUIDv4), string(workload.UUIDv7)}},
		warmup: durationFlag(2 * time.Second), duration: durationFlag(30 * time.Second),
	}
	cmd := &cobra.Command{
		Use: "bench", Short: "Put load on a daemon, and check what it answers", Long: benchHelp, GroupID: groupRules, Args: exactArgs(),
		Example: "  idemd bench --duration 1m\n" +
			"  idemd bench --rate 500 --workers 200 --max-p99 50ms -o json\n" +
			"  idemd bench --mix replay=9,fresh=1 --hot-keys 100",
	}
	fs := cmd.Flags()
	fs.IntVar(&f.load.Workers, "workers", 64, "how many turns are under way at once")
	fs.IntVar(&f.connections, "connections", 2, "over how many connections")
	fs.BoolVar(&f.session, "session", false, "make the calls on one Session stream for each connection, as clientlib does when asked")
	fs.Float64Var(&f.load.Rate, "rate", 0, "begin so many turns in a `second`. Default: as many as the daemon does")
	fs.Var(&f.duration, "duration", "how long to measure")
	fs.Var(&f.warmup, "warmup", "how long to run before that")
	fs.Int64Var(&f.load.Turns, "turns", 0, "end after so many turns, if that comes first, the warm-up's included. Default: no such limit")
	fs.Var(&f.mix, "mix", "how often which turn comes: "+strings.Join(workload.TurnNames(), ", "))
	fs.Var(&f.keys, "keys", "shape of the keys: random, or with the time in front")
	fs.IntVar(&f.load.HotKeys, "hot-keys", 0, "replays and mismatches take one of so many entries, which all workers share. Default: one that the worker completed lately")
	fs.IntVar(&f.load.BodyBytes, "body-bytes", 200, "length of the answers")
	fs.IntVar(&f.load.Duplicates, "duplicates", 4, "how many calls a turn of duplicates makes at once")
	addDuration(fs, &f.wait, "wait", "how long duplicates ask the daemon to wait for the answer. Default: not at all, they ask again")
	addDuration(fs, &f.maxP99, "max-p99", "fail if the 99th percentile of begin, complete, replay or mismatch is over this")
	fs.Float64Var(&f.minRate, "min-rate", 0, "fail if fewer turns a `second` were done")
	fs.Int64Var(&f.maxErrors, "max-errors", 0, "fail if more turns than this came to no end")
	t := addTarget(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return w.bench(cmd.Context(), t, f) }
	return cmd
}

// mixFlag reads "fresh=8,replay=2".
type mixFlag workload.Mix

func (m *mixFlag) String() string { return workload.Mix(*m).String() }
func (m *mixFlag) Type() string   { return "turn=weight,…" }
func (m *mixFlag) Set(text string) error {
	var mix workload.Mix
	for part := range strings.SplitSeq(text, ",") {
		name, weight, _ := strings.Cut(part, "=")
		turn := slices.Index(workload.TurnNames(), strings.ToLower(strings.TrimSpace(name)))
		n, err := strconv.Atoi(strings.TrimSpace(weight))
		if turn < 0 || err != nil || n < 0 || n > 1_000_000 {
			return fmt.Errorf("%q: want turn=weight, with turns of %s", part, strings.Join(workload.TurnNames(), ", "))
		}
		mix[turn] = n
	}
	*m = mixFlag(mix)
	return nil
}

// benchReport is what -o json prints.
type benchReport struct {
	Tenant      string  `json:"tenant"`
	Workers     int     `json:"workers"`
	Connections int     `json:"connections"`
	Session     bool    `json:"session"`
	Rate        float64 `json:"rate"`
	Mix         string  `json:"mix"`
	Keys        string  `json:"keys"`
	HotKeys     int     `json:"hotKeys"`
	BodyBytes   int     `json:"bodyBytes"`
	*workload.Report
	// CallsAlone is how many calls found no open stream with --session, resends included, and were made by themselves: over the whole run, warm-up and end included.
	CallsAlone int64 `json:"callsAlone"`
	// Erased is how many entries were erased; NotErased why there are some left, or "".
	Erased    int64  `json:"erased"`
	NotErased string `json:"notErased"`
	// Failures are why the exit code is not 0.
	Failures []string `json:"failures"`
}

func (w *world) bench(ctx context.Context, t *target, f benchFlags) error {
	f.load.Mix, f.load.Keys = workload.Mix(f.mix), workload.Keys(f.keys.value)
	f.load.Warmup, f.load.Duration, f.load.Wait = time.Duration(f.warmup), time.Duration(f.duration), time.Duration(f.wait)
	f.load.CallTimeout, f.load.Resending = time.Duration(t.timeout), f.session
	f.load.Tenant, f.load.Operation = "idemd-bench-"+uuid.NewString(), benchOperation
	if f.connections < 1 || f.connections > 1000 {
		return usage("--connections must be from 1 to 1000")
	}
	if !(f.minRate >= 0) || f.maxErrors < 0 { // NaN is below nothing, and would never be missed
		return usage("--min-rate and --max-errors must not be negative")
	}
	f.load.Clients, f.alone = make([]workload.Client, f.connections), &callCounter{}
	if err := f.load.Validate(); err != nil {
		return asUsage(err)
	}
	// After the first signal a second one ends the process as ever.
	running, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(running, stop)
	var first *client
	for i := range f.load.Clients {
		c, err := w.connect(running, t)
		if err != nil {
			return err
		}
		defer c.close()
		f.load.Clients[i] = workload.Unary(c.conn)
		if f.session {
			onStream, err := clientlib.New(clientlib.Config{Conn: f.alone.on(c.conn), Sessions: 1, LedgerTimeout: f.load.CallTimeout, TryTimeout: f.load.CallTimeout})
			if err != nil {
				return err
			}
			defer func() { _ = onStream.Close() }()
			f.load.Clients[i] = onStream
		}
		if i == 0 {
			first = c
		}
	}
	return w.benchOn(ctx, running, first, f)
}

// benchOn runs the load until running ends, and then erases.
func (w *world) benchOn(ctx, running context.Context, c *client, f benchFlags) error {
	keep := f.load.Warmup + f.load.Duration + benchGrace
	report := benchReport{
		Tenant: f.load.Tenant, Workers: f.load.Workers, Connections: f.connections, Session: f.session, Rate: f.load.Rate, Mix: f.load.Mix.String(),
		Keys: f.keys.value, HotKeys: f.load.HotKeys, BodyBytes: f.load.BodyBytes, Failures: []string{},
	}
	if w.draws {
		w.stderr.printf("preparing: all daemons must follow the policy of tenant %s", report.Tenant)
	}
	err := w.putScratchPolicy(running, c, scratchPolicy(report.Tenant, workload.Lease, keep))
	if err == nil {
		report.Report, err = workload.Run(running, f.load, w.drawProgress(c))
	}
	w.endLine(true)
	report.CallsAlone = f.alone.n.Load()
	var eraseErr error
	if report.Erased, eraseErr = w.eraseScratch(ctx, c, report.Tenant); eraseErr != nil {
		report.NotErased = describe(eraseErr)
		w.stderr.printf("idemd: the entries of tenant %s are not all erased: %s\n  idemd erase %s --before now --force --yes\n",
			report.Tenant, report.NotErased, report.Tenant)
	}
	switch {
	case err != nil && running.Err() != nil:
		return errors.New("called off before the load began")
	case err != nil:
		return called(err, c.target.addr)
	}
	report.Failures = f.failures(report.Report)
	if report.NotErased != "" {
		report.Failures = append(report.Failures, "not everything was erased")
	}
	if c.target.json() {
		if err := printJSON(w.stdout, report); err != nil {
			return err
		}
	} else {
		w.printBench(&report, keep)
	}
	if len(report.Failures) > 0 {
		return errors.New(strings.Join(report.Failures, "; "))
	}
	return nil
}

// callCounter counts the unary calls on some connections.
type callCounter struct{ n atomic.Int64 }

func (c *callCounter) on(conn grpc.ClientConnInterface) grpc.ClientConnInterface {
	return countedConn{conn, c}
}

type countedConn struct {
	grpc.ClientConnInterface
	counter *callCounter
}

// Invoke implements [grpc.ClientConnInterface].
func (c countedConn) Invoke(ctx context.Context, method string, args, reply any, options ...grpc.CallOption) error {
	c.counter.n.Add(1)
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, options...)
}

// drawProgress tells how it goes: a line that is written over on a terminal, a line from time to time elsewhere.
func (w *world) drawProgress(c *client) func(workload.Snapshot) {
	told := time.Now()
	return func(s workload.Snapshot) {
		what := "measuring"
		if s.Warming {
			what = "warming up"
		}
		line := fmt.Sprintf("%s %s: %.0f turns/s, begin p99 %s, %d errors, %d broken promises",
			what, formatDuration(s.Elapsed.Truncate(time.Second)), s.TurnsPerSecond, seconds(s.P99Begin), s.Errors, s.Broken)
		switch {
		case w.draws:
			w.stderr.printf("\r\x1b[K%s", line)
		case !c.target.json() && time.Since(told) >= progressEvery:
			told = time.Now()
			w.stderr.printf("%s\n", line)
		}
	}
}

// failures says why a run is no success.
func (f *benchFlags) failures(r *workload.Report) []string {
	out := []string{}
	fail := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	fail(r.Broken > 0, "BROKEN PROMISES: %d", r.Broken)
	fail(r.Interrupted, "it was called off")
	fail(r.ErrorCount() > f.maxErrors, "%d turns came to no end, at most %d may", r.ErrorCount(), f.maxErrors)
	fail(r.TurnsPerSecond < f.minRate, "%.1f turns a second, at least %g are wanted", r.TurnsPerSecond, f.minRate)
	fail(float64(r.NotBegun) > maxNotBegun*float64(r.Turns+r.NotBegun)+fewNotBegun,
		"the rate was not kept: %d turns that were due found no worker", r.NotBegun)
	for _, s := range r.Spans {
		judged := s.Span != workload.SpanPair && s.Span != workload.SpanDuplicates && s.Span != workload.SpanQueued
		fail(judged && f.maxP99 > 0 && s.P99 > time.Duration(f.maxP99).Seconds(), "%s: the 99th percentile is %s, at most %s is wanted",
			s.Span, seconds(s.P99), formatDuration(time.Duration(f.maxP99)))
	}
	return out
}

// seconds is a length of time to three digits.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < time.Millisecond:
		return d.Truncate(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	default:
		return d.Round(10 * time.Millisecond).String()
	}
}

func (w *world) printBench(r *benchReport, keep time.Duration) {
	out := w.stdout
	out.printf("%d turns in %.1f s: %.1f turns/s, %.1f calls/s, with %d workers on %d connections\n\n",
		r.Turns, r.Seconds, r.TurnsPerSecond, r.CallsPerSecond, r.Workers, r.Connections)
	var rows [][]string
	for _, s := range r.Spans {
		rows = append(rows, []string{
			string(s.Span), strconv.FormatInt(s.Count, 10), strconv.FormatFloat(s.PerSecond, 'f', 1, 64),
			seconds(s.Mean), seconds(s.P50), seconds(s.P90), seconds(s.P99), seconds(s.P999), seconds(s.Max),
		})
	}
	table(out, []string{"SPAN", "COUNT", "PER SECOND", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"}, rows)
	out.printf("\n")
	rows = nil
	for _, p := range r.Promises {
		rows = append(rows, []string{string(p.Promise), strconv.FormatInt(p.Checked, 10), strconv.FormatInt(p.Broken, 10)})
	}
	table(out, []string{"PROMISE", "CHECKED", "BROKEN"}, rows)
	out.printf("\n")
	for _, example := range r.Examples {
		out.printf("BROKEN %s\n", oneLine(example))
	}
	for _, c := range r.Errors {
		out.printf("%d turns came to no end: %s\n", c.N, c.What)
	}
	for _, c := range r.Resends {
		out.printf("%d calls were sent again: %s\n", c.N, c.What)
	}
	if r.Session {
		out.printf("%d calls found no open stream and were made by themselves\n", r.CallsAlone)
	}
	if r.NotBegun > 0 {
		out.printf("%d turns were due and found no worker before the time was over\n", r.NotBegun)
	}
	out.printf("%d entries were asked for once more at the end; %d erased, whose tombstones go with the first sweep in %s\n",
		r.Rechecked, r.Erased, formatDuration(keep))
}
