package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemd/idemd/cmd/idemd/internal/workload"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Bench and probe make entries of their own, in tenants of their own. Those go by a policy without a tombstone: under the built-in one each would
// leave a row behind for two weeks.

// scratchPolicy is the policy of a tenant whose entries nobody needs for longer than retention.
func scratchPolicy(tenant string, lease, retention time.Duration) *idemv1.Policy {
	return &idemv1.Policy{
		Tenant: tenant, Operation: "*", Lease: durationpb.New(lease), Tombstone: durationpb.New(0),
		MaxResponseBytes: workload.MaxBodyBytes, // an answer that was not kept is none that could be compared
		Horizons:         &idemv1.Horizons{ClientRetry: durationpb.New(retention)},
	}
}

// putScratchPolicy writes such a policy, and waits until every daemon follows it.
func (w *world) putScratchPolicy(ctx context.Context, c *client, p *idemv1.Policy) error {
	put, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.PutPolicyResponse, error) {
		return c.PutPolicy(ctx, &idemv1.PutPolicyRequest{Policy: p})
	})
	if err != nil {
		return err
	}
	return w.pause(ctx, put.GetEffectiveTime().AsTime().Sub(put.GetPolicy().GetUpdateTime().AsTime()))
}

// pause waits by the clock on the wall, or by the one that a test has.
func (w *world) pause(ctx context.Context, d time.Duration) error {
	if w.sleep != nil {
		w.sleep(d)
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// maxErasures is how often a tenant is erased again because something was left: calls that were under way when the load was called off can
// still arrive.
const maxErasures = 5

// eraseScratch erases everything of a tenant, and deletes its policy. It returns how many entries were erased, and fails where something is left.
func (w *world) eraseScratch(ctx context.Context, c *client, tenant string) (erased int64, err error) {
	for range maxErasures {
		n, err := eraseAll(ctx, c, tenant)
		erased += n
		if err != nil {
			return erased, called(err, c.target.addr)
		}
		stats, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.GetStatsResponse, error) {
			return c.GetStats(ctx, &idemv1.GetStatsRequest{Tenant: tenant})
		})
		if err != nil {
			return erased, err
		}
		if len(stats.GetCounts()) == 0 {
			return erased, w.deletePolicyOf(ctx, c, tenant)
		}
	}
	return erased, errors.New("entries keep coming: somebody else uses this tenant")
}

func eraseAll(ctx context.Context, c *client, tenant string) (int64, error) {
	// Nobody else has entries there, so that the clocks of this machine and of the store need not agree.
	request := &idemv1.DeleteEntriesRequest{Tenant: tenant, CreateTimeBefore: timestamppb.New(time.Now().Add(100 * day)), Force: true}
	stream, err := c.DeleteEntries(ctx, request)
	if err != nil {
		return 0, err
	}
	var erased int64
	for {
		report, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return erased, nil
		case err != nil:
			return erased, err
		}
		erased = report.GetErasedCount()
	}
}

func (w *world) deletePolicyOf(ctx context.Context, c *client, tenant string) error {
	_, err := within(ctx, c, func(ctx context.Context, c *client) (*idemv1.DeletePolicyResponse, error) {
		return c.DeletePolicy(ctx, &idemv1.DeletePolicyRequest{Tenant: tenant, Operation: "*"})
	})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the policy of the tenant is left: %w", err)
	}
	return nil
}
