package workload

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Promise is something that a daemon must never break. The names stand in reports.
type Promise string

// The promises that are checked.
const (
	// OneGrant: of any number of Begins for an intent one attempt is granted, the first, and none once it is settled.
	OneGrant Promise = "one-grant"
	// SameAnswer: every retry gets the answer that was completed, marked as a replay, with the time of the original.
	SameAnswer Promise = "same-answer"
	// SameClaim: a Begin that is sent again is told the same claim, by its attempt id.
	SameClaim Promise = "same-claim"
	// ResendOK: a Complete that is sent again, or twice at once, succeeds and changes nothing.
	ResendOK Promise = "resend-ok"
	// MismatchRefused: another request under a known key is refused KEY_REUSED.
	MismatchRefused Promise = "mismatch-refused"
	// NothingLost: what was acknowledged is there, and a claim holds until it is settled.
	NothingLost Promise = "nothing-lost"
)

// Promises are all of them, in the order of reports.
func Promises() []Promise {
	return []Promise{OneGrant, SameAnswer, SameClaim, ResendOK, MismatchRefused, NothingLost}
}

// maxExamples is how many broken promises are told in words.
const maxExamples = 10

// verdicts counts what was checked and what was found broken. It is safe for concurrent use.
type verdicts struct {
	mu       sync.Mutex
	checked  map[Promise]int64
	broken   map[Promise]int64
	examples []string
}

func newVerdicts() *verdicts {
	return &verdicts{checked: map[Promise]int64{}, broken: map[Promise]int64{}}
}

// check counts a check, and what is wrong where the promise was not kept.
func (v *verdicts) check(p Promise, in *intent, kept bool, format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.checked[p]++
	if kept {
		return
	}
	v.broken[p]++
	if len(v.examples) < maxExamples {
		v.examples = append(v.examples, fmt.Sprintf("%s: key %s: %s", p, in.ref.GetKey(), fmt.Sprintf(format, args...)))
	}
}

func (v *verdicts) anyBroken() (sum int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range v.broken {
		sum += n
	}
	return sum
}

// intent is one piece of work of the load, and what is known of it.
type intent struct {
	ref      *idemv1.EntryRef
	hash     []byte
	response *idemv1.Response
	// settled is when it was settled, by the first acknowledgement.
	settled time.Time
}

// outcome says in a word what a Begin was told.
func outcome(resp *idemv1.BeginResponse, err error) string {
	switch o := resp.GetOutcome().(type) {
	case *idemv1.BeginResponse_Granted:
		return fmt.Sprintf("GRANTED, attempt %d", o.Granted.GetAttempt())
	case *idemv1.BeginResponse_Completed:
		return fmt.Sprintf("COMPLETED with %d bytes", len(o.Completed.GetResponse().GetBody()))
	case *idemv1.BeginResponse_Failed:
		return "FAILED"
	case *idemv1.BeginResponse_InProgress:
		return "IN_PROGRESS"
	}
	if err != nil {
		return err.Error()
	}
	return "nothing"
}

// answerFault says how an answer differs from what was completed; "" where it does not.
func (in *intent) answerFault(got *idemv1.Answer) string {
	want, have := in.response, got.GetResponse()
	switch {
	case !bytes.Equal(have.GetBody(), want.GetBody()):
		return fmt.Sprintf("the body differs from what was completed: %d bytes, want %d", len(have.GetBody()), len(want.GetBody()))
	case have.GetBodyOmitted():
		return "the body was not kept"
	case have.GetCode() != want.GetCode() || have.GetContentType() != want.GetContentType() || have.GetResourceId() != want.GetResourceId():
		return "code, content type or resource differ from what was completed"
	case !got.GetReplayed():
		return "it does not say that it is a replay"
	case !in.settled.IsZero() && !got.GetOriginalTime().AsTime().Equal(in.settled):
		return fmt.Sprintf("the original is of %v, and was acknowledged at %v", got.GetOriginalTime().AsTime(), in.settled)
	case got.GetAttempt() != 1:
		return fmt.Sprintf("it is of attempt %d", got.GetAttempt())
	}
	return ""
}
