package ledger_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/idemd/idemd/ledger"
)

// history is the life of one scope under random requests, judged by Decide and nothing else. After every step the invariants are checked that
// the design promises for all histories.
type history struct {
	t      *rapid.T
	secret *ledger.Secret
	scope  ledger.ScopeID
	ref    ledger.Ref
	row    *ledger.Entry
	now    ledger.Time
	floor  ledger.Time
	margin time.Duration
	claims []ledger.Claim // every claim ever granted, also of forgotten incarnations
	fence  int64
	steps  []string
	// delayed: some write was made later than it was decided, so that what was computed from the time of the decision is off by that.
	delayed bool
}

func newHistory(t *rapid.T) *history {
	secret, err := ledger.NewSecret(make([]byte, ledger.SecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	ref := ledger.Ref{Tenant: "acme", Operation: "charge", Key: "k"}
	return &history{
		t: t, secret: secret, scope: secret.Scope(ref), ref: ref, now: epoch,
		margin: rapid.SampledFrom([]time.Duration{0, 0, 500 * time.Millisecond}).Draw(t, "margin"),
	}
}

func (h *history) env() ledger.Env {
	p := ledger.Policy{
		Tenant: "*", Operation: "*", Lease: seconds(h.t, "lease", 1, 20),
		Horizons:      ledger.Horizons{ClientRetry: seconds(h.t, "retention", 2, 60)},
		MaxAttempts:   rapid.SampledFrom([]int32{0, 1, 2, 3, 32}).Draw(h.t, "max attempts"),
		OnAbandoned:   rapid.SampledFrom([]ledger.OnAbandoned{ledger.Reclaim, ledger.Reclaim, ledger.Hold}).Draw(h.t, "on abandoned"),
		BindPrincipal: rapid.IntRange(0, 9).Draw(h.t, "bind") == 0,
	}
	tombstone := seconds(h.t, "tombstone", 0, 60)
	p.Tombstone = &tombstone
	if p.OnAbandoned == ledger.Reclaim && rapid.Bool().Draw(h.t, "reclaim within?") {
		p.ReclaimWithin = seconds(h.t, "reclaim within", 1, 60)
	}
	principal := rapid.SampledFrom([]string{"alice", "alice", "alice", "bob", ""}).Draw(h.t, "principal")
	return ledger.Env{
		Now: h.now, Floor: h.floor, Margin: h.margin, Rules: p.Rules(ledger.Clamp{}), Principal: principal, Bound: h.secret.Principal(principal),
		Operator: rapid.IntRange(0, 4).Draw(h.t, "operator") == 0,
	}
}

func seconds(t *rapid.T, label string, from, to int) time.Duration {
	return time.Duration(rapid.IntRange(from, to).Draw(t, label)) * time.Second
}

func (h *history) begin() ledger.BeginDecision {
	name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}).Draw(h.t, "attempt")
	if rapid.Bool().Draw(h.t, "fresh id") {
		name = fmt.Sprint("fresh ", len(h.steps), name)
	}
	r := ledger.BeginDecision{
		Scope: h.scope, Ref: h.ref, IDHash: h.secret.AttemptID(h.scope, uuidOf(name)), Holder: "A",
		Fingerprints: fingerprintsOf(command{}), Mode: rapid.SampledFrom([]ledger.Mode{ledger.Run, ledger.Run, ledger.Recover}).Draw(h.t, "mode"),
	}
	switch rapid.IntRange(0, 19).Draw(h.t, "oddity") {
	case 0:
		r.Fingerprints = fingerprintsOf(command{args: map[string]string{"hash": "h2"}})
	case 1:
		r.Fingerprints = fingerprintsOf(command{args: map[string]string{"hash": "other:h1"}})
	case 2:
		r.Holder = "B"
	case 3, 4:
		r.Lease = seconds(h.t, "own lease", 1, 40)
	}
	return r
}

// claim draws a claim that was granted at some time; false for one that was never issued.
func (h *history) claim() (ledger.Claim, bool) {
	if len(h.claims) == 0 || rapid.IntRange(0, 9).Draw(h.t, "forged") == 0 {
		return ledger.Claim{}, false
	}
	if rapid.Bool().Draw(h.t, "latest claim") {
		return h.claims[len(h.claims)-1], true
	}
	return rapid.SampledFrom(h.claims).Draw(h.t, "claim"), true
}

