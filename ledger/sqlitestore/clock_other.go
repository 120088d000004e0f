//go:build !linux

package sqlitestore

import (
	"time"

	"github.com/idemd/idemd/ledger"
)

var processStart = time.Now()

// machineTime counts the running time by Go's monotonic clock, which may stand still while the machine is suspended.
func machineTime() (wall, running ledger.Time) {
	now := time.Now()
	return ledger.Time(now.UnixMicro()), ledger.Time(now.Sub(processStart).Microseconds())
}
