package server

import (
	"context"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc/filters"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/idemd/idemd/ledger"
)

// layer is one interceptor, in both its forms.
type layer struct {
	name   string
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
}

// layers are the interceptors, outermost first. The order is part of the contract:
//   - calls and log see every call, also the refused and the panicked ones, with the status that goes to the caller;
//   - refusals stands outside everything that refuses, so one place makes statuses;
//   - recovery stands inside it and outside whatever is not ours, [Config.Identify] included;
//   - nobody learns from validation, admission or limits anything before they have said who they are.
func (s *Server) layers() []layer {
	return []layer{
		{"calls", s.metrics.calls.UnaryServerInterceptor(), s.metrics.calls.StreamServerInterceptor()},
		{"log", s.logUnary, s.logStream},
		{"outcomes", s.metrics.countUnary, s.metrics.countStream},
		{"refusals", refusalsUnary, refusalsStream},
		{"recovery", s.recoverUnary, s.recoverStream},
		{"identity", s.identifyUnary, s.identifyStream},
		{"admission", s.admitUnary, s.admitStream},
		{"limits", s.limitUnary, s.limitStream},
	}
}

// inLayers stands a handler inside all layers, for calls of one method.
func (s *Server) inLayers(method string, handle grpc.UnaryHandler) grpc.UnaryHandler {
	info, layers := &grpc.UnaryServerInfo{FullMethod: method}, s.layers()
	for i := len(layers) - 1; i >= 0; i-- {
		layer, inner := layers[i].unary, handle
		handle = func(ctx context.Context, req any) (any, error) { return layer(ctx, req, info, inner) }
	}
	return handle
}

// handleCall is what stands inside all layers of a unary call: what gRPC gave for it.
func handleCall(ctx context.Context, req any) (any, error) { return callOf(ctx).handle(ctx, req) }

// unaryChains are the layers around each method that this server has.
func (s *Server) unaryChains() map[string]grpc.UnaryHandler {
	chains := make(map[string]grpc.UnaryHandler, len(permissions))
	for method := range permissions {
		chains[method] = s.inLayers(method, handleCall)
	}
	return chains
}

// interceptUnary is all layers as one interceptor. gRPC's own chain makes a function for each layer of each call; these are made once.
func (s *Server) interceptUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	chain, ok := s.chains[info.FullMethod]
	if !ok {
		chain = s.inLayers(info.FullMethod, handleCall) // of a service that was registered by others
	}
	return chain(&call{Context: ctx, handle: handler}, req)
}

// Keepalive and connections.
const (
	// pingAtMost is how often a client may ping; grpc-go's own five minutes would cut off every client that looks twice a minute.
	pingAtMost = 10 * time.Second
	// pingAfter and pingTimeout find clients that vanished, so that their waiting Begins do not hold places.
	pingAfter   = time.Minute
	pingTimeout = 20 * time.Second
	// connectionAge has clients come back through the load balancer from time to time; connectionGrace lets the longest wait end first.
	connectionAge   = 30 * time.Minute
	connectionGrace = ledger.MaxWait + 30*time.Second
	// streamWorkers is how many goroutines carry out calls one after the other: more than a busy daemon has at work at once, since most calls wait for the
	// store. Idle, they cost a few megabytes.
	streamWorkers = 128
	// streamWindow and connectionWindow are how many bytes a client may have sent that no handler has read yet. gRPC would adapt them to the network, beginning with 64 KiB, by a ping
	// with every message that comes while none is under way: a caller who is alone would answer one for each call. A mebibyte lets the largest body in at 20 MB/s over 50 ms.
	streamWindow, connectionWindow = 1 << 20, 4 << 20
	// handshakeTimeout bounds a connection that does not get as far as HTTP/2.
	handshakeTimeout = 20 * time.Second
)

func (s *Server) serverOptions() []grpc.ServerOption {
	var stream []grpc.StreamServerInterceptor
	for _, l := range s.layers() {
		stream = append(stream, l.stream)
	}
	streams := s.cfg.MaxConcurrentStreams
	if streams == 0 {
		streams = DefaultMaxConcurrentStreams
	}
	options := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.interceptUnary),
		grpc.ChainStreamInterceptor(stream...),
		grpc.ForceServerCodecV2(newRequestCodec()),
		// Calls run deep (interceptors, validation, gRPC itself), and a fresh goroutine grows its stack several times on the way. When all workers are
		// busy, or wait, a call gets a goroutine of its own.
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxRecvMsgSize(MaxReceiveBytes),
		grpc.MaxSendMsgSize(MaxSendBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(streams),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingAtMost, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: connectionAge, MaxConnectionAgeGrace: connectionGrace, Time: pingAfter, Timeout: pingTimeout,
		}),
		grpc.WaitForHandlers(true),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
	}
	if s.cfg.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.cfg.TLS)))
	}
	if s.cfg.TracerProvider != nil {
		// Given outright, so that nothing is taken from OpenTelemetry's globals. The calls' metrics are Prometheus's.
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(s.cfg.TracerProvider), otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
			otelgrpc.WithPropagators(propagation.TraceContext{}), otelgrpc.WithFilter(filters.Not(filters.HealthCheck())))))
	}
	return append(options, s.cfg.ServerOptions...)
}

// streamWith is a stream with another context.
type streamWith struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWith) Context() context.Context { return s.ctx }
