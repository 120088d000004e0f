package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemd/idemd/clientlib"
)

// Exit codes of exec, beside the command's own. Scripts rely on them: docs/exec.md lists them, and they do not change. 126 and 127 are as in
// a shell, 125 as in env(1) and timeout(1).
const (
	execInProgress  = 120 // somebody else is at it, or took over: the same again later
	execAbandoned   = 121 // an earlier attempt is in doubt
	execUnreachable = 122 // the ledger could not be asked, or a signal came first: the same again
	execKeyReused   = 123
	execRefused     = 124
	execFailed      = 125 // the command line, or what idemd itself was to do
	execNotRunnable = 126
	execNotFound    = 127
)

func execUsage(format string, args ...any) error {
	return &exitError{code: execFailed, err: fmt.Errorf(format, args...)}
}

// exitQuietly ends the program with a code about which everything has been said.
func exitQuietly(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}

// saidAlready recognises what exitQuietly returns.
func saidAlready(err error) bool {
	var e *exitError
	return errors.As(err, &e) && e.err == nil
}

// execCodes says by which code a refusal is told. What is not here is execRefused.
var execCodes = map[clientlib.Reason]int{
	clientlib.ReasonInProgress:        execInProgress,
	clientlib.ReasonClaimLost:         execInProgress,
	clientlib.ReasonAbandoned:         execAbandoned,
	clientlib.ReasonLedgerUnavailable: execUnreachable,
	clientlib.ReasonStoreUnavailable:  execUnreachable,
	clientlib.ReasonDraining:          execUnreachable,
	clientlib.ReasonQuota:             execUnreachable,
	clientlib.ReasonKeyReused:         execKeyReused,
	clientlib.ReasonHashIncomparable:  execKeyReused,
}

// refusal says that the command was not run, why, and what would help.
func (x *execution) refusal(ctx context.Context, err error) error {
	var exit *exitError
	var e *clientlib.Error
	var signal *signalError
	switch {
	case errors.As(context.Cause(ctx), &signal):
		return &exitError{code: execUnreachable, err: fmt.Errorf("%w: the command was not run", signal)}
	case errors.As(err, &exit) && exit.code == exitUnreachable:
		return &exitError{code: execUnreachable, err: fmt.Errorf("%w. The command was not run", exit)}
	case errors.As(err, &exit):
		return &exitError{code: execFailed, err: exit}
	case !errors.As(err, &e):
		return &exitError{code: execFailed, err: err}
	}
	code, ok := execCodes[e.Reason]
	if !ok {
		code = execRefused
	}
	text := describe(err)
	if help := x.whatHelps(e); help != "" {
		text += "\n" + help
	}
	return &exitError{code: code, err: errors.New(text)}
}

// whatHelps is what to do about a refusal, in words for whoever runs commands.
func (x *execution) whatHelps(e *clientlib.Error) string {
	ref := fmt.Sprintf("%s %s", shellQuote(x.flags.ref.Operation), shellQuote(x.flags.ref.Key))
	if x.flags.ref.Tenant != defaultTenant {
		ref += " --tenant " + shellQuote(x.flags.ref.Tenant)
	}
	switch e.Reason {
	case clientlib.ReasonInProgress:
		return "  Run the same again later, or let it wait with --wait."
	case clientlib.ReasonAbandoned:
		return "  Find out whether the command had its effect, then settle it:\n" +
			"    idemd lookup " + ref + "\n" +
			"    idemd resolve complete " + ref + " --reason …    it had\n" +
			"    idemd resolve release " + ref + " --reason …     it had not: the next run runs it\n" +
			"  Where running it twice is harmless: --on-abandoned rerun."
	case clientlib.ReasonKeyReused:
		return "  A key stands for one command with its arguments" + x.flags.alsoCounts() + ". A new piece of work needs a new key."
	default:
		return ""
	}
}
