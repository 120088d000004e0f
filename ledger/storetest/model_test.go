package storetest_test

import (
	"testing"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// start is where clocks of tests stand at first: 2026-01-01 in UTC.
const start ledger.Time = 1_767_225_600_000_000

// modelFactory opens a model of two handles. It outlives a reopening, as what is tested here is the suite, not a disk.
func modelFactory(tb testing.TB) *storetest.Backend {
	tb.Helper()
	clock := storetest.NewClock(start)
	model := storetest.NewModel(clock, 0)
	same := func(testing.TB) ledger.Store { return model }
	return &storetest.Backend{
		Store: model, Clock: clock, Another: same, Reopen: same,
		Residue: func(testing.TB) int { return model.Len() },
	}
}

func TestModelDoesWhatAStoreMustDo(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Factory{Open: modelFactory})
}
