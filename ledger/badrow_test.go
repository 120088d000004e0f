package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// spoil settles an entry and puts nonsense in place of its answer.
func (b *bench) spoil(key string) (claim, ledger.ScopeID) {
	b.t.Helper()
	c := b.begin(key, "a1")
	b.complete(c, "x")
	scope := b.ledger.Secret().Scope(c.ref)
	b.model.Spoil(scope)
	return c, scope
}

// wantBadRow checks that err refuses for a bad row, for good, and says what helps.
func (b *bench) wantBadRow(what string, err error) {
	b.t.Helper()
	var r *ledger.Refusal
	if !errors.As(err, &r) || r.Reason != ledger.ReasonBadRow || r.RetryAfter != 0 || r.Metadata["help"] == "" {
		b.t.Errorf("%s: %#v, want BAD_ROW, without a time to retry and with help", what, err)
	}
}

// TestABadRowIsNoOutage: whatever is asked of a bad row is refused, for good; all else goes on, and nobody waits for holders to come back.
func TestABadRowIsNoOutage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.policy(quick())
	floor := b.ledger.Floor()
	b.begin("left", "a1")
	bad, _ := b.spoil("bad")
	stands := b.begin("refused", "a1")
	refuses := storetest.On(storetest.Write, func(storetest.Call) storetest.Fault {
		return storetest.Fault{Before: func(context.Context) error { return fmt.Errorf("a constraint: %w", ledger.ErrBadRow) }}
	})
	for what, call := range map[string]func() error{
		"Begin":    func() error { _, err := b.tryBegin("bad", "b1"); return err },
		"Lookup":   func() error { _, err := b.ledger.Lookup(t.Context(), ledger.Caller{}, bad.ref); return err },
		"Complete": func() error { _, err := b.tryComplete(bad, "y"); return err },
		"Fail":     func() error { _, err := b.tryFail(bad, ledger.Final); return err },
		"Extend":   func() error { _, err := b.tryExtend(bad); return err },
		"Resolve": func() error {
			_, err := b.ledger.Resolve(t.Context(), ledger.Caller{}, ledger.ResolveRequest{
				Ref: bad.ref, Action: ledger.ResolveRelease, Attempt: 1, Reason: "test", Force: true,
			})
			return err
		},
		"a Begin that the schema refuses":    func() error { b.faulty.Plan(refuses); _, err := b.tryBegin("new", "a1"); return err },
		"a Complete that the schema refuses": func() error { b.faulty.Plan(refuses); _, err := b.tryComplete(stands, "y"); return err },
		"an Extend that the schema refuses":  func() error { b.faulty.Plan(refuses); _, err := b.tryExtend(stands); return err },
	} {
		b.wantBadRow(what, call())
		b.faulty.Plan(nil)
		b.must(b.ledger.Ready(t.Context()))
		if now := b.ledger.Floor(); now != floor {
			t.Errorf("%s: the takeover floor was raised to %s: the row was taken for the store", what, at(now))
		}
		b.clock.Advance(time.Second)
	}
	b.clock.Advance(time.Minute)
	_, err := b.tryBegin("bad", "c1")
	b.wantBadRow("once more", err)
	if c := b.begin("left", "b1"); c.Attempt != 2 {
		t.Errorf("the entry that was left is taken over as attempt %d", c.Attempt)
	}
	b.begin("fresh", "a1")
}

// TestABadRowAfterAnUnknownWrite: where an earlier try of the call may have written, the caller is not told that nothing was done; its resend is told of the row.
func TestABadRowAfterAnUnknownWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.spoil("k")
	b.faulty.Plan(storetest.On(storetest.Write, storetest.Kinds(storetest.LoseRequest)))
	_, err := b.tryBegin("k", "b1")
	b.wantReason(err, ledger.ReasonStoreUnavailable)
	_, err = b.tryBegin("k", "b1")
	b.wantBadRow("its resend", err)
}

