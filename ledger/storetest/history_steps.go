package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/ledger"
)

// historyStep is one step of a history. What it comes to follows from it and from what the callers were told so far, so that a history
// still makes sense when steps are taken out of it.
type historyStep struct {
	kind   string
	entry  int
	daemon int
	seed   uint64
}

// historyKinds are how often each kind of step is drawn, of their sum. What ends an entry, or lets its time run out, is seldom, so that most
// of a history happens while there is something to decide.
var historyKinds = []struct {
	kind   string
	weight int
}{
	{"begin", 12}, {"resend begin", 6}, {"recover", 6}, {"complete", 3}, {"fail", 12}, {"resend report", 6}, {"extend", 4}, {"forge", 2},
	{"resolve", 5}, {"lookup", 2}, {"advance", 4}, {"advance to lease end", 12}, {"advance to due", 1}, {"advance to forgetting", 1}, {"sweep", 2},
	{"dry sweep", 1}, {"erase", 1}, {"policy", 1}, {"apply", 1}, {"restart", 2}, {"land", 3},
}

func drawKind(g generator) string {
	total := 0
	for _, k := range historyKinds {
		total += k.weight
	}
	at := g.IntN(total)
	for _, k := range historyKinds {
		if at -= k.weight; at < 0 {
			return k.kind
		}
	}
	return ""
}

func drawSteps(g generator) []historyStep {
	out := make([]historyStep, stepsPerHistory)
	for i := range out {
		out[i] = historyStep{
			kind: drawKind(g), entry: g.IntN(entriesPerHistory), daemon: g.IntN(2), seed: g.Uint64(),
		}
	}
	return out
}

// operationPolicies are the policies of the operations that histories use, each odd in one respect.
func operationPolicies() []ledger.Policy {
	of := func(operation string, change func(*ledger.Policy)) ledger.Policy {
		hours := 2 * time.Hour
		p := ledger.Policy{
			Tenant: "*", Operation: operation, Horizons: ledger.Horizons{ClientRetry: time.Hour}, Tombstone: &hours,
			Lease: 20 * time.Second, MaxAttempts: 6,
		}
		change(&p)
		return p
	}
	none := time.Duration(0)
	return []ledger.Policy{
		of("reclaim", func(*ledger.Policy) {}),
		of("hold", func(p *ledger.Policy) { p.OnAbandoned = ledger.Hold }),
		of("within", func(p *ledger.Policy) { p.ReclaimWithin = time.Minute }),
		of("within its lapse", func(p *ledger.Policy) { p.ReclaimWithin = 65 * time.Minute }),
		of("once", func(p *ledger.Policy) { p.MaxAttempts = 1 }),
		of("twice", func(p *ledger.Policy) { p.MaxAttempts = 2 }),
		of("bound", func(p *ledger.Policy) { p.BindPrincipal = true }),
		of("no tombstone", func(p *ledger.Policy) { p.Tombstone = &none }),
		of("brief", func(p *ledger.Policy) { p.Horizons.ClientRetry = 2 * time.Second }),
		of("long", func(p *ledger.Policy) { p.Horizons.OperatorReplay = 30 * 24 * time.Hour }),
		of("small", func(p *ledger.Policy) { p.MaxResponseBytes = 10 }),
		of("pointer", func(p *ledger.Policy) { p.StoreResponse = ledger.StorePointer }),
		of("metadata", func(p *ledger.Policy) { p.MetadataAllow = []string{"etag", "x-a"} }),
	}
}

// action is what a step does: the call for either side, its text, and what to take note of once it was answered.
type action struct {
	text  string
	call  func(s *side, l *ledger.Ledger) (any, error)
	after func(answer)
	// several: it writes several entries at once, in no order that two sides could share.
	several bool
}

