package ledger_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

func ptr[T any](v T) *T { return &v }

func TestTheBuiltinPolicy(t *testing.T) {
	t.Parallel()
	r := ledger.BuiltinPolicy().Rules(ledger.Clamp{})
	if r.Lease != time.Minute || r.OnAbandoned != ledger.Reclaim || r.Retention != 7*24*time.Hour || r.Tombstone != r.Retention || r.MaxAttempts != 10 {
		t.Errorf("the built-in policy is %+v", r)
	}
}

// TestRetentionIsTheLongestHorizon, and says which one decides; the clamp decides over all.
func TestRetentionIsTheLongestHorizon(t *testing.T) {
	t.Parallel()
	h := time.Hour
	for _, c := range []struct {
		horizons  ledger.Horizons
		clamp     ledger.Clamp
		retention time.Duration
		decides   string
	}{
		{ledger.Horizons{}, ledger.Clamp{}, 7 * 24 * h, "default"},
		{ledger.Horizons{ClientRetry: h}, ledger.Clamp{}, h, "client_retry"},
		{ledger.Horizons{ClientRetry: h, QueueRedelivery: 2 * h}, ledger.Clamp{}, 2 * h, "queue_redelivery"},
		{ledger.Horizons{ClientRetry: h, WebhookReplay: 3 * h}, ledger.Clamp{}, 3 * h, "webhook_replay"},
		{ledger.Horizons{OperatorReplay: 4 * h, Settlement: h}, ledger.Clamp{}, 4 * h, "operator_replay"},
		{ledger.Horizons{OperatorReplay: 4 * h, Settlement: 90 * 24 * h}, ledger.Clamp{}, 90 * 24 * h, "settlement"},
		{ledger.Horizons{ClientRetry: time.Second}, ledger.Clamp{}, ledger.MinRetention, "floor"},
		{ledger.Horizons{ClientRetry: h}, ledger.Clamp{MinRetention: 24 * h}, 24 * h, "floor"},
		{ledger.Horizons{}, ledger.Clamp{MaxRetention: 24 * h}, 24 * h, "ceiling"},
		{ledger.Horizons{ClientRetry: 48 * h}, ledger.Clamp{MaxRetention: 24 * h}, 24 * h, "ceiling"},
	} {
		p := ledger.Policy{Tenant: "*", Operation: "*", Horizons: c.horizons}
		if r := p.Rules(c.clamp); r.Retention != c.retention || r.RetentionHorizon != c.decides || r.Tombstone != r.Retention {
			t.Errorf("%+v under %+v: %v by %s, tombstone %v", c.horizons, c.clamp, r.Retention, r.RetentionHorizon, r.Tombstone)
		}
	}
	for _, c := range []ledger.Clamp{{MinRetention: -1}, {MinRetention: ledger.MinRetention - 1}, {MaxRetention: -1}, {MinRetention: 2 * h, MaxRetention: h}, {MaxRetention: time.Second}, {MaxRetention: ledger.MaxRetention + 1}} {
		if c.Validate() == nil {
			t.Errorf("the clamp %+v is accepted", c)
		}
	}
}

