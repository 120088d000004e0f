package ledger_test

import (
	"testing"

	"github.com/idemd/idemd/ledger"
)

func TestAPolicyThatKeepsNoContentKeepsNoneOfAFailureEither(t *testing.T) {
	t.Parallel()
	failure := &ledger.Failure{
		Code: 9, Message: "card 4242 declined", Disposition: ledger.Final,
		Details: []ledger.Detail{{TypeURL: "type.googleapis.com/bank.Decline", Value: []byte("4242")}},
	}
	for _, c := range []struct {
		store   ledger.StoreResponse
		message string
		details int
		omitted bool
	}{
		{ledger.StoreFull, "card 4242 declined", 1, false},
		{ledger.StorePointer, "card 4242 declined", 0, true},
		{ledger.StoreNone, "", 0, true},
	} {
		policy := ledger.Policy{Tenant: "*", Operation: "*", StoreResponse: c.store}
		kept := policy.Rules(ledger.Clamp{}).TrimFailure(failure)
		if kept.Code != 9 || kept.Message != c.message || len(kept.Details) != c.details || kept.DetailsOmitted != c.omitted {
			t.Errorf("store_response %d kept %+v", c.store, kept)
		}
	}
	if len(failure.Details) != 1 || failure.DetailsOmitted {
		t.Error("trimming changed the report itself")
	}
}
