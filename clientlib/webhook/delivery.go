package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/idemd/idemd/clientlib/fingerprint"
)

// MaxIDLength is how many characters a delivery's id, and a receiver's name, may have: what the ledger takes as a key.
const (
	MaxIDLength   = 255
	maxNameLength = 128
)

// Delivery is what a sender delivered, after its signature was verified.
type Delivery struct {
	// Receiver is Config.Name of the receiver that it came to. Ids of two receivers never meet.
	Receiver string
	// ID is the same on every delivery of one event, by the sender's word.
	ID string
	// Type says what happened, as "push" or "charge.succeeded". Empty where the sender does not say.
	Type string
	// Body is the request's body as it came.
	Body []byte
	// Header has the request's headers of Config.KeepHeaders.
	Header http.Header
	// Fingerprint says what was delivered, for telling a redelivery from another event under the same id.
	Fingerprint fingerprint.Fingerprint

	// Deliveries come in any order. These are what there is to tell it by: ReceivedAt is when this receiver first had it, by its
	// own clock. SentAt is when the sender sent it, which a redelivery does later. CreatedAt is when the event happened, by the
	// sender's word. Zero where the sender does not say.
	ReceivedAt, SentAt, CreatedAt time.Time
	// Sequence is the event's place in an order of the sender's, where Sequenced. See Config.Sequence.
	Sequence  int64
	Sequenced bool
}

// Standing is how far a delivery is.
type Standing int

// The standings.
const (
	// Fresh: it was not known, and is put down now.
	Fresh Standing = iota + 1
	// Waiting: it was put down before, and its work is not over.
	Waiting
	// Done: its work is over.
	Done
	// Failed: its work failed for good, and is not done again.
	Failed
)

// String is the standing's name, as in the header [StandingHeader].
func (s Standing) String() string {
	switch s {
	case Fresh:
		return "fresh"
	case Waiting:
		return "waiting"
	case Done:
		return "done"
	case Failed:
		return "failed"
	default:
		return "unknown"
	}
}

// Handler does a delivery's work. Its context ends when the receiver stops, or when the claim on the work is lost. It carries a key
// for calls downstream, the same in every attempt (clientlib.KeyFrom).
//
// An error means that the work is to be tried again, unless it was made with clientlib.Final: then it is over. What an attempt that
// failed leaves behind is the handler's business; clientlib.NothingHappened says that there is nothing.
type Handler func(ctx context.Context, d Delivery) error

// Receipts remember deliveries from before their senders are answered until long after their work is done. [Ledger] and package
// sqlreceipts are two. It may be used by any number of goroutines and processes.
type Receipts interface {
	// Keep puts a delivery down unless its receiver and id are known. When it returns without an error the delivery is on disk: it
	// will be in Unfinished, after a crash too, until its work is over. Another fingerprint is refused with ErrOtherBody.
	Keep(ctx context.Context, d Delivery) (Standing, error)
	// Unfinished calls found for the receiver's deliveries whose work is not over, nor going on elsewhere as far as can be told.
	// It stops at the first error, found's too.
	Unfinished(ctx context.Context, receiver string, found func(id string) error) error
	// Run has work run for a delivery that was put down, unless its work is over, and remembers what came of it: Done, Failed, or
	// Waiting with the error after which it is to be tried again. Of any number of calls at the same time, anywhere, one runs work.
	// A *NotNow or ErrUndecided means that work was not run.
	Run(ctx context.Context, receiver, id string, work Handler) (Standing, error)
}

var (
	// ErrOtherBody refuses a delivery whose id came before with another body or another type. Two events carry one id, and dropping
	// the second as a repetition would lose it.
	ErrOtherBody = errors.New("webhook: this id came before with another body")
	// ErrUndecided refuses to run work of which an earlier attempt was abandoned: nobody knows whether it had its effect, and an
	// operator decides.
	ErrUndecided = errors.New("webhook: nobody knows what came of an earlier attempt; the work was not run")
	// ErrNoReceipt refuses to run work for a delivery that was never put down, or is forgotten.
	ErrNoReceipt = errors.New("webhook: there is no receipt of this delivery")
	// ErrNotKept refuses a delivery that could not be put down whole: the sender must not be told that it was.
	ErrNotKept = errors.New("webhook: the receipt could not be kept whole")
)

// NotNow is the error of work that was not run, because somebody else is at it or the receipts are out of reach. Trying again later
// is no further attempt.
type NotNow struct {
	// After is how soon to try again. Zero: nobody knows.
	After time.Duration
	// Err says why.
	Err error
}

// Error says why.
func (n *NotNow) Error() string { return fmt.Sprintf("webhook: not now: %v", n.Err) }

// Unwrap returns why.
func (n *NotNow) Unwrap() error { return n.Err }

// checkName says what is wrong with an id, a type or a receiver's name, or nil.
func checkName(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("the %s is empty", what)
	case !utf8.ValidString(s):
		return fmt.Errorf("the %s is not UTF-8", what)
	case utf8.RuneCountInString(s) > limit:
		return fmt.Errorf("the %s is longer than %d characters", what, limit)
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return fmt.Errorf("the %s has a control character in it", what)
		}
	}
	return nil
}

// fingerprintOf binds the type as well as the body: not every sender signs both, and the handler goes by both. A body in JSON counts by
// what it says and not by how it is written, because senders write it anew for each delivery.
func fingerprintOf(kind string, body []byte, hasher *fingerprint.JSONHasher) fingerprint.Fingerprint {
	inner, err := hasher.Sum(body)
	if err != nil {
		// Not JSON, or ambiguous, or empty: as it is.
		inner = fingerprint.Fingerprint{Algorithm: fingerprint.AlgorithmBytes, Hash: body}
	}
	var all fingerprint.BytesHasher
	for _, part := range []string{kind, inner.Algorithm, string(inner.Hash)} {
		_, _ = fmt.Fprintf(&all, "%d:%s", len(part), part)
	}
	sum, _ := all.Sum() // it is never empty
	return sum
}
