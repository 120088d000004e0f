package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// waitBench is a bench on a running clock that counts the reads of the store.
type waitBench struct {
	*bench
	gets atomic.Int64
}

func newWaitBench(t *testing.T, limits ledger.WaitLimits) *waitBench {
	t.Helper()
	clock := storetest.NewRunningClock()
	w := &waitBench{bench: benchOn(t, clock, storetest.NewModel(clock, 0))}
	w.faulty.Plan(func(c storetest.Call) storetest.Fault {
		if c.Method == storetest.Get {
			w.gets.Add(1)
		}
		return storetest.Fault{}
	})
	w.ledger = w.open(ledger.Config{Waiting: limits})
	return w
}

// ended is how one waiting Begin ended.
type ended struct {
	r    ledger.BeginResult
	err  error
	took time.Duration
}

// wait starts a Begin that waits; the returned function says how it ended.
func (w *waitBench) wait(ref ledger.Ref, attempt string, length time.Duration) func() ended {
	w.t.Helper()
	done := make(chan ended, 1)
	r := w.beginRequest("", attempt)
	r.Ref, r.Wait = ref, length
	began := time.Now()
	go func() {
		got, err := w.ledger.Begin(w.t.Context(), ledger.Caller{}, r)
		done <- ended{got, err, time.Since(began)}
	}()
	return func() ended { return <-done }
}

// TestAWaiterIsWokenByAReportHere, at once, and without waiting for its own look.
func TestAWaiterIsWokenByAReportHere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		c := w.begin("k", "a1")
		waiter := w.wait(c.ref, "b1", 20*time.Second)
		<-time.After(10 * time.Second)
		w.complete(c, "x")
		got := waiter()
		if got.err != nil || got.r.Completed == nil || got.took > 10*time.Second+time.Millisecond {
			t.Errorf("told %+v %v after %v", got.r, got.err, got.took)
		}
		synctest.Wait()
		if w.ledger.Waiting() != 0 {
			t.Error("somebody still waits")
		}
	})
}

// TestAWaiterSeesWhatAnotherDaemonWrote, by looking.
func TestAWaiterSeesWhatAnotherDaemonWrote(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		other := benchOn(t, w.clock, w.model)
		c := other.begin("k", "a1")
		waiter := w.wait(c.ref, "b1", 20*time.Second)
		<-time.After(10 * time.Second)
		other.complete(c, "x")
		if got := waiter(); got.r.Completed == nil || got.took > 10*time.Second+2*ledger.LastLook {
			t.Errorf("told %+v %v after %v", got.r, got.err, got.took)
		}
	})
}

// TestAWaiterTakesOver when the claim it waits for is abandoned; of many, one.
func TestAWaiterTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		w.clock.Advance(time.Hour) // the daemon has been up for long
		r := w.beginRequest("k", "a1")
		r.Lease = 5 * time.Second
		_, err := w.ledger.Begin(t.Context(), ledger.Caller{}, r)
		w.must(err)
		var waiters []func() ended
		for i := range 20 {
			waiters = append(waiters, w.wait(r.Ref, fmt.Sprint("b", i), 10*time.Second))
		}
		granted := 0
		for _, waiter := range waiters {
			got := waiter()
			w.must(got.err)
			switch {
			case got.r.Granted != nil:
				granted++
				if !got.r.Granted.PreviousAbandoned || got.r.Granted.Attempt != 2 || got.took < 5*time.Second {
					t.Errorf("granted %+v after %v", got.r.Granted, got.took)
				}
			case got.r.InProgress == nil || got.r.InProgress.Attempt != 2 || got.took < 10*time.Second:
				t.Errorf("told %+v after %v", got.r, got.took)
			}
		}
		if granted != 1 {
			t.Errorf("%d were granted", granted)
		}
	})
}

// TestWaitingEndsInTime: nobody waits longer than it asked for, or than the policy allows; without a wait nobody waits.
func TestWaitingEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		w.policy(ledger.Policy{Tenant: "*", Operation: "charge", MaxWait: 3 * time.Second, Lease: time.Hour})
		w.policy(ledger.Policy{Tenant: "*", Operation: "never", MaxWait: -1, Lease: time.Hour})
		c := w.begin("k", "a1")
		never := ledger.Ref{Tenant: "acme", Operation: "never", Key: "k"}
		w.wait(never, "a1", 0)()
		for _, x := range []struct {
			ref        ledger.Ref
			wait, want time.Duration
		}{{c.ref, 0, 0}, {c.ref, time.Second, time.Second}, {c.ref, time.Hour, 3 * time.Second}, {never, time.Hour, 0}} {
			got := w.wait(x.ref, "b"+x.wait.String(), x.wait)()
			if got.err != nil || got.r.InProgress == nil || got.took != x.want || got.r.InProgress.RetryAfter <= 0 {
				t.Errorf("%s, wait %v: %+v %v after %v, want %v", x.ref.Operation, x.wait, got.r, got.err, got.took, x.want)
			}
		}
	})
}

