// Command compare measures the daemon beside what it could be compared with, on one machine and in one run, and prints tables in Markdown: a gRPC
// server that does nothing, the table that teams write themselves, Redis. docs/performance.md holds a run of it.
//
// Every candidate runs for a short time in every round, so that what else the machine does hits all of them; medians over the rounds count. All
// of them are as durable as they can be: fsync is on everywhere.
//
// It talks to nothing but processes that it starts itself, on the loopback interface and unix sockets, with their data in a folder of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// config is what the command line says.
type config struct {
	do          string
	rounds      int
	length      time.Duration
	workers     int
	connections int
	pool        int
	bodyBytes   int
	dir         string
	idemd       string
	cockroach   string
	only        selection
	distance    time.Duration
	network     string
	address     string

	entries    int64
	tombstones int64
	sweepRate  float64
}

// What can be done.
const (
	doCompare = "compare"
	doGrowth  = "growth"
	doSweep   = "sweep"
	// In processes of their own:
	doEcho     = "echo"     // the bare server
	doDistance = "distance" // a long way to a database
)

func (c *config) register() {
	flag.StringVar(&c.do, "do", doCompare, "compare, growth or sweep")
	flag.IntVar(&c.rounds, "rounds", 5, "how many rounds; medians are over these")
	flag.DurationVar(&c.length, "length", 3*time.Second, "how long each candidate runs in each round; sweep and growth: how long is measured (default there 30s)")
	flag.IntVar(&c.workers, "workers", 64, "callers at once")
	flag.IntVar(&c.connections, "connections", 2, "gRPC connections that they share, and streams")
	flag.IntVar(&c.pool, "pool", 32, "connections of the hand-written table to its database")
	flag.IntVar(&c.bodyBytes, "body", 200, "length of the answers in bytes")
	flag.StringVar(&c.dir, "dir", "", "folder for the data, on the disk that is to be measured; default: the system's for temporary files, where PostgreSQL's and CockroachDB's always are")
	flag.StringVar(&c.idemd, "idemd", "", "the program to measure; default: built from this source")
	flag.StringVar(&c.cockroach, "cockroach", os.Getenv("COCKROACH_BINARY"), "a CockroachDB program, to be measured too")
	flag.DurationVar(&c.distance, "distance", 5*time.Millisecond, "how long everything takes each way between a far PostgreSQL and those who call it")
	flag.StringVar(&c.network, "network", "", "-do distance: network of the database, tcp or unix")
	flag.StringVar(&c.address, "address", "", "-do distance: address of the database")
	flag.Var(&c.only, "only", "compare: measure this candidate, or all whose names begin so; may be given several times. Ratios need both their parts")
	flag.Int64Var(&c.entries, "entries", 0, "growth: entries in the ledger, default 5,000,000; sweep: entries to be swept, default 1,000,000")
	flag.Int64Var(&c.tombstones, "tombstones", 200_000, "growth: how many tombstones are weighed")
	flag.Float64Var(&c.sweepRate, "rate", 500, "sweep: pairs a second that callers begin meanwhile")
}

func (c *config) validate() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("there are no arguments: %q", flag.Args())
	case c.rounds < 1 || c.length <= 0 || c.workers < 1 || c.connections < 1 || c.pool < 1 || c.bodyBytes < 0:
		return errors.New("rounds, length, workers, connections and pool must be above 0")
	case c.entries < 0 || c.tombstones < 1 || c.sweepRate <= 0:
		return errors.New("entries, tombstones and rate must be above 0")
	}
	return nil
}

func main() {
	var c config
	c.register()
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := c.validate()
	if err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		stop()
		os.Exit(1)
	}
}

func (c *config) run(ctx context.Context) error {
	switch c.do {
	case doEcho:
		return serveEcho(ctx)
	case doDistance:
		return serveDistance(ctx, c.network, c.address, c.distance)
	}
	lab, err := newLab(ctx, c)
	if err != nil {
		return err
	}
	defer lab.close()
	lengthGiven := false
	flag.Visit(func(f *flag.Flag) { lengthGiven = lengthGiven || f.Name == "length" })
	if !lengthGiven && c.do != doCompare {
		c.length = 30 * time.Second
	}
	switch c.do {
	case doCompare:
		return lab.compare(ctx)
	case doGrowth:
		return lab.growth(ctx)
	case doSweep:
		return lab.sweep(ctx)
	default:
		return fmt.Errorf("-do %q: want %s, %s or %s", c.do, doCompare, doGrowth, doSweep)
	}
}
