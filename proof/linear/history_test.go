package linear

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what all clients of a run asked and were told, key by key.
type history struct {
	mu    sync.Mutex
	start time.Time
	keys  []string
	ops   map[string][]porcupine.Operation
	// unanswered is how many calls were told that the store was not to be reached, or nothing at all.
	unanswered int
}

func newHistory(keys []string) *history {
	return &history{start: time.Now(), keys: keys, ops: map[string][]porcupine.Operation{}}
}

// never is behind every end: a call of unknown outcome may happen at any time from its beginning on, which includes never.
const never = math.MaxInt64 / 2

func (h *history) now() int64 { return int64(time.Since(h.start)) }

// add takes in one call. Each further time that it was sent, and each of its writes that had an unknown outcome, may have an effect of its own, as if the
// caller had sent the call once more and lost the reply.
func (h *history) add(client int, key string, c call, t told, called int64) {
	op := porcupine.Operation{ClientId: client, Input: c, Output: t, Call: called, Return: h.now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.what == nothingDone || t.what == nobodyKnows {
		h.unanswered++
	}
	extra := t.resent
	switch t.what {
	case nothingDone: // by the last try
	case nobodyKnows:
		op.Return = never
		extra += max(t.unsure-1, 0) // the call itself stands for one
		if c.kind != lookup {
			h.ops[key] = append(h.ops[key], op)
		}
	default:
		extra += t.unsure
		h.ops[key] = append(h.ops[key], op)
	}
	if c.kind == resolve || c.kind == erase {
		totals.operators.Add(1)
	}
	if c.kind == lookup {
		return // one without an answer says nothing and does nothing
	}
	// Of a report too: one that came late was kept as evidence by the first try, and the second may be told of what an operator did in between.
	for range extra {
		h.ops[key] = append(h.ops[key], porcupine.Operation{ClientId: client, Input: c, Output: told{what: nobodyKnows}, Call: called, Return: never})
	}
}

// lapsed takes in that all leases ended at some time since called.
func (h *history) lapsed(client int, called int64) {
	for _, key := range h.keys {
		h.add(client, key, call{kind: lapse}, told{}, called)
	}
}

// takeovers is how many claims were granted over one of which nobody had reported anything: its lease was over.
func (h *history) takeovers() (n int) {
	for _, ops := range h.ops {
		reported := map[int8]bool{}
		for _, op := range ops {
			if c := op.Input.(call); c.kind == tell {
				reported[c.attempt] = true
			}
		}
		for _, op := range ops {
			if t := op.Output.(told); t.what == "granted" && t.attempt > 1 && !t.resumed && !reported[t.attempt-1] {
				n++
			}
		}
	}
	return n
}

// totals counts what was checked, over all tests of the package.
var totals struct{ histories, operations, unknown, undecided, takeovers, operators, streamed atomic.Int64 }

// checkLimit bounds the search for an order of one history. Those in which statements stall for seconds have many calls at once, and are in the long form.
var checkLimit = func() time.Duration {
	if scale() > 1 {
		return 2 * time.Minute
	}
	return 20 * time.Second
}()

// countLapses tells each call how often all leases had been ended before it was made.
func countLapses(ops []porcupine.Operation) []porcupine.Operation {
	ops = slices.Clone(ops)
	for i := range ops {
		c := ops[i].Input.(call)
		for _, other := range ops {
			if other.Input.(call).kind == lapse && other.Return < ops[i].Call {
				c.lapses++
			}
		}
		ops[i].Input = c
	}
	return ops
}

// check looks for an order of every key's calls.
func (h *history) check(t testing.TB, limit int8, seed uint64) {
	t.Helper()
	model := modelOf(limit)
	totals.takeovers.Add(int64(h.takeovers()))
	for _, key := range h.keys {
		ops := countLapses(h.ops[key])
		totals.histories.Add(1)
		totals.operations.Add(int64(len(ops)))
		for _, op := range ops {
			if op.Return == never {
				totals.unknown.Add(1)
			}
		}
		switch porcupine.CheckOperationsTimeout(model, ops, checkLimit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			totals.undecided.Add(1)
			t.Logf("%s: no order found in %v, nor that there is none: %d calls", key, checkLimit, len(ops))
		case porcupine.Illegal:
			shorter := shrink(model, ops)
			t.Errorf("seed %d, %s: no order of these calls is explained by the model (of %d, shrunk to %d):\n%s\n%s",
				seed, key, len(ops), len(shorter), describe(shorter), save(model, ops, shorter))
			return
		}
	}
}

func illegal(model porcupine.Model, ops []porcupine.Operation) bool {
	return porcupine.CheckOperationsTimeout(model, ops, checkLimit) == porcupine.Illegal
}

// shrink returns the shortest beginning of the history that has no order, without the calls in it that neither changed anything nor are
// needed for that. Leaving out a call that changed something would prove nothing.
func shrink(model porcupine.Model, ops []porcupine.Operation) []porcupine.Operation {
	ends := make([]int64, 0, len(ops))
	for _, op := range ops {
		ends = append(ends, op.Return)
	}
	slices.Sort(ends)
	shortest := ops
	for _, end := range ends {
		if short := until(ops, end); illegal(model, short) {
			shortest = short
			break
		}
	}
	for i := len(shortest) - 1; i >= 0; i-- {
		if !harmless(shortest[i]) {
			continue
		}
		if without := slices.Delete(slices.Clone(shortest), i, i+1); illegal(model, without) {
			shortest = without
		}
	}
	return shortest
}

// until is the history as it was known at an instant: what had not returned by then had an unknown outcome.
func until(ops []porcupine.Operation, end int64) []porcupine.Operation {
	var out []porcupine.Operation
	for _, op := range ops {
		switch {
		case op.Call > end, op.Return > end && op.Input.(call).kind == lookup: // as in add, one without an answer says nothing
			continue
		case op.Return > end:
			op.Output, op.Return = told{what: nobodyKnows}, never
		}
		out = append(out, op)
	}
	return out
}

func harmless(op porcupine.Operation) bool {
	switch t := op.Output.(told); t.what {
	case "view", "answer", "in progress", "KEY_REUSED", "ABANDONED", "ENTRY_NOT_FOUND", "ALREADY_SETTLED", "CLAIM_LIVE", "EXPIRED", "skipped":
		return true
	case "CLAIM_LOST":
		return op.Input.(call).kind != tell // a late report is kept
	default:
		return false
	}
}

func describe(ops []porcupine.Operation) string {
	ops = slices.Clone(ops)
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var out strings.Builder
	for _, op := range ops {
		end := "…"
		if op.Return != never {
			end = time.Duration(op.Return).String()
		}
		fmt.Fprintf(&out, "  client %d, %v to %s: %v → %v\n", op.ClientId, time.Duration(op.Call), end, op.Input, op.Output)
	}
	return out.String()
}

// save keeps a failing history as text and as a drawing, and says where. PROOF_ARTIFACTS names the folder; else it is a temporary one.
func save(model porcupine.Model, ops, shorter []porcupine.Operation) string {
	dir := os.Getenv("PROOF_ARTIFACTS")
	if dir == "" {
		dir = os.TempDir()
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err.Error()
	}
	dir, err := os.MkdirTemp(dir, "history-")
	if err != nil {
		return err.Error()
	}
	text := "all:\n" + describe(ops) + "\nshrunk:\n" + describe(shorter)
	if err := os.WriteFile(filepath.Join(dir, "history.txt"), []byte(text), 0o600); err != nil {
		return err.Error()
	}
	drawn := slices.Clone(shorter)
	for i := range drawn { // "never" would squeeze everything else into one column
		drawn[i].Return = min(drawn[i].Return, lastEnd(shorter)+1)
	}
	_, info := porcupine.CheckOperationsVerbose(model, drawn, checkLimit)
	if err := porcupine.VisualizePath(model, info, filepath.Join(dir, "history.html")); err != nil {
		return err.Error()
	}
	return "saved, and drawn, in " + dir
}

func lastEnd(ops []porcupine.Operation) (last int64) {
	for _, op := range ops {
		last = max(last, op.Call)
		if op.Return != never {
			last = max(last, op.Return)
		}
	}
	return last
}
