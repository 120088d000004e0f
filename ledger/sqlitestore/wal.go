package sqlitestore

import (
	"context"
	"database/sql/driver"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
)

const (
	// autoCheckpointPages: after so many pages (16 MiB) in the log, a commit copies them to the database file, as far as no reader
	// needs them to stay. The next commit then starts the log from the front.
	autoCheckpointPages = 4000
	// maxLogBytes is how large the log may grow before readers are made to wait for it to be emptied.
	maxLogBytes = 64 << 20
)

// walKeeper bounds the write-ahead log. SQLite's own checkpoints never wait, so they can only start the log from the front when no reader is in it
// at that very moment; under a steady stream of reads that may not come for long. Past maxLogBytes the keeper holds back new reads of
// this process, which are short, and empties the log. A reader it can not hold back (a running Backup, an operator's shell) lets
// the log grow until it ends; each maxLogBytes more it tries again.
type walKeeper struct {
	conn    *connection // has no busy timeout: a checkpoint that would wait is tried again later
	path    string
	logger  *slog.Logger
	reading sync.RWMutex // held for reading by every read of this process but Backup's
	limit   int64        // the size at which to act next
	bytes   atomic.Int64
	emptied atomic.Int64
}

func (k *walKeeper) afterCommit() {
	info, err := os.Stat(k.path)
	if err != nil {
		return
	}
	k.bytes.Store(info.Size())
	if info.Size() <= k.limit {
		return
	}
	k.reading.Lock()
	busy, err := k.empty()
	k.reading.Unlock()
	if err != nil || busy {
		k.limit = info.Size() + maxLogBytes
		k.logger.Warn("the write-ahead log could not be emptied: somebody is reading the database at length, or the disk fails",
			"bytes", info.Size(), "error", err)
		return
	}
	k.limit = maxLogBytes
	k.bytes.Store(0)
	k.emptied.Add(1)
}

// empty copies the whole log to the database file, syncs both, and truncates the log. It reports whether a reader was in the way.
func (k *walKeeper) empty() (busy bool, err error) {
	err = k.conn.query(context.Background(), "PRAGMA wal_checkpoint(TRUNCATE)", nil, func(row []driver.Value) error {
		busy = integer(row[0]) != 0
		return nil
	})
	return busy, err
}
