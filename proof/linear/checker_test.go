package linear

import (
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/idemd/idemd/ledger"
)

// TestAReportThatWasSentTwiceAndMayHaveFailed: two of the same reports are under way, the first one does it, and the second had a write of unknown outcome
// before it found that. Meanwhile another attempt was granted. It is told OK, and neither that it was there before nor when the entry was settled.
func TestAReportThatWasSentTwiceAndMayHaveFailed(t *testing.T) {
	t.Parallel()
	for _, hides := range []bool{false, true} {
		r := call{kind: tell, id: 1, attempt: 1, report: report{retryable, 'a'}}
		ops := []porcupine.Operation{
			{ClientId: 0, Input: call{kind: begin, id: 1}, Output: told{what: "granted", attempt: 1}, Call: 1, Return: 2},
			{ClientId: 0, Input: r, Output: told{what: nobodyKnows}, Call: 3, Return: never},
			{ClientId: 0, Input: r, Output: told{what: "ok", attempt: 1, hides: hides}, Call: 4, Return: 9},
			{ClientId: 1, Input: call{kind: begin, id: 2}, Output: told{what: "granted", attempt: 2}, Call: 5, Return: 10},
		}
		if got := !illegal(modelOf(int8(ledger.DefaultMaxAttempts)), ops); got != hides {
			t.Errorf("where such writes may be hidden (%t) it is in order: %t", hides, got)
		}
	}
}

// TestAHistoryIsCutToWhatIsWrongWithIt: a call that had no answer yet where it is cut is no fault of its own.
func TestAHistoryIsCutToWhatIsWrongWithIt(t *testing.T) {
	t.Parallel()
	ops := []porcupine.Operation{
		{ClientId: 0, Input: call{kind: begin, id: 1}, Output: told{what: "granted", attempt: 1}, Call: 1, Return: 3},
		{ClientId: 1, Input: call{kind: lookup}, Output: told{what: "view", attempt: 1, condition: "live"}, Call: 2, Return: 5},
		{ClientId: 0, Input: call{kind: begin, id: 2}, Output: told{what: "in progress", attempt: 1}, Call: 6, Return: 7},
		{ClientId: 2, Input: call{kind: begin, id: 3}, Output: told{what: "granted", attempt: 2}, Call: 8, Return: 9},
	}
	short := shrink(modelOf(int8(ledger.DefaultMaxAttempts)), ops)
	if len(short) != 2 || short[0].ClientId != 0 || short[1].ClientId != 2 {
		t.Errorf("two claims of one entry are left as\n%s", describe(short))
	}
}
