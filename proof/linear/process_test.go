package linear

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// patience is how long a process may take to start. It is only ever waited for when something is wrong.
const patience = 60 * time.Second

// programs are the real program as it is, and with a clock that a test sets wrong.
var programs = struct{ real, skewed program }{skewed: program{flags: skewedClocks}}

// program is built once.
type program struct {
	flags func(dir string) ([]string, error) // of the build; nil: none
	once  sync.Once
	dir   string
	path  string
	err   error
}

func (p *program) build(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the real program: not with -short")
	}
	p.once.Do(func() { p.err = p.make() })
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.path
}

func (p *program) make() (err error) {
	if p.dir, err = os.MkdirTemp("", "idemd-proof-"); err != nil {
		return err
	}
	var flags []string
	if p.flags != nil {
		if flags, err = p.flags(p.dir); err != nil {
			return err
		}
	}
	p.path = filepath.Join(p.dir, "idemd")
	args := append(append([]string{"build"}, flags...), "-o", p.path, "../../cmd/idemd")
	if out, err := exec.CommandContext(context.Background(), "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return nil
}

func (p *program) remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// process is a daemon that is killed and started again at the same address.
type process struct {
	t       testing.TB
	path    string
	env     []string // on top of the least
	address string
	args    []string
	cmd     *exec.Cmd
	client  *remote
	off     time.Duration // by how much its own clock is ahead of ours
}

// startProcess starts one on a free port.
func startProcess(t testing.TB, args ...string) *process {
	t.Helper()
	return (&process{t: t, path: programs.real.build(t), args: args}).serve()
}

// serve starts the process for the first time, and connects to it.
func (p *process) serve() *process {
	t := p.t
	t.Helper()
	p.address = "127.0.0.1:0"
	if err := p.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	// What is sent while the daemon is away waits for it; what was under way when it died fails, and nobody knows what came of it.
	again := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond}}
	conn, err := grpc.NewClient(p.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(again),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.client = &remote{idemv1.NewLedgerServiceClient(conn)}
	return p
}

func (p *process) start() error {
	args := append([]string{"serve", "--grpc-listen", p.address, "--http-listen", "off", "--log-format", "json"}, p.args...)
	p.cmd = exec.CommandContext(context.Background(), p.path, args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, p.env...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	type started struct {
		Message string    `json:"msg"`
		GRPC    string    `json:"grpc"`
		Time    time.Time `json:"time"`
	}
	serves := make(chan started, 1)
	go func() {
		defer close(serves)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line started
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "idemd serves" {
				serves <- line
			}
		}
	}()
	select {
	case line, ok := <-serves:
		if !ok {
			_ = p.cmd.Wait()
			return errors.New("the daemon ended before it served")
		}
		p.address, p.off = line.GRPC, time.Until(line.Time)
		return nil
	case <-time.After(patience):
		p.kill()
		return errors.New("the daemon does not serve")
	}
}

// kill ends it as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// killing kills the daemons at random and starts them again, until the context ends.
func killing(t testing.TB, processes ...*process) func(context.Context, *rand.Rand) {
	return func(ctx context.Context, rng *rand.Rand) {
		for ctx.Err() == nil {
			p := processes[rng.IntN(len(processes))]
			pass(ctx, time.Duration(rng.IntN(120))*time.Millisecond)
			p.kill()
			count("daemon killed", 1)
			if err := p.start(); err != nil {
				t.Errorf("starting again after a kill: %v", err)
				return
			}
		}
	}
}

// TestTheDaemonOnTheEmbeddedStoreIsKilled: kill -9 at random moments of real work, start again, on one directory.
func TestTheDaemonOnTheEmbeddedStoreIsKilled(t *testing.T) {
	t.Parallel()
	p := startProcess(t, "--data-dir", t.TempDir())
	seeds(t, 3, func(seed uint64) {
		play{
			daemons: []daemon{p.client}, keys: 8, clients: 12, steps: 25, limit: int8(ledger.DefaultMaxAttempts),
			weather: killing(t, p),
		}.run(t, seed)
	})
}

// TestDaemonsOnPostgreSQLAreKilled: two processes on one database, one or the other of which is always being killed, while leases end and claims
// are taken over.
func TestDaemonsOnPostgreSQLAreKilled(t *testing.T) {
	t.Parallel()
	d := prepareForPrograms(t)
	a, b := startProcess(t, "--store", d.urls[0]), startProcess(t, "--store", d.urls[0])
	seeds(t, 1, func(seed uint64) {
		h := play{
			daemons: []daemon{a.client, b.client}, keys: 8, clients: 12, steps: 25, limit: int8(ledger.DefaultMaxAttempts), deadlines: true,
			lapse: d.lapse, weather: killing(t, a, b),
		}.run(t, seed)
		if h.takeovers() == 0 {
			t.Errorf("seed %d: no claim was taken over: the leases did not end", seed)
		}
	})
}
