// Package webhook receives webhooks so that each delivery has its effect once, however often its sender sends it.
//
//	receipts, err := webhook.NewLedger(webhook.LedgerConfig{Ledger: ledger, Entries: admin, Abandoned: clientlib.Refuse()})
//	receiver, err := webhook.New(webhook.Config{
//		Sender:   webhook.GitHub{Secrets: []string{current, previous}},
//		Receipts: receipts,
//		Handler:  func(ctx context.Context, d webhook.Delivery) error { ... },
//	})
//	mux.Handle("POST /hooks/github", receiver)
//	err = receiver.Run(ctx) // does the work, and what an earlier process left behind
//
// A request is answered in this order: its signature is verified over the body as it came, the delivery is put down in [Receipts],
// the sender is told 2xx, and only then does the handler run. A delivery that comes again is answered from its receipt. The same
// id with another body is refused.
//
// docs/webhooks.md has the senders, the statuses and the limits.
package webhook
