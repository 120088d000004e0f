package server_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

func (r *rig) session() *openSession {
	r.t.Helper()
	s, err := openOn(r.ctx, r.LedgerServiceClient)
	if err != nil {
		r.t.Fatalf("Session: %v", err)
	}
	return s
}

// raw is a stream without anybody who reads it.
func (r *rig) raw(ctx context.Context) idemv1.LedgerService_SessionClient {
	r.t.Helper()
	stream, err := r.Session(ctx)
	if err != nil {
		r.t.Fatalf("Session: %v", err)
	}
	return stream
}

func lookupCall(id uint64, key string) *idemv1.SessionCall {
	return &idemv1.SessionCall{Id: id, Request: &idemv1.SessionCall_Lookup{Lookup: &idemv1.LookupRequest{Ref: refTo(key)}}}
}

func beginCall(id uint64, key string, change ...func(*idemv1.BeginRequest)) *idemv1.SessionCall {
	return &idemv1.SessionCall{Id: id, Request: &idemv1.SessionCall_Begin{Begin: beginRequest(key, change...)}}
}

func send(t *testing.T, stream idemv1.LedgerService_SessionClient, calls ...*idemv1.SessionCall) {
	t.Helper()
	if err := stream.Send(&idemv1.SessionRequest{Calls: calls}); err != nil {
		t.Fatalf("Send: %v", err)
	}
}

// results reads until the stream ends, and returns what came and what it ended with: nil for OK.
func results(stream idemv1.LedgerService_SessionClient) (map[uint64]*idemv1.SessionResult, error) {
	out := map[uint64]*idemv1.SessionResult{}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		for _, r := range message.GetResults() {
			out[r.GetId()] = r
		}
	}
}

// Whoever half-closes a session gets every result, and then OK.
func TestHalfClosedSessionIsAnsweredToTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	stream := r.raw(r.ctx)
	var calls []*idemv1.SessionCall
	for id := range uint64(100) {
		calls = append(calls, beginCall(id+1, strconv.FormatUint(id, 10)))
	}
	send(t, stream, calls...)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got, err := results(stream)
	if err != nil || len(got) != len(calls) {
		t.Fatalf("%d results, then %v", len(got), err)
	}
	for id, one := range got {
		if one.GetBegin().GetGranted().GetAttempt() != 1 {
			t.Errorf("call %d: %v", id, one)
		}
	}
}

// A Begin that waits holds nobody up, the report that it waits for least of all.
func TestWaitingBeginHoldsNoOtherCallUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	c := r.grant("k")
	s := r.session()
	before, _ := r.waiters.now()
	waiting, err := s.start(beginCall(0, "k", waitFor(time.Minute)))
	if err != nil {
		t.Fatal(err)
	}
	for n, changed := r.waiters.now(); n == before; n, changed = r.waiters.now() {
		<-changed
	}
	completed, err := s.start(&idemv1.SessionCall{Request: &idemv1.SessionCall_Complete{
		Complete: completeRequest("k", c, &idemv1.Response{Body: []byte("done")}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := <-completed; got.GetComplete().GetAttempt() != 1 {
		t.Errorf("the report: %v", got)
	}
	if got := <-waiting; string(got.GetBegin().GetCompleted().GetResponse().GetBody()) != "done" {
		t.Errorf("the waiter: %v", got)
	}
}

// A call's own time ends it and nothing else; so does being given up.
func TestCallsOfASessionEndByThemselves(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		r.daemon.Store().Plan(storetest.On(storetest.Get, func(storetest.Call) storetest.Fault {
			return storetest.Fault{Before: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		}))
		s := r.session()
		timed, givenUp := lookupCall(0, "timed"), lookupCall(0, "given up")
		timed.Timeout = durationpb.New(3 * time.Second)
		began := time.Now()
		first, err1 := s.start(timed)
		other, err2 := s.start(givenUp)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if got := <-first; got.GetError().GetCode() != int32(codes.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(began), got)
		}
		s.cancel(givenUp.GetId())
		s.cancel(12345) // nobody's
		if got := <-other; got.GetError().GetCode() != int32(codes.Canceled) {
			t.Errorf("given up: %v", got)
		}
		r.daemon.Store().Plan(nil)
		granted, err := s.start(beginCall(0, "k"))
		if err != nil {
			t.Fatal(err)
		}
		if got := <-granted; got.GetBegin().GetGranted() == nil {
			t.Errorf("the stream after that: %v", got)
		}
	})
}

// A caller who goes away ends its calls as a unary call's caller does.
func TestCallsEndWithTheirStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	reached, ended := make(chan struct{}), make(chan struct{})
	r.daemon.Store().Plan(storetest.On(storetest.Get, storetest.Script(storetest.Fault{Before: func(ctx context.Context) error {
		close(reached)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}})))
	ctx, cancel := context.WithCancel(r.ctx)
	send(t, r.raw(ctx), lookupCall(1, "k"))
	<-reached
	cancel()
	<-ended
}

