package clientlib

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// ErrorDomain is the domain of google.rpc.ErrorInfo in every refusal of a ledger or of a guard. A status of this domain
// speaks of the ledger and not of the work, so a guard never stores one as an answer.
const ErrorDomain = "idem.v1"

// Reason is why a call was refused: the stable word to switch on.
type Reason string

// The reasons of a ledger's refusals. docs/errors.md describes each.
const (
	ReasonKeyReused          Reason = "KEY_REUSED"
	ReasonHashIncomparable   Reason = "HASH_INCOMPARABLE"
	ReasonAbandoned          Reason = "ABANDONED"
	ReasonExpired            Reason = "EXPIRED"
	ReasonAlreadySettled     Reason = "ALREADY_SETTLED"
	ReasonClaimLost          Reason = "CLAIM_LOST"
	ReasonEntryNotFound      Reason = "ENTRY_NOT_FOUND"
	ReasonPolicyNotFound     Reason = "POLICY_NOT_FOUND"
	ReasonPolicyChanged      Reason = "POLICY_CHANGED"
	ReasonTooManyPolicies    Reason = "TOO_MANY_POLICIES"
	ReasonClaimLive          Reason = "CLAIM_LIVE"
	ReasonPermissionDenied   Reason = "PERMISSION_DENIED"
	ReasonUnauthenticated    Reason = "UNAUTHENTICATED"
	ReasonInvalidTenant      Reason = "INVALID_TENANT"
	ReasonInvalidOperation   Reason = "INVALID_OPERATION"
	ReasonInvalidKey         Reason = "INVALID_KEY"
	ReasonInvalidFingerprint Reason = "INVALID_FINGERPRINT"
	ReasonInvalidAttemptID   Reason = "INVALID_ATTEMPT_ID"
	ReasonInvalidHolder      Reason = "INVALID_HOLDER"
	ReasonInvalidLease       Reason = "INVALID_LEASE"
	ReasonInvalidWait        Reason = "INVALID_WAIT"
	ReasonInvalidReport      Reason = "INVALID_REPORT"
	ReasonInvalidReason      Reason = "INVALID_REASON"
	ReasonInvalidPolicy      Reason = "INVALID_POLICY"
	ReasonInvalidPage        Reason = "INVALID_PAGE"
	ReasonInvalidRequest     Reason = "INVALID_REQUEST"
	ReasonQuota              Reason = "QUOTA"
	ReasonStoreUnavailable   Reason = "STORE_UNAVAILABLE"
	ReasonBadRow             Reason = "BAD_ROW"
	ReasonDraining           Reason = "DRAINING"
	ReasonSweepElsewhere     Reason = "SWEEP_ELSEWHERE"
	ReasonInternal           Reason = "INTERNAL"
)

// The reasons that a guard gives itself.
const (
	// ReasonKeyRequired: a keyed method was called without a key.
	ReasonKeyRequired Reason = "KEY_REQUIRED"
	// ReasonInProgress: somebody else is doing it now. Ask again, with the same key, after RetryAfter.
	ReasonInProgress Reason = "IN_PROGRESS"
	// ReasonAnswerNotKept: it was done, and its answer was not kept. Metadata has "original_time", and where they are known
	// "resource_type", "resource_id", "body_size_bytes" and "body_sha256".
	ReasonAnswerNotKept Reason = "ANSWER_NOT_KEPT"
	// ReasonLedgerUnavailable: the ledger could not be asked, and the work was not run. Ask again with the same key.
	ReasonLedgerUnavailable Reason = "LEDGER_UNAVAILABLE"
	// ReasonNoPrincipal: the guard's principal function named nobody.
	ReasonNoPrincipal Reason = "NO_PRINCIPAL"
)

// Sentinels for errors.Is, one for each reason that a caller of Do or of a guarded method may want to tell apart. They
// match every error that has the reason, whoever said it.
var (
	ErrKeyReused         = sentinel(ReasonKeyReused)
	ErrHashIncomparable  = sentinel(ReasonHashIncomparable)
	ErrAbandoned         = sentinel(ReasonAbandoned)
	ErrExpired           = sentinel(ReasonExpired)
	ErrAlreadySettled    = sentinel(ReasonAlreadySettled)
	ErrClaimLost         = sentinel(ReasonClaimLost)
	ErrEntryNotFound     = sentinel(ReasonEntryNotFound)
	ErrPermissionDenied  = sentinel(ReasonPermissionDenied)
	ErrInvalidKey        = sentinel(ReasonInvalidKey)
	ErrQuota             = sentinel(ReasonQuota)
	ErrStoreUnavailable  = sentinel(ReasonStoreUnavailable)
	ErrDraining          = sentinel(ReasonDraining)
	ErrKeyRequired       = sentinel(ReasonKeyRequired)
	ErrInProgress        = sentinel(ReasonInProgress)
	ErrAnswerNotKept     = sentinel(ReasonAnswerNotKept)
	ErrLedgerUnavailable = sentinel(ReasonLedgerUnavailable)
	ErrNoPrincipal       = sentinel(ReasonNoPrincipal)
)

