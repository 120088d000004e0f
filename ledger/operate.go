package ledger

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// View is an entry as it is now, for people: no token, attempt ids as hashes.
type View struct {
	// Entry is a copy; its answer is nil once it expired.
	Entry     *Entry
	Condition Condition
	Now       Time
	// Erased: the tenant's entries were erased. The ledger keeps no name of it, so Lookup shows the one it was asked for.
	Erased bool
	// CreatedAt, LeaseUntil (of a current attempt), ExpiresAt and ForgetAt are by the store's clock; zero where they do not apply.
	CreatedAt  Time
	LeaseUntil Time
	ExpiresAt  Time
	ForgetAt   Time
}

func viewOf(e *Entry, now Time) View {
	c := e.Clone()
	v := View{Entry: c, Condition: e.ConditionAt(now), Now: now, Erased: e.Closed && e.Ref == Ref{}, CreatedAt: e.Incarnation}
	if tombstone := v.Condition == Expired || v.Condition == Lapsed; tombstone {
		// As a sweep will leave it.
		c.Response, c.Failure, c.Evidence, c.Credit = nil, nil, nil, false
	} else if c.State == Pending && c.Current {
		v.LeaseUntil = c.Last.LeaseUntil
	}
	if forget := e.ForgetAt(); forget != Never && (c.State != Pending || v.Condition == Lapsed || c.Closed) {
		v.ForgetAt = forget
		switch {
		case !c.Closed:
			v.ExpiresAt = c.DueAt
		case c.SettledAt != 0:
			v.ExpiresAt = c.SettledAt.Add(c.Terms.Retention)
		case v.Condition == Lapsed:
			v.ExpiresAt = c.DueAt.Add(-c.Terms.Tombstone)
		}
	}
	return v
}

// Lookup returns what is known of an entry. It refuses with the INVALID_… reasons, PERMISSION_DENIED, ENTRY_NOT_FOUND and STORE_UNAVAILABLE.
func (l *Ledger) Lookup(ctx context.Context, caller Caller, ref Ref) (View, error) {
	if refusal := ref.Validate(); refusal != nil {
		return View{}, refusal
	}
	env, err := l.env(ctx, ref, caller)
	if err != nil {
		return View{}, err
	}
	d, err := l.carryOut(ctx, l.secret.Scope(ref), LookupDecision{}, env, nil)
	if err != nil {
		return View{}, err
	}
	if d.verdict.Outcome != Found {
		return View{}, asError(d.verdict.Refusal)
	}
	v := viewOf(d.before, d.now)
	v.Entry.Ref = ref
	return v, nil
}

// ResolveRequest is an operator's decision about a stuck entry.
type ResolveRequest struct {
	Ref    Ref
	Action ResolveAction
	// Attempt is the latest attempt as the operator saw it.
	Attempt int32
	Reason  string
	// Force settles or releases an entry although its claim is live.
	Force    bool
	Response *Response // ResolveComplete
	Failure  *Failure  // ResolveFail; its disposition is Final
}

// Resolved is an entry after an operator's decision.
type Resolved struct {
	View
	// Resent: the same was decided before, and nothing changed.
	Resent bool
}

// Resolve settles or releases an entry by an operator's decision. Resending it is safe. It refuses with the INVALID_… reasons, ENTRY_NOT_FOUND,
// CLAIM_LIVE, CLAIM_LOST (it names another attempt than the latest), ALREADY_SETTLED, ABANDONED (no attempt is left to release), EXPIRED and
// STORE_UNAVAILABLE.
func (l *Ledger) Resolve(ctx context.Context, caller Caller, r ResolveRequest) (Resolved, error) {
	if refusal := r.validate(); refusal != nil {
		return Resolved{}, refusal
	}
	caller.Operator = true
	env, err := l.env(ctx, r.Ref, caller)
	if err != nil {
		return Resolved{}, err
	}
	decision := ResolveDecision{
		Scope: l.secret.Scope(r.Ref), Action: r.Action, Attempt: r.Attempt, Reason: r.Reason, Force: r.Force,
	}
	switch r.Action {
	case ResolveComplete:
		decision.Report, decision.Response = ReportDigest(r.Response, nil), env.Rules.TrimResponse(r.Response)
	case ResolveFail:
		failure := *r.Failure
		failure.Disposition = Final
		decision.Report, decision.Failure = ReportDigest(nil, &failure), env.Rules.TrimFailure(&failure)
	case ResolveRelease: // carries no answer
	}
	d, err := l.carryOut(ctx, decision.Scope, decision, env, nil)
	if err != nil {
		return Resolved{}, err
	}
	switch d.verdict.Outcome {
	case Settled, Released, Unchanged:
		view, err := l.Lookup(ctx, caller, r.Ref)
		return Resolved{View: view, Resent: d.verdict.Outcome == Unchanged && !d.own}, err
	default:
		return Resolved{}, asError(d.verdict.Refusal)
	}
}

