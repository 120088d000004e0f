package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// maxNamedRows is how many bad rows a daemon names in its log. Whoever has more of them looks for what made them, not for each.
const maxNamedRows = 1000

// badRows remembers which bad rows this daemon has named in its log: lists and sweeps come by each of them again and again.
type badRows struct {
	mu    sync.Mutex
	named map[ScopeID]struct{} // guarded by mu
}

// add reports whether the row has not been named before and now is to be.
func (b *badRows) add(scope ScopeID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, before := b.named[scope]; before || len(b.named) == maxNamedRows {
		return false
	}
	if b.named == nil {
		b.named = map[ScopeID]struct{}{}
	}
	b.named[scope] = struct{}{}
	return true
}

// named is err with the scope of its row, by which an operator finds it, where the row is the fault. The first time the row is named in the log as well. A
// scope is a keyed hash, which may be shown there.
func (l *Ledger) named(ctx context.Context, scope ScopeID, err error) error {
	if !errors.Is(err, ErrBadRow) {
		return err
	}
	if l.badRows.add(scope) {
		l.log.ErrorContext(ctx, "a row of the ledger is bad: what needs it is refused BAD_ROW until somebody puts the row right, and all else goes on",
			"scope", fmt.Sprintf("%x", scope), "error", err)
	}
	return fmt.Errorf("scope %x: %w", scope, err)
}

// badRow refuses what one row's fault keeps from being done.
func badRow(err error) *Refusal {
	var told *Refusal
	if errors.As(err, &told) {
		return told // it says which row
	}
	r := refuse(ReasonBadRow, "the store cannot make sense of this entry's row, or does not take what was to be written to it; nothing was done").
		with("help", "resending does not help: the daemon's log names the row, and an operator has to put it right")
	r.Cause = err
	return r
}

// passedOver is what a walk over many entries ends with where n of them were left as they are because their rows are bad.
func passedOver(n int64) error {
	if n == 0 {
		return nil
	}
	r := badRow(fmt.Errorf("%w: %d of them", ErrBadRow, n))
	r.Message = fmt.Sprintf("all is done but for %d entries whose rows are bad", n)
	return r
}