func sentinel(reason Reason) error { return &Error{Reason: reason} }

// Error is a refusal: of the ledger, of a guard in another process, or of this package. It holds no key and no body, so it
// may be shown and logged.
type Error struct {
	// Code is the gRPC code under which it travels.
	Code codes.Code
	// Reason is the word to switch on. Empty where a status of the ledger's server had none: from a proxy, for example.
	Reason Reason
	// Message is for people.
	Message string
	// Field and Rule name the offending field and the rule that it breaks, with the INVALID_… reasons.
	Field, Rule string
	// RetryAfter is how long to wait before the same call may fare better. Zero: a retry does not help, or nobody knows.
	RetryAfter time.Duration
	// Metadata says what would help, as short name/value pairs. May be nil.
	Metadata map[string]string
	// FromServer tells a server's word from a guess: true where a ledger or a guard said this and its answer arrived,
	// false where this library concluded it, for example because no answer came.
	FromServer bool

	// unsent: the call was never made, so that nothing can have come of it.
	unsent bool
	cause  error
}

// Error returns reason and message.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("idem: ")
	if e.Reason != "" {
		text.WriteString(string(e.Reason))
	} else {
		text.WriteString(e.Code.String())
	}
	if e.Message != "" {
		text.WriteString(": " + e.Message)
	}
	return text.String()
}

// Unwrap returns what it was made from, most often a gRPC status error. May be nil.
func (e *Error) Unwrap() error { return e.cause }

// Is matches errors of the same reason, so that errors.Is(err, clientlib.ErrExpired) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Reason != "" && t.Reason == e.Reason
}

// GRPCStatus returns the error as it travels: with google.rpc.ErrorInfo, and BadRequest and RetryInfo where they apply.
func (e *Error) GRPCStatus() *status.Status {
	code := e.Code
	if code == codes.OK {
		code = codes.Unknown // a sentinel that somebody returned as it is
	}
	s := status.New(code, e.Message)
	if e.Reason == "" {
		return s
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Domain: ErrorDomain, Reason: string(e.Reason), Metadata: e.Metadata}}
	if e.Field != "" {
		details = append(details, &errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: e.Field, Description: e.Rule, Reason: string(e.Reason)}},
		})
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if detailed, err := s.WithDetails(details...); err == nil {
		return detailed
	}
	return s
}

// AsError finds an [*Error] in err, or makes one of a gRPC status of a ledger or a guard: use it on what a plain gRPC client
// got from a guarded method. False where err does not speak of a ledger.
func AsError(err error) (*Error, bool) {
	var known *Error
	if errors.As(err, &known) {
		return known, true
	}
	s, ok := status.FromError(err)
	if !ok || !ofOurDomain(s) {
		return nil, false
	}
	return fromStatus(s, err), true
}

// fromStatus reads a status that may or may not be of our domain.
func fromStatus(s *status.Status, cause error) *Error {
	e := &Error{Code: s.Code(), Message: s.Message(), cause: cause}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == ErrorDomain {
				e.Reason, e.Metadata, e.FromServer = Reason(d.GetReason()), d.GetMetadata(), true
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = max(d.GetRetryDelay().AsDuration(), 0)
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 && e.Field == "" {
				e.Field, e.Rule = v[0].GetField(), v[0].GetDescription()
			}
		}
	}
	return e
}

// ofOurDomain says whether a status speaks of a ledger and not of some work.
func ofOurDomain(s *status.Status) bool {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == ErrorDomain {
			return true
		}
	}
	return false
}

// local makes an error that this package concludes by itself.
func local(code codes.Code, reason Reason, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// because notes what an error was made from.
func (e *Error) because(cause error) *Error {
	e.cause = cause
	return e
}

// invalidConfig is what the Validate methods return: a programming error, found at start.
func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("clientlib: "+format, args...)
}

// contextError turns the end of a caller's context into a status that says so.
func contextError(ctx context.Context, what string) *Error {
	code := codes.DeadlineExceeded // also where ctx still runs, with too little left for another try
	if errors.Is(ctx.Err(), context.Canceled) {
		code = codes.Canceled
	}
	return (&Error{Code: code, Message: what}).because(context.Cause(ctx))
}
