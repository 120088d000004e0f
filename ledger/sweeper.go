package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	sweepKind         = "sweep"
	defaultSweepEvery = time.Minute
	// sweepTurn is how long a daemon has the turn to sweep without renewing it. It is renewed after each batch.
	sweepTurn = 30 * time.Second
	// sweepBatch is how many entries one page of a sweep reads, sweepWriters how many of them are written at once while callers are at work. While there are
	// none, whatever a page has to write may share the store's transactions.
	sweepBatch   = 500
	sweepWriters = 32
	// giveTurnTimeout bounds the last write of a sweep whose caller went away.
	giveTurnTimeout = 2 * time.Second
	// sweepYield is the longest pause after a batch.
	sweepYield = 250 * time.Millisecond
	// sweepRescan is how often the remembered bounds are dropped and everything due is looked at from the start: a clock that was set back
	// could have stamped an entry behind a bound.
	sweepRescan = 24 * time.Hour
)

// SweepRequest asks for one sweep.
type SweepRequest struct {
	// DryRun counts what a sweep would do, and changes nothing.
	DryRun bool
	// Limit is how many entries to examine at the most; 0: all that are due.
	Limit int
}

// SweepProgress is what a sweep has done so far.
type SweepProgress struct {
	Examined int64
	// Closed lost their answer and left a tombstone; Lapsed likewise, from pending; Forgotten are gone; Held became held.
	Closed    int64
	Lapsed    int64
	Forgotten int64
	Held      int64
	// Missed changed, or could not be read or written, while the sweep looked at them; a later sweep comes back to them.
	Missed int64
	Done   bool
	// OldestDue is the due time of the oldest entry left behind; 0 if none.
	OldestDue Time
	Now       Time
}

// sweeper forgets what is past its time: bounded batches, from remembered bounds, on one daemon at a time.
type sweeper struct {
	ledger *Ledger
	every  time.Duration

	shards []int // the parts of the order by due time

	mu     sync.Mutex // one sweep at a time in this daemon
	bounds []Cursor   // of each of shards
	since  time.Time  // when the bounds were last dropped, by the monotonic clock
	calls  int64      // how many calls of callers there had been at the last look
	busy   bool       // there had been some since the look before
}

func newSweeper(l *Ledger, every time.Duration) *sweeper {
	s := &sweeper{ledger: l, every: orDefault(every, defaultSweepEvery)}
	if _, whole := l.store.(Unsharded); whole {
		s.shards = []int{AllShards}
	} else {
		for shard := range Shards {
			s.shards = append(s.shards, shard)
		}
	}
	s.bounds = make([]Cursor, len(s.shards))
	return s
}

func (s *sweeper) run(ctx context.Context) {
	if s.every < 0 {
		return
	}
	for {
		timer := time.NewTimer(s.every/2 + rand.N(s.every))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		_, err := s.sweep(ctx, SweepRequest{}, nil)
		if err != nil && ctx.Err() == nil && !errors.Is(err, &Refusal{Reason: ReasonSweepElsewhere}) {
			s.ledger.log.WarnContext(ctx, "sweep failed", "error", err)
		}
		s.watch(ctx)
	}
}

// Sweep closes and forgets what is due, now, and tells progress after each batch; a progress that returns an error ends the sweep. Never touches a live
// claim nor anything held. It refuses with SWEEP_ELSEWHERE while another daemon sweeps, and STORE_UNAVAILABLE.
func (l *Ledger) Sweep(ctx context.Context, r SweepRequest, progress func(SweepProgress) error) (SweepProgress, error) {
	return l.sweeper.sweep(ctx, r, progress)
}

func (s *sweeper) sweep(ctx context.Context, r SweepRequest, progress func(SweepProgress) error) (SweepProgress, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.DryRun {
		if err := s.takeTurn(ctx); err != nil {
			return SweepProgress{}, err
		}
		defer s.giveTurn(ctx)
	}
	if s.since.IsZero() || time.Since(s.since) > sweepRescan {
		clear(s.bounds)
		s.since = time.Now()
	}
	s.look()
	var total SweepProgress
	for i := range s.shards {
		if err := s.sweepShard(ctx, i, r, &total, progress); err != nil {
			return total, err
		}
		if r.Limit > 0 && total.Examined >= int64(r.Limit) {
			break
		}
	}
	total.Done = true
	if progress != nil {
		return total, progress(total)
	}
	return total, nil
}

