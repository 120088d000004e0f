// Package watermillidem joins the outbox and the inbox to Watermill, and so to the brokers that Watermill knows: Kafka, NATS JetStream,
// AMQP, Google Cloud Pub/Sub, SQS and others. It is a module of its own, so that those who use neither carry no dependency of it.
//
// An outbox's dispatcher publishes through any message.Publisher:
//
//	publisher := watermillidem.NewPublisher(kafkaPublisher, watermillidem.PublisherConfig{})
//	d, err := outbox.NewDispatcher(box, publisher, outbox.DispatcherConfig{})
//
// A router's handlers have their effect once:
//
//	once, err := watermillidem.Middleware(inbox, watermillidem.MiddlewareConfig{Subscriber: "billing"})
//	router.AddConsumerHandler("billing", "outbox.event.order", subscriber, handle).AddMiddleware(once)
//
//	func handle(msg *message.Message) error {
//		tx, _ := watermillidem.TxFrom[pgx.Tx](msg.Context())
//		_, err := tx.Exec(msg.Context(), "UPDATE accounts SET ...")
//		return err
//	}
//
// docs/messaging.md says what is guaranteed and what a broker has to be told for it.
package watermillidem
