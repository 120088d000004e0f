// Package sqlreceipts keeps the receipts of webhooks in the service's own PostgreSQL (14 or later) or CockroachDB (21.1 or later), and
// commits each delivery's effect together with the note that it had it:
//
//	receipts, err := sqlreceipts.NewPgx(pool, sqlreceipts.Config{}) // or NewSQL(sqlDB, ...)
//	err = receipts.Migrate(ctx)
//	receiver, err := webhook.New(webhook.Config{
//		Receipts: receipts,
//		Handler: receipts.InTx(func(ctx context.Context, tx pgx.Tx, d webhook.Delivery) error {
//			_, err := tx.Exec(ctx, "UPDATE invoices SET ...")
//			return err
//		}),
//		...
//	})
//
// Two tables do it. The inbox (package inbox) makes the effect happen once: the delivery's id, the handler's mutation and the end of the
// receipt are one transaction. The receipts' table holds what there is to do, and loses the body once it is done.
package sqlreceipts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/internal/sqldb"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/webhook"
)

// Config says which tables to use. The zero value is right for most.
type Config struct {
	// TablePrefix is what the names of the tables begin with, the inbox's among them; a schema may stand before it, as in "app.idem_".
	// Default: "idem_".
	TablePrefix string
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if err := sqldb.CheckPrefix(c.TablePrefix); err != nil {
		return fmt.Errorf("sqlreceipts: Config.%w", err)
	}
	return nil
}

// Receipts implements [webhook.Receipts]. T is the transaction that handlers mutate in: pgx.Tx or *sql.Tx. It may be used by many
// goroutines and holds no resources of its own.
type Receipts[T any] struct {
	driver     sqldb.Driver[T]
	inbox      *inbox.Inbox[T]
	config     Config
	statements statements
}

var _ webhook.Receipts = (*Receipts[*sql.Tx])(nil)

// NewPgx makes receipts in a database that is reached by a pgx pool.
func NewPgx(db sqldb.PgxDB, config Config) (*Receipts[pgx.Tx], error) {
	driver, err := sqldb.Pgx(db)
	if err != nil {
		return nil, fmt.Errorf("sqlreceipts: %w", err)
	}
	box, err := inbox.NewPgx(db, inbox.Config{TablePrefix: config.TablePrefix})
	return newReceipts(driver, box, config, err)
}

// NewSQL makes receipts in a database that is reached by database/sql, with any driver for PostgreSQL whose errors have a method
// SQLState() string: pgx's and lib/pq's do.
func NewSQL(db *sql.DB, config Config) (*Receipts[*sql.Tx], error) {
	driver, err := sqldb.SQL(db)
	if err != nil {
		return nil, fmt.Errorf("sqlreceipts: %w", err)
	}
	box, err := inbox.NewSQL(db, inbox.Config{TablePrefix: config.TablePrefix})
	return newReceipts(driver, box, config, err)
}

func newReceipts[T any](driver sqldb.Driver[T], box *inbox.Inbox[T], config Config, err error) (*Receipts[T], error) {
	if invalid := config.Validate(); invalid != nil {
		return nil, invalid
	}
	if err != nil {
		return nil, err
	}
	return &Receipts[T]{driver: driver, inbox: box, config: config, statements: newStatements(config.TablePrefix)}, nil
}

// Inbox is the inbox that remembers which deliveries had their effect. Sweep it, too, with an age over the sender's longest time of
// redelivery.
func (r *Receipts[T]) Inbox() *inbox.Inbox[T] { return r.inbox }

// What a receipt's state is in the table. The numbers never change meaning.
const (
	waiting = 0
	done    = 1
	failed  = 2
)

