package linear

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// wire is a connection that loses requests and replies now and then, of calls by themselves and of streams, which break by it. It counts how often each
// call was sent, which is known by its x-request-id.
type wire struct {
	to atomic.Pointer[grpc.ClientConn]
	// streamed is how many calls went over streams.
	streamed atomic.Int64

	mu   sync.Mutex
	rng  *rand.Rand     // guarded by mu
	sent map[string]int // guarded by mu
}

func wireTo(conn *grpc.ClientConn, seed uint64) *wire {
	w := &wire{rng: rand.New(rand.NewPCG(seed, 0)), sent: map[string]int{}}
	w.to.Store(conn)
	return w
}

const requestID = "x-request-id"

// named gives a call a name by which it is counted.
func named(ctx context.Context) (context.Context, string) {
	id := uuid.NewString()
	return metadata.AppendToOutgoingContext(ctx, requestID, id), id
}

func (w *wire) sends(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent[id]++
}

// times is how often a call was sent.
func (w *wire) times(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent[id]
}

// loses draws whether something is lost, once in so many times.
func (w *wire) loses(kind string, times int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rng.IntN(times) > 0 {
		return false
	}
	count(kind, 1)
	return true
}

var errLost = status.Error(codes.Unavailable, "the connection broke")

// Invoke makes a call by itself.
func (w *wire) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	if w.loses("request lost on the wire", 40) {
		return errLost
	}
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md.Get(requestID)) == 1 {
		w.sends(md.Get(requestID)[0])
	}
	err := w.to.Load().Invoke(ctx, method, request, reply, options...)
	if err == nil && w.loses("reply lost on the wire", 20) {
		return errLost
	}
	return err
}

// NewStream opens a stream.
func (w *wire) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cut := context.WithCancel(ctx)
	stream, err := w.to.Load().NewStream(ctx, desc, method, options...)
	if err != nil {
		cut()
		return nil, err
	}
	return &wiredStream{ClientStream: stream, wire: w, cut: cut}, nil
}

type wiredStream struct {
	grpc.ClientStream
	wire *wire
	cut  context.CancelFunc
}

// SendMsg sends calls.
func (s *wiredStream) SendMsg(m any) error {
	if s.wire.loses("request lost on a stream", 60) {
		s.cut()
		return errLost
	}
	for _, c := range m.(*idemv1.SessionRequest).GetCalls() {
		s.wire.streamed.Add(1)
		totals.streamed.Add(1)
		s.wire.sends(c.GetRequestId())
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg receives results.
func (s *wiredStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && s.wire.loses("replies lost on a stream", 40) {
		err = errLost
	}
	if err != nil {
		s.cut()
	}
	return err
}
