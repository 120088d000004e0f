package sqlitestore

import (
	"context"
	"database/sql/driver"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

const (
	// autoCheckpointPages: after so many pages (16 MiB) in the log, a commit copies them to the database file, as far as no reader
	// needs them to stay. The next commit then starts the log from the front.
	autoCheckpointPages = 4000
	// maxLogBytes is how large the log may grow before reads are held back for it to be emptied, and retryLogBytes how much more
	// before that is tried again.
	maxLogBytes   = 64 << 20
	retryLogBytes = 8 << 20
	// holdReads is how long the writer waits for the reads that are under way to end.
	holdReads = 100 * time.Millisecond
)

// walKeeper bounds the write-ahead log. SQLite's own checkpoints never wait, so they can only start the log from the front when no reader
// is in it at that very moment; under a steady stream of reads that may not come for long. Past maxLogBytes the keeper holds back new reads
// of this process and empties the log once those under way have ended. A read that takes longer, a Backup, or an operator's shell let
// the log grow until they end; they stop nobody.
type walKeeper struct {
	conn    *connection // has no busy timeout: a checkpoint that would wait is tried again later
	readers chan *connection
	path    string
	seals   *seals
	logger  *slog.Logger
	limit   int64 // the size at which to act next
	bytes   atomic.Int64
	emptied atomic.Int64
}

// afterCommit runs on the writer's goroutine.
func (k *walKeeper) afterCommit() {
	info, err := os.Stat(k.path)
	if err != nil {
		return
	}
	k.bytes.Store(info.Size())
	if info.Size() <= k.limit {
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
		k.limit = info.Size() + retryLogBytes
		k.logger.Warn("the write-ahead log could not be emptied: somebody is reading the database at length, or the disk fails",
			"bytes", info.Size(), "error", err)
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
	err = k.conn.query(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)", nil, func(row []driver.Value) error {
		busy = integer(row[0]) != 0
		return nil
	})
	return busy, err
}
