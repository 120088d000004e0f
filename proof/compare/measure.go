package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

func processors() int { return runtime.GOMAXPROCS(0) }

// candidate is something that is measured.
type candidate struct {
	name string
	what string // in a line of the table
	unit string // what step does one of
	// workers is how many callers at once.
	workers int
	// step does it once, for a worker. It is called from that worker's goroutine only.
	step func(ctx context.Context, worker int) error
	// servers do the work for the callers, in processes of their own.
	servers []server
}

// server is a program that works for a candidate: what it is called, and the process that it was started as.
type server struct {
	name string
	pid  int
}

// Units.
const (
	unitPairs = "pairs/s"
	unitCalls = "calls/s"
)

// run is one measurement of a candidate. Lengths are in seconds.
type run struct {
	perSecond, p50, p99 float64
	// callersCPU and serversCPU are the processor time that one took, which depends less on what else the machine does; serversCPU of each server.
	callersCPU float64
	serversCPU []float64
}

// settle is how long a candidate runs before it is measured: connections, caches and the processor's clock come to rest.
const settle = 300 * time.Millisecond

// measure runs a candidate in a closed loop. What a step is told is checked by the step; one that fails ends the measurement.
func (c *candidate) measure(ctx context.Context, length time.Duration) (run, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var measured, some, over atomic.Bool
	lengths := make([]*hdrhistogram.Histogram, c.workers)
	var workers sync.WaitGroup
	for w := range c.workers {
		h := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
		lengths[w] = h
		workers.Go(func() {
			for !over.Load() && ctx.Err() == nil {
				begun := time.Now()
				if err := c.step(ctx, w); err != nil {
					cancel(fmt.Errorf("%s: %w", c.name, err))
					return
				}
				if measured.Load() && !over.Load() {
					some.Store(true)
					_ = h.RecordValue(max(time.Since(begun).Microseconds(), 1))
				}
			}
		})
	}
	wait(ctx, settle)
	begun, callersCPU, serversCPU := time.Now(), processorTime(os.Getpid()), c.serversTime()
	measured.Store(true)
	wait(ctx, length)
	for !some.Load() && ctx.Err() == nil && time.Since(begun) < patience {
		wait(ctx, settle) // on a machine that does a lot else a short time may be too short for one
	}
	over.Store(true)
	took := time.Since(begun)
	callersCPU = processorTime(os.Getpid()) - callersCPU
	servers := c.serversTime()
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return run{}, err
	}
	all := lengths[0]
	for _, h := range lengths[1:] {
		all.Merge(h)
	}
	if all.TotalCount() == 0 {
		return run{}, fmt.Errorf("%s: nothing was done in %v", c.name, length)
	}
	n := float64(all.TotalCount())
	for i := range servers {
		servers[i] = (servers[i] - serversCPU[i]) / n
	}
	return run{
		perSecond: n / took.Seconds(), callersCPU: callersCPU.Seconds() / n, serversCPU: servers,
		p50: float64(all.ValueAtQuantile(50)) / 1e6, p99: float64(all.ValueAtQuantile(99)) / 1e6,
	}, nil
}

// wait waits, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// rounds measures all candidates, one after the other, so many times. A candidate that fails is left out from then on, and said.
func rounds(ctx context.Context, all []*candidate, n int, length time.Duration) (map[string][]run, error) {
	runs := map[string][]run{}
	failed := map[string]bool{}
	for round := range n {
		for _, c := range all {
			if failed[c.name] {
				continue
			}
			r, err := c.measure(ctx, length)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "left out:", err)
				failed[c.name] = true
				delete(runs, c.name)
				continue
			}
			fmt.Fprintf(os.Stderr, "round %d of %d: %-28s %9.0f %s\n", round+1, n, c.name, r.perSecond, c.unit)
			runs[c.name] = append(runs[c.name], r)
		}
	}
	if len(runs) == 0 {
		return nil, errors.New("nothing could be measured")
	}
	return runs, nil
}

// median of what of returns of each run; 0 for none.
func median(runs []run, of func(run) float64) float64 {
	if len(runs) == 0 {
		return 0
	}
	values := make([]float64, 0, len(runs))
	for _, r := range runs {
		values = append(values, of(r))
	}
	return medianOf(values)
}

func medianOf(values []float64) float64 {
	slices.Sort(values)
	middle := len(values) / 2
	if len(values)%2 == 1 {
		return values[middle]
	}
	return (values[middle-1] + values[middle]) / 2
}

func perSecond(r run) float64  { return r.perSecond }
func p50(r run) float64        { return r.p50 }
func p99(r run) float64        { return r.p99 }
func callersCPU(r run) float64 { return r.callersCPU }

// tick is the unit in which Linux tells processor time to programs.
const tick = 10 * time.Millisecond

// usage is what Linux says of a process; elsewhere, and of one that is not there, it says nothing.
type usage struct {
	parent int
	// own is the processor time that it used, and ended that of children that have ended.
	own, ended time.Duration
}

func usageOf(pid int) usage {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}
	}
	// The name in the second field may hold anything. Behind it are, from 0: 1 the parent, 11 and 12 user and system time, 13 and 14 the same of
	// children.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return usage{}
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64) // the kernel writes numbers
		return n
	}
	return usage{parent: int(number(1)), own: time.Duration(number(11)+number(12)) * tick, ended: time.Duration(number(13)+number(14)) * tick}
}

// processorTime is what a process has used itself.
func processorTime(pid int) time.Duration { return usageOf(pid).own }

// processes are all that there are, by id.
func processes() map[int]usage {
	out := map[int]usage{}
	entries, _ := os.ReadDir("/proc") // there is none but on Linux
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			out[pid] = usageOf(pid)
		}
	}
	return out
}

// children are the processes that this one has started, and that run.
func children() []int {
	var out []int
	for pid, u := range processes() {
		if u.parent == os.Getpid() {
			out = append(out, pid)
		}
	}
	return out
}

// serversTime is the processor time in seconds that each server has used, with all the processes that it has started: PostgreSQL has one for each connection.
func (c *candidate) serversTime() []float64 {
	out := make([]float64, len(c.servers))
	if len(out) == 0 {
		return out
	}
	all := processes()
	for pid, u := range all {
		for i, s := range c.servers {
			if descends(all, pid, s.pid) {
				out[i] += (u.own + u.ended).Seconds()
			}
		}
	}
	return out
}

// descends says whether a process is another, or was started by it or by one that it started.
func descends(all map[int]usage, pid, from int) bool {
	for ; pid > 0; pid = all[pid].parent {
		if pid == from {
			return true
		}
	}
	return false
}
