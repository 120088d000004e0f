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
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/ledger"
)

// Sizes of the gathering of writes.
const (
	// maxBatch is how many writes one transaction takes, and maxBatchBytes how many bytes of answers and histories. A larger one goes alone.
	maxBatch      = 128
	maxBatchBytes = 4 << 20
	// fewestMany is from how many writes on one statement for all is cheaper on PostgreSQL than one for each of them.
	fewestMany = 3
	// lineLength is how many writes wait in each lane; the next callers wait outside, as long as their contexts let them.
	lineLength = 1024
	// lockWait is how long a batch waits for a row that somebody else has locked: longer than another daemon's batch takes, and much
	// shorter than anything that the rest of the batch would notice.
	lockWait = 25 * time.Millisecond
)

// gatherer is group commit. There is a lane for each kind of write, with a batch or two on its way at a time; what arrives meanwhile is the next batch.
// No timer is involved: a write that finds its lane free is sent at once, and a busy database shares each sync of its log, and the cost of a statement,
// among many. Reports do not wait behind new grants, since they have lanes of their own.
//
// A batch is one statement for all of its writes, or a pipeline of the very statements that would be sent one by one, in one transaction. Either
// goes by the order of the scopes, so that two daemons' batches do not deadlock, and everybody's outcome is told after its commit. What goes wrong with
// it is settled so:
//
//   - The outcome is not known: then it is not known to any of its callers. Each reads back its own.
//   - Nothing happened: a write was refused, a row is locked (on PostgreSQL for longer than lockWait), or the engine reports a conflict. Each write is
//     sent by itself, where it waits at its own caller's cost. While it does, whatever comes for the same scope goes by itself, too.
//
// CockroachDB's batches of new grants wait for a row that somebody has locked, all together. See [statements.claimUpdates] for the others, and
// [statements.insertFirstGrants].
//
// Two writes of one scope are never on their way in batches at the same time, so that a daemon does not contend with itself.
type gatherer struct {
	store *Store
	// open ends when the store is closed: whoever waits for a connection then is told so.
	open  context.Context
	close context.CancelFunc

	grants, settles, extensions, others lane

	mu    sync.Mutex
	busy  map[ledger.ScopeID]*lane // guarded by mu; where a write of the scope is in a batch on its way
	apart map[ledger.ScopeID]int   // guarded by mu; how many writes of the scope go by themselves

	// turns bounds how many writes go by themselves at a time: those that wait for a locked row must leave connections to the others.
	turns chan struct{}
	stats counters
}

// lane is the writes of one kind.
type lane struct {
	// places is who waits. A place is had before the write is put in.
	places chan struct{}
	calls  []*call // guarded by the gatherer's mu
	flying int     // guarded by the gatherer's mu; how many batches are on their way, or about to be
	// most is how many of those there may be.
	most int

	// many is the statement for a batch of at least fewest, if there is one. A smaller batch is a pipeline.
	many   *manyStatement
	fewest int
	// inserting: of several writes of one scope the first decides for all. If it inserted the row, or met one, none of the others could have.
	inserting bool
}

func newGatherer(s *Store) *gatherer {
	open, cancel := context.WithCancel(context.Background())
	g := &gatherer{
		store: s, open: open, close: cancel,
		busy: map[ledger.ScopeID]*lane{}, apart: map[ledger.ScopeID]int{},
		turns: make(chan struct{}, max(1, s.cfg.MaxConns/2)),
	}
	for _, l := range g.lanes() {
		l.places, l.fewest, l.most = make(chan struct{}, lineLength), fewestMany, 1
	}
	g.others.most = 2 // a pipeline costs as much for each write however long it is, and while one is being synced the other's statements run
	g.grants.many, g.grants.inserting = &s.sql.firstGrants, true
	g.settles.many, g.extensions.many = &s.sql.settleMany, &s.sql.extendMany
	if s.engine == cockroachDB {
		// The statements of one write wait for a locked row. A lane must not.
		g.grants.fewest, g.settles.fewest, g.extensions.fewest = 2, 1, 1
	}
	return g
}

