package server

import (
	"time"

	"github.com/google/uuid"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// From the wire. Requests have been validated by the rules in the .proto; the ledger judges what those can not say.

func refOf(ref *idemv1.EntryRef) ledger.Ref {
	return ledger.Ref{Tenant: ref.GetTenant(), Operation: ref.GetOperation(), Key: ref.GetKey()}
}

// uuidChars is the length of a UUID in its canonical form. The parser takes other spellings, which would be other attempts to a reader.
const uuidChars = 36

func beginRequestOf(req *idemv1.BeginRequest) (ledger.BeginRequest, error) {
	id, err := uuid.Parse(req.GetAttemptId())
	if err != nil || len(req.GetAttemptId()) != uuidChars {
		return ledger.BeginRequest{}, badField(ledger.ReasonInvalidAttemptID, "attempt_id", "must be a UUID in its 36-character form")
	}
	r := ledger.BeginRequest{
		Ref: refOf(req.GetRef()), AttemptID: id, AttemptIDText: req.GetAttemptId(), Lease: req.GetLease().AsDuration(),
		Wait: req.GetWait().AsDuration(), Holder: req.GetHolder(),
	}
	if req.GetMode() == idemv1.BeginMode_BEGIN_MODE_RECOVER {
		r.Mode = ledger.Recover
	}
	for _, fp := range req.GetFingerprints() {
		r.Fingerprints = append(r.Fingerprints, ledger.Fingerprint{Algorithm: fp.GetAlgorithm(), Hash: fp.GetHash()})
	}
	return r, nil
}

var dispositions = map[idemv1.Disposition]ledger.Disposition{
	idemv1.Disposition_DISPOSITION_FINAL:     ledger.Final,
	idemv1.Disposition_DISPOSITION_RETRYABLE: ledger.Retryable,
	idemv1.Disposition_DISPOSITION_UNKNOWN:   ledger.Unknown,
}

func responseOf(r *idemv1.Response) *ledger.Response {
	if r == nil {
		return nil
	}
	out := &ledger.Response{
		Code: r.GetCode(), Body: r.GetBody(), ContentType: r.GetContentType(), ResourceType: r.GetResourceType(), ResourceID: r.GetResourceId(),
	}
	if r.GetBodyOmitted() {
		out.BodyOmitted, out.BodySize, out.BodySHA256 = true, r.GetBodySizeBytes(), r.GetBodySha256()
	}
	for _, m := range r.GetMetadata() {
		out.Metadata = append(out.Metadata, ledger.MetadataPair{Name: m.GetKey(), Value: m.GetValue()})
	}
	return out
}

func failureOf(st *statuspb.Status) *ledger.Failure {
	if st == nil {
		return nil
	}
	out := &ledger.Failure{Code: st.GetCode(), Message: st.GetMessage()}
	for _, d := range st.GetDetails() {
		out.Details = append(out.Details, ledger.Detail{TypeURL: d.GetTypeUrl(), Value: d.GetValue()})
	}
	return out
}

func resolveRequestOf(req *idemv1.ResolveEntryRequest) ledger.ResolveRequest {
	r := ledger.ResolveRequest{Ref: refOf(req.GetRef()), Attempt: req.GetAttempt(), Reason: req.GetReason(), Force: req.GetForce()}
	switch way := req.GetResolution().(type) {
	case *idemv1.ResolveEntryRequest_Complete:
		r.Action, r.Response = ledger.ResolveComplete, responseOf(way.Complete)
	case *idemv1.ResolveEntryRequest_Fail:
		r.Action, r.Failure = ledger.ResolveFail, failureOf(way.Fail)
	case *idemv1.ResolveEntryRequest_Release:
		r.Action = ledger.ResolveRelease
	}
	return r
}

// anyOf is a filter as the ledger has it: "" where the wire says "*".
func anyOf(name string) string {
	if name == "*" {
		return ""
	}
	return name
}

const defaultPageSize, maxPageSize = 100, 1000

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPageSize
	}
	return min(int(asked), maxPageSize)
}

// policyOf is a policy as written. What is unset stays unset, so that its default is today's and not the one of when it was written.
func policyOf(p *idemv1.Policy) ledger.Policy {
	h := p.GetHorizons()
	out := ledger.Policy{
		Tenant: p.GetTenant(), Operation: p.GetOperation(),
		Horizons: ledger.Horizons{
			ClientRetry: h.GetClientRetry().AsDuration(), QueueRedelivery: h.GetQueueRedelivery().AsDuration(),
			WebhookReplay: h.GetWebhookReplay().AsDuration(), OperatorReplay: h.GetOperatorReplay().AsDuration(),
			Settlement: h.GetSettlement().AsDuration(),
		},
		Lease: p.GetLease().AsDuration(), MaxWait: maxWaitOf(p), MaxAttempts: p.GetMaxAttempts(),
		OnAbandoned: ledger.OnAbandoned(p.GetOnAbandoned()), ReclaimWithin: p.GetReclaimWithin().AsDuration(),
		MaxResponseBytes: p.GetMaxResponseBytes(), StoreResponse: ledger.StoreResponse(p.GetStoreResponse()),
		MetadataAllow: p.GetResponseMetadataAllow(), KeyFormat: ledger.KeyFormat(p.GetKeyFormat().GetKind()),
		KeyPattern: p.GetKeyFormat().GetPattern(), RefuseTimestampKeys: p.GetKeyFormat().GetRefuseTimestamps(),
		BindPrincipal: p.GetBindPrincipal(),
	}
	if p.GetTombstone() != nil {
		tombstone := p.GetTombstone().AsDuration()
		out.Tombstone = &tombstone
	}
	return out
}

// nobodyWaits is how the ledger says what the wire says with a max_wait of zero; there unset means the default.
const nobodyWaits = -time.Second

func maxWaitOf(p *idemv1.Policy) time.Duration {
	if p.GetMaxWait() != nil && p.GetMaxWait().AsDuration() == 0 {
		return nobodyWaits
	}
	return p.GetMaxWait().AsDuration()
}
