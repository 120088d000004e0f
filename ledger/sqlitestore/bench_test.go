package sqlitestore

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// scopeOf is a scope id as the ledger makes them: a hash.
func scopeOf(n int64) ledger.ScopeID {
	return sha256.Sum256(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// claimed is a first RUN grant as the ledger writes it, with names of an ordinary length.
func claimed(n int64) ledger.Write {
	scope := scopeOf(n)
	hash := sha256.Sum256(scope[:])
	e := &ledger.Entry{
		Scope: scope, Ref: ledger.Ref{Tenant: "acme", Operation: "/payments.v1.Payments/Charge", Key: fmt.Sprintf("%x-%x", scope[:8], scope[8:17])},
		Incarnation: ledger.In(0), State: ledger.Pending, Current: true,
		Fingerprints: []ledger.Fingerprint{{Algorithm: "proto-1", Hash: hash[:]}},
		Terms:        ledger.Terms{OnAbandoned: ledger.Reclaim, MaxAttempts: 10, Retention: 7 * 24 * time.Hour, Tombstone: 7 * 24 * time.Hour},
		HoldFrom:     ledger.Never, RunGrants: 1, DueAt: ledger.In(time.Minute + 7*24*time.Hour),
		Last: ledger.Attempt{
			Number: 1, IDHash: ledger.IDHash(hash[:16]), Holder: "payments-7f9c", Principal: "spiffe://acme/payments", Lease: time.Minute,
			BeganAt: ledger.In(0), LeaseUntil: ledger.In(time.Minute),
		},
	}
	return ledger.Write{Scope: scope, Guard: ledger.Guard{Kind: ledger.GuardAbsent}, Put: e}
}

// completed is the report of such a claim, with an answer of size random bytes.
func completed(n int64, stamps ledger.Stamps, size int) ledger.Write {
	scope := scopeOf(n)
	body := make([]byte, size)
	source := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range body {
		body[i] = byte(source.Uint32())
	}
	return ledger.Write{
		Scope: scope, Guard: ledger.Guard{Kind: ledger.GuardClaim, Incarnation: stamps.Incarnation, Attempt: 1},
		Settle: &ledger.Settle{
			State: ledger.Completed, Ended: ledger.EndedCompleted, Report: sha256.Sum256(body),
			Response:  &ledger.Response{Body: body, ContentType: "application/proto"},
			Retention: 7 * 24 * time.Hour, Tombstone: 7 * 24 * time.Hour,
		},
	}
}

func pair(tb testing.TB, s *Store, n int64, size int) ledger.Stamps {
	w, err := s.Write(tb.Context(), claimed(n))
	if err == nil && w.Applied {
		w, err = s.Write(tb.Context(), completed(n, w.Stamps, size))
	}
	if err != nil || !w.Applied {
		tb.Errorf("pair %d: applied %t, %v", n, w.Applied, err)
	}
	return w.Stamps
}

// BenchmarkPair is a grant and its settlement with a 200-byte body: two durable writes.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := openForTest(b, Config{Dir: b.TempDir()})
			var n atomic.Int64
			before := cpuTime()
			b.ResetTimer()
			together(callers, func() {
				for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
					pair(b, s, i, 200)
				}
			})
			b.StopTimer()
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
			stats := s.Stats()
			b.ReportMetric(float64(stats.Writes)/float64(stats.Batches), "writes/batch")
			b.ReportMetric(float64(diskBytes(b, s))/float64(b.N), "disk-B/op")
		})
	}
}

// BenchmarkGet reads settled entries one by one.
func BenchmarkGet(b *testing.B) {
	const entries = 20_000
	s := openForTest(b, Config{Dir: b.TempDir()})
	fill(b, s, entries)
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			before := cpuTime()
			var n atomic.Int64
			together(callers, func() {
				for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
					if r, err := s.Get(b.Context(), scopeOf(i%entries+1)); err != nil || r.Entry == nil {
						b.Error(r, err)
						return
					}
				}
			})
			b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkTombstone reports what a closed entry weighs on disk once a ledger has nothing else.
