package inbox

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// The table is touched in each handler's transaction: one narrow row, found by its primary key. received_at rises with the clock, so a
// shard stands before it in the index, or CockroachDB would write all of them to one range.
var schema = sqldb.Schema{
	Holds: "The inbox of clientlib/sqlidem/inbox", After: sqldb.StepsOfInbox,
	Names: []string{"inbox", "inbox_by_age"},
	Types: func(e sqldb.Engine) []string {
		if e == sqldb.CockroachDB {
			return []string{"{text}", "STRING", "{bytes}", "BYTES"}
		}
		return []string{"{text}", `TEXT COLLATE "C"`, "{bytes}", "BYTEA"} // byte order, in every locale
	},
	Steps: []sqldb.Step{
		{Name: "inbox", SQL: `CREATE TABLE IF NOT EXISTS {inbox} (
    subscriber  {text} NOT NULL,
    message_id  {text} NOT NULL,
    shard       INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    algorithm   {text} NOT NULL, -- of the fingerprint; empty: there is none
    fingerprint {bytes},
    received_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscriber, message_id)
)`},
		{Name: "inbox_by_age", SQL: `CREATE INDEX IF NOT EXISTS {#inbox_by_age} ON {inbox} (shard, received_at)`},
	},
}

// DDL is the schema as a script, for an engine of package sqlidem. [Inbox.Migrate] does the same and finds nothing to do after it.
func DDL(e sqldb.Engine, config Config) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	return schema.Script(e, config.TablePrefix), nil
}

// Migrate makes the table, or brings it to what this version needs. Any number may run at once, and as often as they like. It needs the
// right to create tables; receiving does not.
func (b *Inbox[T]) Migrate(ctx context.Context) error {
	if err := schema.Migrate(ctx, b.driver, b.config.TablePrefix); err != nil {
		return fmt.Errorf("inbox: migrate: %w", err)
	}
	return nil
}

// statements are the texts of all statements, made once. Each begins with its name, which is what shows in the database's statistics.
type statements struct{ insert, read, sweep string }

func newStatements(prefix string) statements {
	named := sqldb.Naming(prefix, schema.Names...)
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
