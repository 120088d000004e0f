// Package model has the ledger's core once more, on paper: ledger.pml says in Promela what claim, lease, fence, settling and sweeping do to one entry
// while several daemons, callers and the time go at it, and spin looks at every order of their steps. Its test runs spin where it is
// installed.
package model
