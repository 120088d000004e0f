package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/idemd/idemd/ledger"
)

// contextCases: a caller that goes away is let go, and nothing is left half done.
func contextCases() []testCase {
	return []testCase{
		{"with a cancelled context nothing is done, and every method says so", cancelledBefore},
		{"with a context past its deadline nothing is done, and every method says so", deadlineBefore},
		{"callers that go away take nobody along who writes at the same time", cancelledAlone},
		{"a write cancelled in its course is there whole or not at all", cancelledDuring},
	}
}

func cancelledBefore(b *bench) {
	ctx, cancel := context.WithCancel(b.ctx)
	cancel()
	b.refusesAll(ctx, context.Canceled)
}

func deadlineBefore(b *bench) {
	ctx, cancel := context.WithDeadline(b.ctx, time.Now().Add(-time.Second))
	defer cancel()
	b.refusesAll(ctx, context.DeadlineExceeded)
}

// refusesAll calls every method with a context that is over.
func (b *bench) refusesAll(ctx context.Context, want error) {
	b.Helper()
	row := b.put(b.claim())
	s := ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x")}
	b.setting(s, 0, true)
	absent := b.claim()
	for _, x := range []struct {
		method string
		call   func() error
	}{
		{"Get", func() error { _, err := b.Store.Get(ctx, row.Scope); return err }},
		{"Write of a fresh row", func() error { _, err := b.Store.Write(ctx, fresh(absent)); return err }},
		{"Write over a revision", func() error { _, err := b.Store.Write(ctx, over(row, b.entry(row.Scope))); return err }},
		{"Write of a settlement", func() error { _, err := b.Store.Write(ctx, b.claimed("complete", row)); return err }},
		{"Write of an extension", func() error { _, err := b.Store.Write(ctx, b.claimed("extend", row)); return err }},
		{"Page by scope", func() error {
			_, err := b.Store.Page(ctx, ledger.PageQuery{Order: ledger.ByName, Limit: 1})
			return err
		}},
		{"Page by due time", func() error { _, err := b.Store.Page(ctx, ledger.PageQuery{Order: ledger.ByDue, Limit: 1}); return err }},
		{"Forget", func() error { _, err := b.Store.Forget(ctx, []ledger.Row{rowOf(row)}); return err }},
		{"Settings", func() error { _, err := b.Store.Settings(ctx, "policy"); return err }},
		{"PutSetting", func() error { _, err := b.Store.PutSetting(ctx, s, 1); return err }},
		{"Ready", func() error { _, err := b.Store.Ready(ctx); return err }},
	} {
		err := x.call()
		if !errors.Is(err, want) {
			b.Errorf("%s answers %v, want %v", x.method, err, want)
		}
		if errors.Is(err, ledger.ErrUnavailable) {
			b.Errorf("%s answers %v: its caller left, and that says nothing about the store", x.method, err)
		}
	}
	if diff := differences(row, b.get(row.Scope)); diff != "" {
		b.Errorf("the row was changed all the same:\n%s", diff)
	}
	if got := b.get(absent.Scope); got != nil {
		b.Errorf("a row was put all the same: %s", outline(got))
	}
	b.sameSettings("policy", ledger.Setting{Kind: "policy", Name: "a", Body: []byte("x"), Revision: 1, UpdatedAt: b.Clock.Now()})
}

func cancelledDuring(b *bench) {
	for i := range 60 {
		row := b.put(b.claim())
		next := b.entry(row.Scope)
		if i%10 == 0 {
			next.State, next.Closed, next.Failure, next.Response = ledger.Completed, false, nil, &ledger.Response{Body: b.bytes(1 << 20)}
		}
		w := over(row, next)
		want, _ := w.Apply(row, b.Clock.Now())
		ctx, cancel := context.WithTimeout(b.ctx, time.Duration(i)*50*time.Microsecond)
		written, err := b.Store.Write(ctx, w)
		cancel()
		got := b.get(row.Scope)
		switch {
		case err == nil && (!written.Applied || !same(want, got)):
			b.Fatalf("acknowledged as applied %t, and the row differs:\n%s", written.Applied, differences(want, got))
		case err != nil && !known(err):
			b.Fatalf("an error of no class: %v", err)
		case errors.Is(err, ledger.ErrUnavailable):
			b.Fatalf("the caller left, and the store calls itself away: %v", err)
		case !same(row, got) && !same(want, got):
			b.Fatalf("neither the old row nor the new one:\n%s", differences(want, got))
		}
	}
}

// cancelledAlone is for stores that gather what comes at once: the callers that stay must be served.
func cancelledAlone(b *bench) {
	for round := range 10 {
		entries := make([]*ledger.Entry, 32)
		for i := range entries {
			entries[i] = b.claim()
		}
		errs := make([]error, len(entries))
		b.together(len(entries), func(i int) {
			ctx, cancel := b.ctx, context.CancelFunc(func() {})
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(b.ctx, time.Duration(round*i)*10*time.Microsecond)
			}
			defer cancel()
			_, errs[i] = persist(ctx, b.Store, fresh(entries[i]))
		})
		for i, err := range errs {
			switch got := b.get(entries[i].Scope); {
			case i%2 != 0 && err != nil:
				b.Errorf("a caller that stayed was told %v", err)
			case err == nil && got == nil:
				b.Errorf("acknowledged, and there is no row")
			case err != nil && !known(err):
				b.Errorf("an error of no class: %v", err)
			}
		}
	}
}

// known reports whether err is of a class that a store may answer.
func known(err error) bool {
	for _, class := range []error{
		context.Canceled, context.DeadlineExceeded, ledger.ErrUnavailable, ledger.ErrUnknown, ledger.ErrContended,
	} {
		if errors.Is(err, class) {
			return true
		}
	}
	return false
}
