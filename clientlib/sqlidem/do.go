package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/internal/sqldb"
	"github.com/idemd/idemd/ledger"
)

// Work is what is to be done once: statements in tx. It may be run several times, where other transactions get in the way (SQLSTATE 40001 and
// 40P01), each time on a fresh or rolled-back transaction, so what it does outside of tx must bear that. It must not end the transaction, and
// must return the errors of its statements, wrapped with %w or as they are.
type Work[T any] func(ctx context.Context, tx T) (clientlib.Response, error)

// Rules say what is kept of an answer, and for how long.
type Rules struct {
	// Retention is how long an answer is replayed, counted from when it was given. From 2 s to 10 years. Default: 7 days.
	Retention time.Duration
	// Tombstone is how long after that a late retry is still recognised, and refused EXPIRED. After it the key is new again. Default: as
	// long as Retention. Negative: not at all.
	Tombstone time.Duration
	// MaxResponseBytes is up to which length a body is kept, at most 8 MiB. A longer one goes to its first caller only; a retry is told
	// [clientlib.ErrAnswerNotKept] and is not run. Default: 1 MiB.
	MaxResponseBytes int64
	// KeepMetadata are the names of response metadata that are kept, lower case. Default: none.
	KeepMetadata []string
}

// Validate says what is wrong with the rules, or nil.
func (r Rules) Validate() error {
	if refusal := r.policy().Validate(ledger.Clamp{}); refusal != nil {
		return refusalOf(refusal)
	}
	if r.Retention < 0 || r.Retention > 0 && r.Retention < ledger.MinRetention {
		return invalid(clientlib.ReasonInvalidPolicy, "Rules.Retention", "must be at least 2 s")
	}
	return nil
}

// policy is the rules in the decision table's words. An entry that is found pending is one whose work got round its transaction: it is
// held, and never run again by itself.
func (r Rules) policy() *ledger.Policy {
	p := &ledger.Policy{
		Tenant: "*", Operation: "*", Horizons: ledger.Horizons{ClientRetry: r.Retention}, Lease: workLease, MaxAttempts: onlyAttempt,
		OnAbandoned: ledger.Hold, MaxResponseBytes: r.MaxResponseBytes, MetadataAllow: r.KeepMetadata,
	}
	if r.Tombstone != 0 {
		tombstone := max(r.Tombstone, 0)
		p.Tombstone = &tombstone
	}
	return p
}

// Options say how one Do goes. The zero value is right for most.
type Options struct {
	// Wait is how long to wait while somebody else is at it, before the caller is told [clientlib.ErrInProgress]. It bounds the wait for each
	// transaction in the way; where one fails and another follows, waiting begins anew within one statement. The caller's deadline bounds
	// all of it. On CockroachDB it bounds the claiming statement as a whole, its own work included, and is at least 500 ms. Default: 1 s.
	// Negative: not at all.
	Wait time.Duration
	// Rules say what is kept, and for how long.
	Rules Rules
	// Classes says which errors of the work are final, by their gRPC code, beside those marked with [clientlib.Final]. Everything that is not
	// final rolls back all. Default: no others.
	Classes clientlib.Classes
	// OtherFingerprint is a second fingerprint of the same request by another algorithm, while a service moves from one to the next.
	// Default: none.
	OtherFingerprint fingerprint.Fingerprint
	// Isolation is the transaction's. Default: the database's.
	Isolation sql.IsolationLevel
}

const defaultWait = time.Second

// Validate says what is wrong with the options, or nil.
func (o Options) Validate() error {
	if o.Wait > 24*time.Hour {
		return errors.New("sqlidem: Options.Wait must be at most 24 h")
	}
	return o.Rules.Validate()
}

