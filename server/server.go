// Package server turns RPCs into ledger calls and back, and nothing else: a handler converts, calls one method of [ledger.Ledger], and
// converts the answer. What surrounds every call is one file each: who is asking (identity.go), whether the request is well formed
// (validation.go), how much may go on at once (limits.go), what is logged and counted (logging.go, metrics.go), what a refusal looks like on
// the wire (errors.go), and how the daemon says that it is there (health.go).
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	channelz "google.golang.org/grpc/channelz/service"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Config is what a Server is built from. Only Ledger is required.
type Config struct {
	// Ledger answers the calls. Its background work ([ledger.Ledger.Run]) is the caller's to start and stop.
	Ledger *ledger.Ledger
	// Logger; nil: silence. Neither keys nor bodies, tokens or metadata values reach it.
	Logger *slog.Logger
	// Metrics counts calls; nil: nobody looks. Give the same one to ledger.Config.Observer.
	Metrics *Metrics
	// Gatherer is what /metrics shows; nil: there is no /metrics.
	Gatherer prometheus.Gatherer
	// Identify says who makes a call, from what its context holds (metadata, peer certificate). It is asked for every call but those of the
	// health service. An error that carries a gRPC status is told to the caller with its code and message; every other error means
	// UNAUTHENTICATED and goes to the log only. Nil: everybody is [Anonymous].
	Identify func(ctx context.Context, fullMethod string) (Principal, error)
	// TracerProvider records a span for each call; nil: nobody does.
	TracerProvider trace.TracerProvider
	// TLS secures the gRPC listener; nil: plain text. The HTTP listener is always plain: it shows health and metrics only.
	TLS *tls.Config
	// Version is shown by /readyz and as a metric.
	Version string
	// MaxConcurrentStreams is how many calls one connection may have under way; 0: 32,768. It must leave room for every Begin that waits on
	// a connection and for the reports that those wait for: a report that queues behind its own waiters is late for all of them.
	MaxConcurrentStreams uint32
	// MaxConcurrentCalls and MaxConcurrentCallsPerTenant bound the calls under way in this daemon, Complete, Fail and Extend
	// excepted: what ends work always gets in. One more is refused QUOTA. 0: 32,768 and half of that.
	MaxConcurrentCalls          int
	MaxConcurrentCallsPerTenant int
	// DrainTimeout is how long calls under way may take to end once the server stops; 0: 20 s.
	DrainTimeout time.Duration
	// ServerOptions come after the server's own gRPC options, so they win. An interceptor given by grpc.UnaryInterceptor stands outside
	// all others.
	ServerOptions []grpc.ServerOption
}

// The defaults of a Config.
const (
	DefaultMaxConcurrentStreams = 32_768
	DefaultMaxConcurrentCalls   = 32_768
	DefaultDrainTimeout         = 20 * time.Second
)

// Validate refuses a config that cannot work, naming the field.
func (c *Config) Validate() error {
	switch {
	case c.Ledger == nil:
		return errors.New("server: Config.Ledger is required")
	case c.MaxConcurrentCalls < 0:
		return errors.New("server: Config.MaxConcurrentCalls must not be negative")
	case c.MaxConcurrentCallsPerTenant < 0:
		return errors.New("server: Config.MaxConcurrentCallsPerTenant must not be negative")
	case c.MaxConcurrentCallsPerTenant > c.maxCalls():
		return errors.New("server: Config.MaxConcurrentCallsPerTenant must be at most MaxConcurrentCalls")
	case c.DrainTimeout < 0:
		return errors.New("server: Config.DrainTimeout must not be negative")
	}
	return nil
}

func (c *Config) maxCalls() int {
	if c.MaxConcurrentCalls == 0 {
		return DefaultMaxConcurrentCalls
	}
	return c.MaxConcurrentCalls
}

func (c *Config) maxCallsPerTenant() int {
	if c.MaxConcurrentCallsPerTenant == 0 {
		return max(c.maxCalls()/2, 1)
	}
	return c.MaxConcurrentCallsPerTenant
}

func (c *Config) drainTimeout() time.Duration {
	if c.DrainTimeout == 0 {
		return DefaultDrainTimeout
	}
	return c.DrainTimeout
}

// Server is the daemon's edge: gRPC for callers, HTTP for those who watch over it.
type Server struct {
	cfg       Config
	ledger    *ledger.Ledger
	log       *slog.Logger
	metrics   *Metrics
	validator *validator
	limiter   *limiter
	chains    map[string]grpc.UnaryHandler // by method
	grpc      *grpc.Server
	http      *http.Server
	readiness *readiness
	health    *healthService
	served    atomic.Bool
	draining  chan struct{}
}

