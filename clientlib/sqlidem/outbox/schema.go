package outbox

import (
	"context"
	"fmt"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// The schema. Who touches what decides who waits for whom:
//
//   - outbox holds the events. Rows are inserted and deleted, never updated, so that Debezium and changefeeds can read it. The columns
//     that Debezium's event router looks for have the names that it looks for.
//   - outbox_versions holds the last version of each aggregate, and is touched by writers only: its row is locked from Write to commit.
//   - outbox_pending holds a narrow row for each event that no dispatcher has published.
//   - outbox_deliveries holds how far dispatchers have come with each aggregate and who is at work on it. It is touched by dispatchers
//     only, in statements that are transactions of their own: a writer that takes its time holds up no dispatcher.
var schema = sqldb.Schema{
	Holds: "The outbox of clientlib/sqlidem/outbox", After: sqldb.StepsOfOutbox,
	Names: []string{"outbox", "outbox_by_age", "outbox_versions", "outbox_pending", "outbox_deliveries", "outbox_parked"},
	Types: func(e sqldb.Engine) []string {
		if e == sqldb.CockroachDB {
			return []string{"{name}", "VARCHAR(255)", "{text}", "STRING", "{bytes}", "BYTES", "{updated}", "", "{queued}", ""}
		}
		return []string{
			// Byte order, in every locale.
			"{name}", `VARCHAR(255) COLLATE "C"`, "{text}", "TEXT", "{bytes}", "BYTEA",
			// Rows that are updated over and over find room for their next version on the same page.
			"{updated}", " WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02)",
			// Rows come and go: what is gone is cleared away before scans have to step over much of it.
			"{queued}", " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)",
		}
	},
	Steps: []sqldb.Step{
		{Name: "outbox", SQL: `CREATE TABLE IF NOT EXISTS {outbox} (
    id            UUID NOT NULL,
    aggregatetype {name} NOT NULL,
    aggregateid   {name} NOT NULL,
    type          {name} NOT NULL,
    payload       {bytes} NOT NULL,
    version       INT8 NOT NULL,
    headers       JSONB NOT NULL,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    shard         INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    PRIMARY KEY (aggregatetype, aggregateid, version)
)`},
		{Name: "outbox_by_age", SQL: `CREATE INDEX IF NOT EXISTS {#outbox_by_age} ON {outbox} (shard, created_at)`},
		{Name: "outbox_versions", SQL: `CREATE TABLE IF NOT EXISTS {outbox_versions} (
    aggregatetype {name} NOT NULL,
    aggregateid   {name} NOT NULL,
    last_version  INT8 NOT NULL,
    PRIMARY KEY (aggregatetype, aggregateid)
){updated}`},
		{Name: "outbox_pending", SQL: `CREATE TABLE IF NOT EXISTS {outbox_pending} (
    aggregatetype {name} NOT NULL,
    aggregateid   {name} NOT NULL,
    version       INT8 NOT NULL,
    written_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (aggregatetype, aggregateid, version)
){queued}`},
		{Name: "outbox_deliveries", SQL: `CREATE TABLE IF NOT EXISTS {outbox_deliveries} (
    aggregatetype     {name} NOT NULL,
    aggregateid       {name} NOT NULL,
    published_version INT8 NOT NULL,               -- everything up to here was acknowledged by the broker
    owner             {name} NOT NULL DEFAULT '',  -- who is at work, or was last
    fence             INT8 NOT NULL DEFAULT 0,     -- rises with every claim; what a holder says is believed only under its own
    lease_until       TIMESTAMPTZ NOT NULL DEFAULT '1970-01-01 00:00:00+00',
    attempts          INT4 NOT NULL DEFAULT 0,     -- failed ones, of the event after published_version
    next_at           TIMESTAMPTZ NOT NULL DEFAULT '1970-01-01 00:00:00+00',
    settled_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), -- when a holder last had something to say
    failed_at         TIMESTAMPTZ,
    last_error        {text} NOT NULL DEFAULT '',
    parked_at         TIMESTAMPTZ,
    PRIMARY KEY (aggregatetype, aggregateid)
){updated}`},
		{Name: "outbox_parked", SQL: `CREATE INDEX IF NOT EXISTS {#outbox_parked} ON {outbox_deliveries} (parked_at) WHERE parked_at IS NOT NULL`},
	},
}

// DDL is the schema as a script, for an engine of package sqlidem. [Outbox.Migrate] does the same and finds nothing to do after it.
func DDL(e sqldb.Engine, config Config) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	return schema.Script(e, config.TablePrefix), nil
}

// Migrate makes the tables, or brings them to what this version needs. Any number may run at once, and as often as they like. It needs the
// right to create tables; nothing else does.
func (b *Outbox[T]) Migrate(ctx context.Context) error {
	if err := schema.Migrate(ctx, b.driver, b.config.TablePrefix); err != nil {
		return fmt.Errorf("outbox: migrate: %w", err)
	}
	return nil
}
