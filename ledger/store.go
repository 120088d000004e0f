package ledger

import (
	"context"
	"errors"
	"time"
)

// Store keeps entries and settings. It evaluates guards and stamps times; it never knows policy. All methods may be called
// concurrently. Every write is durable before it is acknowledged, and no reader is answered from what a crash could erase.
//
// ledger/storetest says by test what a Store must do.
//
// Errors: a method returns nil, a context error, or an error that wraps exactly one of [ErrUnavailable], [ErrUnknown], [ErrContended] and
// [ErrBadRow]. A context error says that the call did nothing because its caller left or ran out of time. It is no [ErrUnavailable]: that is about
// the store, as [ErrBadRow] is about a row. One bad row fails no call that is about others.
// Normal outcomes (no row, guard did not hold) are results, not errors.
type Store interface {
	// Get reads one entry whole, linearizably, with the store's clock at the reading.
	Get(ctx context.Context, scope ScopeID) (Reading, error)
	// Write applies w in one round trip if its guard holds, and reports the stamps it set. The clock is read when the row is written, not
	// when a statement that waits for a lock began, as far as the engine allows.
	Write(ctx context.Context, w Write) (Written, error)
	// Page lists entries in a fixed order from a remembered bound. It goes past bad rows, and names them.
	Page(ctx context.Context, q PageQuery) (Page, error)
	// Forget deletes the rows whose revision is unchanged, in one bounded batch of at most MaxForgetBatch, and reports how many. It may leave bad
	// rows where they are.
	Forget(ctx context.Context, rows []Row) (int, error)
	// Settings lists the settings of one kind, by name.
	Settings(ctx context.Context, kind string) (Settings, error)
	// PutSetting writes or deletes one setting if its revision still is expect (0: it must not exist) and reports whether it did.
	PutSetting(ctx context.Context, s Setting, expect int64) (bool, error)
	// Ready reports the store's clock if the store answers and its schema is right.
	Ready(ctx context.Context) (Time, error)
	// Margin is how far apart the clocks of this store can be: zero where there is one clock.
	Margin() time.Duration
}

// Recaller is a Store that has some entries at hand without asking its disk.
type Recaller interface {
	Store
	// Recall is what Get would answer at this moment, durable as that, without waiting for anything. ok is false where the entry is not at hand, which
	// says nothing about it. Unlike Get's, the entry is shared: the caller must not change it.
	Recall(scope ScopeID) (reading Reading, ok bool)
}

// Unsharded is a Store whose order by due time has no parts. It takes ByDue pages of AllShards, which are cheaper for it than those of each shard, and those too.
type Unsharded interface {
	Store
	// Unsharded does nothing.
	Unsharded()
}

// The classes of store errors.
var (
	// ErrUnavailable: the store could not do it and certainly did not.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnknown: the write may or may not have happened, now or in a moment. Read back; never assume either.
	ErrUnknown = errors.New("outcome of the write unknown")
	// ErrContended: other writers got in the way until the retries were used up. It certainly did not happen.
	ErrContended = errors.New("store contended")
	// ErrBadRow: the store answered, and the row is the fault. What stands there makes no sense, or the schema refuses what was to be written. It
	// certainly was not done, and the same call will fare no better until somebody has put the row right.
	ErrBadRow = errors.New("bad row")
)

// StoreFault is what is wrong with a store, where the store can tell. An error that wraps [ErrUnavailable] or [ErrUnknown] may wrap one as well; it is told
// to callers and probes, in metadata under "store", since whoever reads it can do something about it.
type StoreFault string

// The faults. They are told to callers: they do not change.
const (
	// FaultFull: there is no room for what is to be written. What needs none goes on.
	FaultFull StoreFault = "full"
	// FaultFailing: the disk does not take or give what it should. It may have turned read-only.
	FaultFailing StoreFault = "failing"
	// FaultDamaged: something read was not as it was written. Nothing is written any more.
	FaultDamaged StoreFault = "damaged"
)

// Error says it in words that may be shown to callers.
func (f StoreFault) Error() string {
	switch f {
	case FaultFull:
		return "the ledger's disk is full"
	case FaultFailing:
		return "the ledger's disk fails, or does not let it write"
	case FaultDamaged:
		return "the ledger's files are damaged"
	default:
		return "the ledger's store fails"
	}
}

// MaxForgetBatch is how many rows one Forget may name.
const MaxForgetBatch = 1000

// MaxPageRows is how many rows one Page may ask for.
const MaxPageRows = 1000

// Reading is an entry as it stood at Now. Entry is nil where there is no row. The caller owns Entry.
type Reading struct {
	Entry *Entry
	Now   Time
}

// lease is the length of the latest attempt's lease; zero where there is no row.
func (r Reading) lease() time.Duration {
	if r.Entry == nil {
		return 0
	}
	return r.Entry.Last.Lease
}

// GuardKind says what must hold for a write to be applied.
type GuardKind int

