package sqlitestore

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/ledger"
)

// timeSource reads the wall clock and how long this process has been running, both at one moment. The running time never goes back and
// is no wall clock's business: whoever sets the wall clock does not move it. Both are in microseconds.
type timeSource func() (wall, running ledger.Time)

// sourceOf makes a source of a test's clock: its time is both.
func sourceOf(clock func() ledger.Time) timeSource {
	return func() (ledger.Time, ledger.Time) {
		now := clock()
		return now, now
	}
}

// stepTolerance is how far wall clock and running time may drift apart between two looks before it counts as a step.
const stepTolerance = time.Second

// clock is the store's clock. It starts at the later of the wall clock and the high-water mark of the last run, goes on by the running
// time, and never goes back: a wall clock that is set while the store is open is not followed, but counted and logged.
type clock struct {
	source  timeSource
	logger  *slog.Logger
	start   ledger.Time
	started ledger.Time  // running time at start
	last    atomic.Int64 // the latest time given out
	ahead   atomic.Int64 // microseconds that the wall was ahead of this clock at the last look
	alarms  atomic.Int64
}

// ClockJumpError says that the wall clock was too far ahead of the ledger's last write for the ledger to be opened.
type ClockJumpError struct {
	Wall      ledger.Time
	HighWater ledger.Time
	Bound     time.Duration
}

func (e *ClockJumpError) Error() string {
	const day = 24 * time.Hour
	return fmt.Sprintf("sqlitestore: the machine's clock says %s, which is %.1f days after this ledger's last write (%s) and more than the %.1f "+
		"days that pass without a question. If the machine's clock is wrong, put it right and start again: going on would expire answers "+
		"early, for good. If the ledger really was not in use for so long, start it once with AllowClockJump",
		e.Wall.Wall().Format(time.RFC3339), float64(e.Wall.Sub(e.HighWater))/float64(day), e.HighWater.Wall().Format(time.RFC3339),
		float64(e.Bound)/float64(day))
}

// newClock starts the clock of a store whose last write was at highWater; zero: it never wrote.
func newClock(source timeSource, highWater ledger.Time, cfg Config) (*clock, error) {
	wall, running := source()
	if highWater > 0 && wall.Sub(highWater) > cfg.MaxWallAhead {
		if !cfg.AllowClockJump {
			return nil, &ClockJumpError{Wall: wall, HighWater: highWater, Bound: cfg.MaxWallAhead}
		}
		cfg.Logger.Warn("the wall clock is far ahead of the ledger's last write; going on as told",
			"wall", wall.Wall(), "last_write", highWater.Wall())
	}
	if behind := highWater.Sub(wall); behind > stepTolerance {
		cfg.Logger.Warn("the wall clock is behind the ledger's last write; the ledger's clock goes on from the last write",
			"wall", wall.Wall(), "last_write", highWater.Wall(), "behind", behind)
	}
	c := &clock{source: source, logger: cfg.Logger, start: max(wall, highWater), started: running}
	c.ahead.Store(int64(wall - c.start))
	c.last.Store(int64(c.start))
	return c, nil
}

// now is the store's time.
func (c *clock) now() ledger.Time {
	ahead := c.ahead.Load() // before the look, or another's later look would seem like a step back
	wall, running := c.source()
	now := c.start + (running - c.started)
	c.watch(wall, now, ahead)
	for {
		last := c.last.Load()
		if int64(now) <= last {
			return ledger.Time(last)
		}
		if c.last.CompareAndSwap(last, int64(now)) {
			return now
		}
	}
}

// watch raises an alarm when the wall clock was stepped since the last look, when it was so far ahead. A clock that is slewed, or drifts,
// moves by less than the tolerance from look to look.
func (c *clock) watch(wall, now ledger.Time, before int64) {
	ahead := int64(wall - now)
	step := ledger.Time(ahead).Sub(ledger.Time(before))
	if step.Abs() < stepTolerance/10 || !c.ahead.CompareAndSwap(before, ahead) || step.Abs() < stepTolerance {
		return
	}
	c.alarms.Add(1)
	c.logger.Error("the wall clock was stepped; the ledger's clock does not follow until it is opened again",
		"step", step, "wall", wall.Wall(), "ledger", now.Wall())
}
