package linear

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/idemd/idemd/ledger"
)

// TestTheDiskOfTheDaemonIsFull: a real daemon on the embedded store whose files may not grow, now and then and for moments: writes fail in the middle, as
// on a disk that is full, and go well again.
func TestTheDiskOfTheDaemonIsFull(t *testing.T) {
	t.Parallel()
	p := programs.real.Start(t, nil, "--data-dir", t.TempDir())
	d := clientOf(p)
	d.hides = true
	seeds(t, 2, func(seed uint64) {
		play{
			daemons: []daemon{d}, keys: 8, clients: 12, steps: 40, limit: int8(ledger.DefaultMaxAttempts), deadlines: true,
			weather: func(ctx context.Context, rng *rand.Rand) {
				for ctx.Err() == nil {
					pass(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
					limitFiles(t, p.Pid(), rng.Uint64N(256<<10))
					count("disk full", 1)
					pass(ctx, time.Duration(rng.IntN(20))*time.Millisecond)
					limitFiles(t, p.Pid(), unix.RLIM_INFINITY)
				}
			},
		}.run(t, seed)
	})
}

// limitFiles sets how far a process's files may grow.
func limitFiles(t *testing.T, pid int, bytes uint64) {
	limit := unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &limit, nil); err != nil {
		t.Errorf("limiting the daemon's files: %v", err)
	}
}
