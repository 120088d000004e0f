package sim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/ledger/storetest"
)

// byDefault is how many worlds are played; SIM_SEEDS says otherwise, and SIM_SEED plays one.
const byDefault = 2000

var totals struct {
	sync.Mutex
	worlds, dos, effects int
	faults               map[storetest.FaultKind]int
}

func TestWorldsOnVirtualTime(t *testing.T) {
	n := byDefault
	if testing.Short() {
		n /= 20
	}
	if given, err := strconv.Atoi(os.Getenv("SIM_SEEDS")); err == nil {
		n = given
	}
	first := rand.Uint64() >> 16
	if given, err := strconv.ParseUint(os.Getenv("SIM_SEED"), 10, 64); err == nil {
		first, n = given, 1
	}
	t.Logf("%d worlds of %v, seeds from %d; repeat one with SIM_SEED", n, length, first)
	const lanes = 2
	t.Run("", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
				t.Parallel()
				for i := lane; i < n && !t.Failed(); i += lanes {
					playOne(t, first+uint64(i))
				}
			})
		}
	})
	totals.Lock()
	defer totals.Unlock()
	fmt.Printf("sim: %d worlds, %v of virtual time, %d calls of Do, %d effects\n", totals.worlds, time.Duration(totals.worlds)*length, totals.dos, totals.effects)
	for _, kind := range slices.Sorted(maps.Keys(totals.faults)) {
		fmt.Printf("sim: injected %7d × %v\n", totals.faults[kind], kind)
	}
}

func playOne(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		w := play(t, seed, fault{})
		totals.Lock()
		defer totals.Unlock()
		totals.worlds++
		totals.dos += w.dos
		for _, list := range w.auditor.effects {
			totals.effects += len(list)
		}
		if totals.faults == nil {
			totals.faults = map[storetest.FaultKind]int{}
		}
		for kind, n := range w.faults {
			totals.faults[kind] += n
		}
		if len(w.auditor.complaints) > 0 {
			t.Errorf("seed %d:\n  %s\n%s", seed, strings.Join(w.auditor.complaints, "\n  "), save(seed, w.auditor.trace, w.recording.steps))
		}
	})
}

// save keeps the trace of a world that failed, and the recording of its store, and says where. PROOF_ARTIFACTS names the folder; else it is a
// temporary one.
func save(seed uint64, trace []string, steps []step) string {
	dir := os.Getenv("PROOF_ARTIFACTS")
	if dir == "" {
		dir = os.TempDir()
	}
	name := filepath.Join(dir, fmt.Sprintf("sim-%d", seed))
	err := errors.Join(
		os.MkdirAll(dir, 0o755),
		os.WriteFile(name+".trace", []byte(strings.Join(trace, "\n")+"\n"), 0o600),
		os.WriteFile(name+".steps", encode(steps), 0o600),
	)
	if err != nil {
		return err.Error()
	}
	return "saved in " + name + ".trace and " + name + ".steps; SIM_REPLAY plays the latter again"
}
