package sqlitestore

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	// copyBytes: when the log has grown by so much since it was last copied, its pages are copied to the database file, beside the commits that go on.
	copyBytes = 16 << 20
	// tailBytes is how much of the log the writer copies by itself at the most, where it can: what came while the rest was copied. It takes about a millisecond.
	tailBytes = 1 << 20
	// copyRounds is how often the rest is copied beside the commits before the writer copies what is left, however much it is.
	copyRounds = 4
	// againBytes: where readers kept the log from starting at its front after it was copied whole, the writer copies what came since and tries again
	// each time that so much has come.
	againBytes = 256 << 10
	// maxLogBytes is how large the log may grow before reads are held back for it to be emptied, and retryLogBytes how much more
	// before that is tried again.
	maxLogBytes   = 64 << 20
	retryLogBytes = 8 << 20
	// holdReads is how long the writer waits for the reads that are under way to end.
	holdReads = 100 * time.Millisecond
)

// walKeeper copies the write-ahead log to the database file, and bounds it. SQLite would do that in the commit that makes the log too long, and all callers
// would wait for thousands of pages and their sync. So the keeper copies and syncs them in a goroutine of its own while commits go on, and the writer,
// between two commits, only the few that came meanwhile: a log that is copied whole starts at its front again with the next commit.
//
// That can only be when no reader is in the log at that very moment; under a steady stream of reads it may not come for long. Past maxLogBytes the keeper
// holds back new reads of this process and empties the log once those under way have ended. A read that takes longer, a Backup, or an operator's shell
// let the log grow until they end; they stop nobody.
type walKeeper struct {
	conn    *connection // has no busy timeout: a checkpoint that would wait is tried again later
	readers chan *connection
	path    string
	seals   *seals
	logger  *slog.Logger
	// The rest is the writer's, but for what is atomic.
	copying chan copied // of the goroutine that copies, which has conn meanwhile; nil while there is none
	until   int64       // how much of the log was copied
	next    int64       // how long it is when it is copied again
	step    int64       // copyBytes, but in tests
	limit   int64       // the size at which to hold back readers next
	bytes   atomic.Int64
	emptied atomic.Int64
}

func newWALKeeper(conn *connection, readers chan *connection, seals *seals, logger *slog.Logger) *walKeeper {
	return &walKeeper{
		conn: conn, readers: readers, path: seals.path + logSuffix, seals: seals, logger: logger, step: copyBytes, next: copyBytes, limit: maxLogBytes,
	}
}

// afterCommit runs on the writer's goroutine.
func (k *walKeeper) afterCommit() {
	if k.copying != nil {
		select {
		case c := <-k.copying:
			k.copying = nil
			k.copiedAside(c)
		default:
			return
		}
	}
	if k.seals.unkept.Load() {
		k.size() // the next start copies the log; until then somebody should see it grow
		return
	}
	k.copy()
	k.bound()
}

// copied is what became of copying.
type copied struct {
	until int64 // how much of the log is in the database
	whole bool  // that is all there was when the copying began
	err   error
}

// copy sees to it that what is new in the log is copied, where it is enough.
func (k *walKeeper) copy() {
	end := k.seals.logEnd.Load()
	if end < k.until { // the log has begun at its front
		k.until, k.next = 0, k.step
	}
	switch {
	case end < k.next:
	case end-k.until <= againBytes+tailBytes:
		k.copyTail()
	default:
		done := make(chan copied, 1)
		k.copying = done
		go func() { done <- k.copyAside() }()
	}
}

// copyAside copies the log while the writer makes it longer, until little is left.
func (k *walKeeper) copyAside() (c copied) {
	for range copyRounds {
		if c = k.checkpoint(); c.err == nil {
			c.err = k.seals.syncDatabase()
		}
		if c.err != nil || !c.whole || k.seals.logEnd.Load()-c.until <= tailBytes {
			break
		}
	}
	return c
}

// copiedAside goes on from there. Where a reader was in the way there is more to be done aside, later.
func (k *walKeeper) copiedAside(c copied) {
	if c.err == nil && c.whole {
		k.copyTail()
		return
	}
	k.note(c.err)
	k.until, k.next = c.until, k.seals.logEnd.Load()+againBytes
}

// copyTail copies what is left while nothing is written.
func (k *walKeeper) copyTail() {
	c := k.checkpoint()
	k.note(c.err)
	k.until, k.next = c.until, k.seals.logEnd.Load()+againBytes
}

// checkpoint copies as much of the log as no reader needs to stay where it is.
func (k *walKeeper) checkpoint() (c copied) {
	end := k.seals.logEnd.Load()
	c.err = k.conn.query(context.Background(), "PRAGMA wal_checkpoint(PASSIVE)", nil, func(row []any) error {
		c.until = logHeaderBytes + integer(row[2])*frameBytes
		return nil
	})
	c.whole = c.until >= end
	return c
}

func (k *walKeeper) note(err error) {
	k.seals.note(err)
	if err != nil {
		k.logger.Warn("the write-ahead log could not be copied to the database; it is tried again", "error", err)
	}
}

// finish waits for what is copied aside.
func (k *walKeeper) finish() {
	if k.copying != nil {
		k.note((<-k.copying).err)
		k.copying = nil
	}
}

// size is how large the log's file is; 0 where that cannot be seen.
func (k *walKeeper) size() int64 {
	info, err := os.Stat(k.path)
	if err != nil {
		return 0
	}
	k.bytes.Store(info.Size())
	return info.Size()
}

// bound empties a log that is too long.
func (k *walKeeper) bound() {
	size := k.size()
	if k.copying != nil || size <= k.limit {
		return
	}
	held, all := k.holdBack()
	busy, err := true, error(nil)
	if all {
		busy, err = k.empty()
	}
	for _, c := range held {
		k.readers <- c
	}
	k.seals.note(err)
	if err != nil || busy {
		k.limit = size + retryLogBytes
		k.logger.Warn("the write-ahead log could not be emptied: somebody is reading the database at length, or the disk fails",
			"bytes", size, "error", err)
		return
	}
	k.limit = maxLogBytes
	k.bytes.Store(0)
	k.emptied.Add(1)
}

// holdBack takes the readers' connections out of use, and reports whether it got them all.
func (k *walKeeper) holdBack() (held []*connection, all bool) {
	enough := time.NewTimer(holdReads)
	defer enough.Stop()
	for len(held) < cap(k.readers) {
		select {
		case c := <-k.readers:
			held = append(held, c)
		case <-enough.C:
			return held, false
		}
	}
	return held, true
}

// empty copies the whole log to the database file, syncs both, and truncates the log. It reports whether a reader was in the way.
func (k *walKeeper) empty() (busy bool, err error) {
	err = k.conn.query(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)", nil, func(row []any) error {
		busy = integer(row[0]) != 0
		return nil
	})
	return busy, err
}
