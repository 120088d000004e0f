package sqlidem

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/internal/sqldb"
	"github.com/idemd/idemd/ledger"
)

// DefaultReceiptRetention is how long a receipt is kept before the sweep first asks whether it is still needed. It is longer than the
// daemon's built-in policy keeps an entry, tombstone included.
const DefaultReceiptRetention = 30 * 24 * time.Hour

// ReceiptsConfig says which daemon holds the entries.
type ReceiptsConfig struct {
	// Ledger is the client of the daemon. Required.
	Ledger *clientlib.Client
	// Retention is how long a receipt is kept before [Receipts.Sweep] first asks the daemon whether its entry is gone; before that it is not
	// deleted. So this is no bound on safety, only on how often the daemon is asked: set it to over the policy's retention and tombstone together.
	// Default: DefaultReceiptRetention.
	Retention time.Duration
	// FenceWait is how long a later attempt waits for the transaction of an earlier one that is just being committed. Default: 5 s.
	FenceWait time.Duration
}

// Receipts guards work whose entry the daemon holds and whose effect is in the service's own database. The transaction of the mutation also
// writes a receipt: the entry's incarnation, the attempt's fence, the request's fingerprint and the answer. So whether an attempt that was
// abandoned had its effect can be read off:
//
//   - Each attempt after the first begins by committing its fence. From then on the transactions of earlier attempts fail, however late they
//     wake up.
//   - If there is a receipt by then, the entry is settled with it, and the work is not run.
//   - If there is none, no earlier attempt has had its effect or ever will, and the work is run.
//
// A final failure writes a receipt too, before it is reported. It may be used by any number of goroutines.
type Receipts[T any] struct {
	db     *DB[T]
	config ReceiptsConfig
}

// NewReceipts makes a guard. [Migrate] has made its table.
func NewReceipts[T any](db *DB[T], config ReceiptsConfig) (*Receipts[T], error) {
	switch {
	case db == nil:
		return nil, errors.New("sqlidem: NewReceipts needs a DB")
	case config.Ledger == nil:
		return nil, errors.New("sqlidem: ReceiptsConfig needs a Ledger")
	case config.Retention < 0 || config.FenceWait < 0:
		return nil, errors.New("sqlidem: ReceiptsConfig.Retention and FenceWait must not be negative")
	}
	if config.Retention == 0 {
		config.Retention = DefaultReceiptRetention
	}
	if config.FenceWait == 0 {
		config.FenceWait = 5 * time.Second
	}
	return &Receipts[T]{db: db, config: config}, nil
}

// ReceiptWork is [Work] with the daemon's claim: for the fence, and the key of calls downstream. Its whole effect must be in tx; what it does
// elsewhere is at level 3.
type ReceiptWork[T any] func(ctx context.Context, tx T, claim clientlib.Claim) (clientlib.Response, error)

// ReceiptOptions say how one Do goes. The zero value is right for most.
type ReceiptOptions struct {
	// Lease, Wait and Request as in [clientlib.Options].
	Lease, Wait time.Duration
	Request     any
	// Classes, OtherFingerprint and Isolation as in [Options].
	Classes          clientlib.Classes
	OtherFingerprint fingerprint.Fingerprint
	Isolation        sql.IsolationLevel
}

// Do runs work for ref unless it was done before. It is [clientlib.Client.Do] with the choice for abandoned attempts made: the receipt
// says what became of them. request is the fingerprint of what is asked.
//
// An error of work that is not final rolls the mutation back, and is reported as "nothing happened": the next attempt runs. Each such
// attempt counts towards the policy's max_attempts, past which the failure stands. Its error comes as it is. Where another attempt took over
// while the work ran, nothing of it was committed, and the caller gets that one's answer, or [clientlib.ErrClaimLost].
func (r *Receipts[T]) Do(
	ctx context.Context, ref clientlib.Ref, request fingerprint.Fingerprint, work ReceiptWork[T], options ReceiptOptions,
) (clientlib.Result, error) {
	g := &guarded[T]{receipts: r, work: work, options: options}
	result, err := r.config.Ledger.Do(ctx, ref, request, g.run, clientlib.Options{
		Abandoned: clientlib.Recover(g.recover), Lease: options.Lease, Wait: options.Wait, OtherFingerprint: options.OtherFingerprint,
		Request: options.Request,
	})
	return g.outcome(ctx, result, err)
}

// Recover settles an abandoned or held intent by its receipt, without running anything: for a job, or an operator's tool. Where there is no
// receipt the entry is opened for the next Do, and the outcome is Refused without an error. See [clientlib.Client.Recover].
func (r *Receipts[T]) Recover(ctx context.Context, ref clientlib.Ref) (clientlib.Result, error) {
	g := &guarded[T]{receipts: r}
	result, err := r.config.Ledger.Recover(ctx, ref, g.recover)
	return g.outcome(ctx, result, err)
}

