package watermillidem

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
)

// MiddlewareConfig says how messages are told apart.
type MiddlewareConfig struct {
	// Subscriber names who handles the messages; see [inbox.Message]. Required. Handlers that share it share their effects: of two of
	// them that get the same message, one runs.
	Subscriber string
	// ID is what is the same on every delivery of a message. Default: the message's UUID, which is the event's id where an outbox
	// published it. A subscriber that makes up UUIDs for messages of strangers needs another.
	ID func(*message.Message) string
	// ComparePayloads refuses a message whose id came before with another payload ([inbox.ErrOtherPayload]). Without it such a message is
	// ignored as a duplicate.
	ComparePayloads bool
	// Observe is told what became of each message whose transaction is committed, for metrics. May be nil.
	Observe func(*message.Message, inbox.Outcome)
}

// ErrMessagesReturned refuses a handler that returns messages to be published. They would be published after the commit, and lost for
// ever if the process died in between, since the redelivery is a duplicate and is ignored. Write them to an outbox in the transaction.
var ErrMessagesReturned = errors.New("watermillidem: a handler returned messages: write them to an outbox in its transaction instead")

// Middleware makes a router's handlers have their effect once for each message. A handler runs in a transaction, which it finds with
// [TxFrom], and which is committed before the router acknowledges. A duplicate is acknowledged and does not reach the handler. When the
// handler fails, or the commit does, everything is rolled back and the router does not acknowledge, so that the redelivery runs again. A
// handler is run again at once where the database asks for it (a serialization failure), so it must have no other effects than those in
// the transaction.
//
// It has to be the innermost middleware that matters: what stands inside it is rolled back with the handler.
func Middleware[T any](box *inbox.Inbox[T], config MiddlewareConfig) (message.HandlerMiddleware, error) {
	if box == nil {
		return nil, errors.New("watermillidem: Middleware needs an inbox")
	}
	if config.Subscriber == "" {
		return nil, errors.New("watermillidem: MiddlewareConfig.Subscriber is required")
	}
	if config.ID == nil {
		config.ID = func(msg *message.Message) string { return msg.UUID }
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			return nil, handle(box, config, next, msg)
		}
	}, nil
}

func handle[T any](box *inbox.Inbox[T], config MiddlewareConfig, next message.HandlerFunc, msg *message.Message) error {
	outside := msg.Context()
	defer msg.SetContext(outside)
	received := inbox.Message{Subscriber: config.Subscriber, ID: config.ID(msg)}
	if config.ComparePayloads && len(msg.Payload) > 0 {
		var err error
		if received.Fingerprint, err = fingerprint.Bytes(msg.Payload); err != nil {
			return fmt.Errorf("watermillidem: %w", err)
		}
	}
	outcome, err := box.Handle(outside, received, func(ctx context.Context, tx T) error {
		msg.SetContext(context.WithValue(ctx, txKey[T]{}, tx))
		produced, err := next(msg)
		if err == nil && len(produced) > 0 {
			return ErrMessagesReturned
		}
		return err
	})
	if err == nil && config.Observe != nil {
		config.Observe(msg, outcome)
	}
	return err
}

type txKey[T any] struct{}

// TxFrom is the transaction that a handler runs in: T is pgx.Tx or *sql.Tx, as the inbox was made. The handler neither commits it nor rolls
// it back.
func TxFrom[T any](ctx context.Context) (tx T, ok bool) {
	tx, ok = ctx.Value(txKey[T]{}).(T)
	return tx, ok
}
