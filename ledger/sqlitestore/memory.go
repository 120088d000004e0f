package sqlitestore

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/idemd/idemd/ledger"
)

// memory keeps the answers that are asked for again and again: entries that are settled for good (COMPLETED, FAILED final, not closed), as they were
// read from the file, up to a number of bytes, the least recently used ones going first.
//
// What must stay true: whatever it recalls is what a read of the file would find at that moment. The file has one process and one writer, so that is a
// matter of order:
//
//   - Only committed rows get in, since they come from reads, and those see only what was synced. So nothing is recalled that a crash could erase.
//   - A settled row is changed by a replacement or a Forget only, never by a guarded report. The writer tells of these before their commit (forget), and
//     again when the transaction has ended (ended). In between, nothing of those rows is recalled or taken in.
//   - A read that began before such a transaction ended may have seen the row as it was: it does not get in (epoch).
//
// No time is kept: an entry is judged by the store's clock when it is recalled, and expires in here as it does in the file.
type memory struct {
	limit int64

	mu       sync.Mutex
	entries  map[ledger.ScopeID]*list.Element // guarded by mu; of *remembered
	recent   list.List                        // guarded by mu; the most recently used one in front
	bytes    int64                            // guarded by mu
	changing map[ledger.ScopeID]struct{}      // guarded by mu; rows that the running transaction changes
	epoch    uint64                           // guarded by mu; counts the transactions that changed settled rows

	recalled atomic.Int64
}

type remembered struct {
	entry *ledger.Entry
	bytes int64
}

// overheadBytes is what an entry takes beside its texts and blobs: the entry itself, its place in the map and in the list.
const overheadBytes = 1 << 10

func newMemory(limit int64) *memory {
	return &memory{limit: limit, entries: map[ledger.ScopeID]*list.Element{}, changing: map[ledger.ScopeID]struct{}{}}
}

// recall is the entry, which nobody may change; nil where it is not known here.
func (m *memory) recall(scope ledger.ScopeID) *ledger.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := m.entries[scope]
	if at == nil {
		return nil
	}
	m.recent.MoveToFront(at)
	m.recalled.Add(1)
	return at.Value.(*remembered).entry
}

// before is taken before a read, and goes with what was read to remember.
func (m *memory) before() (epoch uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// sizeOf is what an entry as it was read would take in here, 0 where it is not to be taken in.
func (m *memory) sizeOf(e *ledger.Entry, blobs ...any) int64 {
	if e.Closed || e.State != ledger.Completed && e.State != ledger.FailedFinal {
		return 0
	}
	size := overheadBytes + len(e.Ref.Tenant) + len(e.Ref.Operation) + len(e.Ref.Key) + len(e.Last.Holder) + len(e.Last.Principal)
	for _, v := range blobs {
		b, _ := v.([]byte)
		size += len(b)
	}
	if int64(size) > m.limit/8 {
		return 0 // one large answer must not push out hundreds of small ones
	}
	return int64(size)
}

// remember takes in an entry that was read after before gave epoch. From then on nobody may change it.
func (m *memory) remember(epoch uint64, e *ledger.Entry, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, busy := m.changing[e.Scope]; busy || epoch != m.epoch || m.entries[e.Scope] != nil {
		return
	}
	m.entries[e.Scope] = m.recent.PushFront(&remembered{entry: e, bytes: size})
	m.bytes += size
	for m.bytes > m.limit {
		m.drop(m.recent.Back().Value.(*remembered).entry.Scope)
	}
}

// drop must be called with mu held.
func (m *memory) drop(scope ledger.ScopeID) {
	if at := m.entries[scope]; at != nil {
		m.bytes -= m.recent.Remove(at).(*remembered).bytes
		delete(m.entries, scope)
	}
}

// forget is called by the writer before it changes a row that may be settled.
func (m *memory) forget(scope ledger.ScopeID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(scope)
	m.changing[scope] = struct{}{}
}

// ended is called by the writer when its transaction has ended, whichever way.
func (m *memory) ended() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.changing) > 0 {
		clear(m.changing)
		m.epoch++
	}
}

// held is how many bytes are in use.
func (m *memory) held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}
