// Package sim runs whole small worlds on virtual time: services with the client library, daemons with their sweepers and waiters, and one store
// with which things go wrong. An auditor that shares no code with any of them watches the wire, the rows and the effects. All of it is tests;
// docs/reliability.md says how to run more of it.
package sim
