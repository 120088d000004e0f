package sqlstore

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/ledger"
)

// Sizes of the gathering of writes.
const (
	// maxFlights is how many batches are on their way at a time: while one is being synced, the other's statements run. More only make
	// them smaller (docs/performance.md has the numbers).
	maxFlights = 2
	// maxBatch is how many writes one transaction takes, and maxBatchBytes how many bytes of answers and histories. A larger one goes alone.
	maxBatch      = 128
	maxBatchBytes = 4 << 20
	// laterShare is how much of a full batch is left to the writes that may wait, so that they are slowed down and never starved.
	laterShare = maxBatch / 8
	// lineLength is how many writes wait in each of the two lines; the next callers wait outside, as long as their contexts let them.
	lineLength = 1024
	// lockWait is how long a batch waits for a row that somebody else has locked: longer than another daemon's batch takes, and much
	// shorter than anything that the rest of the batch would notice.
	lockWait = 25 * time.Millisecond
)

// gatherer is group commit. Writes that arrive while maxFlights batches are on their way wait in a line; the next batch takes what is there. No timer
// is involved: a write that finds a flight free is sent at once, and a busy database shares each sync of its log among many.
//
// A batch is one pipeline of the very statements that would be sent one by one, in one transaction: they run in the order of their scopes, so that
// two daemons' batches do not deadlock, and everybody's outcome is told after its commit. What goes wrong with it is settled so:
//
//   - The outcome is not known: then it is not known to any of its callers. Each reads back its own.
//   - One statement failed: nothing of the batch happened. Its caller alone is told, and the others are sent again.
//   - A row is locked for longer than lockWait, or the engine reports a conflict: that write is taken out and sent by itself, where it waits at its own
//     caller's cost. While it does, whatever comes for the same scope goes by itself, too.
//
// Two batches never hold writes of one scope at the same time, so a daemon does not contend with itself. One batch may: the statements see one another.
type gatherer struct {
	store *Store
	// open ends when the store is closed: whoever waits for a connection then is told so.
	open  context.Context
	close context.CancelFunc

	mu     sync.Mutex
	sooner line                   // guarded by mu; reports and renewals, which go first
	later  line                   // guarded by mu; new grants
	flying int                    // guarded by mu
	busy   map[ledger.ScopeID]int // guarded by mu; how many writes of the scope are in a batch on its way
	apart  map[ledger.ScopeID]int // guarded by mu; how many writes of the scope go by themselves

	// turns bounds how many writes go by themselves at a time: those that wait for a locked row must leave connections to the others.
	turns chan struct{}
	stats counters
}

// line is the writes that wait. A place in it is had before the write is put in.
type line struct {
	places chan struct{}
	calls  []*call
}

func newGatherer(s *Store) *gatherer {
	open, cancel := context.WithCancel(context.Background())
	return &gatherer{
		store: s, open: open, close: cancel,
		sooner: line{places: make(chan struct{}, lineLength)}, later: line{places: make(chan struct{}, lineLength)},
		busy: map[ledger.ScopeID]int{}, apart: map[ledger.ScopeID]int{},
		turns: make(chan struct{}, max(1, s.cfg.MaxConns/2)),
	}
}

// call is one write on its way.
type call struct {
	ctx   context.Context
	scope ledger.ScopeID
	text  string
	args  []any
	size  int // of its blobs, in bytes

	progress atomic.Int32
	done     chan struct{} // closed once written and err are final
	written  ledger.Written
	err      error
}

// A call's progress. From waiting, either its caller or a flight takes it away; whoever does it first decides whether it is sent.
const (
	waiting int32 = iota
	withdrawn
	sent
	byItself
)

func (c *call) finish(err error) {
	c.err = err
	close(c.done)
}