// TestPoliciesAreValidated, each rule on its own, naming the field.
func TestPoliciesAreValidated(t *testing.T) {
	t.Parallel()
	for field, changes := range map[string][]func(*ledger.Policy){
		"policy.tenant":    {func(p *ledger.Policy) { p.Tenant = "" }, func(p *ledger.Policy) { p.Tenant = "a\n" }},
		"policy.operation": {func(p *ledger.Policy) { p.Operation = "" }, func(p *ledger.Policy) { p.Operation = strings.Repeat("o", 256) }},
		// A policy whose retention would be under its own longest horizon can not be written.
		"policy.horizons.webhook_replay": {func(p *ledger.Policy) { p.Horizons.WebhookReplay = -1 }, func(p *ledger.Policy) { p.Horizons.WebhookReplay = 48 * time.Hour }},
		"policy.lease":                   {func(p *ledger.Policy) { p.Lease = time.Millisecond }, func(p *ledger.Policy) { p.Lease = 25 * time.Hour }},
		"policy.max_wait":                {func(p *ledger.Policy) { p.MaxWait = 6 * time.Minute }},
		"policy.max_attempts":            {func(p *ledger.Policy) { p.MaxAttempts = -1 }, func(p *ledger.Policy) { p.MaxAttempts = 33 }},
		"policy.on_abandoned":            {func(p *ledger.Policy) { p.OnAbandoned = 3 }},
		"policy.reclaim_within":          {func(p *ledger.Policy) { p.ReclaimWithin = -1 }, func(p *ledger.Policy) { p.ReclaimWithin, p.OnAbandoned = 1, ledger.Hold }},
		"policy.tombstone":               {func(p *ledger.Policy) { p.Tombstone = ptr(-time.Second) }, func(p *ledger.Policy) { p.Tombstone = ptr(ledger.MaxRetention + 1) }},
		"policy.max_response_bytes":      {func(p *ledger.Policy) { p.MaxResponseBytes = -1 }, func(p *ledger.Policy) { p.MaxResponseBytes = 8<<20 + 1 }},
		"policy.store_response":          {func(p *ledger.Policy) { p.StoreResponse = 4 }},
		"policy.response_metadata_allow": {
			func(p *ledger.Policy) { p.MetadataAllow = []string{"X-A"} }, func(p *ledger.Policy) { p.MetadataAllow = []string{"set-cookie"} },
			func(p *ledger.Policy) { p.MetadataAllow = []string{"authorization"} }, func(p *ledger.Policy) { p.MetadataAllow = []string{""} },
			func(p *ledger.Policy) { p.MetadataAllow = []string{"x-ratelimit-remaining"} },
		},
		"policy.key_format": {func(p *ledger.Policy) { p.KeyFormat = 4 }},
		"policy.key_pattern": {
			func(p *ledger.Policy) { p.KeyFormat = ledger.KeyPattern }, func(p *ledger.Policy) { p.KeyPattern = "a" },
			func(p *ledger.Policy) { p.KeyFormat, p.KeyPattern = ledger.KeyPattern, "(" },
		},
	} {
		for i, change := range changes {
			p := ledger.Policy{Tenant: "*", Operation: "*"}
			change(&p)
			r := p.Validate(ledger.Clamp{MaxRetention: 24 * time.Hour})
			if r == nil || r.Reason != ledger.ReasonInvalidPolicy || r.Field != field {
				t.Errorf("%s, rule %d: %v (field %q)", field, i, r, r.Field)
			}
		}
	}
	if r := (&ledger.Policy{Tenant: "*", Operation: "*"}).Validate(ledger.Clamp{}); r != nil {
		t.Errorf("the built-in policy is refused: %v", r)
	}
}

// TestKeyFormats: what a policy says about keys, timestamps among them.
func TestKeyFormats(t *testing.T) {
	t.Parallel()
	uuid := ledger.Policy{Tenant: "*", Operation: "*", KeyFormat: ledger.KeyUUID}
	pattern := ledger.Policy{Tenant: "*", Operation: "*", KeyFormat: ledger.KeyPattern, KeyPattern: "order-[0-9]+|x"}
	stamps := ledger.Policy{Tenant: "*", Operation: "*", RefuseTimestampKeys: true}
	for _, c := range []struct {
		policy        ledger.Policy
		good, refused []string
	}{
		{uuid, []string{"123e4567-e89b-12d3-a456-426614174000", "123E4567-E89B-12D3-A456-426614174000"}, []string{
			"123e4567e89b12d3a456426614174000", "{123e4567-e89b-12d3-a456-426614174000}", "123e4567-e89b-12d3-a456-42661417400g",
			"123e4567-e89b-12d3-a456-426614174000 ", "123e4567-e89b-12d3-a456_426614174000", "é23e4567-e89b-12d3-a456-42661417400",
		}},
		// The pattern holds for the whole key, alternatives included.
		{pattern, []string{"order-1", "x"}, []string{"order-", "order-1a", "an order-1", "order-1\u2028", "xx"}},
		{stamps, []string{"order-1700000000", "1700000000a", "12345", "0", "99", "99999999999999999999", "2023-13-01", "k"}, []string{
			"1700000000", "1700000000000", "1700000000000000", "1700000000000000000", "2023-11-14", "2023-11-14T22:13:20Z",
			"2023-11-14T22:13:20.123+02:00", "2023-11-14 22:13:20", "20231114", "20231114221320", "20231114T221320Z",
		}},
	} {
		r := c.policy.Rules(ledger.Clamp{})
		for _, key := range c.good {
			if refusal := r.CheckKey(key); refusal != nil {
				t.Errorf("%q: %v", key, refusal)
			}
		}
		for _, key := range c.refused {
			if refusal := r.CheckKey(key); refusal == nil || refusal.Reason != ledger.ReasonInvalidKey || refusal.Field != "ref.key" {
				t.Errorf("%q is taken: %v", key, refusal)
			}
		}
	}
}

