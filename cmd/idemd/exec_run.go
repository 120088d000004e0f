package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// execution is one exec.
type execution struct {
	w       *world
	flags   execFlags
	args    []string
	addr    string
	signals *signalReceiver
	stdin   io.Reader
	output  *recorder

	stdout, stderr *ownOutput
	complaints     complaints

	// ended is how the command ended. Nil: it was not run, or could not be started.
	ended *ending
}

// ending is how a command ended.
type ending struct {
	code    int
	signal  string // its name, where one ended the command
	attempt int32
}

func (e *ending) String() string {
	if e.signal != "" {
		return "the command was ended by a signal: " + e.signal
	}
	return fmt.Sprintf("the command ended with exit code %d", e.code)
}

// notStarted says that the system would not start the command: nothing happened.
type notStarted struct {
	code int
	err  error
}

func (e *notStarted) Error() string { return e.err.Error() }
func (e *notStarted) Unwrap() error { return e.err }

// work runs the command under a claim.
func (x *execution) work(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
	ended, err := x.runCommand(ctx, claim)
	if err != nil {
		return clientlib.Response{}, clientlib.NothingHappened(err)
	}
	x.ended = ended
	response := x.output.response(ended.code)
	if ended.code == exitOK {
		return response, nil
	}
	failure := status.New(codes.Unknown, ended.String())
	if detailed, err := failure.WithDetails(failureDetail(response)); err == nil {
		failure = detailed
	}
	switch {
	case x.flags.onFailure.value == onFailureFinal:
		return response, clientlib.Final(failure.Err())
	case x.flags.onFailure.value == onFailureRetry && ended.signal == "":
		return response, clientlib.NothingHappened(failure.Err())
	default:
		// What a signal ended did not say itself that nothing was done.
		return response, failure.Err()
	}
}

// finish waits until the outcome is recorded, and says what became of it all.
func (x *execution) finish(ctx context.Context, ledger *clientlib.Client, result clientlib.Result, err error) error {
	pending := x.ended != nil && result.Outcome == clientlib.Executed && !result.Recorded && !errors.Is(err, clientlib.ErrClaimLost)
	if pending {
		x.stderr.printf("idemd: the ledger cannot be told what came of the command; trying for up to %s\n", formatDuration(time.Duration(x.flags.settleTimeout)))
	}
	closeErr := x.closeLedger(ledger)
	if x.ended != nil {
		return x.finishRun(result, err, pending, closeErr)
	}
	var start *notStarted
	var failure *clientlib.ReplayedFailure
	switch {
	case errors.As(err, &start):
		return &exitError{code: start.code, err: fmt.Errorf("the command could not be started, and nothing was done: %w", start)}
	case errors.As(err, &failure):
		return x.replayFailure(failure)
	case errors.Is(err, clientlib.ErrAnswerNotKept):
		x.note("this was run before, on %s; it is not run again", x.when(result.OriginalTime))
		return x.notKept(result.Response.Code, result.Response.BodySizeBytes)
	case err != nil:
		return x.refusal(ctx, err)
	}
	x.note("this was run before, on %s; what follows is its output of then", x.when(result.OriginalTime))
	x.replayOutput(result.Response.Body, result.Response.ContentType)
	return x.exitWith(int(result.Response.Code))
}

// closeLedger waits for what is being recorded in the background, unless a signal comes.
func (x *execution) closeLedger(ledger *clientlib.Client) error {
	closed := make(chan error, 1)
	go func() { closed <- ledger.Close() }()
	select {
	case err := <-closed:
		return err
	case err := <-x.signals.cameAfter():
		return err
	}
}

