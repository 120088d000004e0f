package clientlib

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

const (
	// MaxSessions is the most that Config.Sessions may be.
	MaxSessions = 64
	// sessionAge is after how long a stream is left for a new one: the ledger asks for that, so that the longest wait on it ends before its
	// connection is closed. Credentials of a stream are never older, either.
	sessionAge = 20 * time.Second
	// sessionEnd is when a stream is cut off whose end has not come by then, counted from when it was opened: the longest wait that may have
	// begun on it, of 5 minutes, is over.
	sessionEnd = 6 * time.Minute
	// maxSessionCallBytes is the largest call that is put on a stream, where it holds up those behind it. Larger ones go by themselves.
	maxSessionCallBytes = 64 << 10
	// gatherBytes and gatherCalls are how much of what waits to be sent goes into one message.
	gatherBytes = 256 << 10
	gatherCalls = 1024
	// reopenFirst and reopenMax are how long no stream is opened after one that broke or could not be opened: twice as long each time until
	// one works. Calls go by themselves meanwhile, so nobody waits for it.
	reopenFirst = 250 * time.Millisecond
	reopenMax   = time.Minute
	// manyFailures in a row are as many as count.
	manyFailures = 8
	// requestIDHeader finds a call in the ledger's log.
	requestIDHeader = "x-request-id"
)

// sessionLedger makes calls on Session streams while there are some, and by themselves otherwise: where a stream is being opened, where the
// ledger or what stands before it has none, for a call that is large, and once more for each whose stream broke under it. The latter is
// right because every call may be resent blindly.
type sessionLedger struct {
	idemv1.LedgerServiceClient
	openTimeout time.Duration
	slots       []sessionSlot
	next        atomic.Uint64

	ctx     context.Context // of the streams
	end     context.CancelFunc
	running sync.WaitGroup
}

// sessionSlot is the place of one stream after another.
type sessionSlot struct {
	mu       sync.Mutex
	current  *session  // guarded by mu; nil: there is none to use
	opening  bool      // guarded by mu
	failures int       // guarded by mu; streams in a row that were of no use
	notUntil time.Time // guarded by mu; when the next may be opened
}

func newSessionLedger(alone idemv1.LedgerServiceClient, sessions int, openTimeout time.Duration) *sessionLedger {
	l := &sessionLedger{LedgerServiceClient: alone, openTimeout: openTimeout, slots: make([]sessionSlot, sessions)}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// close ends all streams. Calls go by themselves afterwards.
func (l *sessionLedger) close() {
	for i := range l.slots {
		l.slots[i].mu.Lock() // so that none is opened any more
	}
	l.end()
	for i := range l.slots {
		l.slots[i].mu.Unlock()
	}
	l.running.Wait()
}

// Begin implements [idemv1.LedgerServiceClient].
func (l *sessionLedger) Begin(ctx context.Context, request *idemv1.BeginRequest, options ...grpc.CallOption) (*idemv1.BeginResponse, error) {
	result, err := l.call(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Begin{Begin: request}})
	if err != nil || result.GetBegin() != nil {
		return result.GetBegin(), err
	}
	return l.LedgerServiceClient.Begin(ctx, request, options...)
}

// Complete implements [idemv1.LedgerServiceClient].
func (l *sessionLedger) Complete(ctx context.Context, request *idemv1.CompleteRequest, options ...grpc.CallOption) (*idemv1.CompleteResponse, error) {
	result, err := l.call(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Complete{Complete: request}})
	if err != nil || result.GetComplete() != nil {
		return result.GetComplete(), err
	}
	return l.LedgerServiceClient.Complete(ctx, request, options...)
}

// Fail implements [idemv1.LedgerServiceClient].
func (l *sessionLedger) Fail(ctx context.Context, request *idemv1.FailRequest, options ...grpc.CallOption) (*idemv1.FailResponse, error) {
	result, err := l.call(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Fail{Fail: request}})
	if err != nil || result.GetFail() != nil {
		return result.GetFail(), err
	}
	return l.LedgerServiceClient.Fail(ctx, request, options...)
}

// Extend implements [idemv1.LedgerServiceClient].
func (l *sessionLedger) Extend(ctx context.Context, request *idemv1.ExtendRequest, options ...grpc.CallOption) (*idemv1.ExtendResponse, error) {
	result, err := l.call(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Extend{Extend: request}})
	if err != nil || result.GetExtend() != nil {
		return result.GetExtend(), err
	}
	return l.LedgerServiceClient.Extend(ctx, request, options...)
}

