package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// overSessions is the test whose subtests make calls on sessions.
const overSessions = "TestOverSessions/"

// clientOf is a client as most tests want one.
func clientOf(t testing.TB, ledger *idemtest.Ledger) *clientlib.Client {
	t.Helper()
	if !strings.HasPrefix(t.Name(), overSessions) {
		return ledger.Client(clientlib.Config{})
	}
	client := ledger.Client(clientlib.Config{Sessions: 2})
	client.OpenSessions(context.Background())
	return client
}

// TestOverSessions has tests of Do and of the calls run once more over sessions: whatever is lost, the outcome is the same.
func TestOverSessions(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"TestC13":     TestC13_CallsByHand,
		"TestC10":     TestC10_ALostReplyOfBeginIsNoGrantLost,
		"TestC12":     TestC12_ALostReplyOfCompleteIsSuccess,
		"TestC14":     TestC14_CompleteFailsThreeTimes,
		"TestC14Busy": TestC14_ARetryWhileTheOutcomeIsOnItsWayIsInProgress,
		"TestC15":     TestC15_TheCallerGoesAwayAfterTheEffect,
		"TestC02":     TestC02_AHeartbeatLearnsThatTheClaimIsLost,
		"TestC02Away": TestC02_WithoutAnAnswerTheCallerIsToldToAskAgain,
		"TestC74":     TestC74_TheLedgerIsAwayForLongerThanALease,
		"TestWaiting": TestWaitingEndsWithTheAnswer,
	} {
		t.Run(name, test)
	}
}

// watched is a connection that counts what goes over it.
type watched struct {
	grpc.ClientConnInterface
	alone   atomic.Int64 // calls by themselves
	streams atomic.Int64
	sends   atomic.Int64 // messages on streams
	closes  atomic.Int64 // streams that were half-closed
	over    atomic.Int64 // streams whose context has ended
	// open, if set, opens streams instead of the connection.
	open func(context.Context, func() (grpc.ClientStream, error)) (grpc.ClientStream, error)
}

func (w *watched) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	w.alone.Add(1)
	return w.ClientConnInterface.Invoke(ctx, method, request, reply, options...)
}

func (w *watched) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption) (grpc.ClientStream, error) {
	w.streams.Add(1)
	context.AfterFunc(ctx, func() { w.over.Add(1) })
	plain := func() (grpc.ClientStream, error) {
		stream, err := w.ClientConnInterface.NewStream(ctx, desc, method, options...)
		return &watchedStream{stream, w}, err
	}
	if w.open != nil {
		return w.open(ctx, plain)
	}
	return plain()
}

type watchedStream struct {
	grpc.ClientStream
	of *watched
}

func (s *watchedStream) SendMsg(m any) error {
	s.of.sends.Add(1)
	return s.ClientStream.SendMsg(m)
}

func (s *watchedStream) CloseSend() error {
	s.of.closes.Add(1)
	return s.ClientStream.CloseSend()
}

// sessionClient is a client of conn with one session. It does not wait for the stream.
func sessionClient(t testing.TB, conn grpc.ClientConnInterface) *clientlib.Client {
	t.Helper()
	client, err := clientlib.New(clientlib.Config{Conn: conn, Sessions: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return client
}

func doOnce(t testing.TB, client *clientlib.Client, key string, want clientlib.Outcome) {
	t.Helper()
	effects := 0
	result, err := client.Do(context.Background(), clientlib.Ref{Operation: "op", Key: key}, bytesOf(key), counted(&effects, key),
		clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil || result.Outcome != want || string(result.Response.Body) != key {
		t.Errorf("%s: %+v, %v", key, result, err)
	}
}

// While there is a stream, every call goes over it.
func TestSessionsCarryCalls(t *testing.T) {
	conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
	client := sessionClient(t, conn)
	client.OpenSessions(t.Context())
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			doOnce(t, client, strconv.Itoa(n), clientlib.Executed)
			doOnce(t, client, strconv.Itoa(n), clientlib.Replayed)
		})
	}
	all.Wait()
	if alone, streams := conn.alone.Load(), conn.streams.Load(); alone != 0 || streams != 1 {
		t.Errorf("%d calls by themselves, %d streams", alone, streams)
	}
	entry, err := client.Lookup(t.Context(), clientlib.Ref{Operation: "op", Key: "7"})
	if err != nil || entry.GetState() != idemv1.EntryState_ENTRY_STATE_COMPLETED {
		t.Errorf("%v, %v", entry, err)
	}
	_, err = client.Lookup(t.Context(), clientlib.Ref{Operation: "op", Key: "none"})
	if e, ok := clientlib.AsError(err); !ok || e.Reason != clientlib.ReasonEntryNotFound || !e.FromServer {
		t.Errorf("a refusal over a session: %v", err)
	}
}

