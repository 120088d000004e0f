package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// DefaultSweepBatch is how many events one statement of a sweep deletes.
const DefaultSweepBatch = 500

// SweepConfig says what a sweep deletes and how hard it works.
type SweepConfig struct {
	// Age is how long after it was written an event may be deleted. Required.
	Age time.Duration
	// Unpublished deletes by age alone, whether or not a dispatcher has published the event: for an outbox that Debezium or a changefeed
	// reads. With a dispatcher it loses events.
	Unpublished bool
	// IdleAggregates also forgets aggregates that had no event for so long, once none of theirs is left in the table. The versions of one
	// that has an event again begin at 1 again, so it is only for consumers that compare no versions. Default: never. An aggregate then
	// costs two narrow rows for as long as the outbox lives.
	IdleAggregates time.Duration
	// BatchSize is how many events one statement deletes. Default: DefaultSweepBatch.
	BatchSize int
	// Pause is how long to wait between statements, for the sake of other traffic. Default: none.
	Pause time.Duration
}

// Validate says what is wrong with the configuration, or nil.
func (c SweepConfig) Validate() error {
	switch {
	case c.Age <= 0:
		return errors.New("outbox: SweepConfig.Age is required")
	case c.IdleAggregates < 0:
		return errors.New("outbox: SweepConfig.IdleAggregates must not be negative")
	case c.BatchSize < 0:
		return errors.New("outbox: SweepConfig.BatchSize must not be negative")
	case c.Pause < 0:
		return errors.New("outbox: SweepConfig.Pause must not be negative")
	}
	return nil
}

// $2 is where the batch before ended: beginning at the start again would step over all that it deleted.
const (
	sweepPublished = `/* idem:outbox-sweep */ DELETE FROM {outbox} WHERE (aggregatetype, aggregateid, version) IN (
    SELECT e.aggregatetype, e.aggregateid, e.version FROM {outbox} AS e
    JOIN {outbox_deliveries} AS d ON d.aggregatetype = e.aggregatetype AND d.aggregateid = e.aggregateid
    WHERE e.shard = $1::INT2 AND e.created_at >= $2::TIMESTAMPTZ AND e.created_at < {now} - $3::INT8 * INTERVAL '1 microsecond' AND e.version <= d.published_version
    ORDER BY e.created_at LIMIT $4::INT8)
RETURNING created_at`
	sweepAll = `/* idem:outbox-sweep-all */ WITH gone AS (DELETE FROM {outbox} WHERE (aggregatetype, aggregateid, version) IN (
    SELECT aggregatetype, aggregateid, version FROM {outbox}
    WHERE shard = $1::INT2 AND created_at >= $2::TIMESTAMPTZ AND created_at < {now} - $3::INT8 * INTERVAL '1 microsecond'
    ORDER BY created_at LIMIT $4::INT8)
RETURNING aggregatetype, aggregateid, version, created_at),
p AS (DELETE FROM {outbox_pending} WHERE (aggregatetype, aggregateid, version) IN (SELECT aggregatetype, aggregateid, version FROM gone) RETURNING 1)
SELECT created_at FROM gone`

	idlePage = `/* idem:outbox-idle */ SELECT aggregatetype, aggregateid FROM {outbox_deliveries}
WHERE (aggregatetype, aggregateid) > ($1::VARCHAR, $2::VARCHAR) ORDER BY aggregatetype, aggregateid LIMIT $3::INT8`
	// The version decides, since a writer may be at work on the row that is deleted: this waits for it, and then finds another version.
	forgetIdle = `/* idem:outbox-forget */ WITH gone AS (
    DELETE FROM {outbox_versions} WHERE (aggregatetype, aggregateid, last_version) IN (
        SELECT d.aggregatetype, d.aggregateid, d.published_version FROM {outbox_deliveries} AS d
        WHERE (d.aggregatetype, d.aggregateid) > ($1::VARCHAR, $2::VARCHAR) AND (d.aggregatetype, d.aggregateid) <= ($3::VARCHAR, $4::VARCHAR)
            AND d.settled_at < {now} - $5::INT8 * INTERVAL '1 microsecond' AND d.parked_at IS NULL AND d.lease_until < {now}
            AND NOT EXISTS (SELECT 1 FROM {outbox} AS e WHERE e.aggregatetype = d.aggregatetype AND e.aggregateid = d.aggregateid))
    RETURNING aggregatetype, aggregateid)
DELETE FROM {outbox_deliveries} WHERE (aggregatetype, aggregateid) IN (SELECT aggregatetype, aggregateid FROM gone)`
)

// Sweep deletes events that were written longer ago than config.Age, by the database's clock, and returns how many, also when it was cut
// short; aggregates that it forgot are not counted. Several sweeps at once do no harm.
func (b *Outbox[T]) Sweep(ctx context.Context, config SweepConfig) (deleted int, err error) {
	if err := config.Validate(); err != nil {
		return 0, err
	}
	if config.BatchSize == 0 {
		config.BatchSize = DefaultSweepBatch
	}
	text := b.store.text(sweepPublished)
	if config.Unpublished {
		text = b.store.text(sweepAll)
	}
	for shard := range shards {
		n, err := sqldb.DeleteBatches(ctx, b.driver, text, config.BatchSize, config.Pause, func(from time.Time) []any {
			return []any{int16(shard), from, config.Age.Microseconds(), int64(config.BatchSize)}
		})
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("outbox: sweep: %w", err)
		}
	}
	if config.IdleAggregates > 0 {
		if err := b.forgetIdle(ctx, config); err != nil {
			return deleted, fmt.Errorf("outbox: sweep: %w", err)
		}
	}
	return deleted, nil
}

// forgetIdle goes through all aggregates once, page by page.
func (b *Outbox[T]) forgetIdle(ctx context.Context, config SweepConfig) error {
	for from := (Aggregate{}); ; {
		n, last := 0, from
		err := b.driver.Each(ctx, b.store.text(idlePage), []any{from.Type, from.ID, int64(config.BatchSize)}, func(scan func(...any) error) error {
			n++
			return scan(&last.Type, &last.ID)
		})
		if err != nil || n == 0 {
			return err
		}
		err = sqldb.Retry(ctx, func() error {
			_, err := b.driver.Exec(ctx, b.store.text(forgetIdle), from.Type, from.ID, last.Type, last.ID, config.IdleAggregates.Microseconds())
			return err
		})
		if err != nil || n < config.BatchSize {
			return err
		}
		if from = last; config.Pause > 0 && !sqldb.Pause(ctx, config.Pause) {
			return ctx.Err()
		}
	}
}
