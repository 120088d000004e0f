package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// listed reads a whole list in pages and returns the keys by condition.
func (b *bench) listed(r ledger.ListRequest) map[string]ledger.Condition {
	b.t.Helper()
	out := map[string]ledger.Condition{}
	for {
		page, err := b.ledger.List(b.t.Context(), r)
		b.must(err)
		if r.PageSize > 0 && len(page.Entries) > r.PageSize {
			b.t.Errorf("a page of %d, asked for %d", len(page.Entries), r.PageSize)
		}
		for _, v := range page.Entries {
			if _, twice := out[v.Entry.Ref.Key]; twice {
				b.t.Errorf("%q is listed twice", v.Entry.Ref.Key)
			}
			if v.Entry.Response != nil || v.Entry.Failure != nil || v.Entry.Evidence != nil {
				b.t.Errorf("%q is listed with its answer", v.Entry.Ref.Key)
			}
			out[v.Entry.Ref.Key] = v.Condition
		}
		if r.PageToken = page.NextPageToken; r.PageToken == "" {
			return out
		}
	}
}

// TestListsAreNarrowedAndPaged: every filter alone, in pages of every size, without losing or repeating an entry.
func TestListsAreNarrowedAndPaged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	everyKind(b)
	b.clock.Advance(10 * time.Minute)
	b.begin("young", "a")
	other := b.beginRequest("other tenant", "a")
	other.Ref.Tenant = "zeta"
	_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, other)
	b.must(err)
	refund := b.beginRequest("refund", "a")
	refund.Ref.Operation = "refund"
	_, err = b.ledger.Begin(t.Context(), ledger.Caller{}, refund)
	b.must(err)
	for _, size := range []int{0, 1, 2, 7, 1000} {
		count := func(r ledger.ListRequest) int { r.PageSize = size; return len(b.listed(r)) }
		for name, c := range map[string]struct {
			r    ledger.ListRequest
			want int
		}{
			"all":                    {ledger.ListRequest{}, 23},
			"a tenant":               {ledger.ListRequest{Tenant: "acme"}, 22},
			"an operation of it":     {ledger.ListRequest{Tenant: "acme", Operation: "charge"}, 21},
			"an operation":           {ledger.ListRequest{Operation: "refund"}, 1},
			"live":                   {ledger.ListRequest{Conditions: []ledger.Condition{ledger.Live}}, 3},
			"abandoned":              {ledger.ListRequest{Conditions: []ledger.Condition{ledger.Abandoned}}, 4},
			"held":                   {ledger.ListRequest{Conditions: []ledger.Condition{ledger.Held}}, 4},
			"held of a tenant":       {ledger.ListRequest{Tenant: "zeta", Conditions: []ledger.Condition{ledger.Held}}, 0},
			"abandoned or held":      {ledger.ListRequest{Conditions: []ledger.Condition{ledger.Abandoned, ledger.Held}}, 8},
			"completed":              {ledger.ListRequest{Conditions: []ledger.Condition{ledger.ConditionCompleted}}, 4},
			"old":                    {ledger.ListRequest{OlderThan: 10 * time.Minute}, 20},
			"older still":            {ledger.ListRequest{OlderThan: 10*time.Minute + time.Microsecond}, 0},
			"in doubt":               {ledger.ListRequest{DoubtOnly: true}, 8},
			"in doubt, and FINAL":    {ledger.ListRequest{DoubtOnly: true, Conditions: []ledger.Condition{ledger.ConditionFailedFinal}}, 2},
			"a tenant nobody knows":  {ledger.ListRequest{Tenant: "nobody"}, 0},
			"nothing is expired yet": {ledger.ListRequest{Conditions: []ledger.Condition{ledger.Expired, ledger.Lapsed}}, 0},
		} {
			if got := count(c.r); got != c.want {
				t.Errorf("%s, in pages of %d: %d entries, want %d", name, size, got, c.want)
			}
		}
	}
}

