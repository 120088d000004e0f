package sqlidem

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/idemd/idemd/ledger"
)

// SweepOptions say how one sweep goes.
type SweepOptions struct {
	// BatchRows is how many rows one transaction examines, at most 500. Default: 100.
	BatchRows int
	// MaxRows is how many rows to examine in all. Default: all that are due.
	MaxRows int
}

const (
	defaultBatchRows = 100
	maxBatchRows     = 500
)

// Validate says what is wrong with the options, or nil.
func (o SweepOptions) Validate() error {
	if o.BatchRows < 0 || o.BatchRows > maxBatchRows || o.MaxRows < 0 {
		return fmt.Errorf("sqlidem: SweepOptions.BatchRows must be 1 to %d, and MaxRows not negative", maxBatchRows)
	}
	return nil
}

// Swept is what a sweep did.
type Swept struct {
	// Examined rows were due.
	Examined int
	// Closed lost their answer and left a tombstone, Forgotten are gone.
	Closed, Forgotten int
	// Kept are receipts whose entry the daemon still has.
	Kept int
}

// Sweep closes the entries whose retention is past and forgets those whose tombstone is, in batches of a transaction each. Whether a sweep has
// been by makes no difference to a Do, so it may run as rarely as the space allows, and in any number of processes at once: on PostgreSQL
// they leave each other's rows alone, on CockroachDB one of two that meet does the work. Its errors are the database's.
func Sweep[T any](ctx context.Context, db *DB[T], options SweepOptions) (Swept, error) {
	var total Swept
	err := inBatches(options, func(shard, limit int) (more bool, err error) {
		var batch Swept
		err = db.transact(ctx, sql.LevelDefault, func(s *session[T]) (err error) {
			batch, err = sweepBatch(ctx, s, shard, limit)
			return err
		})
		total.Examined += batch.Examined
		total.Closed += batch.Closed
		total.Forgotten += batch.Forgotten
		return batch.Examined == limit && batch.Closed+batch.Forgotten > 0, err
	}, &total)
	return total, err
}

// inBatches sweeps shard by shard, and in each as long as there is more, up to the limits of the options.
func inBatches(options SweepOptions, sweep func(shard, limit int) (more bool, err error), total *Swept) error {
	if err := options.Validate(); err != nil {
		return err
	}
	if options.BatchRows == 0 {
		options.BatchRows = defaultBatchRows
	}
	for shard := range ledger.Shards {
		for more := true; more; {
			limit := options.BatchRows
			if options.MaxRows > 0 {
				limit = min(limit, options.MaxRows-total.Examined)
			}
			if limit <= 0 {
				return nil
			}
			var err error
			if more, err = sweep(shard, limit); err != nil {
				return fmt.Errorf("sqlidem: sweep: %w", err)
			}
		}
	}
	return nil
}

// sweepBatch does what is due for the first rows of a shard.
func sweepBatch[T any](ctx context.Context, s *session[T], shard, limit int) (Swept, error) {
	var now int64
	if err := s.t.Scan(ctx, s.dialect.tell, nil, &now); err != nil {
		return Swept{}, statementFailure(err)
	}
	var batch Swept
	var closing, forgetting []any
	err := s.t.Each(ctx, s.dialect.due, []any{int64(shard), now, int64(limit)}, func(scan func(...any) error) error {
		var row entryRow
		var ref ledger.Ref
		if err := scan(append(row.targets(), &ref.Tenant, &ref.Operation, &ref.Key)...); err != nil {
			return err
		}
		e, err := row.entry(scopeSecret.Scope(ref), ref)
		if err != nil {
			return err
		}
		batch.Examined++
		switch action, w := ledger.DecideSweep(e, ledger.Time(now)); action {
		case ledger.SweepForget:
			batch.Forgotten++
			forgetting = append(append(forgetting, scopeArgs(ref)...), int64(e.Incarnation), e.Revision)
		case ledger.SweepClose:
			batch.Closed++
			closing = append(append(closing, scopeArgs(ref)...), int64(e.Incarnation), e.Revision, int64(w.Put.DueAt))
		case ledger.SweepNothing, ledger.SweepLapse, ledger.SweepHold: // what is pending here is never due
		}
		return nil
	})
	if err == nil && batch.Closed > 0 {
		_, err = s.t.Exec(ctx, s.dialect.closeEntries(batch.Closed), closing...)
	}
	if err == nil && batch.Forgotten > 0 {
		_, err = s.t.Exec(ctx, s.dialect.forget(batch.Forgotten), forgetting...)
	}
	if err != nil {
		return Swept{}, statementFailure(err)
	}
	s.over()
	return batch, nil
}
