package clientlib

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAnErrorSurvivesTheWire(t *testing.T) {
	sent := &Error{
		Code: codes.InvalidArgument, Reason: ReasonInvalidKey, Message: "key must not be empty", Field: "key", Rule: "must not be empty",
		RetryAfter: 2 * time.Second, Metadata: map[string]string{"help": "give one"},
	}
	err := fmt.Errorf("outer: %w", status.FromProto(sent.GRPCStatus().Proto()).Err())
	got, ok := AsError(err)
	if !ok || got.Code != sent.Code || got.Reason != sent.Reason || got.Field != sent.Field || got.Rule != sent.Rule ||
		got.RetryAfter != sent.RetryAfter || !maps.Equal(got.Metadata, sent.Metadata) || !got.FromServer || sent.FromServer {
		t.Errorf("%+v", got)
	}
	if !errors.Is(got, ErrInvalidKey) || errors.Is(got, ErrExpired) || errors.Is(&Error{}, &Error{}) {
		t.Error("errors.Is is not by reason")
	}
	var as *Error
	if !errors.As(fmt.Errorf("outer: %w", got), &as) || as != got {
		t.Error("errors.As")
	}
	for _, other := range []error{errors.New("x"), status.Error(codes.NotFound, "x"), context.Canceled} {
		if e, ok := AsError(other); ok {
			t.Errorf("%v is taken for %v", other, e)
		}
	}
}

// The ledger's own list cannot be imported here, so it is read.
func TestEveryReasonOfTheLedgerIsKnown(t *testing.T) {
	source, err := os.ReadFile("../ledger/refusal.go")
	if err != nil {
		t.Skip("skipped: ledger/refusal.go is not beside this package; run it in a clone of the whole repository")
	}
	ours, err := os.ReadFile("errors.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`\sReason\s*=\s*"([A-Z_]+)"`)
	names := func(source []byte) (found []string) {
		for _, match := range declared.FindAllSubmatch(source, -1) {
			found = append(found, string(match[1]))
		}
		return found
	}
	known := names(ours)
	if len(names(source)) < 20 {
		t.Fatal("the ledger's reasons are not where they were")
	}
	for _, reason := range names(source) {
		if !slices.Contains(known, reason) {
			t.Errorf("%s has no constant", reason)
		}
	}
}

func TestWhatACallerHearsOfABeginThatWasNotAnswered(t *testing.T) {
	server := func(code codes.Code, reason Reason) *Error {
		e, _ := AsError((&Error{Code: code, Reason: reason}).GRPCStatus().Err())
		return e
	}
	for name, c := range map[string]struct {
		err    *Error
		code   codes.Code
		reason Reason
	}{
		"no answer":                {local(codes.Unavailable, "", ""), codes.Unavailable, ReasonLedgerUnavailable},
		"its store is away":        {server(codes.Unavailable, ReasonStoreUnavailable), codes.Unavailable, ReasonStoreUnavailable},
		"its row is bad":           {server(codes.DataLoss, ReasonBadRow), codes.DataLoss, ReasonBadRow},
		"our credentials are bad":  {local(codes.Unauthenticated, "", ""), codes.Unavailable, ReasonLedgerUnavailable},
		"and it says so itself":    {server(codes.Unauthenticated, ReasonPermissionDenied), codes.Unavailable, ReasonLedgerUnavailable},
		"another tenant":           {server(codes.PermissionDenied, ReasonPermissionDenied), codes.PermissionDenied, ReasonPermissionDenied},
		"quota":                    {server(codes.ResourceExhausted, ReasonQuota), codes.ResourceExhausted, ReasonQuota},
		"the key is bad":           {server(codes.InvalidArgument, ReasonInvalidKey), codes.InvalidArgument, ReasonInvalidKey},
		"something else is there":  {local(codes.Unimplemented, "", ""), codes.Unavailable, ReasonLedgerUnavailable},
		"no answer in its own end": {local(codes.DeadlineExceeded, "", ""), codes.Unavailable, ReasonLedgerUnavailable},
	} {
		if got := beginRefusal(t.Context(), c.err); got.Code != c.code || got.Reason != c.reason {
			t.Errorf("%s: %v %v", name, got.Code, got)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if got := beginRefusal(gone, local(codes.Unavailable, "", "")); got.Code != codes.Canceled {
		t.Errorf("%v", got)
	}
}
