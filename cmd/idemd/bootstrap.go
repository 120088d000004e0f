package main

import (
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// policyFromProto is a policy of --policies as the ledger takes it. The numbers of the enums are the same on both sides; a test writes every
// field by a file and reads it back by RPC.
func policyFromProto(p *idemv1.Policy) ledger.Policy {
	h := p.GetHorizons()
	out := ledger.Policy{
		Tenant: p.GetTenant(), Operation: p.GetOperation(),
		Horizons: ledger.Horizons{
			ClientRetry: h.GetClientRetry().AsDuration(), QueueRedelivery: h.GetQueueRedelivery().AsDuration(),
			WebhookReplay: h.GetWebhookReplay().AsDuration(), OperatorReplay: h.GetOperatorReplay().AsDuration(),
			Settlement: h.GetSettlement().AsDuration(),
		},
		Lease: p.GetLease().AsDuration(), MaxWait: p.GetMaxWait().AsDuration(), MaxAttempts: p.GetMaxAttempts(),
		OnAbandoned: ledger.OnAbandoned(p.GetOnAbandoned()), ReclaimWithin: p.GetReclaimWithin().AsDuration(),
		MaxResponseBytes: p.GetMaxResponseBytes(), StoreResponse: ledger.StoreResponse(p.GetStoreResponse()),
		MetadataAllow: p.GetResponseMetadataAllow(), KeyFormat: ledger.KeyFormat(p.GetKeyFormat().GetKind()),
		KeyPattern: p.GetKeyFormat().GetPattern(), RefuseTimestampKeys: p.GetKeyFormat().GetRefuseTimestamps(), BindPrincipal: p.GetBindPrincipal(),
	}
	if p.GetMaxWait() != nil && out.MaxWait == 0 {
		out.MaxWait = -1 // unset means the default, zero that nobody waits
	}
	if p.GetTombstone() != nil {
		tombstone := p.GetTombstone().AsDuration()
		out.Tombstone = &tombstone
	}
	return out
}