// receipt is a row that says what came of an intent.
type receipt struct {
	incarnation, fence int64
	fingerprints       []ledger.Fingerprint
	writtenAt          time.Time
	response           *ledger.Response
	failure            *ledger.Failure
}

func (r *receipt) answered() bool { return r.response != nil || r.failure != nil }

// guarded is one Do.
type guarded[T any] struct {
	receipts *Receipts[T]
	work     ReceiptWork[T]
	options  ReceiptOptions

	fenced   int64    // the fence that this Do has put up, 0 if none
	found    *receipt // what an earlier attempt left
	storeErr error    // the database did not let us look

	response clientlib.Response // of the latest run of the work
	workErr  error              // a final failure

	returned, original error // an error as the client's guard sees it, and as the work returned it
}

// outcome is what the caller gets.
func (g *guarded[T]) outcome(ctx context.Context, result clientlib.Result, err error) (clientlib.Result, error) {
	switch {
	case g.storeErr != nil && errors.Is(err, clientlib.ErrAbandoned):
		// Not in doubt for good: whoever asks again finds the receipt, or none.
		return result, storeRefusal(ctx, "what became of an earlier attempt could not be read; nothing was done", g.storeErr)
	case g.returned != nil && err == g.returned: //nolint:errorlint // the very one that run returned
		return result, g.original
	case g.found == nil || errors.Is(err, clientlib.ErrClaimLost) || !result.OriginalTime.IsZero():
		return result, err
	case g.found.failure != nil:
		if result.Outcome == clientlib.Executed {
			result.Outcome = clientlib.ReplayedAsFailure
		}
		result.OriginalTime = g.found.writtenAt
		return result, err
	case err == nil:
		result.Outcome, result.OriginalTime = clientlib.Replayed, g.found.writtenAt
		if result.Response.BodyOmitted {
			return result, answerNotKept(result.Response, result.OriginalTime)
		}
	}
	return result, err
}

// recover is the client's hook for abandoned attempts.
func (g *guarded[T]) recover(ctx context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
	found, err := g.fence(ctx, claim)
	switch {
	case err != nil:
		g.storeErr = err
		return clientlib.Finding{}, err
	case found == nil:
		return clientlib.DidNotHappen(), nil
	case found.failure != nil:
		return clientlib.FailedFinally(replayedFailure(found.failure, g.attemptOf(found), found.writtenAt)), nil
	default:
		return clientlib.Happened(fromLedger(found.response)), nil
	}
}

// attemptOf is the attempt that left a receipt: a fence is incarnation plus attempt.
func (g *guarded[T]) attemptOf(r *receipt) int32 { return int32(r.fence - r.incarnation) }

// run is the work as the client's guard sees it.
func (g *guarded[T]) run(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
	if claim.Attempt != 1 && g.fenced != claim.Fence {
		found, err := g.fence(ctx, claim)
		switch {
		case errors.Is(err, clientlib.ErrClaimLost):
			return clientlib.Response{}, err
		case err != nil:
			return clientlib.Response{}, clientlib.NothingHappened(storeRefusal(ctx, "what became of earlier attempts could not be read; nothing was done", err))
		case found != nil && found.failure != nil:
			return clientlib.Response{}, clientlib.Final(replayedFailure(found.failure, g.attemptOf(found), found.writtenAt))
		case found != nil:
			return fromLedger(found.response), nil
		}
	}
	for n := 1; ; n++ {
		err := g.receipts.db.transact(ctx, g.options.Isolation, func(s *session[T]) error { return g.mutate(ctx, claim, s) })
		if kindOf(err) != unknown {
			return g.reported(ctx, err)
		}
		// The fence waits for that transaction, should it still be under way. Then it has left a receipt, or never will.
		look, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.receipts.db.config.CommitTimeout)
		response, workErr := g.response, g.workErr
		found, lookErr := g.fence(look, claim)
		cancel()
		switch {
		case lookErr != nil:
			if errors.Is(lookErr, clientlib.ErrClaimLost) {
				return clientlib.Response{}, lookErr
			}
			return clientlib.Response{}, storeRefusal(context.WithoutCancel(ctx), "whether the work was committed is not known; ask again with the same key",
				errors.Join(err, lookErr))
		case found != nil && found.fence == claim.Fence:
			g.found, g.response, g.workErr = nil, response, workErr // our own
			return g.reported(ctx, nil)
		case found != nil || n == sqldb.MaxTries:
			return clientlib.Response{}, fencedOff()
		}
	}
}

