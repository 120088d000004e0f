package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// everyField is a policy with everything set that can be set.
const everyField = `
policies:
  - tenant: acme
    operation: shop.v1.PaymentService/Charge
    horizons:
      client_retry: 1d
      queue_redelivery: 14d
      webhook_replay: 3d12h
      operator_replay: 30d
      settlement: 90d
    tombstone: 0s
    lease: 2m
    max_wait: 5s
    max_attempts: 5
    on_abandoned: reclaim
    reclaim_within: 23h
    max_response_bytes: 65536
    store_response: POINTER
    key_format: {kind: PATTERN, pattern: "ord_[0-9]+", refuse_timestamps: true}
    bind_principal: true
    response_metadata_allow: [x-charge-id]
`

// TestAPolicyInAFileIsThePolicyThatIsStored, field by field: written at start, read back by RPC. A field that is new in the .proto and was not
// thought of here fails.
func TestAPolicyInAFileIsThePolicyThatIsStored(t *testing.T) {
	t.Parallel()
	d := &daemon{settings: &settings{policies: write(t, "policies.yaml", everyField)}, log: silent()}
	memory := newMemoryDaemon(t)
	d.ledger = memory.ledger
	if err := d.writePolicies(t.Context()); err != nil {
		t.Fatal(err)
	}
	asked, err := ask(t.Context(), &world{dial: memory.dial}, target10s(), func(ctx context.Context, c *client) (*idemv1.GetPolicyResponse, error) {
		return c.GetPolicy(ctx, &idemv1.GetPolicyRequest{Tenant: "acme", Operation: "shop.v1.PaymentService/Charge"})
	})
	if err != nil {
		t.Fatal(err)
	}
	want, err := readPolicies(d.settings.policies)
	if err != nil {
		t.Fatal(err)
	}
	got := stripOutputOnly(asked.GetPolicy())
	got.Etag = ""
	if !proto.Equal(got, want[0]) {
		t.Errorf("stored %v\n want %v", got, want[0])
	}
	fields := want[0].ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if unset := !want[0].ProtoReflect().Has(field); unset && field.Name() != "etag" && !isOutputOnly(field.Name()) {
			t.Errorf("%s is not in this test's policy", field.Name())
		}
	}
}

func isOutputOnly(name protoreflect.Name) bool {
	for _, other := range outputOnly {
		if name == other {
			return true
		}
	}
	return false
}

// TestAPolicyThatSaysZeroIsNotOneThatSaysNothing: nobody waits, and no tombstone, are not the defaults.
func TestAPolicyThatSaysZeroIsNotOneThatSaysNothing(t *testing.T) {
	t.Parallel()
	zero, err := readPolicy("x", []byte("{tenant: a, operation: b, max_wait: 0s, tombstone: 0s}"))
	if err != nil {
		t.Fatal(err)
	}
	p := policyFromProto(zero)
	if rules := p.Rules(ledger.Clamp{}); rules.MaxWait != 0 || rules.Tombstone != 0 {
		t.Errorf("max wait %v, tombstone %v", rules.MaxWait, rules.Tombstone)
	}
	unset := policyFromProto(&idemv1.Policy{Tenant: "a", Operation: "b"})
	if rules := unset.Rules(ledger.Clamp{}); rules.MaxWait != ledger.DefaultMaxWait || rules.Tombstone != ledger.DefaultRetention {
		t.Errorf("max wait %v, tombstone %v", rules.MaxWait, rules.Tombstone)
	}
}

func TestFilesOfPoliciesAreReadStrictly(t *testing.T) {
	t.Parallel()
	const one = "policies:\n- tenant: a\n  operation: b\n"
	for name, c := range map[string]struct{ content, want string }{
		"an unknown field":         {one + "  leese: 1m\n", `:4: Policy has no field "leese"; did you mean lease?`},
		"an unknown inner field":   {one + "  horizons:\n    client: 1m\n", `:5: Horizons has no field "client"`},
		"a field twice":            {one + "  lease: 1m\n  lease: 2m\n", ":5: lease stands there twice"},
		"both spellings":           {one + "  max_wait: 1s\n  maxWait: 2s\n", ":5: max_wait stands there twice"},
		"no duration":              {one + "  lease: 60\n", `:4: lease: "60" is not a duration`},
		"an unknown word":          {one + "  on_abandoned: retry\n", `:4: "retry" is none of RECLAIM, HOLD`},
		"a field of answers":       {one + "  retention: 9d\n", "retention is worked out by the daemon"},
		"a text for a number":      {one + "  max_attempts: many\n", ":2:"},
		"no value":                 {one + "  lease:\n", ":4: lease: want one value"},
		"one for a list":           {one + "  response_metadata_allow: x\n", ":4: response_metadata_allow: want a list"},
		"no tenant":                {"policies:\n- operation: b\n", ":2: a policy needs a tenant and an operation"},
		"the same twice":           {one + "- tenant: a\n  operation: b\n", ":4: there is a policy for that tenant and operation in line 2 already"},
		"no list":                  {"tenant: a\noperation: b\n", `want "policies:" and a list`},
		"more than policies":       {one + "other: 1\n", `want "policies:" and a list`},
		"nothing":                  {"", `want "policies:" and a list`},
		"every fault at once":      {one + "  leese: 1m\n  lees: 1m\n", ":5: Policy has no field"},
		"a policy that is no map":  {"policies: [a]\n", ":1: want a mapping with the fields of Policy"},
		"a horizon that is no map": {one + "  horizons: 9d\n", ":4: want a mapping with the fields of Horizons"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, "policies.yaml", c.content)
			_, err := readPolicies(file)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file) {
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}

// TestPoliciesThatCannotWorkStopTheStart: what the ledger refuses of a policy in the file is told with the file.
func TestPoliciesThatCannotWorkStopTheStart(t *testing.T) {
	t.Parallel()
	d := &daemon{settings: &settings{policies: write(t, "p.yaml", "policies: [{tenant: a, operation: b, lease: 30h}]")}, log: silent()}
	var err error
	if d.ledger, err = ledger.New(t.Context(), ledger.Config{Store: storetest.NewModel(storetest.NewRunningClock(), 0)}); err != nil {
		t.Fatal(err)
	}
	if err := d.writePolicies(t.Context()); err == nil || !strings.Contains(err.Error(), "policy.lease") || !strings.Contains(err.Error(), "p.yaml") {
		t.Errorf("%v", err)
	}
}

// TestPolicySetTakesAFileOrStandardInput, in YAML or JSON, as the whole policy.
func TestPolicySetTakesAFileOrStandardInput(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	for name, content := range map[string]string{
		"charge.yaml": "tenant: default\noperation: charge\nhorizons: {settlement: 90d}\non_abandoned: hold\n",
		"charge.json": `{"tenant": "default", "operation": "charge", "horizons": {"settlement": "7776000s"}, "onAbandoned": "ON_ABANDONED_HOLD"}`,
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := d.runs("", "policy", "set", "--file", path); r.code != exitOK || !strings.Contains(r.stdout, "90d, decided by settlement") {
			t.Errorf("%s: %+v", name, r)
		}
		if r := d.runs(content, "policy", "set", "--file", "-"); r.code != exitOK || !strings.Contains(r.stdout, "90d, decided by settlement") {
			t.Errorf("%s on standard input: %+v", name, r)
		}
		if r := d.runs("", "policy", "set", "--file", path, "--lease", "1m"); r.code != exitUsage {
			t.Errorf("%s with a flag beside it: %+v", name, r)
		}
	}
}
