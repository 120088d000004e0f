package ledger_test

import (
	"testing"

	"github.com/idemd/idemd/ledger"
)

// TestANewLifeBeginsAboveEveryFenceOfTheLifeBefore: also where the clock was set back meanwhile, and whatever attempts the old life had. Downstream
// systems have seen its fences, and would refuse the new holder.
func TestANewLifeBeginsAboveEveryFenceOfTheLifeBefore(t *testing.T) {
	t.Parallel()
	const forgotten ledger.Time = 5_000
	old := &ledger.Entry{
		Incarnation: 4_000, Revision: 7, State: ledger.Completed, Closed: true, DueAt: forgotten, Current: true,
		Last: ledger.Attempt{Number: ledger.MaxAttempts},
	}
	verdict := ledger.Decide(old, ledger.BeginDecision{}, ledger.Env{Now: forgotten, Rules: ledger.BuiltinPolicy().Rules(ledger.Clamp{})})
	if verdict.Outcome != ledger.Granted || verdict.Write == nil {
		t.Fatalf("%+v", verdict)
	}
	for _, now := range []ledger.Time{forgotten, old.Incarnation, 1} {
		row, applied := verdict.Write.Apply(old, now)
		if !applied || row.Fence() <= old.Fence() {
			t.Errorf("at %d: the fence goes from %d to %d (applied %t)", now, old.Fence(), row.Fence(), applied)
		}
	}
}
