package server

import (
	"context"
	"path"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callMetrics count calls and messages under the names and labels that gRPC servers in Go are usually watched by (go-grpc-middleware's), so that dashboards made for those
// work here. Each method's metrics are looked up once: by their labels they would be looked up five times in every call.
type callMetrics struct {
	started, handled, received, sent *prometheus.CounterVec
	seconds                          *prometheus.HistogramVec
	methods                          atomic.Pointer[map[string]*methodMetrics] // by full name; nobody changes the map
}

// methodMetrics are those of one method.
type methodMetrics struct {
	started, received, sent prometheus.Counter
	seconds                 prometheus.Observer
	handled                 [codes.Unauthenticated + 1]prometheus.Counter
}

func newCallMetrics() *callMetrics {
	labels := []string{"grpc_type", "grpc_service", "grpc_method"}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &callMetrics{
		started:  counter("grpc_server_started_total", "Calls that began.", labels...),
		handled:  counter("grpc_server_handled_total", "Calls that ended, by the code that their callers were told.", append(labels, "grpc_code")...),
		received: counter("grpc_server_msg_received_total", "Messages that callers sent.", labels...),
		sent:     counter("grpc_server_msg_sent_total", "Messages that callers were sent.", labels...),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grpc_server_handling_seconds", Help: "How long calls took.", Buckets: latencies,
		}, labels),
	}
}

// Describe implements [prometheus.Collector].
func (m *callMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(to)
	}
}

// Collect implements [prometheus.Collector].
func (m *callMetrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(to)
	}
}

func (m *callMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.started, m.handled, m.received, m.sent, m.seconds}
}

// know makes the metrics of all methods that a server has, so that each is shown before its first call.
func (m *callMetrics) know(server *grpc.Server) {
	methods := map[string]*methodMetrics{}
	for service, info := range server.GetServiceInfo() {
		for _, method := range info.Methods {
			full := "/" + service + "/" + method.Name
			methods[full] = m.newMethod(full, typeOf(method.IsClientStream, method.IsServerStream))
		}
	}
	m.methods.Store(&methods)
}

// typeOf is a method's value of grpc_type.
func typeOf(clientStream, serverStream bool) string {
	switch {
	case clientStream && serverStream:
		return "bidi_stream"
	case clientStream:
		return "client_stream"
	case serverStream:
		return "server_stream"
	default:
		return "unary"
	}
}

func (m *callMetrics) newMethod(full, kind string) *methodMetrics {
	service, name := path.Dir(full)[1:], path.Base(full)
	out := &methodMetrics{
		started: m.started.WithLabelValues(kind, service, name), received: m.received.WithLabelValues(kind, service, name),
		sent: m.sent.WithLabelValues(kind, service, name), seconds: m.seconds.WithLabelValues(kind, service, name),
	}
	for code := range out.handled {
		out.handled[code] = m.handled.WithLabelValues(kind, service, name, codes.Code(code).String())
	}
	return out
}

// of returns a method's metrics. A method that was registered late has its looked up in each call.
func (m *callMetrics) of(full, kind string) *methodMetrics {
	if methods := m.methods.Load(); methods != nil {
		if known, ok := (*methods)[full]; ok {
			return known
		}
	}
	return m.newMethod(full, kind)
}

// ended counts a call that ended with err.
func (m *methodMetrics) ended(began time.Time, err error) {
	code := status.Code(err)
	if int(code) >= len(m.handled) {
		code = codes.Unknown
	}
	m.handled[code].Inc()
	m.seconds.Observe(time.Since(began).Seconds())
}

// A unary call has one message each way, of which the second is sent where it succeeds.
func (m *Metrics) callUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method, began := m.calls.of(info.FullMethod, typeOf(false, false)), time.Now()
	method.started.Inc()
	method.received.Inc()
	resp, err := handler(ctx, req)
	if err == nil {
		method.sent.Inc()
	}
	method.ended(began, err)
	return resp, err
}

func (m *Metrics) callStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	method, began := m.calls.of(info.FullMethod, typeOf(info.IsClientStream, info.IsServerStream)), time.Now()
	method.started.Inc()
	err := handler(srv, &countedStream{ServerStream: stream, method: method})
	method.ended(began, err)
	return err
}

// countedStream counts the messages of a streaming call.
type countedStream struct {
	grpc.ServerStream
	method *methodMetrics
}

func (s *countedStream) SendMsg(m any) error {
	err := s.ServerStream.SendMsg(m)
	if err == nil {
		s.method.sent.Inc()
	}
	return err
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.method.received.Inc()
	}
	return err
}