// write sends one write, with others where there are any, and waits until its outcome is certain or its caller leaves.
func (g *gatherer) write(ctx context.Context, l *line, c *call) (ledger.Written, error) {
	if ctx.Err() != nil {
		return ledger.Written{}, ended(ctx, "write", unavailable)
	}
	select {
	case l.places <- struct{}{}:
	case <-ctx.Done():
		return ledger.Written{}, ended(ctx, "write", unavailable)
	}
	c.ctx, c.done = ctx, make(chan struct{})
	g.queue(l, c)
	select {
	case <-c.done:
		return c.written, c.err
	case <-ctx.Done():
	}
	if c.progress.CompareAndSwap(waiting, withdrawn) {
		return ledger.Written{}, ended(ctx, "write", unavailable)
	}
	if c.progress.Load() == byItself {
		<-c.done // it minds the context itself, and knows whether it was sent
	}
	select {
	case <-c.done:
		return c.written, c.err
	default:
		return ledger.Written{}, ended(ctx, "write", unknown)
	}
}

func (g *gatherer) queue(l *line, c *call) {
	g.mu.Lock()
	if g.apart[c.scope] > 0 {
		<-l.places
		g.sendApart(c)
		g.mu.Unlock()
		return
	}
	l.calls = append(l.calls, c)
	start := g.flying < maxFlights
	if start {
		g.flying++
	}
	g.mu.Unlock()
	if start {
		go g.fly()
	}
}

// fly sends batches, one after the other, until nothing waits any more.
func (g *gatherer) fly() {
	for {
		// The connection first: what still arrives while it is waited for goes along.
		conn, err := g.store.pool.Acquire(g.open)
		runtime.Gosched() // those who were told their outcome just now come back with their next write
		batch := g.take()
		if err == nil && len(batch) == 0 {
			conn.Release()
		}
		if len(batch) == 0 {
			return
		}
		if err != nil {
			finishAll(batch, g.store.classified(context.Background(), "write", reading, err)) // reading: nothing was sent
		} else {
			g.carryOut(conn, batch)
		}
		g.landed(batch)
	}
}

// landed lets other batches hold the scopes of this one.
func (g *gatherer) landed(batch []*call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range batch {
		decrement(g.busy, c.scope)
	}
}

func finishAll(batch []*call, err error) {
	for _, c := range batch {
		if err != nil {
			c.written = ledger.Written{}
		}
		c.finish(err)
	}
}

func decrement(m map[ledger.ScopeID]int, scope ledger.ScopeID) {
	if m[scope]--; m[scope] == 0 {
		delete(m, scope)
	}
}

// take is the next batch. Where there is none the flight has ended.
func (g *gatherer) take() []*call {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := filling{gatherer: g}
	f.from(&g.sooner, maxBatch-laterShare)
	f.from(&g.later, maxBatch)
	f.from(&g.sooner, maxBatch)
	for _, c := range f.batch {
		g.busy[c.scope]++
	}
	if len(f.batch) == 0 {
		g.flying--
	}
	slices.SortStableFunc(f.batch, func(a, b *call) int { return bytes.Compare(a.scope[:], b.scope[:]) })
	return f.batch
}

// filling is a batch that is being filled.
type filling struct {
	gatherer *gatherer
	batch    []*call
	size     int
}

// from moves writes from a line to the batch, up to limit in all. One whose scope is on its way keeps its place in the line; one whose caller's time is
// over leaves it, and certainly did nothing.
func (f *filling) from(l *line, limit int) {
	kept := l.calls[:0]
	for i, c := range l.calls {
		if len(f.batch) >= limit || len(f.batch) > 0 && f.size+c.size > maxBatchBytes {
			kept = append(kept, l.calls[i:]...)
			break
		}
		if f.gatherer.busy[c.scope] > 0 {
			kept = append(kept, c)
			continue
		}
		<-l.places
		if !c.progress.CompareAndSwap(waiting, sent) {
			continue
		}
		if c.ctx.Err() != nil {
			c.finish(ended(c.ctx, "write", unavailable))
			continue
		}
		f.batch, f.size = append(f.batch, c), f.size+c.size
	}
	clear(l.calls[len(kept):])
	l.calls = kept
}

