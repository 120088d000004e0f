package sqlidem

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// The schema is changed by numbered steps, forward only, one DDL statement each, since CockroachDB has no atomic DDL in transactions. Every
// step is written so that running it twice does no harm, and is recorded after it ran: a crash at any point, or two that migrate at
// once, do no harm either. A new step goes to the end, under the next number.
type step struct {
	number int
	name   string
	sql    string
}

// stepsFor are all steps, in order.
func stepsFor(e Engine, t tables) []step {
	postgres := e == PostgreSQL
	text, bytes := "STRING", "BYTES"
	storage := ""
	if postgres {
		// The text columns compare byte by byte, in every locale. An entry is written twice in its transaction: there is room for the second
		// version on the first one's page.
		text, bytes = `TEXT COLLATE "C"`, "BYTEA"
		storage = " WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05)"
	}
	fill := strings.NewReplacer("{text}", text, "{bytes}", bytes, "{storage}", storage,
		"{entries}", t.named("entries"), "{receipts}", t.named("receipts"),
		"{entries_by_due}", t.index("entries_by_due"), "{receipts_by_due}", t.index("receipts_by_due"))
	steps := []step{
		{1, "entries", entriesTable},
		{2, "entries_by_due", "CREATE INDEX IF NOT EXISTS {entries_by_due} ON {entries} (shard, due_at)"},
		{3, "receipts", receiptsTable},
		{4, "receipts_by_due", "CREATE INDEX IF NOT EXISTS {receipts_by_due} ON {receipts} (shard, due_at)"},
	}
	for i := range steps {
		steps[i].sql = fill.Replace(steps[i].sql)
	}
	return steps
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

func schemaTable(t tables) string {
	return "CREATE TABLE IF NOT EXISTS " + t.named("schema") + ` (
    step       INT8 NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)`
}

// DDL is the whole schema as a script, for those who keep all DDL in one place. [Migrate] does the same and finds nothing to do after it.
func DDL(e Engine, config Config) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	t := tables{config.withDefaults().TablePrefix}
	var script strings.Builder
	fmt.Fprintf(&script, "-- The tables of clientlib/sqlidem, for %s. Running this again does no harm.\n%s;\n", e, schemaTable(t))
	for _, s := range stepsFor(e, t) {
		fmt.Fprintf(&script, "\n%s;\nINSERT INTO %s (step, name) VALUES (%d, '%s') ON CONFLICT (step) DO NOTHING;\n", s.sql, t.named("schema"), s.number, s.name)
	}
	return script.String(), nil
}

// migrateTries is how often a step is tried that another migration got in the way of.
const migrateTries = 10

// Migrate makes this package's tables, or brings them to what this version needs. Any number may run at once, from any number of
// processes, and as often as they like. It needs the right to create tables; work does not. Its errors keep the database's own words.
func Migrate[T any](ctx context.Context, db *DB[T]) error {
	c, err := db.driver.acquire(ctx)
	if err != nil {
		return fmt.Errorf("sqlidem: migrate: %w", err)
	}
	defer c.release(true)
	known, err := db.dialectOn(ctx, c)
	if err != nil {
		return fmt.Errorf("sqlidem: migrate: %w", err)
	}
	t := tables{db.config.TablePrefix}
	if err := migrateStep(ctx, c, schemaTable(t)); err != nil {
		return fmt.Errorf("sqlidem: migrate: %w", err)
	}
	applied := 0
	if err := c.scan(ctx, "SELECT coalesce(max(step), 0)::INT8 FROM "+t.named("schema"), nil, &applied); err != nil {
		return fmt.Errorf("sqlidem: migrate: %w", err)
	}
	for _, s := range stepsFor(known.engine, t) {
		if s.number <= applied {
			continue
		}
		if err = migrateStep(ctx, c, s.sql); err == nil {
			_, err = c.exec(ctx, "INSERT INTO "+t.named("schema")+" (step, name) VALUES ($1::INT8, $2::TEXT) ON CONFLICT (step) DO NOTHING",
				int64(s.number), s.name)
		}
		if err != nil {
			return fmt.Errorf("sqlidem: migrate: step %d (%s): %w", s.number, s.name, err)
		}
	}
	return nil
}

// migrateStep runs one idempotent statement, again where another migration does the same at the same time: the two can meet in the catalogue,
// over the table, its row type or the index behind either.
func migrateStep(ctx context.Context, q querier, text string) error {
	for n := 1; ; n++ {
		_, err := q.exec(ctx, text)
		if err == nil || n == migrateTries {
			return err
		}
		switch sqlState(err) {
		case "23505", "42P07", "42710", "40001", "40P01", "XX000":
			if !pause(ctx, n) {
				return errors.Join(err, ctx.Err())
			}
		default:
			return err
		}
	}
}
