// Package clientlib makes work safe to retry: it runs an operation once, with the help of an idemd ledger, however often
// it is asked for.
//
// A gRPC method that is marked in its .proto, with (idem.v1.keyed) or idempotency_level = IDEMPOTENT, is guarded by an
// interceptor; any other work is guarded by [Client.Do].
//
//	ledger, err := clientlib.New(clientlib.Config{Conn: conn})
//	guard, err := clientlib.UnaryServerInterceptor(clientlib.Guard{
//		Ledger:    ledger,
//		Abandoned: clientlib.Refuse(),
//		Principal: clientlib.Anonymous,
//	})
//	server := grpc.NewServer(grpc.UnaryInterceptor(guard))
//
// A guard asks the ledger first (Begin). Where the intent is new it runs the work, keeps the claim alive meanwhile, and
// reports what came of it. Where it was done before, it gives the answer of then. Where it is under way elsewhere, it waits
// or says so. Where nobody knows, it does what the guard was told about abandoned attempts: [Recover], [Rerun] or [Refuse].
// There is no default for that, because no choice is right for all work.
//
// Errors of this package are [*Error] values; each reason has a sentinel for errors.Is, such as [ErrKeyReused].
// docs/client.md argues the choices.
package clientlib
