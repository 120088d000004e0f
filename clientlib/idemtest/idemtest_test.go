package idemtest_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFaults(t *testing.T) {
	ledger := idemtest.New(t)
	calls := idemv1.NewLedgerServiceClient(ledger.Conn())
	lookup := func() codes.Code {
		_, err := calls.Lookup(t.Context(), &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Operation: "op", Key: "none"}})
		return status.Code(err)
	}
	expect := func(what string, want codes.Code) {
		t.Helper()
		if got := lookup(); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	expect("all is well", codes.NotFound)
	ledger.GoAway()
	expect("away", codes.Unavailable)
	ledger.ComeBack()
	ledger.LoseRequests("Lookup", 1)
	expect("a request is lost", codes.Unavailable)
	expect("the next is not", codes.NotFound)
	ledger.LoseStore()
	expect("the store is away", codes.Unavailable)
	ledger.FindStore()
	expect("it is back", codes.NotFound)
	if n := ledger.Calls("Lookup"); n != 6 {
		t.Errorf("%d calls", n)
	}
}

func TestLeasesLapseAndTimePasses(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(clientlib.Config{})
	asked, err := fingerprint.Bytes([]byte("a"))
	if err != nil {
		t.Fatal(err)
	}
	ref := clientlib.Ref{Operation: "op", Key: "k"}
	_, err = client.Do(t.Context(), ref, asked, func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		if got := ledger.Entry(ref).GetCondition(); got != idemv1.EntryCondition_ENTRY_CONDITION_LIVE {
			t.Errorf("%v", got)
		}
		ledger.LapseLease(ref)
		if got := ledger.Entry(ref).GetCondition(); got != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED {
			t.Errorf("%v", got)
		}
		return clientlib.Response{}, nil
	}, clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil {
		t.Error(err)
	}
	ledger.Advance(8 * 24 * time.Hour)
	if got := ledger.Entry(ref).GetCondition(); got != idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED {
		t.Errorf("%v", got)
	}
}
