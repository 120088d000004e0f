package ledger

import (
	"context"
	"crypto/sha256"
	"strconv"
	"time"
)

// What the tests of package ledger_test reach inside for. Everything else they see is what every caller sees.

// ApplyDecision brings an entry under the policy as it is now.
func ApplyDecision() Request { return applyDecision{} }

// TellLease is what a holder is told of its lease.
func TellLease(s Stamps, margin time.Duration) (Time, time.Duration) { return tellLease(s, margin) }

// ViewOf is an entry as lists and lookups show it.
func ViewOf(e *Entry, now Time) View { return viewOf(e, now) }

// CheckKey judges a key by the key format of the rules.
func (r *Rules) CheckKey(key string) *Refusal { return r.checkKey(key) }

// Validate judges a Begin before anything is read.
func (r *BeginRequest) Validate() *Refusal { return r.validate() }

// Waiting is how many Begins wait in this daemon now.
func (l *Ledger) Waiting() int {
	l.waiters.mu.Lock()
	defer l.waiters.mu.Unlock()
	return l.waiters.total
}

// Secret is the secret of the store this ledger runs on.
func (l *Ledger) Secret() *Secret { return l.secret }

// Floor is the takeover floor.
func (l *Ledger) Floor() Time { return l.presence.floor(MinLease) }

// ReloadPolicies reads the policies now.
func (l *Ledger) ReloadPolicies(ctx context.Context) error { return l.policies.reload(ctx) }

// CountOperations is how many counts an answer holds of a ledger that has an entry of each of n operations with short names.
func CountOperations(n int) int {
	var s Stats
	for i := range n {
		s.add(&Entry{Ref: Ref{Tenant: "t", Operation: strconv.Itoa(i), Key: "k"}, State: Completed, DueAt: Never}, 1)
	}
	return len(s.By)
}

// The lengths that tests count with.
const (
	PolicyMaxAge = policyMaxAge
	SweepTurn    = sweepTurn
	SweepBatch   = sweepBatch
	SilenceMax   = silenceMax
	LastLook     = lastLook
	MaxTries     = maxTries
)

// EmptyDigestsOf are the digests of nothing under these algorithms, one after another, as Begins work them out, and how many of them are kept for later.
func EmptyDigestsOf(algorithms ...string) (digests [][sha256.Size]byte, kept int) {
	d := emptyDigests{known: map[string][sha256.Size]byte{}}
	for _, algorithm := range algorithms {
		digests = append(digests, d.of(algorithm))
	}
	return digests, len(d.known)
}

// MaxEmptyDigests is how many are kept at most.
const MaxEmptyDigests = maxEmptyDigests
