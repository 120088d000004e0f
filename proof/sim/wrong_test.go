package sim

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
)

// Each name that the auditor has for a failure is heard in a world in which that very thing is wrong.

// bent is a store of which a test bends the answers.
type bent struct {
	ledger.Store
	write func(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error)
	get   func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error)
}

func (b bent) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	if b.write == nil {
		return b.Store.Write(ctx, w)
	}
	return b.write(ctx, b.Store, w)
}

func (b bent) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	if b.get == nil {
		return b.Store.Get(ctx, scope)
	}
	return b.get(ctx, b.Store, scope)
}

// forgetfulOfGrants acknowledges grants and keeps none.
func forgetfulOfGrants(inner ledger.Store) ledger.Store {
	return bent{Store: inner, write: func(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error) {
		if w.Guard.Kind != ledger.GuardAbsent {
			return inner.Write(ctx, w)
		}
		r, err := inner.Get(ctx, w.Scope)
		if err != nil {
			return ledger.Written{}, err
		}
		if row, holds := w.Apply(r.Entry, r.Now); holds {
			return ledger.Written{Applied: true, Stamps: ledger.StampsOf(row, r.Now)}, nil
		}
		return ledger.Written{}, nil
	}}
}

// hasty reads a clock that is ahead, so that leases are over before their end.
func hasty(inner ledger.Store) ledger.Store {
	return bent{Store: inner, get: func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error) {
		r, err := inner.Get(ctx, scope)
		r.Now = r.Now.Add(2 * lease)
		return r, err
	}}
}

// scribbling shows another answer than the one that was stored.
func scribbling(inner ledger.Store) ledger.Store {
	return bent{Store: inner, get: func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error) {
		r, err := inner.Get(ctx, scope)
		if err == nil && r.Entry != nil && r.Entry.Response != nil {
			e := r.Entry.Clone()
			e.Response = &ledger.Response{Body: []byte(declined)}
			r.Entry = e
		}
		return r, err
	}}
}

// forgetful deletes what was settled a second ago.
func forgetful(inner ledger.Store) ledger.Store {
	return bent{Store: inner, get: func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error) {
		r, err := inner.Get(ctx, scope)
		if e := r.Entry; err == nil && e != nil && e.SettledAt != 0 && r.Now.Sub(e.SettledAt) > time.Second {
			_, err = inner.Forget(ctx, []ledger.Row{{Scope: scope, Incarnation: e.Incarnation, Revision: e.Revision}})
			r.Entry = nil
		}
		return r, err
	}}
}

// stale goes on showing a claim that it has once shown.
func stale(inner ledger.Store) ledger.Store {
	var mu sync.Mutex
	seen := map[ledger.ScopeID]*ledger.Entry{}
	return bent{Store: inner, get: func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error) {
		r, err := inner.Get(ctx, scope)
		mu.Lock()
		defer mu.Unlock()
		switch old := seen[scope]; {
		case err != nil || r.Entry == nil:
		case r.Entry.State == ledger.Pending:
			seen[scope] = r.Entry
		case old != nil:
			e := old.Clone()
			e.Last.LeaseUntil = r.Now.Add(lease)
			r.Entry = e
		}
		return r, err
	}}
}

func TestWhatIsWrongInAWorldIsHeardByItsName(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]fault{
		effectWithoutGrant: {failOpen: true},
		grantWithoutRow:    {store: forgetfulOfGrants},
		twoLiveClaims:      {store: hasty},
		changedAnswer:      {store: scribbling},
		earlyForgetting:    {store: forgetful},
		waiterLeftBehind:   {store: stale},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(100) {
				if heard(t, seed, wrong, name) {
					t.Logf("heard in world %d", seed)
					return
				}
			}
			t.Error("100 worlds, and the auditor never says so")
		})
	}
}

func heard(t *testing.T, seed uint64, wrong fault, name string) (found bool) {
	synctest.Test(t, func(t *testing.T) {
		for _, complaint := range play(t, seed, wrong).auditor.complaints {
			found = found || strings.HasPrefix(complaint, name+":")
		}
	})
	return found
}