// TestAKeyThatWasTakenKeepsItsAnswer although its form is forbidden since.
func TestAKeyThatWasTakenKeepsItsAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.complete(b.begin("1700000000", "a"), "x")
	b.policy(ledger.Policy{Tenant: "*", Operation: "charge", RefuseTimestampKeys: true})
	if r, err := b.tryBegin("1700000000", "b"); err != nil || r.Completed == nil {
		t.Errorf("%+v %v", r, err)
	}
	_, err := b.tryBegin("1700000001", "a")
	b.wantReason(err, ledger.ReasonInvalidKey)
}

// TestPoliciesAreLookedUpClosestFirst: (tenant, operation), (tenant, *), (*, operation), (*, *), built-in.
func TestPoliciesAreLookedUpClosestFirst(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	want := func(lease time.Duration) {
		t.Helper()
		v, err := b.ledger.GetPolicy(t.Context(), "acme", "charge", true)
		b.must(err)
		if v.Rules.Lease != lease {
			t.Errorf("effective: %v, want %v", v.Rules.Lease, lease)
		}
		c := b.begin("k"+lease.String(), "a")
		if c.Lease != lease {
			t.Errorf("granted for %v, want %v", c.Lease, lease)
		}
	}
	want(time.Minute)
	for i, name := range [][2]string{{"*", "*"}, {"*", "charge"}, {"acme", "*"}, {"acme", "charge"}} {
		_, err := b.ledger.GetPolicy(t.Context(), name[0], name[1], false)
		b.wantReason(err, ledger.ReasonPolicyNotFound)
		b.policy(ledger.Policy{Tenant: name[0], Operation: name[1], Lease: time.Duration(i+2) * time.Second})
		want(time.Duration(i+2) * time.Second)
	}
	b.policy(ledger.Policy{Tenant: "other", Operation: "charge", Lease: time.Hour})
	want(5 * time.Second)
	_, err := b.ledger.DeletePolicy(t.Context(), "acme", "charge", -1)
	b.must(err)
	want(4 * time.Second)
	list, err := b.ledger.ListPolicies(t.Context())
	b.must(err)
	if len(list) != 4 || list[0].Policy.Tenant != "*" || list[0].Policy.Operation != "*" || list[3].Policy.Tenant != "other" {
		t.Errorf("listed %d: %+v", len(list), list)
	}
}

// TestPoliciesAreChangedByRevision: two operators do not undo each other unseen, and every call can be resent.
func TestPoliciesAreChangedByRevision(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := ledger.Policy{Tenant: "acme", Operation: "charge", Lease: time.Second}
	first, err := b.ledger.PutPolicy(t.Context(), p, 0)
	b.must(err)
	again, err := b.ledger.PutPolicy(t.Context(), p, 0)
	b.must(err)
	if again.Policy.Revision != first.Policy.Revision || again.EffectiveAt != first.EffectiveAt {
		t.Errorf("resent: %+v after %+v", again, first)
	}
	p.Lease = 2 * time.Second
	_, err = b.ledger.PutPolicy(t.Context(), p, 0)
	b.wantReason(err, ledger.ReasonPolicyChanged)
	second, err := b.ledger.PutPolicy(t.Context(), p, first.Policy.Revision)
	b.must(err)
	if second.Policy.Revision <= first.Policy.Revision || second.Policy.UpdatedAt != b.clock.Now() {
		t.Errorf("changed: %+v", second.Policy)
	}
	_, err = b.ledger.DeletePolicy(t.Context(), "acme", "charge", first.Policy.Revision)
	b.wantReason(err, ledger.ReasonPolicyChanged)
	b.faulty.Plan(storetest.On(storetest.PutSetting, storetest.Kinds(storetest.LoseReply)))
	_, err = b.ledger.DeletePolicy(t.Context(), "acme", "charge", second.Policy.Revision)
	b.must(err)
	_, err = b.ledger.DeletePolicy(t.Context(), "acme", "charge", -1)
	b.wantReason(err, ledger.ReasonPolicyNotFound)
	for _, kind := range unknowns {
		b.faulty.Plan(storetest.On(storetest.PutSetting, storetest.Script(storetest.Fault{Kind: kind, LandAfter: 1})))
		p.Lease += time.Second
		v, err := b.ledger.PutPolicy(t.Context(), p, -1)
		b.must(err)
		if v.Policy.Lease != p.Lease {
			t.Errorf("%s: %+v", kind, v.Policy)
		}
	}
	b.faulty.Plan(nil)
	n, err := b.ledger.BootstrapPolicies(t.Context(), []ledger.Policy{{Tenant: "acme", Operation: "charge"}, {Tenant: "*", Operation: "refund"}})
	if v, _ := b.ledger.GetPolicy(t.Context(), "acme", "charge", false); err != nil || n != 1 || v.Policy.Lease != p.Lease {
		t.Errorf("bootstrap wrote %d and left %+v: %v", n, v.Policy, err)
	}
}

