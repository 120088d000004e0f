package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/clientlib/sqlidem/internal/sqldb"
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
)

// Sweep deletes events that were written longer ago than config.Age, by the database's clock, and returns how many, also when it was cut
// short. Several sweeps at once do no harm. Versions go on where they were, whatever is deleted.
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
		n, err := b.sweepShard(ctx, text, config, shard)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("outbox: sweep: %w", err)
		}
	}
	return deleted, nil
}

func (b *Outbox[T]) sweepShard(ctx context.Context, text string, config SweepConfig, shard int) (deleted int, err error) {
	var from time.Time
	for {
		n, latest := 0, from
		err := sqldb.Retry(ctx, func() error {
			n, latest = 0, from
			args := []any{int16(shard), from, config.Age.Microseconds(), int64(config.BatchSize)}
			return b.driver.Each(ctx, text, args, func(scan func(...any) error) error {
				var created time.Time
				if err := scan(&created); err != nil {
					return err
				}
				n++
				if created.After(latest) {
					latest = created
				}
				return nil
			})
		})
		if err != nil {
			return deleted, err
		}
		deleted, from = deleted+n, latest
		if n < config.BatchSize {
			return deleted, nil
		}
		if config.Pause > 0 && !sqldb.Pause(ctx, config.Pause) {
			return deleted, ctx.Err()
		}
	}
}
