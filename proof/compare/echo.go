package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The echo is what gRPC itself costs: a server without interceptors whose one method returns as many bytes as the request asks for in its first
// four. Its messages are a bare field of bytes, which is less work than the ledger's messages: the limit is strict.

const (
	echoUnary  = "/compare.Echo/Call"
	echoStream = "/compare.Echo/Stream"
)

var echoService = grpc.ServiceDesc{
	ServiceName: "compare.Echo", HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request := &wrapperspb.BytesValue{}
		if err := decode(request); err != nil {
			return nil, err
		}
		return echo(request), nil
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
		for {
			request := &wrapperspb.BytesValue{}
			if err := stream.RecvMsg(request); err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				return err
			}
			if err := stream.SendMsg(echo(request)); err != nil {
				return err
			}
		}
	}}},
}

func echo(request *wrapperspb.BytesValue) *wrapperspb.BytesValue {
	return wrapperspb.Bytes(make([]byte, binary.BigEndian.Uint32(request.GetValue())))
}

// overhead is what a field of bytes costs beside the bytes: a tag and, from 128 bytes on, a length of two.
const overhead = 3

// echoRequest is a message of a length, that asks for one of a length.
func echoRequest(size, answer int) *wrapperspb.BytesValue {
	value := make([]byte, max(size-overhead, 4))
	binary.BigEndian.PutUint32(value, uint32(max(answer-overhead, 0)))
	return wrapperspb.Bytes(value)
}

// serveEcho is the echo's own process: it says where it listens, and serves until it is told to end.
func serveEcho(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&echoService, nil)
	context.AfterFunc(ctx, server.Stop)
	fmt.Println(listener.Addr())
	return server.Serve(listener)
}

func (l *lab) startEcho(ctx context.Context) (*child, []*grpc.ClientConn, error) {
	c, err := l.start(l.self, "-do", doEcho)
	if err != nil {
		return nil, nil, err
	}
	if err := c.waitFor(ctx, "the echo", func() bool { return strings.HasSuffix(c.output.String(), "\n") }); err != nil {
		return nil, nil, err
	}
	conns, err := l.dial(strings.TrimSpace(c.output.String()), l.connections)
	return c, conns, err
}

// echoes returns a step that makes calls of these lengths, request and answer.
func echoes(conns []*grpc.ClientConn, lengths ...[2]int) func(context.Context, int) error {
	return func(ctx context.Context, worker int) error {
		for _, length := range lengths {
			var answer wrapperspb.BytesValue
			if err := conns[worker%len(conns)].Invoke(ctx, echoUnary, echoRequest(length[0], length[1]), &answer); err != nil {
				return err
			}
		}
		return nil
	}
}

// streamedEchoes does the same on one stream for each connection, which the workers share.
func streamedEchoes(ctx context.Context, conns []*grpc.ClientConn, lengths ...[2]int) (func(context.Context, int) error, error) {
	var streams []*sharedStream
	for _, conn := range conns {
		s, err := newSharedStream(ctx, conn)
		if err != nil {
			return nil, err
		}
		streams = append(streams, s)
	}
	return func(_ context.Context, worker int) error {
		for _, length := range lengths {
			if err := streams[worker%len(streams)].call(echoRequest(length[0], length[1])); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// sharedStream is a stream on which several callers have requests under way. Answers come in the order of requests.
type sharedStream struct {
	stream grpc.ClientStream
	mu     sync.Mutex // held while sending, so that the queue has the order of the wire
	queue  chan chan error
}

func newSharedStream(ctx context.Context, conn *grpc.ClientConn) (*sharedStream, error) {
	stream, err := conn.NewStream(ctx, &echoService.Streams[0], echoStream)
	if err != nil {
		return nil, err
	}
	s := &sharedStream{stream: stream, queue: make(chan chan error, 4096)}
	go func() {
		for answered := range s.queue {
			var answer wrapperspb.BytesValue
			answered <- stream.RecvMsg(&answer)
		}
	}()
	return s, nil
}

func (s *sharedStream) call(request *wrapperspb.BytesValue) error {
	answered := make(chan error, 1)
	s.mu.Lock()
	s.queue <- answered
	err := s.stream.SendMsg(request)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return <-answered
}