// New builds a server. It listens nowhere until [Server.Serve].
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	validator, err := newValidator()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, ledger: cfg.Ledger, log: cfg.Logger, metrics: cfg.Metrics, validator: validator,
		limiter: newLimiter(cfg.maxCalls(), cfg.maxCallsPerTenant()), draining: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	s.metrics.build.WithLabelValues(cfg.Version).Set(1)
	s.readiness = newReadiness(s.ledger.Ready, s.log, s.metrics)
	s.health = newHealthService("", idemv1.LedgerService_ServiceDesc.ServiceName, idemv1.AdminService_ServiceDesc.ServiceName)

	s.chains = s.unaryChains()
	s.grpc = grpc.NewServer(s.serverOptions()...)
	service := &ledgerService{ledger: s.ledger}
	service.sessions = s.newSessions(service)
	idemv1.RegisterLedgerServiceServer(s.grpc, service)
	idemv1.RegisterAdminServiceServer(s.grpc, &adminService{ledger: s.ledger, draining: s.draining})
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	channelz.RegisterChannelzServiceToServer(s.grpc)
	s.metrics.calls.InitializeMetrics(s.grpc)

	s.http = s.newHTTPServer()
	return s, nil
}

// GRPC returns the gRPC server, for a caller that serves it on a further listener: it stops with the others.
func (s *Server) GRPC() *grpc.Server { return s.grpc }

// HTTP returns what the HTTP listener serves: /livez, /readyz and /metrics.
func (s *Server) HTTP() http.Handler { return s.http.Handler }

// Draining is closed once the server is on its way out.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Serve serves until ctx ends or a listener fails, and then drains: health turns to NOT_SERVING, the ledger grants nothing new and
// answers everybody who waits, calls under way get DrainTimeout to end, and HTTP goes last, so that whoever watches sees all of it. It returns nil
// after a drain in which no call was cut off. httpListener may be nil. Serve may be called once; both listeners are closed when it returns.
func (s *Server) Serve(ctx context.Context, grpcListener, httpListener net.Listener) error {
	if !s.served.CompareAndSwap(false, true) {
		return errors.New("server: Serve was called before")
	}
	// The first look comes before the first caller: one who is let in is not told NOT_SERVING by a daemon that is well.
	s.health.set(s.readiness.check() == nil)
	watching, stopWatching := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWatching()
	ends := make(chan error, 3)
	running := 2
	go func() { ends <- ignoreClosed(s.grpc.Serve(grpcListener)) }()
	go func() { ends <- s.watchReadiness(watching) }()
	if httpListener != nil {
		running++
		go func() { ends <- ignoreClosed(s.http.Serve(httpListener)) }()
	}
	var failed error
	select {
	case <-ctx.Done():
	case err := <-ends:
		running--
		if failed = errStopped; err != nil {
			failed = fmt.Errorf("server: a listener failed: %w", err)
		}
	}
	stopWatching()
	failed = errors.Join(failed, s.drain())
	for range running {
		failed = errors.Join(failed, <-ends)
	}
	return failed
}

// ignoreClosed: a server that is stopped before it got as far as serving says so, as an error.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// ErrCutOff says that calls were still under way when the time to drain was over, and were cut off.
var ErrCutOff = errors.New("server: calls were cut off: they did not end within the drain timeout")

var errStopped = errors.New("server: the gRPC server was stopped from elsewhere")

// httpDrainTimeout bounds the last HTTP requests: a scrape, a probe.
const httpDrainTimeout = 2 * time.Second

func (s *Server) drain() error {
	s.log.Info("draining", "timeout", s.cfg.drainTimeout())
	s.readiness.drain()
	s.health.drain()
	s.ledger.Drain()
	close(s.draining)

	stopped := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(stopped)
	}()
	var cutOff error
	timer := time.NewTimer(s.cfg.drainTimeout())
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		cutOff = ErrCutOff
		// Cancels what is under way and waits until its handlers have returned, so that whoever closes the store next pulls it from nobody's hands.
		s.grpc.Stop()
		<-stopped
	}
	ctx, cancel := context.WithTimeout(context.Background(), httpDrainTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	s.log.Info("drained", "clean", cutOff == nil)
	return cutOff
}
