package ledger

import "time"

// Observer is told what happens in a ledger, for metrics. Its methods are called on the hot path, concurrently: they must be quick and
// must not block.
type Observer interface {
	// StoreCall is told of every call to the store: "get", "write", "page", "forget", "settings", "ready".
	StoreCall(call string, took time.Duration, err error)
	// Waiting is told how many Begins wait now.
	Waiting(n int)
	// Swept is told after each batch of a sweep what it did.
	Swept(SweepProgress)
	// Overdue is told after each sweep how old the oldest entry is that is due but still there, and how long ago the lease of the oldest held
	// entry ended; zero where there is none.
	Overdue(due, held time.Duration, heldEntries int)
}

type noObserver struct{}

func (noObserver) StoreCall(string, time.Duration, error)    {}
func (noObserver) Waiting(int)                               {}
func (noObserver) Swept(SweepProgress)                       {}
func (noObserver) Overdue(time.Duration, time.Duration, int) {}
