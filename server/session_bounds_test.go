package server

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// heldSession is a session whose caller and whose handlers do as a test says. It lives in a bubble, so that a test can tell what has come to rest.
type heldSession struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *idemv1.SessionRequest // what the caller sends; closing it half-closes the stream

	reads   atomic.Int64
	running atomic.Int64
	waiting atomic.Int64  // Begins that reached their handler with their wait
	release chan struct{} // lets one handler return
	reader  chan struct{} // lets the caller read one message; nil: it reads at once

	mu       sync.Mutex
	messages []*idemv1.SessionResponse // guarded by mu
	over     chan error
}

// holdSession starts a session; end half-closes it and returns what the RPC ended with.
func holdSession(t *testing.T, answer any) *heldSession {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := &heldSession{ctx: ctx, sent: make(chan *idemv1.SessionRequest), release: make(chan struct{}), over: make(chan error, 1)}
	handle := unaryCall{method: idemv1.LedgerService_Begin_FullMethodName, handle: func(ctx context.Context, req any) (any, error) {
		if begin, ok := req.(*idemv1.BeginRequest); ok && begin.GetWait() != nil {
			h.waiting.Add(1)
		}
		h.running.Add(1)
		defer h.running.Add(-1)
		select {
		case <-h.release:
			return answer, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	v, err := newValidator()
	if err != nil {
		t.Fatal(err)
	}
	service := &ledgerService{sessions: &sessions{validator: v, draining: make(chan struct{}), begin: handle, lookup: handle}}
	t.Cleanup(cancel)
	go func() { h.over <- service.Session(h) }()
	return h
}

func (h *heldSession) Context() context.Context     { return h.ctx }
func (h *heldSession) SendHeader(metadata.MD) error { return nil }

func (h *heldSession) Recv() (*idemv1.SessionRequest, error) {
	select {
	case message, ok := <-h.sent:
		if !ok {
			return nil, io.EOF
		}
		h.reads.Add(1)
		return message, nil
	case <-h.ctx.Done():
		return nil, h.ctx.Err()
	}
}

func (h *heldSession) Send(m *idemv1.SessionResponse) error {
	if h.reader != nil {
		select {
		case <-h.reader:
		case <-h.ctx.Done():
			return h.ctx.Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.messages = append(h.messages, m)
	return nil
}

func (h *heldSession) results() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.messages {
		n += len(m.GetResults())
	}
	return n
}

// ask sends calls with fresh ids from first on.
func (h *heldSession) ask(first, n int, request func() *idemv1.SessionCall) {
	for from := first; from < first+n; from += 1000 {
		message := &idemv1.SessionRequest{}
		for id := from; id < min(from+1000, first+n); id++ {
			call := request()
			call.Id = uint64(id)
			message.Calls = append(message.Calls, call)
		}
		h.sent <- message
	}
}

func lookup() *idemv1.SessionCall {
	return &idemv1.SessionCall{Request: &idemv1.SessionCall_Lookup{Lookup: &idemv1.LookupRequest{}}}
}

func waitingBegin() *idemv1.SessionCall {
	return &idemv1.SessionCall{Request: &idemv1.SessionCall_Begin{Begin: &idemv1.BeginRequest{Wait: durationpb.New(time.Minute)}}}
}

// Calls under way are bounded: what is over is not read, and is carried out when there is room.
func TestSessionBoundsItsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := holdSession(t, &idemv1.LookupResponse{})
		go func() {
			h.ask(1, MaxSessionCalls+10, lookup)
			h.ask(MaxSessionCalls+11, 1, lookup)
			close(h.sent)
		}()
		synctest.Wait()
		if running, reads := h.running.Load(), h.reads.Load(); running != MaxSessionCalls || reads != 2 {
			t.Errorf("%d calls run, and %d messages were read", running, reads)
		}
		h.release <- struct{}{}
		synctest.Wait()
		if running, results := h.running.Load(), h.results(); running != MaxSessionCalls || results != 1 {
			t.Errorf("%d calls run after %d have their result", running, results)
		}
		close(h.release)
		if err := <-h.over; err != nil || h.results() != MaxSessionCalls+11 {
			t.Errorf("%d results, then %v", h.results(), err)
		}
	})
}

// Begins that wait take no other call's room, and those past their own bound do not wait.
func TestSessionBoundsItsWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := holdSession(t, &idemv1.BeginResponse{})
		h.ask(1, MaxSessionWaiters, waitingBegin)
		h.ask(100_001, MaxSessionCalls-1, lookup)
		h.ask(200_001, 1, waitingBegin)
		synctest.Wait()
		if waiting, running := h.waiting.Load(), h.running.Load(); waiting != MaxSessionWaiters || running != MaxSessionWaiters+MaxSessionCalls {
			t.Errorf("%d wait, of %d that run", waiting, running)
		}
		close(h.release)
		synctest.Wait()
		h.ask(300_001, 1, waitingBegin)
		synctest.Wait()
		if waiting := h.waiting.Load(); waiting != MaxSessionWaiters+1 {
			t.Errorf("%d have waited: there was no room again", waiting)
		}
		close(h.sent)
		if err := <-h.over; err != nil {
			t.Error(err)
		}
	})
}

