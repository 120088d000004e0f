package servertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func request(key string) *idemv1.BeginRequest {
	return &idemv1.BeginRequest{
		Ref:       &idemv1.EntryRef{Operation: "shop.v1.PaymentService/Charge", Key: key},
		AttemptId: uuid.NewString(), Fingerprints: []*idemv1.Fingerprint{{Algorithm: "test-v1", Hash: []byte("0123456789abcdef")}},
	}
}

func complete(t *testing.T, conn grpc.ClientConnInterface, key string, c *idemv1.Claim) {
	t.Helper()
	if _, err := idemv1.NewLedgerServiceClient(conn).Complete(t.Context(), &idemv1.CompleteRequest{
		Ref: request(key).GetRef(), ClaimToken: c.GetClaimToken(), Response: &idemv1.Response{Body: []byte("done")},
	}); err != nil {
		t.Fatal(err)
	}
}

func begin(t *testing.T, conn grpc.ClientConnInterface, req *idemv1.BeginRequest) *idemv1.BeginResponse {
	t.Helper()
	resp, err := idemv1.NewLedgerServiceClient(conn).Begin(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// A daemon needs no test around it: whoever starts one closes it, and may do so twice.
func TestStartAndClose(t *testing.T) {
	t.Parallel()
	d, err := servertest.Start(servertest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if begin(t, d.Conn(), request("k")).GetGranted() == nil {
		t.Error("not granted")
	}
	if d.Addr() != "" {
		t.Errorf("it listens on %s unasked", d.Addr())
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := idemv1.NewLedgerServiceClient(d.Conn()).Begin(t.Context(), request("k")); status.Code(err) != codes.Canceled {
		t.Errorf("after Close: %v", err)
	}
}

// A daemon may be closed at any moment of its start, with or without calls on it.
func TestClosedAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 60 {
		d, err := servertest.Start(servertest.Options{TCP: i%3 == 0})
		if err != nil {
			t.Fatal(err)
		}
		called := make(chan struct{})
		go func() {
			defer close(called)
			if i%2 == 0 {
				// Whatever it is told: it is told something.
				_, _ = idemv1.NewLedgerServiceClient(d.Conn()).Begin(context.Background(), request("k"))
			}
		}()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		<-called
	}
}

// What can not start says so and leaves nothing behind.
func TestStartFails(t *testing.T) {
	t.Parallel()
	store := storetest.NewFaulty(storetest.NewModel(storetest.NewClock(1), 0), nil)
	store.Down()
	if _, err := servertest.Start(servertest.Options{Store: store}); !errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("on a store that is away: %v", err)
	}
	if _, err := servertest.Start(servertest.Options{DrainTimeout: -1}); err == nil {
		t.Error("with a config that can not work it starts")
	}
}

// The clock stands still until the test moves it: a lease ends when the test says so.
func TestClockIsTheTests(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	granted := begin(t, d.Conn(), request("k")).GetGranted()
	if want := d.Clock().Now().Add(ledger.DefaultLease).Wall(); !granted.GetLeaseExpireTime().AsTime().Equal(want) {
		t.Errorf("the lease ends at %v, want %v", granted.GetLeaseExpireTime().AsTime(), want)
	}
	d.Clock().Advance(ledger.DefaultLease - time.Microsecond)
	if begin(t, d.Conn(), request("k")).GetInProgress() == nil {
		t.Error("the lease is over before its end")
	}
	d.Clock().Advance(time.Microsecond)
	if got := begin(t, d.Conn(), request("k")).GetGranted(); got.GetAttempt() != 2 || !got.GetPreviousAbandoned() {
		t.Errorf("after the lease: %v", got)
	}
}

// The same daemon over a real socket, for callers in other languages, and in memory beside it.
func TestTCP(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{TCP: true})
	conn, err := grpc.NewClient(d.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	granted := begin(t, conn, request("k")).GetGranted()
	complete(t, d.Conn(), "k", granted)
	if got := begin(t, conn, request("k")).GetCompleted(); string(got.GetResponse().GetBody()) != "done" {
		t.Errorf("replayed as %v", got)
	}
}

// A reply that is lost was carried out: its caller is told UNAVAILABLE, as by a connection that broke, and the resend gets the same claim.
func TestLoseReplies(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	d.LoseReplies(func(method string) bool { return method == idemv1.LedgerService_Begin_FullMethodName })
	req := request("k")
	_, err := idemv1.NewLedgerServiceClient(d.Conn()).Begin(t.Context(), req)
	if st := status.Convert(err); st.Code() != codes.Unavailable || len(st.Details()) != 0 {
		t.Errorf("a lost reply looks like %v", err)
	}
	d.LoseReplies(nil)
	resent := begin(t, d.Conn(), req).GetGranted()
	if !resent.GetResumed() || resent.GetAttempt() != 1 || d.LostReplies() != 1 {
		t.Errorf("the resend got %v after %d lost replies", resent, d.LostReplies())
	}
}

// While the store is away every call is refused, and what was there before is there after.
func TestDownAndUp(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	req := request("k")
	first := begin(t, d.Conn(), req).GetGranted()
	d.Down()
	_, err := idemv1.NewLedgerServiceClient(d.Conn()).Begin(t.Context(), request("other"))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("while the store is away: %v", err)
	}
	d.Up()
	if again := begin(t, d.Conn(), req).GetGranted(); again.GetFence() != first.GetFence() {
		t.Errorf("after: %v, before: %v", again, first)
	}
}

// Two daemons on one store are one ledger, and one survives the other.
func TestTwoDaemonsOnOneStore(t *testing.T) {
	t.Parallel()
	clock := storetest.NewClock(1_800_000_000_000_000)
	store := storetest.NewModel(clock, 0)
	a := servertest.New(t, servertest.Options{Clock: clock, Store: store})
	b := servertest.New(t, servertest.Options{Clock: clock, Store: store})
	granted := begin(t, a.Conn(), request("k")).GetGranted()
	if begin(t, b.Conn(), request("k")).GetInProgress() == nil {
		t.Error("both daemons grant the same entry")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	complete(t, b.Conn(), "k", granted)
	if begin(t, b.Conn(), request("k")).GetCompleted() == nil {
		t.Error("the other daemon's claim is not known")
	}
}

// A further connection has options of its own and is closed with the daemon.
func TestDial(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	calls := 0
	conn, err := d.Dial(grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		calls++
		return invoke(ctx, method, req, reply, cc, o...)
	}))
	if err != nil {
		t.Fatal(err)
	}
	begin(t, conn, request("k"))
	begin(t, d.Conn(), request("k"))
	if calls != 1 {
		t.Errorf("the interceptor saw %d calls, want its own connection's", calls)
	}
}

// A daemon that has a test is started and closed for it.
func ExampleStart() {
	d, err := servertest.Start(servertest.Options{})
	if err != nil {
		panic(err)
	}
	defer func() { _ = d.Close() }()
	ledgerClient := idemv1.NewLedgerServiceClient(d.Conn())
	_, _ = ledgerClient.Lookup(context.Background(), &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Operation: "op", Key: "k"}})
	d.Clock().Advance(time.Hour)
	d.Down()
	d.Up()
}

// A daemon that was started serves, and can be closed at once.
func TestAStartedDaemonServesAndCloses(t *testing.T) {
	for i := range 100 {
		d, err := servertest.Start(servertest.Options{TCP: i%2 == 0})
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			health, err := healthpb.NewHealthClient(d.Conn()).Check(t.Context(), &healthpb.HealthCheckRequest{})
			if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("%d: %v %v", i, health, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}