// Nobody waits for a stream: while one is being opened, calls go by themselves.
func TestNobodyWaitsForASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
		conn.open = func(ctx context.Context, _ func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		client := sessionClient(t, conn)
		began := time.Now()
		doOnce(t, client, "k", clientlib.Executed)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		<-time.After(clientlib.DefaultTryTimeout)
		synctest.Wait()
		if conn.over.Load() != 1 {
			t.Error("a stream that does not open is waited for without end")
		}
	})
}

// A stream is used once the ledger has said that it takes calls on it, and not before.
func TestASessionIsUsedOnceItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
		conn.open = func(_ context.Context, plain func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			stream, err := plain()
			return slowToOpen{stream}, err
		}
		client := sessionClient(t, conn)
		for n := range 5 {
			doOnce(t, client, strconv.Itoa(n), clientlib.Executed)
			synctest.Wait()
		}
		if conn.sends.Load() != 0 || conn.alone.Load() != 10 {
			t.Errorf("%d messages on a stream that may not be there, %d calls by themselves", conn.sends.Load(), conn.alone.Load())
		}
		<-time.After(2 * time.Second)
		doOnce(t, client, "later", clientlib.Executed)
		if conn.sends.Load() == 0 {
			t.Error("the stream is not used")
		}
	})
}

// slowToOpen is a stream whose other end takes a second to answer.
type slowToOpen struct{ grpc.ClientStream }

func (s slowToOpen) Header() (metadata.MD, error) {
	<-time.After(time.Second)
	return s.ClientStream.Header()
}

// A stream that breaks under a call costs the call nothing but a second try, at once; and one that has brought results is opened again soon,
// however often it broke.
func TestASessionThatBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
		var current *breaking
		conn.open = func(_ context.Context, plain func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			stream, err := plain()
			current = &breaking{ClientStream: stream}
			return current, err
		}
		client := sessionClient(t, conn)
		for n := range 12 {
			began := time.Now()
			client.OpenSessions(t.Context())
			if took := time.Since(began); took > 600*time.Millisecond {
				t.Errorf("after %d breaks it took %v until there was a stream again", n, took)
			}
			doOnce(t, client, strconv.Itoa(2*n), clientlib.Executed)
			current.broken.Store(true)
			began = time.Now()
			doOnce(t, client, strconv.Itoa(2*n+1), clientlib.Executed)
			if took := time.Since(began); took != 0 {
				t.Errorf("a call whose stream broke took %v", took)
			}
		}
	})
}

// breaking is a stream that ends, without a word about what was on it, once it is broken and something is sent.
type breaking struct {
	grpc.ClientStream
	broken atomic.Bool
}

func (b *breaking) SendMsg(m any) error {
	err := b.ClientStream.SendMsg(m)
	if b.broken.Load() {
		return errors.Join(err, b.ClientStream.CloseSend())
	}
	return err
}

