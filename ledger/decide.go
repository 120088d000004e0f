package ledger

import (
	"bytes"
	"strconv"
	"time"
)

// Request is one of [BeginDecision], [ReportDecision], [ExtendDecision], [ResolveDecision], [EraseDecision] and [LookupDecision]: what is to be
// decided about one entry, already validated, with tokens and attempt ids turned into what a row can be compared with.
type Request interface{ request() }

// Mode says what a Begin is for.
type Mode int

// The modes of Begin.
const (
	Run     Mode = iota // to carry the intent out
	Recover             // to settle or give up an intent that others left, without running it
)

// BeginDecision asks for the right to carry out an entry.
type BeginDecision struct {
	Scope        ScopeID
	Ref          Ref
	Fingerprints []Fingerprint
	IDHash       IDHash
	Lease        time.Duration // 0: the policy's
	Holder       string
	Mode         Mode
}

// ReportDecision reports what came of an attempt: exactly one of Response and Failure is set.
type ReportDecision struct {
	Scope ScopeID
	// Issued is false for a token that was never issued for this scope; Claim is then zero.
	Issued   bool
	Claim    Claim
	Response *Response
	Failure  *Failure
	Report   Digest
}

// ExtendDecision renews a claim.
type ExtendDecision struct {
	Scope  ScopeID
	Issued bool
	Claim  Claim
	Lease  time.Duration // 0: the attempt's own
}

// ResolveDecision is an operator's decision about a stuck entry. It names the attempt that the operator saw.
type ResolveDecision struct {
	Scope    ScopeID
	Action   ResolveAction
	Attempt  int32
	Reason   string
	Force    bool
	Response *Response
	Failure  *Failure
	Report   Digest
}

// EraseDecision takes everything personal out of one entry and leaves a tombstone.
type EraseDecision struct {
	Scope ScopeID
	// CreatedUntil is the cut-off: an entry that was created after it stays; 0: none.
	CreatedUntil Time
	Force        bool
}

// applyDecision brings an entry under the policy as it is now.
type applyDecision struct{}

// LookupDecision asks what is known of an entry.
type LookupDecision struct{}

func (BeginDecision) request()   {}
func (ReportDecision) request()  {}
func (ExtendDecision) request()  {}
func (ResolveDecision) request() {}
func (EraseDecision) request()   {}
func (LookupDecision) request()  {}
func (applyDecision) request()   {}

// Env is what a decision rests on beside entry and request.
type Env struct {
	// Now is the store's clock when the entry was read.
	Now Time
	// Floor is the takeover floor: since when this daemon and its store have been there without a break. Until Floor plus an attempt's own
	// lease, holders come back first.
	Floor Time
	// Margin is how far apart the store's clocks can be. A lease is taken over that much later than its length, and its holder is told that
	// it ends that much earlier.
	Margin time.Duration
	Rules  *Rules
	// Principal is who asks, Bound its hash.
	Principal string
	Bound     PrincipalHash
	// Operator: the request came from an operator, whom binding does not stop from looking, resolving and erasing.
	Operator bool
}

// Outcome is what a verdict says when it does not refuse.
type Outcome int

// The outcomes.
const (
	Refused    Outcome = iota // see Verdict.Refusal
	Granted                   // a new claim
	Resumed                   // the claim that this attempt id already had, renewed
	Replayed                  // the entry is completed: its answer
	FailedAs                  // the entry failed: its failure
	InProgress                // another attempt holds the claim, or may still come back for it
	Done                      // the report settled the entry, or gave the claim up
	Unchanged                 // the same was said before: nothing changes
	Renewed                   // the lease was extended
	Settled                   // an operator settled the entry
	Released                  // an operator released the entry
	Erased                    // everything personal is gone
	Skipped                   // live, and not forced
	Found                     // the entry as it is now
)

// Verdict is what the table says: an outcome or a refusal, and the write that goes with it. A refusal can carry a write too: the late
// report is kept as evidence.
type Verdict struct {
	Outcome Outcome
	Refusal *Refusal
	Write   *Write
	// RetryAfter goes with InProgress.
	RetryAfter time.Duration
}