var schema = sqldb.Schema{
	Holds: "The receipts of clientlib/webhook/sqlreceipts, which need the inbox beside them", After: sqldb.StepsOfWebhooks,
	Names: []string{"webhook_receipts", "webhook_receipts_unfinished", "webhook_receipts_old"},
	Types: func(sqldb.Engine) []string { return nil }, // one form for both
	Steps: []sqldb.Step{
		{Name: "webhook_receipts", SQL: `CREATE TABLE IF NOT EXISTS {webhook_receipts} (
    receiver    VARCHAR(128) NOT NULL,
    delivery_id VARCHAR(255) NOT NULL,
    state       INT2 NOT NULL CHECK (state BETWEEN 0 AND 2), -- 0 waiting, 1 done, 2 failed for good
    algorithm   VARCHAR(64) NOT NULL,
    fingerprint BYTEA NOT NULL,
    envelope    BYTEA,       -- gone once it is done
    body        BYTEA,       -- gone once it is done
    failure     TEXT,        -- why it failed for good
    received_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    settled_at  TIMESTAMPTZ,
    PRIMARY KEY (receiver, delivery_id)
)`},
		// As short as the backlog.
		{Name: "webhook_receipts_unfinished", SQL: "CREATE INDEX IF NOT EXISTS {#webhook_receipts_unfinished} ON {webhook_receipts} (receiver, received_at) WHERE state = 0"},
		{Name: "webhook_receipts_old", SQL: "CREATE INDEX IF NOT EXISTS {#webhook_receipts_old} ON {webhook_receipts} (receiver, settled_at) WHERE state > 0"},
	},
}

// DDL is the receipts' schema as a script, for an engine of package sqlidem. The inbox has its own. [Receipts.Migrate] does the same as
// both and finds nothing to do after them.
func DDL(e sqldb.Engine, config Config) (string, error) {
	if err := config.Validate(); err != nil {
		return "", err
	}
	return schema.Script(e, config.TablePrefix), nil
}

// Migrate makes both tables, or brings them to what this version needs. Any number may run at once, and as often as they like. It needs
// the right to create tables; nothing else does.
func (r *Receipts[T]) Migrate(ctx context.Context) error {
	if err := r.inbox.Migrate(ctx); err != nil {
		return err
	}
	if err := schema.Migrate(ctx, r.driver, r.config.TablePrefix); err != nil {
		return fmt.Errorf("sqlreceipts: migrate: %w", err)
	}
	return nil
}

// statements are the texts of all statements, made once. Each begins with its name, which is what shows in the database's statistics.
type statements struct{ keep, read, lock, unfinished, settle, sweep string }

func newStatements(prefix string) statements {
	named := sqldb.Naming(prefix, schema.Names...)
	return statements{
		keep: named.Replace(`/* idem:webhook-keep */ INSERT INTO {webhook_receipts} (receiver, delivery_id, state, algorithm, fingerprint, envelope, body)
VALUES ($1::TEXT, $2::TEXT, 0, $3::TEXT, $4::BYTEA, $5::BYTEA, $6::BYTEA) ON CONFLICT (receiver, delivery_id) DO NOTHING`),
		read: named.Replace(`/* idem:webhook-read */ SELECT state, algorithm, fingerprint, envelope, body FROM {webhook_receipts}
WHERE receiver = $1::TEXT AND delivery_id = $2::TEXT`),
		// Whoever settles the receipt meanwhile waits for the transaction that this is in.
		lock: named.Replace(`/* idem:webhook-lock */ SELECT state FROM {webhook_receipts} WHERE receiver = $1::TEXT AND delivery_id = $2::TEXT FOR UPDATE`),
		unfinished: named.Replace(`/* idem:webhook-unfinished */ SELECT delivery_id, received_at FROM {webhook_receipts}
WHERE receiver = $1::TEXT AND state = 0 AND (received_at, delivery_id) > ($2::TIMESTAMPTZ, $3::TEXT) ORDER BY received_at, delivery_id LIMIT 1000`),
		settle: named.Replace(`/* idem:webhook-settle */ UPDATE {webhook_receipts}
SET state = $3::INT2, envelope = NULL, body = NULL, failure = $4::TEXT, settled_at = clock_timestamp()
WHERE receiver = $1::TEXT AND delivery_id = $2::TEXT AND state = 0`),
		// $3 is where the batch before ended: beginning at the start again would step over all that it deleted.
		sweep: named.Replace(`/* idem:webhook-sweep */ DELETE FROM {webhook_receipts} WHERE (receiver, delivery_id) IN (
    SELECT receiver, delivery_id FROM {webhook_receipts} WHERE receiver = $1::TEXT AND state > 0
    AND settled_at >= $3::TIMESTAMPTZ AND settled_at < clock_timestamp() - $2::INT8 * INTERVAL '1 microsecond' ORDER BY settled_at LIMIT $4::INT8)
RETURNING settled_at`),
	}
}

