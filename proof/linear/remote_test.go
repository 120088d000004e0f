package linear

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// remote is a daemon in a process of its own.
type remote struct {
	client idemv1.LedgerServiceClient
	// hides: its store fails while it lives, so an answer can hide a write of unknown outcome. It is the embedded store, where such a write did not happen
	// as long as the daemon lives. Elsewhere the store is well as long as the daemon is.
	hides bool
}

func ref(key string) *idemv1.EntryRef {
	return &idemv1.EntryRef{Tenant: "default", Operation: operation, Key: key}
}

// answered turns the error of a call into what was told.
func answered(t told, err error) told {
	if err == nil {
		return t
	}
	for _, detail := range status.Convert(err).Details() {
		info, ok := detail.(*errdetails.ErrorInfo)
		if !ok {
			continue
		}
		switch reason := info.GetReason(); reason {
		case "STORE_UNAVAILABLE", "INTERNAL":
		case "DRAINING": // of one call, not of a whole stream: the daemon did not take it on
			t.what = nothingDone
			return t
		default:
			t.what = reason
			return t
		}
	}
	t.what = nobodyKnows
	return t
}

func (r *remote) begin(ctx context.Context, key string, id uuid.UUID, c call, wait time.Duration) told {
	request := &idemv1.BeginRequest{
		Ref: ref(key), AttemptId: id.String(), Wait: durationpb.New(wait), Holder: "client", Lease: durationpb.New(lease),
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: "test", Hash: []byte{31: c.print + 1}}}, Mode: idemv1.BeginMode_BEGIN_MODE_RUN,
	}
	if c.recover {
		request.Mode = idemv1.BeginMode_BEGIN_MODE_RECOVER
	}
	out, err := r.client.Begin(ctx, request)
	var t told
	switch {
	case err != nil:
	case out.GetGranted() != nil:
		g := out.GetGranted()
		t = told{what: "granted", attempt: int8(g.GetAttempt()), resumed: g.GetResumed(), hides: r.hides, doubt: g.GetPreviousAbandoned(), recoverOnly: g.GetRecoverOnly(), token: string(g.GetClaimToken())}
		if e := g.GetEvidence(); e != nil {
			t.said = said{int8(e.GetAttempt()), remoteReport(e.GetCompleted(), e.GetFailed(), e.GetDisposition())}
		}
	case out.GetInProgress() != nil:
		t = told{what: "in progress", attempt: int8(out.GetInProgress().GetAttempt())}
	case out.GetCompleted() != nil:
		t = told{what: "answer", said: said{int8(out.GetCompleted().GetAttempt()), remoteReport(out.GetCompleted().GetResponse(), nil, 0)}}
	default:
		f := out.GetFailed()
		t = told{what: "answer", said: said{int8(f.GetAttempt()), remoteReport(nil, f.GetStatus(), f.GetDisposition())}}
	}
	return answered(t, err)
}

func remoteReport(response *idemv1.Response, failure *spb.Status, disposition idemv1.Disposition) report {
	switch {
	case response != nil:
		return report{success, response.GetBody()[0]}
	case disposition == idemv1.Disposition_DISPOSITION_FINAL:
		return report{final, failure.GetMessage()[0]}
	case disposition == idemv1.Disposition_DISPOSITION_RETRYABLE:
		return report{retryable, failure.GetMessage()[0]}
	case failure != nil:
		return report{kind: unknown}
	default:
		return report{}
	}
}

func (r *remote) report(ctx context.Context, key, token string, s report) told {
	if s.kind == success {
		out, err := r.client.Complete(ctx, &idemv1.CompleteRequest{
			Ref: ref(key), ClaimToken: []byte(token), Response: &idemv1.Response{Body: []byte{s.text}},
		})
		return answered(told{what: "ok", attempt: int8(out.GetAttempt()), resumed: out.GetResent(), hides: r.hides, settled: out.GetTimes().GetSettleTime() != nil}, err)
	}
	disposition := map[verdict]idemv1.Disposition{
		final: idemv1.Disposition_DISPOSITION_FINAL, retryable: idemv1.Disposition_DISPOSITION_RETRYABLE, unknown: idemv1.Disposition_DISPOSITION_UNKNOWN,
	}[s.kind]
	message := "?"
	if s.text != 0 {
		message = string(s.text)
	}
	out, err := r.client.Fail(ctx, &idemv1.FailRequest{
		Ref: ref(key), ClaimToken: []byte(token), Status: &spb.Status{Code: 9, Message: message}, Disposition: disposition,
	})
	return answered(told{what: "ok", attempt: int8(out.GetAttempt()), resumed: out.GetResent(), hides: r.hides, settled: out.GetTimes().GetSettleTime() != nil}, err)
}

func (r *remote) extend(ctx context.Context, key, token string) told {
	_, err := r.client.Extend(ctx, &idemv1.ExtendRequest{Ref: ref(key), ClaimToken: []byte(token)})
	return answered(told{what: "renewed"}, err)
}

func (r *remote) lookup(ctx context.Context, key string) told {
	out, err := r.client.Lookup(ctx, &idemv1.LookupRequest{Ref: ref(key)})
	if err != nil {
		return answered(told{}, err)
	}
	e := out.GetEntry()
	t := told{what: "view", attempt: int8(e.GetLatestAttempt()), doubt: e.GetDoubt(), condition: remoteConditions[e.GetCondition()]}
	if a := e.GetAnswer(); a != nil {
		t.said = said{int8(a.GetAttempt()), remoteReport(a.GetResponse(), nil, 0)}
	}
	if f := e.GetFailure(); f != nil {
		t.said = said{int8(f.GetAttempt()), remoteReport(nil, f.GetStatus(), f.GetDisposition())}
	}
	return answered(t, nil)
}

var remoteConditions = map[idemv1.EntryCondition]string{
	idemv1.EntryCondition_ENTRY_CONDITION_LIVE: "live", idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED: "abandoned",
	idemv1.EntryCondition_ENTRY_CONDITION_HELD: "held", idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED: "completed",
	idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL: "failed", idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE: "retryable",
	idemv1.EntryCondition_ENTRY_CONDITION_LAPSED: "lapsed", idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED: "expired",
}
