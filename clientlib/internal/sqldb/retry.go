package sqldb

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cockroachdb/cockroach-go/v2/crdb"
)

// Retryable says that a transaction certainly did not happen and that running the whole of it again can help: a serialization failure, a
// deadlock, or CockroachDB's restart.
func Retryable(err error) bool {
	switch SQLState(err) {
	case "40001", "40P01", "CR000":
		return true
	}
	var exhausted *crdb.MaxRetriesExceededError
	var restart *crdb.TxnRestartError
	return errors.As(err, &exhausted) || errors.As(err, &restart)
}

// SQLState is the SQLSTATE of an error of pgx, of lib/pq, or of a driver that does likewise; "" if there is none.
func SQLState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// MaxTries is how often a transaction is run that others get in the way of.
const MaxTries = 10

// The pauses between tries: the first, doubled each time up to the longest, each shortened at random so that the contenders do not meet
// again.
const (
	firstPause   = 4 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// BackOff pauses before the try after the given one, counted from 1. False: the context ended.
func BackOff(ctx context.Context, try int) bool {
	length := longestPause
	if try < 7 {
		length = min(firstPause<<(try-1), longestPause)
	}
	return Pause(ctx, length/2+rand.N(length/2+1))
}

// Pause waits, and says whether it was let wait to the end.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Retry runs try again while its error is [Retryable], at most [MaxTries] times.
func Retry(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if n == MaxTries || !Retryable(err) || !BackOff(ctx, n) {
			return err
		}
	}
}