// sweepShard sweeps one of the shards.
func (s *sweeper) sweepShard(ctx context.Context, i int, r SweepRequest, total *SweepProgress, progress func(SweepProgress) error) error {
	after := s.bounds[i]
	left := Cursor{}
	for {
		began := time.Now()
		limit := sweepBatch
		if r.Limit > 0 {
			limit = min(limit, r.Limit-int(total.Examined))
		}
		if limit <= 0 {
			return nil
		}
		page, err := s.ledger.page(ctx, PageQuery{Order: ByDue, Shard: s.shards[i], After: after, Limit: limit})
		if err != nil {
			return err
		}
		total.Now = page.Now
		batch, first := s.sweepEntries(ctx, page, r.DryRun)
		batch.addTo(total)
		if first != nil && (total.OldestDue == 0 || first.DueAt < total.OldestDue) {
			total.OldestDue = first.DueAt
		}
		if first != nil && left == (Cursor{}) {
			// The next sweep starts at the first entry that this one left behind.
			left = Cursor{DueAt: first.DueAt - 1}
		}
		after = page.Next
		if !r.DryRun {
			if s.bounds[i] = after; left != (Cursor{}) {
				s.bounds[i] = left
			}
			s.ledger.observer.Swept(batch)
			if err := s.takeTurn(ctx); err != nil {
				return err
			}
		}
		if progress != nil {
			if err := progress(*total); err != nil {
				return err
			}
		}
		if len(page.Entries)+len(page.Bad) == 0 {
			return nil
		}
		if err := s.yield(ctx, time.Since(began)); err != nil {
			return err
		}
		if !page.More {
			return nil
		}
	}
}

// look sees whether anybody calls.
func (s *sweeper) look() {
	calls := s.ledger.calls.Load()
	s.busy, s.calls = calls != s.calls, calls
}

