package server_test

import (
	"context"
	"testing"

	"github.com/google/uuid"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server/servertest"
)

// BenchmarkCalls is the way from a caller through gRPC, the server and the ledger and back, over a connection in memory to the reference store:
// all but disk and network. Several callers share the processors, so time is that of the busiest part and not of one call.
func BenchmarkCalls(b *testing.B) {
	for _, call := range measuredCalls() {
		b.Run(call.name, func(b *testing.B) {
			do := call.prepare(b, newRig(b, servertest.Options{}))
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					do()
				}
			})
		})
	}
}

// TestACallMakesNoMoreObjectsThanIsArgued: each kind of them is argued in docs/performance.md ("What a call allocates"), so that whoever adds some has to.
// An eighth is left for timing and for what the race detector has made besides.
func TestACallMakesNoMoreObjectsThanIsArgued(t *testing.T) { // not parallel: the objects of all goroutines are counted
	argued := map[string]float64{"pair": 380, "replay": 188}
	for _, call := range measuredCalls() {
		most, listed := argued[call.name]
		if !listed {
			continue
		}
		do := call.prepare(t, newRig(t, servertest.Options{}))
		if got := testing.AllocsPerRun(500, do); got > most*9/8 {
			t.Errorf("%s: %.0f objects, %.0f are argued", call.name, got, most)
		}
	}
}

// measuredCall is a call that is measured.
type measuredCall struct {
	name string
	// prepare runs once, and returns what is measured. It is called from several goroutines at once.
	prepare func(testing.TB, *rig) func()
}

func measuredCalls() []measuredCall {
	body := make([]byte, 200)
	fresh := func(b testing.TB, r *rig) (*idemv1.BeginRequest, *idemv1.Claim) {
		request := &idemv1.BeginRequest{
			Ref:       &idemv1.EntryRef{Operation: "/payments.v1.Payments/Charge", Key: uuid.NewString()},
			AttemptId: uuid.NewString(), Fingerprints: []*idemv1.Fingerprint{{Algorithm: "bench-1", Hash: make([]byte, 32)}}, Holder: "payments-7f9c",
		}
		request.Fingerprints[0].Hash[0] = 1
		resp, err := r.Begin(r.ctx, request)
		if err != nil || resp.GetGranted() == nil {
			b.Error(resp, err)
		}
		return request, resp.GetGranted()
	}
	complete := func(b testing.TB, r *rig, request *idemv1.BeginRequest, claim *idemv1.Claim) {
		_, err := r.Complete(r.ctx, &idemv1.CompleteRequest{
			Ref: request.GetRef(), ClaimToken: claim.GetClaimToken(), Response: &idemv1.Response{Body: body, ContentType: "application/proto"},
		})
		if err != nil {
			b.Error(err)
		}
	}
	settled := func(b testing.TB, r *rig) *idemv1.BeginRequest {
		request, claim := fresh(b, r)
		complete(b, r, request, claim)
		return request
	}
	return []measuredCall{
		{"pair", func(b testing.TB, r *rig) func() { return func() { settled(b, r) } }},
		{"replay", func(b testing.TB, r *rig) func() {
			first := settled(b, r)
			return func() {
				request := &idemv1.BeginRequest{Ref: first.GetRef(), Fingerprints: first.GetFingerprints(), AttemptId: uuid.NewString()}
				if resp, err := r.Begin(r.ctx, request); err != nil || resp.GetCompleted() == nil {
					b.Error(resp, err)
				}
			}
		}},
		{"lookup", func(b testing.TB, r *rig) func() {
			ref := settled(b, r).GetRef()
			return func() {
				if _, err := r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: ref}); err != nil {
					b.Error(err)
				}
			}
		}},
		{"refused", func(b testing.TB, r *rig) func() {
			return func() {
				if _, err := r.Begin(context.Background(), &idemv1.BeginRequest{}); err == nil {
					b.Error("not refused")
				}
			}
		}},
	}
}
