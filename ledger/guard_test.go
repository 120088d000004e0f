package ledger_test

import (
	"fmt"
	"reflect"

	"github.com/idemd/idemd/ledger"
)

// guardAgrees holds the one-round-trip path against the table for one row and request, and says where they part, "" if they agree.
//
// Speculate's write must apply exactly when Decide emits that very write for the row. Where its guard does not hold, nothing may change.
func guardAgrees(row *ledger.Entry, req ledger.Request, env ledger.Env, v ledger.Verdict) string {
	w := ledger.Speculate(req, env)
	if w == nil {
		return ""
	}
	got, applied := w.Apply(row, env.Now)
	emitted := v.Write != nil && reflect.DeepEqual(v.Write, w)
	switch {
	case applied && !emitted:
		return fmt.Sprintf("the speculative write applies, and Decide says outcome %d, refusal %v, write %+v", v.Outcome, v.Refusal, v.Write)
	case !applied && emitted:
		return fmt.Sprintf("Decide emits the speculative write, and its guard does not hold: %+v", w.Guard)
	case !applied && got != row:
		return "the guard does not hold, and the row changed"
	case !applied:
		return ""
	}
	want, held := v.Write.Apply(row, env.Now)
	if !held || !reflect.DeepEqual(want, got) {
		return fmt.Sprintf("the rows differ: speculated %+v, decided %+v", got, want)
	}
	return ""
}
