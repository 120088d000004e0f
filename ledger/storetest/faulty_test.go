package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

var (
	scopeA = ledger.ScopeID{1}
	scopeB = ledger.ScopeID{2}
)

// faultyModel is a model behind a faulty store, and the model itself to see what was really done.
func faultyModel(plan storetest.Plan) (*storetest.Faulty, *storetest.Model) {
	model := storetest.NewModel(storetest.NewClock(start), 500*time.Millisecond)
	return storetest.NewFaulty(model, plan), model
}

func TestFaultyAnswersAndDoesWhatTheFaultSays(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		kind  storetest.FaultKind
		class error
		done  bool
	}{
		{storetest.NoFault, nil, true},
		{storetest.Refuse, ledger.ErrUnavailable, false},
		{storetest.Contend, ledger.ErrContended, false},
		{storetest.LoseReply, ledger.ErrUnknown, true},
		{storetest.LoseRequest, ledger.ErrUnknown, false},
		{storetest.Late, ledger.ErrUnknown, false},
	} {
		t.Run(x.kind.String(), func(t *testing.T) {
			t.Parallel()
			faulty, model := faultyModel(storetest.Kinds(x.kind))
			written, err := faulty.Write(t.Context(), freshClaim(scopeA))
			if !errors.Is(err, x.class) || (x.class == nil) != (err == nil) {
				t.Errorf("answers %v, want %v", err, x.class)
			}
			if written.Applied != (x.class == nil) {
				t.Errorf("answers applied %t with %v", written.Applied, err)
			}
			if done := model.Len() == 1; done != x.done {
				t.Errorf("done is %t, want %t", done, x.done)
			}
			if x.kind != storetest.NoFault && faulty.Count(x.kind) != 1 {
				t.Errorf("counted %v", faulty.Counts())
			}
			if _, err := faulty.Write(t.Context(), freshClaim(scopeB)); err != nil {
				t.Errorf("behind the script: %v", err)
			}
		})
	}
}

func TestFaultyReadsAreRefusedWhereTheirOutcomeCouldNotBeUnknown(t *testing.T) {
	t.Parallel()
	faulty, _ := faultyModel(storetest.Kinds(storetest.LoseReply, storetest.LoseRequest, storetest.Late, storetest.Refuse, storetest.Contend))
	for i, want := range []error{
		ledger.ErrUnavailable, ledger.ErrUnavailable, ledger.ErrUnavailable, ledger.ErrUnavailable, ledger.ErrContended, nil,
	} {
		if _, err := faulty.Get(t.Context(), scopeA); !errors.Is(err, want) {
			t.Errorf("read %d answers %v, want %v", i, err, want)
		}
	}
}

func TestFaultyMeetsEveryMethod(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	faulty, _ := faultyModel(func(storetest.Call) storetest.Fault { return storetest.Fault{Kind: storetest.Refuse} })
	for method, call := range map[storetest.Method]func() error{
		storetest.Get:   func() error { _, err := faulty.Get(ctx, scopeA); return err },
		storetest.Write: func() error { _, err := faulty.Write(ctx, freshClaim(scopeA)); return err },
		storetest.Page: func() error {
			_, err := faulty.Page(ctx, ledger.PageQuery{Order: ledger.ByName, Limit: 1})
			return err
		},
		storetest.Forget:     func() error { _, err := faulty.Forget(ctx, nil); return err },
		storetest.Settings:   func() error { _, err := faulty.Settings(ctx, "policy"); return err },
		storetest.PutSetting: func() error { _, err := faulty.PutSetting(ctx, ledger.Setting{Body: []byte{1}}, 0); return err },
		storetest.Ready:      func() error { _, err := faulty.Ready(ctx); return err },
	} {
		if err := call(); !errors.Is(err, ledger.ErrUnavailable) {
			t.Errorf("%s answers %v", method, err)
		}
	}
	if faulty.Count(storetest.Refuse) != 7 || faulty.Calls() != 7 {
		t.Errorf("%d calls met %v", faulty.Calls(), faulty.Counts())
	}
	if got := faulty.Margin(); got != 500*time.Millisecond {
		t.Errorf("margin is %v", got)
	}
}

func TestFaultyLateWriteLandsBehindLaterCallsAndStillGuarded(t *testing.T) {
	t.Parallel()
	late := storetest.Fault{Kind: storetest.Late, LandAfter: 2}
	faulty, model := faultyModel(storetest.OnWrites(storetest.Script(late)))
	w := freshClaim(scopeA)
	if _, err := faulty.Write(t.Context(), w); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("answers %v", err)
	}
	w.Put.Last.Holder = "changed since"
	for i, want := range []int{0, 1} {
		if _, err := faulty.Get(t.Context(), scopeA); err != nil {
			t.Fatal(err)
		}
		if got := model.Len(); got != want {
			t.Errorf("after %d later calls there are %d rows, want %d", i+1, got, want)
		}
	}
	if r, _ := model.Get(t.Context(), scopeA); r.Entry.Last.Holder != "" {
		t.Error("the late write saw what its caller did to the entry later")
	}

	faulty.Plan(storetest.Script(late))
	if _, err := faulty.Write(t.Context(), freshClaim(scopeB)); !errors.Is(err, ledger.ErrUnknown) {
		t.Fatalf("answers %v", err)
	}
	second := freshClaim(scopeB)
	second.Put.Last.Holder = "second"
	if written, err := faulty.Write(t.Context(), second); err != nil || !written.Applied {
		t.Fatalf("the second writer: %v, %v", written.Applied, err)
	}
	if _, err := faulty.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, _ := model.Get(t.Context(), scopeB); r.Entry.Last.Holder != "second" || r.Entry.Revision != 1 {
		t.Errorf("the late write went over the guard: %q, revision %d", r.Entry.Last.Holder, r.Entry.Revision)
	}
}

