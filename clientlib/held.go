package clientlib

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// held is a claim that is kept alive by heartbeats.
type held struct {
	client *Client
	claim  Claim
	// ctx is for the work. It ends with the caller's, and when the claim is lost.
	ctx    context.Context
	cancel context.CancelCauseFunc

	leaseNanos atomic.Int64
	stop       context.CancelFunc
	stopped    chan struct{}
}

// hold begins the heartbeats of a claim. Its lease counts from when Begin was sent, by this process's monotonic clock: the
// ledger began to count it later, so that it is never over there while it seems to last here.
func (c *Client) hold(ctx context.Context, claim Claim, sent time.Time, lease time.Duration) *held {
	h := &held{client: c, claim: claim, stopped: make(chan struct{})}
	h.leaseNanos.Store(int64(lease))
	h.ctx, h.cancel = context.WithCancelCause(ctx)
	// The caller may go away while the work goes on, and then the claim is still ours to keep.
	beat, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	go h.beat(beat, sent)
	return h
}

func (h *held) lease() time.Duration { return max(time.Duration(h.leaseNanos.Load()), time.Second) }

// release ends the heartbeats and returns when none is in flight, so that none crosses the report. The work is over, so its
// context ends too. It may be called more than once.
func (h *held) release() {
	h.stop()
	<-h.stopped
	h.cancel(context.Canceled)
}

func (h *held) beat(ctx context.Context, sent time.Time) {
	defer close(h.stopped)
	next := sent.Add(h.lease() / 3)
	for {
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		extended, err := h.extend(ctx)
		switch {
		case err == nil:
			if lease := extended.response.GetLease().AsDuration(); lease > 0 {
				h.leaseNanos.Store(int64(lease))
			}
			next = extended.at.Add(h.lease() / 3)
		case ctx.Err() != nil:
			return
		case claimIsOver(err):
			h.cancel(err)
			return
		default:
			// Nobody can be told, and nobody has said otherwise: the work goes on, and so do we.
			next = time.Now().Add(h.lease() / 6)
		}
	}
}

// extend tries for a third of the lease, so that a dead connection is noticed while there is lease left.
func (h *held) extend(ctx context.Context) (answered[*idemv1.ExtendResponse], error) {
	third := h.lease() / 3
	ctx, cancel := context.WithTimeout(ctx, third)
	defer cancel()
	// No length: as long as it was given. What the holder is told can be shorter, by how far apart the store's clocks are, and asking for that
	// would make it shorter each time.
	request := &idemv1.ExtendRequest{Ref: h.claim.Ref.proto(), ClaimToken: h.claim.token}
	return resend(ctx, h.client, "Extend", pace{try: max(third/2, resendFirst), ceiling: third / 3},
		func(ctx context.Context) (*idemv1.ExtendResponse, error) {
			return h.client.ledger.Extend(ctx, request, h.client.callOptions()...)
		})
}

// claimIsOver says whether a refusal of Extend means that there is nothing left to hold.
func claimIsOver(err error) bool {
	return errors.Is(err, ErrClaimLost) || errors.Is(err, ErrAlreadySettled) || errors.Is(err, ErrExpired) ||
		errors.Is(err, ErrEntryNotFound)
}

func fingerprintOf(f *idemv1.Fingerprint) fingerprint.Fingerprint {
	return fingerprint.Fingerprint{Algorithm: f.GetAlgorithm(), Hash: f.GetHash()}
}
