package ledger

import (
	"context"
	"errors"
	"sync"
	"time"
)

// presence knows since when this daemon and its store have been there without a break: the takeover floor. While the ledger was away,
// holders could not extend; so after every break they come back first.
//
// A break is the store being away, or this process standing still: stopped, starved of its processor, its machine paused. The latter matters to leases that are
// not much longer than it was, and to no others: a busy machine stands still for a moment now and then, and long leases must be taken over all the same.
type presence struct {
	mu       sync.Mutex
	since    Time      // guarded by mu; the floor of every lease, by the store's clock
	latest   Time      // guarded by mu; the store's clock as last seen
	down     bool      // guarded by mu; the store could not be reached
	watched  bool      // guarded by mu; watchStore is running, so silence means something
	lastSeen time.Time // guarded by mu; by this machine's monotonic clock
	// ticked is when this process was last seen to run, by the same clock, and stalled how long it stood still, until the store told the time after it.
	ticked  time.Time               // guarded by mu
	stalled time.Duration           // guarded by mu
	stalls  [len(stallLengths)]Time // guarded by mu; for each length, when the latest stall at least so long was over
}

// stallLengths are the lengths of stalls that are told apart. The shortest is a quarter of the shortest lease: a holder that extends at a third of its lease is
// not late by less.
var stallLengths = [...]time.Duration{MinLease / 4, MinLease / 2, MinLease, 2 * MinLease, 4 * MinLease}

const (
	// tickEvery is how often the process looks at itself. It must be well below the shortest stall.
	tickEvery  = MinLease / 20
	watchEvery = time.Second
	// silenceMax is how long the store may go unseen before it counts as having been away: several missed looks.
	silenceMax = 5 * watchEvery
)

func (p *presence) start(now Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since, p.latest, p.lastSeen = now, now, time.Now()
}

// observe takes in what a call to the store showed: its clock (0 where the call did not tell) or its error. A call whose own caller left or ran out
// of time shows nothing: otherwise one impatient caller a minute would hold up every takeover of everybody. A store that is too slow for its callers is
// noticed by watchStore.
func (p *presence) observe(ctx context.Context, now Time, err error) {
	if err != nil && (ctx.Err() != nil || !errors.Is(err, ErrUnavailable)) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	local := time.Now()
	stalling := p.tick(local)
	if err != nil {
		p.down = true
		return
	}
	if now == 0 {
		return
	}
	for i, length := range stallLengths {
		if p.stalled >= length {
			p.stalls[i] = now
		}
	}
	if !stalling {
		p.stalled = 0 // else now may be from before the stall, and the next one counts again
	}
	if p.down || p.watched && local.Sub(p.lastSeen) > silenceMax {
		p.since, p.down = now, false
	}
	p.latest, p.lastSeen = now, local
}

// seen is the store's clock as this daemon last saw it.
func (p *presence) seen() Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest
}

// tick notes that this process runs, and reports whether it stood still just before. Every call that comes ticks, since the first one after a stall may come
// before the ticker. Caller holds mu.
func (p *presence) tick(local time.Time) (stalled bool) {
	gap := local.Sub(p.ticked)
	p.ticked = local
	if !p.watched || gap < stallLengths[0] {
		return false
	}
	p.stalled = max(p.stalled, gap)
	return true
}

// floor is the takeover floor of a lease of that length: since when there was no break that its holder would have noticed.
func (p *presence) floor(lease time.Duration) Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	floor := p.since
	for i := len(stallLengths) - 1; i >= 0; i-- {
		floor = max(floor, p.stalls[i])
		if stallLengths[i] <= lease/4 {
			break
		}
	}
	return floor
}

// watchSelf ticks, so that a stall is noticed.
func (l *Ledger) watchSelf(ctx context.Context) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		l.presence.mu.Lock()
		l.presence.tick(time.Now())
		l.presence.mu.Unlock()
	}
}

// watchStore looks at the store once a second, so that a break is noticed by a daemon that nobody calls.
func (l *Ledger) watchStore(ctx context.Context) {
	l.presence.mu.Lock()
	l.presence.watched, l.presence.ticked = true, time.Now()
	l.presence.mu.Unlock()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		look, cancel := context.WithTimeout(ctx, silenceMax)
		began := time.Now()
		now, err := l.store.Ready(look)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			err = errors.Join(ErrUnavailable, err)
		}
		l.observer.StoreCall("ready", time.Since(began), err)
		l.presence.observe(ctx, now, err)
	}
}