// An id that is in use, or none, ends the stream: a result could not be told from another's. What is under way is answered first.
func TestIDsOfASessionAreUnique(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		second *idemv1.SessionCall
		field  string
	}{
		"in use":           {lookupCall(1, "k"), "calls.id"},
		"none":             {lookupCall(0, "k"), "calls[0].id"},
		"negative timeout": {&idemv1.SessionCall{Id: 2, Timeout: durationpb.New(-1)}, "calls[0].timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
				release := make(chan struct{})
				r.daemon.Store().Plan(holdNextWrite(make(chan struct{}, 1), release))
				stream := r.raw(r.ctx)
				send(t, stream, beginCall(1, "k"))
				synctest.Wait()
				send(t, stream, c.second)
				synctest.Wait()
				close(release)
				got, err := results(stream)
				refused := wantRefusal(t, err, ledger.ReasonInvalidRequest, codes.InvalidArgument)
				if field := refused.bad.GetFieldViolations()[0].GetField(); field != c.field {
					t.Errorf("BadRequest names %s, want %s", field, c.field)
				}
				if got[1].GetBegin().GetGranted() == nil {
					t.Errorf("the call under way: %v", got)
				}
			})
		})
	}
}

// An id is free again once its result is there.
func TestIDsOfASessionCanBeUsedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	stream := r.raw(r.ctx)
	for range 3 {
		send(t, stream, beginCall(7, "k"))
		if got, err := stream.Recv(); err != nil || got.GetResults()[0].GetId() != 7 {
			t.Fatalf("%v, %v", got, err)
		}
	}
}

// A call of a kind that this daemon does not know is refused alone.
func TestUnknownKindOfCallIsRefusedAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	stream := r.raw(r.ctx)
	send(t, stream, &idemv1.SessionCall{Id: 1}, beginCall(2, "k"))
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got, err := results(stream)
	if err != nil || got[2].GetBegin().GetGranted() == nil {
		t.Errorf("%v, then %v", got, err)
	}
	wantRefusal(t, status.ErrorProto(got[1].GetError()), ledger.ReasonInvalidRequest, codes.InvalidArgument)
}

// A panic costs its call the answer, and the stream goes on.
func TestPanicOnASessionCostsOneCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{Identify: func(_ context.Context, method string) (server.Principal, error) {
		if method == idemv1.LedgerService_Lookup_FullMethodName {
			panic("a bug")
		}
		return server.Anonymous(), nil
	}})
	stream := r.raw(r.ctx)
	send(t, stream, lookupCall(1, "k"), beginCall(2, "k"))
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got, err := results(stream)
	if err != nil || got[2].GetBegin().GetGranted() == nil {
		t.Errorf("%v, then %v", got, err)
	}
	wantRefusal(t, status.ErrorProto(got[1].GetError()), ledger.ReasonInternal, codes.Internal)
}

// Each call is identified by itself, so credentials that are no good any more are noticed on a stream that they opened.
func TestCallsOfASessionAreIdentifiedOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{Identify: func(_ context.Context, method string) (server.Principal, error) {
		switch method {
		case idemv1.LedgerService_Begin_FullMethodName:
			return server.Principal{}, status.Error(codes.Unauthenticated, "the credentials have expired")
		default:
			return server.Principal{Tenant: "a", Roles: server.Reader}, nil
		}
	}})
	stream := r.raw(r.ctx)
	send(t, stream, beginCall(1, "k"), lookupCall(2, "k"), &idemv1.SessionCall{Id: 3, Request: &idemv1.SessionCall_Extend{Extend: &idemv1.ExtendRequest{}}})
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	got, err := results(stream)
	if err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, status.ErrorProto(got[1].GetError()), server.ReasonUnauthenticated, codes.Unauthenticated)
	wantRefusal(t, status.ErrorProto(got[2].GetError()), ledger.ReasonEntryNotFound, codes.NotFound)
	wantRefusal(t, status.ErrorProto(got[3].GetError()), ledger.ReasonPermissionDenied, codes.PermissionDenied)
}

