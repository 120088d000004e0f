package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// store is the dispatchers' side of the tables. Each of its methods is one statement and a transaction of its own, judged by the
// database's clock.
type store struct {
	q      sqldb.Querier
	named  *strings.Replacer
	clock  string
	engine atomic.Int64 // 0 until the server was asked what it is
}

func newStore(q sqldb.Querier, named *strings.Replacer, config Config) *store {
	return &store{q: q, named: named, clock: config.ClockSQL}
}

func (s *store) engineOf(ctx context.Context) (sqldb.Engine, error) {
	if e := sqldb.Engine(s.engine.Load()); e != 0 {
		return e, nil
	}
	e, err := sqldb.EngineOf(ctx, s.q)
	if err != nil {
		return 0, err
	}
	s.engine.Store(int64(e))
	return e, nil
}

// text fills in a statement: the tables' names, {now} for the clock, {after n} for the clock in n microseconds.
func (s *store) text(sql string) string {
	return strings.ReplaceAll(s.named.Replace(sql), "{now}", s.clock)
}

// claimable is the condition under which an aggregate may be claimed; its one parameter is by how much clocks can differ.
func claimable(margin string) string {
	return "(d.parked_at IS NULL AND d.next_at <= {now} AND d.lease_until + " + margin + " * INTERVAL '1 microsecond' <= {now})"
}

// page is a stretch of the pending table.
type page struct {
	candidates []candidate
	last       Aggregate // where the next page begins, after this
	end        bool      // there is nothing after it
}

// candidate is an aggregate with events to publish, that nobody works on as far as can be seen.
type candidate struct {
	Aggregate
	first int64 // its first pending version
	fresh bool  // no dispatcher has seen it before
}

// discover reads a page. An aggregate with any number of events costs no more than one page, since the next one begins after it.
func (s *store) discover(ctx context.Context, after Aggregate, limit int, margin time.Duration) (page, error) {
	engine, err := s.engineOf(ctx)
	if err != nil {
		return page{}, err
	}
	text := `/* idem:outbox-discover */ SELECT p.aggregatetype, p.aggregateid, p.first, p.n, d.aggregatetype IS NULL, coalesce(` + claimable("$4::INT8") + `, true)
FROM (SELECT aggregatetype, aggregateid, min(version) AS first, count(*) AS n FROM (
        SELECT aggregatetype, aggregateid, version FROM {outbox_pending} WHERE (aggregatetype, aggregateid) > ($1::VARCHAR, $2::VARCHAR)
        ORDER BY aggregatetype, aggregateid, version LIMIT $3::INT8) AS stretch
    GROUP BY aggregatetype, aggregateid) AS p `
	const columns = "SELECT aggregatetype, parked_at, next_at, lease_until FROM {outbox_deliveries} AS x WHERE x.aggregatetype = p.aggregatetype AND x.aggregateid = p.aggregateid"
	if engine == sqldb.PostgreSQL {
		// One look-up for each, also under a plan that was made when the table was small and is kept while it grows.
		text += "LEFT JOIN LATERAL (" + columns + " LIMIT 1) AS d ON true ORDER BY 1, 2"
	} else {
		text += "LEFT JOIN {outbox_deliveries} AS d ON d.aggregatetype = p.aggregatetype AND d.aggregateid = p.aggregateid ORDER BY 1, 2"
	}
	out, rows := page{}, 0
	err = s.q.Each(ctx, s.text(text), []any{after.Type, after.ID, int64(limit), margin.Microseconds()}, func(scan func(...any) error) error {
		var c candidate
		var n int
		var free bool
		if err := scan(&c.Type, &c.ID, &c.first, &n, &c.fresh, &free); err != nil {
			return err
		}
		rows += n
		out.last = c.Aggregate
		if free {
			out.candidates = append(out.candidates, c)
		}
		return nil
	})
	out.end = rows < limit
	return out, err
}

