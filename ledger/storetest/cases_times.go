package storetest

import (
	"time"

	"github.com/idemd/idemd/ledger"
)

// timeCases: times are the store's clock at the write, and what a settlement and an extension do to a row.
func timeCases() []testCase {
	out := []testCase{
		{"Ready, Get, Page and Settings tell the store's clock", clockIsTold},
		{"Margin is what the backend says", func(b *bench) {
			if got := b.Store.Margin(); got != b.f.Margin {
				b.Errorf("Margin is %v, want %v", got, b.f.Margin)
			}
		}},
		{"a first grant is stamped by the store's clock at the write", freshGrantIsStamped},
		{"an incarnation is raised above the fences that the scope had", incarnationIsRaised},
		{"a takeover is stamped by the store's clock at the write", takeoverIsStamped},
		{"a row put over a revision can start a new incarnation", newIncarnationOverRevision},
		{"absolute times are kept as they are, also past, unset and never", absoluteTimesAreKept},
		{"every mix of relative and absolute times is stamped field by field", mixedTimes},
		{"the revision of a put is the guard's and one, whatever the entry says", revisionOfPutIsIgnored},
		{"stamps of a write that waited for the row are of when it was written", stampsAfterWaiting},
	}
	for _, s := range []struct {
		name  string
		state ledger.State
		ended ledger.Ended
	}{
		{"a completion", ledger.Completed, ledger.EndedCompleted},
		{"a final failure", ledger.FailedFinal, ledger.EndedFinal},
		{"a retryable failure", ledger.FailedRetryable, ledger.EndedRetryable},
	} {
		out = append(out, testCase{s.name + " settles the row at the store's clock and starts its retention",
			func(b *bench) { settles(b, s.state, s.ended) }})
	}
	return append(out,
		testCase{"of two retentions and of two tombstones the longer wins", longerRetentionWins},
		testCase{"a claim given up leaves the row pending, in doubt and without a current attempt", givesUp},
		testCase{"a claim given up within reach of its hold is never due", givesUpHeld},
		testCase{"a claim given up keeps the retention it had", givingUpKeepsTerms},
		testCase{"an extension renews the lease from the write, by the attempt's own length or a new one", extends},
		testCase{"an extension adds the margin to when others may take over, not to the lease", extensionMargin},
		testCase{"an extension within reach of the hold is never due", extensionHeld},
		testCase{"an extension of a claim whose lease is over starts from the write", extensionAfterLease},
		testCase{"an extension never shortens a lease, and one that would leaves the row as it is", extensionThatWouldShorten},
		testCase{"a lease that no clock since can have given is cut to its own length", extensionAfterClockSetBack},
	)
}

func clockIsTold(b *bench) {
	for _, step := range []time.Duration{0, b.tick, time.Second, 40 * 24 * time.Hour} {
		b.Clock.Advance(step)
		want := b.Clock.Now()
		ready, err := b.Store.Ready(b.ctx)
		if err != nil || ready != want {
			b.Errorf("Ready answers %d, %v, want %d", ready, err, want)
		}
		b.get(b.scope())
		page, err := b.Store.Page(b.ctx, ledger.PageQuery{Order: ledger.ByName, Limit: 1})
		if err != nil || page.Now != want {
			b.Errorf("Page answers the time %d, %v, want %d", page.Now, err, want)
		}
		settings, err := b.Store.Settings(b.ctx, "policy")
		if err != nil || settings.Now != want {
			b.Errorf("Settings answers the time %d, %v, want %d", settings.Now, err, want)
		}
	}
}

