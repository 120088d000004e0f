// Package httpidem makes HTTP requests safe to retry, on both ends, with the header Idempotency-Key of the IETF draft
// draft-ietf-httpapi-idempotency-key-header.
//
// [Middleware] stands around the handlers of a service. A POST or PATCH is carried out once for its key, however often it
// arrives, and every retry gets the answer of then:
//
//	guard, err := httpidem.Middleware(httpidem.Config{
//		Ledger:    ledger,
//		Abandoned: clientlib.Refuse(),
//		Principal: httpidem.PrincipalFrom(userOf),
//	})
//	mux.Handle("POST /charges", guard(charge))
//
// [Transport] stands in an http.Client. It gives each POST or PATCH a key and retries it, where that is safe.
//
// docs/http.md has the statuses, the problem types and the limits.
package httpidem
