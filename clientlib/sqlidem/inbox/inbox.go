package inbox

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// MaxNameLength is how many characters a subscriber or a message id may have.
const MaxNameLength = 255

// Outcome is what became of a message.
type Outcome int

// The outcomes. Both mean that the message is done with and may be acknowledged once the transaction is committed.
const (
	// Processed: the handler ran, now.
	Processed Outcome = iota + 1
	// Duplicate: it ran before, for the same subscriber, and its transaction is committed. It did not run now.
	Duplicate
)

// String is the outcome's name.
func (o Outcome) String() string {
	switch o {
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	}
	return "failed"
}

// ErrOtherPayload refuses a message whose id came before with another fingerprint: two different messages carry one id, and dropping the
// second as a duplicate would lose it. It is the sender's mistake; a redelivery does not cure it.
var ErrOtherPayload = errors.New("inbox: a message with this id and another payload was received before")

// ErrInvalidMessage refuses a message that has no usable subscriber or id.
var ErrInvalidMessage = errors.New("inbox: invalid message")

// Message names a message.
type Message struct {
	// Subscriber is who handles it: each subscriber has its effect once. It must not change from deployment to deployment, so it is
	// neither a host's name nor a consumer's instance.
	Subscriber string
	// ID is the same on every delivery of the message: the producer's event id, not a broker's delivery tag. Where the producer gives
	// none, topic, partition and offset together do.
	ID string
	// Fingerprint of the payload, optional. With it, the same id with another payload is refused [ErrOtherPayload]. Two fingerprints
	// compare only under the same algorithm.
	Fingerprint fingerprint.Fingerprint
}

func (m Message) validate() error {
	for _, part := range []struct{ name, value string }{{"subscriber", m.Subscriber}, {"id", m.ID}} {
		if err := sqldb.CheckName(part.value, MaxNameLength); err != nil {
			return fmt.Errorf("%w: its %s %w", ErrInvalidMessage, part.name, err)
		}
	}
	return nil
}

// Config says which table to use. The zero value is right for most.
type Config struct {
	// TablePrefix is what the table's name begins with; a schema may stand before it, as in "app.idem_". Default: "idem_".
	TablePrefix string
}

// Validate says what is wrong with the configuration, or nil.
func (c Config) Validate() error {
	if err := sqldb.CheckPrefix(c.TablePrefix); err != nil {
		return fmt.Errorf("inbox: Config.%w", err)
	}
	return nil
}

// Inbox remembers which messages had their effect. T is the transaction that handlers get: pgx.Tx or *sql.Tx. It may be used by many
// goroutines and holds no resources of its own.
type Inbox[T any] struct {
	driver     sqldb.Driver[T]
	config     Config
	statements statements
}

// NewPgx makes an inbox of a pgx pool.
func NewPgx(db sqldb.PgxDB, config Config) (*Inbox[pgx.Tx], error) {
	driver, err := sqldb.Pgx(db)
	return newInbox(driver, config, err)
}

// NewSQL makes an inbox of a database/sql pool, with any driver for PostgreSQL whose errors have a method SQLState() string: pgx's and
// lib/pq's do.
func NewSQL(db *sql.DB, config Config) (*Inbox[*sql.Tx], error) {
	driver, err := sqldb.SQL(db)
	return newInbox(driver, config, err)
}

func newInbox[T any](driver sqldb.Driver[T], config Config, err error) (*Inbox[T], error) {
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Inbox[T]{driver: driver, config: config, statements: newStatements(config.TablePrefix)}, nil
}

// Receive runs fn in tx unless the subscriber has had this message's effect before. The caller commits tx, and acknowledges after that.
//
// A duplicate is an outcome, not an error. A duplicate that arrives while the first one is being handled waits for that transaction to
// end: it is a duplicate if that one commits, and runs if it does not. When fn fails, what it and Receive did in tx is undone, so that not
// even a caller that commits all the same keeps a half of it.
//
// On CockroachDB, and on PostgreSQL above READ COMMITTED, the transaction can fail with a serialization failure (SQLSTATE 40001), as any
// other: run the whole of it again, or use [Inbox.Handle], which does.
func (b *Inbox[T]) Receive(ctx context.Context, tx T, subscriber, messageID string, fn func(ctx context.Context) error) (Outcome, error) {
	return b.ReceiveMessage(ctx, tx, Message{Subscriber: subscriber, ID: messageID}, fn)
}

