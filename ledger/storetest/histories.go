package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// historiesPerStore is how many histories share a store: opening one costs more than playing several, and a store that is not empty is the
// truer test. Each history has a tenant of its own.
const historiesPerStore = 100

// stepsPerHistory is how long a history is.
const stepsPerHistory = 50

// Histories plays n random histories of the whole ledger (STORETEST_HISTORIES says how many otherwise) on a backend and, step by step, on
// the Model. Several callers begin, resend, extend, report, resolve, erase, sweep and change policies through two daemons, while the clock
// jumps and replies are lost; what every call answers and what then stands in the row must be the same on both. Meanwhile an auditor who
// shares no code with the ledger watches the backend's answers for broken promises. A history that fails is made as short as it can be
// and printed as a script, with the seed that repeats it.
func Histories(t *testing.T, f Factory, n int) {
	t.Helper()
	n = countFromEnvironment("STORETEST_HISTORIES", n)
	seed := seedFromEnvironment()
	for from := 0; from < n; from += historiesPerStore {
		to := min(from+historiesPerStore, n)
		t.Run(fmt.Sprintf("%d to %d", from+1, to), func(t *testing.T) {
			t.Parallel()
			playHistories(t, f, seed, from, to)
		})
	}
}

// playHistories plays histories from to to-1 of a seed on one store.
func playHistories(tb testing.TB, f Factory, seed uint64, from, to int) {
	tb.Helper()
	p := openPair(tb, f)
	for number := from; number < to; number++ {
		one := seed + uint64(number)
		steps := drawSteps(newGenerator(one))
		run := newHistoryRun(p, one)
		complaint := run.play(steps)
		if complaint == "" {
			continue
		}
		script := run.script
		shorter, shorterComplaint := shrink(steps, "", func(steps []historyStep) string {
			again := newHistoryRun(openPair(tb, f), one)
			complaint := again.play(steps)
			if complaint != "" {
				script = again.script
			}
			return complaint
		})
		if len(shorter) < len(steps) {
			complaint = shorterComplaint
		}
		tb.Fatalf("history %d failed; repeat with STORETEST_SEED=%d STORETEST_HISTORIES=1\n  %s\n%s",
			number+1, one, strings.Join(script, "\n  "), complaint)
	}
}

// side is one of the two stores that a history is played on, with the daemons that run on it.
type side struct {
	name    string
	store   ledger.Store
	clock   MovableClock
	faulty  *Faulty
	daemons [2]*ledger.Ledger
}

// entryFaults lets faults meet entries only. When a daemon reads settings depends on the machine's clock, and the two sides must meet the
// same faults at the same calls.
type entryFaults struct {
	*Faulty
	inner ledger.Store
}

func (s entryFaults) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	return s.inner.Settings(ctx, kind)
}

func (s entryFaults) PutSetting(ctx context.Context, x ledger.Setting, expect int64) (bool, error) {
	return s.inner.PutSetting(ctx, x, expect)
}

func (s entryFaults) Ready(ctx context.Context) (ledger.Time, error) { return s.inner.Ready(ctx) }

// start starts, or starts again, one of the daemons. They sweep when they are told to, and never by themselves.
func (s *side) start(ctx context.Context, daemon int) error {
	l, err := ledger.New(ctx, ledger.Config{
		Store: entryFaults{s.faulty, s.store}, Daemon: fmt.Sprint("daemon ", daemon), SweepEvery: -1,
	})
	s.daemons[daemon] = l
	return err
}

// pair is the backend and the model, with the same secret, the same policies and the same time.
type pair struct {
	ctx context.Context
	// tested comes first: what it answers is what the auditor sees.
	tested, model *side
	secret        *ledger.Secret
}

func openPair(tb testing.TB, f Factory) *pair {
	tb.Helper()
	backend := f.Open(tb)
	clock := NewClock(backend.Clock.Now())
	p := &pair{
		ctx:    tb.Context(),
		tested: &side{name: "the store", store: backend.Store, clock: backend.Clock, faulty: NewFaulty(backend.Store, nil)},
	}
	model := backend.model(clock, f.Margin)
	p.model = &side{name: "the model", store: model, clock: clock, faulty: NewFaulty(model, nil)}
	if err := p.prepare(); err != nil {
		tb.Fatalf("a ledger on the store: %v", err)
	}
	return p
}

