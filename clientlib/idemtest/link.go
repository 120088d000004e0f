package idemtest

import (
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// link is a connection that breaks when it is told to.
type link struct {
	grpc.ClientConnInterface

	mu      sync.Mutex
	away    bool
	planned map[string][]fault
	calls   map[string]int
}

type fault int

const (
	none fault = iota
	beforeCall
	afterCall
)

var errBroken = status.Error(codes.Unavailable, "the connection broke (idemtest)")

func newLink(conn grpc.ClientConnInterface) *link {
	return &link{ClientConnInterface: conn, planned: map[string][]fault{}, calls: map[string]int{}}
}

// Invoke calls, unless the link is broken here.
func (l *link) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	switch l.next(method) {
	case beforeCall:
		return errBroken
	case afterCall:
		if err := l.ClientConnInterface.Invoke(ctx, method, request, reply, options...); err != nil {
			return err
		}
		return errBroken
	default:
		return l.ClientConnInterface.Invoke(ctx, method, request, reply, options...)
	}
}

// NewStream opens a stream, unless the link is broken. A fault that is planned for a call breaks the session that the call is made on, as it
// would break a connection: before the call gets through, or instead of its result.
func (l *link) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if l.isAway() {
		return nil, errBroken
	}
	ctx, cut := context.WithCancel(ctx)
	stream, err := l.ClientConnInterface.NewStream(ctx, desc, method, options...)
	if err != nil {
		cut()
		return nil, err
	}
	return &linkedStream{ClientStream: stream, link: l, cut: cut, losing: map[uint64]bool{}}, nil
}

// linkedStream is a stream that breaks with its link.
type linkedStream struct {
	grpc.ClientStream
	link *link
	cut  context.CancelFunc

	mu     sync.Mutex
	losing map[uint64]bool // guarded by mu; the calls whose results are to be lost
	broken bool            // guarded by mu
}

// SendMsg implements [grpc.ClientStream].
func (s *linkedStream) SendMsg(m any) error {
	message, _ := m.(*idemv1.SessionRequest)
	for _, call := range message.GetCalls() {
		switch s.link.next(fullMethod(rpcOf(call))) {
		case none:
		case beforeCall:
			s.breakOff()
			return io.EOF // as gRPC says it; RecvMsg has the status
		case afterCall:
			s.mu.Lock()
			s.losing[call.GetId()] = true
			s.mu.Unlock()
		}
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements [grpc.ClientStream].
func (s *linkedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	message, _ := m.(*idemv1.SessionResponse)
	s.mu.Lock()
	lost := false
	for _, result := range message.GetResults() {
		lost = lost || s.losing[result.GetId()]
	}
	s.mu.Unlock()
	if lost || s.link.isAway() {
		s.breakOff()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken:
		return errBroken
	case err != nil:
		s.cut()
	}
	return err
}

func (s *linkedStream) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = true
	s.cut()
}

// rpcOf names the RPC that a call of a session stands for.
func rpcOf(call *idemv1.SessionCall) string {
	switch call.GetRequest().(type) {
	case *idemv1.SessionCall_Begin:
		return "Begin"
	case *idemv1.SessionCall_Complete:
		return "Complete"
	case *idemv1.SessionCall_Fail:
		return "Fail"
	case *idemv1.SessionCall_Extend:
		return "Extend"
	default:
		return "Lookup"
	}
}

func (l *link) isAway() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

func (l *link) next(method string) fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[method]++
	if l.away {
		return beforeCall
	}
	planned := l.planned[method]
	if len(planned) == 0 {
		return none
	}
	l.planned[method] = planned[1:]
	return planned[0]
}

func (l *link) plan(method string, calls int, f fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range calls {
		l.planned[method] = append(l.planned[method], f)
	}
}

func (l *link) setAway(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = away
}

func (l *link) count(method string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[method]
}
