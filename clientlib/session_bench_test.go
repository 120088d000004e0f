package clientlib_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server/servertest"
)

// BenchmarkPairs64 is a fresh Begin and its Complete, with an answer of 200 bytes, by 64 callers on one connection over the loopback interface: over
// a session, by themselves, and beside both what two empty calls of gRPC cost with messages of about those sizes, on one stream and by themselves. The
// store is in memory and both ends are in this process, so it is the cost of the way, not of the disk.
func BenchmarkPairs64(b *testing.B) {
	for _, c := range []struct {
		name     string
		sessions int
	}{{"session", 1}, {"unary", 0}} {
		b.Run(c.name, func(b *testing.B) {
			daemon := servertest.New(b, servertest.Options{TCP: true})
			client, err := clientlib.New(clientlib.Config{
				Conn: dialTo(b, daemon.Addr()), Sessions: c.sessions, Logger: slog.New(slog.DiscardHandler), TryTimeout: time.Minute, LedgerTimeout: time.Minute,
			})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			if c.sessions > 0 {
				client.OpenSessions(b.Context())
			}
			body := make([]byte, 200)
			with64(b, func() error {
				request := begin(uuid.NewString(), 0)
				begun, err := client.Begin(b.Context(), request)
				if err != nil {
					return err
				}
				_, err = client.Complete(b.Context(), &idemv1.CompleteRequest{
					Ref: request.GetRef(), ClaimToken: begun.GetGranted().GetClaimToken(), Response: &idemv1.Response{Body: body},
				})
				return err
			})
		})
	}
	b.Run("echo-stream", func(b *testing.B) {
		stream, err := dialTo(b, serveEcho(b)).NewStream(b.Context(), &echoService.Streams[0], "/test.Echo/Stream")
		if err != nil {
			b.Fatal(err)
		}
		shared := &sharedEcho{stream: stream, waiting: make(chan chan error, 64)}
		go shared.read()
		with64(b, func() error { return errors.Join(shared.call(130), shared.call(330)) })
		_ = stream.CloseSend()
		close(shared.waiting)
	})
	b.Run("echo-unary", func(b *testing.B) {
		conn := dialTo(b, serveEcho(b))
		call := func(n int) error {
			return conn.Invoke(b.Context(), "/test.Echo/Call", wrapperspb.Bytes(make([]byte, n)), &wrapperspb.BytesValue{})
		}
		with64(b, func() error { return errors.Join(call(130), call(330)) })
	})
}

// with64 has 64 callers do it b.N times in all.
func with64(b *testing.B, do func() error) {
	b.Helper()
	b.ReportAllocs()
	b.SetParallelism(max(64/runtime.GOMAXPROCS(0), 1))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := do(); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
}

func dialTo(b *testing.B, address string) *grpc.ClientConn {
	b.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echoService answers each message with itself.
var echoService = grpc.ServiceDesc{
	ServiceName: "test.Echo", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		message := &wrapperspb.BytesValue{}
		return message, decode(message)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		for {
			message := &wrapperspb.BytesValue{}
			if err := stream.RecvMsg(message); err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			}
			if err := stream.SendMsg(message); err != nil {
				return err
			}
		}
	}}},
}

func serveEcho(b *testing.B) string {
	b.Helper()
	listener, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := grpc.NewServer()
	srv.RegisterService(&echoService, nil)
	go func() { _ = srv.Serve(listener) }()
	b.Cleanup(srv.Stop)
	return listener.Addr().String()
}

// sharedEcho is a stream that many callers use; answers come in the order of requests.
type sharedEcho struct {
	stream  grpc.ClientStream
	mu      sync.Mutex
	waiting chan chan error
}

func (s *sharedEcho) call(n int) error {
	answered := make(chan error, 1)
	s.mu.Lock()
	s.waiting <- answered
	err := s.stream.SendMsg(wrapperspb.Bytes(make([]byte, n)))
	s.mu.Unlock()
	return errors.Join(err, <-answered)
}

func (s *sharedEcho) read() {
	for answered := range s.waiting {
		answered <- s.stream.RecvMsg(&wrapperspb.BytesValue{})
	}
}