// action makes the step's call out of what is known so far; without a call where there is nothing to do.
func (r *historyRun) action(step historyStep, g generator) action {
	e := r.entries[step.entry]
	if len(e.begins) == 0 && step.kind != "begin" && g.IntN(4) != 0 {
		return action{} // most of what can be said about an entry that nobody began is soon said
	}
	switch step.kind {
	case "begin", "recover":
		return r.begin(e, r.newBegin(e, g, step.kind == "recover"))
	case "resend begin":
		if len(e.begins) == 0 {
			return action{}
		}
		return r.begin(e, resent(e.begins[len(e.begins)-1-g.IntN(min(len(e.begins), 3))], g))
	case "complete", "fail", "resend report", "forge":
		return r.report(e, step.kind, g)
	case "extend":
		return r.extend(e, g)
	case "resolve":
		return r.resolve(e, g)
	case "lookup":
		caller := aCaller(g)
		caller.Operator = g.IntN(2) == 0
		return action{text: fmt.Sprintf("%s looks %s up", who(caller), e.ref.Key), call: func(_ *side, l *ledger.Ledger) (any, error) {
			v, err := l.Lookup(r.pair.ctx, caller, e.ref)
			return v, err
		}, after: func(a answer) { r.auditor.lookedUp(e.ref.Key, a, r.pair.model.clock.Now()) }}
	case "erase", "policy", "apply", "sweep", "dry sweep", "restart", "land":
		return r.operate(e, step, g)
	default:
		return r.pass(e, step.kind, g)
	}
}

// pass lets time pass: to an instant at which something ends, or to one step before or behind it.
func (r *historyRun) pass(e *playedEntry, kind string, g generator) action {
	d := time.Duration(g.Int64N(int64(40*time.Second/time.Microsecond))) * time.Microsecond
	reading, err := r.pair.model.store.Get(r.pair.ctx, e.scope)
	if row := reading.Entry; err == nil && row != nil {
		to := reading.Now
		switch kind {
		case "advance to lease end":
			to = row.Last.LeaseUntil
		case "advance to due":
			to = row.DueAt
		case "advance to forgetting":
			to = row.ForgetAt()
		}
		if to != ledger.Never && to > reading.Now {
			d = to.Sub(reading.Now) + time.Duration(g.IntN(3)-1)*time.Microsecond
		}
	}
	return action{
		text: fmt.Sprintf("%v pass", d),
		call: func(s *side, _ *ledger.Ledger) (any, error) { s.clock.Advance(d); return nil, nil },
	}
}

func aCaller(g generator) ledger.Caller {
	return ledger.Caller{Principal: []string{"alice", "alice", "bob", ""}[g.IntN(4)]}
}

func who(c ledger.Caller) string {
	if c.Principal == "" {
		return "somebody"
	}
	return c.Principal
}

func (r *historyRun) newBegin(e *playedEntry, g generator, recover bool) playedBegin {
	e.next++
	b := playedBegin{caller: aCaller(g), request: ledger.BeginRequest{
		Ref: e.ref, AttemptID: [16]byte{0xa7, 15: e.next}, Holder: []string{"w1", "w2", ""}[g.IntN(3)],
		Lease:        []time.Duration{0, 0, 10 * time.Second, time.Minute}[g.IntN(4)],
		Fingerprints: []ledger.Fingerprint{{Algorithm: "v1", Hash: []byte("0123456789abcdef")}},
	}}
	if recover {
		b.request.Mode = ledger.Recover
	}
	switch g.IntN(12) {
	case 0:
		b.request.Fingerprints = []ledger.Fingerprint{{Algorithm: "v1", Hash: []byte("another request!")}}
	case 1:
		b.request.Fingerprints = []ledger.Fingerprint{{Algorithm: "v2", Hash: []byte("fedcba9876543210")}}
	case 2, 3:
		b.request.Fingerprints = append(b.request.Fingerprints, ledger.Fingerprint{Algorithm: "v2", Hash: []byte("fedcba9876543210")})
	}
	return b
}

// resent is b as it is sent again: mostly as it was, sometimes as somebody else would who got hold of its attempt id.
func resent(b playedBegin, g generator) playedBegin {
	switch g.IntN(10) {
	case 0:
		b.caller = aCaller(g)
	case 1:
		b.request.Holder += "'"
	case 2:
		b.request.Mode = ledger.Recover - b.request.Mode
	}
	return b
}