// shortPages is a store that gives two rows a page at the most, and reads none of those that are bad.
type shortPages struct {
	*storetest.Faulty
	bad map[ledger.ScopeID]bool
}

func (s shortPages) Page(ctx context.Context, q ledger.PageQuery) (ledger.Page, error) {
	q.Limit = min(q.Limit, 2)
	page, err := s.Faulty.Page(ctx, q)
	var entries []*ledger.Entry
	for _, e := range page.Entries {
		if s.bad[e.Scope] {
			page.Bad = append(page.Bad, ledger.BadRow{Scope: e.Scope, Err: ledger.ErrBadRow})
		} else {
			entries = append(entries, e)
		}
	}
	page.Entries = entries
	return page, err
}

// withBadRows settles good entries and bad ones, and says which are which. Some rows cannot be read at all, some only without their answer.
func withBadRows(t *testing.T) (b *bench, good int, scopes map[ledger.ScopeID]bool, log *bytes.Buffer) {
	t.Helper()
	b = newBench(t)
	log = &bytes.Buffer{}
	store := shortPages{b.faulty, map[ledger.ScopeID]bool{}}
	b.ledger = b.open(ledger.Config{Store: store, Logger: slog.New(slog.NewTextHandler(log, nil))})
	b.policy(quick())
	scopes = map[ledger.ScopeID]bool{}
	for i := range 60 {
		if i%2 == 0 {
			b.complete(b.begin(fmt.Sprint("good", i), "a1"), "x")
			good++
			continue
		}
		_, scope := b.spoil(fmt.Sprint("bad", i))
		scopes[scope] = true
		if i%4 == 1 {
			store.bad[scope] = true
		}
	}
	return b, good, scopes, log
}

// namedOnce checks that the log names each of the rows, once.
func namedOnce(t *testing.T, log *bytes.Buffer, scopes map[ledger.ScopeID]bool) {
	t.Helper()
	for scope := range scopes {
		if n := strings.Count(log.String(), fmt.Sprintf("scope=%x", scope)); n != 1 {
			t.Errorf("scope %x is named %d times in the log", scope, n)
		}
	}
}

// TestASweepGoesPastBadRows: they are counted as missed by each sweep that comes by, named in the log once, and everything else goes.
func TestASweepGoesPastBadRows(t *testing.T) {
	t.Parallel()
	b, good, scopes, log := withBadRows(t)
	b.clock.Advance(time.Hour)
	if p := b.sweep(); !p.Done || p.Closed != int64(good) || p.Missed != int64(len(scopes)) || p.Examined != int64(60) {
		t.Errorf("swept %+v of %d good and %d bad", p, good, len(scopes))
	}
	b.clock.Advance(time.Hour)
	first := b.ledger
	for _, sweeper := range []*ledger.Ledger{b.open(ledger.Config{}), first} { // who takes over from another daemon looks from the start
		b.ledger = sweeper
		if p := b.sweep(); !p.Done || p.Missed != int64(len(scopes)) {
			t.Errorf("swept %+v of %d good and %d bad", p, good, len(scopes))
		}
	}
	if b.model.Len() != len(scopes) {
		t.Errorf("%d rows are left, %d are bad", b.model.Len(), len(scopes))
	}
	namedOnce(t, log, scopes)
}

