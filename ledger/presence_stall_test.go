package ledger

import (
	"fmt"
	"testing"
	"time"
)

// TestAProcessThatStoodStillLetsShortLeasesComeBack: while it stood still no holder could extend. Leases that are long against that had time enough.
func TestAProcessThatStoodStillLetsShortLeasesComeBack(t *testing.T) {
	t.Parallel()
	const started, later Time = 1_000_000, 9_000_000
	for _, c := range []struct {
		stall   time.Duration
		raised  []time.Duration // leases that are not taken over at once after it
		ignored []time.Duration
	}{
		{200 * time.Millisecond, nil, []time.Duration{MinLease, time.Minute, MaxLease}},
		{300 * time.Millisecond, []time.Duration{MinLease}, []time.Duration{2 * time.Second, time.Minute, MaxLease}},
		{time.Second, []time.Duration{MinLease, 2 * time.Second, 4 * time.Second}, []time.Duration{8 * time.Second, time.Minute}},
		{3 * time.Second, []time.Duration{MinLease, 4 * time.Second, 8 * time.Second, 12 * time.Second}, []time.Duration{time.Minute}},
		{6 * time.Second, []time.Duration{MinLease, time.Minute, MaxLease}, nil},
	} {
		t.Run(fmt.Sprint(c.stall), func(t *testing.T) {
			t.Parallel()
			for _, firstToWake := range []string{"the ticker", "a call", "a call that read before the stall"} {
				var p presence
				p.start(started)
				now := time.Now()
				p.watched, p.ticked, p.lastSeen = true, now.Add(-c.stall), now.Add(-c.stall)
				switch firstToWake {
				case "the ticker":
					p.tick(now)
				case "a call that read before the stall":
					p.observe(t.Context(), started+1, nil)
				}
				p.observe(t.Context(), later, nil)
				p.observe(t.Context(), later, nil)
				p.observe(t.Context(), later+1_000_000, nil) // the stall is long over
				for _, lease := range c.raised {
					if f := p.floor(lease); f != later {
						t.Errorf("%s wakes first: the floor of a lease of %v is %d, want %d", firstToWake, lease, f, later)
					}
				}
				for _, lease := range c.ignored {
					if f := p.floor(lease); f != started {
						t.Errorf("%s wakes first: the floor of a lease of %v is %d, want %d", firstToWake, lease, f, started)
					}
				}
			}
		})
	}
}