func (r *historyRun) begin(e *playedEntry, b playedBegin) action {
	e.begins = append(e.begins, b)
	mode := "run"
	if b.request.Mode == ledger.Recover {
		mode = "recover"
	}
	return action{
		text: fmt.Sprintf("%s as %q begins %s (%s) to %s, attempt id %d, lease %v, %d fingerprints", who(b.caller), b.request.Holder, e.ref.Key,
			e.ref.Operation, mode, b.request.AttemptID[15], b.request.Lease, len(b.request.Fingerprints)),
		call: func(_ *side, l *ledger.Ledger) (any, error) { return l.Begin(r.pair.ctx, b.caller, b.request) },
		after: func(a answer) {
			result, _ := a.value.(ledger.BeginResult)
			if result.Granted != nil {
				e.claims = append(e.claims, &playedClaim{caller: b.caller, grant: result.Granted, mode: b.request.Mode})
			}
			r.auditor.began(e.ref.Key, b.request, a, termsOf(&e.policy), r.pair.model.clock.Now())
		},
	}
}

// claim is one of the latest claims that somebody was told of.
func (e *playedEntry) claim(g generator) *playedClaim {
	if len(e.claims) == 0 {
		return nil
	}
	return e.claims[len(e.claims)-1-min(g.IntN(4)*g.IntN(2), len(e.claims)-1)]
}

func (r *historyRun) report(e *playedEntry, kind string, g generator) action {
	c := e.claim(g)
	if c == nil {
		return action{}
	}
	report := aReport(kind, g)
	if kind == "resend report" {
		if len(c.reports) == 0 {
			return action{}
		}
		report = c.reports[g.IntN(len(c.reports))]
	}
	token, caller := c.grant.Token, c.caller
	if g.IntN(8) == 0 {
		caller = aCaller(g)
	}
	if kind == "forge" {
		token = append([]byte(nil), token...)
		token[g.IntN(len(token))] ^= 1 << g.IntN(8)
	} else {
		c.reports = append(c.reports, report)
	}
	text := fmt.Sprintf("%s reports (%s) on %s, attempt %d: ", who(caller), kind, e.ref.Key, c.grant.Attempt)
	after := func(a answer) {
		if kind == "forge" {
			r.auditor.forged(e.ref.Key, a)
			return
		}
		r.auditor.reported(e.ref.Key, c.grant, report, a, termsOf(&e.policy), r.pair.model.clock.Now())
	}
	if report.response != nil {
		return action{text: text + render(report.response), after: after, call: func(_ *side, l *ledger.Ledger) (any, error) {
			return l.Complete(r.pair.ctx, caller, ledger.CompleteRequest{Ref: e.ref, Token: token, Response: copyResponse(report.response)})
		}}
	}
	return action{text: text + render(report.failure), after: after, call: func(_ *side, l *ledger.Ledger) (any, error) {
		return l.Fail(r.pair.ctx, caller, ledger.FailRequest{Ref: e.ref, Token: token, Failure: copyFailure(report.failure)})
	}}
}

// aReport is one of few reports, so that different attempts come to send the same one.
func aReport(kind string, g generator) playedReport {
	if kind == "complete" || kind == "forge" && g.IntN(2) == 0 {
		return playedReport{response: &ledger.Response{
			Code: g.Int32N(2), Body: []byte(strings.Repeat("body ", g.IntN(4))), ResourceID: "charge/1", ContentType: "text/plain",
			Metadata: []ledger.MetadataPair{{Name: "etag", Value: []byte{1, 0}}, {Name: "x-a", Value: nil}, {Name: "x-a", Value: []byte("2")}},
		}}
	}
	return playedReport{failure: &ledger.Failure{
		Code: 3 + g.Int32N(2), Message: "declined", Details: []ledger.Detail{{TypeURL: "type/x", Value: []byte{0}}},
		Disposition: ledger.Disposition(1 + g.IntN(3)),
	}}
}

