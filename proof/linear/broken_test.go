package linear

import (
	"context"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// The checker must be able to fail. Each of these stores has one fault, of a kind that somebody could make, and no other; within a few seeds a
// history must turn up that no order explains.

// lying is a store whose answers and writes a test bends.
type lying struct {
	ledger.Store
	write func(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error)
	get   func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error)
}

func (s lying) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	if s.write == nil {
		return s.Store.Write(ctx, w)
	}
	return s.write(ctx, s.Store, w)
}

func (s lying) Get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	if s.get == nil {
		return s.Store.Get(ctx, scope)
	}
	return s.get(ctx, s.Store, scope)
}

type (
	writing = func(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error)
	reading = func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error)
)

// blind writes over whatever is there, as a store does that forgets the revision.
func blind(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error) {
	for w.Guard.Kind == ledger.GuardRevision {
		pass(ctx, 50*time.Microsecond) // in which others come by
		written, err := inner.Write(ctx, w)
		if err != nil || written.Applied {
			return written, err
		}
		r, err := inner.Get(ctx, w.Scope)
		if err != nil || r.Entry == nil {
			return written, err
		}
		w.Guard.Revision, w.Guard.Incarnation = r.Entry.Revision, r.Entry.Incarnation
	}
	return inner.Write(ctx, w)
}

// acknowledging says that a settlement was written, and writes none, as one that does not sync may.
func acknowledging(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error) {
	if w.Settle == nil {
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
}

// certain calls an unknown outcome a certain one, so that the ledger says that nothing was done.
func certain(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error) {
	if written, err := inner.Write(ctx, w); err == nil && written.Applied && w.Scope[1]%2 == 0 && written.Stamps.Revision%3 == 0 {
		return ledger.Written{}, ledger.ErrUnavailable
	} else {
		return written, err
	}
}

// forgetfulOfTheHolder extends and settles claims that were lost, as a store does that forgets to compare the attempt.
func forgetfulOfTheHolder(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error) {
	if w.Guard.Kind == ledger.GuardClaim {
		if r, err := inner.Get(ctx, w.Scope); err == nil && r.Entry != nil {
			w.Guard.Attempt = r.Entry.Last.Number
		}
	}
	return inner.Write(ctx, w)
}

// behind answers readings from before the last write, as a replica does.
func behind() (writing, reading) {
	before := newOld()
	return func(ctx context.Context, inner ledger.Store, w ledger.Write) (ledger.Written, error) {
			if r, err := inner.Get(ctx, w.Scope); err == nil {
				before.put(w.Scope, r)
			}
			return inner.Write(ctx, w)
		}, func(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error) {
			r, err := inner.Get(ctx, scope)
			if old, ok := before.take(scope); ok && err == nil && old.Entry != nil {
				old.Now = r.Now
				return old, nil
			}
			return r, err
		}
}

func TestTheCheckerFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	oldWrites, oldReads := behind()
	for name, bend := range map[string]lying{
		"the revision is not compared":                {write: blind},
		"acknowledged and not kept":                   {write: acknowledging},
		"an unknown outcome is called a refusal":      {write: certain},
		"the attempt is not compared":                 {write: forgetfulOfTheHolder},
		"readings are of a while ago":                 {write: oldWrites, get: oldReads},
		"every lease counts from the daemon's minute": {get: hasty},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(200) {
				if findsFault(t, bend, seed) {
					t.Logf("found with seed %d", seed)
					return
				}
			}
			t.Error("200 runs, and every history had an order: the checker sees nothing")
		})
	}
}

// hasty judges leases by a clock that is ahead, as a daemon would that used its own.
func hasty(ctx context.Context, inner ledger.Store, scope ledger.ScopeID) (ledger.Reading, error) {
	r, err := inner.Get(ctx, scope)
	if scope[2]%2 == 0 {
		r.Now = r.Now.Add(lapseBy)
	}
	return r, err
}

func findsFault(t *testing.T, bend lying, seed uint64) bool {
	clock := storetest.NewRunningClock()
	bend.Store = storetest.NewModel(clock, 0)
	h := play{
		daemons: []daemon{open(t, bend), open(t, bend)}, keys: 3, clients: 6, steps: 22, limit: fewRuns,
		lapse: func(context.Context) error { clock.Advance(lapseBy); return nil },
	}.record(t, seed)
	for _, key := range h.keys {
		if porcupine.CheckOperationsTimeout(modelOf(fewRuns), countLapses(h.ops[key]), checkLimit) == porcupine.Illegal {
			return true
		}
	}
	return false
}