func BenchmarkTombstone(b *testing.B) {
	s := openForTest(b, Config{Dir: b.TempDir()})
	for n := range int64(b.N) {
		w := claimed(n)
		e := w.Put
		e.State, e.Closed, e.Current = ledger.Completed, true, true
		e.SettledAt, e.SettledBy, e.Settlement = ledger.In(0), 1, ledger.Digest{1}
		e.Last.EndedAt, e.Last.Ended, e.Last.Report = ledger.In(0), ledger.EndedCompleted, ledger.Digest{1}
		if _, err := s.Write(b.Context(), w); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(diskBytes(b, s))/float64(b.N), "disk-B/op")
}

// BenchmarkSweep is what a sweep does to a settled entry, as the ledger has it done while nobody calls: page by page its answer goes, and later all of it.
func BenchmarkSweep(b *testing.B) {
	moving := storetest.NewClock(testStart)
	// Time goes on while entries are made: few are due at one instant.
	s := openForTest(b, Config{Dir: b.TempDir(), Clock: func() ledger.Time { moving.Advance(time.Microsecond); return moving.Now() }})
	fill(b, s, int64(b.N))
	forget := func(page ledger.Page) error {
		rows := make([]ledger.Row, len(page.Entries))
		for i, e := range page.Entries {
			rows[i] = ledger.Row{Scope: e.Scope, Incarnation: e.Incarnation, Revision: e.Revision}
		}
		_, err := s.Forget(b.Context(), rows)
		return err
	}
	before := cpuTime()
	b.ResetTimer()
	for _, step := range []func(ledger.Page) error{func(page ledger.Page) error { return closeAll(b, s, page) }, forget} {
		moving.Advance(8 * 24 * time.Hour)
		q := ledger.PageQuery{Order: ledger.ByDue, Shard: ledger.AllShards, Limit: 500}
		for more := true; more; {
			page, err := s.Page(b.Context(), q)
			if err == nil && len(page.Entries) > 0 {
				err = step(page)
			}
			if err != nil {
				b.Fatal(err)
			}
			more, q.After = page.More, page.Next
		}
	}
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-µs/op")
	if n := residue(b, s); n != 0 {
		b.Errorf("%d rows are left", n)
	}
}

func closeAll(tb testing.TB, s *Store, page ledger.Page) error {
	var next atomic.Int64
	var failure atomic.Pointer[error]
	together(len(page.Entries), func() {
		e := page.Entries[next.Add(1)-1]
		put := e.Clone()
		put.Closed, put.Response, put.DueAt = true, nil, ledger.In(e.Terms.Tombstone)
		guard := ledger.Guard{Kind: ledger.GuardRevision, Incarnation: e.Incarnation, Revision: e.Revision}
		w, err := s.Write(tb.Context(), ledger.Write{Scope: e.Scope, Guard: guard, Put: put})
		if err == nil && !w.Applied {
			err = errors.New("the guard did not hold")
		}
		if err != nil {
			failure.Store(&err)
		}
	})
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

func fill(tb testing.TB, s *Store, entries int64) {
	var n atomic.Int64
	together(64, func() {
		for i := n.Add(1); i <= entries; i = n.Add(1) {
			pair(tb, s, i, 200)
		}
	})
}

func together(callers int, do func()) {
	done := make(chan struct{})
	for range callers {
		go func() { do(); done <- struct{}{} }()
	}
	for range callers {
		<-done
	}
}

// diskBytes is the size of the database with the log emptied into it.
func diskBytes(tb testing.TB, s *Store) int64 {
	tb.Helper()
	if busy, err := s.log.empty(); busy || err != nil {
		tb.Fatal(busy, err)
	}
	info, err := os.Stat(filepath.Join(s.cfg.Dir, databaseName))
	if err != nil {
		tb.Fatal(err)
	}
	return info.Size()
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
