package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/ledger"
)

// Every reason of the ledger has a line in the table, and the table has no other.
func TestWireRulesAreComplete(t *testing.T) {
	t.Parallel()
	known := map[ledger.Reason]bool{ReasonUnauthenticated: true}
	for _, reason := range ledger.Reasons() {
		known[reason] = true
		if _, ok := wireRules[reason]; !ok {
			t.Errorf("%s has no line in the table", reason)
		}
	}
	for reason, rule := range wireRules {
		if !known[reason] {
			t.Errorf("%s is no reason of the ledger", reason)
		}
		if rule.code == codes.OK || rule.code == codes.AlreadyExists || rule.code == codes.Unknown || rule.code > codes.Unauthenticated {
			t.Errorf("%s travels as %s: callers read that as something else", reason, rule.code)
		}
		if strings.HasPrefix(string(reason), "INVALID_") != (rule.code == codes.InvalidArgument) {
			t.Errorf("%s travels as %s", reason, rule.code)
		}
	}
}

// docRow is a row of the table of reasons: reason, code, when, what to do, retry.
var docRow = regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| `([A-Z_]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$")

// docs/errors.md says of every reason what the table says.
func TestErrorsDocumentAgreesWithTheTable(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[ledger.Reason]bool{}
	for _, row := range docRow.FindAllStringSubmatch(string(raw), -1) {
		reason := ledger.Reason(row[1])
		if documented[reason] {
			t.Errorf("%s is documented twice", reason)
		}
		documented[reason] = true
		rule, ok := wireRules[reason]
		if !ok {
			t.Errorf("%s is documented but no reason", reason)
			continue
		}
		if want := code.Code_name[int32(rule.code)]; row[2] != want {
			t.Errorf("%s is documented as %s, and travels as %s", reason, row[2], want)
		}
		if retry := row[5] == "after RetryInfo"; retry != rule.retry {
			t.Errorf("%s: the document says of RetryInfo %t, the table %t", reason, retry, rule.retry)
		}
	}
	for reason := range wireRules {
		if !documented[reason] {
			t.Errorf("%s is not documented in docs/errors.md", reason)
		}
	}
	for size, text := range map[int]string{MaxReceiveBytes: "9 MiB (9437184 bytes)", MaxSendBytes: "16 MiB (16777216 bytes)"} {
		if !strings.Contains(string(raw), text) || !strings.Contains(text, fmt.Sprint(size)) {
			t.Errorf("the document does not give the limit of %d bytes as %q", size, text)
		}
	}
}

// What a call ends with, and what its caller is told: nothing of what was behind it.
func TestErrorsOnTheWire(t *testing.T) {
	t.Parallel()
	secret := errors.New("SELECT answer FROM entries WHERE key = 'k-secret'")
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason ledger.Reason
	}{
		"nothing":                    {nil, codes.OK, ""},
		"a refusal":                  {&ledger.Refusal{Reason: ledger.ReasonExpired, Message: "m"}, codes.FailedPrecondition, ledger.ReasonExpired},
		"a refusal with a cause":     {&ledger.Refusal{Reason: ledger.ReasonStoreUnavailable, Message: "m", Cause: secret}, codes.Unavailable, ledger.ReasonStoreUnavailable},
		"a refusal inside an error":  {fmt.Errorf("%w: %w", secret, &ledger.Refusal{Reason: ledger.ReasonQuota}), codes.ResourceExhausted, ledger.ReasonQuota},
		"a reason nobody knows":      {&ledger.Refusal{Reason: "BRAND_NEW", Message: "k-secret"}, codes.Internal, ledger.ReasonInternal},
		"any other error":            {secret, codes.Internal, ledger.ReasonInternal},
		"a deadline":                 {fmt.Errorf("%w: %w", secret, context.DeadlineExceeded), codes.DeadlineExceeded, ""},
		"a caller that went away":    {context.Canceled, codes.Canceled, ""},
		"a refusal due to a context": {&ledger.Refusal{Reason: ledger.ReasonStoreUnavailable, Cause: context.DeadlineExceeded}, codes.Unavailable, ledger.ReasonStoreUnavailable},
		"gRPC's own":                 {status.Error(codes.ResourceExhausted, "message too large"), codes.ResourceExhausted, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := onWire(c.err)
			st := status.Convert(err)
			if st.Code() != c.code {
				t.Errorf("code %s, want %s", st.Code(), c.code)
			}
			if strings.Contains(fmt.Sprint(st.Proto()), "k-secret") || strings.Contains(fmt.Sprint(st.Proto()), "SELECT") {
				t.Errorf("the status tells what was behind it: %v", st.Proto())
			}
			if got := reasonIn(st); got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if again := onWire(err); status.Convert(again).Proto().String() != st.Proto().String() {
				t.Errorf("a second time it becomes %v", again)
			}
		})
	}
}

func reasonIn(st *status.Status) ledger.Reason {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return ledger.Reason(info.GetReason())
		}
	}
	return ""
}

// The log still gets at the cause.
func TestCauseStaysReachableForTheLog(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection refused")
	err := onWire(&ledger.Refusal{Reason: ledger.ReasonStoreUnavailable, Message: "m", Cause: cause})
	if !errors.Is(err, cause) {
		t.Errorf("%v does not lead to its cause", err)
	}
}

// A reason that can be retried always says when, also where the ledger did not.
func TestRetryInfoGoesWithTheReason(t *testing.T) {
	t.Parallel()
	for reason, rule := range wireRules {
		for _, after := range []time.Duration{0, 3 * time.Second} {
			var got time.Duration
			for _, d := range status.Convert(onWire(&ledger.Refusal{Reason: reason, Message: "m", RetryAfter: after})).Details() {
				if info, ok := d.(*errdetails.RetryInfo); ok {
					got = info.GetRetryDelay().AsDuration()
				}
			}
			want := max(after, defaultRetryAfter)
			if !rule.retry {
				want = 0
			}
			if got != want {
				t.Errorf("%s with a retry after %v: RetryInfo %v, want %v", reason, after, got, want)
			}
		}
	}
}

// BadRequest names fields as the .proto does.
func TestFieldsHaveTheirNamesInTheProto(t *testing.T) {
	t.Parallel()
	for ours, wire := range wireNames {
		st := status.Convert(onWire(&ledger.Refusal{Reason: ledger.ReasonInvalidRequest, Message: "m", Field: ours, Rule: "must differ"}))
		for _, d := range st.Details() {
			if bad, ok := d.(*errdetails.BadRequest); ok && bad.GetFieldViolations()[0].GetField() != wire {
				t.Errorf("%s is called %s, want %s", ours, bad.GetFieldViolations()[0].GetField(), wire)
			}
		}
	}
}
