package server

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"google.golang.org/grpc"
)

// A panic is a bug in one call. It costs that call its answer, and nobody else anything: the caller is told INTERNAL without the text, the
// log gets the stack, and a counter has it noticed.

func (s *Server) recoverUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if value := recover(); value != nil {
			resp, err = nil, s.panicked(ctx, info.FullMethod, value)
		}
	}()
	return handler(ctx, req)
}

func (s *Server) recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = s.panicked(stream.Context(), info.FullMethod, value)
		}
	}()
	return handler(srv, stream)
}

// panicked logs what panicked and where. Frames hold addresses and no contents; of the value only the runtime's own errors are shown, since
// any other text may quote what it was given.
func (s *Server) panicked(ctx context.Context, method string, value any) error {
	s.metrics.panics.Inc()
	cause := fmt.Errorf("panic of type %T", value)
	if err, ok := value.(runtime.Error); ok {
		cause = fmt.Errorf("panic: %w", err)
	}
	s.log.ErrorContext(ctx, "panic", "rpc", method, "request_id", callOf(ctx).id(), "error", cause, "stack", string(debug.Stack()))
	return internal(cause)
}
