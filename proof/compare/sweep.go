package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/google/uuid"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// expiring is whose entries are swept.
const expiring = "expiring"

// sweep measures what callers of an embedded daemon notice of a sweep: in each round Begins are timed for a while, and then again for as long while a
// sweep strips expired entries. In the end it sweeps while nobody calls.
func (l *lab) sweep(ctx context.Context) error {
	entries := l.entries
	if entries == 0 {
		entries = sweepEntries
	}
	machine := l.machine()
	d, err := l.startDaemon(ctx, "", "--sweep-interval", "0")
	if err != nil {
		return err
	}
	conns, err := l.dial(d.addr, l.connections)
	if err != nil {
		return err
	}
	admin, clients := idemv1.NewAdminServiceClient(conns[0]), ledgerClients(conns)
	if err := shortLived(ctx, admin, expiring); err != nil {
		return err
	}
	filling := &candidate{workers: l.workers, step: pairs(clients, expiring, l.bodyBytes)}
	var before, during, busy []float64
	missing := entries
	for round := range l.rounds {
		step("round %d of %d: making %d entries", round+1, l.rounds, missing)
		if err := l.fill(ctx, filling, missing); err != nil {
			return err
		}
		wait(ctx, shortest)
		step("measuring for twice %v", l.length)
		quiet, err := l.callers(ctx, clients, nil)
		if err != nil {
			return err
		}
		begun := time.Now()
		s := &sweeping{admin: admin, ended: make(chan struct{})}
		swept, err := l.callers(ctx, clients, s)
		if err != nil {
			return err
		}
		missing = s.swept
		before, during = append(before, quiet), append(during, swept)
		busy = append(busy, float64(s.swept)/time.Since(begun).Seconds())
		step("p99 of Begin %s before, %s during the sweep of %d", inMillis(quiet), inMillis(swept), s.swept)
	}
	step("making %d entries", missing)
	if err := l.fill(ctx, filling, missing); err != nil {
		return err
	}
	wait(ctx, shortest)
	step("sweeping while nobody calls")
	begun := time.Now()
	n, err := sweepAll(ctx, admin)
	if err != nil {
		return err
	}
	idle := float64(n) / time.Since(begun).Seconds()

	fmt.Printf("Measured on %s: embedded store, %d expired entries, %g pairs/s by callers, medians of %d rounds of %v.\n\n",
		machine, entries, l.sweepRate, l.rounds, l.length)
	fmt.Println("| what | measured | target | |\n| --- | --- | --- | --- |")
	quiet, swept := medianOf(before), medianOf(during)
	fmt.Printf("| p99 of Begin, no sweep | %s | none | |\n| p99 of Begin, while a sweep runs | %s | none | |\n", inMillis(quiet), inMillis(swept))
	factor, alone := target{want: 2, atMost: true}, target{want: 20_000}
	fmt.Printf("| the same as a ratio | %.2f | %s |\n", ratio(swept, quiet), factor.verdict(ratio(swept, quiet)))
	fmt.Printf("| entries swept in a second, with those callers | %.0f | none | |\n", medianOf(busy))
	fmt.Printf("| entries swept in a second, nobody calls | %.0f | %s |\n", idle, alone.verdict(idle))
	return nil
}

// callers begin and complete at the rate of the config for as long as is measured, and return the 99th percentile of Begin in seconds, counted from
// when each was due. With a sweep they last until it ends, if that is sooner; it is called off otherwise.
func (l *lab) callers(ctx context.Context, clients []ledger, s *sweeping) (float64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var ended chan struct{} // never ready without a sweep
	if s != nil {
		ended = s.ended
		sweepCtx, stop := context.WithCancel(ctx)
		defer func() { stop(); <-s.ended }()
		go func() {
			if err := s.run(sweepCtx); err != nil {
				cancel(err)
			}
		}()
	}
	var mu sync.Mutex
	lengths := hdrhistogram.New(1, time.Minute.Microseconds(), 3)
	var turns sync.WaitGroup
	places := make(chan struct{}, 4096) // more than that under way at once is an outage, and fails
	start := time.Now()
	for i := 0; ; i++ {
		offset := time.Duration(float64(i) / l.sweepRate * float64(time.Second))
		wait(ctx, time.Until(start.Add(offset)))
		select {
		case <-ended:
			offset = l.length
		default:
		}
		if offset >= l.length || ctx.Err() != nil {
			break
		}
		select {
		case places <- struct{}{}:
		default:
			cancel(errors.New("the daemon does not keep up with -rate"))
		}
		client, due := clients[i%len(clients)], start.Add(offset)
		turns.Go(func() {
			defer func() { <-places }()
			request := beginRequest(tenant, uuid.New())
			begun, err := client.Begin(ctx, request)
			mu.Lock()
			_ = lengths.RecordValue(min(max(time.Since(due).Microseconds(), 1), time.Minute.Microseconds()))
			mu.Unlock()
			if err == nil {
				_, err = client.Complete(ctx, completeRequest(request, begun.GetGranted(), l.bodyBytes))
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	turns.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	return float64(lengths.ValueAtQuantile(99)) / 1e6, nil
}

// sweeping is a sweep under way.
type sweeping struct {
	admin idemv1.AdminServiceClient
	ended chan struct{}
	// swept is how many entries it stripped, once it has ended.
	swept int64
}

// run sweeps until all is swept or ctx ends.
func (s *sweeping) run(ctx context.Context) (err error) {
	defer close(s.ended)
	s.swept, err = sweepAll(ctx, s.admin)
	if ctx.Err() != nil {
		return nil // called off, as it should be
	}
	return err
}

// sweepAll sweeps, and returns how many entries were stripped: also where it was broken off.
func sweepAll(ctx context.Context, admin idemv1.AdminServiceClient) (int64, error) {
	var swept int64
	stream, err := admin.Sweep(ctx, &idemv1.SweepRequest{})
	if err != nil {
		return 0, err
	}
	for {
		report, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return swept, nil
		}
		if err != nil {
			return swept, err
		}
		swept = report.GetTombstonedCount()
	}
}