// Decide is the decision table of docs/states.md. It is pure: the same arguments give the same verdict. entry is the row, or nil where
// there is none; Decide does not change it.
//
// The order of judgement is: permission, what this attempt id was used for before, fingerprint, then the table.
func Decide(entry *Entry, req Request, env Env) Verdict {
	condition := entry.ConditionAt(env.Now)
	if condition != Absent && entry.Terms.Bound != (PrincipalHash{}) && entry.Terms.Bound != env.Bound && !(env.Operator && forOperators(req)) {
		return refused(refuse(ReasonPermissionDenied, "the entry is bound to the principal that first began it"))
	}
	switch r := req.(type) {
	case BeginDecision:
		return decideBegin(entry, condition, r, env)
	case ReportDecision:
		return decideReport(entry, condition, r, env)
	case ExtendDecision:
		return decideExtend(entry, condition, r, env)
	case ResolveDecision:
		return decideResolve(entry, condition, r, env)
	case EraseDecision:
		return decideErase(entry, condition, r, env)
	case applyDecision:
		return Verdict{Outcome: Unchanged, Write: decideApply(entry, condition, env)}
	default:
		if condition == Absent {
			return refused(notFound())
		}
		return Verdict{Outcome: Found}
	}
}

// forOperators reports whether a request is one that operators make about entries of others. A claim is never theirs.
func forOperators(req Request) bool {
	switch req.(type) {
	case ResolveDecision, EraseDecision, LookupDecision, applyDecision:
		return true
	default:
		return false
	}
}

func refused(r *Refusal) Verdict { return Verdict{Refusal: r} }

func notFound() *Refusal {
	return refuse(ReasonEntryNotFound, "the ledger knows no entry of that tenant, operation and key")
}

func expired() *Refusal {
	return refuse(ReasonExpired, "the entry is past its retention: its answer is gone, and it is not run again").
		with("help", "if this is a new intent, use a new key")
}

func claimLost(message string) *Refusal {
	return refuse(ReasonClaimLost, "%s", message).with("help", "stop the work; look the entry up to see what came of it")
}

func alreadySettled() *Refusal {
	return refuse(ReasonAlreadySettled, "the entry was settled otherwise before").with("help", "look the entry up to see its answer")
}

func abandoned(e *Entry, exhausted bool) *Refusal {
	r := refuse(ReasonAbandoned, "an earlier attempt was abandoned, and nobody knows whether its effect happened")
	r = r.with("attempt", strconv.Itoa(int(e.Last.Number)))
	if exhausted {
		return r.with("help", "all "+strconv.Itoa(MaxAttempts)+" attempts are used up: resolve the entry with complete or fail")
	}
	return r.with("help", "find out what came of it, then begin with mode RECOVER, or have an operator resolve the entry")
}

// matchFingerprints refuses a request that is not the one that created the entry. Every algorithm that both name must agree.
func matchFingerprints(e *Entry, fingerprints []Fingerprint) *Refusal {
	shared := false
	for _, theirs := range fingerprints {
		for _, ours := range e.Fingerprints {
			if ours.Algorithm != theirs.Algorithm {
				continue
			}
			if !bytes.Equal(ours.Hash, theirs.Hash) {
				return refuse(ReasonKeyReused, "the key was used before with another request").
					with("algorithm", ours.Algorithm).with("help", "use a new key for a new request")
			}
			shared = true
		}
	}
	if !shared {
		names := ""
		for i, ours := range e.Fingerprints {
			if i > 0 {
				names += ","
			}
			names += ours.Algorithm
		}
		return refuse(ReasonHashIncomparable, "the entry's fingerprints are of other algorithms than the request's").
			with("algorithms", names).with("help", "send a fingerprint of one of these algorithms beside your own")
	}
	return nil
}

// The bounds of what a caller is told to wait while another attempt is at work.
const (
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = 5 * time.Second
)

func retryAfter(until, now Time) time.Duration {
	return min(max(until.Sub(now), minRetryAfter), maxRetryAfter)
}
