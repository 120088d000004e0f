package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// How a world is. Everything is short, so that much of it passes: leases, retention, tombstones, and new lives of forgotten keys.
const (
	daemons   = 2
	services  = 3
	lease     = 2 * time.Second
	retention = 6 * time.Second
	tombstone = 4 * time.Second
	length    = 18 * time.Second
	patience  = 15 * time.Second // of a caller
	operation = "sim"
	declined  = "declined"
)

// fault is what is deliberately wrong in a world, for a test that the auditor sees it.
type fault struct {
	// store stands between the daemons and the store; nil: nothing does.
	store func(ledger.Store) ledger.Store
	// failOpen has guards run although the ledger is away.
	failOpen bool
}

// world is one run.
type world struct {
	t       *testing.T
	fault   fault
	auditor *auditor
	clock   *storetest.Clock
	store   ledger.Store
	// recording is what the store was asked.
	recording *recording
	down      downstream

	mu      sync.Mutex
	running [daemons]*servertest.Daemon // guarded by mu
	faults  map[storetest.FaultKind]int // guarded by mu
	dos     int                         // guarded by mu
	waiting [daemons]int                // guarded by mu
}

func (w *world) daemon(n int) *servertest.Daemon {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running[n]
}

// watching tells how many wait at a daemon.
type watching struct {
	world *world
	n     int
}

func (o watching) StoreCall(string, time.Duration, error)    {}
func (o watching) Swept(ledger.SweepProgress)                {}
func (o watching) Overdue(time.Duration, time.Duration, int) {}
func (o watching) Waiting(n int)                             { o.world.mu.Lock(); o.world.waiting[o.n] = n; o.world.mu.Unlock() }

func (w *world) start(n int, rng *rand.Rand) {
	store := w.store
	if w.fault.store != nil {
		store = w.fault.store(store)
	}
	d, err := servertest.Start(servertest.Options{
		Clock: w.clock, Store: store, SweepEvery: 4 * time.Second, DrainTimeout: 5 * time.Second, Observer: watching{w, n},
		Config: func(c *server.Config) {
			c.ServerOptions = append(c.ServerOptions, grpc.ChainUnaryInterceptor(w.recording.unary))
		},
	})
	if err != nil {
		w.t.Fatalf("a daemon: %v", err)
	}
	d.Store().Plan(storetest.Seeded(rng.Uint64(), storetest.Odds{Refuse: 0.01, Contend: 0.01, LoseReply: 0.03, LoseRequest: 0.02, Late: 0.02}))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[n] = d
}

