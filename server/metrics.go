package server

import (
	"context"
	"errors"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// MaxOperationLabels is how many operations have a label of their own; all others are counted together as "other". Names of operations come
// from callers, and a metric whose labels callers can make up grows without end.
const MaxOperationLabels = 100

// Metrics is what Prometheus is told. It observes a ledger (give it to ledger.Config.Observer) and counts a server's calls (give it to
// Config.Metrics). Safe for concurrent use.
type Metrics struct {
	calls    *grpcprom.ServerMetrics
	outcomes *prometheus.CounterVec
	panics   prometheus.Counter
	build    *prometheus.GaugeVec
	ready    prometheus.Gauge

	storeSeconds *prometheus.HistogramVec
	storeErrors  *prometheus.CounterVec
	waiting      prometheus.Gauge
	swept        *prometheus.CounterVec
	oldestDue    prometheus.Gauge
	oldestHeld   prometheus.Gauge
	held         prometheus.Gauge

	operations labels
}

var _ ledger.Observer = (*Metrics)(nil)

// latencies reach from a read in memory to a store that is close to being given up.
var latencies = []float64{.0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300}

// NewMetrics registers on reg, which panics where it has been done before; nil: on none.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		calls: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(latencies))),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idemd_outcomes_total",
			Help: "Calls by what came of them: an outcome in lower case, or the reason of a refusal in upper case. The first " +
				strconv.Itoa(MaxOperationLabels) + " operations that succeed have a label of their own, all others are operation=\"other\".",
		}, []string{"rpc", "operation", "outcome"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "idemd_panics_total", Help: "Calls that panicked. Each one is a bug; the log has the stack.",
		}),
		build: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "idemd_build_info", Help: "1, by the version that runs."}, []string{"version"}),
		ready: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_ready", Help: "1 while the store answers with the right schema and the daemon is not draining, else 0.",
		}),
		storeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "idemd_store_call_seconds", Help: "How long calls to the store took, those that failed included.", Buckets: latencies,
		}, []string{"call"}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idemd_store_errors_total",
			Help: "Calls to the store that failed, by class: unavailable (not done), unknown (may have been done; read back), contended (not " +
				"done, others got in the way), bad_row (not done, one row is the fault), context (the caller went away or ran out of time), other.",
		}, []string{"call", "class"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_waiting_calls", Help: "Begins that wait for another's claim now.",
		}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "idemd_sweep_entries_total",
			Help: "Entries that this daemon's sweeps looked at (examined) and what was done: closed (the answer stripped, a tombstone left), lapsed " +
				"(likewise, though nobody ever settled it), forgotten, held (taken out of the sweeper's way), missed (changed meanwhile, or the store " +
				"failed; a later sweep comes back).",
		}, []string{"action"}),
		oldestDue: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_oldest_overdue_seconds",
			Help: "How long the oldest entry has been due for the sweeper, as of the last look; 0: none is. Growing without end, it says that sweeps do not keep up.",
		}),
		oldestHeld: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_oldest_held_seconds",
			Help: "How long ago the oldest held entry was left, as of the last look; 0: none is held. Held entries wait for somebody to settle them, for ever.",
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "idemd_held_entries", Help: "Entries that are held, as of the last look.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.calls, m.outcomes, m.panics, m.build, m.ready, m.storeSeconds, m.storeErrors, m.waiting, m.swept, m.oldestDue, m.oldestHeld, m.held)
	}
	return m
}

// StoreCall implements [ledger.Observer].
func (m *Metrics) StoreCall(call string, took time.Duration, err error) {
	m.storeSeconds.WithLabelValues(call).Observe(took.Seconds())
	if err != nil {
		m.storeErrors.WithLabelValues(call, errorClass(err)).Inc()
	}
}

func errorClass(err error) string {
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return "unknown"
	case errors.Is(err, ledger.ErrContended):
		return "contended"
	case errors.Is(err, ledger.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ledger.ErrBadRow):
		return "bad_row"
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return "context"
	default:
		return "other"
	}
}

// Waiting implements [ledger.Observer].
func (m *Metrics) Waiting(n int) { m.waiting.Set(float64(n)) }

// Swept implements [ledger.Observer].
func (m *Metrics) Swept(p ledger.SweepProgress) {
	for _, c := range []struct {
		action string
		n      int64
	}{{"examined", p.Examined}, {"closed", p.Closed}, {"lapsed", p.Lapsed}, {"forgotten", p.Forgotten}, {"held", p.Held}, {"missed", p.Missed}} {
		m.swept.WithLabelValues(c.action).Add(float64(max(c.n, 0)))
	}
}

// Overdue implements [ledger.Observer].
func (m *Metrics) Overdue(due, held time.Duration, heldEntries int) {
	m.oldestDue.Set(due.Seconds())
	m.oldestHeld.Set(held.Seconds())
	m.held.Set(float64(heldEntries))
}

func (m *Metrics) setReady(ready bool) {
	if ready {
		m.ready.Set(1)
		return
	}
	m.ready.Set(0)
}

// labels is a bounded set of label values, first come, first served.
type labels struct {
	mu    sync.RWMutex
	known map[string]bool // guarded by mu
}

// otherLabel stands for what has no label of its own.
const otherLabel = "other"

// label returns the value to count under. Only what admit says gets a label: a caller that is refused can not use them up.
func (l *labels) label(value string, admit bool) string {
	if value == "" {
		return ""
	}
	l.mu.RLock()
	known := l.known[value]
	l.mu.RUnlock()
	if known {
		return value
	}
	if !admit {
		return otherLabel
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.known) >= MaxOperationLabels && !l.known[value] {
		return otherLabel
	}
	if l.known == nil {
		l.known = map[string]bool{}
	}
	l.known[value] = true
	return value
}

func (m *Metrics) countUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	m.count(info.FullMethod, req, resp, err)
	return resp, err
}

func (m *Metrics) countStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	m.count(info.FullMethod, nil, nil, err)
	return err
}

func (m *Metrics) count(method string, req, resp any, err error) {
	if !isOurs(method) {
		return
	}
	operation := ""
	if r, ok := req.(interface{ GetRef() *idemv1.EntryRef }); ok {
		operation = m.operations.label(r.GetRef().GetOperation(), err == nil)
	}
	m.outcomes.WithLabelValues(path.Base(method), operation, outcomeOf(resp, err)).Inc()
}

// outcomeOf is the word for what came of a call.
func outcomeOf(resp any, err error) string {
	if err != nil {
		return outcomeOfError(err)
	}
	switch r := resp.(type) {
	case *idemv1.BeginResponse:
		return beginOutcome(r)
	case interface{ GetResent() bool }:
		if r.GetResent() {
			return "resent"
		}
	}
	return "ok"
}

func outcomeOfError(err error) string {
	var refusal *ledger.Refusal
	if errors.As(err, &refusal) {
		return string(refusal.Reason)
	}
	return strings.ToUpper(status.Code(err).String())
}

func beginOutcome(r *idemv1.BeginResponse) string {
	switch o := r.GetOutcome().(type) {
	case *idemv1.BeginResponse_Granted:
		switch {
		case o.Granted.GetResumed():
			return "resumed"
		case o.Granted.GetPreviousAbandoned():
			return "granted_previous_abandoned"
		default:
			return "granted"
		}
	case *idemv1.BeginResponse_Completed:
		return "completed"
	case *idemv1.BeginResponse_Failed:
		return "failed"
	default:
		return "in_progress"
	}
}
