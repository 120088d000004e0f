package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// execs runs "idemd exec" against a daemon, for one operation.
type execs struct {
	t      *testing.T
	daemon *process
	addr   string
	dir    string
}

func newExecs(t *testing.T) *execs {
	t.Helper()
	daemon := startDaemon(t, "--data-dir", t.TempDir())
	return &execs{t: t, daemon: daemon, addr: daemon.grpc, dir: t.TempDir()}
}

// arguments are those of an exec of a shell script, whose $1 is a file in the test's directory.
func (e *execs) arguments(key string, flags []string, script string) []string {
	args := append([]string{"exec", "--addr", e.addr, "--operation", "job", "--key", key}, flags...)
	return append(args, "--", "sh", "-c", script, "sh", e.file())
}

func (e *execs) file() string { return filepath.Join(e.dir, "effects") }

// run runs a script to its end.
func (e *execs) run(key string, flags []string, script string) result {
	e.t.Helper()
	return runBinary(e.t, e.arguments(key, flags, script)...)
}

// want runs a script and says what is not as it should be.
func (e *execs) want(key string, flags []string, script string, code int, stdout, stderrHas string) {
	e.t.Helper()
	got := e.run(key, flags, script)
	if got.code != code || got.stdout != stdout || !strings.Contains(got.stderr, stderrHas) {
		e.t.Errorf("%s %v %q: exit %d, want %d; stdout %.200q, want %.200q; stderr %.500q, want %q in it",
			key, flags, script, got.code, code, got.stdout, stdout, got.stderr, stderrHas)
	}
}

// effects is how many lines the scripts have written to their file.
func (e *execs) effects() int {
	e.t.Helper()
	content, err := os.ReadFile(e.file())
	if err != nil && !os.IsNotExist(err) {
		e.t.Fatal(err)
	}
	return bytes.Count(content, []byte("\n"))
}

func (e *execs) wantEffects(want int) {
	e.t.Helper()
	if got := e.effects(); got != want {
		e.t.Errorf("%d effects, want %d", got, want)
	}
}

// effect is a script that leaves one line in the file, and tells something.
const effect = `echo once >>"$1"; echo out; echo err >&2; `

func TestExecRunsACommandOnceAndReplaysItsOutput(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	first := e.run("a", nil, effect+`printf 'no line break'`)
	if want := (result{"out\nno line break", "err\n", 0}); first != want {
		t.Errorf("the first: %+v, want %+v", first, want)
	}
	second := e.run("a", nil, effect+`printf 'no line break'`)
	if second.code != 0 || second.stdout != first.stdout || !strings.HasSuffix(second.stderr, "output of then\nerr\n") {
		t.Errorf("the second: %+v", second)
	}
	if quiet := e.run("a", []string{"--quiet"}, effect+`printf 'no line break'`); quiet != first {
		t.Errorf("with --quiet: %+v, want the same as the first: %+v", quiet, first)
	}
	e.wantEffects(1)
	e.want("b", nil, effect, 0, "out\n", "err\n")
	e.wantEffects(2)
}

func TestExecOfSixteenAtOnceRunsOne(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	results := make([]result, 16)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			results[i] = e.run("crowd", []string{"--wait", "1m", "--on-failure", "final", "--quiet"}, effect+`echo "$IDEM_ATTEMPT $IDEM_FENCE"; exit 5`)
		})
	}
	wg.Wait()
	for i, got := range results {
		if got.code != 5 || got.stdout != results[0].stdout || got.stderr != "err\n" || !strings.HasPrefix(got.stdout, "out\n1 ") {
			t.Errorf("number %d: %+v, and the first %+v", i, got, results[0])
		}
	}
	e.wantEffects(1)
}