func (r *ResolveRequest) validate() *Refusal {
	if refusal := r.Ref.Validate(); refusal != nil {
		return refusal
	}
	if refusal := validatePart(ReasonInvalidReason, "reason", r.Reason, MaxReasonChars); refusal != nil {
		return refusal
	}
	switch {
	case r.Attempt < 1:
		return invalid(ReasonInvalidRequest, "attempt", "must be the number of the latest attempt, as lookup shows it")
	case r.Action == ResolveComplete && r.Response == nil:
		return invalid(ReasonInvalidReport, "complete", "must carry the answer")
	case r.Action == ResolveFail && (r.Failure == nil || r.Failure.Code == 0):
		return invalid(ReasonInvalidReport, "fail", "must carry a status other than OK")
	case r.Action < ResolveComplete || r.Action > ResolveRelease:
		return invalid(ReasonInvalidRequest, "action", "must be complete, fail or release")
	}
	return nil
}

// ListRequest asks for entries.
type ListRequest struct {
	// Tenant and Operation narrow the list; "": every one.
	Tenant    string
	Operation string
	// Conditions narrows the list; empty: every condition.
	Conditions []Condition
	// OlderThan keeps entries that were created at least that long ago; 0: all.
	OlderThan time.Duration
	// DoubtOnly keeps entries of which nobody knows whether an attempt's effect happened.
	DoubtOnly bool
	// PageSize is how many to return at the most; 0: 100; at most 1000.
	PageSize int
	// PageToken continues a list; "": from the start. It must come with the same filters.
	PageToken string
}

// ListResult is one page of entries. NextPageToken is "" on the last one. A page may be short, or empty, although there are more.
type ListResult struct {
	Entries       []View
	NextPageToken string
}

const (
	defaultPageSize = 100
	// listScan is how many rows one call looks at before it returns what it found with a token to go on: a rare condition must not hold a
	// call for ever.
	listScan = 20_000
)

// listToken is where a list goes on, and of which list: under other filters it would silently leave entries out.
type listToken struct {
	Filter  uint64 `json:"f"`
	Shard   int    `json:"s,omitempty"`
	Tenant  string `json:"t,omitempty"`
	Op      string `json:"o,omitempty"`
	Due     Time   `json:"d,omitempty"`
	Created Time   `json:"c,omitempty"`
	Until   Time   `json:"u,omitempty"` // see bound
	Scope   []byte `json:"i"`
}

// List returns entries as they are now, by tenant and operation, without answer, evidence, earlier attempts and resolutions: those are for
// Lookup. It goes past bad rows, which the log names. It refuses with INVALID_PAGE, INVALID_REQUEST and STORE_UNAVAILABLE.
func (l *Ledger) List(ctx context.Context, r ListRequest) (ListResult, error) {
	size := orDefault(r.PageSize, defaultPageSize)
	switch {
	case size < 1 || size > MaxPageRows:
		return ListResult{}, invalid(ReasonInvalidPage, "page_size", "must be between 1 and 1000")
	case r.OlderThan < 0:
		return ListResult{}, invalid(ReasonInvalidRequest, "older_than", "must not be negative")
	}
	scan, err := l.newListWalk(r, size)
	if err != nil {
		return ListResult{}, err
	}
	return scan.run(ctx)
}

// listWalk reads pages until enough entries match.
type listWalk struct {
	ledger *Ledger
	r      ListRequest
	size   int
	q      PageQuery
	held   bool // only held entries are asked for: they stand together at the end of the order by due time
}

