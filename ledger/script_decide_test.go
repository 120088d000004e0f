package ledger_test

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/idemd/idemd/ledger"
)

func itoa(n int) string { return strconv.Itoa(n) }

// decideEngine runs scripts through Decide alone: a map of rows, and nothing that retries, waits or caches. With every request it also holds
// Speculate against Decide.
type decideEngine struct {
	*world
	secret   *ledger.Secret
	rows     map[ledger.ScopeID]*ledger.Entry
	last     map[ledger.ScopeID]*ledger.Entry // as rows, but kept when a row is deleted
	claims   map[string]ledger.Claim
	policies map[[2]string]*ledger.Policy
	floor    ledger.Time
	cells    map[cell]bool
}

func newDecideEngine(t *testing.T, path string) *decideEngine {
	t.Helper()
	secret, err := ledger.NewSecret(make([]byte, ledger.SecretBytes))
	if err != nil {
		t.Fatal(err)
	}
	return &decideEngine{
		world: newWorld(t, path), secret: secret, rows: map[ledger.ScopeID]*ledger.Entry{}, last: map[ledger.ScopeID]*ledger.Entry{},
		claims: map[string]ledger.Claim{}, policies: map[[2]string]*ledger.Policy{}, cells: map[cell]bool{},
	}
}

func (e *decideEngine) run(t *testing.T, c command) outcome {
	t.Helper()
	switch c.verb {
	case "T":
		e.clock.Advance(parseMove(t, c))
	case "store":
	case "restart", "outage":
		e.floor = e.clock.Now()
	case "policy":
		p := policyOf(t, c)
		if refusal := p.Validate(ledger.Clamp{}); refusal != nil {
			t.Fatalf("%s: %v", c.where, refusal)
		}
		e.policies[[2]string{p.Tenant, p.Operation}] = &p
	case "rows":
		return said(itoa(len(e.rows)))
	case "sweep":
		return e.sweep()
	case "erase":
		return e.erase(t, c)
	case "apply":
		return e.apply(t, c)
	default:
		return e.request(t, c)
	}
	return outcome{}
}

func (e *decideEngine) env(c command, ref ledger.Ref) ledger.Env {
	p := ledger.BuiltinPolicy()
	for _, name := range [][2]string{{"*", ref.Operation}, {ref.Tenant, "*"}, {ref.Tenant, ref.Operation}} {
		if q := e.policies[name]; q != nil {
			p = q
		}
	}
	return ledger.Env{
		Now: e.clock.Now(), Floor: e.floor, Margin: e.margin, Rules: p.Rules(ledger.Clamp{}),
		Principal: c.arg("as", ""), Bound: e.secret.Principal(c.arg("as", "")),
		Operator: c.has("operator") || c.verb == "resolve" || c.verb == "erase" || c.verb == "apply",
	}
}

// decide judges one request and writes what comes of it.
func (e *decideEngine) decide(t *testing.T, c command, scope ledger.ScopeID, req ledger.Request, env ledger.Env) (v ledger.Verdict, before, after *ledger.Entry) {
	t.Helper()
	before = e.rows[scope]
	for _, reached := range cellsOf(before, e.last[scope], req, env) {
		e.cells[reached] = true
	}
	copied := before
	if before != nil {
		copied = before.Clone()
	}
	v = ledger.Decide(before, req, env)
	if !reflect.DeepEqual(copied, before) {
		t.Errorf("%s: Decide changed the entry it was given", c.where)
	}
	if problem := guardAgrees(before, req, env, v); problem != "" {
		t.Errorf("%s: %s", c.where, problem)
	}
	after = before
	if v.Write != nil {
		row, applied := v.Write.Apply(before, env.Now)
		if !applied {
			t.Errorf("%s: the guard of the write that Decide emitted does not hold for the row it was emitted for", c.where)
		}
		after = row
		e.rows[scope], e.last[scope] = row, row
	}
	return v, before, after
}

func (e *decideEngine) request(t *testing.T, c command) outcome {
	t.Helper()
	ref := refOf(c)
	scope, env := e.secret.Scope(ref), e.env(c, ref)
	req := e.requestOf(t, c, ref, scope, env)
	if refusal := e.validate(c, ref, req); refusal != nil {
		return refusalOutcome(refusal, false)
	}
	v, before, after := e.decide(t, c, scope, req, env)
	switch v.Outcome {
	case ledger.Refused:
		return refusalOutcome(v.Refusal, keptEvidence(before, after))
	case ledger.Granted, ledger.Resumed:
		return e.grant(t, c, scope, req.(ledger.BeginDecision), v, after)
	case ledger.Replayed, ledger.FailedAs:
		return answerOutcome(after.Response, after.Failure, after.SettledBy, after.SettledAt, after.DueAt)
	case ledger.InProgress:
		return said("IN_PROGRESS").with("attempt", after.Last.Number).with("holder", after.Last.Holder).with("retry_after", v.RetryAfter)
	case ledger.Found:
		view := ledger.ViewOf(after, env.Now)
		view.Entry.Ref = ref
		return lookupOutcome(view)
	case ledger.Renewed:
		until, lease := ledger.TellLease(ledger.StampsOf(after, env.Now), e.margin)
		return said("RENEWED").with("lease", lease).with("until", at(until))
	default:
		return said("OK", unchanged(before, after)).with("attempt", after.Last.Number)
	}
}