func TestListsAreValidated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, c := range map[string]struct {
		r    ledger.ListRequest
		want ledger.Reason
	}{
		"a large page":    {ledger.ListRequest{PageSize: 1001}, ledger.ReasonInvalidPage},
		"a negative one":  {ledger.ListRequest{PageSize: -1}, ledger.ReasonInvalidPage},
		"a made-up token": {ledger.ListRequest{PageToken: "abc"}, ledger.ReasonInvalidPage},
		"another token":   {ledger.ListRequest{PageToken: "eyJzIjo5OX0"}, ledger.ReasonInvalidPage},
		"a negative age":  {ledger.ListRequest{OlderThan: -1}, ledger.ReasonInvalidRequest},
	} {
		if _, err := b.ledger.List(t.Context(), c.r); reasonOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// TestStatsOfManyOperationsFitAMessage: callers make up names of operations. What does not fit is counted together, and nothing is left out.
func TestStatsOfManyOperationsFitAMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const operations = 8000
	long := strings.Repeat("\U0001f642", ledger.MaxOperationChars-4)
	tenant := strings.Repeat("\U0001f642", ledger.MaxTenantChars)
	for i := range operations {
		r := b.beginRequest("k", "a")
		r.Ref.Tenant, r.Ref.Operation = tenant, fmt.Sprintf("%04d", i)+long
		_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
		b.must(err)
		if i%2 == 0 {
			r.Ref.Key = "l"
			g, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
			b.must(err)
			b.fail(claim{r.Ref, g.Granted}, ledger.Unknown)
		}
	}
	stats, err := b.ledger.Stats(t.Context(), ledger.StatsRequest{})
	b.must(err)
	size, counts, doubts := 0, map[ledger.Condition]int64{}, int64(0)
	for i, by := range stats.By {
		if rest := by.Tenant == "*" && by.Operation == "*"; rest != (i == len(stats.By)-1) {
			t.Fatalf("%d of %d is of %.10q %.10q", i, len(stats.By), by.Tenant, by.Operation)
		}
		for condition, n := range by.Counts {
			size += len(by.Tenant) + len(by.Operation)
			counts[condition] += n
			doubts += by.Doubts[condition]
		}
	}
	if size > 8<<20 || size < 7<<20 {
		t.Errorf("the names come to %d bytes", size)
	}
	if counts[ledger.Live] != operations || counts[ledger.Abandoned] != operations/2 || doubts != operations/2 {
		t.Errorf("counted %v, %d in doubt", counts, doubts)
	}
	one, err := b.ledger.Stats(t.Context(), ledger.StatsRequest{Tenant: tenant, Operation: "7998" + long})
	b.must(err)
	if len(one.By) != 1 || one.By[0].Counts[ledger.Live] != 1 || one.By[0].Counts[ledger.Abandoned] != 1 {
		t.Errorf("asked for one operation: %+v", one.By)
	}
}

// TestErasingLeavesWhatWasBegunAnew: the erasure finds an entry past its tombstone, and its key is begun anew before it comes to it. That one is
// created after the cut-off.
func TestErasingLeavesWhatWasBegunAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.complete(b.begin("k", "a1"), "old")
	b.clock.Advance(2 * time.Hour) // its tombstone is past
	until := b.clock.Now().Wall()
	b.clock.Advance(time.Microsecond)
	other := benchOn(t, b.clock, b.model)
	b.faulty.Plan(storetest.On(storetest.Get, storetest.Script(storetest.Fault{Before: func(context.Context) error {
		other.complete(other.begin("k", "b1"), "new")
		return nil
	}})))
	p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: until, Force: true}, nil)
	if err != nil || !p.Done {
		t.Errorf("erased %+v, %v", p, err)
	}
	if r, err := b.tryBegin("k", "c1"); err != nil || r.Completed == nil || string(r.Completed.Response.Body) != "new" {
		t.Errorf("what was begun after the cut-off: %+v %v", r, err)
	}
}

// TestErasingWorksOnSeveralAtOnce: with a store that takes its time for each write, an erasure and an application of a policy must not take that time for
// every entry. The first failure ends them, and what was done counts.
func TestErasingWorksOnSeveralAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.policy(quick())
		const n = 80
		for i := range n {
			b.fail(b.begin("k"+itoa(i), "a"), ledger.Unknown)
		}
		p := quick()
		p.OnAbandoned = ledger.Hold
		b.policy(p)
		slow := func(context.Context) error { <-time.After(time.Second); return nil }
		b.faulty.Plan(storetest.On(storetest.Write, func(storetest.Call) storetest.Fault { return storetest.Fault{Before: slow} }))
		began := time.Now()
		applied, err := b.ledger.ApplyPolicy(t.Context(), ledger.ApplyRequest{Tenant: p.Tenant, Operation: p.Operation}, nil)
		if took := time.Since(began); err != nil || applied.Changed != n || applied.Examined != n || took > n*time.Second/4 {
			t.Errorf("applied %+v in %v: %v", applied, took, err)
		}
		began = time.Now()
		erased, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: b.clock.Now().Wall()},
			func(ledger.EraseProgress) error { return nil })
		if took := time.Since(began); err != nil || erased.Erased != n || erased.Examined != n || took > n*time.Second/4 {
			t.Errorf("erased %+v in %v: %v", erased, took, err)
		}
	})
}

