package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	channelzpb "google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// serviceNames are what health knows.
var serviceNames = []string{"", idemv1.LedgerService_ServiceDesc.ServiceName, idemv1.AdminService_ServiceDesc.ServiceName}

// Health follows the store: serving while it answers, not serving while it does not, under every service's name.
func TestHealthFollowsTheStore(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		health := healthpb.NewHealthClient(r.daemon.Conn())
		want := func(st healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			pass(2 * time.Second) // two looks
			for _, name := range serviceNames {
				if got, err := health.Check(r.ctx, &healthpb.HealthCheckRequest{Service: name}); err != nil || got.GetStatus() != st {
					t.Errorf("%q: %v, %v, want %v", name, got, err, st)
				}
			}
			list, err := health.List(r.ctx, &healthpb.HealthListRequest{})
			if err != nil || len(list.GetStatuses()) != len(serviceNames) || list.GetStatuses()[""].GetStatus() != st {
				t.Errorf("listed: %v, %v", list, err)
			}
		}
		want(healthpb.HealthCheckResponse_SERVING)
		r.daemon.Down()
		want(healthpb.HealthCheckResponse_NOT_SERVING)
		r.daemon.Up()
		want(healthpb.HealthCheckResponse_SERVING)
		_, err := health.Check(r.ctx, &healthpb.HealthCheckRequest{Service: "shop.v1.PaymentService"})
		if readRefusal(err).code != codes.NotFound {
			t.Errorf("a service that is not here: %v", err)
		}
	})
}

// Watchers are told each change once, also those of a service that is not here.
func TestHealthWatch(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		pass(time.Second)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		watch, err := healthpb.NewHealthClient(r.daemon.Conn()).Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		next := func(want healthpb.HealthCheckResponse_ServingStatus) {
			t.Helper()
			if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
				t.Errorf("%v, %v, want %v", got, err, want)
			}
		}
		next(healthpb.HealthCheckResponse_SERVING)
		r.daemon.Down()
		next(healthpb.HealthCheckResponse_NOT_SERVING)
		r.daemon.Up()
		next(healthpb.HealthCheckResponse_SERVING)
		stranger, err := healthpb.NewHealthClient(r.daemon.Conn()).Watch(ctx, &healthpb.HealthCheckRequest{Service: "nobody"})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := stranger.Recv(); err != nil || got.GetStatus() != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Errorf("a service that is not here: %v, %v", got, err)
		}
	})
}

// /readyz says whether calls can be answered, in text and JSON; /livez only that the process runs.
func TestProbes(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		h := r.daemon.Server().HTTP()
		want := func(path, accept string, code int, parts ...string) {
			t.Helper()
			got := get(t, h, path, accept)
			if got.code != code {
				t.Errorf("%s: %d, want %d", path, got.code, code)
			}
			for _, part := range parts {
				if !strings.Contains(got.body, part) {
					t.Errorf("%s: %q, want it to hold %q", path, got.body, part)
				}
			}
			if isJSON := strings.HasPrefix(got.kind, "application/json"); isJSON != (accept != "") {
				t.Errorf("%s is of type %s", path, got.kind)
			}
		}
		const asJSON = "application/json, */*;q=0.1"
		want("/livez", "", http.StatusOK, "live\n")
		want("/readyz", "", http.StatusOK, "ready\n")
		want("/readyz", asJSON, http.StatusOK, `"status":"ready"`, `"version":"servertest"`)
		want("/metrics", "", http.StatusOK, "idemd_ready 1\n", "idemd_build_info")

		r.daemon.Down()
		want("/readyz", "", http.StatusOK) // the last look is less than a second old
		pass(time.Second)
		want("/readyz", "", http.StatusServiceUnavailable, "not ready: ", "store")
		want("/readyz", asJSON, http.StatusServiceUnavailable, `"status":"not ready"`, `"why":"the store`)
		want("/livez", asJSON, http.StatusOK, `"status":"live"`)
		want("/metrics", "", http.StatusOK, "idemd_ready 0\n")
		if got := get(t, h, "/readyz", "").body; strings.Contains(got, "injected") {
			t.Errorf("/readyz tells the cause: %q", got)
		}

		r.daemon.Up()
		pass(time.Second)
		want("/readyz", "", http.StatusOK)
		if err := r.daemon.Close(); err != nil {
			t.Error(err)
		}
		want("/readyz", "", http.StatusServiceUnavailable, "shutting down")
		want("/livez", "", http.StatusOK)
	})
}