func (b *breaking) RecvMsg(m any) error {
	err := b.ClientStream.RecvMsg(m)
	if b.broken.Load() {
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return err
}

// A call that its caller gave up before it was sent is not sent.
func TestACallGivenUpInTimeIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
		held := &holding{release: make(chan struct{})}
		conn.open = func(_ context.Context, plain func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			stream, err := plain()
			held.ClientStream = stream
			return held, err
		}
		client := sessionClient(t, conn)
		client.OpenSessions(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		ask := func(ctx context.Context, key string, told chan<- error) {
			_, err := client.Begin(ctx, begin(key, 0))
			told <- err
		}
		go ask(t.Context(), "a", first)
		synctest.Wait() // the first is being sent
		ctx, cancel := context.WithCancel(t.Context())
		go ask(ctx, "b", second)
		synctest.Wait()
		cancel()
		if err := <-second; status.Code(err) != codes.Canceled {
			t.Errorf("given up: %v", err)
		}
		close(held.release)
		if err := <-first; err != nil {
			t.Error(err)
		}
		if _, err := client.Lookup(t.Context(), clientlib.Ref{Operation: "op", Key: "b"}); !errors.Is(err, clientlib.ErrEntryNotFound) {
			t.Errorf("the call that was given up reached the ledger: %v", err)
		}
	})
}

// holding is a stream that takes nothing until it is released.
type holding struct {
	grpc.ClientStream
	release chan struct{}
}

func (h *holding) SendMsg(m any) error {
	<-h.release
	return h.ClientStream.SendMsg(m)
}

// A ledger, or what stands before it, that knows no sessions is asked for one now and then; calls go by themselves.
func TestALedgerWithoutSessions(t *testing.T) {
	for name, c := range map[string]struct {
		refusal error
		atMost  int64
	}{
		"unimplemented": {status.Error(codes.Unimplemented, "unknown method Session"), 4}, "unavailable": {status.Error(codes.Unavailable, "no streams here"), 12},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
				conn.open = func(context.Context, func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
					return nil, c.refusal
				}
				client := sessionClient(t, conn)
				for n := range 180 { // three minutes
					doOnce(t, client, strconv.Itoa(n), clientlib.Executed)
					<-time.After(time.Second)
				}
				if tries := conn.streams.Load(); tries < 3 || tries > c.atMost {
					t.Errorf("a stream was asked for %d times", tries)
				}
				conn.open = nil
				<-time.After(clientlib.ReopenMax)
				client.OpenSessions(t.Context())
				before := conn.alone.Load()
				doOnce(t, client, "at last", clientlib.Executed)
				if conn.alone.Load() != before {
					t.Error("no session is used after an upgrade")
				}
			})
		})
	}
}

