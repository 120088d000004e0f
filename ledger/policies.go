package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	policyKind = "policy"
	// policyRefresh is how often a daemon reads the policies; policyMaxAge is how old its copy may be when it decides. PutPolicy
	// promises the latter to its caller, so a daemon that could not refresh reads before it decides.
	policyRefresh = time.Second
	policyMaxAge  = 5 * time.Second
	// deletedPolicy stands in place of a policy that was deleted, for deletedPolicyKept at least: so revisions go on from where they were, and
	// a write of before, if its outcome was unknown and it lands only now, finds another revision and brings nothing back.
	deletedPolicy     = "deleted"
	deletedPolicyKept = time.Hour
)

// policyCache is this daemon's copy of the policies.
type policyCache struct {
	store Store
	clamp Clamp

	mu      sync.RWMutex
	rulesOf map[policyName]*Rules  // guarded by mu; never changed in place
	known   map[policyName]*Policy // guarded by mu; never changed in place
	bad     map[policyName]error   // guarded by mu; never changed in place. Those that stand there and make no sense: what they hold for is refused
	asOf    time.Time              // guarded by mu; when the reading of this copy began, by the monotonic clock
	reading uint64                 // guarded by mu; counts the readings begun, so that of two at one instant the later one counts
	latest  uint64                 // guarded by mu; which reading this copy is

	loading sync.Mutex
	builtin *Rules
}

type policyName struct{ tenant, operation string }

func newPolicyCache(store Store, clamp Clamp) *policyCache {
	return &policyCache{store: store, clamp: clamp, builtin: BuiltinPolicy().Rules(clamp)}
}

func (c *policyCache) run(ctx context.Context) {
	ticker := time.NewTicker(policyRefresh)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			// A failure shows on the next call that needs a fresher copy.
			_ = c.reload(ctx)
		}
	}
}

func (c *policyCache) reload(ctx context.Context) error {
	c.mu.Lock()
	c.reading++
	this, began := c.reading, time.Now()
	before, rulesBefore := c.known, c.rulesOf
	c.mu.Unlock()
	settings, err := c.store.Settings(ctx, policyKind)
	if err != nil {
		return err
	}
	known, rules := make(map[policyName]*Policy, len(settings.List)), make(map[policyName]*Rules, len(settings.List))
	bad := map[policyName]error{}
	for _, s := range settings.List {
		if string(s.Body) == deletedPolicy {
			continue
		}
		name := nameOfSetting(s)
		// Most are as they were a second ago. Reading them is cheap; decoding them all again would not be.
		if p := before[name]; p != nil && p.Revision == s.Revision && p.UpdatedAt == s.UpdatedAt {
			known[name], rules[name] = p, rulesBefore[name]
			continue
		}
		p, err := decodePolicy(s)
		if err != nil {
			bad[name] = err
			continue
		}
		known[name], rules[name] = p, p.Rules(c.clamp)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if this > c.latest {
		c.known, c.rulesOf, c.bad, c.asOf, c.latest = known, rules, bad, began, this
	}
	return nil
}

// fresh makes sure that the copy is young enough to decide by.
func (c *policyCache) fresh(ctx context.Context) error {
	if c.young() {
		return nil
	}
	c.loading.Lock()
	defer c.loading.Unlock()
	if c.young() {
		return nil
	}
	return c.reload(ctx)
}

func (c *policyCache) young() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return time.Since(c.asOf) < policyMaxAge
}