// A store that knows what is wrong with it has it told: to probes, to callers, and once to the log.
func TestAFaultOfTheStoreIsNamed(t *testing.T) {
	t.Parallel()
	var log logBuffer
	inBubble(t, servertest.Options{Logger: log.logger(slog.LevelInfo)}, func(t *testing.T, r *rig) {
		for _, fault := range []ledger.StoreFault{ledger.FaultFull, ledger.FaultFailing, ledger.FaultDamaged} {
			r.daemon.Store().Plan(func(storetest.Call) storetest.Fault {
				return storetest.Fault{Before: func(context.Context) error { return fmt.Errorf("%w: %w: /var/secret", ledger.ErrUnavailable, fault) }}
			})
			pass(3 * time.Second)
			if got := get(t, r.daemon.Server().HTTP(), "/readyz", ""); got.code != http.StatusServiceUnavailable || got.body != "not ready: "+fault.Error()+"\n" {
				t.Errorf("%s: /readyz says %d %q", fault, got.code, got.body)
			}
			if st, err := healthpb.NewHealthClient(r.daemon.Conn()).Check(r.ctx, &healthpb.HealthCheckRequest{}); st.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
				t.Errorf("%s: health says %v, %v", fault, st, err)
			}
			_, err := r.Begin(r.ctx, beginRequest("k"))
			told := wantRefusal(t, err, ledger.ReasonStoreUnavailable, codes.Unavailable)
			if told.retry == nil || told.info.GetMetadata()["store"] != string(fault) || !strings.Contains(err.Error(), fault.Error()) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: a caller is told %v", fault, err)
			}
			if n := strings.Count(log.String(), `"msg":"not ready","reason":"STORE_UNAVAILABLE","error":"store unavailable: `+fault.Error()); n != 1 {
				t.Errorf("%s: logged %d times:\n%s", fault, n, log.String())
			}
		}
		r.daemon.Store().Plan(nil)
		pass(2 * time.Second)
		if got := get(t, r.daemon.Server().HTTP(), "/readyz", ""); got.code != http.StatusOK {
			t.Errorf("put right: %+v", got)
		}
	})
}

// However many ask, the store is looked at once a second; and a look that hangs is given up.
func TestReadinessIsCached(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{Config: func(c *server.Config) { c.Gatherer = nil }}, func(t *testing.T, r *rig) {
		h := r.daemon.Server().HTTP()
		synctest.Wait()
		before := r.daemon.Store().Calls()
		for range 100 {
			get(t, h, "/readyz", "")
		}
		if n := r.daemon.Store().Calls() - before; n > 1 {
			t.Errorf("the store was looked at %d times", n)
		}
		r.daemon.Store().Plan(storetest.On(storetest.Ready, func(storetest.Call) storetest.Fault {
			return storetest.Fault{Before: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		}))
		pass(10 * time.Second)
		began := time.Now()
		if got := get(t, h, "/readyz", ""); got.code != http.StatusServiceUnavailable {
			t.Errorf("with a store that hangs: %d", got.code)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		r.daemon.Store().Plan(nil)
		if got := get(t, h, "/metrics", ""); got.code != http.StatusNotFound {
			t.Errorf("/metrics without a gatherer: %d", got.code)
		}
	})
}

// The HTTP listener is served until the last call has ended, and goes last.
func TestHTTPGoesLast(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock(1_800_000_000_000_000)
	l, err := ledger.New(t.Context(), ledger.Config{Store: storetest.NewModel(clock, 0), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(server.Config{Ledger: l})
	if err != nil {
		t.Fatal(err)
	}
	var listen net.ListenConfig
	grpcListener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	httpListener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, grpcListener, httpListener) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/livez", httpListener.Addr()), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	stop()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	for name, listener := range map[string]net.Listener{"gRPC": grpcListener, "HTTP": httpListener} {
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the %s listener is still open: %v", name, err)
		}
	}
}

// Reflection and channelz are served, to those who may.
func TestReflectionAndChannelz(t *testing.T) {
	t.Parallel()
	who := principals{}
	r := newRig(t, servertest.Options{Identify: who.identify})
	stranger, service, root := r.ctx, who.as("shop", "a")(r.ctx), who.as("root", "")(r.ctx)
	for _, c := range []struct {
		ctx                  context.Context
		reflection, channelz codes.Code
	}{
		{stranger, codes.Unauthenticated, codes.Unauthenticated}, {service, codes.OK, codes.PermissionDenied}, {root, codes.OK, codes.OK},
	} {
		ctx, cancel := context.WithCancel(c.ctx)
		stream, err := reflectionpb.NewServerReflectionClient(r.daemon.Conn()).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		// A stream that was refused at once may say so here already.
		_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
		got, err := stream.Recv()
		if readRefusal(err).code != c.reflection {
			t.Errorf("reflection: %v, want %v", err, c.reflection)
		}
		if err == nil && !strings.Contains(got.String(), "idem.v1.LedgerService") {
			t.Errorf("reflection shows %v", got)
		}
		cancel()
		_, err = channelzpb.NewChannelzClient(r.daemon.Conn()).GetServers(c.ctx, &channelzpb.GetServersRequest{})
		if readRefusal(err).code != c.channelz {
			t.Errorf("channelz: %v, want %v", err, c.channelz)
		}
	}
}
