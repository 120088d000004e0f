// Package servertest is a whole daemon in memory, for tests: the real server on the real ledger, over the reference store, with a clock that tests
// move and faults that they switch on and off. Nothing leaves the process unless [Options].TCP asks for it.
//
// [New] is for a test; [Start] and [Daemon.Close] are for everybody else.
package servertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
)

// Options say what kind of daemon it is. The zero value is one that everybody may use, on a clock that stands still until it is moved.
type Options struct {
	// Clock is the store's; nil: one that stands at the machine's time until it is moved.
	Clock *storetest.Clock
	// Store is where the entries are, for a second daemon on the store of a first; nil: an empty one on Clock.
	Store ledger.Store
	// Logger; nil: silence.
	Logger *slog.Logger
	// Identify as in server.Config; nil: everybody may do everything.
	Identify func(ctx context.Context, fullMethod string) (server.Principal, error)
	// TCP also listens on a free port of the loopback interface, see [Daemon.Addr].
	TCP bool
	// DrainTimeout as in server.Config.
	DrainTimeout time.Duration
	// Waiting and Clamp as in ledger.Config.
	Waiting ledger.WaitLimits
	Clamp   ledger.Clamp
	// SweepEvery as in ledger.Config, but 0: never by itself, so that nothing happens that the test did not ask for.
	SweepEvery time.Duration
	// TracerProvider as in server.Config.
	TracerProvider trace.TracerProvider
	// Observer is told what the ledger's metrics are told.
	Observer ledger.Observer
	// Config, if set, changes the server's config before it is used.
	Config func(*server.Config)
}

// Daemon is a running daemon.
type Daemon struct {
	clock    *storetest.Clock
	store    *storetest.Faulty
	ledger   *ledger.Ledger
	server   *server.Server
	registry *prometheus.Registry
	wire     *wire

	pipe *bufconn.Listener
	tcp  net.Listener

	mu    sync.Mutex
	conns []*grpc.ClientConn // guarded by mu; [0] is Conn's

	stop     context.CancelFunc
	serving  chan error
	working  chan error
	stopOnce sync.Once
}

// New starts a daemon and stops it when the test ends. It fails the test where either does.
func New(t testing.TB, o Options) *Daemon {
	t.Helper()
	d, err := Start(o)
	if err != nil {
		t.Fatalf("servertest: %v", err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("servertest: %v", err)
		}
	})
	return d
}

// Start starts a daemon. Whoever starts one closes it.
func Start(o Options) (*Daemon, error) {
	d := &Daemon{
		clock: o.Clock, registry: prometheus.NewRegistry(), wire: &wire{}, pipe: bufconn.Listen(1 << 20),
		serving: make(chan error, 1), working: make(chan error, 1),
	}
	if d.clock == nil {
		d.clock = storetest.NewClock(ledger.Time(time.Now().UnixMicro()))
	}
	if o.Store == nil {
		o.Store = storetest.NewModel(d.clock, 0)
	}
	d.store = storetest.NewFaulty(o.Store, nil)
	if o.SweepEvery == 0 {
		o.SweepEvery = -1
	}
	metrics := server.NewMetrics(d.registry)
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	if err := d.start(ctx, o, metrics); err != nil {
		stop()
		return nil, errors.Join(err, d.closeConns())
	}
	return d, nil
}

func (d *Daemon) start(ctx context.Context, o Options, metrics *server.Metrics) error {
	var err error
	d.ledger, err = ledger.New(ctx, ledger.Config{
		Store: d.store, Clamp: o.Clamp, Waiting: o.Waiting, SweepEvery: o.SweepEvery, Observer: observers{metrics, o.Observer}, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	cfg := server.Config{
		Ledger: d.ledger, Logger: o.Logger, Metrics: metrics, Gatherer: d.registry, Identify: o.Identify, TracerProvider: o.TracerProvider,
		Version: "servertest", DrainTimeout: o.DrainTimeout, ServerOptions: []grpc.ServerOption{grpc.UnaryInterceptor(d.wire.unary)},
	}
	if o.Config != nil {
		o.Config(&cfg)
	}
	if d.server, err = server.New(cfg); err != nil {
		return err
	}
	if _, err = d.Dial(); err != nil {
		return err
	}
	if o.TCP {
		var listen net.ListenConfig
		if d.tcp, err = listen.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return fmt.Errorf("listening on the loopback interface: %w", err)
		}
	}
	work, stopWork := context.WithCancel(context.Background())
	go func() { d.working <- d.ledger.Run(work) }()
	if d.tcp != nil {
		// Stops when the server does, and says why by then.
		go func() { _ = d.server.GRPC().Serve(d.tcp) }()
	}
	go func() {
		err := d.server.Serve(ctx, d.pipe, nil)
		stopWork()
		d.serving <- err
	}()
	return nil
}

// Close drains the daemon as a signal would, closes its connections and returns what was wrong with the drain. Once it was closed, further
// calls return nil.
func (d *Daemon) Close() (err error) {
	d.stopOnce.Do(func() {
		d.stop()
		err = errors.Join(<-d.serving, <-d.working, d.closeConns())
	})
	return err
}

// Draining is closed once the daemon is on its way out.
func (d *Daemon) Draining() <-chan struct{} { return d.server.Draining() }

func (d *Daemon) closeConns() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var failed error
	for _, conn := range d.conns {
		failed = errors.Join(failed, conn.Close())
	}
	return failed
}

