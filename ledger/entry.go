package ledger

import "time"

// State is what is stored of an entry's progress. What is derived from it and the time is a [Condition].
type State int16

// The stored states. The numbers are persisted and must not change.
const (
	Pending         State = 1
	Completed       State = 2
	FailedFinal     State = 3
	FailedRetryable State = 4
)

// ScopeID is the keyed hash of a scope: what a row is found by, also after its tenant, operation and key were erased.
type ScopeID [32]byte

// IDHash is the keyed hash of an attempt id within its scope.
type IDHash [16]byte

// PrincipalHash is the keyed hash of a principal; zero means none.
type PrincipalHash [16]byte

// Digest identifies a report: two reports are the same exactly when their digests are. Zero means that there was none.
type Digest [32]byte

// Entry is one intent and all that is known of it. It is a value: whoever changes one works on a copy ([Entry.Clone]).
type Entry struct {
	Scope ScopeID
	// Ref is zero once the entry was erased.
	Ref Ref
	// Incarnation is the creation stamp, the store's clock in microseconds, raised where needed so that it is above every fence
	// this scope ever had.
	Incarnation Time
	// Revision counts the writes to this row, from 1.
	Revision int64
	State    State
	// Closed: only a tombstone is left: the answer is gone, every Begin is refused EXPIRED until DueAt, then the entry is forgotten.
	Closed bool
	// Fingerprints of the request that created the entry, one or two of different algorithms. They bind for the whole incarnation.
	Fingerprints []Fingerprint
	// Terms is the policy as copied at the grant that created the entry.
	Terms Terms
	// HoldFrom is the instant from which the entry, if abandoned, is held: 0 always, Never never.
	HoldFrom Time
	// RunGrants counts the RUN grants that the policy's cap limits (not those on an operator's credit).
	RunGrants int32
	// Credit: an operator released the entry and the next RUN grant may go past policy and cap.
	Credit bool
	// Doubt: an attempt ended without anybody knowing whether its effect happened.
	Doubt bool
	// Last is the latest attempt. Current says whether it still is the current one; if not, it is one of the earlier attempts.
	Last    Attempt
	Current bool
	// Earlier are the attempts before Last, oldest first.
	Earlier []Attempt
	// Evidence is the report that came too late, kept for whoever decides next: the latest success, else the latest report.
	Evidence *Evidence
	// Resolutions are the operators' decisions, oldest first: at most one release for each attempt, and one that settled.
	Resolutions []Resolution
	// AbandonedAt is when a pending entry was left without a current attempt; not set while it has one.
	AbandonedAt Time
	// SettledAt is when the entry was settled; not set while it is pending.
	SettledAt Time
	// SettledBy is the attempt whose report settled the entry, 0 if an operator did.
	SettledBy int32
	// Settlement is the digest of the report that settled the entry.
	Settlement Digest
	// Response is the answer of a completed entry, Failure that of a failed one; both nil otherwise and once Closed.
	Response *Response
	Failure  *Failure
	// DueAt is when the sweeper has something to do here: for a pending entry when it lapses (Never if it is held by then), for a settled
	// one when its retention ends, for a closed one when it is forgotten.
	DueAt Time
}

// Terms are the parts of a policy that an entry keeps for its life.
type Terms struct {
	OnAbandoned   OnAbandoned
	MaxAttempts   int32
	ReclaimWithin time.Duration // from the first grant; 0: no limit
	Retention     time.Duration
	Tombstone     time.Duration
	// Bound is the principal that alone may use the entry; zero: any.
	Bound PrincipalHash
}

// Ended says how an attempt ended.
type Ended int16

// How an attempt ended. The numbers are persisted and must not change.
const (
	NotEnded       Ended = 0
	EndedCompleted Ended = 1 // it reported success
	EndedFinal     Ended = 2 // it reported a final failure
	EndedRetryable Ended = 3 // it reported that nothing happened
	EndedGaveUp    Ended = 4 // it reported that it does not know, or spoke while others' outcome was in doubt
	EndedTakenOver Ended = 5 // its lease was over and another attempt was granted
	EndedReleased  Ended = 6 // an operator released it
	EndedResolved  Ended = 7 // an operator settled the entry
)

// Attempt is one try.
type Attempt struct {
	// Number counts from 1 within an incarnation.
	Number int32
	IDHash IDHash
	Holder string
	// Principal is who began it, as named by its credentials.
	Principal string
	// RecoverOnly: it may settle or give up, and must not run.
	RecoverOnly bool
	// OnCredit: it was granted on an operator's release.
	OnCredit bool
	// Lease is the length of the lease that LeaseUntil ends, without any clock margin.
	Lease   time.Duration
	BeganAt Time
	// LeaseUntil is when others may take over: the lease and the store's clock margin after the grant or a renewal, whichever ends last.
	LeaseUntil Time
	EndedAt    Time
	Ended      Ended
	// Report is the digest of the report that ended it, if one did.
	Report Digest
}

// Evidence is a report that came too late to settle the entry.
type Evidence struct {
	Attempt int32
	At      Time
	Report  Digest
	// Exactly one of the two is set. A Response is evidence of success.
	Response *Response
	Failure  *Failure
}

// Success reports whether the evidence says that the effect happened.
func (e *Evidence) Success() bool { return e != nil && e.Response != nil }

// ResolveAction is what an operator decided.
type ResolveAction int16

// The operators' decisions. The numbers are persisted and must not change.
const (
	ResolveComplete ResolveAction = 1
	ResolveFail     ResolveAction = 2
	ResolveRelease  ResolveAction = 3
)

