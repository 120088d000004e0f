package sqlitestore

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/idemd/idemd/ledger"
)

// machineTime counts the running time by CLOCK_BOOTTIME, which goes on while the machine is suspended: Go's own monotonic clock does not,
// and a lease would outlive a night's sleep by a night.
func machineTime() (wall, running ledger.Time) {
	for {
		before := boottime()
		wall = ledger.Time(time.Now().UnixMicro())
		// A pause between the two readings would look like a step of the wall clock.
		if after := boottime(); after-before < stepTolerance/10 {
			return wall, ledger.Time(after.Microseconds())
		}
	}
}

func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("sqlitestore: no CLOCK_BOOTTIME (Linux 2.6.39): " + err.Error())
	}
	return time.Duration(ts.Nano())
}