// Conn is the daemon's connection in memory.
func (d *Daemon) Conn() *grpc.ClientConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conns[0]
}

// Dial makes a further connection in memory, with options of its own. Close closes it.
func (d *Daemon) Dial(options ...grpc.DialOption) (*grpc.ClientConn, error) {
	own := []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.pipe.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(server.MaxSendBytes), grpc.MaxCallSendMsgSize(server.MaxReceiveBytes)),
	}
	conn, err := grpc.NewClient("passthrough:///servertest", append(own, options...)...)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn)
	return conn, nil
}

// Addr is where the daemon listens on the loopback interface; "" without [Options].TCP.
func (d *Daemon) Addr() string {
	if d.tcp == nil {
		return ""
	}
	return d.tcp.Addr().String()
}

// Clock is the store's clock: leases end and retention passes when it is moved.
func (d *Daemon) Clock() *storetest.Clock { return d.clock }

// Ledger is the daemon's ledger, for what no RPC does.
func (d *Daemon) Ledger() *ledger.Ledger { return d.ledger }

// Server is the daemon's server.
func (d *Daemon) Server() *server.Server { return d.server }

// Registry is what the daemon's metrics are registered on.
func (d *Daemon) Registry() *prometheus.Registry { return d.registry }

// Store is the daemon's store, for faults by plan.
func (d *Daemon) Store() *storetest.Faulty { return d.store }

// Down makes the store go away until Up: calls are refused STORE_UNAVAILABLE.
func (d *Daemon) Down() { d.store.Down() }

// Up brings the store back. Leases that were lost meanwhile are not taken over at once: their holders come back first.
func (d *Daemon) Up() { d.store.Up() }

// LoseReplies loses the reply of each unary call that match names: it is carried out, and its caller is told UNAVAILABLE. Nil: none is
// lost any more.
func (d *Daemon) LoseReplies(match func(fullMethod string) bool) { d.wire.lose(match) }

// LostReplies is how many replies were lost so far.
func (d *Daemon) LostReplies() int { return d.wire.count() }

// wire is the way between server and caller. It stands outside all of the server's interceptors.
type wire struct {
	mu    sync.Mutex
	match func(fullMethod string) bool // guarded by mu
	lost  int                          // guarded by mu
}

func (w *wire) lose(match func(string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.match = match
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *wire) loses(method string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.match == nil || !w.match(method) {
		return false
	}
	w.lost++
	return true
}

func (w *wire) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if w.loses(info.FullMethod) {
		// As a broken connection looks to its caller: no details.
		return nil, status.Error(codes.Unavailable, "the connection broke (servertest)")
	}
	return resp, err
}

// observers tells several.
type observers [2]ledger.Observer

func (o observers) each(tell func(ledger.Observer)) {
	for _, x := range o {
		if x != nil {
			tell(x)
		}
	}
}

// StoreCall implements [ledger.Observer].
func (o observers) StoreCall(call string, took time.Duration, err error) {
	o.each(func(x ledger.Observer) { x.StoreCall(call, took, err) })
}

// Waiting implements [ledger.Observer].
func (o observers) Waiting(n int) { o.each(func(x ledger.Observer) { x.Waiting(n) }) }

// Swept implements [ledger.Observer].
func (o observers) Swept(p ledger.SweepProgress) { o.each(func(x ledger.Observer) { x.Swept(p) }) }

// Overdue implements [ledger.Observer].
func (o observers) Overdue(due, held time.Duration, n int) {
	o.each(func(x ledger.Observer) { x.Overdue(due, held, n) })
}
