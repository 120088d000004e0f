package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const (
	growthEntries = 5_000_000
	sweepEntries  = 1_000_000
)

// growth fills the embedded store, and tells speed, memory and disk when it is empty and when it is full; then it weighs tombstones in a ledger
// of their own.
func (l *lab) growth(ctx context.Context) error {
	entries := l.entries
	if entries == 0 {
		entries = growthEntries
	}
	machine := l.machine()
	d, err := l.startDaemon(ctx, "")
	if err != nil {
		return err
	}
	conns, err := l.dial(d.addr, l.connections)
	if err != nil {
		return err
	}
	load := &candidate{name: "pairs", unit: unitPairs, workers: l.workers, step: pairs(ledgerClients(conns), tenant, l.bodyBytes), servers: d.as("idemd")}
	step("measuring on an empty ledger for %v", l.length)
	empty, err := load.measure(ctx, l.length)
	if err != nil {
		return err
	}
	step("making %d entries", entries)
	if err := l.fill(ctx, load, entries); err != nil {
		return err
	}
	step("measuring on the full ledger for %v", l.length)
	full, err := load.measure(ctx, l.length)
	if err != nil {
		return err
	}
	memory, err := residentBytes(d.cmd.Process.Pid)
	if err != nil {
		return err
	}
	step("counting")
	count, err := countEntries(ctx, idemv1.NewAdminServiceClient(conns[0]), tenant)
	if err != nil {
		return err
	}
	counted, err := residentBytes(d.cmd.Process.Pid)
	if err != nil {
		return err
	}
	disk, err := diskBytes(d.dataDir)
	if err != nil {
		return err
	}
	step("making and weighing %d tombstones", l.tombstones)
	tombstone, err := l.weighTombstones(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("Measured on %s: embedded store, %d callers, answers of %d bytes.\n\n", machine, l.workers, l.bodyBytes)
	fmt.Println("| what | measured | target | |\n| --- | --- | --- | --- |")
	line := func(what string, got float64, form string, t target) {
		fmt.Printf("| %s | "+form+" | %s |\n", what, got, t.verdict(got))
	}
	fmt.Printf("| pairs/s on an empty ledger | %.0f | none | |\n| pairs/s with %d entries | %.0f | none | |\n", empty.perSecond, count, full.perSecond)
	fmt.Printf("| processor time of a pair on an empty ledger | %s | none | |\n", load.processor([]run{empty}))
	fmt.Printf("| processor time of a pair there | %s | none | |\n", load.processor([]run{full}))
	line("the same as a ratio", ratio(full.perSecond, empty.perSecond), "%.2f", target{want: 0.8})
	line("resident memory of the daemon there, under load, MB", float64(memory)/1e6, "%.0f", target{want: 300, atMost: true})
	line("the same after all entries were counted, MB", float64(counted)/1e6, "%.0f", target{want: 300, atMost: true})
	line("bytes of disk an entry, log included", float64(disk)/float64(count), "%.0f", target{want: 700, atMost: true})
	line(fmt.Sprintf("bytes of disk a tombstone, of %d in a backup", l.tombstones), tombstone, "%.0f", target{want: 250, atMost: true})
	return nil
}

// fill makes so many entries.
func (l *lab) fill(ctx context.Context, c *candidate, entries int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var workers sync.WaitGroup
	told := make(chan struct{})
	go func() {
		defer close(told)
		tellProgress(ctx, entries, &done)
	}()
	for w := range c.workers {
		workers.Go(func() {
			for next.Add(1) <= entries && ctx.Err() == nil {
				if err := c.step(ctx, w); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	workers.Wait()
	err := context.Cause(ctx)
	cancel(nil)
	<-told
	return err
}

// tellProgress tells from time to time how many entries were made, until ctx ends.
func tellProgress(ctx context.Context, entries int64, done *atomic.Int64) {
	every := time.NewTicker(10 * time.Second)
	defer every.Stop()
	begun := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			n, took := done.Load(), time.Since(begun)
			fmt.Fprintf(os.Stderr, "%d of %d entries after %v, %.0f a second\n", n, entries, took.Truncate(time.Second), float64(n)/took.Seconds())
		}
	}
}

// step tells what is done next.
func step(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// shortLived gives a tenant a policy whose answers go after two seconds, with tombstones that stay, and waits until the daemon follows it.
func shortLived(ctx context.Context, admin idemv1.AdminServiceClient, tenant string) error {
	put, err := admin.PutPolicy(ctx, &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
		Tenant: tenant, Operation: "*", Tombstone: durationpb.New(30 * 24 * time.Hour),
		Horizons: &idemv1.Horizons{ClientRetry: durationpb.New(shortest)},
	}})
	if err != nil {
		return err
	}
	wait(ctx, put.GetEffectiveTime().AsTime().Sub(put.GetPolicy().GetUpdateTime().AsTime()))
	return ctx.Err()
}

// shortest is the shortest retention that a policy can have.
const shortest = 2 * time.Second

// weighTombstones makes a ledger that has nothing but tombstones, and returns what one weighs in a backup of it: the file of a running daemon keeps
// the room of what was stripped for what comes.
func (l *lab) weighTombstones(ctx context.Context) (float64, error) {
	d, err := l.startDaemon(ctx, "", "--sweep-interval", "0")
	if err != nil {
		return 0, err
	}
	conns, err := l.dial(d.addr, l.connections)
	if err != nil {
		return 0, err
	}
	admin := idemv1.NewAdminServiceClient(conns[0])
	if err := shortLived(ctx, admin, tenant); err != nil {
		return 0, err
	}
	if err := l.fill(ctx, &candidate{workers: l.workers, step: pairs(ledgerClients(conns), tenant, l.bodyBytes)}, l.tombstones); err != nil {
		return 0, err
	}
	wait(ctx, shortest)
	swept, err := sweepAll(ctx, admin)
	if err != nil {
		return 0, err
	}
	if swept < l.tombstones {
		return 0, fmt.Errorf("%d tombstones were made, want %d", swept, l.tombstones)
	}
	backup := filepath.Join(l.dir, "tombstones.db")
	if out, err := l.command(ctx, "backup", "--data-dir", d.dataDir, backup).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("idemd backup: %w: %s", err, out)
	}
	info, err := os.Stat(backup)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / float64(swept), nil
}

// countEntries counts a tenant's entries.
func countEntries(ctx context.Context, admin idemv1.AdminServiceClient, tenant string) (n int64, err error) {
	stats, err := admin.GetStats(ctx, &idemv1.GetStatsRequest{Tenant: tenant})
	for _, c := range stats.GetCounts() {
		n += c.GetEntryCount()
	}
	return n, err
}

// residentBytes is how much memory a process holds.
func residentBytes(pid int) (int64, error) {
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			return kilobytes * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d does not say what memory it holds", pid)
}

// diskBytes is what the files of a folder hold.
func diskBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}