// row is a receipt as it is in the table.
type row struct {
	state          int
	fingerprint    fingerprint.Fingerprint
	envelope, body []byte
}

func (r *Receipts[T]) read(ctx context.Context, receiver, id string) (row, error) {
	var found row
	err := r.driver.Scan(ctx, r.statements.read, []any{receiver, id},
		&found.state, &found.fingerprint.Algorithm, &found.fingerprint.Hash, &found.envelope, &found.body)
	return found, err
}

func standingOf(state int) webhook.Standing {
	switch state {
	case done:
		return webhook.Done
	case failed:
		return webhook.Failed
	default:
		return webhook.Waiting
	}
}

// Keep implements [webhook.Receipts].
func (r *Receipts[T]) Keep(ctx context.Context, d webhook.Delivery) (webhook.Standing, error) {
	envelope, err := d.Envelope()
	if err != nil {
		return 0, err
	}
	body := d.Body
	if body == nil {
		body = []byte{} // nil would be NULL, and read as gone
	}
	args := []any{d.Receiver, d.ID, d.Fingerprint.Algorithm, d.Fingerprint.Hash, envelope, body}
	const tries = 3 // a sweep may come between the two statements
	for range tries {
		var n int64
		err := sqldb.Retry(ctx, func() (err error) {
			n, err = r.driver.Exec(ctx, r.statements.keep, args...)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("sqlreceipts: keep: %w", err)
		}
		if n == 1 {
			return webhook.Fresh, nil
		}
		known, err := r.read(ctx, d.Receiver, d.ID)
		switch {
		case errors.Is(err, sqldb.ErrNoRow):
			continue
		case err != nil:
			return 0, fmt.Errorf("sqlreceipts: keep: %w", err)
		case !known.fingerprint.Equal(d.Fingerprint):
			return 0, webhook.ErrOtherBody
		}
		return standingOf(known.state), nil
	}
	return 0, errors.New("sqlreceipts: the receipt is swept away as fast as it is written: the sweep's age is too short")
}

// Unfinished implements [webhook.Receipts].
func (r *Receipts[T]) Unfinished(ctx context.Context, receiver string, found func(id string) error) error {
	after, afterID := time.Unix(0, 0), ""
	for {
		var page []string // found may use the database, so it is called when the rows are read
		err := r.driver.Each(ctx, r.statements.unfinished, []any{receiver, after, afterID}, func(scan func(...any) error) error {
			err := scan(&afterID, &after)
			page = append(page, afterID)
			return err
		})
		if err != nil {
			return fmt.Errorf("sqlreceipts: unfinished: %w", err)
		}
		for _, id := range page {
			if err := found(id); err != nil {
				return err
			}
		}
		if len(page) == 0 {
			return nil
		}
	}
}

// transaction is where [Receipts.InTx] finds the handler's transaction.
type transaction[T any] struct{}

// InTx makes a handler of one that mutates in the transaction in which the inbox remembers the delivery: both are committed, or neither.
// The handler may run several times for one commit, as every closure does that the database asks to run again. It must not commit.
func (r *Receipts[T]) InTx(handle func(ctx context.Context, tx T, d webhook.Delivery) error) webhook.Handler {
	return func(ctx context.Context, d webhook.Delivery) error {
		tx, ok := ctx.Value(transaction[T]{}).(T)
		if !ok {
			return errors.New("sqlreceipts: this handler belongs to receipts of another kind")
		}
		return handle(ctx, tx, d)
	}
}

// Run implements [webhook.Receipts]. Of several that run the same delivery one does; the others wait for its transaction to end.
func (r *Receipts[T]) Run(ctx context.Context, receiver, id string, work webhook.Handler) (webhook.Standing, error) {
	known, err := r.read(ctx, receiver, id)
	switch {
	case errors.Is(err, sqldb.ErrNoRow):
		return webhook.Waiting, webhook.ErrNoReceipt
	case err != nil:
		return webhook.Waiting, &webhook.NotNow{Err: err}
	case known.state != waiting:
		return standingOf(known.state), nil
	}
	d, err := webhook.OpenEnvelope(known.envelope)
	if err != nil {
		return webhook.Waiting, err
	}
	d.Receiver, d.ID, d.Body = receiver, id, known.body
	ctx = clientlib.WithKey(ctx, webhook.DownstreamKey(receiver, id))
	message := inbox.Message{Subscriber: "webhook:" + receiver, ID: id, Fingerprint: known.fingerprint}
	outcome, err := r.inbox.Handle(ctx, message, func(ctx context.Context, tx T) error { return r.handle(ctx, tx, d, work) })
	var over *settled
	switch {
	case errors.As(err, &over):
		return standingOf(over.state), nil
	case err == nil && outcome == inbox.Processed:
		return webhook.Done, nil
	case err == nil: // the effect is there, and its receipt was put down anew since
		return r.settle(ctx, d, done, nil)
	case (clientlib.Classes{}).ClassOf(err) == clientlib.FinalFailure, errors.Is(err, inbox.ErrOtherPayload):
		return r.settle(ctx, d, failed, err)
	}
	return webhook.Waiting, err
}

// settled has a transaction rolled back in which there is nothing to do: the receipt was settled since it was read.
type settled struct{ state int }

func (*settled) Error() string { return "sqlreceipts: the receipt is settled" }

// handle is the work and its note, in the inbox's transaction. The receipt is read anew there: whoever waited for another one's
// transaction must not run what that one has settled as failed.
func (r *Receipts[T]) handle(ctx context.Context, tx T, d webhook.Delivery, work webhook.Handler) error {
	q, err := r.driver.In(tx)
	if err != nil {
		return err
	}
	var state int
	switch err := q.Scan(ctx, r.statements.lock, []any{d.Receiver, d.ID}, &state); {
	case errors.Is(err, sqldb.ErrNoRow):
		return webhook.ErrNoReceipt
	case err != nil:
		return err
	case state != waiting:
		return &settled{state}
	}
	if err := work(context.WithValue(ctx, transaction[T]{}, tx), d); err != nil {
		return err
	}
	_, err = q.Exec(ctx, r.statements.settle, d.Receiver, d.ID, int64(done), "")
	return err
}

// settle notes in a statement of its own what came of a delivery, also when the caller's context has ended. Where somebody else was first,
// what that one noted stands.
func (r *Receipts[T]) settle(ctx context.Context, d webhook.Delivery, state int, cause error) (webhook.Standing, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	failure := ""
	if cause != nil {
		failure = sqldb.Text(cause.Error(), maxFailureLength)
	}
	var n int64
	err := sqldb.Retry(ctx, func() (err error) {
		n, err = r.driver.Exec(ctx, r.statements.settle, d.Receiver, d.ID, int64(state), failure)
		return err
	})
	if err == nil && n == 0 {
		var now row
		if now, err = r.read(ctx, d.Receiver, d.ID); err == nil && now.state != state {
			return standingOf(now.state), nil
		}
	}
	if err != nil {
		return webhook.Waiting, &webhook.NotNow{Err: fmt.Errorf("sqlreceipts: settle: %w", err)}
	}
	return standingOf(state), cause
}

const (
	settleTimeout = 5 * time.Second
	// maxFailureLength is how much of a handler's error is kept in the table.
	maxFailureLength = 500
	// sweepBatch is how many receipts one statement of a sweep deletes.
	sweepBatch = 500
)

// Sweep forgets receipts of a receiver that were settled longer ago than age, by the database's clock, and returns how many, also when it
// was cut short. Choose age over the sender's longest time of redelivery. The inbox has a sweep of its own, which must not be shorter. One
// that waits is never forgotten.
func (r *Receipts[T]) Sweep(ctx context.Context, receiver string, age time.Duration) (forgotten int, err error) {
	if age <= 0 {
		return 0, errors.New("sqlreceipts: a sweep needs an age: how long after it was done can a delivery still come again?")
	}
	forgotten, err = sqldb.DeleteBatches(ctx, r.driver, r.statements.sweep, sweepBatch, 0, func(from time.Time) []any {
		return []any{receiver, age.Microseconds(), from, int64(sweepBatch)}
	})
	if err != nil {
		err = fmt.Errorf("sqlreceipts: sweep: %w", err)
	}
	return forgotten, err
}