// A caller who does not read its results can not pile them up here.
func TestSessionOfASlowReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := holdSession(t, &idemv1.LookupResponse{})
		h.reader = make(chan struct{})
		close(h.release) // every call ends at once
		go func() {
			h.ask(1, 5*MaxSessionCalls, lookup)
			close(h.sent)
		}()
		synctest.Wait()
		if reads := h.reads.Load(); reads != 2 {
			t.Errorf("%d messages were read of a caller who reads nothing", reads)
		}
		close(h.reader)
		if err := <-h.over; err != nil || h.results() != 5*MaxSessionCalls {
			t.Errorf("%d results, then %v", h.results(), err)
		}
	})
}

// What came while a message was being sent goes together into the next, up to a size.
func TestSessionGathersResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		body := make([]byte, gatherBytes/10)
		answer := &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Completed{Completed: &idemv1.Answer{Response: &idemv1.Response{Body: body}}}}
		h := holdSession(t, answer)
		h.reader = make(chan struct{})
		h.ask(1, 1, waitingBegin)
		h.release <- struct{}{}
		synctest.Wait() // the first is being sent
		h.ask(2, 20, waitingBegin)
		close(h.release)
		close(h.sent)
		synctest.Wait()
		close(h.reader)
		if err := <-h.over; err != nil {
			t.Error(err)
		}
		var sizes []int
		for _, m := range h.messages {
			sizes = append(sizes, len(m.GetResults()))
		}
		if len(sizes) != 4 || sizes[0] != 1 || sizes[1] != 9 || sizes[2] != 9 || sizes[3] != 2 {
			t.Errorf("messages of %v results", sizes)
		}
	})
}

// An answer over the largest message is refused alone, as it is by itself.
func TestSessionRefusesWhatNoMessageHolds(t *testing.T) {
	t.Parallel()
	body := make([]byte, MaxSendBytes)
	got := resultOf(1, &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Completed{Completed: &idemv1.Answer{Response: &idemv1.Response{Body: body}}}}, false)
	if codes.Code(got.GetError().GetCode()) != codes.ResourceExhausted || got.GetId() != 1 {
		t.Errorf("got %.100v", got)
	}
}

// What a session's callers are told of its bounds is so.
func TestSessionBoundsAreAsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../proto/idem/v1/ledger.proto")
	if err != nil {
		t.Fatal(err)
	}
	told := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " ")
	for _, want := range []string{
		"are bounded: " + strconv.Itoa(MaxSessionCalls) + ", and beside those " + strconv.Itoa(MaxSessionWaiters) + " Begins",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("ledger.proto does not say %q", want)
		}
	}
}
