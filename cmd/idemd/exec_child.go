package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/idemd/idemd/clientlib"
)

// stopGrace is how long a command whose claim was lost may take to end after SIGTERM before it is killed, and how long what it left running may
// keep its output open.
const stopGrace = 10 * time.Second

// runCommand runs the command to its end. An error says that it was not started.
func (x *execution) runCommand(ctx context.Context, claim clientlib.Claim) (*ending, error) {
	cmd := exec.CommandContext(ctx, x.args[0], x.args[1:]...) //nolint:gosec // running what it is told is what this is for
	cmd.Stdin = x.stdin
	cmd.Stdout = part{recorder: x.output, live: x.stdout, kept: &x.output.stdout}
	cmd.Stderr = part{recorder: x.output, live: x.stderr, kept: &x.output.stderr}
	cmd.Env = append(append([]string{}, x.w.environ...),
		"IDEM_OPERATION="+claim.Ref.Operation, "IDEM_KEY="+claim.Ref.Key,
		"IDEM_ATTEMPT="+strconv.Itoa(int(claim.Attempt)), "IDEM_FENCE="+strconv.FormatInt(claim.Fence, 10))
	if claim.PreviousAbandoned {
		cmd.Env = append(cmd.Env, "IDEM_PREVIOUS_ABANDONED=true")
	}
	// A terminal talks to a group of processes: there the command stays in ours, so that Ctrl-C and Ctrl-Z do what they always do, and it can
	// read. Elsewhere it has its own, which signals are passed on to whole.
	ownGroup := !isTerminal(x.stdin)
	cmd.SysProcAttr = childAttributes(ownGroup)
	deliver := func(sig syscall.Signal) { deliverTo(cmd.Process, ownGroup, sig) }
	cmd.Cancel = func() error { deliver(syscall.SIGTERM); return nil }
	cmd.WaitDelay = stopGrace

	// The command is told of our death by the death of the thread that started it, so this one must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := x.signals.start(cmd.Start, func(sig syscall.Signal) {
		// What a terminal sends to all of a group the command has got already.
		if ownGroup || sig != syscall.SIGINT && sig != syscall.SIGQUIT {
			deliver(sig)
		}
	}); err != nil {
		var signalled *signalError
		if errors.As(err, &signalled) {
			return nil, err
		}
		return nil, startFailure(err)
	}
	err := cmd.Wait() // what it means is in ProcessState
	x.signals.ended()
	if ctx.Err() != nil && ownGroup {
		deliver(syscall.SIGKILL) // the rest of the group: somebody else may be doing the work
	}
	if cmd.ProcessState == nil {
		return nil, startFailure(err)
	}
	ended := &ending{code: cmd.ProcessState.ExitCode(), attempt: claim.Attempt}
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		ended.code, ended.signal = exitSignal+int(s.Signal()), s.Signal().String()
	}
	return ended, nil
}

// startFailure says why a command could not be started, with the code that a shell gives.
func startFailure(err error) *notStarted {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return &notStarted{execNotFound, err}
	}
	return &notStarted{execNotRunnable, err}
}

func isTerminal(stdin any) bool {
	file, ok := stdin.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) //nolint:gosec // a file descriptor is small
}

// deliverTo sends a signal to a process, or to all of its group. That it ended by itself meanwhile is no matter.
func deliverTo(p *os.Process, group bool, sig syscall.Signal) {
	if group {
		_ = syscall.Kill(-p.Pid, sig)
		return
	}
	_ = p.Signal(sig)
}

// signalError is a signal that came when there was no command to pass it on to.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("interrupted by a signal (%s)", e.signal) }

// signalReceiver passes signals on to the command while it runs. Before that, a signal ends the wait for the ledger; after it, the wait for the
// outcome to be recorded.
type signalReceiver struct {
	ch     chan os.Signal
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	deliver func(syscall.Signal)
	early   *signalError
	started bool
	late    chan error
}

// passedOn are the signals that a command may expect. Nothing is done here about those that were ignored when we were started, as nohup does.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

func receiveSignals(cancel context.CancelCauseFunc) *signalReceiver {
	r := &signalReceiver{ch: make(chan os.Signal, 16), cancel: cancel, late: make(chan error, 1)}
	for _, sig := range passedOn {
		if !signal.Ignored(sig) {
			signal.Notify(r.ch, sig)
		}
	}
	// A reader of our output that goes away must not end us in the middle. Caught, not ignored: the command would inherit that.
	if !signal.Ignored(syscall.SIGPIPE) {
		signal.Notify(r.ch, syscall.SIGPIPE)
	}
	go func() {
		for sig := range r.ch {
			if sig != syscall.SIGPIPE {
				r.receive(sig)
			}
		}
	}()
	return r
}

func (r *signalReceiver) stop() {
	signal.Stop(r.ch)
	close(r.ch)
}

func (r *signalReceiver) receive(sig os.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	number, _ := sig.(syscall.Signal)
	switch {
	case r.deliver != nil:
		r.deliver(number)
	case !r.started:
		r.early = &signalError{sig}
		r.cancel(r.early)
	default:
		select {
		case r.late <- &signalError{sig}:
		default: // one is enough
		}
	}
}

// start starts the command unless a signal came before, and has signals delivered to it from then on.
func (r *signalReceiver) start(start func() error, deliver func(syscall.Signal)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.early != nil {
		return r.early
	}
	if err := start(); err != nil {
		return err
	}
	r.started, r.deliver = true, deliver
	return nil
}

// ended says that there is no command any more.
func (r *signalReceiver) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deliver = nil
}

// cameAfter delivers a signal that came after the command.
func (r *signalReceiver) cameAfter() <-chan error { return r.late }
