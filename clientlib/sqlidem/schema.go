package sqlidem

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

var schema = sqldb.Schema{
	Holds: "The tables of clientlib/sqlidem", After: sqldb.StepsOfEntries,
	Names: []string{"entries", "entries_by_due", "receipts", "receipts_by_due"},
	Types: func(e sqldb.Engine) []string {
		if e == CockroachDB {
			return []string{"{text}", "STRING", "{bytes}", "BYTES", "{storage}", ""}
		}
		return []string{
			// Byte order, in every locale.
			"{text}", `TEXT COLLATE "C"`, "{bytes}", "BYTEA",
			// An entry is written twice in its transaction: there is room for the second version on the first one's page.
			"{storage}", " WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05)",
		}
	},
	Steps: []sqldb.Step{
		{Name: "entries", SQL: entriesTable},
		{Name: "entries_by_due", SQL: "CREATE INDEX IF NOT EXISTS {#entries_by_due} ON {entries} (shard, due_at)"},
		{Name: "receipts", SQL: receiptsTable},
		{Name: "receipts_by_due", SQL: "CREATE INDEX IF NOT EXISTS {#receipts_by_due} ON {receipts} (shard, due_at)"},
	},
}

// entriesTable holds level 1. A row is only ever committed settled, so it has no lease and no holder. Due times rise with the clock: the
// shard before them keeps CockroachDB from writing all of them to one range.
const entriesTable = `CREATE TABLE IF NOT EXISTS {entries} (
    tenant       {text} NOT NULL,
    operation    {text} NOT NULL,
    key          {text} NOT NULL,
    shard        INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    incarnation  INT8 NOT NULL,     -- when the intent was first begun. Times are microseconds since the Unix epoch, by the database's clock
    revision     INT8 NOT NULL,
    state        INT2 NOT NULL,     -- 1 pending, never seen from outside its transaction, 2 completed, 3 failed for good
    closed       BOOL NOT NULL,     -- only a tombstone is left: the answer is gone, and a late retry is refused
    attempt_id   {bytes} NOT NULL,
    settled_at   INT8 NOT NULL,
    due_at       INT8 NOT NULL,     -- when the sweep has something to do here: the end of retention, then of the tombstone
    retention_ns INT8 NOT NULL,
    tombstone_ns INT8 NOT NULL,
    fingerprints {bytes} NOT NULL,
    report       {bytes},
    answer       {bytes},
    PRIMARY KEY (tenant, operation, key),
    CONSTRAINT state_is_known CHECK (state BETWEEN 1 AND 3)
){storage}`

// receiptsTable holds level 2: for each intent the fence that the latest attempt put up, and the answer of the one that had its effect.
const receiptsTable = `CREATE TABLE IF NOT EXISTS {receipts} (
    tenant       {text} NOT NULL,
    operation    {text} NOT NULL,
    key          {text} NOT NULL,
    shard        INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    incarnation  INT8 NOT NULL,     -- which life of the daemon's entry it belongs to
    fence        INT8 NOT NULL,     -- transactions of attempts with a lower one fail
    fingerprints {bytes} NOT NULL,
    written_at   INT8 NOT NULL,     -- microseconds since the Unix epoch, by the database's clock
    due_at       INT8 NOT NULL,     -- from when the sweep asks the daemon whether the receipt is still needed
    answer       {bytes},         -- none: only a fence
    PRIMARY KEY (tenant, operation, key)
){storage}`

// DDL is the schema as a script, for those who keep all DDL in one place. [Migrate] does the same and finds nothing to do after it. The
// packages inbox, outbox and sqlreceipts have schemas of their own.
func DDL(e Engine, config Config) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	return schema.Script(e, config.TablePrefix), nil
}

// Migrate makes this package's tables, or brings them to what this version needs. Any number may run at once, from any number of
// processes, and as often as they like. It needs the right to create tables; work does not. Its errors keep the database's own words.
func Migrate[T any](ctx context.Context, db *DB[T]) error {
	if err := schema.Migrate(ctx, db.driver, db.config.TablePrefix); err != nil {
		return fmt.Errorf("sqlidem: migrate: %w", err)
	}
	return nil
}
