package sqlidem

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/internal/sqldb"
	"github.com/idemd/idemd/ledger"
)

// kind is what the end of a transaction means.
type kind int

const (
	// broken: it was certainly not committed, and trying again at once will not help.
	broken kind = iota + 1
	// contended: it was certainly not committed, and trying again can help.
	contended
	// unknown: it may have been committed.
	unknown
)

// failure is what came of a transaction that this package could not bring to its end. Errors of the work are never wrapped in one.
type failure struct {
	kind  kind
	cause error
}

func (f *failure) Error() string { return "sqlidem: " + f.cause.Error() }
func (f *failure) Unwrap() error { return f.cause }

// kindOf looks at err itself and not into it: an error of the work may hold one of another transaction.
func kindOf(err error) kind {
	if f, ok := err.(*failure); ok { //nolint:errorlint // see above
		return f.kind
	}
	return 0
}

// statementFailure is the failure of a statement before the commit: nothing is committed.
func statementFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case kindOf(err) != 0:
		return err
	case sqldb.Retryable(err):
		return &failure{contended, err}
	default:
		return &failure{broken, err}
	}
}

// commitFailure is the failure of a commit. What the server says against it, other than that it cannot tell, is an error of the mutation, such
// as a deferred constraint: it goes to the caller as it is.
func commitFailure(err error) error {
	code := sqldb.SQLState(err)
	var ambiguous *crdb.AmbiguousCommitError
	switch {
	case err == nil:
		return nil
	case sqldb.Retryable(err):
		return &failure{contended, err}
	case pgconn.SafeToRetry(err), errors.Is(err, pgx.ErrTxCommitRollback):
		return &failure{broken, err}
	case code == "" || code == "40003" || errors.As(err, &ambiguous):
		return &failure{unknown, err}
	}
	switch code[:min(2, len(code))] {
	case "08", "57", "58", "XX", "XA": // the connection, an operator, the system, a range
		return &failure{unknown, err}
	}
	return err
}

// codeOf is the gRPC code under which a refusal travels: the same as the daemon's.
func codeOf(reason clientlib.Reason) codes.Code {
	switch reason {
	case clientlib.ReasonKeyReused, clientlib.ReasonHashIncomparable, clientlib.ReasonAbandoned, clientlib.ReasonExpired,
		clientlib.ReasonAlreadySettled, clientlib.ReasonAnswerNotKept:
		return codes.FailedPrecondition
	case clientlib.ReasonInProgress, clientlib.ReasonClaimLost:
		return codes.Aborted
	case clientlib.ReasonStoreUnavailable:
		return codes.Unavailable
	case clientlib.ReasonInternal:
		return codes.Internal
	default:
		return codes.InvalidArgument
	}
}

// refusal makes an error of clientlib's kind. FromServer: it is a word about a row that was read, not a guess.
func refusal(reason clientlib.Reason, message string) *clientlib.Error {
	return &clientlib.Error{Code: codeOf(reason), Reason: reason, Message: message, FromServer: true}
}

// refusalOf is a refusal of the decision table in clientlib's words.
func refusalOf(r *ledger.Refusal) *clientlib.Error {
	if r == nil {
		return refusal(clientlib.ReasonInternal, "a verdict without outcome")
	}
	out := refusal(clientlib.Reason(r.Reason), r.Message)
	out.Field, out.Rule, out.RetryAfter, out.Metadata = r.Field, r.Rule, r.RetryAfter, r.Metadata
	return out
}

func invalid(reason clientlib.Reason, field, rule string) *clientlib.Error {
	e := refusal(reason, field+" "+rule)
	e.Field, e.Rule = field, rule
	return e
}

const (
	busyRetryAfter  = 250 * time.Millisecond
	storeRetryAfter = time.Second
)

func inProgress() *clientlib.Error {
	e := refusal(clientlib.ReasonInProgress, "somebody else is doing this; ask again with the same key")
	e.RetryAfter = busyRetryAfter
	return e
}

// storeError is a refusal that the database is the cause of. Its text has none of the database's words in it, which can quote data; those
// are behind it, for errors.As and logs.
type storeError struct {
	refusal *clientlib.Error
	cause   error
}

func (e *storeError) Error() string { return e.refusal.Error() }

// GRPCStatus is the refusal as it travels.
func (e *storeError) GRPCStatus() *status.Status { return e.refusal.GRPCStatus() }

// Unwrap gives the refusal and its cause.
func (e *storeError) Unwrap() []error { return []error{e.refusal, e.cause} }

// storeRefusal is what the caller gets where the database did not do its part.
func storeRefusal(ctx context.Context, message string, cause error) error {
	e := refusal(clientlib.ReasonStoreUnavailable, message)
	e.FromServer = false
	e.RetryAfter = storeRetryAfter
	switch {
	case ctx.Err() != nil:
		e = &clientlib.Error{Code: codes.DeadlineExceeded, Message: "the time was up: " + message}
		if errors.Is(ctx.Err(), context.Canceled) {
			e.Code = codes.Canceled
		}
		cause = errors.Join(ctx.Err(), cause)
	case sqldb.SQLState(cause) == "42P01":
		e.RetryAfter = 0
		e.Message = "the tables are not there: run sqlidem.Migrate, or what idemd ddl prints"
	}
	return &storeError{e, cause}
}