// TestASweepGoesPastWhatTheSchemaRefuses: it tries again at each sweep, and names the row once.
func TestASweepGoesPastWhatTheSchemaRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var log bytes.Buffer
	b.ledger = b.open(ledger.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	b.policy(quick())
	b.fill(40)
	scope := b.ledger.Secret().Scope(b.ref("k7"))
	b.clock.Advance(time.Hour)
	b.faulty.Plan(func(c storetest.Call) storetest.Fault {
		if c.Method != storetest.Write || c.Scope != scope {
			return storetest.Fault{}
		}
		return storetest.Fault{Before: func(context.Context) error { return ledger.ErrBadRow }}
	})
	if p := b.sweep(); !p.Done || p.Missed != 1 || p.Closed != 40 {
		t.Errorf("swept %+v", p)
	}
	if p := b.sweep(); !p.Done || p.Missed != 1 || p.Closed != 1 {
		t.Errorf("swept again %+v", p)
	}
	namedOnce(t, &log, map[ledger.ScopeID]bool{scope: true})
	b.faulty.Plan(nil)
	if p := b.sweep(); p.Missed != 0 || p.Closed != 1 {
		t.Errorf("swept when it was put right: %+v", p)
	}
}

// TestListsGoPastBadRows: what can be read is listed and counted, and the log names the rest.
func TestListsGoPastBadRows(t *testing.T) {
	t.Parallel()
	b, _, scopes, log := withBadRows(t)
	unreadable := map[ledger.ScopeID]bool{}
	for i := 1; i < 60; i += 4 {
		unreadable[b.ledger.Secret().Scope(b.ref(fmt.Sprint("bad", i)))] = true
	}
	readable := 60 - len(unreadable)
	for range 2 {
		if list := b.listed(ledger.ListRequest{PageSize: 7}); len(list) != readable {
			t.Errorf("%d are listed, %d can be read", len(list), readable)
		}
	}
	stats, err := b.ledger.Stats(t.Context(), ledger.StatsRequest{})
	b.must(err)
	if len(stats.By) != 1 || stats.By[0].Counts[ledger.ConditionCompleted] != int64(readable) {
		t.Errorf("counted %+v, %d can be read", stats.By, readable)
	}
	namedOnce(t, log, unreadable)
	if len(scopes) == len(unreadable) {
		t.Fatal("every bad row is of one kind")
	}
}

// TestAnErasureSaysWhatItCouldNotErase: everything else is erased, and the call ends refused. So does an application of a policy.
func TestAnErasureSaysWhatItCouldNotErase(t *testing.T) {
	t.Parallel()
	b, good, scopes, log := withBadRows(t)
	_, err := b.ledger.ApplyPolicy(t.Context(), ledger.ApplyRequest{Tenant: "*", Operation: "charge"}, func(p ledger.ApplyProgress) error {
		if p.Done {
			t.Errorf("told as done: %+v", p)
		}
		return nil
	})
	b.wantBadRow("ApplyPolicy", err)
	request := ledger.EraseRequest{Tenant: "acme", CreatedUntil: b.clock.Now().Wall()}
	p, err := b.ledger.Erase(t.Context(), ledger.Caller{}, request, func(p ledger.EraseProgress) error {
		if p.Done {
			t.Errorf("told as done: %+v", p)
		}
		return nil
	})
	b.wantBadRow("Erase", err)
	if p.Done || p.Examined != 60 || p.Erased != int64(good) || p.Skipped != 0 {
		t.Errorf("erased %+v, want %d", p, good)
	}
	namedOnce(t, log, scopes)
}