// TestAWalkEndsWhileCallersBegin: it takes what stood when it began. By age, what callers begin meanwhile stands behind it, page after page; and the cut-off of
// an erasure may be in the future.
func TestAWalkEndsWhileCallersBegin(t *testing.T) {
	t.Parallel()
	const pages, enough = 6, 20
	for name, walk := range map[string]func(b *bench, page func() error) (examined int64, err error){
		"erase": func(b *bench, page func() error) (int64, error) {
			until := b.clock.Now().Wall().Add(time.Hour)
			p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: until, Force: true},
				func(ledger.EraseProgress) error { return page() })
			return p.Examined, err
		},
		"apply": func(b *bench, page func() error) (int64, error) {
			p, err := b.ledger.ApplyPolicy(t.Context(), ledger.ApplyRequest{Tenant: quick().Tenant, Operation: quick().Operation},
				func(ledger.ApplyProgress) error { return page() })
			return p.Examined, err
		},
		"stats": func(b *bench, page func() error) (int64, error) {
			var calls int
			b.faulty.Plan(storetest.On(storetest.Page, func(storetest.Call) storetest.Fault {
				calls++
				if calls == 1 {
					return storetest.Fault{}
				}
				return storetest.Fault{Before: func(context.Context) error { return page() }}
			}))
			defer b.faulty.Plan(nil)
			stats, err := b.ledger.Stats(t.Context(), ledger.StatsRequest{Tenant: "acme"})
			var n int64
			for _, s := range stats.By {
				n += s.Counts[ledger.Live]
			}
			return n, err
		},
		"list": func(b *bench, page func() error) (n int64, err error) {
			r := ledger.ListRequest{Tenant: "acme", PageSize: 200}
			for {
				list, err := b.ledger.List(t.Context(), r)
				n += int64(len(list.Entries))
				if err != nil || list.NextPageToken == "" {
					return n, err
				}
				r.PageToken = list.NextPageToken
				if n%ledger.SweepBatch == 0 {
					if err := page(); err != nil {
						return n, err
					}
				}
			}
		},
	} {
		b := newBench(t)
		b.policy(quick())
		begun, seen := 0, 0
		begin := func(n int) {
			for range n {
				begun++
				b.clock.Advance(time.Microsecond)
				b.begin("k"+itoa(begun), "a")
			}
		}
		begin(pages * ledger.SweepBatch)
		examined, err := walk(b, func() error {
			if seen++; seen > enough {
				return errors.New("it goes on and on")
			}
			begin(ledger.SweepBatch)
			return nil
		})
		if err != nil || examined != pages*ledger.SweepBatch {
			t.Errorf("%s: %d entries of %d, %v", name, examined, pages*ledger.SweepBatch, err)
		}
	}
}

