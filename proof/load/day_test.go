package load

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlitestore"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
	"github.com/idemd/idemd/ledger/storetest"
)

const (
	hours = 24
	// From hour settlesIn on as many entries are forgotten as are begun; by noon the write-ahead log is as long as it gets, too.
	settlesIn, noon = 3, 12
)

// TestC22ADayOfEntriesThatComeAndGo: each hour of a simulated day as many entries are begun, completed, swept and forgotten. What a sweep reads and how
// large the file is are the same in the evening as in the morning: no sweep goes over what earlier ones deleted. DAY_ENTRIES says how many an hour; how
// long a Begin and a sweep take is printed for every hour and judged by whoever reads it.
func TestC22ADayOfEntriesThatComeAndGo(t *testing.T) {
	t.Parallel()
	passes(t, embeddedDay(t), entriesAnHour(300))
}

// TestC22ADayOnPostgreSQL: the same there. Each hour ends with a VACUUM, which PostgreSQL does by itself where there is more.
func TestC22ADayOnPostgreSQL(t *testing.T) {
	t.Parallel()
	passes(t, postgresDay(t), entriesAnHour(60))
}

func entriesAnHour(short int) int {
	if given, err := strconv.Atoi(os.Getenv("DAY_ENTRIES")); err == nil {
		return given
	}
	return short
}

// passes has a day pass.
func passes(t *testing.T, d *day, hourly int) {
	t.Helper()
	var settled, atNoon hour
	for n := 1; n <= hours; n++ {
		h := d.hour(t, n, hourly)
		t.Logf("hour %2d: %v", n, h)
		if h.forgotten != int64(hourly) && n >= settlesIn {
			t.Errorf("hour %d: %d entries were begun and %d forgotten", n, hourly, h.forgotten)
		}
		switch {
		case n == settlesIn:
			settled = h
		case n > settlesIn && (h.examined > settled.examined || h.pages > settled.pages+settled.pages/4):
			t.Errorf("hour %d: its sweeps examined %d entries on %d pages; those of hour %d %d on %d", n, h.examined, h.pages, settlesIn, settled.examined, settled.pages)
		}
		switch {
		case n == noon:
			atNoon = h
		case n > noon && h.bytes > atNoon.bytes+atNoon.bytes/4:
			t.Errorf("hour %d: the ledger has %d bytes; at noon it had %d", n, h.bytes, atNoon.bytes)
		}
	}
}

// day is a ledger and its clock.
type day struct {
	*ledger.Ledger
	advance func(time.Duration)
	// size is how many bytes the store takes up.
	size  func() int64
	pages int // that sweeps read
}

// hour is what an hour took.
type hour struct {
	examined, forgotten int64
	pages               int
	bytes               int64
	beginP99, sweeps    time.Duration
}

func (h hour) String() string {
	return fmt.Sprintf("Begin p99 %v, its sweeps %v in all: %d entries examined on %d pages, %d forgotten; %.1f MB",
		h.beginP99.Round(10*time.Microsecond), h.sweeps.Round(time.Millisecond), h.examined, h.pages, h.forgotten, float64(h.bytes)/1e6)
}

func embeddedDay(t *testing.T) *day {
	dir, clock := t.TempDir(), storetest.NewClock(ledger.Time(time.Now().UnixMicro()))
	store, err := sqlitestore.Open(t.Context(), sqlitestore.Config{Dir: dir, Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	d := &day{advance: clock.Advance, size: func() int64 { return size(t, dir) }}
	d.start(t, store)
	return d
}

func postgresDay(t *testing.T) *day {
	url := pgtest.URL(t)
	if err := sqlstore.Migrate(t.Context(), sqlstore.Config{URL: url}, nil); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	execute := func(text string) {
		if _, err := conn.Exec(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	execute("CREATE TABLE day_clock AS SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::INT8 AS now_us")
	execute("CREATE FUNCTION day_now() RETURNS INT8 LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN (SELECT now_us FROM day_clock); END'")
	store, err := sqlstore.Open(t.Context(), sqlstore.Config{URL: url, ClockSQL: "day_now()"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	d := &day{
		advance: func(by time.Duration) {
			execute(fmt.Sprintf("UPDATE day_clock SET now_us = now_us + %d", by.Microseconds()))
		},
		size: func() (bytes int64) {
			execute("VACUUM")
			if err := conn.QueryRow(t.Context(), "SELECT sum(pg_total_relation_size(oid))::INT8 FROM pg_class WHERE relname LIKE 'idemd%' AND relkind = 'r'").Scan(&bytes); err != nil {
				t.Fatal(err)
			}
			return bytes
		},
	}
	d.start(t, store)
	return d
}

// start opens the ledger on a store, with a policy by which an entry stays for an hour.
func (d *day) start(t *testing.T, store ledger.Store) {
	t.Helper()
	d.Ledger = open(t, storetest.NewFaulty(store, func(c storetest.Call) storetest.Fault {
		if c.Method == storetest.Page {
			d.pages++ // a plan is called for one call at a time
		}
		return storetest.Fault{}
	}))
	stay := 30 * time.Minute
	if _, err := d.PutPolicy(t.Context(), ledger.Policy{
		Tenant: "*", Operation: "load", Lease: time.Minute, Tombstone: &stay, Horizons: ledger.Horizons{ClientRetry: 30 * time.Minute},
	}, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := d.GetPolicy(t.Context(), "*", "load", false); err != nil { // from now on it is followed
		t.Fatal(err)
	}
}

// hour begins and completes entries, lets an hour pass, and sweeps twice in it.
func (d *day) hour(t *testing.T, n, entries int) (h hour) {
	t.Helper()
	took := make([]time.Duration, entries)
	const workers = 64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < entries; i += workers {
				took[i] = d.once(t, fmt.Sprintf("hour %d, entry %d", n, i))
			}
		})
	}
	wg.Wait()
	d.pages = 0
	for range 2 {
		d.advance(30 * time.Minute)
		began := time.Now()
		done, err := d.Sweep(context.WithoutCancel(t.Context()), ledger.SweepRequest{}, nil)
		if err != nil || !done.Done {
			t.Fatalf("a sweep: %+v %v", done, err)
		}
		h.sweeps += time.Since(began)
		h.examined, h.forgotten = h.examined+done.Examined, h.forgotten+done.Forgotten
	}
	h.pages, h.bytes, h.beginP99 = d.pages, d.size(), percentile(took, 99)
	return h
}

func (d *day) once(t *testing.T, key string) time.Duration {
	began := time.Now()
	out, err := begin(t.Context(), d.Ledger, key, 0)
	took := time.Since(began)
	if err != nil || out.Granted == nil {
		t.Errorf("%s: %+v %v", key, out, err)
		return took
	}
	if err := complete(t.Context(), d.Ledger, key, out.Granted.Token); err != nil {
		t.Errorf("%s: %v", key, err)
	}
	return took
}

func size(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
