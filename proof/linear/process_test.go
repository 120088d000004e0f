package linear

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	daemons "github.com/idemd/idemd/proof/daemon"
)

// programs are the real program as it is, and with a clock that a test sets wrong.
var programs = struct{ real, skewed daemons.Program }{skewed: daemons.Program{Flags: skewedClocks}}

func clientOf(p *daemons.Process) *remote {
	return &remote{client: idemv1.NewLedgerServiceClient(p.Conn())}
}

// killing kills the daemons at random and starts them again, until the context ends.
func killing(t testing.TB, processes ...*daemons.Process) func(context.Context, *rand.Rand) {
	return func(ctx context.Context, rng *rand.Rand) {
		for ctx.Err() == nil {
			p := processes[rng.IntN(len(processes))]
			pass(ctx, time.Duration(rng.IntN(120))*time.Millisecond)
			p.Kill()
			count("daemon killed", 1)
			if err := p.Restart(); err != nil {
				t.Errorf("starting again after a kill: %v", err)
				return
			}
		}
	}
}

// TestTheDaemonOnTheEmbeddedStoreIsKilled: kill -9 at random moments of real work, start again, on one directory. Its callers use streams, too, and what is
// sent is lost now and then beside that.
func TestTheDaemonOnTheEmbeddedStoreIsKilled(t *testing.T) {
	t.Parallel()
	p := programs.real.Start(t, nil, "--data-dir", t.TempDir())
	seeds(t, 3, func(seed uint64) {
		play{
			daemons: byEveryWay(t, wireTo(p.Conn(), seed)), keys: 8, clients: 12, steps: 25, limit: int8(ledger.DefaultMaxAttempts),
			weather: killing(t, p),
		}.run(t, seed)
	})
}

// TestDaemonsAreKilled: two processes on one database, one or the other of which is always being killed, while leases end and claims are taken over. Their
// callers use streams, too.
func TestDaemonsAreKilled(t *testing.T) {
	t.Parallel()
	onEachEngine(t, daemonsAreKilled)
}

func daemonsAreKilled(t *testing.T, urls ...string) {
	d := prepare(t, urls...)
	a, b := programs.real.Start(t, nil, "--store", d.program(t, 0)), programs.real.Start(t, nil, "--store", d.program(t, 1))
	seeds(t, 1, func(seed uint64) {
		daemons := append(byEveryWay(t, wireTo(a.Conn(), seed)), byEveryWay(t, wireTo(b.Conn(), seed+1))...)
		h := play{
			daemons: daemons, keys: 20, clients: 12, steps: 25, limit: int8(ledger.DefaultMaxAttempts), deadlines: true,
			lapse: d.lapse, weather: killing(t, a, b),
		}.run(t, seed)
		if h.takeovers() == 0 {
			t.Errorf("seed %d: no claim was taken over: the leases did not end", seed)
		}
	})
}
