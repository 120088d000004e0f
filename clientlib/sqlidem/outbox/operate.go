package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// Parked is an aggregate that waits for an operator.
type Parked struct {
	Aggregate
	// Version is the event that could not be published. Those after it wait too.
	Version int64
	// Attempts is how often it failed, LastError how the last time.
	Attempts  int
	LastError string
	// ParkedAt is by the database's clock.
	ParkedAt time.Time
}

// ErrNotParked refuses to unpark or skip what is not parked, or not at that version: somebody else was there first.
var ErrNotParked = errors.New("outbox: the aggregate is not parked at this version")

// Parked lists parked aggregates, those parked longest first, at most limit.
func (b *Outbox[T]) Parked(ctx context.Context, limit int) ([]Parked, error) {
	var out []Parked
	err := b.driver.Each(ctx, b.store.text(`/* idem:outbox-parked */ SELECT aggregatetype, aggregateid, published_version + 1, attempts, last_error, parked_at
FROM {outbox_deliveries} WHERE parked_at IS NOT NULL ORDER BY parked_at, aggregatetype, aggregateid LIMIT $1::INT8`), []any{int64(limit)},
		func(scan func(...any) error) error {
			var p Parked
			err := scan(&p.Type, &p.ID, &p.Version, &p.Attempts, &p.LastError, &p.ParkedAt)
			out = append(out, p)
			return err
		})
	if err != nil {
		return nil, fmt.Errorf("outbox: parked: %w", err)
	}
	return out, nil
}

// Unpark lets an aggregate be tried again, from its parked event on, with its attempts forgotten.
func (b *Outbox[T]) Unpark(ctx context.Context, aggregate Aggregate) error {
	return b.operate(ctx, `/* idem:outbox-unpark */ UPDATE {outbox_deliveries} SET parked_at = NULL, attempts = 0, next_at = {now}, fence = fence + 1
WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND parked_at IS NOT NULL RETURNING 1`, aggregate.Type, aggregate.ID)
}

// Skip gives an event up: it is never published, and its aggregate goes on after it. The version is the one that [Outbox.Parked] names, so
// that skipping twice does not skip two. The event stays in the table until it is swept.
func (b *Outbox[T]) Skip(ctx context.Context, aggregate Aggregate, version int64) error {
	return b.operate(ctx, `/* idem:outbox-skip */ WITH m AS (
    UPDATE {outbox_deliveries} SET published_version = $3::INT8, parked_at = NULL, attempts = 0, failed_at = NULL, last_error = '', next_at = {now}, fence = fence + 1
    WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND parked_at IS NOT NULL AND published_version = $3::INT8 - 1 RETURNING 1),
p AS (DELETE FROM {outbox_pending} WHERE aggregatetype = $1::VARCHAR AND aggregateid = $2::VARCHAR AND version <= $3::INT8 AND EXISTS (SELECT 1 FROM m) RETURNING 1)
SELECT 1 FROM m`, aggregate.Type, aggregate.ID, version)
}

func (b *Outbox[T]) operate(ctx context.Context, text string, args ...any) error {
	one := 0
	err := sqldb.Retry(ctx, func() error { return b.driver.Scan(ctx, b.store.text(text), args, &one) })
	switch {
	case errors.Is(err, sqldb.ErrNoRow):
		return ErrNotParked
	case err != nil:
		return fmt.Errorf("outbox: %w", err)
	}
	return nil
}

// Stats says how an outbox is doing.
type Stats struct {
	// Pending is how many events are not published, those of parked aggregates with them.
	Pending int64
	// OldestPending is how long ago the oldest of them was written, by the database's clock; zero if there is none.
	OldestPending time.Duration
	// Parked is how many aggregates wait for an operator.
	Parked int64
}

// Stats counts. It reads all that is pending, so ask every half minute, not every second.
func (b *Outbox[T]) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	var oldest float64
	err := b.driver.Scan(ctx, b.store.text(`/* idem:outbox-stats */ SELECT count(*), coalesce(extract(epoch FROM {now} - min(written_at)), 0)::FLOAT8,
    (SELECT count(*) FROM {outbox_deliveries} WHERE parked_at IS NOT NULL) FROM {outbox_pending}`), nil, &s.Pending, &oldest, &s.Parked)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: stats: %w", err)
	}
	s.OldestPending = max(0, time.Duration(oldest*float64(time.Second)))
	return s, nil
}
