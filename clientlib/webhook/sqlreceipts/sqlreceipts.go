// Package sqlreceipts keeps the receipts of webhooks in the service's own PostgreSQL (14 or later) or CockroachDB (21.1 or later), and
// commits each delivery's effect together with the note that it had it:
//
//	box, err := inbox.NewPgx(pool, inbox.Config{})
//	receipts, err := sqlreceipts.New(stdlib.OpenDBFromPool(pool), box, sqlreceipts.Config{})
//	receiver, err := webhook.New(webhook.Config{
//		Receipts: receipts,
//		Handler: receipts.InTx(func(ctx context.Context, tx pgx.Tx, d webhook.Delivery) error {
//			_, err := tx.Exec(ctx, "UPDATE invoices SET ...")
//			return err
//		}),
//		...
//	})
//
// Two tables do it. The inbox (package inbox) makes the effect happen once: the delivery's id and the handler's mutation are one
// transaction. The receipts' table holds what there is to do, and loses the body once it is done.
package sqlreceipts

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/webhook"
)

// Config says which table to use. The zero value is right for most.
type Config struct {
	// TablePrefix is what the table's name begins with; a schema may stand before it, as in "app.idem_". Default: "idem_".
	TablePrefix string
}

var prefixes = regexp.MustCompile(`^([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*$`)

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if c.TablePrefix != "" && (!prefixes.MatchString(c.TablePrefix) || len(c.TablePrefix) > 40) {
		return errors.New("sqlreceipts: Config.TablePrefix must be lower-case letters, digits and underscores, with a schema before it at most")
	}
	return nil
}

// Receipts implements [webhook.Receipts]. T is the transaction that handlers mutate in: that of the inbox.
type Receipts[T any] struct {
	db    *sql.DB
	inbox *inbox.Inbox[T]
	named *strings.Replacer
}

var _ webhook.Receipts = (*Receipts[*sql.Tx])(nil)

// New makes receipts. db and box are of the same database; db's driver is one of PostgreSQL's.
func New[T any](db *sql.DB, box *inbox.Inbox[T], config Config) (*Receipts[T], error) {
	if db == nil || box == nil {
		return nil, errors.New("sqlreceipts: New needs a database and an inbox")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.TablePrefix == "" {
		config.TablePrefix = "idem_"
	}
	_, bare, found := strings.Cut(config.TablePrefix, ".")
	if !found {
		bare = config.TablePrefix
	}
	named := strings.NewReplacer("{receipts}", config.TablePrefix+"webhook_receipts", "{unfinished}", bare+"webhook_receipts_unfinished",
		"{old}", bare+"webhook_receipts_old")
	return &Receipts[T]{db: db, inbox: box, named: named}, nil
}

// What a receipt's state is in the table. The numbers never change meaning.
const (
	waiting = 0
	done    = 1
	failed  = 2
)

var ddl = []string{
	`CREATE TABLE IF NOT EXISTS {receipts} (
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
)`,
	// As short as the backlog.
	`CREATE INDEX IF NOT EXISTS {unfinished} ON {receipts} (receiver, received_at) WHERE state = 0`,
	`CREATE INDEX IF NOT EXISTS {old} ON {receipts} (receiver, settled_at) WHERE state > 0`,
}

// DDL is the table's schema: statements to be run one by one. Each does no harm when run again. The inbox has its own.
func (r *Receipts[T]) DDL() []string {
	out := make([]string, len(ddl))
	for i, text := range ddl {
		out[i] = r.named.Replace(text)
	}
	return out
}

// Migrate makes the table, as often as it is called. The inbox has its own.
func (r *Receipts[T]) Migrate(ctx context.Context) error {
	for _, text := range r.DDL() {
		if _, err := r.db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("sqlreceipts: migrate: %w", err)
		}
	}
	return nil
}

