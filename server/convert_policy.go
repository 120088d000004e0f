package server

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// policy shows a policy as it was written, with what it comes to.
func policy(v ledger.PolicyView) *idemv1.Policy {
	p := v.Policy
	out := &idemv1.Policy{
		Tenant: p.Tenant, Operation: p.Operation, Horizons: horizons(p.Horizons),
		Retention: duration(v.Rules.Retention), RetentionHorizon: retentionHorizons[v.Rules.RetentionHorizon],
		Lease: set(p.Lease), MaxWait: set(p.MaxWait), MaxAttempts: p.MaxAttempts, OnAbandoned: idemv1.OnAbandoned(p.OnAbandoned),
		ReclaimWithin: set(p.ReclaimWithin), MaxResponseBytes: p.MaxResponseBytes, StoreResponse: idemv1.StoreResponse(p.StoreResponse),
		BindPrincipal: p.BindPrincipal, ResponseMetadataAllow: p.MetadataAllow, UpdateTime: timestamp(p.UpdatedAt),
	}
	if p.MaxWait < 0 {
		out.MaxWait = duration(0)
	}
	if p.Tombstone != nil {
		out.Tombstone = duration(*p.Tombstone)
	}
	if p.KeyFormat != 0 || p.KeyPattern != "" || p.RefuseTimestampKeys {
		out.KeyFormat = &idemv1.KeyFormat{
			Kind: idemv1.KeyFormatKind(p.KeyFormat), Pattern: p.KeyPattern, RefuseTimestamps: p.RefuseTimestampKeys,
		}
	}
	if p.Revision != 0 {
		out.Etag = strconv.FormatInt(p.Revision, 10)
	}
	return out
}

func set(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return duration(d)
}

func horizons(h ledger.Horizons) *idemv1.Horizons {
	if h == (ledger.Horizons{}) {
		return nil
	}
	return &idemv1.Horizons{
		ClientRetry: set(h.ClientRetry), QueueRedelivery: set(h.QueueRedelivery), WebhookReplay: set(h.WebhookReplay),
		OperatorReplay: set(h.OperatorReplay), Settlement: set(h.Settlement),
	}
}

var retentionHorizons = map[string]idemv1.RetentionHorizon{
	"default":          idemv1.RetentionHorizon_RETENTION_HORIZON_BUILT_IN,
	"client_retry":     idemv1.RetentionHorizon_RETENTION_HORIZON_CLIENT_RETRY,
	"queue_redelivery": idemv1.RetentionHorizon_RETENTION_HORIZON_QUEUE_REDELIVERY,
	"webhook_replay":   idemv1.RetentionHorizon_RETENTION_HORIZON_WEBHOOK_REPLAY,
	"operator_replay":  idemv1.RetentionHorizon_RETENTION_HORIZON_OPERATOR_REPLAY,
	"settlement":       idemv1.RetentionHorizon_RETENTION_HORIZON_SETTLEMENT,
	"floor":            idemv1.RetentionHorizon_RETENTION_HORIZON_FLOOR,
	"ceiling":          idemv1.RetentionHorizon_RETENTION_HORIZON_CEILING,
}

func policySource(p *ledger.Policy) idemv1.PolicySource {
	switch {
	case p.Revision == 0:
		return idemv1.PolicySource_POLICY_SOURCE_BUILT_IN
	case p.Tenant == "*" && p.Operation == "*":
		return idemv1.PolicySource_POLICY_SOURCE_EVERYWHERE
	case p.Tenant == "*":
		return idemv1.PolicySource_POLICY_SOURCE_OPERATION
	case p.Operation == "*":
		return idemv1.PolicySource_POLICY_SOURCE_TENANT
	default:
		return idemv1.PolicySource_POLICY_SOURCE_TENANT_OPERATION
	}
}

// anyRevision and noRevision are what the ledger is told to expect: whatever is stored, and what never is.
const (
	anyRevision = -1
	noRevision  = math.MaxInt64
)

// revisionOf reads an etag. One that this server never wrote is no stored policy's.
func revisionOf(etag string) int64 {
	if etag == "" {
		return anyRevision
	}
	revision, err := strconv.ParseInt(etag, 10, 64)
	if err != nil || revision < 1 || strconv.FormatInt(revision, 10) != etag {
		return noRevision
	}
	return revision
}

// policyPlace is a place in the list of policies.
type policyPlace struct {
	Tenant    string `json:"t"`
	Operation string `json:"o"`
	// Of is the filter of the list that it is a place in.
	Of string `json:"f,omitempty"`
}

func (p policyPlace) before(q policyPlace) bool {
	return p.Tenant < q.Tenant || p.Tenant == q.Tenant && p.Operation < q.Operation
}

func (p policyPlace) token() string {
	raw, err := json.Marshal(p)
	if err != nil {
		return "" // a struct of texts always encodes
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

func policyPlaceOf(token, filter string) (policyPlace, error) {
	p := policyPlace{Of: filter}
	if token == "" {
		return p, nil
	}
	p.Of = ""
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil || p.Of != filter {
		return p, badField(ledger.ReasonInvalidPage, "page_token", "must be the next_page_token of the page before, with the same filter")
	}
	return p, nil
}