func (r *historyRun) extend(e *playedEntry, g generator) action {
	c := e.claim(g)
	if c == nil {
		return action{}
	}
	request := ledger.ExtendRequest{Ref: e.ref, Token: c.grant.Token, Lease: []time.Duration{0, 0, 15 * time.Second, 10 * time.Minute}[g.IntN(4)]}
	return action{
		text: fmt.Sprintf("%s extends %s, attempt %d, by %v", who(c.caller), e.ref.Key, c.grant.Attempt, request.Lease),
		call: func(_ *side, l *ledger.Ledger) (any, error) { return l.Extend(r.pair.ctx, c.caller, request) },
		after: func(a answer) {
			r.auditor.extended(e.ref.Key, c.grant, a, r.pair.model.clock.Now())
		},
	}
}

func (r *historyRun) resolve(e *playedEntry, g generator) action {
	request := ledger.ResolveRequest{
		Ref: e.ref, Action: min(ledger.ResolveComplete+ledger.ResolveAction(g.IntN(4)), ledger.ResolveRelease), Attempt: 1,
		Reason: "asked the provider", Force: g.IntN(2) == 0,
	}
	if reading, err := r.pair.model.store.Get(r.pair.ctx, e.scope); err == nil && reading.Entry != nil {
		request.Attempt = max(reading.Entry.Last.Number-int32(g.IntN(5)/4), 1)
	}
	// An operator may say just what the holder says, or said.
	switch request.Action {
	case ledger.ResolveComplete:
		request.Response = aReport("complete", g).response
	case ledger.ResolveFail:
		request.Failure = aReport("fail", g).failure
	case ledger.ResolveRelease:
	}
	return action{
		text: fmt.Sprintf("an operator resolves %s, attempt %d, action %d, force %t", e.ref.Key, request.Attempt, request.Action, request.Force),
		call: func(_ *side, l *ledger.Ledger) (any, error) {
			return l.Resolve(r.pair.ctx, ledger.Caller{Principal: "operator"}, request)
		},
		after: func(a answer) {
			r.auditor.resolved(e.ref.Key, request, a, termsOf(&e.policy), r.pair.model.clock.Now())
		},
	}
}

// operate is what operators do, and what happens to the daemons and the store.
func (r *historyRun) operate(e *playedEntry, step historyStep, g generator) action {
	switch step.kind {
	case "erase":
		return r.erase(g)
	case "policy":
		return r.changePolicy(e, g)
	case "apply":
		request := ledger.ApplyRequest{Tenant: r.tenant, Operation: e.ref.Operation, DryRun: g.IntN(4) == 0}
		return action{text: "the policy is applied to " + e.ref.Operation, several: true, call: func(s *side, l *ledger.Ledger) (any, error) {
			applied, err := l.ApplyPolicy(r.pair.ctx, request, nil)
			if err == nil {
				return applied, nil
			}
			// How far it came by then is not said. Sent again it comes to the same end on both sides.
			s.faulty.Plan(nil)
			s.faulty.Land(r.pair.ctx)
			_, again := l.ApplyPolicy(r.pair.ctx, request, nil)
			return fmt.Sprintf("%v, and sent again", answer{err: err}), again
		}}
	case "sweep", "dry sweep":
		request := ledger.SweepRequest{DryRun: step.kind == "dry sweep"}
		return action{text: step.kind, call: func(s *side, l *ledger.Ledger) (any, error) {
			s.faulty.Plan(nil) // a sweep writes many rows at once, in no order that two sides could share
			s.faulty.Land(r.pair.ctx)
			return l.Sweep(r.pair.ctx, request, nil)
		}}
	case "restart":
		return action{text: fmt.Sprintf("daemon %d starts again", step.daemon), call: func(s *side, _ *ledger.Ledger) (any, error) {
			return nil, s.start(r.pair.ctx, step.daemon)
		}}
	default:
		return action{text: "late writes land", call: func(s *side, _ *ledger.Ledger) (any, error) {
			s.faulty.Land(r.pair.ctx)
			return nil, nil
		}}
	}
}