func freshGrantIsStamped(b *bench) {
	e := b.claim()
	e.HoldFrom = ledger.In(20 * time.Minute)
	b.Clock.Advance(3 * time.Second) // between the making of the entry and its writing
	now := b.Clock.Now()
	row := b.put(e)
	for _, x := range []struct {
		name      string
		got, want ledger.Time
	}{
		{"incarnation", row.Incarnation, now},
		{"began", row.Last.BeganAt, now},
		{"lease until", row.Last.LeaseUntil, now.Add(claimLease)},
		{"hold from", row.HoldFrom, now.Add(20 * time.Minute)},
		{"due", row.DueAt, now.Add(claimLease + claimRetention)},
		{"ended", row.Last.EndedAt, 0},
		{"settled", row.SettledAt, 0},
		{"abandoned", row.AbandonedAt, 0},
		{"revision", ledger.Time(row.Revision), 1},
	} {
		if x.got != x.want {
			b.Errorf("%s is %d, want %d", x.name, x.got, x.want)
		}
	}
}

func incarnationIsRaised(b *bench) {
	now := b.Clock.Now()
	for _, x := range []struct{ minimum, want ledger.Time }{
		{0, now}, {now - 1, now}, {now, now}, {now + 1, now + 1}, {now.Add(time.Hour), now.Add(time.Hour)},
	} {
		w := fresh(b.claim())
		w.MinIncarnation = x.minimum
		if row := b.mustApply(w); row.Incarnation != x.want || row.Last.BeganAt != now {
			b.Errorf("at %d with minimum %d: incarnation %d and began %d, want %d and %d",
				now, x.minimum, row.Incarnation, row.Last.BeganAt, x.want, now)
		}
	}
	absolute := b.claim()
	absolute.Incarnation = now - 17
	w := fresh(absolute)
	w.MinIncarnation = now.Add(time.Hour)
	if row := b.mustApply(w); row.Incarnation != now-17 {
		b.Errorf("the minimum raised an absolute incarnation from %d to %d", now-17, row.Incarnation)
	}
}

func takeoverIsStamped(b *bench) {
	row := b.put(b.claim())
	b.Clock.Advance(time.Minute)
	next := copyEntry(row)
	ended := next.Last
	ended.Ended, ended.EndedAt = ledger.EndedTakenOver, b.Clock.Now()
	next.Earlier = append(next.Earlier, ended)
	next.Last = ledger.Attempt{
		Number: 2, IDHash: b.idHash(), Lease: time.Minute, BeganAt: ledger.In(0), LeaseUntil: ledger.In(time.Minute),
	}
	next.Doubt, next.DueAt = true, ledger.In(time.Minute+claimRetention)
	b.Clock.Advance(5 * time.Second)
	now := b.Clock.Now()
	got := b.mustApply(over(row, next))
	if got.Incarnation != row.Incarnation || got.Last.BeganAt != now || got.Last.LeaseUntil != now.Add(time.Minute) ||
		got.DueAt != now.Add(time.Minute+claimRetention) || got.Earlier[0].EndedAt != ended.EndedAt {
		b.Errorf("at %d the takeover left %+v due %d", now, got.Last, got.DueAt)
	}
}

func newIncarnationOverRevision(b *bench) {
	row := b.put(b.claim())
	for _, ahead := range []ledger.Time{-5, 0, 1, 64} {
		next := b.claim()
		next.Scope = row.Scope
		b.Clock.Advance(b.tick)
		now := b.Clock.Now()
		w := over(row, next)
		w.MinIncarnation = now + ahead
		row = b.mustApply(w)
		if want := max(now, now+ahead); row.Incarnation != want {
			b.Errorf("incarnation is %d, want %d", row.Incarnation, want)
		}
	}
	if row.Revision != 5 {
		b.Errorf("revision is %d after five writes", row.Revision)
	}
}

func absoluteTimesAreKept(b *bench) {
	for _, t := range []ledger.Time{1, b.Clock.Now() - 1, b.Clock.Now().Add(time.Hour), ledger.Never - 1, ledger.Never, 0} {
		e := b.claim()
		e.Incarnation = max(t, 1)
		e.HoldFrom, e.DueAt, e.AbandonedAt, e.SettledAt = t, t, t, t
		e.Last.BeganAt, e.Last.LeaseUntil, e.Last.EndedAt = t, t, t
		want := copyEntry(e)
		want.Revision = 1
		if diff := differences(want, b.put(e)); diff != "" {
			b.Errorf("at %d: %s", t, diff)
		}
	}
}