// Do runs work for ref unless it was done before, and keeps what came of it, in one transaction: claim, mutation and answer commit together. It
// may be called any number of times, anywhere, at the same time. request is the fingerprint of what is asked; the same key with
// another one is refused [clientlib.ErrKeyReused].
//
// A duplicate waits for the transaction that is at it (Options.Wait), and gets its answer, marked as a replay with the original's time. Where
// work returns [clientlib.Final] of an error, its mutation is rolled back and the failure is kept: every retry gets it, as a
// [*clientlib.ReplayedFailure]. Any other error rolls all back, and the next Do runs as if this one had not been. In both cases the caller
// gets the error of work as it is.
//
// All other errors are or wrap a [*clientlib.Error], except those that the database raises against the mutation when it commits (a deferred
// constraint), which come as they are. Where nobody can find out whether a commit took place, the error is
// [clientlib.ErrStoreUnavailable]; asking again with the same key is safe and tells.
func Do[T any](
	ctx context.Context, db *DB[T], ref clientlib.Ref, request fingerprint.Fingerprint, work Work[T], options Options,
) (clientlib.Result, error) {
	refused := clientlib.Result{Outcome: clientlib.Refused}
	if err := options.Validate(); err != nil {
		return refused, err
	}
	fingerprints := []fingerprint.Fingerprint{request}
	if options.OtherFingerprint.Algorithm != "" {
		fingerprints = append(fingerprints, options.OtherFingerprint)
	}
	if err := validateFingerprints(fingerprints); err != nil {
		return refused, err
	}
	if r := refOf(ref).Validate(); r != nil {
		return refused, refusalOf(r)
	}
	return newRun(db, refOf(ref), fingerprints, work, options).do(ctx)
}

// run is one Do.
type run[T any] struct {
	db      *DB[T]
	work    Work[T]
	options Options
	rules   *ledger.Rules
	begin   ledger.BeginDecision
	until   time.Time // until when others are waited for

	// What the latest run of the transaction came to. seen is set with a verdict that is no grant.
	seen     *ledger.Entry
	verdict  ledger.Verdict
	response clientlib.Response
	workErr  error // a final failure
}

func newRun[T any](db *DB[T], ref ledger.Ref, fingerprints []fingerprint.Fingerprint, work Work[T], options Options) *run[T] {
	scope := scopeSecret.Scope(ref)
	wait := options.Wait
	if wait == 0 {
		wait = defaultWait
	}
	return &run[T]{
		db: db, work: work, options: options, rules: options.Rules.policy().Rules(ledger.Clamp{}),
		begin: ledger.BeginDecision{
			Scope: scope, Ref: ref, Fingerprints: toFingerprints(fingerprints), IDHash: scopeSecret.AttemptID(scope, uuid.New()), Mode: ledger.Run,
		},
		until: time.Now().Add(max(wait, 0)),
	}
}

// errNoGrant has a transaction rolled back in which there is nothing to do: run.verdict says why.
var errNoGrant = errors.New("sqlidem: no grant")

func (r *run[T]) do(ctx context.Context) (clientlib.Result, error) {
	err := r.db.transact(ctx, r.options.Isolation, func(s *session[T]) error { return r.attempt(ctx, ctx, s, func() {}) })
	if kindOf(err) == unknown {
		return r.readBack(ctx, err)
	}
	return r.outcome(ctx, err)
}

// readBack finds out what became of a commit whose outcome is unknown, by claiming again under the same attempt id. The claim waits for
// the first transaction, should it still be under way. Where the claim is granted, that one is certainly rolled back, and the work is
// run again; else the row says whose answer it holds. The caller's end does not cut the search short.
func (r *run[T]) readBack(ctx context.Context, cause error) (clientlib.Result, error) {
	search, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.db.config.CommitTimeout)
	defer cancel()
	for n := 1; ; n++ {
		response, workErr := r.response, r.workErr
		granted, err := r.again(ctx, search)
		switch {
		case kindOf(err) == unknown: // of the second commit, and so on
			cause = err
		case granted:
			return r.outcome(ctx, err)
		case kindOf(err) != 0 || r.verdict.Outcome == ledger.InProgress:
			r.response, r.workErr = response, workErr
		case r.seen != nil && r.seen.Last.IDHash == r.begin.IDHash && r.seen.State != ledger.Pending:
			r.response, r.workErr = response, workErr
			return r.executed()
		default:
			return r.outcome(ctx, err)
		}
		if !sqldb.BackOff(search, n) {
			return clientlib.Result{Outcome: clientlib.Refused}, storeRefusal(context.WithoutCancel(ctx),
				"whether the work was committed is not known; ask again with the same key", errors.Join(cause, err))
		}
	}
}