// The guards.
const (
	// GuardAbsent: there is no row for the scope.
	GuardAbsent GuardKind = iota + 1
	// GuardRevision: the row has this incarnation and revision.
	GuardRevision
	// GuardClaim: the row has this incarnation, its current attempt has this number, and it is PENDING, not closed and not lapsed:
	// hold_from <= due_at or now < due_at. Bound to nobody, or to Principal. If Undoubted, it is not in doubt.
	GuardClaim
)

// Guard is the condition of a write.
type Guard struct {
	Kind        GuardKind
	Incarnation Time          // GuardRevision, GuardClaim
	Revision    int64         // GuardRevision
	Attempt     int32         // GuardClaim
	Principal   PrincipalHash // GuardClaim
	Undoubted   bool          // GuardClaim
}

// Write is one guarded write to one row. Exactly one of Put, Settle and Extend is set: Put with GuardAbsent and GuardRevision, the others
// with GuardClaim.
type Write struct {
	Scope ScopeID
	Guard Guard
	// Put is the whole entry as it shall stand. Relative times ([In]) are stamped. With GuardAbsent its revision is 1, with GuardRevision
	// one more than the guard's; the Revision it carries is ignored.
	Put *Entry
	// MinIncarnation raises a relative Put.Incarnation: the stamp is the later of the clock and this.
	MinIncarnation Time
	Settle         *Settle
	Extend         *Extend
	// Idle: no caller waits for it. A store may let all else go first, as long as it does not put it off for ever.
	Idle bool
}

// Settle ends the current attempt with its report. What it does to a row is [Entry.Settled].
type Settle struct {
	// State is Completed, FailedFinal or FailedRetryable; or Pending: the claim is given up, the entry stays pending, in doubt and with no
	// current attempt.
	State  State
	Ended  Ended
	Report Digest
	// Response and Failure are the answer, at most one set; neither when given up.
	Response *Response
	Failure  *Failure
	// Retention and Tombstone as the policy says now; for each, the longer of it and the entry's own wins.
	Retention time.Duration
	Tombstone time.Duration
}

// Extend renews the current attempt's lease from the moment of the write, and never shortens it. What it does to a row is [Entry.Extended].
type Extend struct {
	// Lease is the length asked for; 0: the attempt's own.
	Lease time.Duration
	// Margin is added to when others may take over.
	Margin time.Duration
}

// Written is what became of a Write.
type Written struct {
	// Applied is false where the guard did not hold: nothing was written, and Stamps is zero.
	Applied bool
	Stamps  Stamps
}

// Stamps are the values of the row after the write that the store alone knows. Now is the store's clock at the write.
type Stamps struct {
	Now         Time
	Incarnation Time
	Revision    int64
	BeganAt     Time
	LeaseUntil  Time
	SettledAt   Time
	DueAt       Time
	HoldFrom    Time
	Lease       time.Duration
	Retention   time.Duration
	Tombstone   time.Duration
}

// PageOrder says in which order a Page lists.
type PageOrder int

// The orders of a page.
const (
	// ByName: tenant, operation, and in these an order of the store's own that an entry keeps its place in: by scope id, or by incarnation and then
	// scope id. Tenant and Operation may narrow it.
	ByName PageOrder = iota + 1
	// ByDue: shard, due_at, scope id, for one Shard (or, of a store that is Unsharded, for all of them: due_at, scope id); only entries with DueAt <= now of the store's clock (or DueUntil).
	ByDue
)

// Shards is how many parts the order by due time has, so that a store of ranges has no single hot end. The shard of an entry is
// [ScopeID.Shard].
const Shards = 16

// AllShards is the Shard of a ByDue page over the whole order, from a store that is [Unsharded].
const AllShards = -1

// Shard is the part of the order by due time that the scope belongs to.
func (id ScopeID) Shard() int { return int(id[0] & (Shards - 1)) }

// PageQuery asks for a page.
type PageQuery struct {
	Order PageOrder
	// Tenant and Operation narrow a ByName page; empty: all. Operation needs Tenant.
	Tenant    string
	Operation string
	// Shard is the part of a ByDue page.
	Shard int
	// DueUntil lists a ByDue page up to this instant, inclusive; zero: up to the store's clock. With Never it reaches the entries that wait
	// for nothing but an operator or their holder.
	DueUntil Time
	// After continues behind the last row of the page before; zero: from the start.
	After Cursor
	// States narrows a ByName page to these stored states, not closed; empty: everything.
	States []State
	// CreatedUntil narrows a ByName page to incarnations at or before it; zero: all.
	CreatedUntil Time
	// Limit is how many rows at the most, 1 to MaxPageRows.
	Limit int
	// Lean leaves out Response, Failure, Earlier, Evidence and Resolutions.
	Lean bool
}

// Cursor is a position in an order.
type Cursor struct {
	Tenant      string
	Operation   string
	DueAt       Time
	Incarnation Time
	Scope       ScopeID
}

// CursorOf is where e stands, in every order.
func CursorOf(e *Entry) Cursor {
	return Cursor{Tenant: e.Ref.Tenant, Operation: e.Ref.Operation, DueAt: e.DueAt, Incarnation: e.Incarnation, Scope: e.Scope}
}