// TestExecDoesWithAFailureWhatItsFlagSays: final is replayed, retry is run again, unknown is asked about.
func TestExecDoesWithAFailureWhatItsFlagSays(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	fails := effect + `exit 3`
	e.want("final", []string{"--on-failure", "final"}, fails, 3, "out\n", "err\nidemd: the command ended with exit code 3")
	e.want("final", nil, fails, 3, "out\n", "failed; what follows")
	e.wantEffects(1)

	e.want("retry", []string{"--on-failure", "retry"}, fails, 3, "out\n", "the next run runs it again")
	e.want("retry", []string{"--on-failure", "retry"}, fails, 3, "out\n", "")
	e.wantEffects(3)

	e.want("unknown", nil, fails, 3, "out\n", "nobody knows what it did")
	e.want("unknown", nil, fails, execAbandoned, "", "idemd resolve release job unknown")
	e.wantEffects(4)
	e.want("unknown", []string{"--on-abandoned", "rerun"}, fails, 3, "out\n", "")
	e.wantEffects(5)
	release := []string{"resolve", "release", "job", "unknown", "--attempt", "3", "--reason", "it did nothing", "--addr", e.addr}
	if got := runBinary(t, release...); got.code != exitOK {
		t.Errorf("released: %+v", got)
	}
	e.want("unknown", nil, fails, 3, "out\n", "nobody knows what it did")
	e.want("unknown", nil, fails, execAbandoned, "", "ABANDONED")
	e.wantEffects(6)

	tells := `echo "$IDEM_ATTEMPT $IDEM_PREVIOUS_ABANDONED"; exit 3`
	e.want("told", nil, tells, 3, "1 \n", "")
	e.want("told", []string{"--on-abandoned", "rerun"}, tells, 3, "2 true\n", "")
}

// TestExecTakesASignalsEndForNoWordOfTheCommand: a command that was killed did not say that nothing was done, so retry does not hold for it.
func TestExecTakesASignalsEndForNoWordOfTheCommand(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	killed := effect + `kill -9 $$`
	e.want("final", []string{"--on-failure", "final"}, killed, 128+9, "out\n", "ended by a signal: killed")
	e.want("final", []string{"--on-failure", "final"}, killed, 128+9, "out\n", "")
	e.want("retry", []string{"--on-failure", "retry"}, killed, 128+9, "out\n", "whatever --on-failure says")
	e.want("retry", []string{"--on-failure", "retry"}, killed, execAbandoned, "", "ABANDONED")
	e.wantEffects(2)
}

