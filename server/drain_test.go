package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/test/bufconn"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// A drain answers everybody who waits, at once and truthfully, and is clean.
func TestDrainAnswersWaiters(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		r.grant("k")
		var waiting []<-chan told
		for range 5 {
			waiting = append(waiting, r.wait(r.ctx, "k"))
		}
		began := time.Now()
		if err := r.daemon.Close(); err != nil {
			t.Errorf("the drain: %v", err)
		}
		for _, w := range waiting {
			if got := <-w; got.err != nil || got.resp.GetInProgress() == nil {
				t.Errorf("a waiter was told %v, %v", got.resp, got.err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// While the daemon drains, a report that is under way ends and is told that it is recorded; nothing new is granted meanwhile, and what ends work
// still gets in.
func TestDrainLetsReportsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c, other := r.grant("k"), r.grant("other")
	reached, release := make(chan struct{}, 1), make(chan struct{})
	r.daemon.Store().Plan(holdNextWrite(reached, release))
	completed := make(chan error, 1)
	go func() {
		completed <- second(r.Complete(r.ctx, completeRequest("k", c, &idemv1.Response{Body: []byte("done")})))
	}()
	<-reached

	// First what a caller sees on a connection that is still open: the ledger's half of the drain.
	r.daemon.Ledger().Drain()
	_, err := r.Begin(r.ctx, beginRequest("new"))
	wantRefusal(t, err, ledger.ReasonDraining, codes.Unavailable)
	if _, err := r.Extend(r.ctx, &idemv1.ExtendRequest{Ref: refTo("other"), ClaimToken: other.GetClaimToken()}); err != nil {
		t.Errorf("Extend while draining: %v", err)
	}
	r.complete("other", other, &idemv1.Response{})

	// Then the whole of it.
	closed := make(chan error, 1)
	go func() { closed <- r.daemon.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("the drain did not wait for a report: %v", err)
	case err := <-completed:
		t.Fatalf("the report did not wait for the store: %v", err)
	case <-r.daemon.Draining():
	}
	close(release)
	if err := <-completed; err != nil {
		t.Errorf("the report under way: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("the drain: %v", err)
	}
	view, err := r.daemon.Ledger().Lookup(r.ctx, ledger.Caller{}, ledger.Ref{Tenant: server.DefaultTenant, Operation: operation, Key: "k"})
	if err != nil || string(view.Entry.Response.Body) != "done" {
		t.Errorf("the entry after the drain: %+v, %v", view, err)
	}
}

// A call that does not end in time is cut off, its handler has returned by then, and the drain says that it was not clean.
func TestDrainCutsOffWhatDoesNotEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{DrainTimeout: 5 * time.Second}, func(t *testing.T, r *rig) {
		returned := false
		r.daemon.Store().Plan(storetest.On(storetest.Get, storetest.Script(storetest.Fault{Before: func(ctx context.Context) error {
			<-ctx.Done()
			pass(time.Second) // it takes a while to let go
			returned = true
			return ctx.Err()
		}})))
		looked := make(chan error, 1)
		go func() { looked <- second(r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: refTo("k")})) }()
		synctest.Wait()
		began := time.Now()
		if err := r.daemon.Close(); !errors.Is(err, server.ErrCutOff) {
			t.Errorf("the drain: %v, want that a call was cut off", err)
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("it took %v, want the drain timeout and what the handler took to let go", took)
		}
		if !returned {
			t.Error("the server was gone before its handler had returned")
		}
		if err := <-looked; readRefusal(err).code != codes.Unavailable {
			t.Errorf("the call that was cut off: %v", err)
		}
	})
}

// Who watches the health of a draining daemon is told NOT_SERVING and sent away; it does not hold the drain up.
func TestDrainSendsHealthWatchersAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	watch, err := healthpb.NewHealthClient(r.daemon.Conn()).Watch(r.ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantStatus := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		got, err := watch.Recv()
		for err == nil && want == healthpb.HealthCheckResponse_SERVING && got.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING {
			got, err = watch.Recv() // it was not ready yet
		}
		if err != nil || got.GetStatus() != want {
			t.Fatalf("watching: %v, %v, want %v", got, err, want)
		}
	}
	wantStatus(healthpb.HealthCheckResponse_SERVING)
	closed := make(chan error, 1)
	go func() { closed <- r.daemon.Close() }()
	wantStatus(healthpb.HealthCheckResponse_NOT_SERVING)
	if _, err := watch.Recv(); readRefusal(err).code != codes.Unavailable {
		t.Errorf("the watch ended with %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("the drain: %v", err)
	}
}

// A streamed call that has more to do ends with DRAINING after its batch, instead of holding the drain up.
func TestDrainEndsStreamedWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	reached, release := make(chan struct{}, 1), make(chan struct{})
	r.daemon.Store().Plan(storetest.On(storetest.Page, storetest.Script(storetest.Fault{Before: func(ctx context.Context) error {
		reached <- struct{}{}
		return storetest.Until(release)(ctx)
	}})))
	stream, err := r.admin.Sweep(r.ctx, &idemv1.SweepRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	closed := make(chan error, 1)
	go func() { closed <- r.daemon.Close() }()
	<-r.daemon.Draining()
	close(release)
	_, err = last(stream)
	wantRefusal(t, err, ledger.ReasonDraining, codes.Unavailable)
	if err := <-closed; err != nil {
		t.Errorf("the drain: %v", err)
	}
}

// Serve ends with an error, and drained, where a listener fails; a server serves once.
func TestServeWithABrokenListener(t *testing.T) {
	t.Parallel()
	l, err := ledger.New(t.Context(), ledger.Config{Store: storetest.NewModel(storetest.NewClock(1), 0), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Ledger: l})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(t.Context(), brokenListener{bufconn.Listen(1)}, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Serve: %v", err)
	}
	if err := s.Serve(t.Context(), bufconn.Listen(1), nil); err == nil {
		t.Error("a server can be served twice")
	}
}

type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, io.ErrUnexpectedEOF }