// open makes the rows of aggregates that no dispatcher has seen. It begins before the first event there is, which is version 1 unless
// events were swept away while something else published them. Fences begin with the clock and not at zero: after an aggregate was forgotten
// they must not come to one again under which a dispatcher from before sleeps.
func (s *store) open(ctx context.Context, fresh []candidate) error {
	var args []any
	for _, c := range fresh {
		args = append(args, c.Type, c.ID, c.first-1)
	}
	text := s.text("/* idem:outbox-open */ INSERT INTO {outbox_deliveries} (aggregatetype, aggregateid, published_version, fence)\n" +
		"SELECT v.aggregatetype, v.aggregateid, v.published_version, (extract(epoch FROM {now}) * 1000000)::INT8 FROM (VALUES " +
		sqldb.Tuples(1, len(fresh), "VARCHAR", "VARCHAR", "INT8") + ") AS v (aggregatetype, aggregateid, published_version)\n" +
		"ON CONFLICT (aggregatetype, aggregateid) DO NOTHING")
	return sqldb.Retry(ctx, func() error {
		_, err := s.q.Exec(ctx, text, args...)
		return err
	})
}

// claim is a dispatcher's right to an aggregate, until somebody else has it.
type claim struct {
	Aggregate
	fence     int64
	published int64 // the version up to which everything was published
	attempts  int   // failed ones, of the event that follows
}

// claim takes as many of the candidates as are still free, for the length of a lease.
func (s *store) claim(ctx context.Context, candidates []candidate, owner string, lease, margin time.Duration) ([]claim, error) {
	engine, err := s.engineOf(ctx)
	if err != nil {
		return nil, err
	}
	args := []any{owner, lease.Microseconds(), margin.Microseconds()}
	for _, c := range candidates {
		args = append(args, c.Type, c.ID)
	}
	list := sqldb.Tuples(4, len(candidates), "VARCHAR", "VARCHAR")
	const set = "SET owner = $1::VARCHAR, fence = d.fence + 1, lease_until = {now} + $2::INT8 * INTERVAL '1 microsecond' "
	const returning = " RETURNING d.aggregatetype, d.aggregateid, d.fence, d.published_version, d.attempts"
	free := "(d.aggregatetype, d.aggregateid) IN (" + list + ") AND " + claimable("$3::INT8")
	// CockroachDB has no SKIP LOCKED before 22.2. It does without: these rows are only ever locked for the length of one statement.
	text := "UPDATE {outbox_deliveries} AS d " + set + "WHERE " + free + returning
	if engine == sqldb.PostgreSQL {
		text = "WITH c AS (SELECT d.aggregatetype, d.aggregateid FROM {outbox_deliveries} AS d WHERE " + free + " FOR UPDATE SKIP LOCKED)\n" +
			"UPDATE {outbox_deliveries} AS d " + set + "FROM c WHERE d.aggregatetype = c.aggregatetype AND d.aggregateid = c.aggregateid" + returning
	}
	var out []claim
	err = sqldb.Retry(ctx, func() error {
		out = nil
		return s.q.Each(ctx, s.text("/* idem:outbox-claim */ "+text), args, func(scan func(...any) error) error {
			var c claim
			err := scan(&c.Type, &c.ID, &c.fence, &c.published, &c.attempts)
			out = append(out, c)
			return err
		})
	})
	return out, err
}

// extend begins the lease again. It reports false where somebody else has the aggregate.
func (s *store) extend(ctx context.Context, c claim, lease time.Duration) (bool, error) {
	text := s.text(`/* idem:outbox-extend */ UPDATE {outbox_deliveries} SET lease_until = {now} + $4::INT8 * INTERVAL '1 microsecond'
WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND fence = $3::INT8`)
	rows := int64(0)
	err := sqldb.Retry(ctx, func() (err error) {
		rows, err = s.q.Exec(ctx, text, c.Type, c.ID, c.fence, lease.Microseconds())
		return err
	})
	return rows == 1, err
}

