package clientlib_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// The calls themselves, for callers that guard by hand: every one may be resent.
func TestC13_CallsByHand(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(clientlib.Config{})
	asked := bytesOf("a")
	begin := &idemv1.BeginRequest{
		Ref: &idemv1.EntryRef{Operation: ref.Operation, Key: ref.Key}, AttemptId: uuid.NewString(),
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: asked.Algorithm, Hash: asked.Hash}},
	}
	for _, rpc := range []string{"Begin", "Extend", "Complete", "Lookup"} {
		ledger.LoseReplies(rpc, 1)
	}
	granted, err := client.Begin(t.Context(), begin)
	if err != nil || granted.GetGranted() == nil {
		t.Fatal(granted, err)
	}
	token := granted.GetGranted().GetClaimToken()
	if _, err := client.Extend(t.Context(), &idemv1.ExtendRequest{Ref: begin.GetRef(), ClaimToken: token, Lease: durationpb.New(time.Minute)}); err != nil {
		t.Error(err)
	}
	completed, err := client.Complete(t.Context(), &idemv1.CompleteRequest{Ref: begin.GetRef(), ClaimToken: token, Response: &idemv1.Response{}})
	if err != nil || !completed.GetResent() {
		t.Errorf("%v %v", completed, err)
	}
	again, err := client.Begin(t.Context(), begin)
	if err != nil || again.GetCompleted() == nil {
		t.Errorf("the attempt id was granted again, or not answered: %v %v", again, err)
	}
	_, err = client.Fail(t.Context(), &idemv1.FailRequest{
		Ref: begin.GetRef(), ClaimToken: token, Status: &spb.Status{Code: 5}, Disposition: idemv1.Disposition_DISPOSITION_FINAL,
	})
	if !errors.Is(err, clientlib.ErrAlreadySettled) {
		t.Error(err)
	}
	if entry, err := client.Lookup(t.Context(), ref); err != nil || entry.GetState() != idemv1.EntryState_ENTRY_STATE_COMPLETED {
		t.Errorf("%v %v", entry, err)
	}
}
