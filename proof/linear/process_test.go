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
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// patience is how long a process may take to start. It is only ever waited for when something is wrong.
const patience = 60 * time.Second

var program struct {
	once sync.Once
	dir  string
	path string
	err  error
}

// idemd builds the real program, once.
func idemd(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the real program: not with -short")
	}
	program.once.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "idemd-proof-"); program.err != nil {
			return
		}
		program.path = filepath.Join(program.dir, "idemd")
		out, err := exec.CommandContext(context.Background(), "go", "build", "-o", program.path, "../../cmd/idemd").CombinedOutput()
		if err != nil {
			program.err = fmt.Errorf("building the program: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// process is a daemon that is killed and started again at the same address.
type process struct {
	t       testing.TB
	address string
	args    []string
	cmd     *exec.Cmd
	client  *remote
}

// startProcess starts one on a free port.
func startProcess(t testing.TB, args ...string) *process {
	t.Helper()
	p := &process{t: t, address: "127.0.0.1:0", args: args}
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
	p.cmd = exec.CommandContext(context.Background(), idemd(p.t), args...)
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	serves := make(chan string, 1)
	go func() {
		defer close(serves)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			var line struct {
				Message string `json:"msg"`
				GRPC    string `json:"grpc"`
			}
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "idemd serves" {
				serves <- line.GRPC
			}
		}
	}()
	select {
	case address, ok := <-serves:
		if !ok {
			_ = p.cmd.Wait()
			return errors.New("the daemon ended before it served")
		}
		p.address = address
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

// TestDaemonsOnPostgreSQLAreKilled: two processes on one database, one or the other of which is always being killed.
func TestDaemonsOnPostgreSQLAreKilled(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	out, err := exec.CommandContext(t.Context(), idemd(t), "migrate", "up", "--store", url).CombinedOutput()
	if err != nil {
		t.Fatalf("migrate: %v: %s", err, out)
	}
	a, b := startProcess(t, "--store", url), startProcess(t, "--store", url)
	seeds(t, 1, func(seed uint64) {
		play{
			daemons: []daemon{a.client, b.client}, keys: 8, clients: 12, steps: 25, limit: int8(ledger.DefaultMaxAttempts), deadlines: true,
			weather: killing(t, a, b),
		}.run(t, seed)
	})
}