// Lookup implements [idemv1.LedgerServiceClient].
func (l *sessionLedger) Lookup(ctx context.Context, request *idemv1.LookupRequest, options ...grpc.CallOption) (*idemv1.LookupResponse, error) {
	result, err := l.call(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Lookup{Lookup: request}})
	if err != nil || result.GetLookup() != nil {
		return result.GetLookup(), err
	}
	return l.LedgerServiceClient.Lookup(ctx, request, options...)
}

// call makes a call on a stream. Nil and no error: it is to be made by itself.
func (l *sessionLedger) call(ctx context.Context, call *idemv1.SessionCall) (*idemv1.SessionResult, error) {
	size := proto.Size(call)
	if size > maxSessionCallBytes {
		return nil, nil
	}
	slot := &l.slots[l.next.Add(1)%uint64(len(l.slots))]
	s := l.session(slot)
	if s == nil {
		return nil, nil
	}
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		if ids := md.Get(requestIDHeader); len(ids) == 1 {
			call.RequestId = ids[0]
		}
	}
	result, err := s.do(ctx, call, size)
	switch {
	case errors.Is(err, errNoSession):
		return nil, nil
	case err != nil:
		return nil, err
	case result.GetError().GetCode() == int32(codes.Unauthenticated):
		// Those of the stream may have run out. A call by itself brings fresh ones.
		s.leave()
		return nil, nil
	case result.GetError() != nil:
		return nil, status.ErrorProto(result.GetError())
	}
	return result, nil
}

// session returns the stream to use, and has one opened where there is none.
func (l *sessionLedger) session(slot *sessionSlot) *session {
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if slot.current != nil {
		return slot.current
	}
	if !slot.opening && l.ctx.Err() == nil && !time.Now().Before(slot.notUntil) {
		slot.opening = true
		l.running.Add(1)
		go l.run(slot)
	}
	return nil
}

// run opens a stream, has it used, and reads from it until it ends.
func (l *sessionLedger) run(slot *sessionSlot) {
	defer l.running.Done()
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	stream, err := l.open(ctx, cancel)
	var s *session
	slot.mu.Lock()
	slot.opening = false
	if err == nil {
		s = newSession(stream, slot)
		slot.current = s
	}
	slot.mu.Unlock()
	if err == nil {
		old, stuck := time.AfterFunc(sessionAge, s.leave), time.AfterFunc(sessionEnd, cancel)
		defer old.Stop()
		defer stuck.Stop()
		l.running.Add(1)
		go func() {
			defer l.running.Done()
			s.send()
		}()
		err = s.receive()
	}
	slot.over(s, err)
}

// open opens a stream and waits until the ledger has said that it takes calls on it: one that does not know sessions never says so.
func (l *sessionLedger) open(ctx context.Context, cancel context.CancelFunc) (idemv1.LedgerService_SessionClient, error) {
	late := time.AfterFunc(l.openTimeout, cancel)
	defer late.Stop()
	stream, err := l.Session(ctx, grpc.MaxCallRecvMsgSize(maxReceiveBytes))
	if err != nil {
		return nil, err
	}
	header, err := stream.Header()
	if err == nil && header == nil {
		// The stream has ended without one, and says why where a message is asked for.
		_, err = stream.Recv()
	}
	return stream, err
}

// over notes how a stream ended. s is nil where it could not be opened.
func (slot *sessionSlot) over(s *session, err error) {
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if s != nil && slot.current == s {
		slot.current = nil
	}
	if !errors.Is(err, io.EOF) {
		slot.failedLocked(err)
	}
}

// failedLocked puts the next stream off.
func (slot *sessionSlot) failedLocked(err error) {
	if status.Code(err) == codes.Unimplemented {
		slot.failures = manyFailures // only an upgrade helps
	}
	slot.notUntil = time.Now().Add(min(reopenFirst<<slot.failures, reopenMax))
	slot.failures = min(slot.failures+1, manyFailures)
}

func (slot *sessionSlot) worked() {
	slot.mu.Lock()
	defer slot.mu.Unlock()
	slot.failures = 0
}

// errNoSession: the call has to be made by itself. Where it was sent before, its outcome is not known.
var errNoSession = errors.New("clientlib: the stream is not there any more")

// session is one stream.
type session struct {
	stream idemv1.LedgerService_SessionClient
	slot   *sessionSlot

	mu      sync.Mutex
	lastID  uint64                  // guarded by mu
	pending map[uint64]*sessionCall // guarded by mu; calls without a result
	queue   []*sessionCall          // guarded by mu; those of them that wait to be sent
	giveUp  []uint64                // guarded by mu; sent calls that nobody waits for any more
	over    bool                    // guarded by mu; nothing is sent any more

	wake chan struct{} // has something once there is something to send, or left is set
	done chan struct{} // closed when the stream has ended

	left  atomic.Bool  // no further call is put on it
	heard atomic.Int64 // messages that came
}

