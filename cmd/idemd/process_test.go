package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

// The tests in process_*_test.go run the real binary.

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	if dir := binaryDir; dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// patience is how long a process may take for anything here. It is only ever waited for when something is wrong.
const patience = 60 * time.Second

var (
	binaryDir string
	buildArgs = []string{"build"}
)

// program builds the binary, once, when the first test asks for it.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "idemd-test-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "idemd")
	args := append(slices.Clone(buildArgs), "-o", path, ".")
	out, err := exec.CommandContext(context.Background(), "go", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return path, nil
})

func binaryPath(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the real program: not with -short")
	}
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// command is the program with an environment that holds nothing of ours.
func command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	return cmd
}

// runBinary runs the program to its end.
func runBinary(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(ctx, binaryPath(t), args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// process is a daemon that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	grpc  string
	http  string
	log   *logLines
	ended chan struct{} // closed when it has ended, and its log was read to the end
}

// startLine is the line in which a daemon says where it is.
type startLine struct {
	Message string `json:"msg"`
	GRPC    string `json:"grpc"`
	HTTP    string `json:"http"`
	PID     int    `json:"pid"`
}

// startDaemon starts "idemd serve" on free ports and waits until it says where it is.
func startDaemon(t *testing.T, args ...string) *process {
	t.Helper()
	return startDaemonIn(t, nil, args...)
}

// startDaemonIn does that with more in the environment.
func startDaemonIn(t *testing.T, environ []string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json"}, args...)
	p := &process{t: t, cmd: command(context.Background(), binaryPath(t), args...), ended: make(chan struct{})}
	p.cmd.Env = append(p.cmd.Env, environ...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.log = newLogLines(stderr)
	go func() {
		defer close(p.ended)
		<-p.log.ended
		_ = p.cmd.Wait() // what came of it is in ProcessState
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of daemon %d:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	line := p.waitForLine("idemd serves")
	p.grpc, p.http = line.GRPC, line.HTTP
	return p
}

// waitForLine waits for a line of the log.
func (p *process) waitForLine(message string) startLine {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for at := 0; ; at++ {
		select {
		case line, ok := <-p.log.line(at):
			if !ok {
				p.t.Fatalf("the daemon ended before it said %q:\n%s", message, p.log)
			}
			var parsed startLine
			if json.Unmarshal([]byte(line), &parsed) == nil && parsed.Message == message {
				return parsed
			}
		case <-timer.C:
			p.t.Fatalf("the daemon did not say %q:\n%s", message, p.log)
		}
	}
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// waitExit waits for its end and returns the exit code.
func (p *process) waitExit() int {
	p.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-timer.C:
		p.t.Fatalf("the daemon does not end:\n%s", p.log)
		return -1
	}
}

// connect opens a connection of its own to the daemon.
func (p *process) connect() idemv1.LedgerServiceClient {
	p.t.Helper()
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return idemv1.NewLedgerServiceClient(conn)
}

// logLines are the lines that a process has written, and those it is still to write.
type logLines struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed, and replaced, when a line came
	ended chan struct{} // closed when there are no more
}

func newLogLines(r io.Reader) *logLines {
	l := &logLines{more: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		scanner := bufio.NewScanner(r)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			l.mu.Lock()
			l.lines = append(l.lines, scanner.Text())
			close(l.more)
			l.more = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	return l
}

// line delivers line number at once it is there, and is closed where it never comes.
func (l *logLines) line(at int) <-chan string {
	out := make(chan string, 1)
	go func() {
		defer close(out)
		for {
			l.mu.Lock()
			more := l.more
			if at < len(l.lines) {
				out <- l.lines[at]
				l.mu.Unlock()
				return
			}
			l.mu.Unlock()
			select {
			case <-more:
			case <-l.ended:
				l.mu.Lock()
				if at < len(l.lines) {
					out <- l.lines[at]
				}
				l.mu.Unlock()
				return
			}
		}
	}()
	return out
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out bytes.Buffer
	for _, line := range l.lines {
		fmt.Fprintln(&out, line)
	}
	return out.String()
}