func (h *history) answer() (*ledger.Response, *ledger.Failure) {
	text := rapid.SampledFrom([]string{"x", "y"}).Draw(h.t, "answer")
	d := ledger.Disposition(rapid.IntRange(0, 3).Draw(h.t, "disposition"))
	if d == 0 {
		return &ledger.Response{Body: []byte(text)}, nil
	}
	return nil, &ledger.Failure{Code: 9, Message: text, Disposition: d}
}

func (h *history) request() ledger.Request {
	switch rapid.IntRange(0, 13).Draw(h.t, "request") {
	case 0, 1, 2, 3, 4:
		return h.begin()
	case 5, 6, 7, 8:
		r := ledger.ReportDecision{Scope: h.scope}
		r.Claim, r.Issued = h.claim()
		r.Response, r.Failure = h.answer()
		r.Report = ledger.ReportDigest(r.Response, r.Failure)
		return r
	case 9, 10:
		r := ledger.ExtendDecision{Scope: h.scope, Lease: seconds(h.t, "new lease", 0, 40)}
		r.Claim, r.Issued = h.claim()
		return r
	case 11:
		return h.resolution()
	case 12:
		if rapid.IntRange(0, 3).Draw(h.t, "erase?") > 0 {
			return ledger.ApplyDecision()
		}
		return ledger.EraseDecision{Scope: h.scope, Force: rapid.Bool().Draw(h.t, "force")}
	default:
		return ledger.LookupDecision{}
	}
}

func (h *history) resolution() ledger.ResolveDecision {
	r := ledger.ResolveDecision{
		Scope: h.scope, Action: ledger.ResolveAction(rapid.IntRange(1, 3).Draw(h.t, "action")), Reason: "because",
		Force: rapid.Bool().Draw(h.t, "force"), Attempt: 1,
	}
	if h.row != nil {
		r.Attempt = max(1, h.row.Last.Number-int32(rapid.IntRange(0, 1).Draw(h.t, "stale")))
	}
	switch r.Action {
	case ledger.ResolveComplete:
		r.Response = &ledger.Response{Body: []byte("x")}
		r.Report = ledger.ReportDigest(r.Response, nil)
	case ledger.ResolveFail:
		r.Failure = &ledger.Failure{Code: 9, Message: "x", Disposition: ledger.Final}
		r.Report = ledger.ReportDigest(nil, r.Failure)
	case ledger.ResolveRelease:
	}
	return r
}

// step makes one request, or lets time pass, or sweeps.
func (h *history) step() {
	switch rapid.IntRange(0, 9).Draw(h.t, "step") {
	case 0, 1:
		h.pass()
	case 2:
		if rapid.Bool().Draw(h.t, "sweep?") {
			h.sweep()
		} else {
			h.floor = h.now
			h.steps = append(h.steps, "restart")
		}
	default:
		h.decide(h.request(), h.env())
	}
}

// pass moves the clock, half the time to within a microsecond of an instant at which something changes.
func (h *history) pass() {
	next := h.now.Add(seconds(h.t, "passed", 0, 30))
	if h.row != nil && rapid.Bool().Draw(h.t, "to an edge") {
		edges := []ledger.Time{h.row.Last.LeaseUntil, h.row.DueAt, h.row.HoldFrom, h.row.ForgetAt()}
		edge := rapid.SampledFrom(edges).Draw(h.t, "edge")
		if edge != ledger.Never {
			next = edge + ledger.Time(rapid.IntRange(-1, 1).Draw(h.t, "beside"))
		}
	}
	h.now = max(h.now, next)
	h.steps = append(h.steps, "pass to "+at(h.now))
}

func (h *history) sweep() {
	h.steps = append(h.steps, "sweep")
	if h.row == nil || h.row.DueAt > h.now {
		return
	}
	before := h.row
	action, w := ledger.DecideSweep(h.row, h.now)
	switch condition := before.ConditionAt(h.now); {
	case action == ledger.SweepForget:
		h.row = nil
	case w != nil:
		h.row, _ = w.Apply(h.row, h.now)
	case condition == ledger.Live:
		h.check(reflect.DeepEqual(before, h.row), "a sweep touched a live claim")
	}
	h.check(before.ConditionAt(h.now) == h.row.ConditionAt(h.now), "a sweep made %s of %s",
		conditionNames[h.row.ConditionAt(h.now)], conditionNames[before.ConditionAt(h.now)])
	h.check(h.row == nil || h.row.DueAt > h.now, "still due after a sweep")
}

