// Package temporal runs the activities of Temporal workflows once, with an idemd.
//
// Temporal runs an activity at least once: one that did its call and died before it reported is run again. The interceptor gives every
// activity a key, the same in all of its attempts, and asks the ledger before it is run:
//
//	once, err := temporal.NewInterceptor(temporal.Config{Ledger: ledger, Abandoned: clientlib.Recover(askTheProvider)})
//	w := worker.New(client, "payments", worker.Options{Interceptors: []interceptor.WorkerInterceptor{once}})
//
// The activity finds its key with clientlib.KeyFrom and sends it on to what it calls. A workflow names its steps with [Step] and their
// compensations with [Compensation], which have keys of their own.
//
// docs/sagas.md says which key to choose, and what Temporal does of all this by itself.
package temporal