// reported is the end of a transaction in the words of the client's guard. What is not final was certainly rolled back.
func (g *guarded[T]) reported(ctx context.Context, err error) (clientlib.Response, error) {
	var failed *workError
	switch {
	case err == nil && g.workErr == nil:
		return g.response, nil
	case err == nil:
		g.original, g.returned = g.workErr, clientlib.Final(g.workErr)
	case errors.Is(err, errFenced):
		return clientlib.Response{}, fencedOff()
	case errors.As(err, &failed):
		g.original = failed.err
	case kindOf(err) == contended:
		g.original = storeRefusal(ctx, "other transactions got in the way, and nothing was done", err)
	case kindOf(err) == broken:
		g.original = storeRefusal(ctx, "the database could not do it, and nothing was done", err)
	default:
		g.original = err // what the database holds against the mutation
	}
	if g.returned == nil {
		g.returned = clientlib.NothingHappened(g.original)
	}
	return clientlib.Response{}, g.returned
}

// errFenced has a transaction rolled back over which a later attempt has put up its fence.
var errFenced = errors.New("sqlidem: fenced off")

func fencedOff() *clientlib.Error {
	e := refusal(clientlib.ReasonClaimLost, "another attempt took over while the work ran, and nothing of this one was committed; ask again with the same key")
	e.RetryAfter = storeRetryAfter
	return e
}

// mutate is one run of the mutation's transaction. The receipt comes last, so that an attempt that stalls keeps no later one from putting up
// its fence.
func (g *guarded[T]) mutate(ctx context.Context, claim clientlib.Claim, s *session[T]) error {
	g.response, g.workErr = clientlib.Response{}, nil
	if err := s.t.Script(ctx, savepointWork); err != nil {
		return statementFailure(err)
	}
	response, err := g.work(ctx, s.tx, claim)
	s.over()
	var answer []byte
	switch {
	case err == nil:
		g.response = response
		answer = ledger.EncodeAnswer(keptResponse(response), nil)
	case sqldb.Retryable(err):
		return &failure{contended, err}
	case g.options.Classes.ClassOf(err) != clientlib.FinalFailure:
		return &workError{err}
	default:
		if err := s.t.Script(s.control, rollbackToWork); err != nil {
			return statementFailure(err)
		}
		g.workErr = err
		answer = ledger.EncodeAnswer(nil, receiptRules.TrimFailure(finalFailure(err)))
	}
	var written int64
	err = s.t.Scan(s.control, s.dialect.answer, g.receiptArgs(claim, answer), &written)
	if errors.Is(err, sqldb.ErrNoRow) {
		return errFenced
	}
	return statementFailure(err)
}

// receiptRules bound what a receipt holds: whatever a policy of the daemon may let it keep.
var receiptRules = (&ledger.Policy{Tenant: "*", Operation: "*", MaxResponseBytes: ledger.MaxResponseBytes}).Rules(ledger.Clamp{})

func keptResponse(r clientlib.Response) *ledger.Response {
	kept := receiptRules.TrimResponse(toLedger(r))
	for _, m := range r.Metadata {
		if !ledger.NeverStored(m.Name) { // the daemon's policy chooses among the rest
			kept.Metadata = append(kept.Metadata, ledger.MetadataPair{Name: m.Name, Value: m.Value})
		}
	}
	return kept
}

func (g *guarded[T]) receiptArgs(claim clientlib.Claim, answer []byte) []any {
	ref := receiptRef(claim.Ref)
	return append(scopeArgs(ref), int64(scopeSecret.Scope(ref).Shard()), claim.Incarnation, claim.Fence,
		ledger.EncodeFingerprints(toFingerprints(claim.Fingerprints)), g.receipts.config.Retention.Microseconds(), answer)
}

// receiptRef is the scope of a receipt. An empty tenant stays empty: which one it is the daemon knows, by the client's credentials.
func receiptRef(r clientlib.Ref) ledger.Ref {
	return ledger.Ref{Tenant: r.Tenant, Operation: r.Operation, Key: r.Key}
}

// fence puts up the claim's fence and commits it, unless there is an answer: then it returns that. Afterwards no attempt with a lower fence can
// commit. [clientlib.ErrClaimLost]: a higher one is there.
func (g *guarded[T]) fence(ctx context.Context, claim clientlib.Claim) (*receipt, error) {
	for n := 1; ; n++ {
		var found *receipt
		err := g.receipts.db.transact(ctx, sql.LevelDefault, func(s *session[T]) (err error) {
			found, err = g.putFence(ctx, claim, s)
			return err
		})
		switch {
		case errors.Is(err, errNoGrant):
			return g.use(claim, found)
		case err == nil:
			g.fenced = claim.Fence
			return nil, nil
		case kindOf(err) == unknown && n < sqldb.MaxTries && sqldb.BackOff(ctx, n): // doing it again does no harm
		default:
			return nil, err
		}
	}
}