// Resolution is one decision of an operator.
type Resolution struct {
	Action    ResolveAction
	Attempt   int32
	At        Time
	Principal string
	Reason    string
	Report    Digest
}

// Response is a successful answer, as it will be replayed.
type Response struct {
	// Code is the caller's own: a gRPC code, an HTTP status, an exit status.
	Code        int32
	Body        []byte
	ContentType string
	// Metadata keeps order and multiplicity.
	Metadata     []MetadataPair
	ResourceType string
	ResourceID   string
	// BodyOmitted: the body was not kept, by the client or by policy. BodySize and BodySHA256 then describe it, where known.
	BodyOmitted bool
	BodySize    int64
	BodySHA256  []byte
}

// MetadataPair is one header or trailer value.
type MetadataPair struct {
	Name  string
	Value []byte
}

// Disposition is what a failure means for the next Begin.
type Disposition int16

// The dispositions. The numbers are persisted and must not change.
const (
	Final     Disposition = 1 // replayed to every retry
	Retryable Disposition = 2 // nothing happened: the next Begin is granted
	Unknown   Disposition = 3 // the holder does not know: the claim is given up
)

// Failure is a failed answer, as it will be replayed.
type Failure struct {
	Code    int32
	Message string
	Details []Detail
	// DetailsOmitted: details were left out, or the message was cut, since they were over the limits.
	DetailsOmitted bool
	Disposition    Disposition
}

// Detail is one typed detail of a failure, opaque to the ledger (a google.protobuf.Any).
type Detail struct {
	TypeURL string
	Value   []byte
}

// Clone returns a copy that shares no slice of attempts, resolutions or fingerprints with e. Bodies are shared: nothing changes one in place.
func (e *Entry) Clone() *Entry {
	c := *e
	c.Fingerprints = append([]Fingerprint(nil), e.Fingerprints...)
	c.Earlier = append([]Attempt(nil), e.Earlier...)
	c.Resolutions = append([]Resolution(nil), e.Resolutions...)
	return &c
}

// Fence is the fence of the latest attempt: incarnation + attempt.
func (e *Entry) Fence() int64 { return int64(e.Incarnation) + int64(e.Last.Number) }

// AttemptNumbered returns the attempt with that number, and whether it is the current one.
func (e *Entry) AttemptNumbered(number int32) (attempt *Attempt, current bool) {
	if e.Last.Number == number {
		return &e.Last, e.Current
	}
	for i := range e.Earlier {
		if e.Earlier[i].Number == number {
			return &e.Earlier[i], false
		}
	}
	return nil, false
}

// Condition is what an entry is at an instant. It is derived on every read and never depends on whether a sweep has been by.
type Condition int

// The conditions, in the order of the decision table's columns.
const (
	Absent Condition = iota // no row, or its tombstone is past
	Live
	Abandoned
	Held
	ConditionCompleted
	ConditionFailedFinal
	ConditionFailedRetryable
	Lapsed  // pending, and nobody came for its whole retention
	Expired // settled and past its retention, or erased from whatever it was
)

// ConditionAt derives the condition of e at now. Every instant belongs to exactly one condition: a lease or a retention is over at its
// end instant, not one microsecond later. A nil entry is Absent.
func (e *Entry) ConditionAt(now Time) Condition {
	switch {
	case e == nil:
		return Absent
	case e.Closed && now >= e.DueAt:
		return Absent
	case e.Closed && e.State == Pending && e.Ref != Ref{}:
		return Lapsed
	case e.Closed:
		return Expired
	case e.State != Pending:
		return e.settledConditionAt(now)
	case e.Current && now < e.Last.LeaseUntil:
		return Live
	case e.HoldFrom <= e.DueAt && e.HoldFrom <= now:
		return Held // and so it does not lapse
	case e.HoldFrom <= e.DueAt || now < e.DueAt:
		return Abandoned
	case now < e.DueAt.Add(e.Terms.Tombstone):
		return Lapsed
	default:
		return Absent
	}
}

func (e *Entry) settledConditionAt(now Time) Condition {
	switch {
	case now >= e.DueAt.Add(e.Terms.Tombstone):
		return Absent
	case now >= e.DueAt:
		return Expired
	case e.State == Completed:
		return ConditionCompleted
	case e.State == FailedFinal:
		return ConditionFailedFinal
	default:
		return ConditionFailedRetryable
	}
}

// ForgetAt is when the entry's tombstone is past, Never for one that is pending and does not lapse.
func (e *Entry) ForgetAt() Time {
	if e.Closed {
		return e.DueAt
	}
	if e.State == Pending && e.HoldFrom <= e.DueAt {
		return Never
	}
	return e.DueAt.Add(e.Terms.Tombstone)
}

// stamped returns e with every relative time resolved, as the store does at the write.
func (e *Entry) stamped(now, minIncarnation Time) *Entry {
	c := e.Clone()
	if c.Incarnation.Relative() {
		c.Incarnation = max(now, minIncarnation)
	}
	c.HoldFrom = c.HoldFrom.At(now)
	c.AbandonedAt = c.AbandonedAt.At(now)
	c.SettledAt = c.SettledAt.At(now)
	c.DueAt = c.DueAt.At(now)
	c.Last.BeganAt = c.Last.BeganAt.At(now)
	c.Last.LeaseUntil = c.Last.LeaseUntil.At(now)
	c.Last.EndedAt = c.Last.EndedAt.At(now)
	return c
}