func TestExecThatCannotStartItsCommandHasDoneNothing(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	program := filepath.Join(e.dir, "program")
	start := func() result {
		return runBinary(t, "exec", "--addr", e.addr, "--operation", "job", "--key", "program", "--", program)
	}
	if got := start(); got.code != execNotFound || !strings.Contains(got.stderr, "nothing was done") {
		t.Errorf("a program that is not there: %+v", got)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho it runs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := start(); got.code != execNotRunnable {
		t.Errorf("a file that is no program: %+v", got)
	}
	if err := os.Chmod(program, 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if got := start(); got.code != 0 || got.stdout != "it runs\n" {
		t.Errorf("the same, once it is there: %+v", got)
	}
}

func TestExecRefusesAKeyThatWasUsedForAnotherCommand(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	input := filepath.Join(e.dir, "input")
	write := func(text string) {
		if err := os.WriteFile(input, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	typed := func(text string, args ...string) int {
		cmd := command(t.Context(), binaryPath(t), append([]string{"exec", "--addr", e.addr, "--operation", "job"}, args...)...)
		cmd.Env = append(cmd.Env, "LEVEL="+text)
		cmd.Stdin = strings.NewReader(text)
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode()
	}
	e.want("args", nil, effect, 0, "out\n", "")
	e.want("args", nil, effect+":", execKeyReused, "", "KEY_REUSED")

	for _, c := range []struct {
		name  string
		first []string
		again []string
		code  int
	}{
		{"where the words end counts", []string{"echo", "ab"}, []string{"echo", "a", "b"}, execKeyReused},
		{"which kind a word is of counts", []string{"echo", "UNSET"}, []string{"--fingerprint-env", "UNSET", "echo"}, execKeyReused},
		{"the same words", []string{"echo", "a b"}, []string{"echo", "a b"}, 0},
		{"a file that nobody named", []string{"cat", input}, []string{"cat", input}, 0},
		{"a file that counts", []string{"--fingerprint-file", input, "cat", input}, []string{"--fingerprint-file", input, "cat", input}, execKeyReused},
		{"stdin that nobody named", []string{"cat"}, []string{"cat"}, 0},
		{"stdin that counts", []string{"--fingerprint-stdin", "cat"}, []string{"--fingerprint-stdin", "cat"}, execKeyReused},
		{"environment that nobody named", []string{"env"}, []string{"env"}, 0},
		{"a variable that counts", []string{"--fingerprint-env", "LEVEL", "env"}, []string{"--fingerprint-env", "LEVEL", "env"}, execKeyReused},
		{"a directory that counts", []string{"pwd"}, []string{"--fingerprint-dir", "pwd"}, execKeyReused},
	} {
		write("one")
		if code := typed("one", append([]string{"--key", c.name}, c.first...)...); code != 0 {
			t.Errorf("%s: the first ends with %d", c.name, code)
		}
		write("two")
		if code := typed("two", append([]string{"--key", c.name}, c.again...)...); code != c.code {
			t.Errorf("%s: the second ends with %d, want %d", c.name, code, c.code)
		}
	}
	e.wantEffects(1)
}

func TestExecGivesTheCommandItsStandardInput(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	for _, flags := range [][]string{nil, {"--fingerprint-stdin"}} {
		args := append([]string{"exec", "--addr", e.addr, "--operation", "job", "--key", fmt.Sprint("stdin", flags)}, flags...)
		for _, what := range []string{"the first", "the second"} {
			cmd := command(t.Context(), binaryPath(t), append(args, "cat")...)
			cmd.Stdin = strings.NewReader("some\x00input\n")
			if out, err := cmd.Output(); err != nil || string(out) != "some\x00input\n" {
				t.Errorf("%v, %s: %q %v", flags, what, out, err)
			}
		}
	}
}

func TestExecKeepsBytesAsTheyAre(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	content := make([]byte, 0, 300_000)
	for i := range cap(content) {
		content = append(content, byte(i*i>>3))
	}
	if err := os.WriteFile(filepath.Join(e.dir, "binary"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	script := `cat "${1%/*}/binary"; cat "${1%/*}/binary" >&2`
	for _, what := range []string{"the first", "the second"} {
		if got := e.run("binary", []string{"--quiet"}, script); got.stdout != string(content) || got.stderr != string(content) {
			t.Errorf("%s gave %d and %d bytes, which are not those of the file", what, len(got.stdout), len(got.stderr))
		}
	}
}

// TestExecSaysWhatItDidNotKeep: too much output is shown to the first and told to all others, who end with the same code.
func TestExecSaysWhatItDidNotKeep(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	for _, c := range []struct {
		name  string
		flags []string
		bytes int
		code  int
	}{
		{"over the flag", []string{"--max-output", "1000"}, 1001, 0},
		{"over the policy", []string{"--max-output", "8388608"}, 2 << 20, 0},
		{"a failure over the flag", []string{"--max-output", "1000", "--on-failure", "final"}, 1001, 4},
		{"a failure over what details may have", []string{"--on-failure", "final"}, 100_000, 4},
	} {
		script := fmt.Sprintf(`echo once >>"$1"; head -c %d /dev/zero; exit %d`, c.bytes, c.code)
		e.want(c.name, c.flags, script, c.code, strings.Repeat("\x00", c.bytes), "")
		e.want(c.name, c.flags, script, c.code, "", fmt.Sprintf("%d bytes was not kept", c.bytes))
	}
	e.wantEffects(4)
}

// TestARecorderHoldsNoMoreThanItsLimit: a command may write for days.
func TestARecorderHoldsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	r := &recorder{limit: 100}
	live := &ownOutput{to: &printer{to: io.Discard}}
	for range 1000 {
		for _, kept := range []*[]byte{&r.stdout, &r.stderr} {
			_, _ = part{recorder: r, live: live, kept: kept}.Write([]byte("0123456789"))
			if held := len(r.stdout) + len(r.stderr); held > 100 {
				t.Fatalf("it holds %d bytes", held)
			}
		}
	}
	if r.over() != 20_000 {
		t.Errorf("it counted %d bytes", r.over())
	}
}

func TestExecRunsNothingWithoutTheLedger(t *testing.T) {
	t.Parallel()
	e := &execs{t: t, addr: "127.0.0.1:1", dir: t.TempDir()}
	e.want("a", []string{"--timeout", "500ms"}, effect, execUnreachable, "", "The command was not run")
	e.wantEffects(0)
}

func TestExecSaysByTheCodeThatItsCommandLineIsWrong(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--key", "a", "true"}, {"--operation", "job", "true"}, {"--operation", "job", "--key", "a"}, {"--no-such-flag"},
		{"--operation", "job", "--key", "a", "-o", "json", "true"},
		{"--operation", "job", "--key", "a", "--on-failure", "maybe", "true"}, {"--operation", "job", "--key", "a", "--lease", "1ms", "true"},
		{"--operation", "job", "--key", "a", "--max-output", "-1", "true"}, {"--operation", "job", "--key", "a", "--fingerprint-file", "/none", "true"},
	} {
		if got := runAlone(t, nil, append([]string{"exec"}, args...)...); got.code != execFailed {
			t.Errorf("%v: %+v", args, got)
		}
	}
	if got := runAlone(t, []string{"IDEMD_TIMEOUT=soon"}, "exec", "--operation", "job", "--key", "a", "true"); got.code != execFailed {
		t.Errorf("a wrong variable: %+v", got)
	}
	e := newExecs(t)
	e.want("key\twith a tab", nil, effect, execRefused, "", "INVALID_KEY")
	e.want("key in Latin-1: caf\xe9", nil, effect, execRefused, "", "INVALID_KEY")
	e.wantEffects(0)
}

// TestExecTellsOfAReaderThatWentAway: the command is not ended by it, and its output is kept.
func TestExecTellsOfAReaderThatWentAway(t *testing.T) {
	t.Parallel()
	e := newExecs(t)
	script := `yes | head -c 200000; echo once >>"$1"`
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = reader.Close()
	var stderr bytes.Buffer
	cmd := command(t.Context(), binaryPath(t), e.arguments("pipe", nil, script)...)
	cmd.Stdout, cmd.Stderr = writer, &stderr
	_ = cmd.Run()
	_ = writer.Close()
	if code := cmd.ProcessState.ExitCode(); code != execFailed || !strings.Contains(stderr.String(), "could be printed") {
		t.Errorf("exit code %d, stderr %s", code, &stderr)
	}
	e.want("pipe", nil, script, 0, strings.Repeat("y\n", 100_000), "")
	e.wantEffects(1)
}

// running is an exec that runs.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdin          *os.File // its other end; the command reads until it is closed
	stdout, stderr *logLines
}

// start starts a script, whose standard input stays open.
func (e *execs) start(key string, flags []string, script string) *running {
	e.t.Helper()
	r := &running{t: e.t, cmd: command(context.Background(), binaryPath(e.t), e.arguments(key, flags, script)...)}
	theirs, ours, err := os.Pipe()
	if err != nil {
		e.t.Fatal(err)
	}
	r.stdin, r.cmd.Stdin = ours, theirs
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	stderr, err := r.cmd.StderrPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	_ = theirs.Close()
	r.stdout, r.stderr = newLogLines(stdout), newLogLines(stderr)
	e.t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // most have ended
		_ = r.stdin.Close()
	})
	return r
}

// says waits for a line of an output.
func (r *running) says(lines *logLines, want string) {
	r.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for at := 0; ; at++ {
		select {
		case line, ok := <-lines.line(at):
			if !ok {
				r.t.Fatalf("it ended before it said %q: %s%s", want, r.stdout, r.stderr)
			}
			if strings.Contains(line, want) {
				return
			}
		case <-timer.C:
			r.t.Fatalf("it did not say %q: %s%s", want, r.stdout, r.stderr)
		}
	}
}

func (r *running) signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// wait waits for the end.
func (r *running) wait() result {
	r.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-r.stdout.ended
		<-r.stderr.ended
		_ = r.cmd.Wait() // what came of it is in ProcessState
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
		return result{r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode()}
	case <-timer.C:
		r.t.Fatalf("it does not end: %s%s", r.stdout, r.stderr)
		return result{}
	}
}
