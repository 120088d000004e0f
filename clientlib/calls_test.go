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
	client := clientOf(t, ledger)
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

// C13: an attempt id that arrives late, whatever became of its attempt, is never granted again.
func TestC13_AnAttemptIDThatArrivesLate(t *testing.T) {
	ctx := t.Context()
	fail := func(client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, d idemv1.Disposition) error {
		_, err := client.Fail(ctx, &idemv1.FailRequest{
			Ref: r, ClaimToken: claim.GetClaimToken(), Status: &spb.Status{Code: 14, Message: "broke"}, Disposition: d,
		})
		return err
	}
	for name, c := range map[string]struct {
		// meanwhile is what becomes of the attempt; next begins another one.
		meanwhile func(ledger *idemtest.Ledger, client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, next func() *idemv1.Claim) error
		completed bool  // the late one is told the answer,
		failed    bool  // or the failure,
		refused   error // or is refused so
	}{
		"after its completion": {
			meanwhile: func(_ *idemtest.Ledger, client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, _ func() *idemv1.Claim) error {
				_, err := client.Complete(ctx, &idemv1.CompleteRequest{Ref: r, ClaimToken: claim.GetClaimToken(), Response: &idemv1.Response{Body: []byte("x")}})
				return err
			},
			completed: true,
		},
		"after its retryable failure": {
			meanwhile: func(_ *idemtest.Ledger, client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, _ func() *idemv1.Claim) error {
				return fail(client, r, claim, idemv1.Disposition_DISPOSITION_RETRYABLE)
			},
			failed: true,
		},
		"after another attempt followed that": {
			meanwhile: func(_ *idemtest.Ledger, client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, next func() *idemv1.Claim) error {
				err := fail(client, r, claim, idemv1.Disposition_DISPOSITION_RETRYABLE)
				next()
				return err
			},
			refused: clientlib.ErrClaimLost,
		},
		"after it was given up": {
			meanwhile: func(_ *idemtest.Ledger, client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, _ func() *idemv1.Claim) error {
				return fail(client, r, claim, idemv1.Disposition_DISPOSITION_UNKNOWN)
			},
			refused: clientlib.ErrClaimLost,
		},
		"after it was taken over": {
			meanwhile: func(ledger *idemtest.Ledger, _ *clientlib.Client, _ *idemv1.EntryRef, _ *idemv1.Claim, next func() *idemv1.Claim) error {
				ledger.LapseLease(ref)
				next()
				return nil
			},
			refused: clientlib.ErrClaimLost,
		},
		"after its tombstone's beginning": {
			meanwhile: func(ledger *idemtest.Ledger, client *clientlib.Client, r *idemv1.EntryRef, claim *idemv1.Claim, _ func() *idemv1.Claim) error {
				_, err := client.Complete(ctx, &idemv1.CompleteRequest{Ref: r, ClaimToken: claim.GetClaimToken(), Response: &idemv1.Response{}})
				ledger.Advance(8 * 24 * time.Hour)
				return err
			},
			refused: clientlib.ErrExpired,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := idemtest.New(t)
			client := ledger.Client(patient)
			asked := bytesOf("a")
			begin := func(id string) *idemv1.BeginRequest {
				return &idemv1.BeginRequest{
					Ref: &idemv1.EntryRef{Operation: ref.Operation, Key: ref.Key}, AttemptId: id,
					Fingerprints: []*idemv1.Fingerprint{{Algorithm: asked.Algorithm, Hash: asked.Hash}},
				}
			}
			next := func() *idemv1.Claim {
				response, err := client.Begin(ctx, begin(uuid.NewString()))
				if err != nil || response.GetGranted().GetAttempt() != 2 {
					t.Fatal(response, err)
				}
				return response.GetGranted()
			}
			late := begin(uuid.NewString())
			first, err := client.Begin(ctx, late)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.meanwhile(ledger, client, late.GetRef(), first.GetGranted(), next); err != nil {
				t.Fatal(err)
			}
			got, err := client.Begin(ctx, late)
			if got.GetGranted() != nil || !errors.Is(err, c.refused) || (got.GetFailed() != nil) != c.failed || (got.GetCompleted() != nil) != c.completed {
				t.Errorf("%v %v", got, err)
			}
		})
	}
}
