package server

import (
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// To the wire.

// timestamp is nil for an instant that is not set, or never comes.
func timestamp(t ledger.Time) *timestamppb.Timestamp {
	wall := t.Wall()
	if wall.IsZero() {
		return nil
	}
	return timestamppb.New(wall)
}

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func beginResponse(res ledger.BeginResult) *idemv1.BeginResponse {
	switch {
	case res.Granted != nil:
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Granted{Granted: claim(res.Granted)}}
	case res.Completed != nil:
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Completed{Completed: answer(res.Completed)}}
	case res.Failed != nil:
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Failed{Failed: failure(res.Failed)}}
	default:
		p := res.InProgress
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_InProgress{InProgress: &idemv1.InProgress{
			RetryAfter: duration(p.RetryAfter), Holder: p.Holder, Attempt: p.Attempt,
		}}}
	}
}

func claim(g *ledger.Grant) *idemv1.Claim {
	return &idemv1.Claim{
		ClaimToken: g.Token, Attempt: g.Attempt, Fence: g.Fence, LeaseExpireTime: timestamp(g.LeaseUntil), Lease: duration(g.Lease),
		Resumed: g.Resumed, PreviousAbandoned: g.PreviousAbandoned, RecoverOnly: g.RecoverOnly, Evidence: evidence(g.Evidence),
		Incarnation: int64(g.Incarnation), OnCredit: g.OnCredit,
	}
}

func answer(a *ledger.Answer) *idemv1.Answer {
	return &idemv1.Answer{
		Response: response(a.Response), Attempt: a.Attempt, OriginalTime: timestamp(a.SettledAt), ExpireTime: timestamp(a.ExpiresAt), Replayed: true,
	}
}

func failure(a *ledger.Answer) *idemv1.Failure {
	f := a.Failure
	return &idemv1.Failure{
		Status: statusOf(f), DetailsOmitted: f.DetailsOmitted, Disposition: wireDispositions[f.Disposition], Attempt: a.Attempt,
		OriginalTime: timestamp(a.SettledAt), ExpireTime: timestamp(a.ExpiresAt), Replayed: true,
	}
}

var wireDispositions = map[ledger.Disposition]idemv1.Disposition{
	ledger.Final:     idemv1.Disposition_DISPOSITION_FINAL,
	ledger.Retryable: idemv1.Disposition_DISPOSITION_RETRYABLE,
	ledger.Unknown:   idemv1.Disposition_DISPOSITION_UNKNOWN,
}

func statusOf(f *ledger.Failure) *statuspb.Status {
	st := &statuspb.Status{Code: f.Code, Message: f.Message}
	for _, d := range f.Details {
		st.Details = append(st.Details, &anypb.Any{TypeUrl: d.TypeURL, Value: d.Value})
	}
	return st
}

func response(r *ledger.Response) *idemv1.Response {
	if r == nil {
		return nil
	}
	out := &idemv1.Response{
		Code: r.Code, Body: r.Body, ContentType: r.ContentType, ResourceType: r.ResourceType, ResourceId: r.ResourceID,
		BodyOmitted: r.BodyOmitted, BodySizeBytes: r.BodySize, BodySha256: r.BodySHA256,
	}
	for _, m := range r.Metadata {
		out.Metadata = append(out.Metadata, &idemv1.MetadataEntry{Key: m.Name, Value: m.Value})
	}
	return out
}

func evidence(e *ledger.Evidence) *idemv1.Evidence {
	if e == nil {
		return nil
	}
	out := &idemv1.Evidence{Attempt: e.Attempt, ReportTime: timestamp(e.At)}
	if e.Response != nil {
		out.Report = &idemv1.Evidence_Completed{Completed: response(e.Response)}
		return out
	}
	out.Report = &idemv1.Evidence_Failed{Failed: statusOf(e.Failure)}
	out.Disposition, out.DetailsOmitted = wireDispositions[e.Failure.Disposition], e.Failure.DetailsOmitted
	return out
}

func reportTimes(r ledger.ReportResult) *idemv1.EntryTimes {
	return &idemv1.EntryTimes{
		CreateTime: timestamp(r.CreatedAt), SettleTime: timestamp(r.SettledAt), ExpireTime: timestamp(r.ExpiresAt),
		TombstoneExpireTime: timestamp(r.ForgetAt), StoreTime: timestamp(r.Now),
	}
}

func sweepResponse(p ledger.SweepProgress) *idemv1.SweepResponse {
	return &idemv1.SweepResponse{
		ExaminedCount: p.Examined, TombstonedCount: p.Closed + p.Lapsed, LapsedCount: p.Lapsed, ForgottenCount: p.Forgotten,
		OldestOverdueTime: timestamp(p.OldestDue), Done: p.Done,
	}
}

func eraseResponse(p ledger.EraseProgress) *idemv1.DeleteEntriesResponse {
	out := &idemv1.DeleteEntriesResponse{ErasedCount: p.Erased, SkippedCount: p.Skipped, Done: p.Done}
	for _, e := range p.SkippedEntries {
		out.Skipped = append(out.Skipped, &idemv1.SkippedEntry{
			RefHash: e.LogKey, Condition: wireConditions[e.Condition], LeaseExpireTime: timestamp(e.LeaseUntil),
		})
	}
	return out
}

func statsResponse(stats ledger.Stats) *idemv1.GetStatsResponse {
	out := &idemv1.GetStatsResponse{
		OldestOverdueTime: timestamp(stats.OldestDue), OldestHeldTime: timestamp(stats.OldestHeld), StoreTime: timestamp(stats.Now),
	}
	for _, by := range stats.By {
		// In the order of the enum.
		for c := idemv1.EntryCondition_ENTRY_CONDITION_LIVE; c <= idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED; c++ {
			if n := by.Counts[conditionsOf[c]]; n > 0 {
				out.Counts = append(out.Counts, &idemv1.EntryCount{
					Tenant: by.Tenant, Operation: by.Operation, Condition: c, EntryCount: n, DoubtCount: by.Doubts[conditionsOf[c]],
				})
			}
		}
	}
	return out
}
