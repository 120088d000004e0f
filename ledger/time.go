package ledger

import (
	"math"
	"time"
)

// Time is an instant of the store's clock, in microseconds since the Unix epoch. Zero means "not set".
//
// In an entry that is about to be written, a Time made by [In] is relative to the moment of the write: the store replaces it by
// its own clock at that moment plus the offset. That is how no time of a daemon ever reaches a row.
type Time int64

// Never is later than every instant.
const Never Time = math.MaxInt64

// In returns the instant d after the store writes the row. d must not be negative.
func In(d time.Duration) Time { return Time(-1 - max(d.Microseconds(), 0)) }

// Relative reports whether t was made by [In] and has not been stamped yet.
func (t Time) Relative() bool { return t < 0 }

// At returns t as an absolute instant, where now is the store's clock at the write.
func (t Time) At(now Time) Time {
	if t < 0 {
		return now + (-1 - t)
	}
	return t
}

// Add returns t+d, and [Never] where t is Never or the sum would overflow. t must be absolute.
func (t Time) Add(d time.Duration) Time {
	us := Time(d.Microseconds())
	if t == Never || (us > 0 && t > Never-us) {
		return Never
	}
	return t + us
}

// Sub returns t-u. It is only meaningful for two absolute instants other than Never.
func (t Time) Sub(u Time) time.Duration {
	us := int64(t - u)
	if us > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(us) * time.Microsecond
}

// Wall returns t as a time.Time in UTC; the zero time.Time for zero, Never and relative instants.
func (t Time) Wall() time.Time {
	if t <= 0 || t == Never {
		return time.Time{}
	}
	return time.UnixMicro(int64(t)).UTC()
}
