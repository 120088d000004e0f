package clientlib

import (
	"errors"
	"maps"
	"strings"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Class says what an error of guarded work means for the next try.
type Class int

const (
	// Unknown: nobody knows whether the effect happened. The claim is given up, and the next attempt is told.
	Unknown Class = iota
	// FinalFailure: the failure is the answer, and every retry gets it.
	FinalFailure
	// Retryable: nothing happened. The next attempt simply runs.
	Retryable
)

// String gives the word that metrics and docs use.
func (c Class) String() string {
	switch c {
	case FinalFailure:
		return "final"
	case Retryable:
		return "retryable"
	default:
		return "unknown"
	}
}

func (c Class) disposition() idemv1.Disposition {
	switch c {
	case FinalFailure:
		return idemv1.Disposition_DISPOSITION_FINAL
	case Retryable:
		return idemv1.Disposition_DISPOSITION_RETRYABLE
	default:
		return idemv1.Disposition_DISPOSITION_UNKNOWN
	}
}

// Classes is a table from gRPC codes to what they mean. Codes that it does not name are Unknown, also numbers that gRPC does
// not define. OK is no failure and must not be in it.
type Classes map[codes.Code]Class

// ServerClasses is the table for work in this process: what a handler or a Do returns. Codes that say "this request cannot
// succeed" are final; refusals before the work are retryable; all that can also mean "it broke off half-way" is unknown.
// The result is a copy, to be changed at will.
func ServerClasses() Classes {
	c := finalCodes()
	maps.Copy(c, Classes{codes.Unauthenticated: Retryable, codes.PermissionDenied: Retryable, codes.ResourceExhausted: Retryable})
	return c
}

// ClientClasses is the table for work in another process. What the other side refused it may have refused half-way, and a
// proxy may have said it: nothing is retryable by its code alone. The result is a copy, to be changed at will.
func ClientClasses() Classes { return finalCodes() }

func finalCodes() Classes {
	return Classes{
		codes.InvalidArgument: FinalFailure, codes.NotFound: FinalFailure, codes.AlreadyExists: FinalFailure,
		codes.FailedPrecondition: FinalFailure, codes.OutOfRange: FinalFailure, codes.Unimplemented: FinalFailure,
	}
}

func (c Classes) validate() error {
	for code, class := range c {
		if code == codes.OK {
			return invalidConfig("a table of classes must not say what OK means")
		}
		if class < Unknown || class > Retryable {
			return invalidConfig("a table of classes gives %v the class %d, which there is not", code, class)
		}
	}
	return nil
}

// classified carries an explicit word about an error. It reads as the error does, its gRPC status included.
type classified struct {
	error
	class Class
}

func (c *classified) Unwrap() error { return c.error }

func (c *classified) GRPCStatus() *status.Status { return status.Convert(c.error) }

// NothingHappened marks an error of guarded work: the effect has not happened and will not, so the next attempt simply runs.
// Say it only where that is certain; "I sent it and heard nothing" is not. Nil stays nil. To callers it reads as err does.
func NothingHappened(err error) error { return classify(err, Retryable) }

// Final marks an error of guarded work: it is the answer for good, and every retry with the same key gets it. Nil stays nil.
// To callers it reads as err does.
func Final(err error) error { return classify(err, FinalFailure) }

func classify(err error, class Class) error {
	if err == nil {
		return nil
	}
	return &classified{error: err, class: class}
}

// ClassOf says what err means, by an explicit word or else by the table. A status that speaks of a ledger is never final:
// it is about the asking, and another try can end otherwise.
func (c Classes) ClassOf(err error) Class {
	var marked *classified
	explicit := errors.As(err, &marked)
	s := statusOf(err)
	if ofOurDomain(s) {
		if explicit && marked.class == Retryable {
			return Retryable
		}
		return Unknown
	}
	if explicit {
		return marked.class
	}
	return c[s.Code()]
}

// statusOf is the status as which err is reported and replayed: never OK.
func statusOf(err error) *status.Status {
	s := status.Convert(err)
	if s.Code() == codes.OK {
		return status.New(codes.Unknown, err.Error())
	}
	return s
}

// reported is what the ledger is told of an error. Of a status that speaks of a ledger only that it was one: replayed, it
// would be taken for a refusal of the ledger that replays it. A message that is not UTF-8, such as one that quotes what a
// caller sent, could not be told at all.
func reported(err error) *spb.Status {
	s := statusOf(err)
	if ofOurDomain(s) {
		return &spb.Status{Code: int32(s.Code()), Message: "the work was refused by a ledger that it asked itself"}
	}
	told := s.Proto()
	told.Message = strings.ToValidUTF8(told.GetMessage(), "\ufffd")
	return told
}

// fitFail leaves the details out of a report that is over the message limit, and then the message too.
func fitFail(request *idemv1.FailRequest, size func(*idemv1.FailRequest) int, limit int) *idemv1.FailRequest {
	if size(request) <= limit {
		return request
	}
	message := request.GetStatus().GetMessage()
	fitted := &idemv1.FailRequest{
		Ref: request.GetRef(), ClaimToken: request.GetClaimToken(), Disposition: request.GetDisposition(),
		Status:         &spb.Status{Code: request.GetStatus().GetCode(), Message: message},
		DetailsOmitted: true,
	}
	if size(fitted) > limit {
		fitted.Status.Message = "the message was over the limit of the ledger's server"
	}
	return fitted
}
