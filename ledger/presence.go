package ledger

import (
	"context"
	"errors"
	"sync"
	"time"
)

// presence knows since when this daemon and its store have been there without a break: the takeover floor. While the ledger was away,
// holders could not extend; so after every break they come back first.
type presence struct {
	mu       sync.Mutex
	since    Time      // guarded by mu; the floor, by the store's clock
	latest   Time      // guarded by mu; the store's clock as last seen
	down     bool      // guarded by mu; the store could not be reached
	watched  bool      // guarded by mu; watchStore is running, so silence means something
	lastSeen time.Time // guarded by mu; by this machine's monotonic clock
}

const (
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
	if err != nil {
		p.down = true
		return
	}
	if now == 0 {
		return
	}
	local := time.Now()
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

func (p *presence) floor() Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since
}

// watchStore looks at the store once a second, so that a break is noticed by a daemon that nobody calls.
func (l *Ledger) watchStore(ctx context.Context) {
	l.presence.mu.Lock()
	l.presence.watched = true
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
