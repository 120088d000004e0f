package inbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/idemd/idemd/clientlib/sqlidem/internal/sqldb"
)

// The table is touched in each handler's transaction: one narrow row, found by its primary key. received_at rises with the clock, so a
// shard stands before it in the index, or CockroachDB would write all of them to one range.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS {inbox} (
    subscriber  {text} NOT NULL,
    message_id  {text} NOT NULL,
    shard       INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    algorithm   {text} NOT NULL, -- of the fingerprint; empty: there is none
    fingerprint {bytes},
    received_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscriber, message_id)
)`,
	`CREATE INDEX IF NOT EXISTS {#inbox_by_age} ON {inbox} (shard, received_at)`,
}

var tables = []string{"inbox", "inbox_by_age"}

// DDL is the schema for an engine, "postgres" or "cockroach": statements to be run one by one, in order. Each does no harm when run again.
func DDL(engine string, config Config) ([]string, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	e, err := sqldb.ParseEngine(engine)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	return ddl(e, config), nil
}

func ddl(e sqldb.Engine, config Config) []string {
	types := strings.NewReplacer("{text}", "STRING", "{bytes}", "BYTES")
	if e == sqldb.PostgreSQL {
		// Byte order, in every locale.
		types = strings.NewReplacer("{text}", `TEXT COLLATE "C"`, "{bytes}", "BYTEA")
	}
	named := sqldb.Naming(config.TablePrefix, tables...)
	out := make([]string, len(schema))
	for i, text := range schema {
		out[i] = named.Replace(types.Replace(text))
	}
	return out
}

// Migrate makes the table. Any number may run at once, and as often as they like. It needs the right to create tables; receiving does not.
func (b *Inbox[T]) Migrate(ctx context.Context) error {
	e, err := sqldb.EngineOf(ctx, b.driver)
	if err == nil {
		err = sqldb.RunDDL(ctx, b.driver, ddl(e, b.config))
	}
	if err != nil {
		return fmt.Errorf("inbox: migrate: %w", err)
	}
	return nil
}

// statements are the texts of all statements, made once. Each begins with its name, which is what shows in the database's statistics.
type statements struct{ insert, read, sweep string }

func newStatements(prefix string) statements {
	named := sqldb.Naming(prefix, tables...)
	return statements{
		// Where another transaction has inserted the same message and not ended, this waits for it.
		insert: named.Replace(`/* idem:inbox-insert */ INSERT INTO {inbox} (subscriber, message_id, shard, algorithm, fingerprint)
VALUES ($1::TEXT, $2::TEXT, $3::INT2, $4::TEXT, $5::BYTEA) ON CONFLICT (subscriber, message_id) DO NOTHING`),
		read: named.Replace(`/* idem:inbox-read */ SELECT algorithm, fingerprint FROM {inbox} WHERE subscriber = $1::TEXT AND message_id = $2::TEXT`),
		// $2 is where the batch before ended: beginning at the start again would step over all that it deleted.
		sweep: named.Replace(`/* idem:inbox-sweep */ DELETE FROM {inbox} WHERE (subscriber, message_id) IN (
    SELECT subscriber, message_id FROM {inbox}
    WHERE shard = $1::INT2 AND received_at >= $2::TIMESTAMPTZ AND received_at < clock_timestamp() - $3::INT8 * INTERVAL '1 microsecond'
    ORDER BY received_at LIMIT $4::INT8)
RETURNING received_at`),
	}
}