// finishRun says what the end of a command that was run now means.
func (x *execution) finishRun(result clientlib.Result, err error, pending bool, closeErr error) error {
	why := x.complaints.said()
	if why == "" && closeErr != nil {
		why = closeErr.Error()
	}
	ref := shellQuote(x.flags.ref.Operation) + " " + shellQuote(x.flags.ref.Key)
	switch {
	case result.Outcome != clientlib.Executed || errors.Is(err, clientlib.ErrClaimLost):
		text := "the claim was lost while the command ran, for example because the ledger could not be reached for a whole lease: " +
			"another attempt took over, and what counts is what it does. The same again tells what came of it"
		if result.Outcome == clientlib.Replayed || result.Outcome == clientlib.ReplayedAsFailure {
			text = "another attempt, or an operator, settled this while the command ran, and that is what counts. The same again prints it"
		}
		return &exitError{code: execInProgress, err: fmt.Errorf("%s: %s", clientlib.ReasonClaimLost, text)}
	case why != "":
		x.stderr.printf("idemd: WARNING: %s, and this could not be recorded (%s). The next run is told that nobody knows what was done. Settle it:\n"+
			"  idemd lookup %s\n  idemd resolve complete %s --attempt %d --code %d --reason …\n", x.ended, why, ref, ref, x.ended.attempt, x.ended.code)
	case pending:
		x.stderr.printf("idemd: it is recorded now\n")
	}
	if size := x.output.over(); size > 0 {
		x.note("the output of %d bytes is over --max-output and is not kept; a later run is told so", size)
	}
	if x.ended.code != exitOK && why == "" {
		x.sayWhatFailureMeans()
	}
	return x.exitWith(x.ended.code)
}

func (x *execution) sayWhatFailureMeans() {
	signalled := x.ended.signal != ""
	switch {
	case x.flags.onFailure.value == onFailureFinal:
		x.note("%s; that is recorded, and every other run is told it (--on-failure final)", x.ended)
	case x.flags.onFailure.value == onFailureRetry && !signalled:
		x.note("%s; the next run runs it again (--on-failure retry)", x.ended)
	case signalled && x.flags.onFailure.value == onFailureRetry:
		x.note("%s, so nobody knows what it did, whatever --on-failure says; the next run does what its --on-abandoned says", x.ended)
	default:
		x.note("%s, so nobody knows what it did (--on-failure unknown); the next run does what its --on-abandoned says", x.ended)
	}
}

// replayFailure tells of a failure that was recorded as final, here or by an operator.
func (x *execution) replayFailure(failure *clientlib.ReplayedFailure) error {
	for _, detail := range failure.GRPCStatus().Details() {
		kept, ok := detail.(*idemv1.Response)
		if !ok {
			continue
		}
		if kept.GetBodyOmitted() {
			x.note("this was run before, on %s, and failed; it is not run again", x.when(failure.OriginalTime))
			return x.notKept(kept.GetCode(), kept.GetBodySizeBytes())
		}
		x.note("this was run before, on %s, and failed; what follows is its output of then", x.when(failure.OriginalTime))
		x.replayOutput(kept.GetBody(), kept.GetContentType())
		return x.exitWith(int(kept.GetCode()))
	}
	s := failure.GRPCStatus()
	return &exitError{code: exitFailed, err: fmt.Errorf("this was settled as failed on %s, and is not run again: %s: %s",
		x.when(failure.OriginalTime), screamingCase(s.Code().String()), printable(s.Message()))}
}

// notKept tells that there was an output, and ends as its command did.
func (x *execution) notKept(code int32, size int64) error {
	length := ""
	if size > 0 {
		length = fmt.Sprintf(" of %d bytes", size)
	}
	x.stderr.printf("idemd: its output%s was not kept (--max-output, or the policy); its exit code was %d\n", length, code)
	return exitQuietly(int(code))
}

// exitWith ends with the command's exit code. What could not be shown is told: it can be printed by the same again.
func (x *execution) exitWith(code int) error {
	err := x.stdout.failed()
	if err == nil {
		return exitQuietly(code)
	}
	if code != exitOK {
		x.stderr.printf("idemd: not all of the output could be printed: %v\n", err)
		return exitQuietly(code)
	}
	return &exitError{code: execFailed, err: fmt.Errorf("the command is done, but not all of its output could be printed: %w", err)}
}

// note says what nobody needs who asked for quiet.
func (x *execution) note(format string, args ...any) {
	if !x.flags.quiet {
		x.stderr.printf("idemd: "+format+"\n", args...)
	}
}

func (x *execution) when(t time.Time) string { return t.In(x.w.zone).Format(timeLayout) }