// ReceiveMessage is [Inbox.Receive] for a message with a fingerprint.
func (b *Inbox[T]) ReceiveMessage(ctx context.Context, tx T, message Message, fn func(ctx context.Context) error) (outcome Outcome, err error) {
	if err := message.validate(); err != nil {
		return 0, err
	}
	q, err := b.driver.In(tx)
	if err != nil {
		return 0, fmt.Errorf("inbox: %w", err)
	}
	if _, err := q.Exec(ctx, "SAVEPOINT "+savepoint); err != nil {
		return 0, fmt.Errorf("inbox: %w", err)
	}
	done := false
	defer func() { // also where fn panics
		if !done {
			undo(ctx, q)
		}
	}()
	first, err := b.insert(ctx, q, message)
	if err != nil {
		return 0, err
	}
	outcome = Duplicate
	if first {
		outcome = Processed
		if err := fn(ctx); err != nil {
			return 0, err
		}
	}
	if _, err := q.Exec(ctx, "RELEASE SAVEPOINT "+savepoint); err != nil {
		return 0, fmt.Errorf("inbox: %w", err)
	}
	done = true
	return outcome, nil
}

const (
	savepoint   = "idem_inbox"
	undoTimeout = 5 * time.Second
)

// undo rolls back to before Receive. Its own failure changes nothing: then the transaction is broken and cannot be committed.
func undo(ctx context.Context, q sqldb.Querier) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if _, err := q.Exec(ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err == nil {
		_, _ = q.Exec(ctx, "RELEASE SAVEPOINT "+savepoint)
	}
}

// insertTries bounds how often a message is swept away between the insert that found it and the read.
const insertTries = 3

// insert remembers the message. It reports false for one that was remembered before, with the same payload as far as can be told.
func (b *Inbox[T]) insert(ctx context.Context, q sqldb.Querier, m Message) (first bool, err error) {
	for range insertTries {
		n, err := q.Exec(ctx, b.statements.insert, m.Subscriber, m.ID, shardOf(m.ID), m.Fingerprint.Algorithm, m.Fingerprint.Hash)
		if err != nil {
			return false, fmt.Errorf("inbox: %w", err)
		}
		if n == 1 {
			return true, nil
		}
		if len(m.Fingerprint.Hash) == 0 {
			return false, nil
		}
		var algorithm string
		var hash []byte
		// A statement of its own: the one above waited for the other transaction and cannot see what that one committed.
		switch err := q.Scan(ctx, b.statements.read, []any{m.Subscriber, m.ID}, &algorithm, &hash); {
		case errors.Is(err, sqldb.ErrNoRow):
			continue
		case err != nil:
			return false, fmt.Errorf("inbox: %w", err)
		case algorithm == m.Fingerprint.Algorithm && len(hash) > 0 && !bytes.Equal(hash, m.Fingerprint.Hash):
			return false, ErrOtherPayload
		}
		return false, nil
	}
	return false, errors.New("inbox: the message is swept away as fast as it is received: the sweep's age is too short")
}

// Handle is [Inbox.ReceiveMessage] in a transaction of its own, which is begun here, committed, and run again whole, fn included, where
// the database asks for it. Acknowledge when the error is nil, and only then: after any error the redelivery finds out what is true,
// also when the outcome of the commit is unknown.
func (b *Inbox[T]) Handle(ctx context.Context, message Message, fn func(ctx context.Context, tx T) error) (outcome Outcome, err error) {
	err = sqldb.Retry(ctx, func() error {
		return sqldb.Transact(ctx, b.driver, func(ctx context.Context, tx T) (err error) {
			outcome, err = b.ReceiveMessage(ctx, tx, message, func(ctx context.Context) error { return fn(ctx, tx) })
			return err
		})
	})
	if err != nil {
		return 0, err
	}
	return outcome, nil
}

// shards spread the rising end of the index that the sweep goes by.
const shards = 16

func shardOf(id string) int16 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	return int16(h.Sum32() % shards)
}