// carryOut sends a batch and tells everybody what became of it. It gives the connection back.
func (g *gatherer) carryOut(conn *pgxpool.Conn, batch []*call) {
	culprit, err := g.send(conn, batch)
	conn.Release()
	if err == nil {
		g.stats.count(len(batch))
		finishAll(batch, nil)
		return
	}
	rest := batch
	if culprit >= 0 && classIn(err) != unknown && classIn(err) != unsent {
		c := batch[culprit]
		rest = slices.Concat(batch[:culprit], batch[culprit+1:])
		if classIn(err) == contended {
			g.goApart(c)
		} else {
			finishAll([]*call{c}, err)
		}
	}
	switch {
	case len(rest) == 0:
	case classIn(err) == unsent, culprit >= 0 && classIn(err) != unknown:
		g.again(rest)
	case classIn(err) == contended:
		g.goApart(rest...)
	default:
		finishAll(rest, err)
	}
}

// again sends a batch of which nothing happened a second time, on another connection. If that fails as well, each goes by itself.
func (g *gatherer) again(batch []*call) {
	g.stats.redone.Add(1)
	conn, err := g.store.pool.Acquire(g.open)
	if err != nil {
		finishAll(batch, g.store.classified(context.Background(), "write", reading, err))
		return
	}
	_, err = g.send(conn, batch)
	conn.Release()
	switch classIn(err) {
	case 0:
		g.stats.count(len(batch))
		finishAll(batch, nil)
	case unknown:
		finishAll(batch, err)
	default:
		g.goApart(batch...)
	}
}

// send sends a batch as one transaction and reads what came of each write. Where a statement failed, culprit is its place in the batch, and
// otherwise -1: the fault is nobody's in particular.
func (g *gatherer) send(conn *pgxpool.Conn, batch []*call) (culprit int, err error) {
	s := g.store
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StatementTimeout+graceForStatement)
	defer cancel()
	var pipeline pgx.Batch
	pipeline.Queue(s.sql.lockWait)
	for _, c := range batch {
		pipeline.Queue(c.text, c.args...)
	}
	results := conn.SendBatch(ctx, &pipeline)
	culprit = -1
	if _, err = results.Exec(); err == nil {
		for i, c := range batch {
			if c.written, err = written(results.QueryRow()); err != nil {
				culprit = i
				break
			}
		}
	}
	// The commit is what Close waits for.
	if closed := results.Close(); err == nil {
		err = closed
	}
	return culprit, s.classified(context.Background(), "write", writing, err)
}

// goApart sends each of the calls by itself, outside of any batch.
func (g *gatherer) goApart(calls ...*call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range calls {
		g.sendApart(c)
	}
}

// sendApart must be called with mu held.
func (g *gatherer) sendApart(c *call) {
	g.apart[c.scope]++
	g.stats.apart.Add(1)
	c.progress.Store(byItself)
	go func() {
		c.written, c.err = g.byItself(c)
		g.mu.Lock()
		decrement(g.apart, c.scope)
		g.mu.Unlock()
		close(c.done)
	}()
}

// byItself runs a write as one statement, its own transaction, again and again while others get in its way.
func (g *gatherer) byItself(c *call) (ledger.Written, error) {
	select {
	case g.turns <- struct{}{}:
		defer func() { <-g.turns }()
	case <-c.ctx.Done():
		return ledger.Written{}, ended(c.ctx, "write", unavailable)
	}
	return write(c.ctx, g.store, "write", func(ctx context.Context, conn *pgx.Conn) (ledger.Written, error) {
		return written(conn.QueryRow(ctx, c.text, c.args...))
	})
}

// Stats are the store's numbers since it was opened. All are zero on an engine that gathers nothing.
type Stats struct {
	// Batches is how many transactions were committed that held gathered writes, Writes how many writes they held.
	Batches int64
	Writes  int64
	// Redone is how many batches were sent again because one of their writes failed, Apart how many writes went by themselves.
	Redone int64
	Apart  int64
	// Queued is how many writes wait now.
	Queued int
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	g := s.gather
	return Stats{
		Batches: g.stats.batches.Load(), Writes: g.stats.writes.Load(), Redone: g.stats.redone.Load(), Apart: g.stats.apart.Load(),
		Queued: len(g.sooner.places) + len(g.later.places),
	}
}

// counters are the gatherer's numbers; see [Stats].
type counters struct {
	batches atomic.Int64
	writes  atomic.Int64
	redone  atomic.Int64
	apart   atomic.Int64
}

func (c *counters) count(writes int) {
	c.batches.Add(1)
	c.writes.Add(int64(writes))
}