func (l *Ledger) newListWalk(r ListRequest, size int) (*listWalk, error) {
	w := &listWalk{ledger: l, r: r, size: size, q: PageQuery{Order: ByName, Tenant: r.Tenant, Lean: true}}
	if r.Tenant != "" {
		// Without a tenant the operations lie scattered: every entry is looked at.
		w.q.Operation = r.Operation
	}
	w.held = len(r.Conditions) == 1 && r.Conditions[0] == Held
	if w.held {
		w.q = PageQuery{Order: ByDue, After: Cursor{DueAt: Never - 1, Scope: lastScope}, DueUntil: Never, Lean: true}
	} else if pendingOnly(r.Conditions) {
		w.q.States = []State{Pending}
	}
	if r.PageToken == "" {
		return w, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(r.PageToken)
	var token listToken
	if err == nil {
		err = json.Unmarshal(raw, &token)
	}
	if err != nil || token.Filter != r.filter() || len(token.Scope) != len(ScopeID{}) || token.Shard < 0 || token.Shard >= Shards {
		return nil, invalid(ReasonInvalidPage, "page_token", "must be the next_page_token of the page before, with the same filters")
	}
	w.q.Shard, w.q.CreatedUntil = token.Shard, token.Until
	w.q.After = Cursor{Tenant: token.Tenant, Operation: token.Op, DueAt: token.Due, Incarnation: token.Created, Scope: ScopeID(token.Scope)}
	return w, nil
}

// filter is a digest of what narrows the list. It guards against mistakes, not against forgery: a made-up token shows nothing that its caller
// could not list anyway.
func (r *ListRequest) filter() uint64 {
	conditions := slices.Clone(r.Conditions)
	slices.Sort(conditions)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%q %q %d %d %t", r.Tenant, r.Operation, conditions, r.OlderThan, r.DoubtOnly)
	return h.Sum64()
}

func pendingOnly(conditions []Condition) bool {
	for _, c := range conditions {
		if c != Live && c != Abandoned && c != Held {
			return false
		}
	}
	return len(conditions) > 0
}

func (w *listWalk) run(ctx context.Context) (ListResult, error) {
	var out ListResult
	for scanned := 0; scanned < listScan; {
		w.q.Limit = min(max(w.size-len(out.Entries), 1)*4, MaxPageRows)
		page, err := w.ledger.page(ctx, w.q)
		if err != nil {
			return ListResult{}, err
		}
		w.ledger.bound(&w.q, page)
		scanned += len(page.Entries) + len(page.Bad)
		for _, e := range page.Entries {
			w.q.After = CursorOf(e)
			if !w.matches(e, page.Now) {
				continue
			}
			if out.Entries = append(out.Entries, viewOf(e, page.Now)); len(out.Entries) == w.size {
				out.NextPageToken = w.token()
				return out, nil
			}
		}
		if page.More {
			w.q.After = page.Next
			continue
		}
		if !w.held || w.q.Shard == Shards-1 {
			return out, nil
		}
		w.q.Shard++
		w.q.After = Cursor{DueAt: Never - 1, Scope: lastScope}
	}
	out.NextPageToken = w.token()
	return out, nil
}

func (w *listWalk) matches(e *Entry, now Time) bool {
	condition := e.ConditionAt(now)
	if condition == Absent || w.r.OlderThan > 0 && e.Incarnation > now.Add(-w.r.OlderThan) {
		return false
	}
	if w.r.DoubtOnly && !e.Doubt {
		return false
	}
	if w.r.Tenant != "" && e.Ref.Tenant != w.r.Tenant || w.r.Operation != "" && e.Ref.Operation != w.r.Operation {
		return false
	}
	for _, c := range w.r.Conditions {
		if c == condition {
			return true
		}
	}
	return len(w.r.Conditions) == 0
}

func (w *listWalk) token() string {
	after := w.q.After
	raw, err := json.Marshal(listToken{
		Filter: w.r.filter(), Shard: w.q.Shard, Tenant: after.Tenant, Op: after.Operation, Due: after.DueAt, Created: after.Incarnation,
		Until: w.q.CreatedUntil, Scope: after.Scope[:],
	})
	if err != nil {
		return "" // a struct of plain fields always encodes
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// EraseRequest erases a tenant's entries.
type EraseRequest struct {
	Tenant string
	// CreatedUntil is the cut-off: entries created at or before it.
	CreatedUntil time.Time
	// Force erases live entries too.
	Force bool
}

// EraseProgress is what an erasure has done so far.
type EraseProgress struct {
	Examined int64
	Erased   int64
	// Skipped are live entries that were left as they are; SkippedEntries are those since the report before.
	Skipped        int64
	SkippedEntries []SkippedEntry
	Done           bool
}

// SkippedEntry is an entry that was not erased.
type SkippedEntry struct {
	// LogKey stands for its scope, as in [Ledger.LogKey].
	LogKey     string
	Condition  Condition
	LeaseUntil Time
}

// Erase takes everything personal out of a tenant's entries: answers, evidence, holders, principals, reasons, and tenant, operation and key
// themselves. A tombstone stays, so that a late retry is still recognised. It takes what stood when it began, also with a cut-off in the
// future, and can be resent until it reports nothing skipped. It refuses with INVALID_TENANT, INVALID_REQUEST and STORE_UNAVAILABLE; and, having
// erased all else, with BAD_ROW where a row could not be.
func (l *Ledger) Erase(ctx context.Context, caller Caller, r EraseRequest, progress func(EraseProgress) error) (EraseProgress, error) {
	var total EraseProgress
	if refusal := validatePart(ReasonInvalidTenant, "tenant", r.Tenant, MaxTenantChars); refusal != nil {
		return total, refusal
	}
	if r.CreatedUntil.IsZero() || r.CreatedUntil.UnixMicro() <= 0 {
		return total, invalid(ReasonInvalidRequest, "created_until", "must be set: entries created after it are kept")
	}
	caller.Operator = true
	var left int64
	until := Time(r.CreatedUntil.UnixMicro())
	q := PageQuery{Order: ByName, Tenant: r.Tenant, CreatedUntil: until, Limit: sweepBatch, Lean: true}
	for {
		page, err := l.page(ctx, q)
		if err != nil {
			return total, err
		}
		total.SkippedEntries = nil
		skipped := make([]*SkippedEntry, len(page.Entries))
		done, bad, err := eachEntry(page, page.Entries, func(i int, e *Entry) (err error) {
			skipped[i], err = l.eraseOne(ctx, caller, e, until, r.Force)
			return err
		})
		total.Examined, total.Erased, left = total.Examined+done+bad, total.Erased+done, left+bad
		for _, s := range skipped {
			if s != nil {
				total.Erased, total.Skipped, total.SkippedEntries = total.Erased-1, total.Skipped+1, append(total.SkippedEntries, *s)
			}
		}
		if err != nil {
			return total, err
		}
		total.Done = !page.More && left == 0
		if progress != nil {
			if err := progress(total); err != nil {
				return total, err
			}
		}
		if !page.More {
			return total, passedOver(left)
		}
		l.goOn(&q, page)
	}
}

// goOn continues a walk by name behind a page of it.
func (l *Ledger) goOn(q *PageQuery, page Page) {
	l.bound(q, page)
	q.After = page.Next
}

// bound has a walk by name stay among the entries that stood when its first page was read: a store may list by age, and the walk would follow what callers
// begin meanwhile for as long as they do.
func (l *Ledger) bound(q *PageQuery, page Page) {
	if began := page.Now.Add(l.store.Margin()); q.Order == ByName && q.After == (Cursor{}) && (q.CreatedUntil == 0 || q.CreatedUntil > began) {
		q.CreatedUntil = began
	}
}

// pageWriters is how many entries of a page an operator's call works on at once: one at a time, each write with a sync of its own, a tenant of
// millions would take hours; all at once they would crowd callers out.
const pageWriters = 8

// eachEntry does something to some entries of a page, and returns to how many it was done, and how many rows are bad, those among them that the page could
// not read. After any other error no further one is begun.
func eachEntry(page Page, entries []*Entry, do func(i int, e *Entry) error) (done, bad int64, err error) {
	bad = int64(len(page.Bad))
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, pageWriters)
	for i, e := range entries {
		places <- struct{}{}
		mu.Lock()
		failed := err != nil
		mu.Unlock()
		if failed {
			break
		}
		wg.Go(func() {
			failure := do(i, e)
			mu.Lock()
			switch {
			case failure == nil:
				done++
			case errors.Is(failure, ErrBadRow):
				bad++
			case err == nil:
				err = failure
			}
			mu.Unlock()
			<-places
		})
	}
	wg.Wait()
	return done, bad, err
}

// eraseOne erases an entry, or returns it as one that is skipped because it is live.
func (l *Ledger) eraseOne(ctx context.Context, caller Caller, e *Entry, until Time, force bool) (*SkippedEntry, error) {
	env, err := l.env(ctx, e.Ref, caller)
	if err != nil {
		return nil, err
	}
	d, err := l.carryOut(ctx, e.Scope, EraseDecision{Scope: e.Scope, CreatedUntil: until, Force: force}, env, nil)
	if err != nil {
		return nil, err
	}
	switch d.verdict.Outcome {
	case Skipped:
		return &SkippedEntry{LogKey: l.LogKey(e.Ref), Condition: d.before.ConditionAt(d.now), LeaseUntil: d.before.Last.LeaseUntil}, nil
	case Erased, Unchanged:
		return nil, nil
	default:
		// No entry: past its tombstone. What is left of the row goes now.
		if d.before != nil {
			row := Row{Scope: e.Scope, Incarnation: d.before.Incarnation, Revision: d.before.Revision}
			if _, err := l.store.Forget(ctx, []Row{row}); err != nil {
				return nil, contextOrStore(ctx, err)
			}
		}
		return nil, nil
	}
}

// ApplyRequest asks for a policy to be applied to standing entries.
type ApplyRequest struct {
	// Tenant and Operation name the policy, "*" as in a policy.
	Tenant    string
	Operation string
	// DryRun counts what would change, and changes nothing.
	DryRun bool
}

// ApplyProgress is what an application of a policy has done so far.
type ApplyProgress struct {
	Examined int64
	Changed  int64
	Done     bool
}

// ApplyPolicy brings the standing entries for which a stored policy counts under it. Retention and tombstone only ever grow. It can be resent
// after a break. It refuses with INVALID_TENANT, INVALID_OPERATION, POLICY_NOT_FOUND and STORE_UNAVAILABLE; and, having done all else, with BAD_ROW
// where a row could not be read or written.
func (l *Ledger) ApplyPolicy(ctx context.Context, r ApplyRequest, progress func(ApplyProgress) error) (ApplyProgress, error) {
	var total ApplyProgress
	if refusal := validatePart(ReasonInvalidTenant, "tenant", r.Tenant, MaxTenantChars); refusal != nil {
		return total, refusal
	}
	if refusal := validatePart(ReasonInvalidOperation, "operation", r.Operation, MaxOperationChars); refusal != nil {
		return total, refusal
	}
	if _, err := l.GetPolicy(ctx, r.Tenant, r.Operation, false); err != nil {
		return total, err
	}
	var left int64
	q := PageQuery{Order: ByName, Limit: sweepBatch, Lean: true}
	if r.Tenant != "*" {
		q.Tenant = r.Tenant
		if r.Operation != "*" {
			q.Operation = r.Operation
		}
	}
	for {
		page, err := l.page(ctx, q)
		if err != nil {
			return total, err
		}
		var changed atomic.Int64
		done, bad, err := eachEntry(page, l.policies.under(policyName{r.Tenant, r.Operation}, page.Entries), func(_ int, e *Entry) error {
			did, err := l.applyOne(ctx, e, page.Now, r.DryRun)
			if did {
				changed.Add(1)
			}
			return err
		})
		total.Examined, total.Changed, left = total.Examined+done+bad, total.Changed+changed.Load(), left+bad
		if err != nil {
			return total, err
		}
		total.Done = !page.More && left == 0
		if progress != nil {
			if err := progress(total); err != nil {
				return total, err
			}
		}
		if !page.More {
			return total, passedOver(left)
		}
		l.goOn(&q, page)
	}
}

func (l *Ledger) applyOne(ctx context.Context, e *Entry, now Time, dry bool) (bool, error) {
	env, err := l.env(ctx, e.Ref, Caller{Operator: true})
	if err != nil {
		return false, err
	}
	if dry {
		env.Now = now
		return decideApply(e, e.ConditionAt(now), env) != nil, nil
	}
	d, err := l.carryOut(ctx, e.Scope, applyDecision{}, env, nil)
	return err == nil && d.verdict.Write != nil, err
}

// TenantStats counts the entries of one tenant and operation by condition.
type TenantStats struct {
	Tenant    string
	Operation string
	Counts    map[Condition]int64
	// Doubts is how many of them are in doubt.
	Doubts map[Condition]int64
}

// StatsRequest says what to count; "" for Tenant or Operation: of every one.
type StatsRequest struct {
	Tenant    string
	Operation string
}

// Stats is the ledger in numbers.
type Stats struct {
	Now Time
	// By is sorted by tenant and operation. Erased entries stand under "" and "". Where the names come to more than maxStatsBytes, the entries of
	// those that come later are counted together, last, under "*" and "*": names of operations are callers', and however many they make up, the
	// operator must get an answer.
	By []TenantStats
	// OldestDue is when the oldest entry that is due but still there became so; OldestHeld is when the oldest held entry was left; 0 if there is
	// none.
	OldestDue  Time
	OldestHeld Time

	bytes int
}

const (
	// maxStatsBytes bounds what one answer holds, as it is counted here. Every message limit is well above.
	maxStatsBytes = 8 << 20
	// countBytes is what a count takes beside its names.
	countBytes = 48
)

// Stats counts entries by tenant, operation and condition. It reads every row, in pages: on a ledger of millions it takes seconds to minutes. It
// refuses with STORE_UNAVAILABLE. Bad rows are not counted; the log names them.
func (l *Ledger) Stats(ctx context.Context, r StatsRequest) (Stats, error) {
	var out Stats
	q := PageQuery{Order: ByName, Tenant: r.Tenant, Limit: MaxPageRows, Lean: true}
	if r.Tenant != "" {
		q.Operation = r.Operation
	}
	for {
		page, err := l.page(ctx, q)
		if err != nil {
			return Stats{}, err
		}
		out.Now = page.Now
		for _, e := range page.Entries {
			if r.Operation == "" || e.Ref.Operation == r.Operation {
				out.add(e, page.Now)
			}
		}
		if !page.More {
			return out, nil
		}
		l.goOn(&q, page)
	}
}

func (s *Stats) add(e *Entry, now Time) {
	if e.DueAt <= now && (s.OldestDue == 0 || e.DueAt < s.OldestDue) {
		s.OldestDue = e.DueAt
	}
	condition := e.ConditionAt(now)
	if condition == Absent {
		return // what no call can see any more is not counted either
	}
	by := s.by(e.Ref, condition)
	by.Counts[condition]++
	if e.Doubt {
		by.Doubts[condition]++
	}
	if since := e.abandonedSince(); condition == Held && (s.OldestHeld == 0 || since < s.OldestHeld) {
		s.OldestHeld = since
	}
}

// by is where an entry counts. Entries come sorted by tenant and operation.
func (s *Stats) by(ref Ref, condition Condition) *TenantStats {
	var last *TenantStats
	if n := len(s.By); n > 0 {
		last = &s.By[n-1]
	}
	same := last != nil && last.Tenant == ref.Tenant && last.Operation == ref.Operation
	switch {
	case last != nil && last.Tenant == every, same && last.Counts[condition] > 0:
		return last
	case !s.take(ref):
		ref.Tenant, ref.Operation = every, every
	case same:
		return last
	}
	s.By = append(s.By, TenantStats{Tenant: ref.Tenant, Operation: ref.Operation, Counts: map[Condition]int64{}, Doubts: map[Condition]int64{}})
	return &s.By[len(s.By)-1]
}

// take reports whether there is room for one more count.
func (s *Stats) take(ref Ref) bool {
	s.bytes += len(ref.Tenant) + len(ref.Operation) + countBytes
	return s.bytes <= maxStatsBytes
}