type sessionCall struct {
	*idemv1.SessionCall
	size     int
	deadline time.Time // zero: none
	sent     bool
	result   chan *idemv1.SessionResult
}

func newSession(stream idemv1.LedgerService_SessionClient, slot *sessionSlot) *session {
	return &session{
		stream: stream, slot: slot, pending: map[uint64]*sessionCall{}, wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// do makes one call, and waits for its result, the end of ctx or that of the stream.
func (s *session) do(ctx context.Context, call *idemv1.SessionCall, size int) (*idemv1.SessionResult, error) {
	c := &sessionCall{SessionCall: call, size: size, result: make(chan *idemv1.SessionResult, 1)}
	c.deadline, _ = ctx.Deadline()
	s.mu.Lock()
	if s.over || s.left.Load() {
		s.mu.Unlock()
		return nil, errNoSession
	}
	s.lastID++
	call.Id = s.lastID
	s.pending[call.Id] = c
	s.queue = append(s.queue, c)
	s.mu.Unlock()
	s.rouse()
	heard := s.heard.Load()
	select {
	case result := <-c.result:
		return result, nil
	case <-s.done:
		select {
		case result := <-c.result: // it came before the end
			return result, nil
		default:
			return nil, errNoSession
		}
	case <-ctx.Done():
		s.withdraw(c)
		if s.heard.Load() == heard && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			s.stuck()
		}
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// withdraw gives up a call that nobody waits for any more.
func (s *session) withdraw(c *sessionCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[c.GetId()] != c {
		return
	}
	delete(s.pending, c.GetId())
	if c.sent && !s.over {
		s.giveUp = append(s.giveUp, c.GetId())
		s.rouse()
	}
}

// leave has no further call put on the stream. It ends when those that are on it have their results.
func (s *session) leave() {
	s.slot.mu.Lock()
	if s.slot.current == s {
		s.slot.current = nil
	}
	s.slot.mu.Unlock()
	s.left.Store(true)
	s.rouse()
}

// stuck leaves a stream on which nothing came for as long as a call may take. It may be the ledger that is slow, but it may be the stream,
// and the next tries do without it.
func (s *session) stuck() {
	s.slot.mu.Lock()
	if s.slot.current == s {
		s.slot.failedLocked(nil)
	}
	s.slot.mu.Unlock()
	s.leave()
}

func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// send sends what there is, each time all that came while the message before was on its way, until the stream is left or has ended.
func (s *session) send() {
	for {
		select {
		case <-s.wake:
			// Who was answered by one message asks for the next thing at once. Letting them all run first gathers their calls in one message, too.
			runtime.Gosched()
		case <-s.done:
			return
		}
		for message := s.gather(); message != nil; message = s.gather() {
			if err := s.stream.Send(message); err != nil {
				return // receive is told why
			}
		}
		if s.finished() {
			_ = s.stream.CloseSend()
			return
		}
	}
}

// finished says whether the last call was sent on a stream that is left.
func (s *session) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = s.left.Load() && len(s.queue) == 0 && len(s.giveUp) == 0
	return s.over
}

// gather makes one message of what waits to be sent; nil: nothing does.
func (s *session) gather() *idemv1.SessionRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	message := &idemv1.SessionRequest{}
	taken, size := 0, 0
	for ; taken < len(s.queue) && len(message.GetCalls()) < gatherCalls && size < gatherBytes; taken++ {
		c := s.queue[taken]
		s.queue[taken] = nil
		if s.pending[c.GetId()] != c {
			continue // withdrawn
		}
		if !c.deadline.IsZero() {
			c.Timeout = durationpb.New(max(time.Until(c.deadline), 0))
		}
		c.sent = true
		size += c.size
		message.Calls = append(message.Calls, c.SessionCall)
	}
	if s.queue = s.queue[taken:]; len(s.queue) == 0 {
		s.queue = nil
	}
	gone := min(len(s.giveUp), gatherCalls)
	message.CancelIds, s.giveUp = s.giveUp[:gone:gone], s.giveUp[gone:]
	if len(message.GetCalls()) == 0 && len(message.GetCancelIds()) == 0 {
		return nil
	}
	return message
}

// receive hands out results until the stream ends, and returns what it ended with.
func (s *session) receive() error {
	defer s.end()
	for {
		message, err := s.stream.Recv()
		if err != nil {
			return err
		}
		if s.heard.Add(1) == 1 {
			s.slot.worked()
		}
		s.mu.Lock()
		for _, result := range message.GetResults() {
			if c := s.pending[result.GetId()]; c != nil {
				delete(s.pending, result.GetId())
				c.result <- result
			}
		}
		s.mu.Unlock()
	}
}

// end tells everybody who still waits that there will be no result.
func (s *session) end() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	close(s.done)
}
