package ledger_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// knowing is a store that has everything at hand, and counts how often it was asked to write.
type knowing struct {
	*storetest.Model
	writes atomic.Int64
}

func (k *knowing) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	k.writes.Add(1)
	return k.Model.Write(ctx, w)
}

func (k *knowing) Recall(scope ledger.ScopeID) (ledger.Reading, bool) {
	r, err := k.Get(context.Background(), scope)
	return r, err == nil && r.Entry != nil
}

// A Begin on an entry that the store has at hand is decided on that, by the same table: the store is asked for nothing where nothing is to be written,
// and for a write on that very revision where something is.
func TestABeginIsDecidedOnWhatTheStoreHasAtHand(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	store := &knowing{Model: b.model}
	b.ledger = b.open(ledger.Config{Store: store})
	c := b.begin("k", "a")
	b.complete(c, "answer")
	before := store.writes.Load()
	r, err := b.tryBegin("k", "b")
	if err != nil || r.Completed == nil || string(r.Completed.Response.Body) != "answer" {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := store.writes.Load() - before; n != 0 {
		t.Errorf("a replay cost %d writes", n)
	}
	b.clock.Advance(365 * 24 * time.Hour)
	if c = b.begin("k", "c"); c.Attempt != 1 {
		t.Errorf("after it was forgotten: attempt %d", c.Attempt)
	}
	b.clock.Advance(time.Hour)
	if c = b.begin("k", "d"); c.Attempt != 2 || !c.PreviousAbandoned {
		t.Errorf("of an abandoned entry: %+v", c.Grant)
	}
	other := b.beginRequest("k", "e")
	other.Fingerprints = fingerprintsOf(command{args: map[string]string{"hash": "h2"}})
	var refusal *ledger.Refusal
	if _, err = b.ledger.Begin(t.Context(), ledger.Caller{}, other); !errors.As(err, &refusal) || refusal.Reason != ledger.ReasonKeyReused {
		t.Errorf("another request: %v", err)
	}
}