func mixedTimes(b *bench) {
	row := b.put(b.claim())
	for range 60 {
		b.Clock.Advance(time.Duration(b.IntN(1000)) * b.tick)
		e := b.entry(row.Scope)
		for _, t := range []*ledger.Time{
			&e.Incarnation, &e.HoldFrom, &e.DueAt, &e.AbandonedAt, &e.SettledAt, &e.Last.BeganAt, &e.Last.LeaseUntil, &e.Last.EndedAt,
		} {
			if b.IntN(2) == 0 {
				*t = ledger.In(b.length())
			}
		}
		w := over(row, e)
		if b.IntN(2) == 0 {
			w.MinIncarnation = b.Clock.Now() + ledger.Time(b.IntN(10)) - 5
		}
		row = b.mustApply(w)
	}
}

func revisionOfPutIsIgnored(b *bench) {
	e := b.claim()
	e.Revision = 41
	row := b.put(e)
	next := copyEntry(row)
	next.Revision = 7
	if got := b.mustApply(over(row, next)); got.Revision != 2 {
		b.Errorf("revision is %d after two writes", got.Revision)
	}
}

func stampsAfterWaiting(b *bench) {
	if b.Block == nil {
		b.Skip("nothing can make a write wait in this backend")
	}
	row := b.put(b.claim())
	waiting, release := b.Block(b, row.Scope)
	done := make(chan ledger.Written, 1)
	go func() {
		written, err := persist(b.ctx, b.Store, ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
		if err != nil {
			b.Errorf("the write that waited: %v", err)
		}
		done <- written
	}()
	for !waiting() {
		if b.ctx.Err() != nil {
			b.Fatal("no write came to wait for the row")
		}
	}
	b.Clock.Advance(5 * time.Second)
	release()
	if written, want := <-done, b.Clock.Now().Add(claimLease); written.Stamps.LeaseUntil != want {
		b.Errorf("the lease ends at %d, want %d: a claim must not be over when its write comes through", written.Stamps.LeaseUntil, want)
	}
}

func settles(b *bench, state ledger.State, ended ledger.Ended) {
	row := b.put(b.claim())
	b.Clock.Advance(4 * time.Second)
	now := b.Clock.Now()
	s := ledger.Settle{State: state, Ended: ended, Report: b.digest(), Retention: claimRetention, Tombstone: claimTombstone}
	if state == ledger.Completed {
		s.Response = b.response()
	} else {
		s.Failure = b.failure()
	}
	want := copyEntry(row)
	want.Revision, want.State = 2, state
	want.Last.EndedAt, want.Last.Ended, want.Last.Report = now, ended, s.Report
	want.SettledAt, want.SettledBy, want.Settlement = now, 1, s.Report
	want.Response, want.Failure = copyResponse(s.Response), copyFailure(s.Failure)
	want.DueAt = now.Add(claimRetention)
	got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: &s})
	if diff := differences(want, got); diff != "" {
		b.Errorf("settled at %d: %s", now, diff)
	}
}

func longerRetentionWins(b *bench) {
	for _, x := range []struct{ ownRetention, ownTombstone, retention, tombstone, wantRetention, wantTombstone time.Duration }{
		{time.Hour, time.Hour, time.Minute, time.Minute, time.Hour, time.Hour},
		{time.Hour, time.Hour, 24 * time.Hour, 48 * time.Hour, 24 * time.Hour, 48 * time.Hour},
		{time.Hour, 0, time.Minute, 24 * time.Hour, time.Hour, 24 * time.Hour},
		{time.Hour, 24 * time.Hour, 2 * time.Hour, 0, 2 * time.Hour, 24 * time.Hour},
		{time.Hour, 0, 0, 0, time.Hour, 0},
		{time.Hour, time.Hour, time.Hour, time.Hour, time.Hour, time.Hour},
		{ledger.MaxRetention, 0, time.Hour, ledger.MaxRetention, ledger.MaxRetention, ledger.MaxRetention},
	} {
		e := b.claim()
		e.Terms.Retention, e.Terms.Tombstone = x.ownRetention, x.ownTombstone
		row := b.put(e)
		s := b.completion()
		s.Retention, s.Tombstone = x.retention, x.tombstone
		got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
		if got.Terms.Retention != x.wantRetention || got.Terms.Tombstone != x.wantTombstone ||
			got.DueAt != b.Clock.Now().Add(x.wantRetention) {
			b.Errorf("%+v: retention %v, tombstone %v, due %d after settlement", x, got.Terms.Retention, got.Terms.Tombstone,
				got.DueAt-b.Clock.Now())
		}
	}
}