func (w *world) stop(n int) {
	d := w.daemon(n)
	d.Store().Plan(nil)
	if err := d.Close(); err != nil {
		w.t.Errorf("a daemon did not end: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, count := range d.Store().Counts() {
		w.faults[kind] += count
	}
	if w.waiting[n] != 0 {
		w.auditor.complain(waiterLeftBehind, "daemon %d ended while %d waited", n, w.waiting[n])
	}
}

// play runs a world to its end, inside a bubble, and returns it.
func play(t *testing.T, seed uint64, wrong fault) *world {
	clock := storetest.NewRunningClock()
	w := &world{t: t, fault: wrong, auditor: newAuditor(), clock: clock, recording: &recording{Store: storetest.NewModel(clock, 0), clock: clock}, faults: map[storetest.FaultKind]int{}}
	w.store = w.recording
	w.down.reached = map[string]int64{}
	w.down.found = map[string]effect{}
	rng := rand.New(rand.NewPCG(seed, 0))
	w.setPolicy()
	for n := range daemons {
		w.start(n, rng)
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var wg sync.WaitGroup
	for n := range services {
		mine := rand.New(rand.NewPCG(seed, uint64(n)+1))
		wg.Go(func() { w.serve(ctx, n, mine) })
	}
	wg.Go(func() { w.trouble(ctx, rand.New(rand.NewPCG(seed, 100))) })
	wg.Wait()
	for n := range daemons {
		w.stop(n)
	}
	return w
}

// setPolicy writes the policy before there is a daemon, so that all of them follow it from the start.
func (w *world) setPolicy() {
	l, err := ledger.New(w.t.Context(), ledger.Config{Store: w.store})
	if err != nil {
		w.t.Fatal(err)
	}
	stay := tombstone
	if _, err := l.PutPolicy(w.t.Context(), ledger.Policy{
		Tenant: "*", Operation: operation, Lease: lease, MaxAttempts: 32, Tombstone: &stay, Horizons: ledger.Horizons{ClientRetry: retention},
	}, -1); err != nil {
		w.t.Fatal(err)
	}
}

// trouble takes the store away from a daemon, and starts daemons again.
func (w *world) trouble(ctx context.Context, rng *rand.Rand) {
	for {
		pass(ctx, time.Duration(rng.IntN(int(12*time.Second))))
		if ctx.Err() != nil {
			return
		}
		n := rng.IntN(daemons)
		if rng.IntN(3) == 0 {
			w.auditor.note("daemon %d starts again", n)
			w.stop(n)
			w.start(n, rng)
			continue
		}
		w.auditor.note("the store is away from daemon %d", n)
		d := w.daemon(n)
		d.Down()
		pass(ctx, time.Duration(rng.IntN(int(3*lease))))
		d.Up()
		w.auditor.note("the store is back for daemon %d", n)
	}
}

// serve is a service: its processes come one after the other, as they crash.
func (w *world) serve(ctx context.Context, n int, rng *rand.Rand) {
	for life := 0; ctx.Err() == nil; life++ {
		wire := &wire{world: w, rng: rand.New(rand.NewPCG(rng.Uint64(), 0)), claims: map[string]int64{}}
		client, err := clientlib.New(clientlib.Config{
			Conn: wire, Holder: fmt.Sprintf("service %d.%d", n, life), TryTimeout: 2 * time.Second, LedgerTimeout: 5 * time.Second,
			SettleLimit: 20 * time.Second, CloseTimeout: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		})
		if err != nil {
			w.t.Fatal(err)
		}
		lives := time.Duration(rng.IntN(int(length)))
		alive, die := context.WithTimeout(ctx, lives)
		var wg sync.WaitGroup
		for worker := range 2 {
			mine := rand.New(rand.NewPCG(rng.Uint64(), uint64(worker)))
			wg.Go(func() { w.work(alive, client, wire, mine) })
		}
		<-alive.Done()
		if ctx.Err() == nil {
			w.auditor.note("service %d.%d crashes", n, life)
			wire.die()
		}
		wg.Wait()
		_ = client.Close() // of a process that crashed, outcomes are left
		die()
	}
}

func (w *world) work(ctx context.Context, client *clientlib.Client, wire *wire, rng *rand.Rand) {
	for ctx.Err() == nil {
		pass(ctx, time.Duration(rng.IntN(int(8*time.Second))))
		if ctx.Err() == nil {
			w.do(ctx, client, wire, rng)
		}
	}
}

func pass(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// keys are the intents, by what becomes of them when they are abandoned.
var keys = []string{"recovered", "rerun", "refused"}

func (w *world) do(ctx context.Context, client *clientlib.Client, wire *wire, rng *rand.Rand) {
	key := keys[rng.IntN(len(keys))]
	ends, takes, chance := rng.IntN(10), time.Duration(rng.IntN(int(lease))), rng.IntN(8)
	if chance == 0 {
		takes *= 4
	}
	options := clientlib.Options{Lease: lease, Wait: time.Duration(rng.IntN(int(10 * time.Second))), FailOpen: w.fault.failOpen}
	switch key {
	case "recovered":
		options.Abandoned = clientlib.Recover(func(_ context.Context, claim clientlib.Claim) (clientlib.Finding, error) { return w.down.ask(claim) })
	case "rerun":
		options.Abandoned = clientlib.Rerun()
	default:
		options.Abandoned = clientlib.Refuse()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	print, err := fingerprint.Bytes([]byte(key))
	if err != nil {
		w.t.Fatal(err)
	}
	result, err := client.Do(ctx, clientlib.Ref{Operation: operation, Key: key}, print, func(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
		pass(ctx, takes)
		if ctx.Err() != nil || wire.isDead() {
			return clientlib.Response{}, clientlib.NothingHappened(status.Error(codes.Canceled, "stopped before anything happened"))
		}
		return w.carryOut(claim, ends)
	}, options)
	w.mu.Lock()
	w.dos++
	w.mu.Unlock()
	w.auditor.note("do %s → %s %v", key, result.Outcome, err)
	if slow := time.Since(began) - patience; slow > waitSlack {
		w.auditor.complain(waiterLeftBehind, "a Do of %s came back %v after its caller's deadline", key, slow)
	}
}

// carryOut is the work itself: it has its effect downstream and says so, or says something else.
func (w *world) carryOut(claim clientlib.Claim, ends int) (clientlib.Response, error) {
	switch ends {
	case 0:
		return clientlib.Response{}, clientlib.NothingHappened(status.Error(codes.ResourceExhausted, "not now"))
	case 1:
		return clientlib.Response{}, clientlib.Final(status.Error(codes.FailedPrecondition, declined))
	}
	x := effect{
		incarnation: claim.Incarnation, fence: claim.Fence, attempt: claim.Attempt, answer: fmt.Sprintf("%s, fence %d", claim.Ref.Key, claim.Fence),
	}
	if !w.down.take(claim, x) {
		return clientlib.Response{}, clientlib.NothingHappened(status.Error(codes.Aborted, "the fence is too old"))
	}
	w.auditor.happened(claim.Ref.Key, x, claim.Ref.Key == "rerun")
	if ends == 2 {
		return clientlib.Response{}, status.Error(codes.Unknown, "and now nobody knows")
	}
	return clientlib.Response{Body: []byte(x.answer)}, nil
}

// downstream is where effects happen. It compares fences and can be asked.
type downstream struct {
	mu      sync.Mutex
	reached map[string]int64  // guarded by mu; the highest fence that came
	found   map[string]effect // guarded by mu; the latest effect
}

func (d *downstream) reachLocked(claim clientlib.Claim) bool {
	if claim.Fence < d.reached[claim.Ref.Key] {
		return false
	}
	d.reached[claim.Ref.Key] = claim.Fence
	return true
}

func (d *downstream) take(claim clientlib.Claim, x effect) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.reachLocked(claim) {
		return false
	}
	d.found[claim.Ref.Key] = x
	return true
}

func (d *downstream) ask(claim clientlib.Claim) (clientlib.Finding, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.reachLocked(claim) {
		return clientlib.Finding{}, errors.New("the fence is too old")
	}
	if x, ok := d.found[claim.Ref.Key]; ok && x.incarnation == claim.Incarnation {
		return clientlib.Happened(clientlib.Response{Body: []byte(x.answer)}), nil
	}
	return clientlib.DidNotHappen(), nil
}
