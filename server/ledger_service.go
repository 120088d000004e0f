package server

import (
	"context"
	"time"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// ledgerService is what services call.
type ledgerService struct {
	idemv1.UnimplementedLedgerServiceServer
	ledger *ledger.Ledger
	// sessions carry the calls below on streams.
	sessions *sessions
}

// Begin implements idem.v1.LedgerService.
func (s *ledgerService) Begin(ctx context.Context, req *idemv1.BeginRequest) (*idemv1.BeginResponse, error) {
	r, err := beginRequestOf(req)
	if err != nil {
		return nil, err
	}
	r.Wait = waitWithin(ctx, r.Wait)
	res, err := s.ledger.Begin(ctx, callerOf(ctx, false), r)
	if err != nil {
		return nil, err
	}
	return beginResponse(res), nil
}

// waitWithin cuts a wait so that its answer still gets to the caller within its deadline: an answer that comes too late tells it less
// than IN_PROGRESS does.
func waitWithin(ctx context.Context, wait time.Duration) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || wait == 0 {
		return wait
	}
	left := time.Until(deadline)
	return max(min(wait, left-min(max(left/10, 20*time.Millisecond), 500*time.Millisecond)), 0)
}

// Complete implements idem.v1.LedgerService.
func (s *ledgerService) Complete(ctx context.Context, req *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error) {
	res, err := s.ledger.Complete(ctx, callerOf(ctx, false), ledger.CompleteRequest{
		Ref: refOf(req.GetRef()), Token: req.GetClaimToken(), Response: responseOf(req.GetResponse()),
	})
	if err != nil {
		return nil, err
	}
	return &idemv1.CompleteResponse{Times: reportTimes(res), Attempt: res.Attempt, Resent: res.Resent}, nil
}

// Fail implements idem.v1.LedgerService.
func (s *ledgerService) Fail(ctx context.Context, req *idemv1.FailRequest) (*idemv1.FailResponse, error) {
	failure := failureOf(req.GetStatus())
	failure.Disposition, failure.DetailsOmitted = dispositions[req.GetDisposition()], req.GetDetailsOmitted()
	res, err := s.ledger.Fail(ctx, callerOf(ctx, false), ledger.FailRequest{
		Ref: refOf(req.GetRef()), Token: req.GetClaimToken(), Failure: failure,
	})
	if err != nil {
		return nil, err
	}
	return &idemv1.FailResponse{Times: reportTimes(res), Attempt: res.Attempt, Resent: res.Resent}, nil
}

// Extend implements idem.v1.LedgerService.
func (s *ledgerService) Extend(ctx context.Context, req *idemv1.ExtendRequest) (*idemv1.ExtendResponse, error) {
	res, err := s.ledger.Extend(ctx, callerOf(ctx, false), ledger.ExtendRequest{
		Ref: refOf(req.GetRef()), Token: req.GetClaimToken(), Lease: req.GetLease().AsDuration(),
	})
	if err != nil {
		return nil, err
	}
	return &idemv1.ExtendResponse{LeaseExpireTime: timestamp(res.LeaseUntil), Lease: duration(res.Lease)}, nil
}

// Lookup implements idem.v1.LedgerService. An operator sees what is bound to another principal too.
func (s *ledgerService) Lookup(ctx context.Context, req *idemv1.LookupRequest) (*idemv1.LookupResponse, error) {
	operator := principalOf(ctx).Roles&Operator != 0
	view, err := s.ledger.Lookup(ctx, callerOf(ctx, operator), refOf(req.GetRef()))
	if err != nil {
		return nil, err
	}
	return &idemv1.LookupResponse{Entry: entry(view)}, nil
}
