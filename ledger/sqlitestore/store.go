package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"modernc.org/sqlite"

	"github.com/idemd/idemd/ledger"
)

// Store is the embedded store. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	path    string
	vfs     string
	lock    *os.File
	clock   *clock
	queue   *queue
	writer  *writer
	log     *walKeeper
	readers chan *connection
	schema  int64

	closeOnce sync.Once
	closeErr  error
}

var _ ledger.Store = (*Store)(nil)

// Pragmas of every connection, and of the writer's besides. Sizes of caches are in KiB.
var (
	commonPragmas = []string{
		"busy_timeout = 5000",  // an operator's shell may hold a lock for a moment
		"trusted_schema = off", // the file may come from anywhere
		"cell_size_check = on", // a damaged page is found when it is read
		"temp_store = memory",  // nothing of an entry outside the directory
		"cache_size = -4096",
		"synchronous = full",
	}
	writerPragmas = []string{
		"cache_size = -65536",
		"secure_delete = fast", // what is erased is overwritten where that costs no page more
		fmt.Sprintf("wal_autocheckpoint = %d", autoCheckpointPages),
		fmt.Sprintf("journal_size_limit = %d", maxLogBytes),
	}
)

// Open opens the ledger in cfg.Dir, or makes one. It takes the directory for this process until Close.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	on := machine{time: machineTime}
	if cfg.Clock != nil {
		on.time = sourceOf(cfg.Clock)
	}
	return open(ctx, cfg, on)
}

// machine is what a store stands on. Tests put a wall clock that steps and a disk that fails in its place.
type machine struct {
	time timeSource
	vfs  string // SQLite's name of the file system layer; empty: the operating system's
}

func open(ctx context.Context, cfg Config, on machine) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	dir, err := prepareDirectory(cfg.Dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockDirectory(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, vfs: on.vfs, lock: lock, queue: newQueue(), readers: make(chan *connection, cfg.Readers)}
	if err := s.open(ctx, dir, on.time); err != nil {
		return nil, errors.Join(err, s.release())
	}
	go s.writer.run()
	return s, nil
}

// open opens the file and everything on it. What it opened before an error is closed by release.
func (s *Store) open(ctx context.Context, dir string, source timeSource) error {
	path, size, err := prepareDatabase(dir)
	if err != nil {
		return err
	}
	s.path = path
	// fdatasync makes a commit as durable as fsync does and saves the file's timestamps their own turn through the file system's journal.
	// The switch is the process's: nothing else in a daemon uses SQLite. Where there is no fdatasync, fsync it stays.
	_, _ = sqlite.Fdatasync(true)
	s.writer = &writer{queue: s.queue, logger: s.cfg.Logger}
	if s.writer.conn, err = openConnection(ctx, path, s.vfs, "rwc", slices.Concat([]string{"page_size = 4096"}, commonPragmas)...); err != nil {
		return unreadable(path, err)
	}
	if size > 0 && s.cfg.CheckBytes >= 0 && size <= s.cfg.CheckBytes {
		if err := check(ctx, s.writer.conn, path); err != nil {
			return err
		}
	} else if size > 0 {
		s.cfg.Logger.Info("the structure of the database file is not checked before it is opened", "bytes", size, "limit", s.cfg.CheckBytes)
	}
	if err := migrate(ctx, s.writer.conn, path); err != nil {
		return err
	}
	if err := s.writeAhead(ctx); err != nil {
		return err
	}
	if err := s.startClock(ctx, source); err != nil {
		return err
	}
	return s.openReaders(ctx)
}

// writeAhead switches to the write-ahead log and makes sure of it, and of what a crash left in it.
func (s *Store) writeAhead(ctx context.Context) error {
	c := s.writer.conn
	mode, err := c.text(ctx, "PRAGMA journal_mode = wal")
	if err != nil {
		return unreadable(s.path, err)
	}
	if mode != "wal" {
		return fmt.Errorf("sqlitestore: %s cannot have a write-ahead log (journal mode %q): the directory must be on a local disk", s.path, mode)
	}
	for _, pragma := range writerPragmas {
		if err := c.script(ctx, "PRAGMA "+pragma); err != nil {
			return fmt.Errorf("sqlitestore: PRAGMA %s: %w", pragma, err)
		}
	}
	if level, err := c.number(ctx, "PRAGMA synchronous"); err != nil || level != 2 {
		return fmt.Errorf("sqlitestore: %s: synchronous is %d, not 2 (full): %w", s.path, level, err)
	}
	keeper, err := openConnection(ctx, s.path, s.vfs, "rw", slices.Concat(commonPragmas, []string{"busy_timeout = 0"})...)
	if err != nil {
		return unreadable(s.path, err)
	}
	s.log = &walKeeper{conn: keeper, readers: s.readers, path: s.path + "-wal", logger: s.cfg.Logger, limit: maxLogBytes}
	s.writer.log = s.log
	// Not for durability, which startClock sees to, but to start with an empty log. An operator's shell may be in the way.
	if _, err := s.log.empty(); err != nil {
		return unreadable(s.path, err)
	}
	return nil
}

