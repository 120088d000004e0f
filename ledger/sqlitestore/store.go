package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"

	"github.com/idemd/idemd/ledger"
)

// Store is the embedded store. Its methods may be called concurrently.
type Store struct {
	cfg     Config
	path    string
	vfs     string
	lock    *directoryLock
	seals   *seals
	clock   *clock
	queue   *queue
	writer  *writer
	log     *walKeeper
	readers chan *connection
	memory  *memory
	schema  int64

	closeOnce sync.Once
	closeErr  error
}

var (
	_ ledger.Store     = (*Store)(nil)
	_ ledger.Recaller  = (*Store)(nil)
	_ ledger.Unsharded = (*Store)(nil)
)

// Pragmas of every connection, and of the writer's besides. For the size of its cache see [Config.CacheBytes].
var (
	commonPragmas = []string{
		"busy_timeout = 5000",  // an operator's shell may hold a lock for a moment
		"trusted_schema = off", // the file may come from anywhere
		"cell_size_check = on", // a damaged page is found when it is read
		"temp_store = memory",  // nothing of an entry outside the directory
		"synchronous = full",
		"mmap_size = 0", // all reads go through the layer
	}
	writerPragmas = []string{
		"secure_delete = fast",   // what is erased is overwritten where that costs no page more
		"wal_autocheckpoint = 0", // see walKeeper
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
	s := &Store{cfg: cfg, lock: lock, queue: newQueue(), readers: make(chan *connection, cfg.Readers), memory: newMemory(cfg.MemoryBytes)}
	if err := s.open(ctx, dir, on); err != nil {
		return nil, errors.Join(err, s.release())
	}
	go s.writer.run()
	return s, nil
}

// open opens the file and everything on it. What it opened before an error is closed by release.
func (s *Store) open(ctx context.Context, dir string, on machine) error {
	path, size, err := prepareDatabase(dir, s.lock)
	if err != nil {
		return err
	}
	s.path = path
	if err := checkLog(path); err != nil {
		return err
	}
	if s.vfs, err = layerOn(on.vfs); err != nil {
		return err
	}
	if s.seals, err = useSeals(path, s.cfg.Logger); err != nil {
		return err
	}
	unproven := s.seals.file.Load() == nil
	if unproven {
		if err := s.seals.begin(ctx); err != nil {
			return onDisk("cannot seal", path, err)
		}
	}
	// fdatasync makes a commit as durable as fsync does and saves the file's timestamps their own turn through the file system's journal.
	// The switch is the process's: nothing else in a daemon uses SQLite. Where there is no fdatasync, fsync it stays.
	_, _ = sqlite.Fdatasync(true)
	s.writer = &writer{queue: s.queue, logger: s.cfg.Logger, seals: s.seals, memory: s.memory, names: map[ledger.Ref]int64{}}
	// No cache_spill: a transaction is written once, when it commits (see readFrame). That goes for a migration's, too.
	pragmas := slices.Concat([]string{"page_size = 4096", "cache_spill = off"}, commonPragmas, []string{s.cfg.cachePragma(writerShare)})
	if s.writer.conn, err = openConnection(ctx, path, s.vfs, toMake, pragmas...); err != nil {
		return unreadable(path, err)
	}
	if s.seals.covered.Load() == 0 {
		return fmt.Errorf("sqlitestore: %s was opened past the layer that checks it", path)
	}
	if err := s.checkStructure(ctx, size, unproven); err != nil {
		return err
	}
	if err := migrate(ctx, s.writer.conn, path); err != nil {
		return err
	}
	if err := s.writeAhead(ctx); err != nil {
		return err
	}
	if unproven {
		if err := s.seals.keep(); err != nil {
			return err
		}
	}
	if err := s.startClock(ctx, on.time); err != nil {
		return err
	}
	if err := s.lock.write(lastInUse); err != nil {
		return onDisk("cannot write beside", path, err)
	}
	return s.openReaders(ctx)
}

// checkStructure looks at the structure of a file of so many bytes. Seals that are new vouch for nothing yet, so then it looks at everything.
func (s *Store) checkStructure(ctx context.Context, size int64, unproven bool) error {
	switch {
	case size == 0:
		return nil
	case unproven:
		s.cfg.Logger.Info("the database has no seals: it is checked whole, once", "file", s.path, "bytes", size)
		if _, err := identify(ctx, s.writer.conn, s.path); err != nil {
			return err // before any other application's file is read for long
		}
		return check(ctx, s.writer.conn, s.path, wholeCheck)
	case s.cfg.CheckBytes >= 0 && size <= s.cfg.CheckBytes:
		return check(ctx, s.writer.conn, s.path, quickCheck)
	default:
		s.cfg.Logger.Info("the structure of the database file is not checked before it is opened", "bytes", size, "limit", s.cfg.CheckBytes)
		return nil
	}
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
	keeper, err := openConnection(ctx, s.path, s.vfs, toWrite, slices.Concat(commonPragmas, []string{s.cfg.cachePragma(1), "busy_timeout = 0"})...)
	if err != nil {
		return unreadable(s.path, err)
	}
	s.log = newWALKeeper(keeper, s.readers, s.seals, s.cfg.Logger)
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
	// Where the mark is gone there is no zero to be taken for it: that would be a ledger that was never written to.
	highWater, err := s.writer.conn.number(ctx, "SELECT coalesce(max(high_water), -1) FROM clock")
	if err != nil {
		return unreadable(s.path, err)
	}
	if highWater < 0 {
		return damagedFile(s.path, errors.New("the mark of its clock is missing"))
	}
	if s.clock, err = newClock(source, ledger.Time(highWater), s.cfg); err != nil {
		return err
	}
	s.writer.clock = s.clock
	if _, err := s.writer.conn.exec("UPDATE clock SET high_water = ?", int64(s.clock.now())); err != nil {
		return onDisk("cannot write to", s.path, err)
	}
	return nil
}

func (s *Store) openReaders(ctx context.Context) error {
	var err error
	if s.schema, err = s.writer.conn.number(ctx, "PRAGMA user_version"); err != nil {
		return unreadable(s.path, err)
	}
	for range s.cfg.Readers {
		c, err := openConnection(ctx, s.path, s.vfs, toRead, slices.Concat(commonPragmas, []string{s.cfg.cachePragma(1)})...)
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
	if s.writer != nil && s.writer.conn != nil && s.lock.last == lastInUse {
		// Durable before the log can go.
		errs = append(errs, s.lock.write(lastClosed))
	}
	for len(s.readers) > 0 {
		errs = append(errs, (<-s.readers).close())
	}
	if s.log != nil {
		s.log.finish()
		s.settleLog()
		errs = append(errs, s.log.conn.close())
	}
	if s.writer != nil && s.writer.conn != nil {
		errs = append(errs, s.writer.conn.close())
	}
	if s.logIsNeeded() {
		errs = append(errs, s.lock.write(lastInUse)) // a start without the log would miss what only that has
	}
	if s.seals != nil {
		errs = append(errs, s.seals.release())
	}
	return errors.Join(append(errs, s.lock.release())...)
}

// logIsNeeded reports whether the log stayed, when everything was closed, because a sync of the database had failed.
func (s *Store) logIsNeeded() bool {
	if s.seals == nil || !s.seals.unkept.Load() || s.lock.last != lastClosed {
		return false
	}
	info, err := os.Stat(s.path + logSuffix)
	return err == nil && info.Size() > 0
}

// settleLog empties the log while this process still is there to seal what it writes. SQLite itself does it when the last connection of all processes is
// closed, and that may be one of an operator's shell that only read.
func (s *Store) settleLog() {
	if s.seals.soundness() != nil || s.seals.unkept.Load() {
		return
	}
	busy, err := s.log.empty()
	s.seals.note(err)
	if busy {
		s.cfg.Logger.Warn("another program is in the middle of reading the database. If it ends before the next start, it may empty the write-ahead log by "+
			"itself, which that start takes for damage", "file", s.path)
	}
}

// Ready implements [ledger.Store]. Where the last write failed, or there is next to no room on the disk, it tries one: a full disk is not ready, and is again when
// there is room, without waiting for somebody's write to find out.
func (s *Store) Ready(ctx context.Context) (ledger.Time, error) {
	if err := s.seals.soundness(); err != nil {
		return 0, unavailable("ready", err)
	}
	err := s.read(ctx, "ready", func(c *connection) error {
		version, err := c.number(ctx, selectVersion)
		if err == nil && version != s.schema {
			err = fmt.Errorf("the schema is %d, was %d when the store was opened", version, s.schema)
		}
		return err
	})
	if err == nil && (s.writer.failed.Load() || littleRoom(s.path)) {
		err = notReady(ctx, s.tryRoom(ctx))
	}
	if err != nil {
		return 0, err
	}
	return s.clock.now(), nil
}

// notReady is what a failed try to write says: whether that try is on the disk is nobody's question.
func notReady(ctx context.Context, err error) error {
	var fault ledger.StoreFault
	switch {
	case !errors.Is(err, ledger.ErrUnknown):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &fault):
		return unavailable("ready", fmt.Errorf("%w: %s", fault, err.Error()))
	default:
		return unavailable("ready", errors.New(err.Error()))
	}
}

// tryRoom writes as much as a few grants and reports take, and takes it back: a disk with room for a page is not one with room for a grant.
func (s *Store) tryRoom(ctx context.Context) error {
	for _, sql := range []string{fillRoom, clearRoom} {
		err := s.queue.submit(ctx, s.queue.sooner, &job{weight: 1, do: func(w *writer, _ ledger.Time) (bool, error) {
			_, err := w.conn.exec(sql)
			return true, err
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	roomBytes = 64 << 10 // what fillRoom writes
	fillRoom  = `INSERT INTO setting (kind, name, revision, body, updated_at) VALUES ('room', '', 1, zeroblob(65536), 0)
		ON CONFLICT (kind, name) DO UPDATE SET revision = revision + 1, body = excluded.body`
	clearRoom = `DELETE FROM setting WHERE kind = 'room'`
)

// littleRoom reports whether the disk of the file has so little room that writes may fail. Where the file system does not say, it has enough.
func littleRoom(path string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil || st.Blocks == 0 {
		return false
	}
	return st.Bavail*uint64(st.Bsize) < 4*roomBytes //nolint:gosec // a block's size is positive
}

// Unsharded implements [ledger.Unsharded]: entries come to be due in the order in which they were written, so a sweep over all shards reads each page once, and one
// shard after the other sixteen times.
func (s *Store) Unsharded() {}

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
	// Recalled is how many readings were answered from memory, RememberedBytes how much of it is in use.
	Recalled        int64
	RememberedBytes int64
}

// Stats returns the store's numbers.
func (s *Store) Stats() Stats {
	c := &s.writer.stats
	return Stats{
		Queued:  len(s.queue.sooner) + len(s.queue.later) + len(s.queue.idle),
		Batches: c.batches.Load(), Writes: c.writes.Load(), LargestBatch: c.largestBatch.Load(),
		CommitTime: time.Duration(c.commitNanos.Load()), CommitFailures: c.commitFailures.Load(), RedoneBatches: c.redone.Load(),
		LogBytes: s.log.bytes.Load(), LogEmptied: s.log.emptied.Load(), ClockAlarms: s.ClockAlarms(),
		Recalled: s.memory.recalled.Load(), RememberedBytes: s.memory.held(),
	}
}
