// Package ledger decides who may carry out an intent and remembers what came of it.
//
// An intent is an [Entry], named by tenant, operation and key. [Decide] is the whole decision table as one pure
// function: it takes the entry as it stands, a request, the policy, the principal, the store's time and the takeover
// floor, and returns a [Verdict]: what to answer and what to write. [Ledger] runs verdicts against a [Store]; it holds no
// rule of its own. A [Store] evaluates guards and stamps times and knows no policy.
//
// Time is the store's clock everywhere ([Time]); this package never reads the wall clock of the machine it runs on to judge
// a lease or a retention.
//
// The package imports the standard library only.
package ledger
