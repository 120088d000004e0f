package linear

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/clientlib"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// byEveryWay are clients of one daemon: with calls by themselves, with calls on Session streams as the protocol has them, and with the client library's. All
// of them go over a wire that loses things.
func byEveryWay(t testing.TB, w *wire) []daemon {
	t.Helper()
	plain := idemv1.NewLedgerServiceClient(w)
	return []daemon{&remote{client: plain}, &remote{client: streaming(t, plain)}, withLibrary(t, w)}
}

// library makes calls with the client library, on its streams, which sends them again until they are answered: a call may be carried out as often as it
// was sent.
type library struct {
	remote
	wire *wire
}

func withLibrary(t testing.TB, w *wire) *library {
	t.Helper()
	client, err := clientlib.New(clientlib.Config{Conn: w, Sessions: 1, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("closing the client library: %v", err)
		}
	})
	// It opens its stream while it makes calls, and nobody waits for it. Here they are to go over it from the first one on.
	ctx, cancel := context.WithTimeout(t.Context(), longDeadline)
	defer cancel()
	for before := w.streamed.Load(); w.streamed.Load() == before; {
		if _, err := client.Lookup(ctx, clientlib.Ref{Operation: operation, Key: "before the first"}); ctx.Err() != nil {
			t.Fatalf("the client library opens no stream: %v", err)
		}
	}
	return &library{remote: remote{client: libraryCalls{client: client}}, wire: w}
}

// counted makes a call, and tells how often it was sent beside the time that was answered.
func (l *library) counted(ctx context.Context, do func(context.Context) told) told {
	ctx, id := named(ctx)
	t := do(ctx)
	t.resent = max(l.wire.times(id)-1, 0)
	return t
}

func (l *library) begin(ctx context.Context, key string, id uuid.UUID, c call, wait time.Duration) told {
	return l.counted(ctx, func(ctx context.Context) told { return l.remote.begin(ctx, key, id, c, wait) })
}

func (l *library) report(ctx context.Context, key, token string, r report) told {
	return l.counted(ctx, func(ctx context.Context) told { return l.remote.report(ctx, key, token, r) })
}

func (l *library) extend(ctx context.Context, key, token string) told {
	return l.counted(ctx, func(ctx context.Context) told { return l.remote.extend(ctx, key, token) })
}

// libraryCalls has the client library's calls in the form of the generated client's.
type libraryCalls struct {
	idemv1.LedgerServiceClient
	client *clientlib.Client
}

func (l libraryCalls) Begin(ctx context.Context, r *idemv1.BeginRequest, _ ...grpc.CallOption) (*idemv1.BeginResponse, error) {
	return l.client.Begin(ctx, r)
}

func (l libraryCalls) Complete(ctx context.Context, r *idemv1.CompleteRequest, _ ...grpc.CallOption) (*idemv1.CompleteResponse, error) {
	return l.client.Complete(ctx, r)
}

func (l libraryCalls) Fail(ctx context.Context, r *idemv1.FailRequest, _ ...grpc.CallOption) (*idemv1.FailResponse, error) {
	return l.client.Fail(ctx, r)
}

func (l libraryCalls) Extend(ctx context.Context, r *idemv1.ExtendRequest, _ ...grpc.CallOption) (*idemv1.ExtendResponse, error) {
	return l.client.Extend(ctx, r)
}

func (l libraryCalls) Lookup(ctx context.Context, r *idemv1.LookupRequest, _ ...grpc.CallOption) (*idemv1.LookupResponse, error) {
	ref := r.GetRef()
	entry, err := l.client.Lookup(ctx, clientlib.Ref{Tenant: ref.GetTenant(), Operation: ref.GetOperation(), Key: ref.GetKey()})
	return &idemv1.LookupResponse{Entry: entry}, err
}

// streams makes each call on a stream that all callers share, and opens another when that broke. It sends none twice. Some calls are given up at once, and
// all when their time is over; what the daemon says of those is what is told.
type streams struct {
	idemv1.LedgerServiceClient
	ctx context.Context // of the streams

	mu      sync.Mutex
	current *stream // guarded by mu
	ids     atomic.Uint64
}

type stream struct {
	idemv1.LedgerService_SessionClient
	sending sync.Mutex

	mu      sync.Mutex
	waiting map[uint64]chan *idemv1.SessionResult // guarded by mu; nil: the stream is over
}

func streaming(t testing.TB, plain idemv1.LedgerServiceClient) *streams {
	t.Helper()
	return &streams{LedgerServiceClient: plain, ctx: t.Context()}
}

// stream is the one that calls are put on.
func (s *streams) stream() (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && !s.current.over() {
		return s.current, nil
	}
	opened, err := s.Session(s.ctx)
	if err != nil {
		return nil, err
	}
	s.current = &stream{LedgerService_SessionClient: opened, waiting: map[uint64]chan *idemv1.SessionResult{}}
	go s.current.read()
	return s.current, nil
}

func (s *stream) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting == nil
}

