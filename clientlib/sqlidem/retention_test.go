package sqlidem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
)

const (
	retention = time.Hour
	tombstone = 2 * time.Hour
)

var kept = sqlidem.Options{Wait: patience, Rules: sqlidem.Rules{Retention: retention, Tombstone: tombstone}}

// C60: a genuine late retry is refused while the tombstone lives, whether a sweep has been by or not.
func TestC60ALateRetryIsRefusedAndNotRun(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		must(s.do(t.Context(), ref("k"), asked("a"), charge("k"), kept))
		d.advance(t, retention-time.Minute)
		if again, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), kept); err != nil || again.Outcome != clientlib.Replayed {
			t.Errorf("at the end of retention: %+v, %v", again, err)
		}
		d.advance(t, time.Minute)
		refusedExpired := func(when string) {
			t.Helper()
			if _, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), kept); !errors.Is(err, clientlib.ErrExpired) || status.Code(err) != codes.FailedPrecondition {
				t.Errorf("%s: %v", when, err)
			}
			if _, err := s.do(t.Context(), ref("k"), asked("b"), charge("k"), kept); !errors.Is(err, clientlib.ErrKeyReused) {
				t.Errorf("%s, another request: %v", when, err)
			}
		}
		refusedExpired("past retention")
		if swept, err := s.sweep(t.Context(), sqlidem.SweepOptions{}); err != nil || swept != (sqlidem.Swept{Examined: 1, Closed: 1}) {
			t.Errorf("sweep: %+v, %v", swept, err)
		}
		if n := d.count(t, "SELECT count(*) FROM idem_entries WHERE answer IS NOT NULL"); n != 0 {
			t.Error("the answer is still there")
		}
		refusedExpired("swept")
		if swept, err := s.sweep(t.Context(), sqlidem.SweepOptions{}); err != nil || swept.Examined != 0 {
			t.Errorf("another sweep: %+v, %v", swept, err)
		}
		d.advance(t, tombstone)
		if swept, err := s.sweep(t.Context(), sqlidem.SweepOptions{}); err != nil || swept != (sqlidem.Swept{Examined: 1, Forgotten: 1}) {
			t.Errorf("sweep: %+v, %v", swept, err)
		}
		if n := d.count(t, "SELECT count(*) FROM idem_entries"); n != 0 || d.effects(t, "k") != 1 {
			t.Errorf("%d entries, %d effects", n, d.effects(t, "k"))
		}
	})
}

// Past its tombstone a key is new again, with another request too, swept or not; and then it is as safe as any other.
func TestAForgottenKeyIsNewAgain(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		for i, sweeps := range []bool{false, true} {
			key := fmt.Sprint(i)
			must(s.do(t.Context(), ref(key), asked("a"), charge(key), kept))
			d.advance(t, retention)
			if sweeps {
				must(s.sweep(t.Context(), sqlidem.SweepOptions{})) // a tombstone
			}
			d.advance(t, tombstone)
			results := make(chan clientlib.Result, 8)
			for range cap(results) {
				go func() {
					result, err := s.do(context.Background(), ref(key), asked("b"), charge(key), kept)
					if err != nil {
						t.Error(err)
					}
					results <- result
				}()
			}
			executed := 0
			for range cap(results) {
				if await(t, results).Outcome == clientlib.Executed {
					executed++
				}
			}
			if executed != 1 || d.effects(t, key) != 2 {
				t.Errorf("swept %t: executed %d times, %d effects in all", sweeps, executed, d.effects(t, key))
			}
			if _, err := s.do(t.Context(), ref(key), asked("a"), charge(key), kept); !errors.Is(err, clientlib.ErrKeyReused) {
				t.Errorf("the request of the earlier life: %v", err)
			}
		}
	})
}

func TestWithoutATombstoneAKeyIsNewRightAfterRetention(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		options := sqlidem.Options{Rules: sqlidem.Rules{Retention: retention, Tombstone: -1}}
		must(s.do(t.Context(), ref("k"), asked("a"), charge("k"), options))
		d.advance(t, retention)
		if result, err := s.do(t.Context(), ref("k"), asked("a"), charge("k"), options); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

func TestASweepGoesInBoundedBatches(t *testing.T) {
	onEveryDatabase(t, func(t *testing.T, d *database) {
		s := d.service(t)
		const n = 40
		for i := range n {
			must(s.do(t.Context(), ref(fmt.Sprint(i)), asked("a"), charge("k"), kept))
		}
		d.advance(t, retention+tombstone)
		if swept, err := s.sweep(t.Context(), sqlidem.SweepOptions{BatchRows: 2, MaxRows: 7}); err != nil || swept.Examined != 7 || swept.Forgotten != 7 {
			t.Errorf("%+v, %v", swept, err)
		}
		// Several at once do the work of one.
		total := make(chan int, 3)
		for range cap(total) {
			go func() {
				swept, err := s.sweep(context.Background(), sqlidem.SweepOptions{BatchRows: 2})
				if err != nil {
					t.Error(err)
				}
				total <- swept.Forgotten
			}()
		}
		for range cap(total) {
			await(t, total)
		}
		if left := d.count(t, "SELECT count(*) FROM idem_entries"); left != 0 {
			t.Errorf("%d entries are left", left)
		}
	})
}

func TestASweepLeavesWhatIsBeingWorkedOnAlone(t *testing.T) {
	onPostgreSQL(t, func(t *testing.T, d *database) {
		s := d.service(t)
		must(s.do(t.Context(), ref("k"), asked("a"), charge("k"), kept))
		d.advance(t, retention+tombstone)
		finish := stall(t, s, "k") // over the forgotten row
		if swept, err := s.sweep(t.Context(), sqlidem.SweepOptions{}); err != nil || swept.Examined != 0 {
			t.Errorf("%+v, %v", swept, err)
		}
		if result, err := finish(nil); err != nil || result.Outcome != clientlib.Executed {
			t.Errorf("%+v, %v", result, err)
		}
	})
}
