package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// adminService is what operators call.
type adminService struct {
	idemv1.UnimplementedAdminServiceServer
	ledger   *ledger.Ledger
	draining <-chan struct{}
}

// PutPolicy implements idem.v1.AdminService.
func (s *adminService) PutPolicy(ctx context.Context, req *idemv1.PutPolicyRequest) (*idemv1.PutPolicyResponse, error) {
	view, err := s.ledger.PutPolicy(ctx, policyOf(req.GetPolicy()), revisionOf(req.GetPolicy().GetEtag()))
	if err != nil {
		return nil, err
	}
	return &idemv1.PutPolicyResponse{Policy: policy(view), EffectiveTime: timestamp(view.EffectiveAt)}, nil
}

// GetPolicy implements idem.v1.AdminService.
func (s *adminService) GetPolicy(ctx context.Context, req *idemv1.GetPolicyRequest) (*idemv1.GetPolicyResponse, error) {
	view, err := s.ledger.GetPolicy(ctx, req.GetTenant(), req.GetOperation(), req.GetEffective())
	if err != nil {
		return nil, err
	}
	return &idemv1.GetPolicyResponse{Policy: policy(view), Source: policySource(view.Policy)}, nil
}

// ListPolicies implements idem.v1.AdminService.
func (s *adminService) ListPolicies(ctx context.Context, req *idemv1.ListPoliciesRequest) (*idemv1.ListPoliciesResponse, error) {
	after, err := policyPlaceOf(req.GetPageToken(), req.GetTenant())
	if err != nil {
		return nil, err
	}
	views, err := s.ledger.ListPolicies(ctx)
	if err != nil {
		return nil, err
	}
	out := &idemv1.ListPoliciesResponse{}
	size := pageSize(req.GetPageSize())
	for _, view := range views {
		place := policyPlace{Tenant: view.Policy.Tenant, Operation: view.Policy.Operation, Of: after.Of}
		if req.GetTenant() != "" && req.GetTenant() != view.Policy.Tenant || !after.before(place) {
			continue
		}
		if len(out.Policies) == size {
			out.NextPageToken = after.token()
			return out, nil
		}
		out.Policies = append(out.Policies, policy(view))
		after = place
	}
	return out, nil
}

// DeletePolicy implements idem.v1.AdminService.
func (s *adminService) DeletePolicy(ctx context.Context, req *idemv1.DeletePolicyRequest) (*idemv1.DeletePolicyResponse, error) {
	view, err := s.ledger.DeletePolicy(ctx, req.GetTenant(), req.GetOperation(), revisionOf(req.GetEtag()))
	if err != nil {
		return nil, err
	}
	return &idemv1.DeletePolicyResponse{EffectiveTime: timestamp(view.EffectiveAt)}, nil
}

// ApplyPolicy implements idem.v1.AdminService.
func (s *adminService) ApplyPolicy(req *idemv1.ApplyPolicyRequest, stream grpc.ServerStreamingServer[idemv1.ApplyPolicyResponse]) error {
	_, err := s.ledger.ApplyPolicy(stream.Context(),
		ledger.ApplyRequest{Tenant: req.GetTenant(), Operation: req.GetOperation(), DryRun: req.GetDryRun()},
		func(p ledger.ApplyProgress) error {
			return report(s, stream, p.Done, &idemv1.ApplyPolicyResponse{ExaminedCount: p.Examined, ChangedCount: p.Changed, Done: p.Done})
		})
	return err
}

// Sweep implements idem.v1.AdminService.
func (s *adminService) Sweep(req *idemv1.SweepRequest, stream grpc.ServerStreamingServer[idemv1.SweepResponse]) error {
	_, err := s.ledger.Sweep(stream.Context(), ledger.SweepRequest{DryRun: req.GetDryRun(), Limit: int(req.GetLimit())},
		func(p ledger.SweepProgress) error { return report(s, stream, p.Done, sweepResponse(p)) })
	return err
}

// report sends progress. It ends the work where its caller went away, or where this daemon is on its way out and there is more to do: such work can
// be asked for again, and would hold up the drain.
func report[R any](s *adminService, stream grpc.ServerStreamingServer[R], done bool, progress *R) error {
	select {
	case <-s.draining:
		if !done {
			return &ledger.Refusal{
				Reason: ledger.ReasonDraining, Message: "this daemon is shutting down; call again to do what is left", RetryAfter: time.Second,
			}
		}
	default:
	}
	return stream.Send(progress)
}

// ListEntries implements idem.v1.AdminService.
func (s *adminService) ListEntries(ctx context.Context, req *idemv1.ListEntriesRequest) (*idemv1.ListEntriesResponse, error) {
	r := ledger.ListRequest{
		Tenant: anyOf(req.GetTenant()), Operation: anyOf(req.GetOperation()), OlderThan: req.GetOlderThan().AsDuration(),
		DoubtOnly: req.GetDoubtOnly(), PageSize: pageSize(req.GetPageSize()), PageToken: req.GetPageToken(),
	}
	for _, c := range req.GetConditions() {
		r.Conditions = append(r.Conditions, conditionsOf[c])
	}
	res, err := s.ledger.List(ctx, r)
	if err != nil {
		return nil, err
	}
	out := &idemv1.ListEntriesResponse{NextPageToken: res.NextPageToken}
	for _, view := range res.Entries {
		out.Entries = append(out.Entries, entry(view))
	}
	return out, nil
}

// ResolveEntry implements idem.v1.AdminService.
func (s *adminService) ResolveEntry(ctx context.Context, req *idemv1.ResolveEntryRequest) (*idemv1.ResolveEntryResponse, error) {
	res, err := s.ledger.Resolve(ctx, callerOf(ctx, true), resolveRequestOf(req))
	if err != nil {
		return nil, err
	}
	return &idemv1.ResolveEntryResponse{Entry: entry(res.View), Resent: res.Resent}, nil
}

// DeleteEntries implements idem.v1.AdminService.
func (s *adminService) DeleteEntries(req *idemv1.DeleteEntriesRequest, stream grpc.ServerStreamingServer[idemv1.DeleteEntriesResponse]) error {
	if !req.GetCreateTimeBefore().IsValid() {
		return badField(ledger.ReasonInvalidRequest, "create_time_before", "must be a valid time")
	}
	r := ledger.EraseRequest{
		// The ledger's cut-off is inclusive.
		Tenant: req.GetTenant(), CreatedUntil: req.GetCreateTimeBefore().AsTime().Add(-time.Nanosecond), Force: req.GetForce(),
	}
	ctx := stream.Context()
	_, err := s.ledger.Erase(ctx, callerOf(ctx, true), r, func(p ledger.EraseProgress) error {
		return report(s, stream, p.Done, eraseResponse(p))
	})
	return err
}

// GetStats implements idem.v1.AdminService.
func (s *adminService) GetStats(ctx context.Context, req *idemv1.GetStatsRequest) (*idemv1.GetStatsResponse, error) {
	stats, err := s.ledger.Stats(ctx, ledger.StatsRequest{Tenant: anyOf(req.GetTenant()), Operation: anyOf(req.GetOperation())})
	if err != nil {
		return nil, err
	}
	return statsResponse(stats), nil
}
