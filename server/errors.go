package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/ledger"
)

// ErrorDomain is the domain of every ErrorInfo that this server sends.
const ErrorDomain = "idem.v1"

// ReasonUnauthenticated is the one reason that is not the ledger's: the call has no valid credentials.
const ReasonUnauthenticated ledger.Reason = "UNAUTHENTICATED"

// wireRule says how a reason travels.
type wireRule struct {
	code codes.Code
	// retry: RetryInfo goes with it, since the same call may fare better later.
	retry bool
}

// wireRules is the one table from reasons to the wire. docs/errors.md says the same for people; tests compare the two, and both with
// [ledger.Reasons].
var wireRules = map[ledger.Reason]wireRule{
	ledger.ReasonKeyReused:        {code: codes.FailedPrecondition},
	ledger.ReasonHashIncomparable: {code: codes.FailedPrecondition},
	ledger.ReasonAbandoned:        {code: codes.FailedPrecondition},
	ledger.ReasonExpired:          {code: codes.FailedPrecondition},
	ledger.ReasonAlreadySettled:   {code: codes.FailedPrecondition},
	ledger.ReasonClaimLost:        {code: codes.FailedPrecondition},
	ledger.ReasonClaimLive:        {code: codes.FailedPrecondition},
	ledger.ReasonEntryNotFound:    {code: codes.NotFound},
	ledger.ReasonPolicyNotFound:   {code: codes.NotFound},
	ledger.ReasonPolicyChanged:    {code: codes.Aborted},
	ledger.ReasonTooManyPolicies:  {code: codes.ResourceExhausted},
	ledger.ReasonSweepElsewhere:   {code: codes.Aborted, retry: true},

	ReasonUnauthenticated:         {code: codes.Unauthenticated},
	ledger.ReasonPermissionDenied: {code: codes.PermissionDenied},

	ledger.ReasonInvalidTenant:      {code: codes.InvalidArgument},
	ledger.ReasonInvalidOperation:   {code: codes.InvalidArgument},
	ledger.ReasonInvalidKey:         {code: codes.InvalidArgument},
	ledger.ReasonInvalidFingerprint: {code: codes.InvalidArgument},
	ledger.ReasonInvalidAttemptID:   {code: codes.InvalidArgument},
	ledger.ReasonInvalidHolder:      {code: codes.InvalidArgument},
	ledger.ReasonInvalidLease:       {code: codes.InvalidArgument},
	ledger.ReasonInvalidWait:        {code: codes.InvalidArgument},
	ledger.ReasonInvalidReport:      {code: codes.InvalidArgument},
	ledger.ReasonInvalidReason:      {code: codes.InvalidArgument},
	ledger.ReasonInvalidPolicy:      {code: codes.InvalidArgument},
	ledger.ReasonInvalidPage:        {code: codes.InvalidArgument},
	ledger.ReasonInvalidRequest:     {code: codes.InvalidArgument},

	ledger.ReasonQuota:            {code: codes.ResourceExhausted, retry: true},
	ledger.ReasonStoreUnavailable: {code: codes.Unavailable, retry: true},
	ledger.ReasonBadRow:           {code: codes.DataLoss},
	ledger.ReasonDraining:         {code: codes.Unavailable, retry: true},
	ledger.ReasonInternal:         {code: codes.Internal},
}

// defaultRetryAfter stands in where a reason that can be retried came without a time.
const defaultRetryAfter = time.Second

// wireNames are the fields that the ledger calls otherwise than the .proto.
var wireNames = map[string]string{
	"created_until":      "create_time_before",
	"policy.key_pattern": "policy.key_format.pattern",
	"action":             "resolution",
}

// wireError is an error as it goes to the caller. It keeps the refusal, with its cause, for the log.
type wireError struct {
	status  *status.Status
	refusal *ledger.Refusal
}

func (e *wireError) Error() string              { return e.status.String() }
func (e *wireError) GRPCStatus() *status.Status { return e.status }

func (e *wireError) Unwrap() error {
	if e.refusal == nil {
		return nil
	}
	return e.refusal
}

// badRequest is a refusal that breaks several rules at once; the refusal names the first.
type badRequest struct {
	*ledger.Refusal
	violations []*errdetails.BadRequest_FieldViolation
}

func (b *badRequest) Unwrap() error { return b.Refusal }

// onWire turns what a call ended with into what its caller is told. Causes stay here.
func onWire(err error) error {
	var already *wireError
	var several *badRequest
	var refusal *ledger.Refusal
	switch {
	case err == nil:
		return nil
	case errors.As(err, &already):
		return err
	case errors.As(err, &several):
		return refusedOnWire(several.Refusal, several.violations)
	case errors.As(err, &refusal):
		return refusedOnWire(refusal, nil)
	case errors.Is(err, context.DeadlineExceeded):
		return &wireError{status: status.New(codes.DeadlineExceeded, "the deadline is over; the outcome is not known: resend the same call")}
	case errors.Is(err, context.Canceled):
		return &wireError{status: status.New(codes.Canceled, "the call was cancelled; the outcome is not known: resend the same call")}
	}
	if _, ok := status.FromError(err); ok {
		// gRPC's own: a message over the limit, a stream that broke.
		return err
	}
	return refusedOnWire(internal(err), nil)
}

// internal is the refusal for what is a bug, whatever it is: it tells the caller nothing else.
func internal(cause error) *ledger.Refusal {
	return &ledger.Refusal{Reason: ledger.ReasonInternal, Message: "an internal error; the outcome is not known: resend the same call", Cause: cause}
}

func refusedOnWire(r *ledger.Refusal, violations []*errdetails.BadRequest_FieldViolation) error {
	rule, ok := wireRules[r.Reason]
	if !ok {
		r = internal(r)
		rule = wireRules[r.Reason]
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: string(r.Reason), Domain: ErrorDomain, Metadata: r.Metadata}}
	if len(violations) == 0 && r.Field != "" {
		violations = []*errdetails.BadRequest_FieldViolation{violation(r.Reason, r.Field, r.Rule)}
	}
	if len(violations) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: violations})
	}
	if rule.retry {
		after := r.RetryAfter
		if after <= 0 {
			after = defaultRetryAfter
		}
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(after)})
	}
	st := status.New(rule.code, r.Message)
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	return &wireError{status: st, refusal: r}
}

func violation(reason ledger.Reason, field, rule string) *errdetails.BadRequest_FieldViolation {
	if name, ok := wireNames[field]; ok {
		field = name
	}
	return &errdetails.BadRequest_FieldViolation{Field: field, Description: rule, Reason: string(reason)}
}

func refusalsUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if err != nil {
		return nil, onWire(err)
	}
	return resp, nil
}

func refusalsStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return onWire(handler(srv, stream))
}