// validate judges what needs no entry: the ledger does so before it decides.
func (e *decideEngine) validate(c command, ref ledger.Ref, req ledger.Request) *ledger.Refusal {
	r, ok := req.(ledger.BeginDecision)
	if !ok {
		return ref.Validate()
	}
	begin := ledger.BeginRequest{
		Ref: ref, Fingerprints: r.Fingerprints, AttemptID: uuidOf(c.args["attempt"]), Lease: r.Lease, Holder: r.Holder, Mode: r.Mode,
	}
	return begin.Validate()
}

func (e *decideEngine) grant(t *testing.T, c command, scope ledger.ScopeID, r ledger.BeginDecision, v ledger.Verdict, row *ledger.Entry) outcome {
	t.Helper()
	resumed := v.Outcome == ledger.Resumed
	e.granted(t, c, scope, resumed, row.Fence())
	e.claims[c.args["attempt"]] = ledger.Claim{Incarnation: row.Incarnation, Attempt: row.Last.Number, IDHash: r.IDHash}
	_, lease := ledger.TellLease(ledger.StampsOf(row, e.clock.Now()), e.margin)
	ev := row.Evidence
	if !row.Doubt {
		ev = nil
	}
	return grantOutcome(resumed, row.Doubt, row.Last.RecoverOnly, row.Last.OnCredit, row.Last.Number, row.Incarnation, row.Fence(), lease, ev)
}

func (e *decideEngine) requestOf(t *testing.T, c command, ref ledger.Ref, scope ledger.ScopeID, env ledger.Env) ledger.Request {
	t.Helper()
	switch c.verb {
	case "begin":
		return ledger.BeginDecision{
			Scope: scope, Ref: ref, Fingerprints: fingerprintsOf(c), IDHash: e.secret.AttemptID(scope, uuidOf(c.args["attempt"])),
			Lease: c.duration(t, "lease"), Holder: c.arg("by", ""), Mode: modeOf(c),
		}
	case "complete", "fail":
		r := ledger.ReportDecision{Scope: scope}
		r.Claim, r.Issued = e.claims[c.args["token"]]
		if c.verb == "complete" {
			r.Report, r.Response = ledger.ReportDigest(responseOf(c), nil), env.Rules.TrimResponse(responseOf(c))
		} else {
			r.Report, r.Failure = ledger.ReportDigest(nil, failureOf(c)), env.Rules.TrimFailure(failureOf(c))
		}
		return r
	case "extend":
		r := ledger.ExtendDecision{Scope: scope, Lease: c.duration(t, "lease")}
		r.Claim, r.Issued = e.claims[c.args["token"]]
		return r
	case "resolve":
		return e.resolution(t, c, scope, env)
	case "lookup":
		return ledger.LookupDecision{}
	}
	t.Fatalf("%s: unknown verb %q", c.where, c.verb)
	return nil
}

func (e *decideEngine) resolution(t *testing.T, c command, scope ledger.ScopeID, env ledger.Env) ledger.Request {
	t.Helper()
	r := ledger.ResolveDecision{Scope: scope, Attempt: int32(number(t, c, "attempt")), Reason: c.arg("reason", "because"), Force: c.has("force")}
	switch c.word(2) {
	case "complete":
		r.Action, r.Response, r.Report = ledger.ResolveComplete, env.Rules.TrimResponse(responseOf(c)), ledger.ReportDigest(responseOf(c), nil)
	case "fail":
		r.Action, r.Failure, r.Report = ledger.ResolveFail, env.Rules.TrimFailure(failureOf(c)), ledger.ReportDigest(nil, failureOf(c))
	default:
		r.Action = ledger.ResolveRelease
	}
	return r
}

// scopes lists the rows in a fixed order.
func (e *decideEngine) scopes() []ledger.ScopeID {
	return slices.SortedFunc(maps.Keys(e.rows), func(a, b ledger.ScopeID) int { return slices.Compare(a[:], b[:]) })
}

func (e *decideEngine) sweep() outcome {
	var closed, lapsed, forgotten, held int64
	now := e.clock.Now()
	for _, scope := range e.scopes() {
		row := e.rows[scope]
		if row.DueAt > now {
			continue
		}
		action, w := ledger.DecideSweep(row, now)
		switch action {
		case ledger.SweepNothing:
		case ledger.SweepClose:
			closed++
		case ledger.SweepLapse:
			lapsed++
		case ledger.SweepForget:
			forgotten++
			delete(e.rows, scope)
		case ledger.SweepHold:
			held++
		}
		if w != nil {
			e.rows[scope], _ = w.Apply(row, now)
		}
	}
	return sweepOutcome(closed, lapsed, forgotten, held)
}

func (e *decideEngine) erase(t *testing.T, c command) outcome {
	t.Helper()
	erased, skipped := 0, 0
	for _, scope := range e.scopes() {
		row := e.rows[scope]
		if row.Ref.Tenant != c.word(0) {
			continue
		}
		v, _, _ := e.decide(t, c, scope, ledger.EraseDecision{Scope: scope, Force: c.has("force")}, e.env(c, row.Ref))
		switch v.Outcome {
		case ledger.Skipped:
			skipped++
		case ledger.Refused:
			delete(e.rows, scope)
			erased++
		default:
			erased++
		}
	}
	return said("DONE").with("erased", erased).with("skipped", skipped)
}

func (e *decideEngine) apply(t *testing.T, c command) outcome {
	t.Helper()
	changed := 0
	for _, scope := range e.scopes() {
		row := e.rows[scope]
		if row.Ref.Operation != c.word(0) {
			continue
		}
		if v, _, _ := e.decide(t, c, scope, ledger.ApplyDecision(), e.env(c, row.Ref)); v.Write != nil {
			changed++
		}
	}
	return said("DONE").with("changed", changed)
}
