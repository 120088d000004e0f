package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	"github.com/idemd/idemd/ledger"
)

// Whatever stands in the file of settings, it is either read or refused with the file's name; what is read are settings that there are.
func FuzzConfigFile(f *testing.F) {
	for _, seed := range []string{
		"", "data-dir: /x\nlog-format: json\n", "data-dir: [a]\n", "nothing: 1\n", "a: &a {b: *a}\n", "data-dir: /x\ndata-dir: /y\n", "---\n---\n", "- x\n", "\xff", "? {a: b}\n: c\n",
		"data-dir: !!null\n", "data-dir: !!binary eA==\n", "<<: {data-dir: x}\n", "%YAML 1.2\n---\nx",
	} {
		f.Add(seed)
	}
	var s settings
	known := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.register(known)
	f.Fuzz(func(t *testing.T, content string) {
		path := write(t, "idemd.yaml", content)
		values, err := readConfigFile(path, known)
		if err != nil {
			if !strings.Contains(err.Error(), "idemd.yaml") {
				t.Errorf("%q is refused without saying which file: %v", content, err)
			}
			return
		}
		for name := range values {
			if known.Lookup(name) == nil {
				t.Errorf("%q sets %q, which there is not", content, name)
			}
		}
	})
}

// Whatever a policy's file says, it is refused with the file's name, or is a policy that can be sent and that the ledger judges.
func FuzzPolicyFile(f *testing.F) {
	for _, seed := range []string{
		"", "tenant: '*'\noperation: charge\nlease: 10s\nhorizons: {client_retry: 90d}\n", `{"tenant":"a","operation":"b","keyFormat":"KEY_FORMAT_UUID"}`,
		"tenant: a\nlease: -1s\n", "lease: 99999999999999999999d\n", "on_abandoned: HOLD\n", "on_abandoned: 99\n", "max_attempts: 1e3\n", "tenant: *x\n",
		"a: &a [*a]\n", "response_metadata_allow: [a, [b]]\n", "tombstone: 0\n", "horizons: null\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		policy, err := readPolicy("policy.yaml", []byte(content))
		if err != nil {
			if !strings.Contains(err.Error(), "policy.yaml") {
				t.Errorf("%q is refused without saying which file: %v", content, err)
			}
			return
		}
		if _, err := proto.Marshal(policy); err != nil {
			t.Fatalf("%q is read as what can not be sent: %v", content, err)
		}
		p := policyFromProto(policy)
		_ = p.Validate(ledger.Clamp{})
	})
}