func (g *gatherer) lanes() []*lane { return []*lane{&g.settles, &g.extensions, &g.others, &g.grants} }

// laneOf is where a write with this statement is gathered; nil: it goes by itself. CockroachDB takes only single statements without a transaction around
// them in one round trip, so that nothing is gathered there that has no statement for many.
func (g *gatherer) laneOf(text string, args []any) *lane {
	sql := g.store.sql
	switch {
	case text == sql.putAbsent && isFirstGrant(args):
		return &g.grants
	case text == sql.settle:
		return &g.settles
	case text == sql.extend:
		return &g.extensions
	case g.store.engine == cockroachDB:
		return nil
	default:
		return &g.others
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
func (g *gatherer) write(ctx context.Context, l *lane, c *call) (ledger.Written, error) {
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

func (g *gatherer) queue(l *lane, c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.apart[c.scope] > 0 {
		<-l.places
		g.sendApart(c)
		return
	}
	l.calls = append(l.calls, c)
	g.start(l)
}

// start must be called with mu held.
func (g *gatherer) start(l *lane) {
	if l.flying < l.most && len(l.calls) > 0 {
		l.flying++
		go g.fly(l)
	}
}

// fly sends batches of a lane, one after the other, until nothing waits any more.
func (g *gatherer) fly(l *lane) {
	for {
		// The connection first: what still arrives while it is waited for goes along.
		conn, err := g.store.pool.Acquire(g.open)
		runtime.Gosched() // those who were told their outcome just now come back with their next write
		b := g.take(l)
		if err == nil && len(b.calls) == 0 {
			conn.Release()
		}
		if len(b.calls) == 0 {
			return
		}
		if err != nil {
			b.finish(g.store.classified(context.Background(), "write", reading, err)) // reading: nothing was sent
		} else {
			g.carryOut(conn, b)
		}
		g.landed(b)
	}
}

// landed lets other batches hold the scopes of this one, and starts the lanes whose writes waited for that.
func (g *gatherer) landed(b batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range b.calls {
		delete(g.busy, c.scope)
	}
	for _, l := range g.lanes() {
		g.start(l)
	}
}

func decrement(m map[ledger.ScopeID]int, scope ledger.ScopeID) {
	if m[scope]--; m[scope] == 0 {
		delete(m, scope)
	}
}

// batch is writes of one lane that go together.
type batch struct {
	lane  *lane
	calls []*call // each of another scope, in the order of their scopes
	// late are the inserts whose scope is among those of calls: they are not sent, and not applied.
	late []*call
	size int
}

func (b *batch) finish(err error) {
	for _, c := range b.calls {
		if err != nil {
			c.written = ledger.Written{}
		}
		c.finish(err)
	}
	for _, c := range b.late {
		c.finish(err)
	}
}

// take is the next batch of a lane. Where there is none the flight has ended.
func (g *gatherer) take(l *lane) batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := batch{lane: l}
	kept := l.calls[:0]
	for i, c := range l.calls {
		if len(b.calls)+len(b.late) >= maxBatch || len(b.calls) > 0 && b.size+c.size > maxBatchBytes {
			kept = append(kept, l.calls[i:]...)
			break
		}
		where := g.busy[c.scope]
		if where != nil && (where != l || !l.inserting) {
			kept = append(kept, c)
			continue
		}
		<-l.places
		switch {
		case !c.progress.CompareAndSwap(waiting, sent):
		case c.ctx.Err() != nil:
			c.finish(ended(c.ctx, "write", unavailable)) // it certainly did nothing
		case g.apart[c.scope] > 0:
			g.sendApart(c)
		case where != nil: // it is in this batch: a lane has one on its way at a time
			b.late = append(b.late, c)
		default:
			g.busy[c.scope] = l
			b.calls, b.size = append(b.calls, c), b.size+c.size
		}
	}
	clear(l.calls[len(kept):])
	l.calls = kept
	if len(b.calls) == 0 {
		l.flying--
	}
	slices.SortFunc(b.calls, func(a, b *call) int { return bytes.Compare(a.scope[:], b.scope[:]) })
	return b
}

// carryOut sends a batch and tells everybody what became of it. It gives the connection back.
func (g *gatherer) carryOut(conn *pgxpool.Conn, b batch) {
	err := g.send(conn, b)
	if g.store.engine == cockroachDB && isLocked(err) {
		// The lock can be that of a batch which is committed, and told to be: CockroachDB takes it away a little later.
		err = g.send(conn, b)
	}
	conn.Release()
	switch {
	case err == nil:
		g.stats.count(len(b.calls) + len(b.late))
		b.finish(nil)
	case classIn(err) == unknown:
		b.finish(err)
	case (classIn(err) == unavailable || classIn(err) == badRow) && len(b.calls)+len(b.late) == 1:
		b.finish(err) // by itself it would fare no better
	default:
		g.stats.redone.Add(1)
		g.goApart(b)
	}
}

// send sends a batch as one transaction and reads what came of each write.
func (g *gatherer) send(conn *pgxpool.Conn, b batch) error {
	s := g.store
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StatementTimeout+graceForStatement)
	defer cancel()
	var pipeline pgx.Batch
	succeeds := func(pgconn.CommandTag) error { return nil }
	if s.engine == postgreSQL {
		pipeline.Queue(s.sql.lockWait).Exec(succeeds)
	}
	if many := b.lane.many; many != nil && len(b.calls) >= b.lane.fewest {
		args := many.arguments(b.calls)
		if many.unlocked != "" {
			pipeline.Queue(many.unlocked, args[0]).Exec(succeeds)
		}
		pipeline.Queue(many.text, args...).Query(func(result pgx.Rows) error { return readMany(result, b.calls) })
	} else {
		for _, c := range b.calls {
			pipeline.Queue(c.text, c.args...).QueryRow(func(row pgx.Row) (err error) {
				c.written, err = written(row)
				return err
			})
		}
	}
	// The commit is what Close waits for. It reads all of the results before that.
	return s.classified(context.Background(), "write", writing, conn.SendBatch(ctx, &pipeline).Close())
}

// goApart sends each write of a batch by itself.
func (g *gatherer) goApart(b batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range slices.Concat(b.calls, b.late) {
		c.written = ledger.Written{}
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

// Stats are the store's numbers since it was opened.
type Stats struct {
	// Batches is how many transactions were committed that held gathered writes, Writes how many writes they held.
	Batches int64
	Writes  int64
	// Redone is how many batches came to nothing, so that each of their writes was sent again by itself. Apart is how many writes went by themselves.
	Redone int64
	Apart  int64
	// Queued is how many writes wait now.
	Queued int
	// ReadBatches is how many statements read entries together, Reads how many reads they were. Both are zero on CockroachDB.
	ReadBatches int64
	Reads       int64
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	g := s.gather
	queued := 0
	for _, l := range g.lanes() {
		queued += len(l.places)
	}
	return Stats{
		Batches: g.stats.batches.Load(), Writes: g.stats.writes.Load(), Redone: g.stats.redone.Load(), Apart: g.stats.apart.Load(), Queued: queued,
		ReadBatches: g.stats.readBatches.Load(), Reads: g.stats.reads.Load(),
	}
}

// counters are the gatherer's numbers; see [Stats].
type counters struct {
	batches atomic.Int64
	writes  atomic.Int64
	redone  atomic.Int64
	apart   atomic.Int64

	readBatches atomic.Int64
	reads       atomic.Int64
}

func (c *counters) count(writes int) {
	c.batches.Add(1)
	c.writes.Add(int64(writes))
}
