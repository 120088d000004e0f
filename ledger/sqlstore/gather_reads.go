package sqlstore

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/ledger"
)

// maxReadFlights is how many batches of reads are on their way at a time: while the database works on one, the daemon reads what came of the other.
const maxReadFlights = 2

// readGatherer reads entries together: reads that arrive while maxReadFlights batches are on their way are the next batch, one statement. A read is never
// answered by a statement that was sent before it came. One that its batch could not answer goes by itself.
//
// Only on PostgreSQL, where no read ever waits for a row. On CockroachDB one that somebody has locked would hold up everybody's.
type readGatherer struct {
	store  *Store
	places chan struct{} // bounds who waits; the next callers wait outside, as long as their contexts let them

	mu      sync.Mutex
	waiting []*readCall // guarded by mu
	flying  int         // guarded by mu
}

// readCall is one Get on its way.
type readCall struct {
	scope ledger.ScopeID
	done  chan struct{} // closed once the rest is final
	// reading is what was read, if answered. If not, the caller has to read by itself.
	reading  ledger.Reading
	answered bool
}

func newReadGatherer(s *Store) *readGatherer {
	return &readGatherer{store: s, places: make(chan struct{}, lineLength)}
}

// get reads one entry whole.
func (g *readGatherer) get(ctx context.Context, scope ledger.ScopeID) (ledger.Reading, error) {
	if ctx.Err() != nil {
		return ledger.Reading{}, ended(ctx, "get", unavailable)
	}
	select {
	case g.places <- struct{}{}:
	case <-ctx.Done():
		return ledger.Reading{}, ended(ctx, "get", unavailable)
	}
	c := &readCall{scope: scope, done: make(chan struct{})}
	g.queue(c)
	select {
	case <-c.done:
	case <-ctx.Done():
		return ledger.Reading{}, ended(ctx, "get", unavailable)
	}
	if c.answered {
		return c.reading, nil
	}
	return g.store.getAlone(ctx, scope)
}

func (g *readGatherer) queue(c *readCall) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, c)
	if g.flying < maxReadFlights {
		g.flying++
		go g.fly()
	}
}

// fly sends batches, one after the other, until nothing waits any more.
func (g *readGatherer) fly() {
	for {
		// The connection first: what still arrives while it is waited for goes along.
		conn, err := g.store.pool.Acquire(g.store.gather.open)
		runtime.Gosched() // those who were answered just now come back with their next read
		batch := g.take()
		if err == nil {
			if len(batch) > 0 {
				g.read(conn, batch)
			}
			conn.Release()
		}
		for _, c := range batch {
			close(c.done) // without a connection they learn why by themselves
		}
		if len(batch) == 0 {
			return
		}
	}
}

func (g *readGatherer) take() []*readCall {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), maxBatch)
	batch := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	if n == 0 {
		g.flying--
	}
	for range n {
		<-g.places
	}
	return batch
}

// read answers as many of a batch as it can. What stands in idemd_bodies is left to its own caller: it can be megabytes.
func (g *readGatherer) read(conn *pgxpool.Conn, batch []*readCall) {
	s := g.store
	scopes := make([][]byte, len(batch))
	for i, c := range batch {
		scopes[i] = scopeArg(c.scope)
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.StatementTimeout+graceForStatement)
	defer cancel()
	found, now, err := s.getMany(ctx, conn, scopes)
	if err != nil {
		_ = s.classified(context.Background(), "get", reading, err) // which logs it
		return
	}
	s.gather.stats.readBatches.Add(1)
	s.gather.stats.reads.Add(int64(len(batch)))
	for _, c := range batch {
		r := found[c.scope]
		if r != nil && *r.apart {
			continue
		}
		c.reading.Now = now
		if r != nil {
			c.reading.Entry, err = r.entry() // its own, if two ask for the same
		}
		c.answered = err == nil
	}
}

// getMany reads the rows that there are of some scopes, without what stands apart, and the clock at the last of them.
func (s *Store) getMany(
	ctx context.Context, conn *pgxpool.Conn, scopes [][]byte,
) (found map[ledger.ScopeID]*row, now ledger.Time, err error) {
	result, err := conn.Query(ctx, s.sql.getMany, scopes)
	if err != nil {
		return nil, 0, err
	}
	defer result.Close()
	found = make(map[ledger.ScopeID]*row, len(scopes))
	for result.Next() {
		r := new(row)
		if err := result.Scan(append([]any{(*int64)(&now)}, r.targets()...)...); err != nil {
			return nil, 0, err
		}
		if r.scope != nil {
			found[ledger.ScopeID(r.scope)] = r
		}
	}
	return found, now, result.Err()
}
