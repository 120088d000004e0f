package linear

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	pgtest.Stop()
	programs.real.Remove()
	programs.skewed.Remove()
	fmt.Printf("linear: %d histories of %d calls, %d of unknown outcome; %d sent on streams; %d takeovers, %d calls of operators; undecided %d\n",
		totals.histories.Load(), totals.operations.Load(), totals.unknown.Load(), totals.streamed.Load(), totals.takeovers.Load(), totals.operators.Load(), totals.undecided.Load())
	for _, kind := range slices.Sorted(maps.Keys(injected.by)) {
		fmt.Printf("linear: injected %6d × %s\n", injected.by[kind], kind)
	}
	os.Exit(code)
}
