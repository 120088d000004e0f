package linear

import (
	"sync"

	"github.com/idemd/idemd/ledger"
)

// old keeps readings to be answered later.
type old struct {
	mu sync.Mutex
	by map[ledger.ScopeID]ledger.Reading
}

func newOld() *old { return &old{by: map[ledger.ScopeID]ledger.Reading{}} }

func (o *old) put(scope ledger.ScopeID, r ledger.Reading) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.by[scope] = r
}

func (o *old) take(scope ledger.ScopeID) (ledger.Reading, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, ok := o.by[scope]
	delete(o.by, scope)
	return r, ok
}
