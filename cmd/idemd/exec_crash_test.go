package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// untilClosed is a script that has its effect, says so, and goes on until standard input is closed; a signal gets through to it meanwhile.
const untilClosed = `exec 3<&0; echo once >>"$1"; echo started; (read line) <&3 >/dev/null 2>&1 & wait; echo ended`

// TestExecThatIsKilledLeavesTheWorkInDoubt: kill -9 of idemd itself. Until the lease is over others are told that somebody is at it; then they
// are refused, or run it again, as they say.
func TestExecThatIsKilledLeavesTheWorkInDoubt(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	for _, key := range []string{"refused", "run again"} {
		first := e.start(key, []string{"--lease", "2s"}, untilClosed)
		first.says(first.stdout, "started")
		e.want(key, nil, untilClosed, execInProgress, "", "IN_PROGRESS")
		first.signal(syscall.SIGKILL)
		first.wait()
	}
	e.wantEffects(2)
	e.want("refused", []string{"--wait", "1m"}, untilClosed, execAbandoned, "", "ABANDONED")
	e.want("refused", []string{"--wait", "1m"}, untilClosed, execAbandoned, "", "--on-abandoned rerun")
	e.wantEffects(2)
	e.want("run again", []string{"--wait", "1m", "--on-abandoned", "rerun"}, untilClosed, 0, "started\nended\n", "")
	e.want("run again", []string{"--wait", "1m"}, untilClosed, 0, "started\nended\n", "output of then")
	e.wantEffects(3)
}

// TestExecThatIsKilledHasItsCommandTold, so that it does not go on beside the next attempt.
func TestExecThatIsKilledHasItsCommandTold(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process of its parent's death")
	}
	e := newExecs(t)
	// A named pipe ends when the last who has it open for writing ends, which is how the test sees that the command did.
	if err := syscall.Mkfifo(filepath.Join(e.dir, "alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := e.start("told", nil, `exec 4>"${1%/*}/alive"; trap 'echo told >&4; exit' TERM; `+untilClosed)
	alive, err := os.Open(filepath.Join(e.dir, "alive")) // waits until the command has opened it too
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alive.Close() }()
	r.says(r.stdout, "started")
	r.signal(syscall.SIGKILL)
	got := make([]byte, 5)
	if _, err := alive.Read(got); err != nil || string(got) != "told\n" {
		t.Errorf("%q %v", got, err)
	}
}

// TestExecPassesSignalsOnToAllOfTheCommand, and what it does about them is its own affair.
func TestExecPassesSignalsOnToAllOfTheCommand(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	script := `trap 'echo outer; exit 7' INT TERM HUP; (trap 'echo inner; exit' INT TERM HUP; ` + untilClosed + `); exit`
	ran := 0
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		key := sig.String()
		if signal.Ignored(sig) {
			t.Logf("NOT TESTED: %s is ignored here, as under nohup, and no shell can catch it then", key)
			continue
		}
		ran++
		r := e.start(key, []string{"--on-failure", "final"}, script)
		r.says(r.stdout, "started")
		r.signal(sig)
		r.says(r.stdout, "inner")
		r.says(r.stdout, "outer")
		if got := r.wait(); got.code != 7 {
			t.Errorf("%s: %+v", sig, got)
		}
	}
	e.wantEffects(ran)
	// One that does not catch it dies of it.
	r := e.start("not caught", []string{"--on-failure", "final"}, untilClosed)
	r.says(r.stdout, "started")
	r.signal(syscall.SIGTERM)
	if got := r.wait(); got.code != 128+15 {
		t.Errorf("not caught: %+v", got)
	}
	e.want("not caught", nil, untilClosed, 128+15, "started\n", "")
}

// TestExecIsInterruptedWhileItWaits: a signal before the command was started ends it, and the work is not in doubt.
func TestExecIsInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	holder := e.start("awaited", nil, untilClosed)
	holder.says(holder.stdout, "started")
	waiter := e.start("awaited", []string{"--wait", "10m"}, untilClosed)
	e.daemon.untilMetric("idemd_waiting_calls 1")
	waiter.signal(syscall.SIGTERM)
	if got := waiter.wait(); got.code != execUnreachable || !strings.Contains(got.stderr, "was not run") {
		t.Errorf("%+v", got)
	}
	_ = holder.stdin.Close()
	if got := holder.wait(); got.code != 0 {
		t.Errorf("%+v", got)
	}
	e.wantEffects(1)
}

// TestExecShowsItsOutputAndEndsAsTheCommandDidWithoutTheLedger: the daemon dies while the command runs.
func TestExecShowsItsOutputAndEndsAsTheCommandDidWithoutTheLedger(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	daemon := startDaemon(t, "--data-dir", dir)
	e := &execs{t: t, daemon: daemon, addr: daemon.grpc, dir: t.TempDir()}
	lost := e.start("lost", []string{"--settle-timeout", "500ms"}, untilClosed)
	late := e.start("late", []string{"--settle-timeout", "5m"}, untilClosed)
	lost.says(lost.stdout, "started")
	late.says(late.stdout, "started")
	daemon.kill()

	_ = lost.stdin.Close()
	if got := lost.wait(); got.code != 0 || got.stdout != "started\nended\n" ||
		!strings.Contains(got.stderr, "WARNING: the command ended with exit code 0, and this could not be recorded") {
		t.Errorf("one that could not be recorded: %+v", got)
	}
	_ = late.stdin.Close()
	late.says(late.stderr, "trying for up to 5m")
	startDaemon(t, "--data-dir", dir, "--grpc-listen", e.addr)
	if got := late.wait(); got.code != 0 || got.stdout != "started\nended\n" || !strings.Contains(got.stderr, "it is recorded now") {
		t.Errorf("one that was recorded late: %+v", got)
	}
	e.want("late", nil, untilClosed, 0, "started\nended\n", "output of then")
	e.wantEffects(2)
}

// TestExecStopsACommandWhoseClaimIsLost: here an operator settles it meanwhile, by force.
func TestExecStopsACommandWhoseClaimIsLost(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	script := `trap 'echo told; exit' TERM; ` + untilClosed
	r := e.start("overruled", []string{"--lease", "1s"}, script)
	r.says(r.stdout, "started")
	if got := runBinary(t, "resolve", "complete", "job", "overruled", "--addr", e.addr, "--attempt", "1", "--force", "--reason", "test",
		"--body", "an operator's word\n", "--code", "9"); got.code != exitOK {
		t.Fatalf("%+v", got)
	}
	if got := r.wait(); got.code != execInProgress || !strings.Contains(got.stderr, "CLAIM_LOST") || got.stdout != "started\ntold\n" {
		t.Errorf("%+v", got)
	}
	e.want("overruled", nil, script, 9, "an operator's word\n", "")

	e.want("failed by hand", nil, `exit 3`, 3, "", "")
	if got := runBinary(t, "resolve", "fail", "job", "failed by hand", "--addr", e.addr, "--attempt", "1", "--reason", "test",
		"--code", "aborted", "--message", "it never will"); got.code != exitOK {
		t.Fatalf("%+v", got)
	}
	e.want("failed by hand", nil, `exit 3`, exitFailed, "", "ABORTED: it never will")
	e.wantEffects(1)
}