func givesUp(b *bench) {
	e := b.claim()
	e.HoldFrom = ledger.In(100 * time.Hour)
	row := b.put(e)
	b.Clock.Advance(4 * time.Second)
	now := b.Clock.Now()
	s := b.givingUp()
	want := copyEntry(row)
	want.Revision, want.Current, want.Doubt, want.AbandonedAt = 2, false, true, now
	want.Last.EndedAt, want.Last.Ended, want.Last.Report = now, ledger.EndedGaveUp, s.Report
	want.DueAt = now.Add(claimRetention)
	got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
	if diff := differences(want, got); diff != "" {
		b.Errorf("given up at %d: %s", now, diff)
	}
	for _, kind := range []string{"complete", "fail", "give up", "extend"} {
		b.expect(b.claimed(kind, row), false)
	}
}

func givesUpHeld(b *bench) {
	for _, x := range []struct {
		holdFrom ledger.Time
		never    bool
	}{
		{0, true},
		{ledger.In(claimRetention - b.tick), true},
		{ledger.In(claimRetention), true},
		{ledger.In(claimRetention + b.tick), false},
		{ledger.Never, false},
	} {
		e := b.claim()
		e.HoldFrom = x.holdFrom
		row := b.put(e)
		got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: b.givingUp()})
		want := b.Clock.Now().Add(claimRetention)
		if x.never {
			want = ledger.Never
		}
		if got.DueAt != want || got.HoldFrom != row.HoldFrom {
			b.Errorf("held from %d: due %d, want %d", got.HoldFrom, got.DueAt, want)
		}
	}
}

func givingUpKeepsTerms(b *bench) {
	row := b.put(b.claim())
	s := b.givingUp()
	s.Retention, s.Tombstone = 100*claimRetention, 100*claimTombstone
	got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Settle: s})
	if got.Terms != row.Terms {
		b.Errorf("terms are %+v, want %+v: only a settlement lengthens them", got.Terms, row.Terms)
	}
}

func extends(b *bench) {
	row := b.put(b.claim())
	for _, x := range []struct{ lease, want time.Duration }{
		{0, claimLease}, {time.Minute, time.Minute}, {0, time.Minute}, {time.Hour, time.Hour}, {0, time.Hour},
	} {
		b.Clock.Advance(500 * time.Millisecond)
		now := b.Clock.Now()
		want := copyEntry(row)
		want.Revision++
		want.Last.Lease, want.Last.LeaseUntil, want.DueAt = x.want, now.Add(x.want), now.Add(x.want+claimRetention)
		row = b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{Lease: x.lease}})
		if diff := differences(want, row); diff != "" {
			b.Errorf("extended by %v at %d: %s", x.lease, now, diff)
		}
	}
}

func extensionMargin(b *bench) {
	row := b.put(b.claim())
	for _, lease := range []time.Duration{0, 30 * time.Second} {
		row = b.mustApply(ledger.Write{
			Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{Lease: lease, Margin: 500 * time.Millisecond},
		})
		length := max(lease, claimLease)
		until := b.Clock.Now().Add(length + 500*time.Millisecond)
		if row.Last.Lease != length || row.Last.LeaseUntil != until || row.DueAt != until.Add(claimRetention) {
			b.Errorf("lease %v until %d, due %d, want %v until %d", row.Last.Lease, row.Last.LeaseUntil, row.DueAt, length, until)
		}
	}
}

