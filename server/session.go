package server

import (
	"context"
	"errors"
	"io"
	"path"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Bounds of one session. What a call holds is given back when its result was handed to the stream, so a caller who does not read its
// results can not pile them up here. ledger.proto tells callers the same numbers; a test compares the two.
const (
	// MaxSessionCalls is how many calls may be under way, those of MaxSessionWaiters not counted. Past it nothing is read: they all end by
	// themselves, as fast as the store answers.
	MaxSessionCalls = 1024
	// MaxSessionWaiters is how many Begins that ask to wait may be. They end when others say so, and the reports of those others may
	// come on the same stream, so reading must not wait for them: one more is answered without waiting.
	MaxSessionWaiters = 8192
	// gatherBytes is how much of the results that are there goes into one message. One longer result is a message of its own.
	gatherBytes = 256 << 10
	// keptWorkers is how many goroutines of a session are kept for its next calls.
	keptWorkers = 64
)

// sessions is what all sessions of a server share: the unary calls that a stream can carry, each with all the layers that it would pass
// by itself, so that nothing can hold for the one and not for the other.
type sessions struct {
	validator                             *validator
	draining                              <-chan struct{}
	begin, complete, fail, extend, lookup unaryCall
}

// unaryCall is a unary RPC, layers included.
type unaryCall struct {
	method string
	handle grpc.UnaryHandler
}

func (s *Server) newSessions(service *ledgerService) *sessions {
	return &sessions{
		validator: s.validator, draining: s.draining,
		begin:    s.unaryCall(idemv1.LedgerService_Begin_FullMethodName, handlerOf(service.Begin)),
		complete: s.unaryCall(idemv1.LedgerService_Complete_FullMethodName, handlerOf(service.Complete)),
		fail:     s.unaryCall(idemv1.LedgerService_Fail_FullMethodName, handlerOf(service.Fail)),
		extend:   s.unaryCall(idemv1.LedgerService_Extend_FullMethodName, handlerOf(service.Extend)),
		lookup:   s.unaryCall(idemv1.LedgerService_Lookup_FullMethodName, handlerOf(service.Lookup)),
	}
}

// unaryCall stands a handler inside the interceptors, as gRPC does with those of a unary RPC.
func (s *Server) unaryCall(method string, handle grpc.UnaryHandler) unaryCall {
	return unaryCall{method: method, handle: s.inLayers(method, handle)}
}

func handlerOf[Q, R any](call func(context.Context, *Q) (*R, error)) grpc.UnaryHandler {
	return func(ctx context.Context, req any) (any, error) {
		q, ok := req.(*Q)
		if !ok {
			return nil, internal(errors.New("a request of another kind"))
		}
		return call(ctx, q)
	}
}

// requested is what a call asks for; its method is empty where it is of no kind that this daemon knows.
func (s *sessions) requested(c *idemv1.SessionCall) (unaryCall, any) {
	switch r := c.GetRequest().(type) {
	case *idemv1.SessionCall_Begin:
		return s.begin, r.Begin
	case *idemv1.SessionCall_Complete:
		return s.complete, r.Complete
	case *idemv1.SessionCall_Fail:
		return s.fail, r.Fail
	case *idemv1.SessionCall_Extend:
		return s.extend, r.Extend
	case *idemv1.SessionCall_Lookup:
		return s.lookup, r.Lookup
	default:
		return unaryCall{}, nil
	}
}

// Session implements idem.v1.LedgerService.
func (s *ledgerService) Session(stream grpc.BidiStreamingServer[idemv1.SessionRequest, idemv1.SessionResponse]) error {
	// At once, so that a caller knows that there are sessions here before it puts calls on one; and no call can set a header of the stream after it.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	one := &session{
		sessions: s.sessions, stream: stream, ctx: ctx, requestID: callOf(ctx).id(),
		calls: map[uint64]context.CancelFunc{}, jobs: make(chan sessionJob), room: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	err := one.stop(one.serve())
	// Every handler has to have returned before this one does: who closes the store next must not pull it from anybody's hands.
	cancel()
	one.running.Wait()
	return err
}

// session is one stream. A goroutine reads calls, one for each call under way carries it out, and the RPC's own sends results.
type session struct {
	*sessions
	stream    grpc.BidiStreamingServer[idemv1.SessionRequest, idemv1.SessionResponse]
	ctx       context.Context // of the calls
	requestID string
	running   sync.WaitGroup

	mu      sync.Mutex
	calls   map[uint64]context.CancelFunc // guarded by mu; those under way, by id
	ended   []sessionResult               // guarded by mu; results that wait to be sent
	held    places                        // guarded by mu
	stopped bool                          // guarded by mu; no further call is taken on

	jobs  chan sessionJob // to a goroutine that has nothing to do
	spare atomic.Int64    // those that have nothing to do

	room chan struct{} // has something once places were given back
	wake chan struct{} // has something once there is something for serve to do
}

// places are what calls hold until their results are sent.
type places struct{ calls, waiters int }

type sessionResult struct {
	*idemv1.SessionResult
	size  int
	waits bool
}

// serve sends results until there are none to come: the caller has half-closed the stream, broke a rule or went away, or the daemon drains.
func (s *session) serve() error {
	read := make(chan error, 1)
	// It ends when the RPC has: then nothing can be read any more.
	go func() { read <- s.read() }()
	draining, over := s.draining, false
	var why error
	for {
		if sent, err := s.sendSome(); err != nil {
			return err
		} else if sent {
			continue
		}
		if over && s.idle() {
			return why
		}
		select {
		case <-s.wake:
			// Calls that shared a write end together. Letting their goroutines run first gathers their results in one message; each would be one otherwise.
			runtime.Gosched()
		case err := <-read:
			why, over = s.stop(err), true
		case <-draining:
			why, over, draining = s.stop(errSessionDrains), true, nil
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
}

var errSessionDrains = &ledger.Refusal{
	Reason: ledger.ReasonDraining, Message: "this daemon is shutting down: resend the calls that have no result to another one",
}

// stop takes on no further call. What is under way ends first.
func (s *session) stop(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	return why
}

func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) == 0 && len(s.ended) == 0
}

// read takes calls on until the caller has no more. Its error is what the stream ends with.
func (s *session) read() error {
	for {
		message, err := s.stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := unreadable(message); err != nil {
			return err
		}
		if err := s.validator.validate(message); err != nil {
			return err
		}
		for _, call := range message.GetCalls() {
			if err := s.take(call); err != nil {
				return err
			}
		}
		for _, id := range message.GetCancelIds() {
			s.giveUp(id)
		}
	}
}

// take starts a call, once there is room for it.
func (s *session) take(call *idemv1.SessionCall) error {
	waits := call.GetBegin().GetWait().AsDuration() > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if waits && s.held.waiters >= MaxSessionWaiters {
		call.GetBegin().Wait, waits = nil, false
	}
	for !waits && s.held.calls >= MaxSessionCalls && !s.stopped {
		s.mu.Unlock()
		select {
		case <-s.room:
		case <-s.ctx.Done():
		}
		s.mu.Lock()
		if s.ctx.Err() != nil {
			return s.ctx.Err()
		}
	}
	if s.stopped {
		return nil // its caller hears so when the stream ends
	}
	if _, used := s.calls[call.GetId()]; used {
		return badField(ledger.ReasonInvalidRequest, "calls.id", "must not be that of a call under way")
	}
	ctx, cancel := s.contextOf(call)
	s.calls[call.GetId()] = cancel
	s.held.add(waits, 1)
	next := sessionJob{ctx, call, waits}
	select {
	case s.jobs <- next:
	default:
		s.running.Add(1)
		go s.work(next)
	}
	return nil
}

// sessionJob is a call to be carried out.
type sessionJob struct {
	ctx   context.Context
	call  *idemv1.SessionCall
	waits bool
}

// work carries calls out, one after another while there are more. A stack that has once grown to what a call needs is worth keeping.
func (s *session) work(next sessionJob) {
	defer s.running.Done()
	for {
		s.carryOut(next.ctx, next.call, next.waits)
		if s.spare.Add(1) > keptWorkers {
			s.spare.Add(-1)
			return
		}
		var ok bool
		select {
		case next, ok = <-s.jobs:
		case <-s.ctx.Done():
		}
		s.spare.Add(-1)
		if !ok {
			return
		}
	}
}

func (p *places) add(waits bool, n int) {
	if waits {
		p.waiters += n
		return
	}
	p.calls += n
}

func (s *session) contextOf(call *idemv1.SessionCall) (context.Context, context.CancelFunc) {
	ctx := context.WithValue(s.ctx, callIDKey{}, callID{s.requestID, call})
	if call.GetTimeout() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, call.GetTimeout().AsDuration())
}

