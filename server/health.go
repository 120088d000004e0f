package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/ledger"
)

const (
	// readyFor is how long one look at the store answers everybody who asks.
	readyFor = time.Second
	// readyTimeout bounds a look.
	readyTimeout = 2 * time.Second
)

// readiness is whether calls can be answered: the store answers, its schema is right, and the daemon is not on its way out.
type readiness struct {
	look    func(context.Context) error
	log     *slog.Logger
	metrics *Metrics

	mu       sync.Mutex
	at       time.Time     // guarded by mu; when it was last looked, by the monotonic clock
	err      error         // guarded by mu; what was found then
	looking  chan struct{} // guarded by mu; closed when the look that is under way ends; nil: none is
	draining bool          // guarded by mu
}

func newReadiness(look func(context.Context) error, log *slog.Logger, metrics *Metrics) *readiness {
	return &readiness{look: look, log: log, metrics: metrics}
}

// check returns nil if calls can be answered. However many ask, the store is looked at once a second, by one of them.
func (r *readiness) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.looking != nil {
		looking := r.looking
		r.mu.Unlock()
		<-looking
		r.mu.Lock()
	}
	if r.draining {
		return errDraining
	}
	if !r.at.IsZero() && time.Since(r.at) < readyFor {
		return r.err
	}
	looking := make(chan struct{})
	r.looking = looking
	r.mu.Unlock()
	err := errLookBroke
	func() {
		// Also where the look panics: nobody may wait for it for ever.
		defer func() {
			r.mu.Lock()
			r.noteLocked(err)
			r.looking = nil
			close(looking)
		}()
		err = r.lookNow()
	}()
	return err
}

var errLookBroke = errors.New("the look at the store broke off")

// lookNow is not done on the context of whoever asks: others are answered by the same look.
func (r *readiness) lookNow() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	return r.look(ctx)
}

func (r *readiness) noteLocked(err error) {
	before, first := r.err, r.at.IsZero()
	r.err, r.at = err, time.Now()
	r.metrics.setReady(err == nil && !r.draining)
	switch {
	case err != nil && (before == nil || first || whyNotReady(before) != whyNotReady(err)):
		r.log.Warn("not ready", refusalArgs(onWire(err))...)
	case err == nil && before != nil:
		r.log.Info("ready again")
	}
}

func refusalArgs(err error) []any {
	var args []any
	for _, a := range refusedWith(err) {
		args = append(args, a)
	}
	return args
}

var errDraining = errors.New("draining")

func (r *readiness) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
	r.metrics.setReady(false)
}

// watchReadiness keeps the health service up to date until ctx ends.
func (s *Server) watchReadiness(ctx context.Context) error {
	ticker := time.NewTicker(readyFor)
	defer ticker.Stop()
	for {
		s.health.set(s.readiness.check() == nil)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// healthService is gRPC's health service: one status, under the name of each service and under "". It is not grpc-go's own, whose watchers
// keep a draining server waiting until they go by themselves.
type healthService struct {
	healthpb.UnimplementedHealthServer
	services []string

	mu      sync.Mutex
	serving bool          // guarded by mu
	drained bool          // guarded by mu
	changed chan struct{} // guarded by mu; closed, and replaced, at each change
}

func newHealthService(services ...string) *healthService {
	return &healthService{services: services, changed: make(chan struct{})}
}

func (h *healthService) set(serving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.drained || h.serving == serving {
		return
	}
	h.serving = serving
	h.tellLocked()
}

// drain says NOT_SERVING for good and sends the watchers away.
func (h *healthService) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving, h.drained = false, true
	h.tellLocked()
}

func (h *healthService) tellLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *healthService) now(service string) (st healthpb.HealthCheckResponse_ServingStatus, drained bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	st = healthpb.HealthCheckResponse_SERVICE_UNKNOWN
	for _, known := range h.services {
		if known == service {
			st = servingStatus(h.serving)
		}
	}
	return st, h.drained, h.changed
}

func servingStatus(serving bool) healthpb.HealthCheckResponse_ServingStatus {
	if serving {
		return healthpb.HealthCheckResponse_SERVING
	}
	return healthpb.HealthCheckResponse_NOT_SERVING
}

// Check implements grpc.health.v1.
func (h *healthService) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	st, _, _ := h.now(req.GetService())
	if st == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Error(codes.NotFound, "unknown service")
	}
	return &healthpb.HealthCheckResponse{Status: st}, nil
}

// List implements grpc.health.v1.
func (h *healthService) List(context.Context, *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	out := &healthpb.HealthListResponse{Statuses: map[string]*healthpb.HealthCheckResponse{}}
	for _, service := range h.services {
		st, _, _ := h.now(service)
		out.Statuses[service] = &healthpb.HealthCheckResponse{Status: st}
	}
	return out, nil
}

// Watch implements grpc.health.v1.
func (h *healthService) Watch(req *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	last := healthpb.HealthCheckResponse_ServingStatus(-1)
	for {
		st, drained, changed := h.now(req.GetService())
		if st != last {
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: st}); err != nil {
				return err
			}
			last = st
		}
		if drained {
			return status.Error(codes.Unavailable, "this daemon is shutting down")
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
}

// newHTTPServer serves probes and scrapes. /livez says that the process runs, whatever the store does: restarting it would not help the store.
func (s *Server) newHTTPServer() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) { s.answer(w, r, http.StatusOK, "live", "") })
	mux.HandleFunc("GET /readyz", s.readyz)
	if s.cfg.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	switch err := s.readiness.check(); {
	case err == nil:
		s.answer(w, r, http.StatusOK, "ready", "")
	case errors.Is(err, errDraining):
		s.answer(w, r, http.StatusServiceUnavailable, "not ready", "this daemon is shutting down")
	default:
		s.answer(w, r, http.StatusServiceUnavailable, "not ready", whyNotReady(err))
	}
}

// whyNotReady says what is wrong with the store, where it could tell.
func whyNotReady(err error) string {
	var fault ledger.StoreFault
	if errors.As(err, &fault) {
		return fault.Error()
	}
	return "the store does not answer, or its schema is another version's"
}

// answer writes a line of text, or JSON for who asks for it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, code int, state, why string) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(struct {
			Status  string `json:"status"`
			Why     string `json:"why,omitempty"`
			Version string `json:"version,omitempty"`
		}{state, why, s.cfg.Version})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	if why != "" {
		state += ": " + why
	}
	_, _ = fmt.Fprintln(w, state)
}