// rules returns what holds for (tenant, operation).
func (c *policyCache) rules(ctx context.Context, tenant, operation string) (*Rules, error) {
	if err := c.fresh(ctx); err != nil {
		return nil, err
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, name := range lookupOrder(tenant, operation) {
		if err := c.bad[name]; err != nil {
			return nil, badPolicy(name, err)
		}
		if r := c.rulesOf[name]; r != nil {
			return r, nil
		}
	}
	return c.builtin, nil
}

// counting names the stored policy that holds for (tenant, operation); the zero name where none does.
func (c *policyCache) counting(tenant, operation string) policyName {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, name := range lookupOrder(tenant, operation) {
		if c.known[name] != nil || c.bad[name] != nil {
			return name
		}
	}
	return policyName{}
}

// under returns those of entries for which that stored policy counts. Erased ones have no names that a policy could be looked up by.
func (c *policyCache) under(name policyName, entries []*Entry) []*Entry {
	var out []*Entry
	for _, e := range entries {
		if e.Ref != (Ref{}) && c.counting(e.Ref.Tenant, e.Ref.Operation) == name {
			out = append(out, e)
		}
	}
	return out
}

// lookupOrder is the order in which policies are looked for, the closest first.
func lookupOrder(tenant, operation string) [4]policyName {
	return [4]policyName{{tenant, operation}, {tenant, "*"}, {"*", operation}, {"*", "*"}}
}

// storedPolicy is a policy as it is kept. Fields may be added; their zero value must mean what their absence meant before.
type storedPolicy struct{ Policy }

func encodePolicy(p *Policy) ([]byte, error) {
	c := *p
	c.Revision, c.UpdatedAt = 0, 0
	return json.Marshal(storedPolicy{c})
}

func decodePolicy(s Setting) (*Policy, error) {
	var p storedPolicy
	if err := json.Unmarshal(s.Body, &p); err != nil {
		return nil, fmt.Errorf("%w: the stored policy %q cannot be read: %w", ErrBadRow, s.Name, err)
	}
	p.Revision, p.UpdatedAt = s.Revision, s.UpdatedAt
	return &p.Policy, nil
}

// settingName is unambiguous: neither part can hold a control character.
func (n policyName) settingName() string { return n.tenant + "\n" + n.operation }

// nameOfSetting is the inverse of settingName.
func nameOfSetting(s Setting) policyName {
	tenant, operation, _ := strings.Cut(s.Name, "\n")
	return policyName{tenant, operation}
}

// PolicyView is a policy with the rules it comes to.
type PolicyView struct {
	Policy *Policy
	Rules  *Rules
	// EffectiveAt is from when on every daemon follows it, by the store's clock; set by PutPolicy and DeletePolicy.
	EffectiveAt Time
}

// PutPolicy writes a policy. expect is the revision it must have now: 0 if it must not exist, negative if any. It refuses with INVALID_POLICY,
// POLICY_CHANGED, TOO_MANY_POLICIES and STORE_UNAVAILABLE. Resending it is safe: the same policy again is no change.
func (l *Ledger) PutPolicy(ctx context.Context, p Policy, expect int64) (PolicyView, error) {
	if refusal := p.Validate(l.clamp); refusal != nil {
		return PolicyView{}, refusal
	}
	body, err := encodePolicy(&p)
	if err != nil {
		return PolicyView{}, &Refusal{Reason: ReasonInternal, Message: "the policy cannot be encoded", Cause: err}
	}
	return l.changePolicy(ctx, policyName{p.Tenant, p.Operation}, body, expect)
}

// DeletePolicy removes a policy, with expect as in PutPolicy. It refuses with POLICY_NOT_FOUND, POLICY_CHANGED and STORE_UNAVAILABLE.
func (l *Ledger) DeletePolicy(ctx context.Context, tenant, operation string, expect int64) (PolicyView, error) {
	return l.changePolicy(ctx, policyName{tenant, operation}, nil, expect)
}

// changePolicy writes a policy, or deletes it where body is nil, if it has that revision.
func (l *Ledger) changePolicy(ctx context.Context, name policyName, body []byte, expect int64) (PolicyView, error) {
	write := body
	if body == nil {
		write = []byte(deletedPolicy)
	}
	for try := 0; try <= maxTries; try++ {
		have, settings, err := l.storedPolicy(ctx, name)
		if err != nil {
			return PolicyView{}, contextOrStore(ctx, err)
		}
		revision := have.Revision
		if !have.stands() {
			revision = 0
		}
		switch {
		case body == nil && revision == 0 && try > 0:
			// An earlier try of this call removed it.
			return l.policyChanged(ctx, have, settings.Now)
		case body == nil && revision == 0:
			return PolicyView{}, refuse(ReasonPolicyNotFound, "there is no policy for exactly that tenant and operation")
		case body != nil && string(have.Body) == string(body):
			return l.policyChanged(ctx, have, max(have.UpdatedAt, 1))
		case expect >= 0 && revision != expect:
			return PolicyView{}, refuse(ReasonPolicyChanged, "the policy was changed by somebody else").
				with("help", "read it again and decide on what it is now")
		case have.Revision == 0:
			if err := l.roomForPolicy(ctx, settings); err != nil {
				return PolicyView{}, err
			}
		}
		_, err = l.store.PutSetting(ctx, Setting{Kind: policyKind, Name: name.settingName(), Body: write}, have.Revision)
		if err != nil && !errors.Is(err, ErrUnknown) {
			return PolicyView{}, contextOrStore(ctx, err)
		}
		if err := pause(ctx, try); err != nil {
			return PolicyView{}, err
		}
		if after, _, err := l.storedPolicy(ctx, name); err == nil && string(after.Body) == string(write) {
			return l.policyChanged(ctx, after, after.UpdatedAt)
		}
	}
	return PolicyView{}, storeRefusal(ErrContended)
}

// stands reports whether there is a policy in a setting that holds one, or held one.
func (s Setting) stands() bool { return s.Revision > 0 && string(s.Body) != deletedPolicy }

// storedPolicy is the setting of one policy, among all of them as they are now; of revision 0 where there is none.
func (l *Ledger) storedPolicy(ctx context.Context, name policyName) (Setting, Settings, error) {
	settings, err := l.store.Settings(ctx, policyKind)
	if err != nil {
		return Setting{}, Settings{}, err
	}
	for _, s := range settings.List {
		if s.Name == name.settingName() {
			return s, settings, nil
		}
	}
	return Setting{}, settings, nil
}

// roomForPolicy refuses one policy more than there may be. It clears away what was deleted so long ago that no write of before can still be
// under way. Daemons that write at once can each find the last place free.
func (l *Ledger) roomForPolicy(ctx context.Context, settings Settings) error {
	count := len(settings.List)
	for _, s := range settings.List {
		if s.stands() || s.UpdatedAt.Add(deletedPolicyKept) > settings.Now {
			continue
		}
		if _, err := l.store.PutSetting(ctx, Setting{Kind: policyKind, Name: s.Name}, s.Revision); err != nil && !errors.Is(err, ErrUnknown) {
			return contextOrStore(ctx, err)
		}
		count--
	}
	if count >= MaxPolicies {
		return refuse(ReasonTooManyPolicies, "there are %d policies, and no more are kept", MaxPolicies).
			with("help", "delete some; one with * as its tenant or operation can stand for many")
	}
	return nil
}

// policyChanged is the answer to a change that left s and was written at an instant.
func (l *Ledger) policyChanged(ctx context.Context, s Setting, at Time) (PolicyView, error) {
	if err := l.policies.reload(ctx); err != nil {
		return PolicyView{}, contextOrStore(ctx, err)
	}
	view := PolicyView{EffectiveAt: at.Add(policyMaxAge + l.store.Margin())}
	if s.stands() {
		p, err := decodePolicy(s)
		if err != nil {
			return PolicyView{}, badPolicy(nameOfSetting(s), err)
		}
		view.Policy, view.Rules = p, p.Rules(l.clamp)
	}
	return view, nil
}

// GetPolicy returns the policy of exactly (tenant, operation), or, if effective, the one that holds for it by lookup order, down to the
// built-in one.
func (l *Ledger) GetPolicy(ctx context.Context, tenant, operation string, effective bool) (PolicyView, error) {
	if err := l.policies.reload(ctx); err != nil {
		return PolicyView{}, contextOrStore(ctx, err)
	}
	names := []policyName{{tenant, operation}}
	if effective {
		order := lookupOrder(tenant, operation)
		names = order[:]
	}
	l.policies.mu.RLock()
	defer l.policies.mu.RUnlock()
	for _, name := range names {
		if err := l.policies.bad[name]; err != nil {
			return PolicyView{}, badPolicy(name, err)
		}
		if p := l.policies.known[name]; p != nil {
			return PolicyView{Policy: p, Rules: l.policies.rulesOf[name]}, nil
		}
	}
	if effective {
		return PolicyView{Policy: BuiltinPolicy(), Rules: l.policies.builtin}, nil
	}
	return PolicyView{}, refuse(ReasonPolicyNotFound, "there is no policy for exactly that tenant and operation").
		with("help", "ask for the effective policy to see what holds instead")
}

// badPolicy refuses what cannot be done without a policy that makes no sense. To write or to delete it puts it right.
func badPolicy(name policyName, err error) *Refusal {
	r := refuse(ReasonBadRow, "a stored policy makes no sense").with("tenant", name.tenant).with("operation", name.operation).
		with("help", "put that policy again, or delete it")
	r.Cause = err
	return r
}

// ListPolicies returns every stored policy, sorted by tenant and operation. It refuses with BAD_ROW where one of them makes no sense, and names it.
func (l *Ledger) ListPolicies(ctx context.Context) ([]PolicyView, error) {
	if err := l.policies.reload(ctx); err != nil {
		return nil, contextOrStore(ctx, err)
	}
	l.policies.mu.RLock()
	defer l.policies.mu.RUnlock()
	for name, err := range l.policies.bad {
		return nil, badPolicy(name, err)
	}
	views := make([]PolicyView, 0, len(l.policies.known))
	for name, p := range l.policies.known {
		views = append(views, PolicyView{Policy: p, Rules: l.policies.rulesOf[name]})
	}
	slices.SortFunc(views, func(a, b PolicyView) int {
		if c := strings.Compare(a.Policy.Tenant, b.Policy.Tenant); c != 0 {
			return c
		}
		return strings.Compare(a.Policy.Operation, b.Policy.Operation)
	})
	return views, nil
}

// BootstrapPolicies writes the policies that do not exist yet and leaves those that do as they are, so that a file for bootstrap never undoes an
// operator's change. It returns how many it wrote.
func (l *Ledger) BootstrapPolicies(ctx context.Context, policies []Policy) (int, error) {
	written := 0
	for _, p := range policies {
		have, _, err := l.storedPolicy(ctx, policyName{p.Tenant, p.Operation})
		if err != nil {
			return written, contextOrStore(ctx, err)
		}
		if refusal := p.Validate(l.clamp); refusal != nil {
			return written, refusal
		}
		if have.stands() {
			continue
		}
		if _, err := l.PutPolicy(ctx, p, 0); err != nil && !errors.Is(err, &Refusal{Reason: ReasonPolicyChanged}) {
			return written, err
		}
		written++
	}
	return written, nil
}