// carryOut runs one call and leaves its result to be sent.
func (s *session) carryOut(ctx context.Context, call *idemv1.SessionCall, waits bool) {
	result := resultOf(call.GetId(), s.outcome(ctx, call), waits)
	s.mu.Lock()
	s.calls[call.GetId()]()
	delete(s.calls, call.GetId())
	s.ended = append(s.ended, result)
	s.mu.Unlock()
	signal(s.wake)
}

// outcome is a call's response, or the error that its caller is told.
func (s *session) outcome(ctx context.Context, call *idemv1.SessionCall) any {
	to, request := s.requested(call)
	if to.method == "" {
		return onWire(badField(ledger.ReasonInvalidRequest, "calls.request", "must be of a kind that this daemon knows"))
	}
	span := trace.SpanFromContext(ctx)
	if span.IsRecording() {
		// The stream's span is no call's: each has its own below it.
		ctx, span = span.TracerProvider().Tracer("github.com/idemd/idemd/server").Start(ctx, spanName(to.method), trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
	}
	response, err := to.handle(ctx, request)
	if err != nil {
		span.SetStatus(codes.Error, status.Code(err).String())
		return err
	}
	return response
}

// spanName is the name that the unary call's span has.
func spanName(method string) string {
	return path.Join(idemv1.LedgerService_ServiceDesc.ServiceName, path.Base(method))
}

// resultOf puts an outcome under its call's id.
func resultOf(id uint64, outcome any, waits bool) sessionResult {
	out := &idemv1.SessionResult{Id: id}
	switch o := outcome.(type) {
	case *idemv1.BeginResponse:
		out.Result = &idemv1.SessionResult_Begin{Begin: o}
	case *idemv1.CompleteResponse:
		out.Result = &idemv1.SessionResult_Complete{Complete: o}
	case *idemv1.FailResponse:
		out.Result = &idemv1.SessionResult_Fail{Fail: o}
	case *idemv1.ExtendResponse:
		out.Result = &idemv1.SessionResult_Extend{Extend: o}
	case *idemv1.LookupResponse:
		out.Result = &idemv1.SessionResult_Lookup{Lookup: o}
	case error:
		out.Result = &idemv1.SessionResult_Error{Error: status.Convert(o).Proto()}
	}
	// A response that is too long for a message of its own costs its call the answer, as it does by itself, and not all others the stream.
	size := proto.Size(out)
	if size > MaxSendBytes-maxEnvelopeBytes {
		tooLong := status.New(grpccodes.ResourceExhausted, "the answer is larger than the largest message").Proto()
		out.Result = &idemv1.SessionResult_Error{Error: tooLong}
	}
	return sessionResult{SessionResult: out, size: size, waits: waits}
}

// maxEnvelopeBytes is more than what a message has around one result.
const maxEnvelopeBytes = 64

// sendSome sends one message of the results that are there, gathered while the one before was being sent, and reports whether there were any.
func (s *session) sendSome() (bool, error) {
	message, held := s.gather()
	if len(message.GetResults()) == 0 {
		return false, nil
	}
	if err := s.stream.Send(message); err != nil {
		return false, err
	}
	s.mu.Lock()
	s.held.calls -= held.calls
	s.held.waiters -= held.waiters
	s.mu.Unlock()
	signal(s.room)
	return true, nil
}

// gather takes as many of the results that are there as one message should have, and says which places they hold.
func (s *session) gather() (*idemv1.SessionResponse, places) {
	message, held := &idemv1.SessionResponse{}, places{}
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := 0
	for size := 0; taken < len(s.ended); taken++ {
		r := s.ended[taken]
		if size += r.size; size > gatherBytes && taken > 0 {
			break
		}
		message.Results = append(message.Results, r.SessionResult)
		held.add(r.waits, 1)
	}
	clear(s.ended[:taken]) // lets go of what is sent
	if s.ended = s.ended[taken:]; len(s.ended) == 0 {
		s.ended = nil
	}
	return message, held
}

// giveUp cancels a call. One that has ended is not there any more.
func (s *session) giveUp(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel, ok := s.calls[id]; ok {
		cancel()
	}
}

// signal leaves word. One word is enough, however often it is left.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// callID names a call of a session in the log.
type callID struct {
	stream string // the request id of the stream
	call   *idemv1.SessionCall
}

type callIDKey struct{}

func (c callID) String() string {
	if id := c.call.GetRequestId(); isRequestID(id) {
		return id
	}
	return c.stream + "/" + strconv.FormatUint(c.call.GetId(), 10)
}
