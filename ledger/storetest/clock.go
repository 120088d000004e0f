package storetest

import (
	"sync"
	"time"

	"github.com/idemd/idemd/ledger"
)

// Clock is a store's clock that tests move. Safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	base    ledger.Time
	mark    time.Time // when base was right; only for a running clock
	running bool
}

// NewClock returns a clock that stands still at start until it is moved.
func NewClock(start ledger.Time) *Clock { return &Clock{base: start} }

// NewRunningClock returns a clock that starts at the machine's time, runs on by its monotonic clock, and can be moved as well. Inside a
// testing/synctest bubble it runs by the bubble's time.
func NewRunningClock() *Clock {
	now := time.Now()
	return &Clock{base: ledger.Time(now.UnixMicro()), mark: now, running: true}
}

// Now returns the clock's time.
func (c *Clock) Now() ledger.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

// Set moves the clock to t, also backwards.
func (c *Clock) Set(t ledger.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = t
	if c.running {
		c.mark = time.Now()
	}
}

// Advance moves the clock by d, also backwards.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base = c.base.Add(d)
}

func (c *Clock) nowLocked() ledger.Time {
	if !c.running {
		return c.base
	}
	return c.base.Add(time.Since(c.mark))
}
