// Package linear holds the ledger's guarantees G1 to G4 against histories of concurrent clients: porcupine looks for one order of all calls on an
// entry that a small sequential model of docs/states.md explains, while replies are lost, statements fail and stall, and daemons and
// databases are killed. All of it is tests; docs/reliability.md says how to run the long form.
package linear
