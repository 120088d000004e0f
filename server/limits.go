package server

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Message sizes, set outright on both sides. A client has to allow for MaxSendBytes in what it receives.
const (
	// MaxReceiveBytes takes the largest body that a policy can have kept, with its metadata and names around it.
	MaxReceiveBytes = ledger.MaxResponseBytes + 1<<20
	// MaxSendBytes takes the largest answer together with the largest history and evidence, and the longest list.
	MaxSendBytes = ledger.MaxResponseBytes + 8<<20
	// maxHeaderBytes bounds a call's metadata.
	maxHeaderBytes = 64 << 10
)

// quotaRetryAfter is what a caller is told to wait when too many calls are under way.
const quotaRetryAfter = time.Second

// endsWork are the calls that are never refused for load: others wait for them, and refusing them would turn load into lost claims.
var endsWork = map[string]bool{
	idemv1.LedgerService_Complete_FullMethodName: true,
	idemv1.LedgerService_Fail_FullMethodName:     true,
	idemv1.LedgerService_Extend_FullMethodName:   true,
}

// limiter counts calls under way.
type limiter struct {
	most, mostOfTenant int

	mu      sync.Mutex
	all     int            // guarded by mu
	tenants map[string]int // guarded by mu
}

func newLimiter(most, mostOfTenant int) *limiter {
	return &limiter{most: most, mostOfTenant: mostOfTenant, tenants: map[string]int{}}
}

// enter takes a place, which leave gives back.
func (l *limiter) enter(tenant string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.all >= l.most:
		return overQuota("too many calls are under way in this daemon")
	case l.tenants[tenant] >= l.mostOfTenant:
		return overQuota("too many calls of this tenant are under way in this daemon")
	}
	l.all++
	l.tenants[tenant]++
	return nil
}

func (l *limiter) leave(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.tenants[tenant]--; l.tenants[tenant] == 0 {
		delete(l.tenants, tenant)
	}
}

func overQuota(message string) error {
	return &ledger.Refusal{Reason: ledger.ReasonQuota, Message: message, RetryAfter: quotaRetryAfter}
}

func (s *Server) limitUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if endsWork[info.FullMethod] || isOpen(info.FullMethod) {
		return handler(ctx, req)
	}
	tenant := limitedTenant(ctx, req)
	if err := s.limiter.enter(tenant); err != nil {
		return nil, err
	}
	defer s.limiter.leave(tenant)
	return handler(ctx, req)
}

func (s *Server) limitStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if isOpen(info.FullMethod) {
		return handler(srv, stream)
	}
	tenant := principalOf(stream.Context()).Tenant
	if err := s.limiter.enter(tenant); err != nil {
		return err
	}
	defer s.limiter.leave(tenant)
	return handler(srv, stream)
}

// limitedTenant is the tenant that a call is counted for: the one it names, else the caller's own.
func limitedTenant(ctx context.Context, req any) string {
	if r, ok := req.(interface{ GetRef() *idemv1.EntryRef }); ok {
		return r.GetRef().GetTenant()
	}
	return principalOf(ctx).Tenant
}