// The same with a real server of an earlier version, which says so only once the stream is open.
func TestAnEarlierServer(t *testing.T) {
	daemon := servertest.New(t, servertest.Options{})
	listener, srv := bufconn.Listen(1<<16), grpc.NewServer()
	idemv1.RegisterLedgerServiceServer(srv, &earlier{plain: idemv1.NewLedgerServiceClient(daemon.Conn())})
	go func() { _ = srv.Serve(listener) }()
	defer srv.Stop()
	plain, err := grpc.NewClient("passthrough:///earlier", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	conn := &watched{ClientConnInterface: plain}
	client := sessionClient(t, conn)
	for n := range 50 {
		doOnce(t, client, strconv.Itoa(n), clientlib.Executed)
	}
	if alone, streams, sends := conn.alone.Load(), conn.streams.Load(), conn.sends.Load(); alone != 100 || streams != 1 || sends != 0 {
		t.Errorf("%d calls by themselves, %d streams with %d messages", alone, streams, sends)
	}
}

type earlier struct {
	idemv1.UnimplementedLedgerServiceServer
	plain idemv1.LedgerServiceClient
}

func (e *earlier) Begin(ctx context.Context, r *idemv1.BeginRequest) (*idemv1.BeginResponse, error) {
	return e.plain.Begin(ctx, r)
}

func (e *earlier) Complete(ctx context.Context, r *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error) {
	return e.plain.Complete(ctx, r)
}

// A stream is left for a new one before it is old, and what is under way on it is not disturbed.
func TestSessionsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		daemon := servertest.New(t, servertest.Options{})
		conn := &watched{ClientConnInterface: daemon.Conn()}
		client := sessionClient(t, conn)
		client.OpenSessions(t.Context())
		holder, err := client.Begin(t.Context(), begin("slow", 0))
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan *idemv1.BeginResponse, 1)
		go func() {
			response, err := client.Begin(context.Background(), begin("slow", 25*time.Second))
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			waiting <- response
		}()
		for n := range 24 {
			<-time.After(time.Second)
			doOnce(t, client, strconv.Itoa(n), clientlib.Executed)
		}
		if _, err := client.Complete(t.Context(), &idemv1.CompleteRequest{
			Ref: begin("slow", 0).GetRef(), ClaimToken: holder.GetGranted().GetClaimToken(), Response: &idemv1.Response{Body: []byte("x")},
		}); err != nil {
			t.Error(err)
		}
		if response := <-waiting; string(response.GetCompleted().GetResponse().GetBody()) != "x" {
			t.Errorf("who waited on the stream that was left was told %v", response)
		}
		if streams, alone := conn.streams.Load(), conn.alone.Load(); streams != 2 || alone > 2 {
			t.Errorf("%d streams in 24 s, %d calls by themselves", streams, alone)
		}
		synctest.Wait()
		if conn.closes.Load() != 1 || conn.over.Load() != 1 {
			t.Errorf("of the stream that was left: %d half-closed, %d over", conn.closes.Load(), conn.over.Load())
		}
	})
}

func begin(key string, wait time.Duration) *idemv1.BeginRequest {
	print := bytesOf("a")
	return &idemv1.BeginRequest{
		Ref: &idemv1.EntryRef{Operation: "op", Key: key}, AttemptId: uuid.NewString(), Holder: "h", Wait: durationpb.New(wait),
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: print.Algorithm, Hash: print.Hash}},
	}
}

// A caller who leaves is answered at once, its call ends at the ledger too, and others on its stream are not disturbed.
func TestCallersLeaveASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiters := &waitersOf{}
		daemon := servertest.New(t, servertest.Options{Observer: waiters})
		client := sessionClient(t, daemon.Conn())
		client.OpenSessions(t.Context())
		if _, err := client.Begin(t.Context(), begin("k", 0)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		told, stays := make(chan error, 1), make(chan error, 1)
		ask := func(ctx context.Context, to chan<- error) {
			_, err := client.Begin(ctx, begin("k", 10*time.Second))
			to <- err
		}
		go ask(ctx, told)
		go ask(t.Context(), stays)
		synctest.Wait()
		if waiters.n.Load() != 2 {
			t.Fatalf("%d wait", waiters.n.Load())
		}
		began := time.Now()
		cancel()
		if err := <-told; status.Code(err) != codes.Canceled || time.Since(began) != 0 {
			t.Errorf("told %v after %v", err, time.Since(began))
		}
		synctest.Wait()
		if waiters.n.Load() != 1 {
			t.Errorf("%d wait at the ledger", waiters.n.Load())
		}
		if err := <-stays; err != nil || time.Since(began) < 9*time.Second {
			t.Errorf("the one who stayed was told %v after %v", err, time.Since(began))
		}
	})
}

type waitersOf struct{ n atomic.Int64 }

func (w *waitersOf) Waiting(n int)                           { w.n.Store(int64(n)) }
func (*waitersOf) StoreCall(string, time.Duration, error)    {}
func (*waitersOf) Swept(ledger.SweepProgress)                {}
func (*waitersOf) Overdue(time.Duration, time.Duration, int) {}