// read hands results out until the stream breaks. Then nobody knows what came of the calls that have none.
func (s *stream) read() {
	for {
		message, err := s.Recv()
		s.mu.Lock()
		for _, r := range message.GetResults() {
			if waiting := s.waiting[r.GetId()]; waiting != nil {
				waiting <- r
				delete(s.waiting, r.GetId())
			}
		}
		if err != nil {
			for _, waiting := range s.waiting {
				close(waiting)
			}
			s.waiting = nil
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// put sends a call, and returns where its result will be.
func (s *stream) put(c *idemv1.SessionCall) (<-chan *idemv1.SessionResult, error) {
	result := make(chan *idemv1.SessionResult, 1)
	s.mu.Lock()
	over := s.waiting == nil
	if !over {
		s.waiting[c.GetId()] = result
	}
	s.mu.Unlock()
	if over {
		return nil, errLost
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	return result, s.Send(&idemv1.SessionRequest{Calls: []*idemv1.SessionCall{c}})
}

func (s *stream) giveUp(id uint64) {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.Send(&idemv1.SessionRequest{CancelIds: []uint64{id}}) // if the stream broke, the result will not come either
}

func (s *streams) do(ctx context.Context, c *idemv1.SessionCall) (*idemv1.SessionResult, error) {
	one, err := s.stream()
	if err != nil {
		return nil, err
	}
	c.Id = s.ids.Add(1)
	if deadline, ok := ctx.Deadline(); ok {
		c.Timeout = durationpb.New(max(time.Until(deadline), 0))
	}
	result, err := one.put(c)
	if err != nil {
		return nil, err
	}
	if c.GetId()%2 == 0 {
		pass(ctx, time.Duration(c.GetId()%20)*300*time.Microsecond)
		one.giveUp(c.GetId())
		count("call given up on a stream", 1)
	}
	select {
	case r, ok := <-result:
		return ended(r, ok)
	case <-ctx.Done():
	}
	one.giveUp(c.GetId())
	select {
	case r, ok := <-result:
		return ended(r, ok)
	case <-time.After(longDeadline):
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func ended(r *idemv1.SessionResult, ok bool) (*idemv1.SessionResult, error) {
	if !ok {
		return nil, errLost
	}
	if r.GetError() != nil {
		return nil, status.ErrorProto(r.GetError())
	}
	return r, nil
}

func (s *streams) Begin(ctx context.Context, r *idemv1.BeginRequest, _ ...grpc.CallOption) (*idemv1.BeginResponse, error) {
	result, err := s.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Begin{Begin: r}})
	return result.GetBegin(), err
}

func (s *streams) Complete(ctx context.Context, r *idemv1.CompleteRequest, _ ...grpc.CallOption) (*idemv1.CompleteResponse, error) {
	result, err := s.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Complete{Complete: r}})
	return result.GetComplete(), err
}

func (s *streams) Fail(ctx context.Context, r *idemv1.FailRequest, _ ...grpc.CallOption) (*idemv1.FailResponse, error) {
	result, err := s.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Fail{Fail: r}})
	return result.GetFail(), err
}

func (s *streams) Extend(ctx context.Context, r *idemv1.ExtendRequest, _ ...grpc.CallOption) (*idemv1.ExtendResponse, error) {
	result, err := s.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Extend{Extend: r}})
	return result.GetExtend(), err
}

func (s *streams) Lookup(ctx context.Context, r *idemv1.LookupRequest, _ ...grpc.CallOption) (*idemv1.LookupResponse, error) {
	result, err := s.do(ctx, &idemv1.SessionCall{Request: &idemv1.SessionCall_Lookup{Lookup: r}})
	return result.GetLookup(), err
}

// TestCallsOnStreams: a daemon on the embedded store, whose callers use streams, of which any may break with calls on it, and calls by themselves. In the
// middle another takes its place, and it drains; leases end.
func TestCallsOnStreams(t *testing.T) {
	t.Parallel()
	seeds(t, 8, func(seed uint64) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { callsOnStreams(t, seed) })
	})
}

func callsOnStreams(t *testing.T, seed uint64) {
	clock := storetest.NewRunningClock()
	store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Dir: t.TempDir(), Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	start := func() *servertest.Daemon {
		return servertest.New(t, servertest.Options{Store: store, Clock: clock, DrainTimeout: time.Second})
	}
	running := start()
	w := wireTo(running.Conn(), seed)
	daemons := byEveryWay(t, w)
	before := w.streamed.Load()
	play{
		daemons: daemons, keys: 16, clients: 20, steps: 18, limit: int8(ledger.DefaultMaxAttempts),
		lapse: func(context.Context) error { clock.Advance(lapseBy); return nil },
		weather: func(ctx context.Context, rng *rand.Rand) {
			pass(ctx, time.Duration(rng.IntN(200))*time.Millisecond)
			old := running
			running = start()
			w.to.Store(running.Conn())
			// On a busy machine a call may outlast the drain: it is cut off, and in the history as one of unknown outcome.
			switch err := old.Close(); {
			case err == nil:
				count("daemon drained", 1)
			case errors.Is(err, server.ErrCutOff):
				count("daemon drained, calls cut off", 1)
			default:
				t.Errorf("seed %d: draining: %v", seed, err)
			}
		},
	}.run(t, seed)
	if n := w.streamed.Load() - before; n < 30 {
		t.Errorf("seed %d: %d of 360 calls went over streams", seed, n)
	}
}