// TestALatePolicyChangeUndoesNothing: a change whose outcome was unknown lands when the policy has been changed, deleted, or deleted and put
// again since.
func TestALatePolicyChangeUndoesNothing(t *testing.T) {
	t.Parallel()
	policy := func(lease time.Duration) ledger.Policy {
		return ledger.Policy{Tenant: "acme", Operation: "charge", Lease: lease}
	}
	put := func(b *bench, lease time.Duration) error {
		_, err := b.ledger.PutPolicy(t.Context(), policy(lease), -1)
		return err
	}
	remove := func(b *bench) error {
		_, err := b.ledger.DeletePolicy(t.Context(), "acme", "charge", -1)
		return err
	}
	for name, x := range map[string]struct{ before, late, since func(*bench) error }{
		"put, deleted since": {
			late:  func(b *bench) error { return put(b, time.Hour) },
			since: func(b *bench) error { return errors.Join(put(b, time.Minute), remove(b)) },
		},
		"changed, changed since": {
			before: func(b *bench) error { return put(b, time.Second) },
			late:   func(b *bench) error { return put(b, time.Hour) },
			since:  func(b *bench) error { return put(b, time.Minute) },
		},
		"changed, deleted and put again since": {
			before: func(b *bench) error { return put(b, time.Second) },
			late:   func(b *bench) error { return put(b, time.Hour) },
			since:  func(b *bench) error { return errors.Join(remove(b), put(b, time.Second)) },
		},
		"deleted, deleted and put again since": {
			before: func(b *bench) error { return put(b, time.Second) },
			late:   remove,
			since:  func(b *bench) error { return errors.Join(remove(b), put(b, time.Second)) },
		},
	} {
		b := newBench(t)
		if x.before != nil {
			b.must(x.before(b))
		}
		b.faulty.Plan(storetest.Kinds(storetest.NoFault, storetest.Late, storetest.Refuse, storetest.Refuse))
		if err := x.late(b); !errors.Is(err, ledger.ErrUnavailable) || b.faulty.Count(storetest.Late) != 1 {
			t.Fatalf("%s: %v, after %v", name, err, b.faulty.Counts())
		}
		b.faulty.Plan(nil)
		b.must(x.since(b))
		want, err := b.ledger.ListPolicies(t.Context())
		b.must(err)
		b.faulty.Land(t.Context())
		if got, err := b.ledger.ListPolicies(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v, want %+v", name, got, err, want)
		}
	}
}

// TestPoliciesAreBounded: what was deleted counts for an hour and is then cleared away.
func TestPoliciesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	put := func(i int) error {
		_, err := b.ledger.PutPolicy(t.Context(), ledger.Policy{Tenant: "acme", Operation: itoa(i), Lease: time.Minute}, 0)
		return err
	}
	for i := range ledger.MaxPolicies {
		body := []byte(`{"Tenant":"acme","Operation":"` + itoa(i) + `"}`)
		if ok, err := b.model.PutSetting(t.Context(), ledger.Setting{Kind: "policy", Name: "acme\n" + itoa(i), Body: body}, 0); !ok {
			t.Fatal(err)
		}
	}
	for file, says := range map[string]string{
		"../proto/idem/v1/admin.proto": "There can be %d policies.", "../docs/errors.md": "There are %d policies,",
	} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), fmt.Sprintf(says, ledger.MaxPolicies)) {
			t.Errorf("%s does not say how many there may be: %v", file, err)
		}
	}
	one := ledger.MaxPolicies
	b.wantReason(put(one), ledger.ReasonTooManyPolicies)
	if _, err := b.ledger.PutPolicy(t.Context(), ledger.Policy{Tenant: "acme", Operation: "0", Lease: time.Minute}, -1); err != nil {
		t.Errorf("changing one that is there: %v", err)
	}
	_, err := b.ledger.DeletePolicy(t.Context(), "acme", "1", -1)
	b.must(err)
	if _, err := b.ledger.GetPolicy(t.Context(), "acme", "1", false); reasonOf(err) != ledger.ReasonPolicyNotFound {
		t.Errorf("the deleted one: %v", err)
	}
	if list, err := b.ledger.ListPolicies(t.Context()); err != nil || len(list) != ledger.MaxPolicies-1 {
		t.Errorf("%d are listed: %v", len(list), err)
	}
	b.clock.Advance(time.Hour - time.Microsecond)
	b.wantReason(put(one), ledger.ReasonTooManyPolicies)
	b.clock.Advance(time.Microsecond)
	b.must(put(one))
	b.wantReason(put(one+1), ledger.ReasonTooManyPolicies)
	if settings, err := b.model.Settings(t.Context(), "policy"); err != nil || len(settings.List) != ledger.MaxPolicies {
		t.Errorf("%d settings are left: %v", len(settings.List), err)
	}
}