const (
	keepSQL = `/* idem:webhook-keep */ INSERT INTO {receipts} (receiver, delivery_id, state, algorithm, fingerprint, envelope, body)
VALUES ($1, $2, 0, $3, $4, $5, $6) ON CONFLICT (receiver, delivery_id) DO NOTHING`
	readSQL       = `/* idem:webhook-read */ SELECT state, algorithm, fingerprint, envelope, body FROM {receipts} WHERE receiver = $1 AND delivery_id = $2`
	unfinishedSQL = `/* idem:webhook-unfinished */ SELECT delivery_id, received_at FROM {receipts}
WHERE receiver = $1 AND state = 0 AND (received_at, delivery_id) > ($2, $3) ORDER BY received_at, delivery_id LIMIT 1000`
	settleSQL = `/* idem:webhook-settle */ UPDATE {receipts} SET state = $3, envelope = NULL, body = NULL, failure = $4, settled_at = clock_timestamp()
WHERE receiver = $1 AND delivery_id = $2 AND state = 0`
	sweepSQL = `/* idem:webhook-sweep */ DELETE FROM {receipts} WHERE (receiver, delivery_id) IN (
    SELECT receiver, delivery_id FROM {receipts} WHERE receiver = $1 AND state > 0
    AND settled_at < clock_timestamp() - $2::INT8 * INTERVAL '1 microsecond' ORDER BY settled_at LIMIT 500)`
)

// row is a receipt as it is in the table.
type row struct {
	state          int
	fingerprint    fingerprint.Fingerprint
	envelope, body []byte
}

func (r *Receipts[T]) read(ctx context.Context, receiver, id string) (row, error) {
	var found row
	err := r.db.QueryRowContext(ctx, r.named.Replace(readSQL), receiver, id).Scan(
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
	const tries = 3 // a sweep may come between the two statements
	for range tries {
		result, err := r.db.ExecContext(ctx, r.named.Replace(keepSQL), d.Receiver, d.ID, d.Fingerprint.Algorithm, d.Fingerprint.Hash, envelope, body)
		if err != nil {
			return 0, fmt.Errorf("sqlreceipts: keep: %w", err)
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return webhook.Fresh, err
		}
		known, err := r.read(ctx, d.Receiver, d.ID)
		switch {
		case errors.Is(err, sql.ErrNoRows):
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
		n, err := func() (n int, err error) {
			rows, err := r.db.QueryContext(ctx, r.named.Replace(unfinishedSQL), receiver, after, afterID)
			if err != nil {
				return 0, fmt.Errorf("sqlreceipts: unfinished: %w", err)
			}
			defer func() { err = errors.Join(err, rows.Close()) }()
			for rows.Next() {
				if err := rows.Scan(&afterID, &after); err != nil {
					return n, fmt.Errorf("sqlreceipts: unfinished: %w", err)
				}
				if err := found(afterID); err != nil {
					return n, err
				}
				n++
			}
			return n, rows.Err()
		}()
		if err != nil || n == 0 {
			return err
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
	case errors.Is(err, sql.ErrNoRows):
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
	_, err = r.inbox.Handle(ctx, message, func(ctx context.Context, tx T) error {
		return work(context.WithValue(ctx, transaction[T]{}, tx), d)
	})
	state, failure := done, ""
	if err != nil {
		if (clientlib.Classes{}).ClassOf(err) != clientlib.FinalFailure && !errors.Is(err, inbox.ErrOtherPayload) {
			return webhook.Waiting, err
		}
		state, failure = failed, err.Error()
	}
	// The effect stands, or never will, whatever becomes of this statement: without it the next attempt finds a duplicate, and notes it then.
	noted, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	if _, settleErr := r.db.ExecContext(noted, r.named.Replace(settleSQL), receiver, id, state, failure); settleErr != nil {
		return webhook.Waiting, &webhook.NotNow{Err: fmt.Errorf("sqlreceipts: settle: %w", settleErr)}
	}
	return standingOf(state), err
}

const settleTimeout = 5 * time.Second

// Sweep forgets receipts of a receiver that were settled longer ago than age, and returns how many, also when it was cut short. Choose age
// over the sender's longest time of redelivery. The inbox has a sweep of its own, which must not be shorter.
func (r *Receipts[T]) Sweep(ctx context.Context, receiver string, age time.Duration) (forgotten int64, err error) {
	if age <= 0 {
		return 0, errors.New("sqlreceipts: a sweep needs an age: how long after it was done can a delivery still come again?")
	}
	for {
		result, err := r.db.ExecContext(ctx, r.named.Replace(sweepSQL), receiver, age.Microseconds())
		if err != nil {
			return forgotten, fmt.Errorf("sqlreceipts: sweep: %w", err)
		}
		n, err := result.RowsAffected()
		forgotten += n
		if err != nil || n == 0 {
			return forgotten, err
		}
	}
}