func TestFaultyLateWritesLandOnDemand(t *testing.T) {
	t.Parallel()
	faulty, model := faultyModel(storetest.Kinds(storetest.Late, storetest.Late))
	_, _ = faulty.Write(t.Context(), freshClaim(scopeA))
	_, _ = faulty.Write(t.Context(), freshClaim(scopeB))
	for range 10 {
		_, _ = faulty.Ready(t.Context())
	}
	if got := model.Len(); got != 0 {
		t.Errorf("%d writes landed by themselves", got)
	}
	faulty.Land(t.Context())
	if got := model.Len(); got != 2 {
		t.Errorf("%d writes landed, want 2", got)
	}
}

func TestFaultyDownRefusesUntilUp(t *testing.T) {
	t.Parallel()
	faulty, model := faultyModel(nil)
	faulty.Down()
	if _, err := faulty.Write(t.Context(), freshClaim(scopeA)); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("down, it answers %v", err)
	}
	if _, err := faulty.Ready(t.Context()); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("down, it is ready: %v", err)
	}
	faulty.Up()
	if _, err := faulty.Write(t.Context(), freshClaim(scopeA)); err != nil || model.Len() != 1 {
		t.Errorf("up again, it answers %v and has %d rows", err, model.Len())
	}
	if got := faulty.Count(storetest.WhileDown); got != 2 {
		t.Errorf("refused %d calls while down, want 2", got)
	}
}

func TestFaultyDelaysUntilTheTestReleases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		before, after := make(chan struct{}), make(chan struct{})
		faulty, model := faultyModel(storetest.Script(storetest.Fault{Before: storetest.Until(before), After: storetest.Until(after)}))
		answered := false
		go func() {
			if w, err := faulty.Write(t.Context(), freshClaim(scopeA)); err != nil || !w.Applied {
				t.Errorf("applied %t, %v", w.Applied, err)
			}
			answered = true
		}()
		synctest.Wait()
		if model.Len() != 0 || answered {
			t.Errorf("held up before the call: %d rows, answered %t", model.Len(), answered)
		}
		close(before)
		synctest.Wait()
		if model.Len() != 1 || answered {
			t.Errorf("held up behind the call: %d rows, answered %t", model.Len(), answered)
		}
		close(after)
		synctest.Wait()
		if !answered || faulty.Count(storetest.Delayed) != 1 {
			t.Errorf("released: answered %t, counted %v", answered, faulty.Counts())
		}
	})
}

func TestFaultyCallerThatGoesAwayDuringADelay(t *testing.T) {
	t.Parallel()
	type delay = func(context.Context) error
	for _, x := range []struct {
		name  string
		fault func(never delay) storetest.Fault
		rows  int
		known bool
	}{
		{"before the call nothing is done", func(never delay) storetest.Fault { return storetest.Fault{Before: never} }, 0, true},
		{"behind the call the outcome is unknown", func(never delay) storetest.Fault { return storetest.Fault{After: never} }, 1, false},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				never := storetest.Until(make(chan struct{})) // made in the bubble, so that its time passes meanwhile
				faulty, model := faultyModel(storetest.Script(x.fault(never)))
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err := faulty.Write(ctx, freshClaim(scopeA))
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ledger.ErrUnknown) == x.known || model.Len() != x.rows {
					t.Errorf("answers %v with %d rows", err, model.Len())
				}
			})
		})
	}
}

func TestFaultyIsAwayForWhoWasHeldUpMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		faulty, model := faultyModel(storetest.Script(storetest.Fault{Before: storetest.Until(release)}))
		go func() {
			if _, err := faulty.Write(t.Context(), freshClaim(scopeA)); !errors.Is(err, ledger.ErrUnavailable) {
				t.Errorf("answers %v", err)
			}
		}()
		synctest.Wait()
		faulty.Down()
		close(release)
		synctest.Wait()
		if model.Len() != 0 {
			t.Error("written while the store was away")
		}
	})
}

func TestSeededFaultsRepeatWithTheSeedAndFollowTheOdds(t *testing.T) {
	t.Parallel()
	odds := storetest.Odds{Refuse: 0.1, Contend: 0.1, LoseReply: 0.1, LoseRequest: 0.1, Late: 0.1}
	run := func(seed uint64) (string, map[storetest.FaultKind]int) {
		faulty, _ := faultyModel(storetest.Seeded(seed, odds))
		answers := ""
		for i := range 2000 {
			_, err := faulty.Write(t.Context(), freshClaim(ledger.ScopeID{byte(i), byte(i >> 8)}))
			answers += fmt.Sprintln(err)
		}
		return answers, faulty.Counts()
	}
	first, counts := run(7)
	if again, _ := run(7); again != first {
		t.Error("the same seed gave other faults")
	}
	if other, _ := run(8); other == first {
		t.Error("another seed gave the same faults")
	}
	for _, kind := range []storetest.FaultKind{
		storetest.Refuse, storetest.Contend, storetest.LoseReply, storetest.LoseRequest, storetest.Late,
	} {
		if n := counts[kind]; n < 120 || n > 280 {
			t.Errorf("%s happened %d times in 2000 at odds of 0.1", kind, n)
		}
	}
}