// TestAPageTokenIsOfItsOwnList: under another filter it would begin in the middle of another list, and leave out what stands before.
func TestAPageTokenIsOfItsOwnList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 3 {
		b.begin("k"+itoa(i), "a")
	}
	own := ledger.ListRequest{Tenant: "acme", Conditions: []ledger.Condition{ledger.Live, ledger.Held}, PageSize: 1}
	first, err := b.ledger.List(t.Context(), own)
	b.must(err)
	own.PageToken = first.NextPageToken
	for name, change := range map[string]func(*ledger.ListRequest){
		"another tenant":    func(r *ledger.ListRequest) { r.Tenant = "zeta" },
		"every tenant":      func(r *ledger.ListRequest) { r.Tenant = "" },
		"another operation": func(r *ledger.ListRequest) { r.Operation = "charge" },
		"one condition":     func(r *ledger.ListRequest) { r.Conditions = r.Conditions[:1] },
		"another condition": func(r *ledger.ListRequest) { r.Conditions = []ledger.Condition{ledger.Held} },
		"every condition":   func(r *ledger.ListRequest) { r.Conditions = nil },
		"another age":       func(r *ledger.ListRequest) { r.OlderThan = time.Second },
		"doubt only":        func(r *ledger.ListRequest) { r.DoubtOnly = true },
	} {
		other := own
		change(&other)
		if _, err := b.ledger.List(t.Context(), other); reasonOf(err) != ledger.ReasonInvalidPage {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The size of the page and the order of conditions are no filter.
	own.PageSize, own.Conditions = 2, []ledger.Condition{ledger.Held, ledger.Live}
	if rest, err := b.ledger.List(t.Context(), own); err != nil || len(rest.Entries) != 2 {
		t.Errorf("its own list: %d entries, %v", len(rest.Entries), err)
	}
}

// TestErasingTakesEverythingPersonal, up to the cut-off, of one tenant; in pages; and it can be ended and resent.
func TestErasingTakesEverythingPersonal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	everyKind(b)
	b.clock.Advance(10 * time.Minute)
	until := b.clock.Now().Wall()
	other := b.beginRequest("other tenant", "a")
	other.Ref.Tenant = "zeta"
	_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, other)
	b.must(err)
	b.clock.Advance(time.Microsecond)
	b.begin("young", "a")

	enough := errors.New("enough")
	_, err = b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: until}, func(ledger.EraseProgress) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("told to end: %v", err)
	}
	p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: until}, nil)
	if err != nil || !p.Done || p.Skipped != 0 {
		t.Errorf("erased %+v: %v", p, err)
	}
	page, err := b.model.Page(t.Context(), ledger.PageQuery{Order: ledger.ByName, Limit: 1000})
	b.must(err)
	erased := 0
	for _, e := range page.Entries {
		if e.Ref != (ledger.Ref{}) {
			continue
		}
		erased++
		if !e.Closed || e.Response != nil || e.Failure != nil || e.Evidence != nil || e.Resolutions != nil || e.Credit {
			t.Errorf("left behind: %+v", e)
		}
		for _, a := range append(e.Earlier, e.Last) {
			if a.Holder != "" || a.Principal != "" {
				t.Errorf("left behind: %+v", a)
			}
		}
		if len(e.Fingerprints) == 0 || e.Last.IDHash == (ledger.IDHash{}) {
			t.Error("too much was taken: a late retry is not recognised")
		}
	}
	if erased != 20 || len(page.Entries) != 22 {
		t.Errorf("%d of %d rows are erased", erased, len(page.Entries))
	}
	if b.lookup("young").Condition != ledger.Live {
		t.Error("what was begun after the cut-off is gone")
	}
	for name, r := range map[string]ledger.EraseRequest{"no tenant": {CreatedUntil: until}, "no cut-off": {Tenant: "acme"}} {
		if _, err := b.ledger.Erase(t.Context(), ledger.Caller{}, r, nil); err == nil {
			t.Errorf("%s, and it erased", name)
		}
	}
}

// TestErasingForgetsWhatIsPastItsTombstone: nothing of it needs to stay.
func TestErasingForgetsWhatIsPastItsTombstone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.complete(b.begin("k", "a"), "x")
	b.clock.Advance(2 * time.Hour)
	p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: b.clock.Now().Wall()}, nil)
	b.must(err)
	if p.Erased != 1 || b.model.Len() != 0 {
		t.Errorf("%+v, %d rows left", p, b.model.Len())
	}
}

// TestApplyingAPolicy reaches the entries for which that stored policy counts, and no others; a dry run counts them.
func TestApplyingAPolicy(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	begin := func(tenant, operation string) {
		r := b.beginRequest("k", "a")
		r.Ref.Tenant, r.Ref.Operation = tenant, operation
		_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, r)
		b.must(err)
	}
	begin("acme", "charge")
	begin("zeta", "charge")
	begin("acme", "refund")
	p := quick()
	p.OnAbandoned, p.Horizons.ClientRetry = ledger.Hold, 2*time.Hour
	b.policy(p)
	p.Tenant = "zeta"
	p.Horizons.ClientRetry = 3 * time.Hour
	b.policy(p)

	apply := func(r ledger.ApplyRequest, examined, changed int64) {
		t.Helper()
		got, err := b.ledger.ApplyPolicy(t.Context(), r, nil)
		b.must(err)
		if got.Examined != examined || got.Changed != changed || !got.Done {
			t.Errorf("%+v: %+v, want %d examined and %d changed", r, got, examined, changed)
		}
	}
	apply(ledger.ApplyRequest{Tenant: "*", Operation: "charge", DryRun: true}, 1, 1)
	if b.row("k").Revision != 1 {
		t.Error("a dry run changed something")
	}
	apply(ledger.ApplyRequest{Tenant: "*", Operation: "charge"}, 1, 1)
	apply(ledger.ApplyRequest{Tenant: "*", Operation: "charge"}, 1, 0)
	apply(ledger.ApplyRequest{Tenant: "zeta", Operation: "charge"}, 1, 1)
	if e := b.row("k"); e.Terms.OnAbandoned != ledger.Hold || e.Terms.Retention != 2*time.Hour || e.HoldFrom != 0 {
		t.Errorf("under the policy: %+v", e.Terms)
	}
	b.clock.Advance(10 * time.Second)
	if b.lookup("k").Condition != ledger.Held {
		t.Error("not held")
	}
	_, err := b.ledger.ApplyPolicy(t.Context(), ledger.ApplyRequest{Tenant: "acme", Operation: "charge"}, nil)
	b.wantReason(err, ledger.ReasonPolicyNotFound)
}

