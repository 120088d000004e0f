package server_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// One call too many is refused QUOTA; what ends work gets in all the same; a place that was given back is there again.
func TestCallsUnderWayAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{Config: func(c *server.Config) {
		c.MaxConcurrentCalls, c.MaxConcurrentCallsPerTenant = 3+itself(t), 2+itself(t)
	}})
	c := r.grant("k")
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	first, next := r.wait(ctx, "k"), r.wait(ctx, "k")

	_, err := r.Begin(r.ctx, beginRequest("another"))
	got := wantRefusal(t, err, ledger.ReasonQuota, codes.ResourceExhausted)
	if got.retry.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("RetryInfo %v", got.retry)
	}
	theirs := func(key string) func(*idemv1.BeginRequest) {
		return func(b *idemv1.BeginRequest) { b.Ref.Tenant, b.Ref.Key = "theirs", key }
	}
	r.grant("", theirs("k")) // another tenant is not starved
	if _, err := r.Extend(r.ctx, &idemv1.ExtendRequest{Ref: refTo("k"), ClaimToken: c.GetClaimToken()}); err != nil {
		t.Errorf("Extend: %v", err)
	}
	r.complete("k", c, &idemv1.Response{})
	for _, w := range []<-chan told{first, next} {
		if got := <-w; got.resp.GetCompleted() == nil {
			t.Errorf("a waiter was told %v, %v", got.resp, got.err)
		}
	}
	r.grant("another")
}

// The daemon as a whole is bounded too, whoever's calls they are.
func TestCallsOfAllTenantsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{Config: func(c *server.Config) { c.MaxConcurrentCalls, c.MaxConcurrentCallsPerTenant = 1, 1 }})
	r.grant("k")
	ctx, cancel := context.WithCancel(r.ctx)
	waiting := r.wait(ctx, "k")
	_, err := r.Begin(r.ctx, beginRequest("k", func(b *idemv1.BeginRequest) { b.Ref.Tenant = "theirs" }))
	wantRefusal(t, err, ledger.ReasonQuota, codes.ResourceExhausted)
	stream, err := r.admin.Sweep(r.ctx, &idemv1.SweepRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantRefusal(t, err, ledger.ReasonQuota, codes.ResourceExhausted)
	cancel()
	<-waiting
}

// A message over the limit is refused by gRPC itself, and the claim is as it was.
func TestMessageOverTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k")
	req := completeRequest("k", c, &idemv1.Response{Body: bytes.Repeat([]byte("x"), server.MaxReceiveBytes)})
	_, err := r.Complete(r.ctx, req, grpc.MaxCallSendMsgSize(2*server.MaxReceiveBytes))
	if got := readRefusal(err); got.code != codes.ResourceExhausted || got.info != nil {
		t.Errorf("got %v", err)
	}
	r.complete("k", c, &idemv1.Response{BodyOmitted: true})
}

// A config that can not work is refused with the field's name.
func TestConfigValidate(t *testing.T) {
	t.Parallel()
	l := servertest.New(t, servertest.Options{}).Ledger()
	for field, c := range map[string]server.Config{
		"Ledger":                      {},
		"MaxConcurrentCalls":          {Ledger: l, MaxConcurrentCalls: -1},
		"MaxConcurrentCallsPerTenant": {Ledger: l, MaxConcurrentCallsPerTenant: -1},
		"at most MaxConcurrentCalls":  {Ledger: l, MaxConcurrentCalls: 5, MaxConcurrentCallsPerTenant: 6},
		"DrainTimeout":                {Ledger: l, DrainTimeout: -time.Second},
	} {
		if _, err := server.New(c); err == nil || !bytes.Contains([]byte(err.Error()), []byte(field)) {
			t.Errorf("%v, want an error about %s", err, field)
		}
	}
}