// read reads the events that follow, in order: at most limit, and no more once maxBytes are reached.
func (s *store) read(ctx context.Context, c claim, limit, maxBytes int) ([]Envelope, error) {
	var out []Envelope
	err := s.q.Each(ctx, s.text(`/* idem:outbox-read */ SELECT version, id, type, payload, headers, created_at FROM (
    SELECT version, id, type, payload, headers, created_at, size, sum(size) OVER (ORDER BY version) AS total FROM (
        SELECT version, id::TEXT AS id, type, payload, headers::TEXT AS headers, created_at, octet_length(payload) + octet_length(headers::TEXT) AS size
        FROM {outbox} WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND version > $3::INT8
        ORDER BY version LIMIT $4::INT8) AS following) AS measured
WHERE total - size < $5::INT8 ORDER BY version`), []any{c.Type, c.ID, c.published, int64(limit), int64(maxBytes)}, func(scan func(...any) error) error {
		e := Envelope{Event: Event{AggregateType: c.Type, AggregateID: c.ID}}
		var id, headers string
		if err := scan(&e.Version, &id, &e.Type, &e.Payload, &headers, &e.WrittenAt); err != nil {
			return err
		}
		var err error
		if e.ID, err = uuid.Parse(id); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(headers), &e.Headers); err != nil {
			return fmt.Errorf("the headers of event %s: %w", id, err)
		}
		out = append(out, e)
		return nil
	})
	return out, err
}

// firstPending is the first version that waits to be published after the ones that were, 0 if there is none.
func (s *store) firstPending(ctx context.Context, c claim) (version int64, err error) {
	err = s.q.Scan(ctx, s.text(`/* idem:outbox-first */ SELECT coalesce(min(version), 0)::INT8 FROM {outbox_pending}
WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND version > $3::INT8`), []any{c.Type, c.ID, c.published}, &version)
	return version, err
}

// settlement is what a holder has to say about its aggregate.
type settlement struct {
	published int64         // everything up to here was acknowledged
	attempts  int           // failed ones, of the event that follows
	pause     time.Duration // until that one may be tried again
	failure   string
	parked    bool
	release   bool
	remove    bool // delete what is published
}

// settle records it, if the claim still stands: it reports false where somebody else has the aggregate.
func (s *store) settle(ctx context.Context, c claim, with settlement) (bool, error) {
	remove := ""
	if with.remove {
		remove = `,
x AS (DELETE FROM {outbox} WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND version <= $4::INT8 AND EXISTS (SELECT 1 FROM m) RETURNING 1)`
	}
	text := s.text(`/* idem:outbox-settle */ WITH m AS (
    UPDATE {outbox_deliveries} SET published_version = GREATEST(published_version, $4::INT8), attempts = $5::INT4,
        next_at = {now} + $6::INT8 * INTERVAL '1 microsecond', last_error = $7::TEXT, settled_at = {now},
        failed_at = CASE WHEN $7::TEXT = '' THEN NULL ELSE {now} END, parked_at = CASE WHEN $8::BOOL THEN {now} ELSE NULL END,
        lease_until = CASE WHEN $9::BOOL THEN '1970-01-01 00:00:00+00'::TIMESTAMPTZ ELSE lease_until END
    WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND fence = $3::INT8 RETURNING 1),
p AS (DELETE FROM {outbox_pending} WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND version <= $4::INT8 AND EXISTS (SELECT 1 FROM m) RETURNING 1)` + remove + `
SELECT count(*) FROM m`)
	args := []any{
		c.Type, c.ID, c.fence, with.published, int64(with.attempts), with.pause.Microseconds(), with.failure, with.parked, with.release,
	}
	held := 0
	// It may be said again: under one fence it says the same.
	err := sqldb.Retry(ctx, func() error { return s.q.Scan(ctx, text, args, &held) })
	return held == 1, err
}

var errMissing = errors.New("it is missing from the table: somebody deleted it unpublished")