func (g *guarded[T]) putFence(ctx context.Context, claim clientlib.Claim, s *session[T]) (*receipt, error) {
	if err := s.waitAtMost(ctx, g.receipts.config.FenceWait); err != nil {
		return nil, err
	}
	var written int64
	err := s.t.Scan(ctx, s.dialect.fence, g.receiptArgs(claim, nil), &written)
	if !errors.Is(err, sqldb.ErrNoRow) {
		return nil, statementFailure(err)
	}
	found, err := readReceipt(ctx, s, receiptRef(claim.Ref))
	if err == nil {
		err = errNoGrant
	}
	return found, err
}

// use says what a receipt that stands in the way of a fence means.
func (g *guarded[T]) use(claim clientlib.Claim, found *receipt) (*receipt, error) {
	if found == nil || found.incarnation != claim.Incarnation || !found.answered() {
		return nil, fencedOff()
	}
	for _, ours := range claim.Fingerprints {
		for _, theirs := range found.fingerprints {
			if ours.Algorithm == theirs.Algorithm && string(ours.Hash) != string(theirs.Hash) {
				return nil, refusal(clientlib.ReasonKeyReused, "the receipt in the service's own tables is of another request")
			}
		}
	}
	g.found = found
	return found, nil
}

// readReceipt reads a receipt, nil where there is none.
func readReceipt[T any](ctx context.Context, s *session[T], ref ledger.Ref) (*receipt, error) {
	var r receipt
	var written int64
	var fingerprints, answer []byte
	err := s.t.Scan(ctx, s.dialect.receipt, scopeArgs(ref), &r.incarnation, &r.fence, &fingerprints, &written, &answer)
	if errors.Is(err, sqldb.ErrNoRow) {
		return nil, nil
	}
	if err == nil {
		r.writtenAt = ledger.Time(written).Wall()
		r.fingerprints, err = ledger.DecodeFingerprints(fingerprints)
	}
	if err == nil {
		r.response, r.failure, err = ledger.DecodeAnswer(answer)
	}
	return &r, statementFailure(err)
}

// dueReceipt is a receipt that the sweep looks at.
type dueReceipt struct {
	ref                clientlib.Ref
	incarnation, fence int64
}

// Sweep deletes receipts that are past their retention and whose entry the daemon has forgotten, or begun anew. A receipt whose entry is still
// there is kept, however old: it is what an abandoned or held entry will be settled by. A daemon that does not answer ends the sweep.
func (r *Receipts[T]) Sweep(ctx context.Context, options SweepOptions) (Swept, error) {
	var total Swept
	err := inBatches(options, func(shard, limit int) (more bool, err error) {
		due, err := r.due(ctx, shard, limit)
		for i := 0; i < len(due) && err == nil; i++ {
			err = r.sweepOne(ctx, due[i], &total)
		}
		return len(due) == limit, err
	}, &total)
	return total, err
}

func (r *Receipts[T]) due(ctx context.Context, shard, limit int) (due []dueReceipt, err error) {
	err = r.db.transact(ctx, sql.LevelDefault, func(s *session[T]) error {
		due = due[:0]
		var now int64
		if err := s.t.Scan(ctx, s.dialect.tell, nil, &now); err != nil {
			return statementFailure(err)
		}
		return statementFailure(s.t.Each(ctx, s.dialect.dueReceipts, []any{int64(shard), now, int64(limit)}, func(scan func(...any) error) error {
			var one dueReceipt
			defer func() { due = append(due, one) }()
			return scan(&one.ref.Tenant, &one.ref.Operation, &one.ref.Key, &one.incarnation, &one.fence)
		}))
	})
	return due, err
}

// putOffParts: a receipt that is still needed is looked at again after a tenth of its retention.
const putOffParts = 10

func (r *Receipts[T]) sweepOne(ctx context.Context, one dueReceipt, total *Swept) error {
	entry, err := r.config.Ledger.Lookup(ctx, one.ref)
	gone := errors.Is(err, clientlib.ErrEntryNotFound)
	if err != nil && !gone {
		return err
	}
	// Of an earlier life of the entry. Where it is of a later one, the lookup was overtaken.
	gone = gone || entry.GetIncarnation() > one.incarnation
	args := append(scopeArgs(receiptRef(one.ref)), one.incarnation, one.fence)
	err = r.db.transact(ctx, sql.LevelDefault, func(s *session[T]) error {
		text := s.dialect.forgetReceipt
		if !gone {
			text, args = s.dialect.putOff, append(args[:5:5], (r.config.Retention/putOffParts).Microseconds())
		}
		_, err := s.t.Exec(ctx, text, args...)
		return statementFailure(err)
	})
	if err != nil {
		return err
	}
	total.Examined++
	if gone {
		total.Forgotten++
	} else {
		total.Kept++
	}
	return nil
}
