package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
)

// memoryDaemon is a whole daemon in memory, on a clock that stands still until the test moves it, with a secret that is always the same: what
// it answers is the same in every run.
type memoryDaemon struct {
	t        *testing.T
	clock    *storetest.Clock
	listener *bufconn.Listener
	ledger   *ledger.Ledger
	claims   map[string]*idemv1.Claim
	caller   idemv1.LedgerServiceClient
	attempts int
	streams  *atomic.Int64 // Session streams that were opened
}

// sessions is how many Session streams were opened so far.
func (d *memoryDaemon) sessions() int64 { return d.streams.Load() }

// memoryStart is when the clocks of memory daemons start.
var memoryStart = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newMemoryDaemon(t *testing.T) *memoryDaemon {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := &memoryDaemon{
		t: t, clock: storetest.NewClock(ledger.Time(memoryStart.UnixMicro())), listener: bufconn.Listen(1 << 20), claims: map[string]*idemv1.Claim{},
		streams: &atomic.Int64{},
	}
	store := storetest.NewModel(d.clock, 0)
	secret := ledger.Setting{Kind: "secret", Name: "v1", Body: bytes.Repeat([]byte{7}, ledger.SecretBytes)}
	if _, err := store.PutSetting(ctx, secret, 0); err != nil {
		t.Fatal(err)
	}
	var err error
	if d.ledger, err = ledger.New(ctx, ledger.Config{Store: store, Daemon: "memory", SweepEvery: -1}); err != nil {
		t.Fatal(err)
	}
	counted := grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.FullMethod == idemv1.LedgerService_Session_FullMethodName {
			d.streams.Add(1)
		}
		return handler(service, stream)
	})
	s, err := server.New(server.Config{Ledger: d.ledger, ServerOptions: []grpc.ServerOption{counted}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, d.listener, nil) }()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(d.dial))
	if err != nil {
		t.Fatal(err)
	}
	d.caller = idemv1.NewLedgerServiceClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the daemon ended with %v", err)
		}
	})
	return d
}

func (d *memoryDaemon) dial(ctx context.Context, _ string) (net.Conn, error) {
	return d.listener.DialContext(ctx)
}

func ref(key string) *idemv1.EntryRef {
	return &idemv1.EntryRef{Tenant: "default", Operation: "shop.v1.PaymentService/Charge", Key: key}
}

// begin claims an entry, and keeps the claim under its key.
func (d *memoryDaemon) begin(key string) error {
	d.attempts++
	out, err := d.caller.Begin(d.t.Context(), &idemv1.BeginRequest{
		Ref: ref(key), AttemptId: fmt.Sprintf("00000000-0000-4000-8000-%012d", d.attempts), Holder: "pod-" + key,
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: "test", Hash: bytes.Repeat([]byte(key[:1]), 16)}},
	})
	if err != nil {
		return err
	}
	if out.GetGranted() == nil {
		return fmt.Errorf("begin %s: %v", key, out)
	}
	d.claims[key] = out.GetGranted()
	return nil
}

// result is what one command line came to.
type result struct {
	stdout, stderr string
	code           int
}

// runs runs a command line against the daemon.
func (d *memoryDaemon) runs(typed string, args ...string) result {
	var stdout, stderr bytes.Buffer
	w := &world{
		stdin: strings.NewReader(typed), stdout: &printer{to: &stdout}, stderr: &printer{to: &stderr}, zone: time.UTC, asks: typed != "", dial: d.dial,
		sleep: func(length time.Duration) { d.clock.Advance(length) },
	}
	code := w.run(d.t.Context(), args)
	return result{stdout.String(), stderr.String(), code}
}

// runAlone runs a command line in a world without a daemon.
func runAlone(t *testing.T, environ []string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	// The first of a name counts, so a test that sets HOME has its own. Whoever runs the tests, what runs in them is an ordinary user.
	environ = append(slices.Clone(environ), "HOME="+t.TempDir())
	// A daemon that starts although it was to be refused ends at once.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if len(args) > 0 && args[0] == "serve" {
		cancel()
	}
	w := &world{
		uid:   1000,
		stdin: strings.NewReader(""), stdout: &printer{to: &stdout}, stderr: &printer{to: &stderr}, zone: time.UTC, environ: environ,
		dial: func(context.Context, string) (net.Conn, error) { return nil, fmt.Errorf("nobody is there") },
	}
	code := w.run(ctx, args)
	return result{stdout.String(), stderr.String(), code}
}
