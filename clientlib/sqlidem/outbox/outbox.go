package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// DefaultMaxPayloadBytes is how long a payload may be: what Kafka takes as it comes.
const DefaultMaxPayloadBytes = 1 << 20

// Config says which tables to use. The zero value is right for most.
type Config struct {
	// TablePrefix is what the tables' names begin with; a schema may stand before it, as in "app.idem_". Default: "idem_".
	TablePrefix string
	// MaxPayloadBytes is how long a payload may be. Default: DefaultMaxPayloadBytes.
	MaxPayloadBytes int

	// ClockSQL is for tests only: an SQL expression of type TIMESTAMPTZ by which leases and pauses are judged, in place of the database's
	// clock.
	ClockSQL string
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if err := sqldb.CheckPrefix(c.TablePrefix); err != nil {
		return fmt.Errorf("outbox: Config.%w", err)
	}
	if c.MaxPayloadBytes < 0 {
		return errors.New("outbox: Config.MaxPayloadBytes must not be negative")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.MaxPayloadBytes == 0 {
		c.MaxPayloadBytes = DefaultMaxPayloadBytes
	}
	if c.ClockSQL == "" {
		c.ClockSQL = "clock_timestamp()"
	}
	return c
}

// Outbox holds events until they are published. T is the transaction that a service mutates in: pgx.Tx or *sql.Tx. It may be used by many
// goroutines and holds no resources of its own.
type Outbox[T any] struct {
	driver sqldb.Driver[T]
	config Config
	write  string
	store  *store
}

// NewPgx makes an outbox of a pgx pool.
func NewPgx(db sqldb.PgxDB, config Config) (*Outbox[pgx.Tx], error) {
	driver, err := sqldb.Pgx(db)
	return newOutbox(driver, config, err)
}

// NewSQL makes an outbox of a database/sql pool, with any driver for PostgreSQL whose errors have a method SQLState() string: pgx's and
// lib/pq's do.
func NewSQL(db *sql.DB, config Config) (*Outbox[*sql.Tx], error) {
	driver, err := sqldb.SQL(db)
	return newOutbox(driver, config, err)
}

func newOutbox[T any](driver sqldb.Driver[T], config Config, err error) (*Outbox[T], error) {
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	named := sqldb.Naming(config.TablePrefix, schema.Names...)
	return &Outbox[T]{driver: driver, config: config, write: named.Replace(writeSQL), store: newStore(driver, named, config)}, nil
}

// writeSQL is one round trip. The row of outbox_versions stays locked until the transaction ends: that is what makes versions follow the
// order of commits, so that nobody can see an event before the one that it follows.
const writeSQL = `/* idem:outbox-write */ WITH v AS (
    INSERT INTO {outbox_versions} AS a (aggregatetype, aggregateid, last_version) VALUES ($1::VARCHAR, $2::VARCHAR, 1)
    ON CONFLICT (aggregatetype, aggregateid) DO UPDATE SET last_version = a.last_version + 1
    RETURNING last_version),
p AS (
    INSERT INTO {outbox_pending} (aggregatetype, aggregateid, version) SELECT $1::VARCHAR, $2::VARCHAR, last_version FROM v RETURNING 1)
INSERT INTO {outbox} (id, aggregatetype, aggregateid, type, payload, version, headers, shard)
SELECT $3::UUID, $1::VARCHAR, $2::VARCHAR, $4::VARCHAR, $5::BYTEA, last_version, $6::TEXT::JSONB, $7::INT2 FROM v
RETURNING version, created_at`

// Write writes events in tx, the transaction of the mutation that they tell of. They are published when it is committed, and never were
// when it is not. What it returns stands in the order of what it was given.
//
// The transaction holds the events' aggregates from here until it ends: others that write for the same aggregate wait. So write late in the
// transaction, and where it writes for several aggregates, in one call or in the same order everywhere, or two transactions can wait for
// each other; the database then ends one of them with a deadlock error (SQLSTATE 40P01) or a serialization failure (40001), after which
// the whole transaction can be run again.
func (b *Outbox[T]) Write(ctx context.Context, tx T, events ...Event) ([]Envelope, error) {
	q, err := b.driver.In(tx)
	if err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	out, headers, order := make([]Envelope, len(events)), make([]string, len(events)), make([]int, len(events))
	for i, event := range events {
		if headers[i], err = event.prepare(b.config.MaxPayloadBytes); err != nil {
			return nil, err
		}
		out[i].Event, order[i] = event, i
	}
	// In one order whatever the caller's, and as given within an aggregate.
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(events[i].AggregateType, events[j].AggregateType), cmp.Compare(events[i].AggregateID, events[j].AggregateID))
	})
	for _, i := range order {
		e := &out[i]
		payload := e.Payload
		if payload == nil {
			payload = []byte{} // nil would be NULL
		}
		args := []any{e.AggregateType, e.AggregateID, e.ID.String(), e.Type, payload, headers[i], shardOf(e.ID[:])}
		if err := q.Scan(ctx, b.write, args, &e.Version, &e.WrittenAt); err != nil {
			return nil, fmt.Errorf("outbox: write: %w", err)
		}
	}
	return out, nil
}

// shards spread the rising end of the index that the sweep goes by.
const shards = 16

func shardOf(id []byte) int16 {
	h := fnv.New32a()
	_, _ = h.Write(id)
	return int16(h.Sum32() % shards)
}
