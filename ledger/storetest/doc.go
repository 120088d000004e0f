// Package storetest says by test what a [ledger.Store] must do.
//
// [Run] is the conformance suite: every backend runs it whole, and a backend that can not run a case names it with a written reason.
// [Histories] runs random histories of the whole ledger on a backend and, step by step, on the [Model], and lets an auditor that shares no
// code with the ledger watch both.
//
// [Model] is what the suite compares with: an in-memory store on a [Clock] that tests move. It is the reference because it does nothing
// but [ledger.Write.Apply]; the in-memory test daemon runs on it, so there is no second-class store that only tests use. [Faulty] wraps any
// store and loses, delays and refuses what a network and a database lose, delay and refuse.
//
// Environment, read by the suite only: STORETEST_SEED repeats a run, STORETEST_STEPS and STORETEST_HISTORIES make random runs longer.
package storetest
