package linear

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
)

// daemon is a ledger as its clients see it.
type daemon interface {
	begin(ctx context.Context, key string, id uuid.UUID, c call, wait time.Duration) told
	report(ctx context.Context, key, token string, r report) told
	extend(ctx context.Context, key, token string) told
	lookup(ctx context.Context, key string) told
}

// play is how a run goes.
type play struct {
	daemons []daemon
	keys    int
	clients int
	steps   int // of each client
	// pace is how long a client may rest between two steps, where what goes wrong takes longer than calls do.
	pace  time.Duration
	limit int8
	// lapse ends all leases; nil: no lease ever ends.
	lapse func(context.Context) error
	// weather makes things go wrong until its context ends; nil: nothing does.
	weather func(context.Context, *rand.Rand)
	// operators resolve and erase among the clients.
	operators bool
	// deadlines are as short as a millisecond now and then.
	deadlines bool
}

// run plays it, and has every key's history checked.
func (p play) run(t testing.TB, seed uint64) *history {
	t.Helper()
	h := p.record(t, seed)
	h.check(t, p.limit, seed)
	return h
}

func (p play) record(t testing.TB, seed uint64) *history {
	t.Helper()
	r := &run{play: p}
	var names []string
	for i := range p.keys {
		k := &key{name: fmt.Sprintf("key %d of %d, %s", i, seed, uuid.NewString()[:8])}
		names = append(names, k.name)
		r.keys = append(r.keys, k)
	}
	r.history = newHistory(names)
	ctx, stop := context.WithCancel(t.Context())
	var clients, weather sync.WaitGroup
	if p.weather != nil {
		weather.Go(func() { p.weather(ctx, rand.New(rand.NewPCG(seed, 1))) })
	}
	for n := range p.clients {
		c := &client{run: r, n: n, rng: rand.New(rand.NewPCG(seed, uint64(n)+2)), holds: map[*key][]claim{}, began: map[*key][]call{}, decided: map[*key][]call{}}
		clients.Go(func() {
			for range p.steps {
				c.step(ctx)
				if p.pace > 0 {
					pass(ctx, time.Duration(c.rng.Int64N(int64(p.pace))))
				}
			}
		})
	}
	clients.Wait()
	stop()
	weather.Wait()
	if r.failed != nil {
		t.Errorf("seed %d: the leases could not be ended: %v", seed, r.failed)
	}
	return r.history
}

type run struct {
	play
	keys    []*key
	history *history
	mu      sync.Mutex // one after the other ends leases
	failed  error      // guarded by mu
}

// key is one entry that the clients fight over.
type key struct {
	name      string
	ids       atomic.Int32
	decisions atomic.Int32 // of operators
}

type claim struct {
	call    call // the Begin that was granted
	attempt int8
	token   string
	reports []report
}

// client does what clients do, at random.
type client struct {
	*run
	n     int
	rng   *rand.Rand
	holds map[*key][]claim
	began map[*key][]call
	// decided is what this client resolved as an operator.
	decided map[*key][]call
}

func (c *client) step(ctx context.Context) {
	k := c.keys[c.rng.IntN(len(c.keys))]
	if c.rng.IntN(40) == 0 {
		c.die()
	}
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	d := c.daemons[c.rng.IntN(len(c.daemons))]
	if c.operators && c.rng.IntN(16) == 0 {
		c.operates(ctx, d, k)
		return
	}
	switch c.rng.IntN(20) {
	case 0, 1, 2, 3, 4:
		c.beginNew(ctx, d, k)
	case 5, 6, 7:
		c.beginAgain(ctx, d, k)
	case 8, 9, 10, 11, 12:
		c.tell(ctx, d, k)
	case 13, 14:
		c.extend(ctx, d, k)
	case 15:
		c.endLeases(context.WithoutCancel(ctx))
	default:
		c.looks(ctx, d, k)
	}
}

func (c *client) looks(ctx context.Context, d daemon, k *key) told {
	called := c.history.now()
	t := d.lookup(ctx, k.name)
	c.history.add(c.n, k.name, call{kind: lookup}, t, called)
	return t
}

// operates resolves an entry; rarely, since nothing happens afterwards, it erases all of them.
func (c *client) operates(ctx context.Context, d daemon, k *key) {
	if c.rng.IntN(12) == 0 {
		c.erases(ctx, d)
		return
	}
	c.resolves(ctx, d, k)
}

