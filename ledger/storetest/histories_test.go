package storetest_test

import (
	"testing"

	"github.com/idemd/idemd/ledger/storetest"
)

func TestHistoriesAgreeOnTwoModels(t *testing.T) {
	t.Parallel()
	storetest.Histories(t, storetest.Factory{Open: openModel}, 200)
}