// again runs the transaction once more, until the end of search while the claim is not granted, and for the caller from then on.
func (r *run[T]) again(ctx, search context.Context) (granted bool, err error) {
	until, _ := search.Deadline()
	r.until = until
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	unlink := context.AfterFunc(search, cancel)
	defer func() { unlink() }()
	err = r.db.transact(own, r.options.Isolation, func(s *session[T]) error {
		return r.attempt(own, ctx, s, func() {
			if !granted {
				granted = true
				unlink()
				unlink = context.AfterFunc(ctx, cancel)
			}
		})
	})
	return granted, err
}

// outcome is what the caller gets for the end of a transaction that is known.
func (r *run[T]) outcome(ctx context.Context, err error) (clientlib.Result, error) {
	refused := clientlib.Result{Outcome: clientlib.Refused}
	var failed *workError
	switch {
	case err == nil:
		return r.executed()
	case errors.As(err, &failed):
		return clientlib.Result{Outcome: clientlib.Executed, Attempt: onlyAttempt}, failed.err
	case errors.Is(err, errNoGrant):
		return r.found()
	case kindOf(err) == contended:
		return refused, storeRefusal(ctx, "other transactions got in the way, and nothing was done", err)
	case kindOf(err) == broken:
		return refused, storeRefusal(ctx, "the database could not do it, and nothing was done", err)
	default:
		return clientlib.Result{Outcome: clientlib.Executed, Attempt: onlyAttempt}, err
	}
}

func (r *run[T]) executed() (clientlib.Result, error) {
	return clientlib.Result{Outcome: clientlib.Executed, Response: r.response, Attempt: onlyAttempt, Recorded: true}, r.workErr
}

// found is what the caller gets where the work was not run.
func (r *run[T]) found() (clientlib.Result, error) {
	switch e := r.seen; r.verdict.Outcome {
	case ledger.Replayed:
		original := e.SettledAt.Wall()
		result := clientlib.Result{Outcome: clientlib.Replayed, Response: fromLedger(e.Response), Attempt: e.SettledBy, OriginalTime: original, Recorded: true}
		if result.Response.BodyOmitted {
			return result, answerNotKept(result.Response, original)
		}
		return result, nil
	case ledger.FailedAs:
		f := replayedFailure(e.Failure, e.SettledBy, e.SettledAt.Wall())
		return clientlib.Result{Outcome: clientlib.ReplayedAsFailure, Attempt: f.Attempt, OriginalTime: f.OriginalTime, Recorded: true}, f
	case ledger.InProgress:
		return clientlib.Result{Outcome: clientlib.InProgress}, inProgress()
	default:
		return clientlib.Result{Outcome: clientlib.Refused}, refusalOf(r.verdict.Refusal)
	}
}

// workError carries an error of the work through the end of its transaction.
type workError struct{ err error }

func (e *workError) Error() string { return e.err.Error() }
func (e *workError) Unwrap() error { return e.err }

// attempt is one run of the transaction. Its own statements go by own until the work begins, and by the session's control from its end.
func (r *run[T]) attempt(own, caller context.Context, s *session[T], granted func()) error {
	r.seen, r.verdict, r.response, r.workErr = nil, ledger.Verdict{}, clientlib.Response{}, nil
	if err := s.waitAtMost(own, time.Until(r.until)); err != nil {
		return err
	}
	entry, err := r.claim(own, s)
	if err != nil {
		return err
	}
	if err := s.begun(own); err != nil {
		return err
	}
	granted()
	response, err := r.work(caller, s.tx)
	s.over()
	if err != nil {
		if sqldb.Retryable(err) {
			return &failure{contended, err}
		}
		if r.options.Classes.ClassOf(err) != clientlib.FinalFailure {
			return &workError{err}
		}
		if err := s.t.Script(s.control, rollbackToWork); err != nil {
			return statementFailure(err)
		}
		r.workErr = err
	} else {
		r.response = response
	}
	return r.settle(s, entry)
}

// claimTries bounds how often a claim begins anew because the row came or went between two statements.
const claimTries = 20

