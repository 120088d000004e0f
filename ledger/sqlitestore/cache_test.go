package sqlitestore

import (
	"testing"

	"modernc.org/libc"
)

// cacheSizes are the cache_size of the writer's connection, of a reader's and of the walKeeper's, as SQLite has them: in KiB, negative.
func cacheSizes(t *testing.T, s *Store) [3]int64 {
	t.Helper()
	reader := <-s.readers
	defer func() { s.readers <- reader }()
	var sizes [3]int64
	for i, c := range []*connection{s.writer.conn, reader, s.log.conn} {
		var err error
		if sizes[i], err = c.number(t.Context(), "PRAGMA cache_size"); err != nil {
			t.Fatal(err)
		}
	}
	return sizes
}

func TestCachesTakeWhatTheyAreGiven(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  Config
		want [3]int64
	}{
		{Config{}, [3]int64{-64 << 10, -4 << 10, -4 << 10}},
		{Config{CacheBytes: 100 << 20}, [3]int64{-32 << 10, -2 << 10, -2 << 10}},
		{Config{CacheBytes: 100 << 20, Readers: 33}, [3]int64{-16 << 10, -1 << 10, -1 << 10}},
		{Config{CacheBytes: 1}, [3]int64{-1, -1, -1}},
	} {
		c.cfg.Dir = t.TempDir()
		s := openForTest(t, c.cfg)
		if got := cacheSizes(t, s); got != c.want {
			t.Errorf("of %d bytes with %d readers: %v, want %v", c.cfg.CacheBytes, c.cfg.Readers, got, c.want)
		}
		pair(t, s, 1, 1000)
	}
}

// What CacheBytes promises rests on how much the allocator takes for a page and what SQLite notes of it, some hundred bytes.
func TestAPageInACacheTakesTheRoomThatIsCountedForIt(t *testing.T) {
	t.Parallel()
	tls := libc.NewTLS()
	defer tls.Close()
	page := libc.Xmalloc(tls, pageBytes+256)
	defer libc.Xfree(tls, page)
	if room := libc.Xmalloc_usable_size(tls, page); room != roomOfPage*pageBytes {
		t.Errorf("%d bytes, not %d", room, roomOfPage*pageBytes)
	}
}
