package httpidem

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/idemd/idemd/clientlib"
)

// Reasons that this package gives beside those of clientlib.
const (
	// ReasonBodyTooLarge: the request's body is over the guard's limit, so it has no fingerprint.
	ReasonBodyTooLarge clientlib.Reason = "BODY_TOO_LARGE"
	// ReasonBodyUnreadable: the request's body could not be read to its end.
	ReasonBodyUnreadable clientlib.Reason = "BODY_UNREADABLE"
	// ReasonBodyAlreadyRead: the body was read before the guard saw it. A fault of the service.
	ReasonBodyAlreadyRead clientlib.Reason = "BODY_ALREADY_READ"
	// ReasonNoOperation: the guard cannot tell which route it is. A fault of the service.
	ReasonNoOperation clientlib.Reason = "NO_OPERATION"
	// ReasonFailed: it failed for good, by the word of an operator or of a recovery.
	ReasonFailed clientlib.Reason = "FAILED"
)

// DefaultProblemBase is what the type URIs of problems begin with; the reason follows, as "key-reused".
const DefaultProblemBase = "https://github.com/idemd/idemd/blob/main/docs/http.md#problem-"

// Problem is the body of a refusal: RFC 9457, as application/problem+json.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Reason is the stable word to switch on: that of clientlib, or of this package.
	Reason clientlib.Reason `json:"reason"`
	// Rule is what a key breaks.
	Rule string `json:"rule,omitempty"`
	// OriginalTime is when it was done, with ANSWER_NOT_KEPT.
	OriginalTime string `json:"original_time,omitempty"`
	// ResourceType and ResourceID point to what it made.
	ResourceType string `json:"resource_type,omitempty"`
	ResourceID   string `json:"resource_id,omitempty"`
}

// problemKind is how a reason looks in HTTP.
type problemKind struct {
	status int
	title  string
	// retry says that the same request, later, may fare better: Retry-After is set.
	retry bool
}

var problemKinds = map[clientlib.Reason]problemKind{
	clientlib.ReasonKeyRequired:       {http.StatusBadRequest, "The idempotency key is missing", false},
	clientlib.ReasonInvalidKey:        {http.StatusBadRequest, "The idempotency key is not valid", false},
	ReasonBodyUnreadable:              {http.StatusBadRequest, "The body could not be read", false},
	clientlib.ReasonNoPrincipal:       {http.StatusForbidden, "The caller is not known", false},
	clientlib.ReasonPermissionDenied:  {http.StatusForbidden, "The idempotency key is somebody else's", false},
	clientlib.ReasonInProgress:        {http.StatusConflict, "A request with this idempotency key is being processed", true},
	clientlib.ReasonClaimLost:         {http.StatusConflict, "Another attempt took over", true},
	clientlib.ReasonAbandoned:         {http.StatusConflict, "It is not known what came of an earlier attempt", false},
	clientlib.ReasonExpired:           {http.StatusGone, "The answer is no longer kept", false},
	clientlib.ReasonAnswerNotKept:     {http.StatusGone, "It was done, and its answer was not kept", false},
	ReasonBodyTooLarge:                {http.StatusRequestEntityTooLarge, "The body is too large", false},
	clientlib.ReasonKeyReused:         {http.StatusUnprocessableEntity, "The idempotency key was used for another request", false},
	clientlib.ReasonQuota:             {http.StatusTooManyRequests, "Too many requests are waiting", true},
	clientlib.ReasonLedgerUnavailable: {http.StatusServiceUnavailable, "The request was not carried out", true},
	clientlib.ReasonStoreUnavailable:  {http.StatusServiceUnavailable, "The request was not carried out", true},
	clientlib.ReasonDraining:          {http.StatusServiceUnavailable, "The request was not carried out", true},
	clientlib.ReasonInternal:          {http.StatusServiceUnavailable, "The request was not carried out", true},
	clientlib.ReasonBadRow:            {http.StatusInternalServerError, "The ledger cannot use its record of this request", false},
	clientlib.ReasonHashIncomparable:  {http.StatusInternalServerError, "The service cannot compare this request with the first one", false},
	ReasonBodyAlreadyRead:             {http.StatusInternalServerError, "The service is not set up correctly", false},
	ReasonNoOperation:                 {http.StatusInternalServerError, "The service is not set up correctly", false},
	ReasonFailed:                      {0, "It failed before, for good", false},
}

// refused gives the problem of a refusal.
func (g *guard) refused(e *clientlib.Error) (Problem, time.Duration) {
	reason := e.Reason
	if reason == "" {
		// The time was up, or something between the ledger and us said no: the ledger was not asked.
		reason = clientlib.ReasonLedgerUnavailable
	}
	kind, known := problemKinds[reason]
	if !known {
		// The ledger does not take our tenant, operation or fingerprint: that is not the caller's doing.
		kind = problemKind{http.StatusInternalServerError, "The service is not set up correctly", false}
	}
	p := Problem{
		Type: g.problemType(reason), Title: kind.title, Status: kind.status, Detail: e.Message, Reason: reason, Rule: e.Rule,
		OriginalTime: e.Metadata["original_time"], ResourceType: e.Metadata["resource_type"], ResourceID: e.Metadata["resource_id"],
	}
	if !kind.retry {
		return p, 0
	}
	return p, max(e.RetryAfter, time.Second)
}

func (g *guard) problemType(reason clientlib.Reason) string {
	return g.ProblemBase + strings.ReplaceAll(strings.ToLower(string(reason)), "_", "-")
}

// sendProblem sends a problem as the answer.
func sendProblem(w http.ResponseWriter, p Problem, retryAfter time.Duration) {
	body, err := json.Marshal(p)
	if err != nil {
		// Strings always marshal.
		body = []byte(`{}`)
	}
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set("Content-Language", "en")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Del("Content-Encoding")
	header.Del("Content-Length")
	if retryAfter > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64((retryAfter+time.Second-1)/time.Second), 10))
	}
	setLocation(header, p.ResourceType, p.ResourceID)
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// problemOf reads an error that may be a refusal.
func problemOf(err error) *clientlib.Error {
	var e *clientlib.Error
	if errors.As(err, &e) {
		return e
	}
	return &clientlib.Error{Reason: clientlib.ReasonInternal, Message: "the request was not carried out"}
}
