package idemtest

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

func newLink(conn grpc.ClientConnInterface) *link {
	return &link{ClientConnInterface: conn, planned: map[string][]fault{}, calls: map[string]int{}}
}

// Invoke calls, unless the link is broken here.
func (l *link) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	broken := status.Error(codes.Unavailable, "the connection broke (idemtest)")
	switch l.next(method) {
	case beforeCall:
		return broken
	case afterCall:
		if err := l.ClientConnInterface.Invoke(ctx, method, request, reply, options...); err != nil {
			return err
		}
		return broken
	default:
		return l.ClientConnInterface.Invoke(ctx, method, request, reply, options...)
	}
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
