package ledger

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// waiters lets any number of Begins wait for the same entry while one of them looks at the store for all. Nobody holds a database
// connection while waiting.
type waiters struct {
	ledger *Ledger
	limits WaitLimits

	mu      sync.Mutex
	entries map[ScopeID]*watch // guarded by mu
	tenants map[string]int     // guarded by mu; how many wait
	total   int                // guarded by mu
}

// watch is one entry that somebody waits for.
type watch struct {
	waiting int
	// changed is closed, and replaced, when the entry may have changed; latest is what the look found.
	changed chan struct{}
	latest  Reading
	failed  bool
	// nudge asks for a look now.
	nudge chan struct{}
	// stop ends the watch's looking.
	stop chan struct{}
}

const (
	defaultWaitersDaemon = 20_000
	defaultWaitersTenant = 10_000
	defaultWaitersEntry  = 1_000

	firstLook = 20 * time.Millisecond
	lastLook  = 500 * time.Millisecond
)

func newWaiters(l *Ledger, limits WaitLimits) *waiters {
	return &waiters{
		ledger: l,
		limits: WaitLimits{
			Daemon: orDefault(limits.Daemon, defaultWaitersDaemon), Tenant: orDefault(limits.Tenant, defaultWaitersTenant),
			Entry: orDefault(limits.Entry, defaultWaitersEntry),
		},
		entries: map[ScopeID]*watch{}, tenants: map[string]int{},
	}
}

// waiter is one Begin that may wait.
type waiter struct {
	hub    *waiters
	scope  ScopeID
	tenant string
	// length is how long it may wait in all, counted from its first wait.
	length  time.Duration
	timer   *time.Timer
	watch   *watch
	refusal *Refusal
}

func (w *waiters) waiter(scope ScopeID, tenant string, length time.Duration) *waiter {
	return &waiter{hub: w, scope: scope, tenant: tenant, length: length}
}

// wait blocks until the entry may have changed and returns what was found then (nil: read it yourself). It returns false when the time to
// wait is over or the waiter was refused. seen is the entry as the waiter last knew it.
func (w *waiter) wait(ctx context.Context, seen Reading) (*Reading, bool) {
	if w.length <= 0 {
		return nil, false
	}
	if w.watch == nil {
		// Something may have changed between the reading and joining the watch: look once more before waiting.
		return nil, w.join(seen)
	}
	w.hub.mu.Lock()
	changed := w.watch.changed
	if w.watch.latest.Entry != nil && newer(w.watch.latest, seen) {
		latest := w.watch.latest
		w.hub.mu.Unlock()
		return &latest, true
	}
	w.hub.mu.Unlock()
	select {
	case <-changed:
	case <-w.timer.C:
		return nil, false
	case <-ctx.Done():
		return nil, false
	case <-w.hub.ledger.drained:
		return nil, false
	}
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	if w.watch.failed {
		return nil, true
	}
	latest := w.watch.latest
	return &latest, true
}

// newer reports whether a shows the entry after b did.
func newer(a, b Reading) bool {
	return b.Entry == nil || a.Entry.Incarnation > b.Entry.Incarnation ||
		a.Entry.Incarnation == b.Entry.Incarnation && a.Entry.Revision > b.Entry.Revision
}

func (w *waiter) join(seen Reading) bool {
	hub := w.hub
	hub.mu.Lock()
	defer hub.mu.Unlock()
	entry := hub.entries[w.scope]
	if hub.total >= hub.limits.Daemon || hub.tenants[w.tenant] >= hub.limits.Tenant || entry != nil && entry.waiting >= hub.limits.Entry {
		w.refusal = refuse(ReasonQuota, "too many calls wait already").with("help", "retry later, or begin with wait unset")
		w.refusal.RetryAfter = time.Second
		return false
	}
	if entry == nil {
		entry = &watch{changed: make(chan struct{}), nudge: make(chan struct{}, 1), stop: make(chan struct{})}
		hub.entries[w.scope] = entry
		go hub.look(w.scope, entry, seen)
	}
	entry.waiting++
	hub.total++
	hub.tenants[w.tenant]++
	w.watch, w.timer = entry, time.NewTimer(w.length)
	hub.ledger.observer.Waiting(hub.total)
	return true
}

// leave gives the place up. It must be called once.
func (w *waiter) leave() {
	if w.watch == nil {
		return
	}
	w.timer.Stop()
	hub := w.hub
	hub.mu.Lock()
	defer hub.mu.Unlock()
	hub.total--
	if hub.tenants[w.tenant]--; hub.tenants[w.tenant] == 0 {
		delete(hub.tenants, w.tenant)
	}
	if w.watch.waiting--; w.watch.waiting == 0 {
		close(w.watch.stop)
		delete(hub.entries, w.scope)
	}
	hub.ledger.observer.Waiting(hub.total)
}

// wake has the entry looked at now, since it was just written here.
func (w *waiters) wake(scope ScopeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if entry := w.entries[scope]; entry != nil {
		select {
		case entry.nudge <- struct{}{}:
		default: // a look is due already
		}
	}
}

// look reads the entry from time to time for all its waiters and wakes them, with what it found, when it changed or its lease is over. Its pauses grow,
// and carry jitter so that the looks of many entries spread.
func (w *waiters) look(scope ScopeID, entry *watch, seen Reading) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-entry.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	for next := firstLook; ; next = min(next*2, lastLook) {
		timer := time.NewTimer(next/2 + rand.N(next))
		select {
		case <-entry.stop:
			timer.Stop()
			return
		case <-entry.nudge:
			timer.Stop()
			next = firstLook
		case <-timer.C:
		}
		reading, err := w.ledger.get(ctx, scope)
		switch {
		case errors.Is(err, context.Canceled):
			return
		case err == nil && sameWait(seen, reading, w.ledger.presence.floor(reading.lease())):
			continue
		}
		seen = reading
		w.mu.Lock()
		// Where the look failed the waiters are woken too: each learns from its own call what to answer.
		entry.latest, entry.failed = reading, err != nil
		close(entry.changed)
		entry.changed = make(chan struct{})
		w.mu.Unlock()
	}
}

// sameWait reports whether a waiter that saw one reading has nothing new to learn from another: the same revision, and still nobody may take
// over.
func sameWait(seen, now Reading, floor Time) bool {
	a, b := seen.Entry, now.Entry
	if a == nil || b == nil {
		return a == b
	}
	if a.Incarnation != b.Incarnation || a.Revision != b.Revision {
		return false
	}
	condition := b.ConditionAt(now.Now)
	graced := (condition == Abandoned || condition == Held) && b.Current && now.Now < floor.Add(b.Last.Lease)
	return condition == Live || graced
}

// pause waits before another try, longer each time, with jitter.
func pause(ctx context.Context, try int) error {
	if try == 0 {
		return ctx.Err()
	}
	most := min(time.Millisecond<<min(try, 8), 100*time.Millisecond)
	timer := time.NewTimer(most/2 + rand.N(most/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
