package main

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The exit codes. Scripts rely on them: docs/operations.md lists them, and they do not change.
const (
	exitOK          = 0
	exitFailed      = 1 // refused, or it did not work
	exitUsage       = 2 // flags, environment, configuration or arguments are wrong: nothing was tried
	exitUnreachable = 3 // no daemon answers at the address
	exitSignal      = 128
)

// exitError carries the exit code that an error means, where it is not exitFailed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// usage is an error of whoever wrote the command line, the environment or the file.
func usage(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

func asUsage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitUsage, err: err}
}

func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	default:
		return exitFailed
	}
}

// errorDomain is whose refusals carry a reason that means something here.
const errorDomain = "idem.v1"

// describe says an error in words for an operator: a refusal by its reason, and what would help.
func describe(err error) string {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.Error()
	}
	s, ok := status.FromError(err)
	if !ok {
		return err.Error()
	}
	var b strings.Builder
	var metadata map[string]string
	reason := refusalReason(s)
	if reason == "" {
		reason = screamingCase(s.Code().String())
	}
	fmt.Fprintf(&b, "%s: %s", reason, s.Message())
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			metadata = d.GetMetadata()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				if !strings.Contains(s.Message(), v.GetField()+" "+v.GetDescription()) {
					fmt.Fprintf(&b, "\n  %s: %s", v.GetField(), v.GetDescription())
				}
			}
		case *errdetails.RetryInfo:
			fmt.Fprintf(&b, "\n  try again in %s", formatDuration(d.GetRetryDelay().AsDuration()))
		}
	}
	names := make([]string, 0, len(metadata))
	for name := range metadata {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(&b, "\n  %s: %s", name, metadata[name])
	}
	return printable(b.String())
}

// refusalReason is the reason in a refusal of the ledger's; "" for every other status.
func refusalReason(s *status.Status) string {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return info.GetReason()
		}
	}
	return ""
}

// called turns what a call to the daemon returned into an error with the right exit code. Where the transport speaks and not the daemon,
// the daemon was not reached.
func called(err error, addr string) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = status.FromContextError(err).Err()
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch {
	case s.Code() == codes.Unavailable && refusalReason(s) == "":
		return &exitError{code: exitUnreachable, err: fmt.Errorf("the daemon at %s went away or cannot be reached: %s", addr, printable(s.Message()))}
	case s.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("no answer from %s in time; whether it was done is not known: run the same command again, or give it a longer --timeout", addr)
	}
	return err
}