// TestOneLookServesAllWaiters: G7. A thousand waiters cost a thousand reads to join, and then as many as one.
func TestOneLookServesAllWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const waiters = 900
		w := newWaitBench(t, ledger.WaitLimits{})
		c := w.begin("k", "a1")
		w.gets.Store(0)
		var all []func() ended
		for i := range waiters {
			all = append(all, w.wait(c.ref, fmt.Sprint("b", i), 30*time.Second))
		}
		synctest.Wait()
		if n := w.ledger.Waiting(); n != waiters {
			t.Fatalf("%d wait", n)
		}
		if joined := w.gets.Load(); joined != 2*waiters {
			t.Errorf("joining took %d reads", joined)
		}
		w.gets.Store(0)
		<-time.After(20 * time.Second)
		// Looks are at most half a second apart, with jitter from half to one and a half times that.
		if looks := w.gets.Load(); looks < 20 || looks > 100 {
			t.Errorf("%d reads in 20 s of waiting", looks)
		}
		w.gets.Store(0)
		w.complete(c, "x")
		for _, waiter := range all {
			if got := waiter(); got.r.Completed == nil {
				t.Errorf("told %+v %v", got.r, got.err)
			}
		}
		if reads := w.gets.Load(); reads > 3 {
			t.Errorf("the answer took %d reads for all of them", reads)
		}
	})
}

// TestWaitingIsBounded per entry, tenant and daemon: one more is refused QUOTA at once, and the others do not notice.
func TestWaitingIsBounded(t *testing.T) {
	t.Parallel()
	refOf := func(tenant, key string) ledger.Ref { return ledger.Ref{Tenant: tenant, Operation: "charge", Key: key} }
	for name, c := range map[string]struct {
		limits  ledger.WaitLimits
		waiting []ledger.Ref
		refused ledger.Ref
		free    ledger.Ref
	}{
		"entry": {
			ledger.WaitLimits{Entry: 2}, []ledger.Ref{refOf("acme", "k"), refOf("acme", "k")}, refOf("acme", "k"), refOf("acme", "l"),
		},
		"tenant": {
			ledger.WaitLimits{Tenant: 2}, []ledger.Ref{refOf("acme", "k"), refOf("acme", "l")}, refOf("acme", "m"), refOf("other", "k"),
		},
		"daemon": {
			ledger.WaitLimits{Daemon: 2}, []ledger.Ref{refOf("acme", "k"), refOf("other", "k")}, refOf("third", "k"), ledger.Ref{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWaitBench(t, c.limits)
				for _, ref := range append([]ledger.Ref{c.refused, c.free}, c.waiting...) {
					if ref != (ledger.Ref{}) {
						w.wait(ref, "a", 0)()
					}
				}
				var waiting []func() ended
				for i, ref := range c.waiting {
					waiting = append(waiting, w.wait(ref, fmt.Sprint("b", i), 10*time.Second))
				}
				synctest.Wait()
				got := w.wait(c.refused, "c", 10*time.Second)()
				w.wantReason(got.err, ledger.ReasonQuota)
				if got.took != 0 {
					t.Errorf("it was refused after %v", got.took)
				}
				if got := w.wait(c.refused, "c", 0)(); got.r.InProgress == nil {
					t.Errorf("without a wait it is told %+v %v", got.r, got.err)
				}
				if c.free != (ledger.Ref{}) {
					waiting = append(waiting, w.wait(c.free, "d", 10*time.Second))
				}
				for _, waiter := range waiting {
					if got := waiter(); got.r.InProgress == nil || got.took != 10*time.Second {
						t.Errorf("one that waited was told %+v %v after %v", got.r, got.err, got.took)
					}
				}
				if got := w.wait(c.refused, "c", time.Second)(); got.r.InProgress == nil || got.took != time.Second {
					t.Errorf("when there is room again: %+v %v after %v", got.r, got.err, got.took)
				}
			})
		})
	}
}

// TestDrainAnswersWhoWaits, and refuses new claims; reports, renewals and lookups go on.
func TestDrainAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		c := w.begin("k", "a1")
		waiter := w.wait(c.ref, "b1", 20*time.Second)
		<-time.After(time.Second)
		w.ledger.Drain()
		w.ledger.Drain()
		if got := waiter(); got.err != nil || got.r.InProgress == nil || got.took != time.Second {
			t.Errorf("told %+v %v after %v", got.r, got.err, got.took)
		}
		_, err := w.tryBegin("l", "a1")
		w.wantReason(err, ledger.ReasonDraining)
		_, err = w.tryExtend(c)
		w.must(err)
		w.complete(c, "x")
		if w.lookup("k").Condition != ledger.ConditionCompleted {
			t.Error("not completed")
		}
	})
}

// TestAWaiterThatGoesAway leaves its place, and the last one ends the looking.
func TestAWaiterThatGoesAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		c := w.begin("k", "a1")
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			r := w.beginRequest("k", "b1")
			r.Wait = 20 * time.Second
			_, _ = w.ledger.Begin(ctx, ledger.Caller{}, r)
		})
		stays := w.wait(c.ref, "c1", 5*time.Second)
		synctest.Wait()
		cancel()
		wg.Wait()
		if n := w.ledger.Waiting(); n != 1 {
			t.Errorf("%d wait", n)
		}
		stays()
		synctest.Wait()
		w.gets.Store(0)
		<-time.After(time.Minute)
		if n := w.gets.Load(); n != 0 {
			t.Errorf("nobody waits, and the store is read %d times", n)
		}
	})
}

// TestTheStoreGoesAwayWhileSomebodyWaits: the waiter is told, and holds on to nothing.
func TestTheStoreGoesAwayWhileSomebodyWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWaitBench(t, ledger.WaitLimits{})
		c := w.begin("k", "a1")
		waiter := w.wait(c.ref, "b1", 20*time.Second)
		<-time.After(time.Second)
		w.faulty.Down()
		got := waiter()
		w.wantReason(got.err, ledger.ReasonStoreUnavailable)
		if got.took > 3*time.Second || w.ledger.Waiting() != 0 {
			t.Errorf("told after %v, %d wait", got.took, w.ledger.Waiting())
		}
	})
}
