package ledger

import (
	"fmt"
	"time"
)

// Reason is why a request was refused: the stable word that callers switch on. It travels as ErrorInfo.reason.
type Reason string

// Every reason there is. docs/errors.md describes each; a test compares the two.
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

// Reasons lists every reason, for tables that must be complete.
func Reasons() []Reason {
	return []Reason{
		ReasonKeyReused, ReasonHashIncomparable, ReasonAbandoned, ReasonExpired, ReasonAlreadySettled, ReasonClaimLost,
		ReasonEntryNotFound, ReasonPolicyNotFound, ReasonPolicyChanged, ReasonTooManyPolicies, ReasonClaimLive, ReasonPermissionDenied,
		ReasonInvalidTenant, ReasonInvalidOperation, ReasonInvalidKey, ReasonInvalidFingerprint, ReasonInvalidAttemptID,
		ReasonInvalidHolder, ReasonInvalidLease, ReasonInvalidWait, ReasonInvalidReport, ReasonInvalidReason, ReasonInvalidPolicy,
		ReasonInvalidPage, ReasonInvalidRequest, ReasonQuota, ReasonStoreUnavailable, ReasonBadRow, ReasonDraining, ReasonSweepElsewhere,
		ReasonInternal,
	}
}

// Refusal is the error of every ledger call. It holds no SQL, no key and no body, so it may be shown and logged.
type Refusal struct {
	Reason  Reason
	Message string
	// Field and Rule name the offending field and the rule it breaks; only with the INVALID_… reasons.
	Field string
	Rule  string
	// RetryAfter is how long to wait before the same call may fare better; zero where a retry does not help.
	RetryAfter time.Duration
	// Metadata says what would help, as short name/value pairs.
	Metadata map[string]string
	// Cause is for logs only and may be nil. It is never shown to callers.
	Cause error
}

// Error returns reason and message.
func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Message }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Cause }

// Is matches a refusal of the same reason, so that errors.Is(err, &Refusal{Reason: ReasonExpired}) works.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Reason == r.Reason
}

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func invalid(reason Reason, field, rule string) *Refusal {
	return &Refusal{Reason: reason, Message: field + " " + rule, Field: field, Rule: rule}
}

// with adds one pair of metadata.
func (r *Refusal) with(name, value string) *Refusal {
	if r.Metadata == nil {
		r.Metadata = map[string]string{}
	}
	r.Metadata[name] = value
	return r
}