// claim returns the entry with this run's claim on it, or errNoGrant and a verdict.
func (r *run[T]) claim(ctx context.Context, s *session[T]) (*ledger.Entry, error) {
	for range claimTries {
		if w := ledger.Speculate(r.begin, ledger.Env{Rules: r.rules}); w != nil {
			entry, err := r.grant(ctx, s, nil, w, s.dialect.claim, claimArgs(w.Put))
			if entry != nil || err != nil {
				return entry, err
			}
		}
		now, seen, err := r.read(ctx, s)
		if err != nil {
			return nil, err
		}
		r.seen, r.verdict = seen, ledger.Decide(seen, r.begin, ledger.Env{Now: now, Rules: r.rules})
		w := r.verdict.Write
		switch {
		case r.verdict.Outcome != ledger.Granted:
			return nil, errNoGrant
		case w.Guard.Kind == ledger.GuardAbsent:
			continue // swept between the two statements
		}
		entry, err := r.grant(ctx, s, seen, w, s.dialect.replace, replaceArgs(w))
		if entry != nil || err != nil {
			return entry, err
		}
	}
	return nil, &failure{contended, errors.New("the row came and went")}
}

// grant writes a granted claim, and returns the entry as it then stands: nil where its guard did not hold.
func (r *run[T]) grant(ctx context.Context, s *session[T], old *ledger.Entry, w *ledger.Write, text string, args []any) (*ledger.Entry, error) {
	var incarnation, revision int64
	err := s.t.Scan(ctx, text, args, &incarnation, &revision)
	switch {
	case errors.Is(err, sqldb.ErrNoRow):
		return nil, nil
	case s.dialect.waitedTooLong(err):
		r.verdict = ledger.Verdict{Outcome: ledger.InProgress}
		return nil, errNoGrant
	case err != nil:
		return nil, statementFailure(err)
	}
	entry, ok := w.Apply(old, ledger.Time(incarnation))
	if !ok || entry.Revision != revision {
		return nil, &failure{broken, errors.New("a claim was written that the decision table does not grant")}
	}
	return entry, nil
}

func (r *run[T]) read(ctx context.Context, s *session[T]) (ledger.Time, *ledger.Entry, error) {
	var now int64
	var row entryRow
	if err := s.t.Scan(ctx, s.dialect.read, scopeArgs(r.begin.Ref), append([]any{&now}, row.targets()...)...); err != nil {
		if s.dialect.waitedTooLong(err) { // CockroachDB's readers wait for writers
			r.verdict = ledger.Verdict{Outcome: ledger.InProgress}
			return 0, nil, errNoGrant
		}
		return 0, nil, statementFailure(err)
	}
	entry, err := row.entry(r.begin.Scope, r.begin.Ref)
	if err != nil {
		return 0, nil, &failure{broken, err}
	}
	return ledger.Time(now), entry, nil
}

// settle writes the answer, or the failure that is one.
func (r *run[T]) settle(s *session[T], entry *ledger.Entry) error {
	report := ledger.ReportDecision{
		Scope: r.begin.Scope, Issued: true,
		Claim: ledger.Claim{Incarnation: entry.Incarnation, Attempt: onlyAttempt, IDHash: r.begin.IDHash},
	}
	if r.workErr != nil {
		f := finalFailure(r.workErr)
		report.Failure, report.Report = r.rules.TrimFailure(f), ledger.ReportDigest(nil, f)
	} else {
		response := toLedger(r.response)
		report.Response, report.Report = r.rules.TrimResponse(response), ledger.ReportDigest(response, nil)
	}
	// The transaction is the lease, so the time since the claim does not count.
	verdict := ledger.Decide(entry, report, ledger.Env{Now: entry.Last.BeganAt, Rules: r.rules})
	if verdict.Outcome != ledger.Done {
		return &failure{broken, errors.New("the decision table does not take the answer of a claim it granted")}
	}
	var now int64
	err := s.t.Scan(s.control, s.dialect.settle, settleArgs(entry, verdict.Write.Settle), &now)
	if errors.Is(err, sqldb.ErrNoRow) {
		return &failure{broken, errors.New("the claim is gone from the table before the work was over")}
	}
	return statementFailure(err)
}