// A call's deadline goes with it: the ledger answers a wait before it is over.
func TestDeadlinesGoWithTheCallsOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := sessionClient(t, servertest.New(t, servertest.Options{}).Conn())
		client.OpenSessions(t.Context())
		if _, err := client.Begin(t.Context(), begin("k", 0)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		began := time.Now()
		response, err := client.Begin(ctx, begin("k", 10*time.Second))
		if took := time.Since(began); err != nil || response.GetInProgress() == nil || took < 3*time.Second || took >= 4*time.Second {
			t.Errorf("%v, %v after %v", response, err, took)
		}
	})
}

// A stream on which nothing comes costs one try of the calls on it, and the next tries do without.
func TestAStuckSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
		conn.open = func(_ context.Context, plain func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			stream, err := plain()
			return swallowing{stream}, err
		}
		client := sessionClient(t, conn)
		client.OpenSessions(t.Context())
		began := time.Now()
		doOnce(t, client, "k", clientlib.Executed)
		if took := time.Since(began); took > clientlib.DefaultTryTimeout+time.Second {
			t.Errorf("it took %v", took)
		}
		began = time.Now()
		for n := range 100 {
			doOnce(t, client, strconv.Itoa(n), clientlib.Executed)
			<-time.After(100 * time.Millisecond)
		}
		if took := time.Since(began); took > 10*time.Second+5*(clientlib.DefaultTryTimeout+time.Second) {
			t.Errorf("100 calls in 10 s took %v", took)
		}
		<-time.After(7 * time.Minute) // longer than anything can wait on a stream
		if over, streams := conn.over.Load(), conn.streams.Load(); over != streams {
			t.Errorf("of %d streams that are stuck %d are over", streams, over)
		}
	})
}

// swallowing is a stream whose messages get nowhere.
type swallowing struct{ grpc.ClientStream }

func (swallowing) SendMsg(any) error { return nil }
func (swallowing) CloseSend() error  { return nil }

// Credentials that have run out since the stream was opened are renewed by a call by itself.
func TestCredentialsOfASessionThatRanOut(t *testing.T) {
	var valid atomic.Value
	valid.Store("first")
	daemon := servertest.New(t, servertest.Options{Identify: func(ctx context.Context, _ string) (server.Principal, error) {
		if sent := metadata.ValueFromIncomingContext(ctx, "token"); len(sent) != 1 || sent[0] != valid.Load() {
			return server.Principal{}, status.Error(codes.Unauthenticated, "the token has expired")
		}
		return server.Anonymous(), nil
	}})
	plain, err := daemon.Dial(grpc.WithPerRPCCredentials(&tokens{&valid}))
	if err != nil {
		t.Fatal(err)
	}
	conn := &watched{ClientConnInterface: plain}
	client := sessionClient(t, conn)
	client.OpenSessions(t.Context())
	doOnce(t, client, "a", clientlib.Executed)
	if conn.alone.Load() != 0 {
		t.Error("calls did not go over the session")
	}
	valid.Store("second")
	doOnce(t, client, "b", clientlib.Executed)
	client.OpenSessions(t.Context())
	before := conn.alone.Load()
	doOnce(t, client, "c", clientlib.Executed)
	if conn.alone.Load() != before || conn.streams.Load() != 2 {
		t.Errorf("%d streams, calls by themselves: %d and %d", conn.streams.Load(), before, conn.alone.Load())
	}
}

type tokens struct{ valid *atomic.Value }

func (c *tokens) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"token": fmt.Sprint(c.valid.Load())}, nil
}
func (*tokens) RequireTransportSecurity() bool { return false }