func (h *history) decide(req ledger.Request, env ledger.Env) {
	before := h.row
	kept := deepCopy(before)
	v := ledger.Decide(before, req, env)
	h.steps = append(h.steps, fmt.Sprintf("%s %T%+v -> %d %v", conditionNames[before.ConditionAt(h.now)], req, req, v.Outcome, v.Refusal))
	h.check(reflect.DeepEqual(kept, before), "Decide changed the entry it was given")
	h.check(reflect.DeepEqual(v, ledger.Decide(before, req, env)), "the same arguments gave another verdict")
	if problem := guardAgrees(before, req, env, v); problem != "" {
		h.check(false, "%s", problem)
	}
	h.check((v.Outcome == ledger.Refused) == (v.Refusal != nil), "outcome %d with refusal %v", v.Outcome, v.Refusal)
	if v.Refusal != nil {
		h.check(slices.Contains(ledger.Reasons(), v.Refusal.Reason), "reason %q is not listed", v.Refusal.Reason)
		h.check(v.Refusal.Message != "", "a refusal without a message")
	}
	if v.Write != nil && !h.apply(before, v.Write) {
		return
	}
	h.check(reflect.DeepEqual(kept, before), "applying the write changed the entry before it")
	h.granted(before, before.ConditionAt(env.Now), req, v)
	h.checkStep(before, before.ConditionAt(env.Now), req, v)
	h.checkRow()
}

// apply writes what was decided, now or after a while in which nobody else wrote. It returns false where it came too late.
func (h *history) apply(before *ledger.Entry, w *ledger.Write) bool {
	delay := ledger.Time(0)
	if rapid.IntRange(0, 5).Draw(h.t, "delayed?") == 0 {
		delay = ledger.Time(rapid.Int64Range(1, 3_000_000).Draw(h.t, "delay"))
		h.delayed = true
	}
	h.now += delay
	row, applied := w.Apply(before, h.now)
	if !applied {
		lapsedSince := w.Guard.Kind == ledger.GuardClaim && before.ConditionAt(h.now-delay) != before.ConditionAt(h.now)
		h.check(delay > 0 && lapsedSince, "the guard of an emitted write does not hold for the row it was emitted for")
		return false
	}
	h.row = row
	return true
}

// granted notes a grant and checks it: one live claim at most, numbers and fences only rise.
func (h *history) granted(before *ledger.Entry, condition ledger.Condition, req ledger.Request, v ledger.Verdict) {
	if v.Outcome != ledger.Granted && v.Outcome != ledger.Resumed {
		return
	}
	fence := h.row.Fence()
	if v.Outcome == ledger.Resumed {
		h.check(fence == h.fence, "a resumed claim has fence %d, the last grant had %d", fence, h.fence)
		return
	}
	h.check(condition != ledger.Live, "granted over a live claim")
	h.check(fence > h.fence, "the fence went from %d to %d", h.fence, fence)
	h.fence = fence
	if condition != ledger.Absent {
		h.check(h.row.Last.Number == before.Last.Number+1, "attempt %d after attempt %d", h.row.Last.Number, before.Last.Number)
	} else {
		h.check(h.row.Last.Number == 1, "a new incarnation begins with attempt %d", h.row.Last.Number)
	}
	r := req.(ledger.BeginDecision)
	h.claims = append(h.claims, ledger.Claim{Incarnation: h.row.Incarnation, Attempt: h.row.Last.Number, IDHash: r.IDHash})
}

func (h *history) check(ok bool, format string, args ...any) {
	if ok {
		return
	}
	for _, s := range h.steps[max(0, len(h.steps)-12):] {
		h.t.Log(s)
	}
	h.t.Fatalf(format, args...)
}

func deepCopy(e *ledger.Entry) *ledger.Entry {
	if e == nil {
		return nil
	}
	return e.Clone()
}

// TestRandomHistories runs Decide through random histories of one scope.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			h.step()
		}
	})
}