// die forgets everything, as a client does that is killed and started again. What it had under way is cut off by its deadline.
func (c *client) die() { clear(c.holds); clear(c.began) }

// longDeadline is only ever reached where a database is away.
const longDeadline = 5 * time.Second

func (c *client) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.deadlines && c.rng.IntN(8) == 0 {
		return context.WithTimeout(ctx, time.Duration(c.rng.IntN(2000))*time.Microsecond)
	}
	return context.WithTimeout(ctx, longDeadline)
}

func (c *client) beginNew(ctx context.Context, d daemon, k *key) {
	b := call{kind: begin, id: int16(k.ids.Add(1)), recover: c.rng.IntN(5) == 0}
	if c.rng.IntN(25) == 0 {
		b.print = 1 // the key for another request
	}
	c.began[k] = append(c.began[k], b)
	c.send(ctx, d, k, b)
}

func (c *client) beginAgain(ctx context.Context, d daemon, k *key) {
	began := c.began[k]
	if len(began) == 0 {
		return
	}
	c.send(ctx, d, k, began[len(began)-1-min(c.rng.IntN(3)*c.rng.IntN(2), len(began)-1)])
}

func (c *client) send(ctx context.Context, d daemon, k *key, b call) {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte(k.name+strconv.Itoa(int(b.id))))
	wait := time.Duration(0)
	if c.rng.IntN(10) == 0 {
		wait = 30 * time.Millisecond
	}
	called := c.history.now()
	t := d.begin(ctx, k.name, id, b, wait)
	c.history.add(c.n, k.name, b, t, called)
	if t.what == "granted" {
		c.holds[k] = append(c.holds[k], claim{call: b, attempt: t.attempt, token: t.token})
	}
}

// held is one of the latest claims that this client was told of.
func (c *client) held(k *key) *claim {
	have := c.holds[k]
	if len(have) == 0 {
		return nil
	}
	return &have[len(have)-1-min(c.rng.IntN(3)*c.rng.IntN(2), len(have)-1)]
}

func (c *client) tell(ctx context.Context, d daemon, k *key) {
	held := c.held(k)
	if held == nil {
		return
	}
	r := report{kind: []verdict{success, final, retryable, retryable, retryable, unknown, unknown}[c.rng.IntN(7)], text: byte('a' + c.rng.IntN(2))}
	if r.kind == unknown {
		r.text = 0
	}
	if held != &c.holds[k][len(c.holds[k])-1] && c.rng.IntN(3) == 0 {
		r = report{kind: success, text: 'a'} // a success that comes late is what changes most
	}
	if len(held.reports) > 0 && c.rng.IntN(2) == 0 {
		r = held.reports[c.rng.IntN(len(held.reports))] // sent again
	}
	held.reports = append(held.reports, r)
	called := c.history.now()
	t := d.report(ctx, k.name, held.token, r)
	c.history.add(c.n, k.name, call{kind: tell, id: held.call.id, attempt: held.attempt, report: r}, t, called)
}

func (c *client) extend(ctx context.Context, d daemon, k *key) {
	held := c.held(k)
	if held == nil {
		return
	}
	called := c.history.now()
	t := d.extend(ctx, k.name, held.token)
	c.history.add(c.n, k.name, call{kind: extend, id: held.call.id, attempt: held.attempt}, t, called)
}

func (c *client) endLeases(ctx context.Context) {
	if c.lapse == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	called := c.history.now()
	if err := c.lapse(ctx); err != nil {
		c.failed = err
		return
	}
	c.history.lapsed(c.n, called)
}

// lease is longer than any run; lapseBy is longer than that with any store's margin.
const (
	lease   = 5 * time.Minute
	lapseBy = 2*lease + time.Minute
)

// scale multiplies how much is played: PROOF_SCALE, for the long form.
func scale() int {
	n, err := strconv.Atoi(os.Getenv("PROOF_SCALE"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// seeds calls play with n seeds that follow one another from PROOF_SEED, else from one drawn now and printed. With PROOF_SEED one is played.
func seeds(t *testing.T, n int, play func(seed uint64)) {
	t.Helper()
	if given, err := strconv.ParseUint(os.Getenv("PROOF_SEED"), 10, 64); err == nil {
		play(given)
		return
	}
	first := rand.Uint64() >> 16
	n *= scale()
	t.Logf("seeds %d to %d; repeat one with PROOF_SEED", first, first+uint64(n)-1)
	for i := range n {
		if play(first + uint64(i)); t.Failed() {
			return
		}
	}
}