func extensionHeld(b *bench) {
	reach := claimLease + claimRetention
	for _, x := range []struct {
		holdFrom ledger.Time
		never    bool
	}{
		{0, true}, {ledger.In(reach - b.tick), true}, {ledger.In(reach), true}, {ledger.In(reach + b.tick), false}, {ledger.Never, false},
	} {
		e := b.claim()
		e.HoldFrom = x.holdFrom
		row := b.put(e)
		got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
		want := b.Clock.Now().Add(reach)
		if x.never {
			want = ledger.Never
		}
		if got.DueAt != want {
			b.Errorf("held from %d: due %d, want %d", got.HoldFrom, got.DueAt, want)
		}
	}
}

func extensionAfterLease(b *bench) {
	row := b.put(b.claim())
	b.Clock.Advance(10 * claimLease)
	got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{}})
	if want := b.Clock.Now().Add(claimLease); got.Last.LeaseUntil != want {
		b.Errorf("the lease ends at %d, want %d", got.Last.LeaseUntil, want)
	}
}

// extensionThatWouldShorten: an Extend whose outcome was unknown lands behind a longer one. What the holder was told must stay true.
func extensionThatWouldShorten(b *bench) {
	row := b.put(b.claim())
	extend := func(lease time.Duration) *ledger.Entry {
		return b.mustApply(ledger.Write{
			Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{Lease: lease, Margin: 500 * time.Millisecond},
		})
	}
	long := extend(10 * time.Minute)
	for _, late := range []time.Duration{time.Second, claimLease, 9 * time.Minute} {
		b.Clock.Advance(time.Second)
		want := copyEntry(long)
		want.Revision++
		long = extend(late)
		if diff := differences(want, long); diff != "" {
			b.Errorf("extended by %v with more than that left: %s", late, diff)
		}
	}
	// "As long as before" is as long as the lease that stands. And a holder that wants a shorter one has it once the longer one is used up.
	b.Clock.Advance(time.Second)
	if got, want := extend(0), b.Clock.Now().Add(10*time.Minute+500*time.Millisecond); got.Last.LeaseUntil != want {
		b.Errorf("extended by the claim's own length until %d, want %d", got.Last.LeaseUntil, want)
	}
	for _, left := range []time.Duration{time.Minute + b.tick, time.Minute} {
		b.Clock.Advance(b.get(row.Scope).Last.LeaseUntil.Sub(b.Clock.Now()) - left - 500*time.Millisecond)
		want := 10 * time.Minute
		if left == time.Minute {
			want = time.Minute
		}
		if got := extend(time.Minute); got.Last.Lease != want || got.Last.LeaseUntil != b.Clock.Now().Add(left+500*time.Millisecond) {
			b.Errorf("with %v left, extended by a minute: a lease of %v until %d", left, got.Last.Lease, got.Last.LeaseUntil)
		}
	}
}

// extensionAfterClockSetBack: the clock was a year ahead when the lease was given.
func extensionAfterClockSetBack(b *bench) {
	for _, x := range []struct{ lease, want time.Duration }{
		{0, claimLease}, {time.Second, claimLease}, {time.Minute, time.Minute},
	} {
		e := b.claim()
		e.Last.LeaseUntil = b.Clock.Now().Add(365 * 24 * time.Hour)
		e.DueAt = e.Last.LeaseUntil.Add(claimRetention)
		row := b.put(e)
		got := b.mustApply(ledger.Write{Scope: row.Scope, Guard: claimOf(row), Extend: &ledger.Extend{Lease: x.lease}})
		until := b.Clock.Now().Add(x.want)
		if got.Last.Lease != x.want || got.Last.LeaseUntil != until || got.DueAt != until.Add(claimRetention) {
			b.Errorf("extended by %v: a lease of %v until %d, due %d", x.lease, got.Last.Lease, got.Last.LeaseUntil, got.DueAt)
		}
	}
}
