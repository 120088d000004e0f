package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/sqlstore"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func onEveryEmptyDatabase(t *testing.T, test func(t *testing.T, url string)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			test(t, e.url(t))
		})
	}
}

func TestMigrationStatus(t *testing.T) {
	onEveryEmptyDatabase(t, func(t *testing.T, url string) {
		ctx, cfg := context.Background(), sqlstore.Config{URL: url}
		before, err := sqlstore.MigrationStatus(ctx, cfg)
		if err != nil || before.Applied != 0 || len(before.Pending) != before.Latest || before.Latest == 0 {
			t.Fatalf("before: %+v, %v", before, err)
		}
		var told []int
		err = sqlstore.Migrate(ctx, cfg, func(p sqlstore.MigrationProgress) { told = append(told, p.Step.Number) })
		if err != nil || fmt.Sprint(told) != "[1 2 3 4 5]" {
			t.Fatalf("progress told %v, %v", told, err)
		}
		after, err := sqlstore.MigrationStatus(ctx, cfg)
		if err != nil || after.Applied != after.Latest || len(after.Pending) != 0 {
			t.Fatalf("after: %+v, %v", after, err)
		}
		if err := sqlstore.Migrate(ctx, cfg, func(p sqlstore.MigrationProgress) { t.Errorf("a second run did %+v", p) }); err != nil {
			t.Error(err)
		}
	})
}

func TestManyMigrateAtOnce(t *testing.T) {
	onEveryEmptyDatabase(t, func(t *testing.T, url string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		times := map[int]int{}
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				err := sqlstore.Migrate(ctx, sqlstore.Config{URL: url}, func(p sqlstore.MigrationProgress) {
					mu.Lock()
					defer mu.Unlock()
					if p.Step != nil {
						times[p.Step.Number]++
					}
				})
				if err != nil {
					t.Errorf("Migrate: %v", err)
				}
			})
		}
		wg.Wait()
		for step, n := range times {
			if n != 1 {
				t.Errorf("step %d was applied %d times", step, n)
			}
		}
		if len(times) != 5 {
			t.Errorf("%d steps were applied", len(times))
		}
	})
}

// TestMigrationsThatMeetInTheCatalogue: whichever way another one got in first, the next try finds what it made.
func TestMigrationsThatMeetInTheCatalogue(t *testing.T) {
	onEveryEmptyDatabase(t, func(t *testing.T, url string) {
		proxy := pgtest.NewProxy(t, url)
		codes := []string{"23505", "42P07", "42710", "40001", "40P01", "XX000"}
		for _, code := range codes {
			proxy.Arm(pgtest.FailBefore, "CREATE TABLE IF NOT EXISTS idemd_schema", code, 1)
			proxy.Arm(pgtest.FailBefore, "CREATE TABLE IF NOT EXISTS idemd_migrator", code, 1)
		}
		if err := sqlstore.Migrate(t.Context(), sqlstore.Config{URL: proxy.URL()}, nil); err != nil {
			t.Error(err)
		}
		if proxy.Hits() != 2*len(codes) {
			t.Errorf("%d faults happened, want %d", proxy.Hits(), 2*len(codes))
		}
	})
}

// A migration can end between any two steps, and between a step and its record. The next one goes on from there.
func TestMigrationIsResumable(t *testing.T) {
	for end := 1; end <= 4; end++ {
		for _, recorded := range []bool{true, false} {
			t.Run(fmt.Sprintf("after step %d, recorded %t", end, recorded), func(t *testing.T) {
				onEveryEmptyDatabase(t, func(t *testing.T, url string) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					err := sqlstore.Migrate(ctx, sqlstore.Config{URL: url}, func(p sqlstore.MigrationProgress) {
						if p.Step.Number == end {
							cancel()
						}
					})
					if !errors.Is(err, context.Canceled) && err == nil {
						t.Fatalf("it was not interrupted: %v", err)
					}
					if !recorded {
						execute(t, url, fmt.Sprintf("DELETE FROM idemd_schema WHERE step = %d", end))
					}
					d := newDatabase(t, url) // migrates
					mustWrite(t, d.open(t), begin(scopeOf(1)))
				})
			})
		}
	}
}

// Who was killed in the middle leaves a lease behind. The next one waits for its end, says so, and goes on; and gives up when its own
// time is up.
func TestMigrationWaitsForTheLeaseOfTheDead(t *testing.T) {
	onEveryEmptyDatabase(t, func(t *testing.T, url string) {
		if err := sqlstore.Migrate(context.Background(), sqlstore.Config{URL: url}, nil); err != nil {
			t.Fatal(err)
		}
		execute(t, url, "DELETE FROM idemd_schema WHERE step > 3")
		const now = "(extract(epoch FROM clock_timestamp()) * 1000000)::INT8"
		execute(t, url, "UPDATE idemd_migrator SET holder = 'dead', lease_until = "+now+" + 3600000000")
		short, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		err := sqlstore.Migrate(short, sqlstore.Config{URL: url}, nil)
		// The caller's own time was up and nothing was done: that is the context's error alone, and no word about the store.
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ledger.ErrUnavailable) ||
			!strings.Contains(err.Error(), "another migration") {
			t.Errorf("with the lease taken: %v", err)
		}
		waited := false
		err = sqlstore.Migrate(context.Background(), sqlstore.Config{URL: url}, func(p sqlstore.MigrationProgress) {
			if p.Step == nil {
				waited = true
				execute(t, url, "UPDATE idemd_migrator SET lease_until = "+now+" + 600000")
			}
		})
		if err != nil || !waited {
			t.Errorf("waited %t, %v", waited, err)
		}
	})
}