// TestPutPolicySaysFromWhenItHolds: by then every daemon follows it, also one whose refreshing fails: it then reads before it decides, or refuses.
func TestPutPolicySaysFromWhenItHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := storetest.NewRunningClock()
		model := storetest.NewModel(clock, 0)
		b, other := benchOn(t, clock, model), benchOn(t, clock, model)
		v, err := b.ledger.PutPolicy(t.Context(), ledger.Policy{Tenant: "*", Operation: "*", Lease: 7 * time.Second}, -1)
		b.must(err)
		if c := b.begin("own", "a"); c.Lease != 7*time.Second {
			t.Errorf("the daemon that wrote it grants %v", c.Lease)
		}
		if v.EffectiveAt.Sub(clock.Now()) > ledger.PolicyMaxAge {
			t.Errorf("effective at %v from now", v.EffectiveAt.Sub(clock.Now()))
		}
		<-time.After(v.EffectiveAt.Sub(clock.Now()))
		if c := other.begin("other", "a"); c.Lease != 7*time.Second {
			t.Errorf("from then on the other daemon grants %v", c.Lease)
		}
		<-time.After(ledger.PolicyMaxAge)
		other.faulty.Plan(storetest.On(storetest.Settings, storetest.Kinds(storetest.Refuse)))
		_, err = other.tryBegin("k", "a")
		b.wantReason(err, ledger.ReasonStoreUnavailable)
	})
}

// TestResponsesAreTrimmedByPolicy: metadata by allow list, in order and multiplicity (C33); bodies by size and kind; never by refusal (C31).
func TestResponsesAreTrimmedByPolicy(t *testing.T) {
	t.Parallel()
	in := &ledger.Response{
		Code: 3, Body: []byte("12345"), ContentType: "t", ResourceType: "order", ResourceID: "7",
		Metadata: []ledger.MetadataPair{
			{Name: "x-a", Value: []byte("1, 2")}, {Name: "set-cookie", Value: []byte("c")}, {Name: "x-a", Value: []byte("1, 2")},
			{Name: "x-b-bin", Value: []byte{0, 0xff}}, {Name: "x-c", Value: []byte("not allowed")},
		},
	}
	p := ledger.Policy{Tenant: "*", Operation: "*", MaxResponseBytes: 5, MetadataAllow: []string{"x-a", "x-b-bin"}}
	out := p.Rules(ledger.Clamp{}).TrimResponse(in)
	if string(out.Body) != "12345" || out.BodyOmitted || len(out.Metadata) != 3 || out.Metadata[1].Name != "x-a" || string(out.Metadata[2].Value) != "\x00\xff" {
		t.Errorf("at the limit: %+v", out)
	}
	p.MaxResponseBytes = 4
	out = p.Rules(ledger.Clamp{}).TrimResponse(in)
	if out.Body != nil || !out.BodyOmitted || out.BodySize != 5 || len(out.BodySHA256) != 32 || out.ResourceID != "7" || out.Code != 3 {
		t.Errorf("a byte over the limit: %+v", out)
	}
	if ledger.ReportDigest(in, nil) != ledger.ReportDigest(&ledger.Response{
		Code: 3, BodyOmitted: true, BodySize: 5, BodySHA256: out.BodySHA256, ContentType: "t", ResourceType: "order", ResourceID: "7", Metadata: in.Metadata,
	}, nil) {
		t.Error("a body that the client left out makes another report of it")
	}
	f := &ledger.Failure{Code: 9, Message: strings.Repeat("é", ledger.MaxMessageBytes), Details: []ledger.Detail{{Value: make([]byte, ledger.MaxDetailsBytes+1)}}}
	trimmed := p.Rules(ledger.Clamp{}).TrimFailure(f)
	if len(trimmed.Message) > ledger.MaxMessageBytes || !strings.HasSuffix(trimmed.Message, "é") || trimmed.Details != nil || !trimmed.DetailsOmitted {
		t.Errorf("a long failure: %d bytes, details %v", len(trimmed.Message), trimmed.Details)
	}
}