// A drain ends a session once what it has read is answered, and tells its caller to go elsewhere. An idle one does not hold it up.
func TestDrainEndsSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	idle, busy := r.raw(r.ctx), r.raw(r.ctx)
	if _, err := idle.Header(); err != nil {
		t.Fatal(err)
	}
	reached, release := make(chan struct{}, 1), make(chan struct{})
	r.daemon.Store().Plan(holdNextWrite(reached, release))
	send(t, busy, beginCall(1, "k"))
	<-reached
	closed := make(chan error, 1)
	go func() { closed <- r.daemon.Close() }()
	_, err := results(idle)
	wantRefusal(t, err, ledger.ReasonDraining, codes.Unavailable)
	close(release)
	got, err := results(busy)
	wantRefusal(t, err, ledger.ReasonDraining, codes.Unavailable)
	if got[1].GetBegin().GetGranted() == nil {
		t.Errorf("the call under way: %v", got)
	}
	if err := <-closed; err != nil {
		t.Errorf("the drain: %v", err)
	}
}

// What a drained session has not read is not done.
func TestDrainedSessionTakesNothingOn(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		c := r.grant("k")
		release := make(chan struct{})
		r.daemon.Store().Plan(holdNextWrite(make(chan struct{}, 1), release))
		stream := r.raw(r.ctx)
		send(t, stream, beginCall(1, "other"))
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- r.daemon.Close() }()
		synctest.Wait()
		send(t, stream, &idemv1.SessionCall{Id: 2, Request: &idemv1.SessionCall_Complete{Complete: completeRequest("k", c, &idemv1.Response{})}})
		synctest.Wait()
		close(release)
		got, err := results(stream)
		wantRefusal(t, err, ledger.ReasonDraining, codes.Unavailable)
		if len(got) != 1 || got[1] == nil {
			t.Errorf("results %v, want that of call 1", got)
		}
		if err := <-closed; err != nil {
			t.Errorf("the drain: %v", err)
		}
		view, err := r.daemon.Ledger().Lookup(r.ctx, ledger.Caller{}, ledger.Ref{Tenant: server.DefaultTenant, Operation: operation, Key: "k"})
		if err != nil || view.Entry.State != ledger.Pending {
			t.Errorf("the entry: %+v, %v", view, err)
		}
	})
}

// Each call of a session is logged and counted as the unary call that it is, under a request id of its own.
func TestCallsOfASessionAreLoggedAndCounted(t *testing.T) {
	t.Parallel()
	var log logBuffer
	spans := &spanRecorder{}
	r := newRig(t, servertest.Options{Logger: log.logger(slog.LevelDebug), TracerProvider: spans})
	stream := r.raw(metadata.AppendToOutgoingContext(r.ctx, "x-request-id", "stream-1"))
	own, odd := lookupCall(3, "k"), lookupCall(4, "k")
	own.RequestId, odd.RequestId = "mine", "not one word"
	send(t, stream, lookupCall(1, "k"), lookupCall(2, "k"), own, odd)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header()
	if err != nil || strings.Join(header.Get("x-request-id"), " ") != "stream-1" {
		t.Errorf("header %v, %v", header, err)
	}
	if _, err := results(stream); err != nil {
		t.Fatal(err)
	}
	metrics := get(t, r.daemon.Server().HTTP(), "/metrics", "").body
	if err := r.daemon.Close(); err != nil { // the stream's own line is written by then
		t.Error(err)
	}
	ids := map[any]bool{}
	for _, line := range log.lines(t, "Lookup") {
		ids[line["request_id"]] = true
		if line["code"] != "NotFound" || line["ref"] == nil {
			t.Errorf("logged as %v", line)
		}
	}
	for _, want := range []string{"stream-1/1", "stream-1/2", "mine", "stream-1/4"} {
		if !ids[want] {
			t.Errorf("no line with request id %s: %v", want, ids)
		}
	}
	if lines := log.lines(t, "Session"); len(lines) != 1 || lines[0]["request_id"] != "stream-1" || lines[0]["code"] != "OK" {
		t.Errorf("the session is logged as %v", lines)
	}
	for _, want := range []string{
		`grpc_server_handled_total{grpc_code="NotFound",grpc_method="Lookup",grpc_service="idem.v1.LedgerService",grpc_type="unary"} 4`,
		`idemd_outcomes_total{operation="other",outcome="ENTRY_NOT_FOUND",rpc="Lookup"} 4`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	if got := strings.Count(spans.String(), "idem.v1.LedgerService/Lookup"); got != 4 {
		t.Errorf("%d spans of calls", got)
	}
}
