package httpidem

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/clientlib"
)

// Classes is a table from HTTP statuses to what they mean for the next try. 2xx and 3xx are completed and must not be in it.
// What it does not name is Unknown.
type Classes map[int]clientlib.Class

// DefaultClasses is the table that counts where a service does not say otherwise. Statuses that say "this request cannot
// succeed" are final; refusals before the work are retryable; all that can also mean "it broke off half-way" is unknown.
// The result is a copy, to be changed at will.
func DefaultClasses() Classes {
	table := Classes{}
	for _, status := range []int{
		http.StatusBadRequest, http.StatusPaymentRequired, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable,
		http.StatusConflict, http.StatusGone, http.StatusLengthRequired, http.StatusPreconditionFailed,
		http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusUnsupportedMediaType,
		http.StatusRequestedRangeNotSatisfiable, http.StatusExpectationFailed, http.StatusUnprocessableEntity,
		http.StatusUpgradeRequired, http.StatusPreconditionRequired, http.StatusRequestHeaderFieldsTooLarge,
		http.StatusUnavailableForLegalReasons,
	} {
		table[status] = clientlib.FinalFailure
	}
	for _, status := range []int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusMisdirectedRequest,
		http.StatusTooEarly, http.StatusTooManyRequests,
	} {
		table[status] = clientlib.Retryable
	}
	return table
}

func (c Classes) validate() error {
	for status, class := range c {
		if status < 400 || status > 599 {
			return fmt.Errorf("httpidem: a table of classes has the status %d; only those from 400 to 599 are failures", status)
		}
		if class < clientlib.Unknown || class > clientlib.Retryable {
			return fmt.Errorf("httpidem: a table of classes gives the status %d the class %d, which there is not", status, class)
		}
	}
	return nil
}

// settlement is what a handler's answer means.
type settlement int

const (
	unknown settlement = iota
	completed
	final
	retryable
)

// settles judges an answer: an explicit word first, then the status.
func (c Classes) settles(a *capture, word settlement, streamBroke bool) settlement {
	switch {
	case word == retryable:
		return retryable
	case refusedByAGuard(a.head):
		// It speaks of a ledger that was asked further on, and not of the work: another try can end otherwise.
		return unknown
	case word == final && a.status < 400:
		return completed
	case word == final:
		return final
	case streamBroke:
		return unknown
	case a.status < 400:
		return completed
	}
	switch c[a.status] {
	case clientlib.FinalFailure:
		if a.head.Get("Retry-After") != "" {
			return unknown // an answer that asks for another try is not the last word
		}
		return final
	case clientlib.Retryable:
		return retryable
	default:
		return unknown
	}
}

// refusedByAGuard says whether a handler passes on what a guard of ours, further on, has refused.
func refusedByAGuard(header http.Header) bool {
	outcome := header.Get(OutcomeHeader)
	return outcome == string(clientlib.Refused) || outcome == string(clientlib.InProgress)
}

// spoken is the word that a handler gave on its own answer.
type spoken struct{ word atomic.Int64 }

func (s *spoken) get() settlement { return settlement(s.word.Load()) }

type spokenContext struct{}

// NothingHappened says, of a guarded request that is being handled with this context, that its effect has not happened and
// will not, whatever the status: the next try simply runs. Say it only where that is certain. Without a guard it does nothing.
// The later of several words counts.
func NothingHappened(ctx context.Context) { say(ctx, retryable) }

// Final says, of a guarded request that is being handled with this context, that its answer is the answer for good, whatever
// the status: every retry with the same key gets it. Without a guard it does nothing. The later of several words counts.
func Final(ctx context.Context) { say(ctx, final) }

func say(ctx context.Context, word settlement) {
	if s, ok := ctx.Value(spokenContext{}).(*spoken); ok {
		s.word.Store(int64(word))
	}
}

// codeOf is the gRPC code under which operators find a failure that was an HTTP status.
func codeOf(status int) codes.Code {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusUnsupportedMediaType:
		return codes.InvalidArgument
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound, http.StatusGone:
		return codes.NotFound
	case http.StatusConflict:
		return codes.AlreadyExists
	case http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusNotImplemented, http.StatusMethodNotAllowed:
		return codes.Unimplemented
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return codes.Unavailable
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return codes.DeadlineExceeded
	}
	if status < 500 {
		return codes.FailedPrecondition
	}
	return codes.Unknown
}

// statusOf is the HTTP status of a failure that never was one: an operator gave it, or a hook found it out.
func statusOf(code codes.Code) int {
	switch code {
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.FailedPrecondition, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	default:
		return http.StatusInternalServerError
	}
}