func (p *pair) sides() []*side { return []*side{p.tested, p.model} }

// prepare starts the daemons. The first one makes the secret, which the model then gets too: so the two sides give out the same tokens.
func (p *pair) prepare() error {
	if err := p.tested.start(p.ctx, 0); err != nil {
		return err
	}
	made, err := p.tested.store.Settings(p.ctx, "secret")
	if err != nil || len(made.List) != 1 {
		return fmt.Errorf("%d secrets, %w", len(made.List), err)
	}
	if p.secret, err = ledger.NewSecret(made.List[0].Body); err != nil {
		return err
	}
	if _, err := p.model.store.PutSetting(p.ctx, made.List[0], 0); err != nil {
		return err
	}
	for _, s := range p.sides() {
		for daemon := range s.daemons {
			if err := s.start(p.ctx, daemon); err != nil {
				return err
			}
		}
		for _, policy := range operationPolicies() {
			if _, err := s.daemons[0].PutPolicy(p.ctx, policy, 0); err != nil {
				return err
			}
		}
		if err := s.refresh(p.ctx); err != nil {
			return err
		}
	}
	p.advance(5 * time.Minute) // past the time for which new daemons let holders come back first
	return nil
}

// refresh makes every daemon know the policies as they are. By itself it would only after a while by the machine's clock.
func (s *side) refresh(ctx context.Context) error {
	for _, l := range s.daemons {
		if _, err := l.GetPolicy(ctx, "*", "*", true); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) advance(d time.Duration) {
	for _, s := range p.sides() {
		s.clock.Advance(d)
	}
}

// answer is what one call on one side came to.
type answer struct {
	value any
	err   error
}

// String shows an answer so that two that differ for a caller are two texts. What a refusal was caused by is for logs.
func (a answer) String() string {
	var refusal *ledger.Refusal
	switch {
	case a.err == nil:
		return render(a.value)
	case errors.As(a.err, &refusal):
		shown := *refusal
		shown.Cause = nil
		return "refused " + render(shown)
	default:
		return "error " + a.err.Error()
	}
}

// reason is why the call was refused, "" if it was not.
func (a answer) reason() ledger.Reason {
	var refusal *ledger.Refusal
	if errors.As(a.err, &refusal) {
		return refusal.Reason
	}
	return ""
}

// historyRun plays one history.
type historyRun struct {
	pair    *pair
	tenant  string
	began   ledger.Time
	entries []*playedEntry
	auditor *auditor
	script  []string
}

// playedEntry is one key that the callers of a history fight over, with what they know of it.
type playedEntry struct {
	ref    ledger.Ref
	scope  ledger.ScopeID
	policy ledger.Policy
	begins []playedBegin
	claims []*playedClaim
	next   byte // of attempt ids
}

// playedBegin is a Begin that was sent, to be sent again.
type playedBegin struct {
	caller  ledger.Caller
	request ledger.BeginRequest
}

// playedClaim is a claim that a caller was told of.
type playedClaim struct {
	caller  ledger.Caller
	grant   *ledger.Grant
	mode    ledger.Mode
	reports []playedReport
}

// playedReport is a report that was sent, to be sent again.
type playedReport struct {
	response *ledger.Response
	failure  *ledger.Failure
}

// entriesPerHistory is how few keys a history has, so that its callers meet.
const entriesPerHistory = 2

// newHistoryRun gives a history its tenant, and keys that each stand under an operation with a policy of its own.
func newHistoryRun(p *pair, seed uint64) *historyRun {
	g := newGenerator(seed)
	r := &historyRun{pair: p, tenant: fmt.Sprintf("tenant %x", seed), auditor: newAuditor(), began: p.model.clock.Now()}
	for i := range entriesPerHistory {
		policies := operationPolicies()
		policy := policies[g.IntN(len(policies))]
		ref := ledger.Ref{Tenant: r.tenant, Operation: policy.Operation, Key: fmt.Sprint("key ", i)}
		r.entries = append(r.entries, &playedEntry{ref: ref, scope: p.secret.Scope(ref), policy: policy})
	}
	return r
}

// play plays the steps and returns what went wrong, "" if nothing did.
func (r *historyRun) play(steps []historyStep) string {
	for i, step := range steps {
		if complaint := r.step(step); complaint != "" {
			return fmt.Sprintf("step %d: %s", i+1, complaint)
		}
	}
	return r.finish()
}

// step plays one step on both sides and compares.
func (r *historyRun) step(step historyStep) string {
	g := newGenerator(step.seed)
	do := r.action(step, g)
	if do.call == nil {
		return ""
	}
	faults := drawFaults(step, g)
	line := fmt.Sprintf("at %v: %s%s", r.pair.model.clock.Now().Sub(r.began), do.text, faults)
	var answers []answer
	for _, s := range r.pair.sides() {
		s.faulty.Plan(faults.plan())
		if do.several {
			s.faulty.Plan(faults.planOf(r.entries[step.entry].scope))
		}
		value, err := do.call(s, s.daemons[step.daemon])
		s.faulty.Plan(nil)
		answers = append(answers, answer{value, err})
		if faults.land {
			s.faulty.Land(r.pair.ctx)
		}
	}
	r.script = append(r.script, fmt.Sprintf("%s → %s", line, answers[0]))
	if tested, model := answers[0].String(), answers[1].String(); tested != model {
		return fmt.Sprintf("%s: the store's ledger answers\n  %s\nthe model's\n  %s", do.text, tested, model)
	}
	if entry := r.entries[step.entry]; faults.mayLandLater() || answers[0].reason() == ledger.ReasonStoreUnavailable {
		r.auditor.mayLandLate(entry.ref.Key, r.pair.model.clock.Now())
	}
	if do.after != nil {
		do.after(answers[0])
	}
	return r.compareRows()
}

// compareRows compares the rows of the history on both sides, and shows the backend's to the auditor.
func (r *historyRun) compareRows() string {
	for _, e := range r.entries {
		model, err := r.pair.model.store.Get(r.pair.ctx, e.scope)
		if err != nil {
			return fmt.Sprintf("model: %v", err)
		}
		tested, err := r.pair.tested.store.Get(r.pair.ctx, e.scope)
		if err != nil {
			return fmt.Sprintf("Get: %v", err)
		}
		if diff := differences(model.Entry, tested.Entry); diff != "" {
			return fmt.Sprintf("the row of %s differs:\n%s", e.ref.Key, diff)
		}
		if tested.Now != model.Now {
			return fmt.Sprintf("the store's clock is at %d, want %d", tested.Now, model.Now)
		}
		r.auditor.sees(e.ref.Key, tested.Entry, tested.Now)
	}
	return strings.Join(r.auditor.complaints, "\n")
}

// finish lets late writes land and compares once more, rows and what operators are shown.
func (r *historyRun) finish() string {
	var shown []string
	for _, s := range r.pair.sides() {
		s.faulty.Land(r.pair.ctx)
		list, err := everyEntry(r.pair.ctx, s.daemons[0], r.tenant)
		stats, statsErr := s.daemons[1].Stats(r.pair.ctx, ledger.StatsRequest{Tenant: r.tenant})
		shown = append(shown, answer{list, err}.String()+"\n"+answer{stats, statsErr}.String())
	}
	if shown[0] != shown[1] {
		return fmt.Sprintf("operators are shown by the store's ledger\n%s\nby the model's\n%s", shown[0], shown[1])
	}
	return r.compareRows()
}

// everyEntry is what a list of a tenant shows, page by page.
func everyEntry(ctx context.Context, l *ledger.Ledger, tenant string) (all []ledger.View, err error) {
	for q := (ledger.ListRequest{Tenant: tenant, PageSize: 2}); ; {
		page, err := l.List(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if q.PageToken = page.NextPageToken; q.PageToken == "" {
			return all, nil
		}
	}
}
