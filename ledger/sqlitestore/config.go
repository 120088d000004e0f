package sqlitestore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemd/idemd/ledger"
)

// Defaults of [Config].
const (
	// DefaultMaxWallAhead is as long as the built-in policy's retention, and so as its tombstone: a wrong wall clock that passes unnoticed
	// within it can turn a replay into EXPIRED early, but can not make the ledger forget an entry and run it again.
	DefaultMaxWallAhead = ledger.DefaultRetention
	// DefaultCheckBytes is about two seconds of checking on a slow disk.
	DefaultCheckBytes = 256 << 20
	// DefaultReaders is how many reads run at a time; further ones wait for a turn.
	DefaultReaders = 8
	// DefaultMemoryBytes is room for some twenty thousand answers of ordinary size.
	DefaultMemoryBytes = 32 << 20
	// DefaultCacheBytes gives the writer's connection 64 MiB of pages and each of eight readers 4.
	DefaultCacheBytes = 200 << 20
)

// A page in a cache takes the room of two: SQLite adds what it notes of it, and its allocator deals in powers of two. cache_size counts the page only.
const (
	roomOfPage = 2
	// writerShare is how many times a reader's share of the caches the writer's connection has: it reads what it changes, all over the file.
	writerShare = 16
)

// Config is all that [Open] wants to know.
type Config struct {
	// Dir is the directory of the ledger, made (0700) where it is missing. One process at a time uses it.
	Dir string
	// Clock is where time comes from, in microseconds since the Unix epoch. Nil: the machine's wall clock when the store is opened, and its
	// running time from then on. It is an argument for tests: whatever it says passes for both.
	Clock func() ledger.Time
	// Logger gets what an operator should know. Nil: nothing is logged.
	Logger *slog.Logger
	// MaxWallAhead is how far the wall clock may be ahead of the last write when the store is opened. Zero: DefaultMaxWallAhead.
	MaxWallAhead time.Duration
	// AllowClockJump opens the store although the wall clock is further ahead than that: an operator has looked at it.
	AllowClockJump bool
	// CheckBytes is up to which size of the file its structure is checked (PRAGMA quick_check) before it is opened. Zero:
	// DefaultCheckBytes. Negative: never. A larger file is opened with a note in the log: its damage shows when the damaged part is read.
	CheckBytes int64
	// Readers is how many reads run at a time. Zero: DefaultReaders.
	Readers int
	// MemoryBytes is how many bytes of settled entries are kept in memory, for replays. Zero: DefaultMemoryBytes.
	MemoryBytes int64
	// CacheBytes is how much memory SQLite's caches of pages take at the most, all connections together. A transaction that does not fit, one with megabytes of
	// answers, takes more, and the allocator keeps part of it. Zero: DefaultCacheBytes.
	CacheBytes int64
}

// Validate says what is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no directory is named (Dir)"))
	}
	if c.MaxWallAhead < 0 {
		errs = append(errs, fmt.Errorf("MaxWallAhead: must not be negative, is %v", c.MaxWallAhead))
	}
	if c.Readers < 0 || c.Readers > 256 {
		errs = append(errs, fmt.Errorf("the number of readers (Readers) must be 0 to 256, is %d", c.Readers))
	}
	if c.MemoryBytes < 0 {
		errs = append(errs, fmt.Errorf("MemoryBytes: must not be negative, is %d", c.MemoryBytes))
	}
	if c.CacheBytes < 0 {
		errs = append(errs, fmt.Errorf("CacheBytes: must not be negative, is %d", c.CacheBytes))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sqlitestore: config: %w", err)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.MaxWallAhead == 0 {
		c.MaxWallAhead = DefaultMaxWallAhead
	}
	if c.CheckBytes == 0 {
		c.CheckBytes = DefaultCheckBytes
	}
	if c.Readers == 0 {
		c.Readers = DefaultReaders
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = DefaultMemoryBytes
	}
	if c.CacheBytes == 0 {
		c.CacheBytes = DefaultCacheBytes
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// cachePragma gives a connection so many shares of the caches. One share is each reader's, and one the walKeeper's.
func (c Config) cachePragma(shares int) string {
	share := c.CacheBytes / int64(writerShare+c.Readers+1)
	return fmt.Sprintf("cache_size = -%d", max(share*int64(shares)/roomOfPage>>10, 1)) // in KiB
}
