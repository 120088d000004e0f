package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/testserver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// lab is the processes of one run, and where their data are.
type lab struct {
	*config
	dir     string
	self    string // this program
	closers []func()
}

func newLab(ctx context.Context, c *config) (*lab, error) {
	l := &lab{config: c}
	var err error
	if l.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if l.dir, err = os.MkdirTemp(c.dir, "idemd-compare-"); err != nil {
		return nil, err
	}
	if l.dir, err = filepath.Abs(l.dir); err != nil { // servers go to folders of their own
		return nil, err
	}
	l.atEnd(func() { _ = os.RemoveAll(l.dir) })
	if c.idemd == "" {
		c.idemd = filepath.Join(l.dir, "idemd")
		if out, err := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", c.idemd, "./cmd/idemd").CombinedOutput(); err != nil {
			l.close()
			return nil, fmt.Errorf("building the daemon, which works from the root of the source only: %w\n%s", err, out)
		}
	}
	return l, nil
}

func (l *lab) atEnd(f func()) { l.closers = append(l.closers, f) }

// close stops what was started, the last one first.
func (l *lab) close() {
	for i := len(l.closers) - 1; i >= 0; i-- {
		l.closers[i]()
	}
}

// child is a process of the lab's.
type child struct {
	cmd    *exec.Cmd
	output lockedBuffer
	over   chan struct{}
}

// start starts a process that is stopped when the lab is closed.
func (l *lab) start(program string, args ...string) (*child, error) {
	c := &child{cmd: exec.CommandContext(context.Background(), program, args...), over: make(chan struct{})} // ended by stop
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Env = &c.output, &c.output, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.over)
	}()
	l.atEnd(c.stop)
	return c, nil
}

// as is the process under a name, in a candidate's list of servers.
func (c *child) as(name string) []server { return []server{{name, c.cmd.Process.Pid}} }

// patience is how long a process may take to start or to stop.
const patience = 30 * time.Second

func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.over:
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-c.over
	}
}

// waitFor asks again and again until a process is there.
func (c *child) waitFor(ctx context.Context, what string, there func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !there() {
		select {
		case <-tick.C:
		case <-c.over:
			return fmt.Errorf("%s ended: %s", what, c.output.String())
		case <-ctx.Done():
			return fmt.Errorf("%s did not start: %s", what, c.output.String())
		}
	}
	return nil
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// daemon is an idemd that runs.
type daemon struct {
	*child
	addr    string
	dataDir string // of an embedded store
}

// startDaemon starts an idemd on a store: a URL, or "" for an embedded one in a folder of its own.
func (l *lab) startDaemon(ctx context.Context, store string, flags ...string) (*daemon, error) {
	d := &daemon{}
	args := []string{"serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "off", "--log-level", "warn"}
	if store == "" {
		var err error
		if d.dataDir, err = os.MkdirTemp(l.dir, "ledger-"); err != nil {
			return nil, err
		}
		args = append(args, "--data-dir", d.dataDir)
	} else {
		if out, err := l.command(ctx, "migrate", "up", "--store", store).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("idemd migrate up: %w: %s", err, out)
		}
		args = append(args, "--store", store)
	}
	readyFile := filepath.Join(l.dir, fmt.Sprintf("ready-%d", len(l.closers)))
	var err error
	if d.child, err = l.start(l.idemd, append(append(args, "--ready-file", readyFile), flags...)...); err != nil {
		return nil, err
	}
	var ready struct {
		GRPC string `json:"grpc"`
	}
	err = d.waitFor(ctx, "idemd", func() bool {
		content, err := os.ReadFile(readyFile)
		return err == nil && json.Unmarshal(content, &ready) == nil
	})
	d.addr = ready.GRPC
	return d, err
}

// command is one of the daemon's own.
func (l *lab) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.idemd, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir}
	return cmd
}

// dial opens so many connections to an address.
func (l *lab) dial(addr string, n int) ([]*grpc.ClientConn, error) {
	var conns []*grpc.ClientConn
	for range n {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			return nil, err
		}
		l.atEnd(func() { _ = conn.Close() })
		conns = append(conns, conn)
	}
	return conns, nil
}

// errMissing says that what a candidate needs is not installed.
var errMissing = errors.New("not installed")

// postgres starts a PostgreSQL, and returns the URLs of so many empty databases.
func (l *lab) postgres(ctx context.Context, databases int) ([]string, error) {
	server, err := pgtest.Open()
	if err != nil {
		if pgtest.NotInstalled(err) {
			return nil, fmt.Errorf("PostgreSQL is %w: %w", errMissing, err)
		}
		return nil, err
	}
	l.atEnd(server.Close)
	var urls []string
	for range databases {
		u, err := server.NewDatabase(ctx)
		if err != nil {
			return nil, err
		}
		urls = append(urls, u)
	}
	return urls, nil
}

// cockroachDB starts a CockroachDB of one node with its data on disk, and returns the URLs of so many empty databases.
func (l *lab) cockroachDB(ctx context.Context, databases int) ([]string, error) {
	if l.cockroach == "" {
		return nil, fmt.Errorf("CockroachDB is %w: name a program with -cockroach or COCKROACH_BINARY", errMissing)
	}
	server, err := testserver.NewTestServer(testserver.CockroachBinaryPathOpt(l.cockroach), testserver.StoreOnDiskOpt())
	if err != nil {
		return nil, err
	}
	l.atEnd(server.Stop)
	var urls []string
	for i := range databases {
		name := fmt.Sprintf("compare_%d", i)
		if err := execute(ctx, server.PGURL().String(), "CREATE DATABASE "+name); err != nil {
			return nil, err
		}
		u := *server.PGURL()
		u.Path = "/" + name
		urls = append(urls, u.String())
	}
	return urls, nil
}

// machine says on what was measured.
func (l *lab) machine() string {
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.SplitSeq(string(info), "\n") {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	load := ""
	if average, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(average), " ")
	}
	return fmt.Sprintf("%s, %d processors, load %s at the start, %s", model, processors(), load, time.Now().UTC().Format(time.DateOnly))
}
