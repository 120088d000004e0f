package sqlitestore

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// handClock is a wall clock and a running time that a test moves one by one.
type handClock struct{ wall, running atomic.Int64 }

func newHandClock(wall ledger.Time) *handClock {
	h := &handClock{}
	h.wall.Store(int64(wall))
	return h
}

func (h *handClock) source() (ledger.Time, ledger.Time) {
	return ledger.Time(h.wall.Load()), ledger.Time(h.running.Load())
}

// pass lets time pass; step sets the wall clock.
func (h *handClock) pass(d time.Duration) {
	h.wall.Add(d.Microseconds())
	h.running.Add(d.Microseconds())
}
func (h *handClock) step(d time.Duration) { h.wall.Add(d.Microseconds()) }

func (h *handClock) open(t *testing.T, cfg Config) (*Store, error) {
	t.Helper()
	return open(t.Context(), cfg, machine{time: h.source})
}

func (h *handClock) mustOpen(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := h.open(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func ready(t *testing.T, s *Store) ledger.Time {
	t.Helper()
	now, err := s.Ready(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return now
}

const day = 24 * time.Hour

func TestTimeRunsByTheMachineAndAStepOfTheWallClockOnlyRaisesAnAlarm(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h := newHandClock(testStart)
	s := h.mustOpen(t, Config{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if now := ready(t, s); now != testStart {
		t.Fatalf("starts at %d, want the wall clock's %d", now, testStart)
	}
	h.pass(time.Hour)
	if now, alarms := ready(t, s), s.ClockAlarms(); now != testStart.Add(time.Hour) || alarms != 0 {
		t.Fatalf("after an hour: %d, %d alarms", now-testStart, alarms)
	}
	h.step(365 * day)
	for range 3 {
		if now, alarms := ready(t, s), s.ClockAlarms(); now != testStart.Add(time.Hour) || alarms != 1 {
			t.Fatalf("the wall clock was set a year ahead: %v on, %d alarms, want no time passed and one alarm", now.Sub(testStart), alarms)
		}
	}
	h.step(-365 * day)
	h.pass(time.Second)
	if now, alarms := ready(t, s), s.ClockAlarms(); now != testStart.Add(time.Hour+time.Second) || alarms != 2 {
		t.Fatalf("and put right: %v on, %d alarms", now.Sub(testStart), alarms)
	}
	if s.Stats().ClockAlarms != 2 || strings.Count(log.String(), "level=ERROR") != 2 {
		t.Errorf("the alarms are not told:\n%s", &log)
	}
}

func TestASlewedWallClockIsNoStep(t *testing.T) {
	t.Parallel()
	h := newHandClock(testStart)
	s := h.mustOpen(t, Config{Dir: t.TempDir()})
	for range 100 {
		h.pass(time.Minute)
		h.step(30 * time.Millisecond)
		ready(t, s)
	}
	if alarms := s.ClockAlarms(); alarms != 0 {
		t.Errorf("%d alarms for a drift of 3 s in all, 30 ms at a time", alarms)
	}
}

func TestTimeNeverGoesBackAcrossAReopening(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"closed", "killed"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h := newHandClock(testStart)
			dir := t.TempDir()
			s := h.mustOpen(t, Config{Dir: dir})
			h.pass(time.Hour)
			written := pair(t, s, 1, 10).Now
			if how == "closed" {
				h.pass(time.Minute)
				written = ready(t, s)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			} else {
				dir = remains(t, s)
			}
			h.step(-30 * day)
			s = h.mustOpen(t, Config{Dir: dir})
			if now := ready(t, s); now < written {
				t.Errorf("time went back by %v", written.Sub(now))
			}
			h.pass(time.Second)
			if now := ready(t, s); now != written.Add(time.Second) {
				t.Errorf("time does not run on from the mark: %v after it", now.Sub(written))
			}
		})
	}
}

// C81: the wall clock of an embedded daemon jumps a year ahead and is put right.
func TestAWallClockFarAheadOfTheLastWriteIsRefusedUnlessAllowed(t *testing.T) {
	t.Parallel()
	h := newHandClock(testStart)
	dir := t.TempDir()
	s := h.mustOpen(t, Config{Dir: dir})
	settled := pair(t, s, 1, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h.step(365 * day)
	var jump *ClockJumpError
	if _, err := h.open(t, Config{Dir: dir}); !errors.As(err, &jump) {
		t.Fatalf("got %v, want a refusal", err)
	}
	for _, word := range []string{"365.0 days", "AllowClockJump", "put it right"} {
		if !strings.Contains(jump.Error(), word) {
			t.Errorf("%q does not say %q", jump.Error(), word)
		}
	}
	h.step(-365 * day)
	s = h.mustOpen(t, Config{Dir: dir})
	r, err := s.Get(t.Context(), scopeOf(1))
	if err != nil || r.Entry.ConditionAt(r.Now) != ledger.ConditionCompleted || r.Now.Sub(settled.Now) > time.Second {
		t.Fatalf("put right, the entry is %d at %d: %v", r.Entry.ConditionAt(r.Now), r.Now, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Allowed, and put right afterwards: time goes on from where it was, and nothing waits for a year.
	h.step(365 * day)
	s = h.mustOpen(t, Config{Dir: dir, AllowClockJump: true})
	fresh := pair(t, s, 2, 10)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h.step(-365 * day)
	s = h.mustOpen(t, Config{Dir: dir})
	h.pass(7 * day)
	if now := ready(t, s); now < fresh.DueAt || now > fresh.DueAt.Add(time.Minute) {
		t.Errorf("an entry settled during the jump is due %v from now, a retention later", fresh.DueAt.Sub(now))
	}
}

func TestAnOrdinaryPauseIsNoJump(t *testing.T) {
	t.Parallel()
	h := newHandClock(testStart)
	dir := t.TempDir()
	if err := h.mustOpen(t, Config{Dir: dir}).Close(); err != nil {
		t.Fatal(err)
	}
	h.step(DefaultMaxWallAhead)
	s := h.mustOpen(t, Config{Dir: dir})
	if now := ready(t, s); now != testStart.Add(DefaultMaxWallAhead) {
		t.Errorf("time does not follow the wall clock over a pause: %v", now.Sub(testStart))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	h.step(time.Hour)
	if _, err := h.open(t, Config{Dir: dir, MaxWallAhead: time.Minute}); err == nil {
		t.Error("the bound that was set is not kept")
	}
}

func TestTheMachinesClockRunsOn(t *testing.T) {
	t.Parallel()
	before := ledger.Time(time.Now().UnixMicro())
	s := openForTest(t, Config{Dir: t.TempDir()})
	last := ready(t, s)
	if last < before || last.Sub(before) > time.Minute {
		t.Errorf("starts %v from the wall clock", last.Sub(before))
	}
	for range 1000 {
		now := s.clock.now()
		if now < last {
			t.Fatalf("went back by %v", last.Sub(now))
		}
		last = now
	}
}
