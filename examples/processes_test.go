// Package examples_test runs the examples against real processes.
package examples_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a process may take for anything here. It is only ever waited for when something is wrong.
const patience = 60 * time.Second

var (
	programDir string
	buildArgs  = []string{"build"}
)

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

var buildPrograms = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "idemd-examples-")
	if err != nil {
		return "", err
	}
	programDir = dir
	args := append(slices.Clone(buildArgs), "-o", dir+"/", "../cmd/idemd", "./payments/paymentsd", "./payments/pay")
	if out, err := exec.CommandContext(context.Background(), "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return dir, nil
})

// program builds the programs, once, and says where one is.
func program(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real processes: not with -short")
	}
	dir, err := buildPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// environment holds nothing of ours.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
}

// process is a program that serves.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	addr  string
	mu    sync.Mutex
	said  strings.Builder
	ended chan struct{}
}

// serve starts a program and waits until a line of its output says where it serves.
func serve(t *testing.T, address func(line string) string, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.CommandContext(context.Background(), program(t, name), args...), ended: make(chan struct{})}
	p.cmd.Env = environment()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = writer, writer
	err = p.cmd.Start()
	_ = writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	found := make(chan string, 1)
	go func() {
		defer close(p.ended)
		p.read(reader, address, found)
		_ = p.cmd.Wait() // what came of it is in ProcessState
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %d said:\n%s", name, p.cmd.Process.Pid, p.output())
		}
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case p.addr = <-found:
	case <-p.ended:
		t.Fatalf("%s ended:\n%s", name, p.output())
	case <-timer.C:
		t.Fatalf("%s does not say where it serves:\n%s", name, p.output())
	}
	return p
}

func (p *process) read(r io.Reader, address func(string) string, found chan<- string) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		p.mu.Lock()
		p.said.WriteString(scanner.Text() + "\n")
		p.mu.Unlock()
		if addr := address(scanner.Text()); addr != "" {
			select {
			case found <- addr:
			default: // it was said before
			}
		}
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// kill ends it as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	<-p.ended
}

// startDaemon starts "idemd serve" with the embedded store.
func startDaemon(t *testing.T, dataDir, listen string) *process {
	t.Helper()
	address := func(line string) string {
		var said struct {
			Message string `json:"msg"`
			GRPC    string `json:"grpc"`
		}
		if json.Unmarshal([]byte(line), &said) != nil || said.Message != "idemd serves" {
			return ""
		}
		return said.GRPC
	}
	return serve(t, address, "idemd", "serve", "--data-dir", dataDir, "--grpc-listen", listen, "--http-listen", "off", "--log-format", "json")
}

// startPayments starts the payments service.
func startPayments(t *testing.T, daemon *process) *process {
	t.Helper()
	address := func(line string) string {
		_, addr, _ := strings.Cut(line, "payments at ")
		return addr
	}
	return serve(t, address, "paymentsd", "-listen", "127.0.0.1:0", "-idemd", daemon.addr)
}

// operate runs one of the operators' commands against the daemon.
func (p *process) operate(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, "idemd"), append(args, "--addr", p.addr)...)
	cmd.Env = environment()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("idemd %v: %v", args, err)
	}
	return out
}

// release has an entry run once more, as an operator does who has looked.
func (p *process) release(t *testing.T, operation, key string) {
	t.Helper()
	var entry struct{ LatestAttempt int }
	if err := json.Unmarshal(p.operate(t, "lookup", operation, key, "-o", "json"), &entry); err != nil {
		t.Fatal(err)
	}
	p.operate(t, "resolve", "release", operation, key, "--attempt", fmt.Sprint(entry.LatestAttempt), "--reason", "it did not happen")
}