// TestStatsCountWhatAnybodyCanSee, by tenant, operation and condition, with the ages that alarms need.
func TestStatsCountWhatAnybodyCanSee(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	everyKind(b)
	other := b.beginRequest("k", "a")
	other.Ref.Tenant = "zeta"
	_, err := b.ledger.Begin(t.Context(), ledger.Caller{}, other)
	b.must(err)
	b.clock.Advance(time.Hour)
	stats, err := b.ledger.Stats(t.Context(), ledger.StatsRequest{})
	b.must(err)
	if len(stats.By) != 2 || stats.By[0].Tenant != "acme" || stats.By[1].Tenant != "zeta" || stats.Now != b.clock.Now() {
		t.Fatalf("counted %+v", stats)
	}
	counts, doubts := stats.By[0].Counts, stats.By[0].Doubts
	want := map[ledger.Condition]int64{ledger.Abandoned: 1, ledger.Held: 4, ledger.Lapsed: 3, ledger.Expired: 12}
	if fmt.Sprint(counts) != fmt.Sprint(want) || doubts[ledger.Held] != 3 {
		t.Errorf("counted %v, want %v; %v in doubt", counts, want, doubts)
	}
	if stats.OldestDue != epoch.Add(time.Hour) || stats.OldestHeld != epoch {
		t.Errorf("oldest due %s, oldest held %s", at(stats.OldestDue), at(stats.OldestHeld))
	}
	b.sweep()
	stats, err = b.ledger.Stats(t.Context(), ledger.StatsRequest{Tenant: "acme", Operation: "charge"})
	b.must(err)
	if len(stats.By) != 1 || fmt.Sprint(stats.By[0].Counts) != fmt.Sprint(want) || stats.OldestDue != 0 {
		t.Errorf("after a sweep: %+v", stats)
	}
}

// TestDaemonsShareOneSecret: whoever starts first makes it, also when several start at once or the reply is lost.
func TestDaemonsShareOneSecret(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	other := benchOn(t, b.clock, b.model)
	if b.ledger.LogKey(b.ref("k")) != other.ledger.LogKey(b.ref("k")) {
		t.Error("two daemons on one store have two secrets")
	}
	c := b.begin("k", "a")
	other.complete(c, "x")

	for _, kind := range unknowns {
		model := storetest.NewModel(b.clock, 0)
		faulty := storetest.NewFaulty(model, storetest.On(storetest.PutSetting, storetest.Script(storetest.Fault{Kind: kind, LandAfter: 1})))
		first := b.open(ledger.Config{Store: faulty})
		if second := b.open(ledger.Config{Store: model}); first.LogKey(b.ref("k")) != second.LogKey(b.ref("k")) {
			t.Errorf("%s: two secrets", kind)
		}
	}
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, cfg := range map[string]ledger.Config{
		"no store":        {},
		"negative limits": {Store: b.model, Waiting: ledger.WaitLimits{Entry: -1}},
		"a wrong clamp":   {Store: b.model, Clamp: ledger.Clamp{MinRetention: 2, MaxRetention: 1}},
	} {
		if _, err := ledger.New(t.Context(), cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	b.faulty.Down()
	if _, err := ledger.New(t.Context(), ledger.Config{Store: b.faulty}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("a store that is away: %v", err)
	}
}

// TestErasingNeverShortensATombstone, not even one that a clock since put right had made long.
func TestErasingNeverShortensATombstone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	b.clock.Advance(24 * time.Hour)
	b.complete(b.begin("k", "a"), "x")
	b.clock.Advance(time.Hour)
	b.sweep()
	promised := b.row("k").ForgetAt()
	b.clock.Set(epoch)
	_, err := b.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{Tenant: "acme", CreatedUntil: epoch.Add(48 * time.Hour).Wall()}, nil)
	b.must(err)
	if got := b.row("k").ForgetAt(); got != promised {
		t.Errorf("forgotten at %s, promised until %s", at(got), at(promised))
	}
}

// TestStatsOfManyShortNamesFitAMessage: what a count takes beside its names counts too.
func TestStatsOfManyShortNamesFitAMessage(t *testing.T) {
	t.Parallel()
	counts := ledger.CountOperations(300_000)
	if counts > 200_000 || counts < 100_000 {
		t.Errorf("%d operations of a few letters are counted each by itself in one answer", counts)
	}
}