// Page is a run of entries. More says that there may be further ones behind Next. Entries and Bad together are at most as many as the limit.
type Page struct {
	Entries []*Entry
	// Bad are the rows of the run that could not be read.
	Bad  []BadRow
	Next Cursor
	More bool
	Now  Time
}

// BadRow is a row that could not be read. Err wraps [ErrBadRow].
type BadRow struct {
	Scope ScopeID
	Err   error
}

// Row names a row as it was read.
type Row struct {
	Scope       ScopeID
	Incarnation Time
	Revision    int64
}

// Setting is one small named value that all daemons on a store share: a policy, the sweep's turn, the secret.
type Setting struct {
	Kind string
	Name string
	// Revision counts the writes to this setting, from 1. A deleted and recreated setting may start again.
	Revision int64
	// Body is the value; nil in PutSetting deletes.
	Body []byte
	// UpdatedAt is the store's clock at the last write.
	UpdatedAt Time
}

// Settings is a list of settings as they stood at Now.
type Settings struct {
	List []Setting
	Now  Time
}

// Settled returns e as it stands after s was applied at now. It is what every store does for a Settle write.
func (e *Entry) Settled(s Settle, now Time) *Entry {
	c := e.Clone()
	c.Revision++
	c.State = s.State
	c.Last.EndedAt = now
	c.Last.Ended = s.Ended
	c.Last.Report = s.Report
	if s.State == Pending {
		c.Current = false
		c.Doubt = true
		c.AbandonedAt = now
		c.DueAt = c.lapseAfter(now.Add(c.Terms.Retention))
		return c
	}
	c.SettledAt = now
	c.SettledBy = c.Last.Number
	c.Settlement = s.Report
	c.Response = s.Response
	c.Failure = s.Failure
	c.Terms.Retention = max(c.Terms.Retention, s.Retention)
	c.Terms.Tombstone = max(c.Terms.Tombstone, s.Tombstone)
	c.DueAt = now.Add(c.Terms.Retention)
	return c
}

// Extended returns e as it stands after x was applied at now. It is what every store does for an Extend write.
//
// A lease that already lasts longer stays, with its length: an Extend of unknown outcome can land after a later one, and must not take back
// what the holder was told meanwhile. What lasts longer than its own length from now was given by a clock that has been set back since, and is
// cut to that length: otherwise a claim could not get out of a year that never was.
func (e *Entry) Extended(x Extend, now Time) *Entry {
	c := e.Clone()
	c.Revision++
	lease := x.Lease
	if lease == 0 {
		lease = e.Last.Lease
	}
	c.Last.LeaseUntil = min(e.Last.LeaseUntil, now.Add(e.Last.Lease+x.Margin))
	if until := now.Add(lease + x.Margin); until >= c.Last.LeaseUntil {
		c.Last.Lease, c.Last.LeaseUntil = lease, until
	}
	c.DueAt = c.lapseAfter(c.Last.LeaseUntil.Add(c.Terms.Retention))
	return c
}

// lapseAfter is the due time of a pending entry that nobody comes for until at: Never if it is held by then.
func (e *Entry) lapseAfter(at Time) Time {
	if e.HoldFrom <= at {
		return Never
	}
	return at
}

// Holds reports whether g holds for e at now. It is what every store evaluates.
func (g Guard) Holds(e *Entry, now Time) bool {
	switch g.Kind {
	case GuardAbsent:
		return e == nil
	case GuardRevision:
		return e != nil && e.Incarnation == g.Incarnation && e.Revision == g.Revision
	case GuardClaim:
		return e != nil && e.Incarnation == g.Incarnation && e.Current && e.Last.Number == g.Attempt &&
			e.State == Pending && !e.Closed && (e.HoldFrom <= e.DueAt || now < e.DueAt) &&
			(e.Terms.Bound == PrincipalHash{} || e.Terms.Bound == g.Principal) &&
			!(g.Undoubted && e.Doubt)
	default:
		return false
	}
}

// Apply returns the row after w at now, and whether its guard held. Stores do the same in their own language; the conformance suite
// compares them with this.
func (w Write) Apply(e *Entry, now Time) (*Entry, bool) {
	if !w.Guard.Holds(e, now) {
		return e, false
	}
	switch {
	case w.Put != nil:
		c := w.Put.stamped(now, w.MinIncarnation)
		c.Scope = w.Scope
		c.Revision = w.Guard.Revision + 1
		return c, true
	case w.Settle != nil:
		return e.Settled(*w.Settle, now), true
	default:
		return e.Extended(*w.Extend, now), true
	}
}

// StampsOf are the stamps of a row as written at now.
func StampsOf(e *Entry, now Time) Stamps {
	return Stamps{
		Now: now, Incarnation: e.Incarnation, Revision: e.Revision, BeganAt: e.Last.BeganAt, LeaseUntil: e.Last.LeaseUntil,
		SettledAt: e.SettledAt, DueAt: e.DueAt, HoldFrom: e.HoldFrom, Lease: e.Last.Lease,
		Retention: e.Terms.Retention, Tombstone: e.Terms.Tombstone,
	}
}