func (r *historyRun) erase(g generator) action {
	now := r.pair.model.clock.Now()
	request := ledger.EraseRequest{
		Tenant: r.tenant, Force: g.IntN(3) == 0,
		CreatedUntil: now.Add(-time.Duration(g.IntN(2)) * time.Minute).Wall(),
	}
	return action{
		text: fmt.Sprintf("the tenant's entries are erased, force %t", request.Force),
		call: func(s *side, l *ledger.Ledger) (any, error) {
			s.faulty.Plan(nil) // it stops at a fault, and is then sent again; a fault in its midst says nothing new
			return l.Erase(r.pair.ctx, ledger.Caller{Principal: "operator"}, request, nil)
		},
		after: func(answer) { r.auditor.erased(now) },
	}
}

// changePolicy puts the rules of another operation's policy in force for this tenant's.
func (r *historyRun) changePolicy(e *playedEntry, g generator) action {
	policies := operationPolicies()
	p := policies[g.IntN(len(policies))]
	p.Tenant, p.Operation = r.tenant, e.ref.Operation
	return action{
		text: fmt.Sprintf("the policy of %s is now %s", e.ref.Operation, render(p)),
		call: func(s *side, l *ledger.Ledger) (any, error) {
			view, err := l.PutPolicy(r.pair.ctx, p, -1)
			if err == nil {
				err = s.refresh(r.pair.ctx)
			}
			return view, err
		},
		after: func(answer) {
			for _, other := range r.entries {
				if other.ref.Operation == e.ref.Operation {
					other.policy = p
				}
			}
		},
	}
}

// stepFaults are what goes wrong with the writes of one step, in their order, and whether its first reading is refused.
type stepFaults struct {
	kinds []FaultKind
	read  bool
	land  bool // late writes land by the end of the step; else they wait for a step that lands them
}

func drawFaults(step historyStep, g generator) stepFaults {
	f := stepFaults{land: true}
	if g.IntN(4) != 0 {
		return f
	}
	likely := []FaultKind{LoseReply, LoseReply, LoseRequest, LoseRequest, Late, Late, Contend, Refuse, NoFault}
	for range 1 + g.IntN(3) {
		f.kinds = append(f.kinds, likely[g.IntN(len(likely))])
	}
	f.read = g.IntN(10) == 0
	f.land = step.seed%2 == 0
	return f
}

// mayLandLater reports whether a write of the step may land behind its end.
func (f stepFaults) mayLandLater() bool { return !f.land && slices.Contains(f.kinds, Late) }

func (f stepFaults) plan() Plan {
	if len(f.kinds) == 0 {
		return nil
	}
	faults := make([]Fault, len(f.kinds))
	for i, kind := range f.kinds {
		faults[i] = Fault{Kind: kind}
		if kind == Late && f.land {
			faults[i].LandAfter = 1 + i%2
		}
	}
	writes, read := On(Write, Script(faults...)), f.read
	return func(c Call) Fault {
		if read && c.Method == Get {
			read = false
			return Fault{Kind: Refuse}
		}
		return writes(c)
	}
}

// planOf is the plan of a call that writes several entries at once: the faults meet one of them, and what is late waits for the end of the call.
func (f stepFaults) planOf(scope ledger.ScopeID) Plan {
	f.land = false
	plan := f.plan()
	if plan == nil {
		return nil
	}
	return func(c Call) Fault {
		if c.Scope != scope {
			return Fault{}
		}
		return plan(c)
	}
}

func (f stepFaults) String() string {
	if len(f.kinds) == 0 {
		return ""
	}
	names := make([]string, len(f.kinds))
	for i, kind := range f.kinds {
		names[i] = kind.String()
	}
	if f.read {
		names = append(names, "refuse a reading")
	}
	if !f.land {
		names = append(names, "late ones land later")
	}
	return " [" + strings.Join(names, ", ") + "]"
}
