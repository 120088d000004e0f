package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemd/idemd/ledger"
)

// class is what an error means for the caller of a [Store].
type class int

const (
	// unavailable: it certainly did not happen, and trying again at once will not help.
	unavailable class = iota + 1
	// unknown: it may have happened.
	unknown
	// contended: it certainly did not happen, and trying again can help.
	contended
	// badRow: it certainly did not happen, and the row is the fault.
	badRow
	// unsent: the connection was found broken before anything was sent. Another one may be sound.
	unsent
)

func (c class) sentinel() error {
	switch c {
	case unknown:
		return ledger.ErrUnknown
	case contended:
		return ledger.ErrContended
	case badRow:
		return ledger.ErrBadRow
	default:
		return ledger.ErrUnavailable
	}
}

// kind says whether a statement changes anything: the outcome of a read is never unknown.
type kind bool

const (
	reading kind = false
	writing kind = true
)

// Error is an error of the store. Its text has neither SQL nor the database's words in it; those are in [Error.Cause], for logs.
type Error struct {
	// Op is what was being done.
	Op string
	// Code is the SQLSTATE, if the database gave one.
	Code string
	// Reason is what an operator should know, if there is something to know.
	Reason string

	class class
	cause error
}

func (e *Error) Error() string {
	text := "sqlstore: " + e.Op
	if sentinel := e.class.sentinel(); errors.Is(e, sentinel) {
		text += ": " + sentinel.Error()
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.Code != "" {
		text += " (SQLSTATE " + e.Code + ")"
	}
	return text
}

// Unwrap gives the class, one of [ledger.ErrUnavailable], [ledger.ErrUnknown], [ledger.ErrContended] and [ledger.ErrBadRow], and the context's error if
// the caller's context ended. Where nothing was done because of that, it gives the context's error alone: the store may be there.
func (e *Error) Unwrap() []error {
	var ended *contextEndedError
	switch {
	case !errors.As(e.cause, &ended):
		return []error{e.class.sentinel()}
	case e.class == unavailable:
		return []error{ended.err}
	default:
		return []error{e.class.sentinel(), ended.err}
	}
}

// Cause is the driver's error. It can hold SQL and the database's own text, and is for logs only.
func (e *Error) Cause() error { return e.cause }

// contextEndedError marks the end of the caller's own context, apart from the time limits that the store sets itself.
type contextEndedError struct{ err error }

func (e *contextEndedError) Error() string { return e.err.Error() }

// classify turns what the driver said about one statement into an [Error]. It is the only place that knows SQLSTATEs.
func classify(op string, k kind, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if errors.As(err, &done) {
		return done
	}
	out := &Error{Op: op, cause: err}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		out.Code = pgErr.Code
	}
	out.class = classOf(err, out.Code)
	if k == reading && (out.class == unknown || out.class == badRow) {
		out.class = unavailable // nothing was to be written: a row that cannot be read is notUsable's
	}
	return out
}

func classOf(err error, code string) class {
	var ambiguous *crdb.AmbiguousCommitError
	var exhausted *crdb.MaxRetriesExceededError
	var connecting *pgconn.ConnectError
	switch {
	case errors.As(err, &ambiguous):
		return unknown
	case errors.As(err, &exhausted):
		return contended
	case errors.As(err, &connecting):
		return unavailable
	case code != "":
		return classOfCode(code)
	case pgconn.SafeToRetry(err):
		return unsent
	default:
		// The connection broke, or a time limit of the store passed, after the statement was sent.
		return unknown
	}
}

// classOfCode reads a SQLSTATE. An error that the server reports about a statement means that its transaction was rolled back, except
// where the code says that the server itself cannot tell, or that the connection ended with it.
func classOfCode(code string) class {
	switch code {
	case "40001", "40P01", "CR000", "55P03": // serialization failure, deadlock, CockroachDB's restart, a lock not had in time
		return contended
	case "57P03", "53300": // starting up or shutting down; too many connections: refused before it began
		return unavailable
	case "40003": // statement completion unknown
		return unknown
	}
	switch code[:min(2, len(code))] {
	case "08", // connection exception
		"57", // operator intervention: cancelled, shut down, crashed
		"58", // system error
		"XX", // internal error
		"XA": // CockroachDB: range or node unavailable
		return unknown
	case "22", // data exception: a value that its type does not hold, a NUL in a text
		"23": // a constraint: CHECK, NOT NULL
		return badRow
	}
	// 54, a limit of the engine's, too: it stands for a row that is too long, which ours are not, and for a PostgreSQL that has run out of transaction ids and
	// refuses every write.
	return unavailable
}

func hasCode(err error, codes ...string) bool {
	var pgErr *pgconn.PgError
	if !errors.As(causeOf(err), &pgErr) {
		return false
	}
	for _, code := range codes {
		if pgErr.Code == code {
			return true
		}
	}
	return false
}

func causeOf(err error) error {
	var e *Error
	if errors.As(err, &e) && e.cause != nil {
		return e.cause
	}
	return err
}

// isLocked says whether a statement gave up at once, or after the time it was to wait at most, for a lock. Then nothing happened.
func isLocked(err error) bool { return hasCode(err, "55P03") }

func isUndefinedTable(err error) bool { return hasCode(err, "42P01") }

func classIn(err error) class {
	var e *Error
	if errors.As(err, &e) {
		return e.class
	}
	return 0
}

// ended is the error of a call whose context ended before (unavailable) or while (unknown, for a write) its statement was under way.
func ended(ctx context.Context, op string, c class) error {
	return &Error{Op: op, class: c, Reason: ctx.Err().Error(), cause: &contextEndedError{ctx.Err()}}
}

// classified is classify, minding that the driver reports the end of the caller's context as an error of its own.
func (s *Store) classified(ctx context.Context, op string, k kind, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		c := unavailable
		if k == writing && !pgconn.SafeToRetry(err) {
			c = unknown
		}
		return ended(ctx, op, c)
	}
	out := classify(op, k, err)
	s.log.LogAttrs(ctx, logLevel(out), "statement failed", attrs(out, err)...)
	return out
}

func retriesExhausted(op string, last error, tries int) error {
	e := &Error{Op: op, class: contended, cause: causeOf(last), Reason: fmt.Sprintf("%d tries", tries)}
	var lastErr *Error
	if errors.As(last, &lastErr) {
		e.Code = lastErr.Code
	}
	return e
}
