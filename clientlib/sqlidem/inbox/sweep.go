package inbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// DefaultSweepBatch is how many messages one statement of a sweep forgets.
const DefaultSweepBatch = 500

// SweepConfig says what a sweep forgets and how hard it works.
type SweepConfig struct {
	// Age is how long a message is remembered. Required. It must be longer than the longest time after which a queue can deliver the message
	// again: its retention, where consumers can be set back to an earlier offset.
	Age time.Duration
	// BatchSize is how many messages one statement forgets. Default: DefaultSweepBatch.
	BatchSize int
	// Pause is how long to wait between statements, for the sake of other traffic. Default: none.
	Pause time.Duration
}

// Validate says what is wrong with the configuration, or nil.
func (c SweepConfig) Validate() error {
	switch {
	case c.Age <= 0:
		return errors.New("inbox: SweepConfig.Age is required: how long after its first delivery can a message still come again?")
	case c.BatchSize < 0:
		return errors.New("inbox: SweepConfig.BatchSize must not be negative")
	case c.Pause < 0:
		return errors.New("inbox: SweepConfig.Pause must not be negative")
	}
	return nil
}

// Sweep forgets messages that were received longer ago than config.Age, by the database's clock, and returns how many, also when it was cut
// short. Several sweeps at once do no harm.
func (b *Inbox[T]) Sweep(ctx context.Context, config SweepConfig) (forgotten int, err error) {
	if err := config.Validate(); err != nil {
		return 0, err
	}
	if config.BatchSize == 0 {
		config.BatchSize = DefaultSweepBatch
	}
	for shard := range shards {
		n, err := sqldb.DeleteBatches(ctx, b.driver, b.statements.sweep, config.BatchSize, config.Pause, func(from time.Time) []any {
			return []any{int16(shard), from, config.Age.Microseconds(), int64(config.BatchSize)}
		})
		forgotten += n
		if err != nil {
			return forgotten, fmt.Errorf("inbox: sweep: %w", err)
		}
	}
	return forgotten, nil
}
