// Package outbox publishes events exactly when the mutation that they tell of is committed: they are written in the mutation's
// transaction, and a [Dispatcher] publishes them at least once, in order within each aggregate.
//
//	box, err := outbox.NewPgx(pool, outbox.Config{}) // or NewSQL(sqlDB, ...)
//	err = box.Migrate(ctx)
//
//	// in the mutation's transaction
//	_, err = box.Write(ctx, tx, outbox.Event{AggregateType: "order", AggregateID: "17", Type: "OrderPaid", Payload: body})
//
//	// in any number of processes
//	d, err := outbox.NewDispatcher(box, publisher, outbox.DispatcherConfig{})
//	err = d.Run(ctx)
//
// # Order
//
// Each event has a version: 1, 2, 3 … within its aggregate, given in the transaction, without gaps. The writers of one aggregate
// therefore take turns, from Write to commit; writers of different aggregates do not meet.
//
// A dispatcher claims an aggregate, not an event: for the length of a lease nobody else publishes for it. Order does not rest on the lease,
// though. Whoever publishes an event knows that every earlier event of the aggregate was published, because it did so itself and saw it
// acknowledged, or read in the database that somebody did. So event 2 never comes out before event 1, whoever stalls, dies or comes back.
// What a stalled dispatcher can do is publish an event again, late: consumers recognise it by its id (package inbox).
//
// # Failure
//
// A failed event is tried again, after pauses that grow, and holds up its own aggregate only. After DispatcherConfig.MaxAttempts it is
// taken for poison and its aggregate is parked, until an operator calls [Outbox.Unpark] or [Outbox.Skip]. An outage of the broker is no
// event's fault: see [Unavailable].
package outbox