// yield leaves the store to callers for as long as the last batch took it, if there are any.
func (s *sweeper) yield(ctx context.Context, took time.Duration) error {
	if s.look(); !s.busy {
		return ctx.Err()
	}
	timer := time.NewTimer(min(took, sweepYield))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (p SweepProgress) addTo(total *SweepProgress) {
	total.Examined += p.Examined
	total.Closed += p.Closed
	total.Lapsed += p.Lapsed
	total.Forgotten += p.Forgotten
	total.Held += p.Held
	total.Missed += p.Missed
}

// sweepEntries does what is due for one page, and returns the first entry it had to leave behind.
func (s *sweeper) sweepEntries(ctx context.Context, page Page, dry bool) (SweepProgress, *Entry) {
	bad := int64(len(page.Bad))
	batch := SweepProgress{Examined: int64(len(page.Entries)) + bad, Missed: bad, Now: page.Now}
	var forget []Row
	var writes []*Write
	for _, e := range page.Entries {
		action, w := DecideSweep(e, page.Now)
		switch action {
		case SweepNothing:
		case SweepForget:
			forget = append(forget, Row{Scope: e.Scope, Incarnation: e.Incarnation, Revision: e.Revision})
			batch.Forgotten++
		case SweepClose:
			batch.Closed++
		case SweepLapse:
			batch.Lapsed++
		case SweepHold:
			batch.Held++
		}
		if w != nil {
			writes = append(writes, w)
		}
	}
	if dry {
		return batch, nil
	}
	missed := map[ScopeID]bool{}
	s.writeAll(ctx, writes, missed)
	if len(forget) > 0 {
		n, err := s.ledger.store.Forget(ctx, forget)
		if err != nil || n < len(forget) {
			// Which ones stayed is not told: look at all of them again.
			for _, row := range forget {
				missed[row.Scope] = true
			}
			batch.Forgotten = int64(n)
		}
	}
	batch.Missed += int64(len(missed))
	for _, e := range page.Entries {
		if missed[e.Scope] {
			return batch, e
		}
	}
	return batch, nil
}

func (s *sweeper) writeAll(ctx context.Context, writes []*Write, missed map[ScopeID]bool) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	atOnce := sweepBatch
	if s.busy {
		atOnce = sweepWriters
	}
	places := make(chan struct{}, atOnce)
	for _, w := range writes {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			written, err := s.ledger.store.Write(ctx, *w)
			err = s.ledger.named(ctx, w.Scope, err)
			if err != nil || !written.Applied {
				mu.Lock()
				missed[w.Scope] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// sweepTurnBody is who sweeps, and until when by the store's clock.
type sweepTurnBody struct {
	Daemon string
	Until  Time
}

// takeTurn makes this daemon the one that sweeps, or renews its turn.
func (s *sweeper) takeTurn(ctx context.Context) error {
	for try := range 3 {
		settings, err := s.ledger.store.Settings(ctx, sweepKind)
		if err != nil {
			return contextOrStore(ctx, err)
		}
		var turn sweepTurnBody
		revision := int64(0)
		for _, have := range settings.List {
			revision = have.Revision
			if err := json.Unmarshal(have.Body, &turn); err != nil {
				return &Refusal{Reason: ReasonInternal, Message: "the sweep's turn cannot be read", Cause: err}
			}
		}
		mine := turn.Daemon == s.ledger.daemon
		if !mine && settings.Now < turn.Until {
			r := refuse(ReasonSweepElsewhere, "another daemon sweeps now")
			r.RetryAfter = turn.Until.Sub(settings.Now)
			return r
		}
		if !mine && try == 0 {
			clear(s.bounds)
		}
		ok, err := s.putTurn(ctx, sweepTurnBody{Daemon: s.ledger.daemon, Until: settings.Now.Add(sweepTurn)}, revision)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return contextOrStore(ctx, err)
		}
		if ok {
			return nil
		}
	}
	r := refuse(ReasonSweepElsewhere, "another daemon took the turn to sweep")
	r.RetryAfter = sweepTurn
	return r
}

func (s *sweeper) putTurn(ctx context.Context, turn sweepTurnBody, revision int64) (bool, error) {
	body, err := json.Marshal(turn)
	if err != nil {
		return false, err
	}
	return s.ledger.store.PutSetting(ctx, Setting{Kind: sweepKind, Name: "turn", Body: body}, revision)
}

// giveTurn lets another daemon sweep next, at once; also where the caller has gone away.
func (s *sweeper) giveTurn(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTurnTimeout)
	defer cancel()
	settings, err := s.ledger.store.Settings(ctx, sweepKind)
	if err != nil || len(settings.List) == 0 {
		return
	}
	// If this fails the turn ends by itself.
	_, _ = s.putTurn(ctx, sweepTurnBody{Daemon: s.ledger.daemon}, settings.List[0].Revision)
}

// watch tells the observer how old the oldest overdue entry is, and how many are held and since when.
func (s *sweeper) watch(ctx context.Context) {
	var oldestDue, oldestHeld time.Duration
	held := 0
	s.mu.Lock()
	bounds := slices.Clone(s.bounds)
	s.mu.Unlock()
	for i, shard := range s.shards {
		due, err := s.overdueIn(ctx, shard, bounds[i])
		if err != nil {
			return
		}
		oldestDue = max(oldestDue, due)
		n, oldest, err := s.heldIn(ctx, shard)
		if err != nil {
			return
		}
		held += n
		oldestHeld = max(oldestHeld, oldest)
	}
	s.ledger.observer.Overdue(oldestDue, oldestHeld, held)
}

// overdueIn is for how long the oldest entry of one shard behind after has been due, of those that can be read: bad rows stand in front of it for good where
// another daemon sweeps.
func (s *sweeper) overdueIn(ctx context.Context, shard int, after Cursor) (time.Duration, error) {
	for q := (PageQuery{Order: ByDue, Shard: shard, After: after, Limit: 1, Lean: true}); ; q.Limit = MaxPageRows {
		page, err := s.ledger.page(ctx, q)
		switch {
		case err != nil:
			return 0, err
		case len(page.Entries) > 0:
			return page.Now.Sub(page.Entries[0].DueAt), nil
		case !page.More:
			return 0, nil
		}
		q.After = page.Next
	}
}

// heldIn counts the held entries of one shard: those that wait for nothing but somebody to settle them stand at the end of the order by due
// time.
func (s *sweeper) heldIn(ctx context.Context, shard int) (n int, oldest time.Duration, err error) {
	q := PageQuery{Order: ByDue, Shard: shard, After: Cursor{DueAt: Never - 1, Scope: lastScope}, DueUntil: Never, Limit: MaxPageRows, Lean: true}
	for {
		page, err := s.ledger.page(ctx, q)
		if err != nil {
			return 0, 0, err
		}
		for _, e := range page.Entries {
			if e.ConditionAt(page.Now) == Held {
				n++
				oldest = max(oldest, page.Now.Sub(e.abandonedSince()))
			}
		}
		if !page.More {
			return n, oldest, nil
		}
		q.After = page.Next
	}
}

var lastScope = func() (id ScopeID) {
	for i := range id {
		id[i] = 0xff
	}
	return id
}()

// abandonedSince is when a pending entry was left by its last holder, as far as is known.
func (e *Entry) abandonedSince() Time {
	if e.Current {
		return e.Last.LeaseUntil
	}
	return e.AbandonedAt
}

func (l *Ledger) page(ctx context.Context, q PageQuery) (Page, error) {
	began := time.Now()
	page, err := l.store.Page(ctx, q)
	l.observer.StoreCall("page", time.Since(began), err)
	l.presence.observe(ctx, page.Now, err)
	if err != nil {
		return Page{}, contextOrStore(ctx, err)
	}
	for _, bad := range page.Bad {
		_ = l.named(ctx, bad.Scope, bad.Err)
	}
	return page, nil
}