// What is large goes by itself, and holds nobody up.
func TestLargeCallsGoByThemselves(t *testing.T) {
	conn := &watched{ClientConnInterface: servertest.New(t, servertest.Options{}).Conn()}
	client := sessionClient(t, conn)
	client.OpenSessions(t.Context())
	large := strings.Repeat("x", clientlib.MaxSessionCallBytes)
	result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(new(int), large), clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil || !result.Recorded || conn.alone.Load() != 1 {
		t.Errorf("%v, %d calls by themselves", err, conn.alone.Load())
	}
	replayed, err := client.Do(t.Context(), ref, bytesOf("a"), counted(new(int), ""), clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil || string(replayed.Response.Body) != large || conn.alone.Load() != 1 {
		t.Errorf("the replay: %v, %d bytes, %d calls by themselves", err, len(replayed.Response.Body), conn.alone.Load())
	}
}

// A call is found in the ledger's log by the request id in its caller's metadata.
func TestRequestIDsGoWithTheCallsOfASession(t *testing.T) {
	var log lockedText
	daemon := servertest.New(t, servertest.Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	client := sessionClient(t, daemon.Conn())
	client.OpenSessions(t.Context())
	_, err := client.Lookup(metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "req-42"), ref)
	if !errors.Is(err, clientlib.ErrEntryNotFound) || !strings.Contains(log.String(), "request_id=req-42") {
		t.Errorf("%v, and the log is\n%s", err, log.String())
	}
}

type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A ledger that goes, connections that break in mid-call: each intent has its effect once, and everybody is told the same.
func TestSessionsBreakUnderLoad(t *testing.T) {
	const workers, rounds = 8, 60
	store := storetest.NewModel(storetest.NewClock(ledger.Time(time.Now().UnixMicro())), 0)
	home := &restarted{t: t, store: store}
	home.start()
	defer home.stop()
	plain, err := grpc.NewClient("passthrough:///restarted", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(home.dial))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	conn := &watched{ClientConnInterface: plain}
	client, err := clientlib.New(clientlib.Config{Conn: conn, Sessions: 2, Logger: slog.New(slog.DiscardHandler), TryTimeout: 2 * time.Second, LedgerTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	client.OpenSessions(t.Context())
	var effects [rounds]atomic.Int64
	var done atomic.Int64
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for n := range rounds {
				key := strconv.Itoa(n)
				result, err := client.Do(context.Background(), clientlib.Ref{Operation: "op", Key: key}, bytesOf(key),
					func(context.Context, clientlib.Claim) (clientlib.Response, error) {
						effects[n].Add(1)
						return clientlib.Response{Body: []byte(key)}, nil
					}, clientlib.Options{Abandoned: clientlib.Refuse(), Wait: 20 * time.Second})
				if err != nil || string(result.Response.Body) != key {
					t.Errorf("worker %d, key %s: %+v, %v", worker, key, result, err)
				}
				switch n := done.Add(1); {
				case n%160 == 0:
					home.restart()
				case n%40 == 0:
					home.cut()
				}
			}
		})
	}
	all.Wait()
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	for n := range effects {
		if effects[n].Load() != 1 {
			t.Errorf("intent %d had %d effects", n, effects[n].Load())
		}
	}
	if streams := conn.streams.Load(); streams < 4 {
		t.Errorf("%d streams were opened: the sessions did not break", streams)
	}
}

// restarted is a ledger that is started again, and whose connections break, when a test says so.
type restarted struct {
	t     *testing.T
	store ledger.Store

	mu     sync.Mutex
	daemon *servertest.Daemon
	conns  []net.Conn
}

func (r *restarted) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	daemon, err := servertest.Start(servertest.Options{Store: r.store, TCP: true})
	if err != nil {
		r.t.Error(err)
		return
	}
	r.daemon = daemon
}

func (r *restarted) stop() {
	r.mu.Lock()
	daemon := r.daemon
	r.mu.Unlock()
	if err := daemon.Close(); err != nil && !errors.Is(err, server.ErrCutOff) {
		r.t.Error(err)
	}
}

func (r *restarted) restart() {
	r.stop()
	r.start()
}

// cut breaks all connections, wherever they are in a message.
func (r *restarted) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
	r.conns = nil
}

func (r *restarted) dial(ctx context.Context, _ string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.daemon == nil {
		return nil, io.ErrUnexpectedEOF
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.daemon.Addr())
	if err == nil {
		r.conns = append(r.conns, conn)
	}
	return conn, err
}