// startClock starts the clock, and writes down its start: from now on it never goes back.
//
// That commit has a second task. A process that was killed between writing a commit and its sync leaves that commit in the log, unsynced, and
// SQLite takes it for good when the file is opened again. The sync of this commit is one of the whole log, so from here on all that a reader
// can be answered from is durable.
func (s *Store) startClock(ctx context.Context, source timeSource) error {
	highWater, err := s.writer.conn.number(ctx, "SELECT high_water FROM clock")
	if err != nil {
		return unreadable(s.path, err)
	}
	if s.clock, err = newClock(source, ledger.Time(highWater), s.cfg); err != nil {
		return err
	}
	s.writer.clock = s.clock
	if _, err := s.writer.conn.exec("UPDATE clock SET high_water = ?", int64(s.clock.now())); err != nil {
		return fmt.Errorf("sqlitestore: cannot write to %s: %w", s.path, err)
	}
	return nil
}

func (s *Store) openReaders(ctx context.Context) error {
	var err error
	if s.schema, err = s.writer.conn.number(ctx, "PRAGMA user_version"); err != nil {
		return unreadable(s.path, err)
	}
	for range s.cfg.Readers {
		c, err := openConnection(ctx, s.path, s.vfs, "ro", commonPragmas...)
		if err != nil {
			return unreadable(s.path, err)
		}
		s.readers <- c
	}
	return nil
}

// Close does what was queued, writes down the time and closes the file. Calls after it are answered with [ledger.ErrUnavailable].
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.queue.closing)
		<-s.queue.stopped
		for range s.cfg.Readers {
			c := <-s.readers // the last read gives it back
			s.closeErr = errors.Join(s.closeErr, c.close())
		}
		s.closeErr = errors.Join(s.closeErr, s.release())
	})
	return s.closeErr
}

// release closes what open opened, the writer's connection last: that one empties the log and removes it.
func (s *Store) release() error {
	var errs []error
	for len(s.readers) > 0 {
		errs = append(errs, (<-s.readers).close())
	}
	if s.log != nil {
		errs = append(errs, s.log.conn.close())
	}
	if s.writer != nil && s.writer.conn != nil {
		errs = append(errs, s.writer.conn.close())
	}
	return errors.Join(append(errs, unlockDirectory(s.lock))...)
}

// Ready implements [ledger.Store]. After a batch that could not be committed it tries an empty one: a full disk is not ready, and is again when there is
// room, without waiting for somebody's write to find out.
func (s *Store) Ready(ctx context.Context) (ledger.Time, error) {
	err := s.read(ctx, "ready", func(c *connection) error {
		version, err := c.number(ctx, selectVersion)
		if err == nil && version != s.schema {
			err = fmt.Errorf("the schema is %d, was %d when the store was opened", version, s.schema)
		}
		return err
	})
	if err == nil && s.writer.failed.Load() {
		err = s.queue.submit(ctx, s.queue.sooner, &job{weight: 1, do: touch})
	}
	if err != nil {
		return 0, err
	}
	return s.clock.now(), nil
}

// Margin implements [ledger.Store]: there is one clock.
func (s *Store) Margin() time.Duration { return 0 }

// ClockAlarms is how often the wall clock was seen to be stepped since the store was opened.
func (s *Store) ClockAlarms() int64 { return s.clock.alarms.Load() }

// Stats are the store's numbers since it was opened.
type Stats struct {
	// Queued is how many writes wait now.
	Queued int
	// Batches is how many transactions were committed, Writes how many writes they held, LargestBatch how many the largest held.
	Batches      int64
	Writes       int64
	LargestBatch int64
	// CommitTime is how long the committed transactions took in all, from their begin until they were durable.
	CommitTime time.Duration
	// CommitFailures is how many commits failed, RedoneBatches how many batches were run again because one of their writes failed.
	CommitFailures int64
	RedoneBatches  int64
	// LogBytes is the size of the write-ahead log, LogEmptied how often readers were held back to empty it.
	LogBytes   int64
	LogEmptied int64
	// ClockAlarms is how often the wall clock was seen to be stepped.
	ClockAlarms int64
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	c := &s.writer.stats
	return Stats{
		Queued:  len(s.queue.sooner) + len(s.queue.later),
		Batches: c.batches.Load(), Writes: c.writes.Load(), LargestBatch: c.largestBatch.Load(),
		CommitTime: time.Duration(c.commitNanos.Load()), CommitFailures: c.commitFailures.Load(), RedoneBatches: c.redone.Load(),
		LogBytes: s.log.bytes.Load(), LogEmptied: s.log.emptied.Load(), ClockAlarms: s.ClockAlarms(),
	}
}