// TestABadPolicyFailsWhatItHoldsFor, since going on by another would break promises, and nothing else. To put it again, or to delete it, puts it right.
func TestABadPolicyFailsWhatItHoldsFor(t *testing.T) {
	t.Parallel()
	for what, mend := range map[string]func(*bench) error{
		"put":     func(b *bench) error { b.policy(quick()); return nil },
		"deleted": func(b *bench) error { _, err := b.ledger.DeletePolicy(b.t.Context(), "*", "charge", -1); return err },
	} {
		b := newBench(t)
		floor := b.ledger.Floor()
		other := b.beginRequest("k", "a1")
		other.Ref.Operation = "refund"
		held := b.begin("stands", "a1")
		_, err := b.model.PutSetting(t.Context(), ledger.Setting{Kind: "policy", Name: "*\ncharge", Body: []byte("{")}, 0)
		b.must(err)
		b.must(b.ledger.ReloadPolicies(t.Context()))
		_, err = b.tryBegin("k", "a1")
		b.wantBadRow("Begin", err)
		var r *ledger.Refusal
		if errors.As(err, &r); r.Metadata["tenant"] != "*" || r.Metadata["operation"] != "charge" {
			t.Errorf("the policy is not named: %v", r.Metadata)
		}
		_, err = b.ledger.GetPolicy(t.Context(), "acme", "charge", true)
		b.wantBadRow("GetPolicy", err)
		_, err = b.ledger.ListPolicies(t.Context())
		b.wantBadRow("ListPolicies", err)
		if g, err := b.ledger.Begin(t.Context(), ledger.Caller{}, other); err != nil || g.Granted == nil {
			t.Errorf("another operation: %+v, %v", g, err)
		}
		// Whoever has done the work goes on reporting it, and is heard in the end.
		complete := ledger.CompleteRequest{Ref: held.ref, Token: held.Token, Response: &ledger.Response{Body: []byte("done")}}
		_, err = b.ledger.Complete(t.Context(), ledger.Caller{}, complete)
		b.wantReason(err, ledger.ReasonStoreUnavailable)
		_, err = b.ledger.Extend(t.Context(), ledger.Caller{}, ledger.ExtendRequest{Ref: held.ref, Token: held.Token})
		b.wantReason(err, ledger.ReasonStoreUnavailable)
		b.must(b.ledger.Ready(t.Context()))
		if now := b.ledger.Floor(); now != floor {
			t.Errorf("the takeover floor was raised to %s", at(now))
		}
		b.policy(ledger.Policy{Tenant: "*", Operation: "*", Lease: time.Minute})
		if p, err := b.ledger.ApplyPolicy(t.Context(), ledger.ApplyRequest{Tenant: "*", Operation: "*"}, nil); err != nil || p.Examined != 1 {
			t.Errorf("a wider policy is applied to what it does not hold for: %+v, %v", p, err)
		}
		b.open(ledger.Config{}) // a daemon starts with it
		b.must(mend(b))
		if g, err := b.tryBegin("k", "a1"); err != nil || g.Granted == nil {
			t.Errorf("%s: %+v, %v", what, g, err)
		}
		_, err = b.ledger.Complete(t.Context(), ledger.Caller{}, complete)
		b.must(err)
		_, err = b.ledger.ListPolicies(t.Context())
		b.must(err)
	}
}

// TestBadRowsHideNothingOverdue: a daemon that does not sweep looks from the start each time, where the bad rows are that no sweep takes away.
func TestBadRowsHideNothingOverdue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := storetest.NewRunningClock()
		b := benchOn(t, clock, storetest.NewModel(clock, 0))
		store := shortPages{b.faulty, map[ledger.ScopeID]bool{}}
		watcher := &seen{}
		b.ledger = b.open(ledger.Config{Store: store, SweepEvery: time.Minute, Observer: watcher})
		b.policy(quick())
		for i := range 200 { // some in every shard
			c := b.begin(fmt.Sprint("bad", i), "a1")
			b.complete(c, "x")
			store.bad[b.ledger.Secret().Scope(c.ref)] = true
		}
		<-time.After(time.Second)
		b.complete(b.begin("good", "a1"), "x")
		turn := fmt.Sprintf(`{"Daemon": "another", "Until": %d}`, clock.Now().Add(24*time.Hour))
		_, err := b.model.PutSetting(t.Context(), ledger.Setting{Kind: "sweep", Name: "turn", Body: []byte(turn)}, 0)
		b.must(err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.ledger.Run(ctx) }()
		<-time.After(3 * time.Hour)
		cancel()
		b.must(<-done)
		if watcher.told < 10 || watcher.overdue < time.Hour {
			t.Errorf("the observer was told %d times, at last that nothing is overdue by more than %v", watcher.told, watcher.overdue)
		}
	})
}
