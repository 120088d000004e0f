package main

import (
	"slices"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// policyFlags are the parts of a policy as flags.
type policyFlags struct {
	clientRetry, queueRedelivery, webhookReplay, operatorReplay, settlement durationFlag

	tombstone, lease, maxWait, reclaimWithin durationFlag

	maxAttempts      int32
	maxResponseBytes int64
	onAbandoned      choice
	storeResponse    choice
	keyFormat        choice
	keyPattern       string
	refuseTimestamps bool
	bindPrincipal    bool
	metadataAllow    []string
	names            []string
}

func (f *policyFlags) register(fs *pflag.FlagSet) {
	before := map[string]bool{}
	fs.VisitAll(func(flag *pflag.Flag) { before[flag.Name] = true })

	addDuration(fs, &f.clientRetry, "client-retry", "how long after settlement callers may still retry")
	addDuration(fs, &f.queueRedelivery, "queue-redelivery", "how long after settlement a queue may still deliver again, dead letters included")
	addDuration(fs, &f.webhookReplay, "webhook-replay", "how long after settlement a webhook's sender may still deliver again")
	addDuration(fs, &f.operatorReplay, "operator-replay", "how long after settlement an operator may still replay")
	addDuration(fs, &f.settlement, "settlement", "how long after settlement a dispute or reconciliation asks what was answered")
	addDuration(fs, &f.tombstone, "tombstone", "how long after the retention a late retry is still refused. 0: after its retention a key is new again")
	addDuration(fs, &f.lease, "lease", "how long a claim is exclusive without being extended. 0: the default, 60s")
	addDuration(fs, &f.maxWait, "max-wait", "how long a call may wait for another's claim. 0: nobody waits")
	fs.Int32Var(&f.maxAttempts, "max-attempts", 0, "how many times an entry may be run, 1 to 32. 0: the default, 10")
	f.onAbandoned = choice{words: []string{"reclaim", "hold"}}
	fs.Var(&f.onAbandoned, "on-abandoned", "what the next retry of an abandoned entry gets")
	addDuration(fs, &f.reclaimWithin, "reclaim-within", "for how long from the first grant it may be reclaimed, and is held from then on. 0: no such limit")
	fs.Int64Var(&f.maxResponseBytes, "max-response-bytes", 0, "up to which length a body is kept. 0: the default, 1 MiB")
	f.storeResponse = choice{words: []string{"full", "pointer", "none"}}
	fs.Var(&f.storeResponse, "store-response", "which parts of an answer are kept")
	f.keyFormat = choice{words: []string{"any", "uuid", "pattern"}}
	fs.Var(&f.keyFormat, "key-format", "what a key must look like")
	fs.StringVar(&f.keyPattern, "key-pattern", "", "the `expression` (RE2) that a whole key must match, with --key-format pattern")
	fs.BoolVar(&f.refuseTimestamps, "refuse-timestamp-keys", false, "refuse keys that are nothing but a time")
	fs.BoolVar(&f.bindPrincipal, "bind-principal", false, "an entry belongs to the principal that first began it")
	fs.StringSliceVar(&f.metadataAllow, "response-metadata-allow", nil, "`names` of response metadata to keep, lower case, separated by commas")

	fs.VisitAll(func(flag *pflag.Flag) {
		if !before[flag.Name] {
			f.names = append(f.names, flag.Name)
		}
	})
}

// changed reports whether any of them was given.
func (f *policyFlags) changed(fs *pflag.FlagSet) bool {
	return slices.ContainsFunc(f.names, fs.Changed)
}

// apply sets in p what was given, and nothing else.
func (f *policyFlags) apply(fs *pflag.FlagSet, p *idemv1.Policy) {
	if p.Horizons == nil {
		p.Horizons = &idemv1.Horizons{}
	}
	length := func(d durationFlag) *durationpb.Duration { return durationpb.New(time.Duration(d)) }
	for name, set := range map[string]func(){
		"client-retry":     func() { p.Horizons.ClientRetry = length(f.clientRetry) },
		"queue-redelivery": func() { p.Horizons.QueueRedelivery = length(f.queueRedelivery) },
		"webhook-replay":   func() { p.Horizons.WebhookReplay = length(f.webhookReplay) },
		"operator-replay":  func() { p.Horizons.OperatorReplay = length(f.operatorReplay) },
		"settlement":       func() { p.Horizons.Settlement = length(f.settlement) },
		"tombstone":        func() { p.Tombstone = length(f.tombstone) },
		"lease":            func() { p.Lease = length(f.lease) },
		"max-wait":         func() { p.MaxWait = length(f.maxWait) },
		"max-attempts":     func() { p.MaxAttempts = f.maxAttempts },
		"on-abandoned":     func() { p.OnAbandoned = f.onAbandonedValue() },
		"reclaim-within": func() {
			if p.ReclaimWithin = nil; f.reclaimWithin > 0 {
				p.ReclaimWithin = length(f.reclaimWithin)
			}
		},
		"max-response-bytes":      func() { p.MaxResponseBytes = f.maxResponseBytes },
		"store-response":          func() { p.StoreResponse = f.storeResponseValue() },
		"key-format":              func() { keyFormat(p).Kind = f.keyFormatValue() },
		"key-pattern":             func() { keyFormat(p).Pattern = f.keyPattern },
		"refuse-timestamp-keys":   func() { keyFormat(p).RefuseTimestamps = f.refuseTimestamps },
		"bind-principal":          func() { p.BindPrincipal = f.bindPrincipal },
		"response-metadata-allow": func() { p.ResponseMetadataAllow = f.metadataAllow },
	} {
		if fs.Changed(name) {
			set()
		}
	}
	if fs.Changed("key-format") && !fs.Changed("key-pattern") && p.GetKeyFormat().GetKind() != idemv1.KeyFormatKind_KEY_FORMAT_KIND_PATTERN {
		p.KeyFormat.Pattern = ""
	}
}

func keyFormat(p *idemv1.Policy) *idemv1.KeyFormat {
	if p.KeyFormat == nil {
		p.KeyFormat = &idemv1.KeyFormat{}
	}
	return p.KeyFormat
}

func (f *policyFlags) onAbandonedValue() idemv1.OnAbandoned {
	if f.onAbandoned.value == "hold" {
		return idemv1.OnAbandoned_ON_ABANDONED_HOLD
	}
	return idemv1.OnAbandoned_ON_ABANDONED_RECLAIM
}

func (f *policyFlags) storeResponseValue() idemv1.StoreResponse {
	switch f.storeResponse.value {
	case "pointer":
		return idemv1.StoreResponse_STORE_RESPONSE_POINTER
	case "none":
		return idemv1.StoreResponse_STORE_RESPONSE_NONE
	default:
		return idemv1.StoreResponse_STORE_RESPONSE_FULL
	}
}

func (f *policyFlags) keyFormatValue() idemv1.KeyFormatKind {
	switch f.keyFormat.value {
	case "uuid":
		return idemv1.KeyFormatKind_KEY_FORMAT_KIND_UUID
	case "pattern":
		return idemv1.KeyFormatKind_KEY_FORMAT_KIND_PATTERN
	default:
		return idemv1.KeyFormatKind_KEY_FORMAT_KIND_ANY
	}
}
