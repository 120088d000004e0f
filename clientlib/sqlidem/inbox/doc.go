// Package inbox makes a message consumer's effect happen once, however often the message comes: the message's id and the mutation are
// committed in one transaction of the service's own PostgreSQL (14 or later) or CockroachDB (21.1 or later).
//
//	box, err := inbox.NewPgx(pool, inbox.Config{}) // or NewSQL(sqlDB, ...)
//	err = box.Migrate(ctx)
//
//	outcome, err := box.Handle(ctx, inbox.Message{Subscriber: "billing", ID: msg.UUID}, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, "UPDATE accounts SET ...")
//		return err
//	})
//	if err != nil {
//		msg.Nack() // nothing happened: the redelivery runs again
//	} else {
//		msg.Ack() // outcome says whether it happened now or before
//	}
//
// [Inbox.Receive] does the same in a transaction that the caller began and commits.
//
// The guarantee is as long as the inbox remembers: [Inbox.Sweep] must not forget a message while its queue can still redeliver it.
// docs/messaging.md says more.
package inbox
