// Package daemon builds the real program and runs it for the proofs: started, killed and started again at the same address.
package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Program is idemd, built when it is first asked for. Its methods may be called concurrently.
type Program struct {
	// Flags are those of the build, for which a folder is given that goes with the program; nil: none.
	Flags func(dir string) ([]string, error)

	once sync.Once
	dir  string
	path string
	err  error
}

func (p *Program) build(t testing.TB) string {
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

func (p *Program) make() (err error) {
	if p.dir, err = os.MkdirTemp("", "idemd-proof-"); err != nil {
		return err
	}
	var flags []string
	if p.Flags != nil {
		if flags, err = p.Flags(p.dir); err != nil {
			return err
		}
	}
	p.path = filepath.Join(p.dir, "idemd")
	args := append(append([]string{"build"}, flags...), "-o", p.path, "github.com/idemd/idemd/cmd/idemd")
	if out, err := exec.CommandContext(context.Background(), "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return nil
}

// Remove deletes what was built. It is called when all tests are over.
func (p *Program) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

// Process is one daemon.
type Process struct {
	t    testing.TB
	by   func(*exec.Cmd) error
	path string
	env  []string
	args []string
	cmd  *exec.Cmd
	conn *grpc.ClientConn

	address string
	http    string
	off     time.Duration
}

// Start starts a daemon on free ports, with flags of serve, and with variables on top of an environment that is almost empty. It ends with the
// test.
func (p *Program) Start(t testing.TB, env []string, flags ...string) *Process {
	t.Helper()
	return p.StartBy(t, (*exec.Cmd).Start, env, flags...)
}

// StartBy does what Start does, and has its process started by a function of the test's, now and after each kill.
func (p *Program) StartBy(t testing.TB, by func(*exec.Cmd) error, env []string, flags ...string) *Process {
	t.Helper()
	d := &Process{t: t, by: by, path: p.build(t), env: env, args: flags, address: "127.0.0.1:0", http: "127.0.0.1:0"}
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	// What is sent while the daemon is away waits for it; what was under way when it died fails, and nobody knows what came of it.
	again := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 50 * time.Millisecond}}
	conn, err := grpc.NewClient(d.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(again),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	d.conn = conn
	return d
}

// Conn is a connection to the daemon, which outlives it.
func (d *Process) Conn() *grpc.ClientConn { return d.conn }

// Pid is the number of the process.
func (d *Process) Pid() int { return d.cmd.Process.Pid }

// MetricsURL is where it tells its metrics.
func (d *Process) MetricsURL() string { return "http://" + d.http + "/metrics" }

// Off is by how much the daemon's own clock is ahead of the test's.
func (d *Process) Off() time.Duration { return d.off }

// patience is how long a process may take to start. It is only ever waited for when something is wrong.
const patience = 60 * time.Second

// started is the line that a daemon logs when it serves.
type started struct {
	Message string    `json:"msg"`
	GRPC    string    `json:"grpc"`
	HTTP    string    `json:"http"`
	Time    time.Time `json:"time"`
}

// Restart starts the daemon, again where it was before, and waits until it serves.
func (d *Process) Restart() error {
	args := append([]string{"serve", "--grpc-listen", d.address, "--http-listen", d.http, "--log-format", "json"}, d.args...)
	d.cmd = exec.CommandContext(context.Background(), d.path, args...)
	d.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, d.env...)
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := d.by(d.cmd); err != nil {
		return err
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
			_ = d.cmd.Wait()
			return errors.New("the daemon ended before it served")
		}
		d.address, d.http, d.off = line.GRPC, line.HTTP, time.Until(line.Time)
		return nil
	case <-time.After(patience):
		d.Kill()
		return errors.New("the daemon does not serve")
	}
}

// Kill ends it as a crash does.
func (d *Process) Kill() {
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
}
