package clientlib_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func bytesOf(text string) fingerprint.Fingerprint { return must(fingerprint.Bytes([]byte(text))) }

var ref = clientlib.Ref{Operation: "op", Key: "k"}

// counted is work that counts its effects.
func counted(effects *int, answer string) clientlib.Work {
	return func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		*effects++
		return clientlib.Response{Body: []byte(answer)}, nil
	}
}

func TestC10_ALostReplyOfBeginIsNoGrantLost(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	ledger.LoseReplies("Begin", 2)
	effects := 0
	result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil || result.Outcome != clientlib.Executed || result.Attempt != 1 || effects != 1 || ledger.Calls("Begin") != 3 {
		t.Errorf("%+v %v, %d effects, %d calls", result, err, effects, ledger.Calls("Begin"))
	}
}

func TestC12_ALostReplyOfCompleteIsSuccess(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	ledger.LoseReplies("Complete", 3)
	effects := 0
	for _, want := range []clientlib.Outcome{clientlib.Executed, clientlib.Replayed} {
		result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse()})
		if err != nil || result.Outcome != want || !result.Recorded || string(result.Response.Body) != "x" {
			t.Errorf("%+v %v", result, err)
		}
	}
	if effects != 1 {
		t.Errorf("%d effects", effects)
	}
}

func TestC14_CompleteFailsThreeTimes(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	ledger.LoseRequests("Complete", 3)
	effects := 0
	for _, want := range []clientlib.Outcome{clientlib.Executed, clientlib.Replayed} {
		result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Rerun()})
		if err != nil || result.Outcome != want {
			t.Errorf("%+v %v", result, err)
		}
	}
	if effects != 1 {
		t.Errorf("%d effects", effects)
	}
}

func TestC14_ARetryWhileTheOutcomeIsOnItsWayIsInProgress(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(clientlib.Config{SettleTimeout: time.Millisecond})
	ledger.LoseRequests("Complete", 3)
	effects := 0
	options := clientlib.Options{Abandoned: clientlib.Rerun()}
	if result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), options); err != nil || result.Recorded {
		t.Errorf("%+v %v", result, err)
	}
	result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), options)
	if err == nil && result.Outcome != clientlib.Replayed || err != nil && !errors.Is(err, clientlib.ErrInProgress) {
		t.Errorf("%+v %v", result, err)
	}
	if err := client.Close(); err != nil { // waits for the outcome
		t.Error(err)
	}
	if ledger.Entry(ref).GetState() != idemv1.EntryState_ENTRY_STATE_COMPLETED || effects != 1 {
		t.Errorf("%v, %d effects", ledger.Entry(ref), effects)
	}
}

func TestC15_TheCallerGoesAwayAfterTheEffect(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	ctx, cancel := context.WithCancel(t.Context())
	_, _ = client.Do(ctx, ref, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		cancel()
		return clientlib.Response{Body: []byte("x")}, nil
	}, clientlib.Options{Abandoned: clientlib.Refuse()})
	if answer := ledger.Entry(ref).GetAnswer(); string(answer.GetResponse().GetBody()) != "x" {
		t.Errorf("%v", answer)
	}
}

func TestACallerThatLeavesBeforeTheWorkLeavesNoDoubt(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ledger.LoseReplies("Begin", 1) // granted, and the caller's time is up before the resend
	effects := 0
	_, err := client.Do(ctx, ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse()})
	if err == nil || effects != 0 {
		t.Fatalf("%v, %d effects", err, effects)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	again := clientOf(t, ledger)
	result, err := again.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil || result.Outcome != clientlib.Executed {
		t.Errorf("%+v %v", result, err)
	}
}

func TestC02_AHeartbeatLearnsThatTheClaimIsLost(t *testing.T) {
	ledger := idemtest.New(t)
	a, b := clientOf(t, ledger), ledger.Client(clientlib.Config{})
	effects := 0
	result, err := a.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
		ledger.LapseLease(ref)
		other, err := b.Do(ctx, ref, bytesOf("a"), counted(&effects, "b's"), clientlib.Options{Abandoned: clientlib.Rerun()})
		if err != nil || other.Outcome != clientlib.Executed || other.Attempt != 2 {
			t.Errorf("%+v %v", other, err)
		}
		<-ctx.Done() // by the heartbeat at a third of a second
		if cause := context.Cause(ctx); !errors.Is(cause, clientlib.ErrClaimLost) {
			t.Errorf("cause: %v", cause)
		}
		return clientlib.Response{Body: []byte("a's")}, nil
	}, clientlib.Options{Abandoned: clientlib.Rerun(), Lease: time.Second})
	if err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "b's" {
		t.Errorf("%+v %v", result, err)
	}
	if body := ledger.Entry(ref).GetAnswer().GetResponse().GetBody(); string(body) != "b's" {
		t.Errorf("the answer is %q", body)
	}
}

func TestC02_WithoutAnAnswerTheCallerIsToldToAskAgain(t *testing.T) {
	ledger := idemtest.New(t)
	a, b := clientOf(t, ledger), ledger.Client(clientlib.Config{})
	var running sync.WaitGroup
	finish := make(chan struct{})
	_, err := a.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
		ledger.LapseLease(ref)
		started := make(chan struct{})
		running.Go(func() {
			_, err := b.Do(t.Context(), ref, bytesOf("a"), func(_ context.Context, claim clientlib.Claim) (clientlib.Response, error) {
				close(started)
				<-finish
				return clientlib.Response{}, nil
			}, clientlib.Options{Abandoned: clientlib.Rerun()})
			if err != nil {
				t.Error(err)
			}
		})
		<-started
		return clientlib.Response{Body: []byte("late")}, nil
	}, clientlib.Options{Abandoned: clientlib.Rerun()})
	e, ok := clientlib.AsError(err)
	if !ok || !errors.Is(err, clientlib.ErrClaimLost) || e.Code != codes.Aborted || e.RetryAfter == 0 {
		t.Errorf("%v", err)
	}
	if evidence := ledger.Entry(ref).GetEvidence(); string(evidence.GetCompleted().GetBody()) != "late" {
		t.Errorf("evidence: %v", evidence)
	}
	close(finish)
	running.Wait()
}

func TestC74_TheLedgerIsAwayForLongerThanALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := idemtest.New(t)
		client := clientOf(t, ledger)
		effects := 0
		options := clientlib.Options{Abandoned: clientlib.Rerun(), Lease: 10 * time.Second}
		result, err := client.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
			effects++
			ledger.LoseStore()
			<-time.After(30 * time.Second) // heartbeats fail; the lease is over by every clock
			ledger.Advance(30 * time.Second)
			if ctx.Err() != nil {
				t.Error("the work was cancelled although nobody took over")
			}
			return clientlib.Response{Body: []byte("x")}, nil
		}, options)
		if err != nil || result.Recorded || string(result.Response.Body) != "x" {
			t.Errorf("%+v %v", result, err)
		}
		<-time.After(time.Minute)
		ledger.Advance(time.Minute)
		ledger.FindStore()
		// A rival that comes at once is not granted: holders come back first.
		if _, err := clientOf(t, ledger).Do(t.Context(), ref, bytesOf("a"), counted(&effects, "y"), options); err != nil && !errors.Is(err, clientlib.ErrInProgress) {
			t.Error(err)
		}
		<-time.After(20 * time.Second)
		result, err = client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "y"), options)
		if err != nil || result.Outcome != clientlib.Replayed || effects != 1 {
			t.Errorf("%+v %v, %d effects", result, err, effects)
		}
	})
}

func TestAbandonedHasNoDefault(t *testing.T) {
	client := idemtest.New(t).Client(clientlib.Config{})
	effects := 0
	if _, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, ""), clientlib.Options{}); err == nil || effects != 0 {
		t.Errorf("%v, %d effects", err, effects)
	}
	if _, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, ""), clientlib.Options{Abandoned: clientlib.Recover(nil)}); err == nil {
		t.Error("Recover without a hook")
	}
}

// abandon leaves an attempt of which nobody knows what became.
func abandon(t testing.TB, client *clientlib.Client) {
	t.Helper()
	_, err := client.Do(t.Context(), ref, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		return clientlib.Response{}, status.Error(codes.Unavailable, "the connection broke")
	}, clientlib.Options{Abandoned: clientlib.Refuse()})
	if status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
}

func TestRefuse(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	abandon(t, client)
	effects := 0
	refuse := clientlib.Options{Abandoned: clientlib.Refuse()}
	for range 2 {
		result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), refuse)
		if !errors.Is(err, clientlib.ErrAbandoned) || result.Outcome != clientlib.Refused {
			t.Errorf("%+v %v", result, err)
		}
	}
	// An operator's word to run it once more counts.
	_, err := ledger.Admin().ResolveEntry(t.Context(), &idemv1.ResolveEntryRequest{
		Ref: &idemv1.EntryRef{Operation: ref.Operation, Key: ref.Key}, Attempt: ledger.Entry(ref).GetLatestAttempt(), Reason: "it did not happen",
		Resolution: &idemv1.ResolveEntryRequest_Release{Release: &idemv1.Release{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), refuse)
	if err != nil || result.Outcome != clientlib.Executed || effects != 1 {
		t.Errorf("%+v %v, %d effects", result, err, effects)
	}
}

func TestRerun(t *testing.T) {
	client := idemtest.New(t).Client(clientlib.Config{})
	abandon(t, client)
	result, err := client.Do(t.Context(), ref, bytesOf("a"), func(_ context.Context, claim clientlib.Claim) (clientlib.Response, error) {
		if !claim.PreviousAbandoned || claim.Attempt != 2 {
			t.Errorf("%+v", claim)
		}
		return clientlib.Response{}, nil
	}, clientlib.Options{Abandoned: clientlib.Rerun()})
	if err != nil || result.Outcome != clientlib.Executed {
		t.Errorf("%+v %v", result, err)
	}
}

func TestRecover(t *testing.T) {
	for name, c := range map[string]struct {
		finding clientlib.Finding
		hookErr error
		outcome clientlib.Outcome
		effects int
		state   idemv1.EntryCondition
		err     error
	}{
		"happened":       {clientlib.Happened(clientlib.Response{Body: []byte("then")}), nil, clientlib.Replayed, 0, idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED, nil},
		"did not happen": {clientlib.DidNotHappen(), nil, clientlib.Executed, 1, idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED, nil},
		"failed":         {clientlib.FailedFinally(errDeclined), nil, clientlib.ReplayedAsFailure, 0, idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL, errDeclined},
		"not known":      {clientlib.Finding{}, nil, clientlib.Refused, 0, idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED, clientlib.ErrAbandoned},
		"an error":       {clientlib.DidNotHappen(), errDeclined, clientlib.Refused, 0, idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED, errDeclined},
	} {
		for _, held := range []bool{false, true} {
			ledger := idemtest.New(t)
			client := clientOf(t, ledger)
			if held {
				policy := &idemv1.Policy{Tenant: "*", Operation: "*", OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD}
				if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: policy}); err != nil {
					t.Fatal(err)
				}
				ledger.Advance(time.Minute)
			}
			abandon(t, client)
			effects := 0
			result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "now"), clientlib.Options{
				Abandoned: clientlib.Recover(func(_ context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
					if claim.Ref != ref || claim.RecoverOnly != held {
						t.Errorf("%s: %+v", name, claim)
					}
					return c.finding, c.hookErr
				}),
			})
			want := c.state
			if held && want == idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED {
				want = idemv1.EntryCondition_ENTRY_CONDITION_HELD
			}
			if result.Outcome != c.outcome || effects != c.effects || !errors.Is(err, c.err) || ledger.Entry(ref).GetCondition() != want {
				t.Errorf("%s, held %v: %+v %v, %d effects, %v", name, held, result, err, effects, ledger.Entry(ref).GetCondition())
			}
		}
	}
}

var errDeclined = errors.New("declined")

func TestClientRecover(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	if _, err := client.Recover(t.Context(), ref, nil); err == nil {
		t.Error("no hook")
	}
	unsure := func(context.Context, clientlib.Claim) (clientlib.Finding, error) { return clientlib.Finding{}, nil }
	if _, err := client.Recover(t.Context(), ref, unsure); !errors.Is(err, clientlib.ErrEntryNotFound) {
		t.Error(err)
	}
	abandon(t, client)
	result, err := client.Recover(t.Context(), ref, func(context.Context, clientlib.Claim) (clientlib.Finding, error) {
		return clientlib.DidNotHappen(), nil
	})
	entry := ledger.Entry(ref)
	if err != nil || result.Outcome != clientlib.Refused || entry.GetDoubt() || entry.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE {
		t.Errorf("%+v %v %v", result, err, entry)
	}
}

func TestWaitingEndsWithTheAnswer(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	var waiting sync.WaitGroup
	effects := 0
	_, err := client.Do(t.Context(), ref, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		options := clientlib.Options{Abandoned: clientlib.Refuse()}
		busy, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "no"), options)
		e, _ := clientlib.AsError(err)
		if !errors.Is(err, clientlib.ErrInProgress) || busy.Outcome != clientlib.InProgress || e.Code != codes.Aborted || e.RetryAfter <= 0 || !e.FromServer {
			t.Errorf("%+v %v", busy, err)
		}
		options.Wait = 20 * time.Second
		waiting.Go(func() {
			result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "no"), options)
			if err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "x" {
				t.Errorf("%+v %v", result, err)
			}
		})
		return clientlib.Response{Body: []byte("x")}, nil
	}, clientlib.Options{Abandoned: clientlib.Refuse()})
	if err != nil {
		t.Error(err)
	}
	waiting.Wait()
	if effects != 0 {
		t.Errorf("%d effects", effects)
	}
}

func TestSelfTest(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	if err := client.SelfTest(t.Context()); err != nil {
		t.Error(err)
	}
	ledger.GoAway()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := client.SelfTest(ctx); err == nil {
		t.Error("the self-test passes without a ledger")
	}
}

func TestFailOpenTellsTheLedgerLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := idemtest.New(t)
		client := clientOf(t, ledger)
		ledger.GoAway()
		effects := 0
		options := clientlib.Options{Abandoned: clientlib.Refuse(), FailOpen: true}
		result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), options)
		if err != nil || result.Outcome != clientlib.Bypassed || effects != 1 {
			t.Errorf("%+v %v", result, err)
		}
		options.FailOpen = false
		if _, err := client.Do(t.Context(), clientlib.Ref{Operation: "op", Key: "other"}, bytesOf("a"), counted(&effects, "x"), options); !errors.Is(err, clientlib.ErrLedgerUnavailable) || status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
		ledger.ComeBack()
		<-time.After(5 * time.Second)
		result, err = client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), options)
		if err != nil || result.Outcome != clientlib.Replayed || effects != 1 {
			t.Errorf("%+v %v, %d effects", result, err, effects)
		}
	})
}

func TestACallThatWasNeverMadeLeavesNoTrace(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	effects := 0
	_, err := client.Do(ctx, ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse()})
	if status.Code(err) != codes.Canceled || effects != 0 {
		t.Error(err)
	}
	if err := client.Close(); err != nil || ledger.Calls("Begin") != 0 {
		t.Errorf("%v, %d Begins", err, ledger.Calls("Begin"))
	}
}

func TestFailOpenLeavesTimeForTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := idemtest.New(t)
		client := clientOf(t, ledger)
		ledger.GoAway()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		effects := 0
		result, err := client.Do(ctx, ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse(), FailOpen: true})
		if err != nil || result.Outcome != clientlib.Bypassed || effects != 1 || ctx.Err() != nil {
			t.Errorf("%+v %v", result, err)
		}
		ledger.ComeBack()
	})
}

// What no message can carry is refused by its rule at once, and not taken for a ledger that is away.
func TestANameThatIsNotUTF8IsRefused(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	for reason, ref := range map[clientlib.Reason]clientlib.Ref{
		clientlib.ReasonInvalidKey: {Operation: "op", Key: "\xff"}, clientlib.ReasonInvalidOperation: {Operation: "\xff", Key: "k"},
		clientlib.ReasonInvalidTenant: {Operation: "op", Key: "k", Tenant: "\xff"},
	} {
		effects := 0
		_, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Rerun(), FailOpen: true})
		e, ok := clientlib.AsError(err)
		if !ok || e.Reason != reason || e.Code != codes.InvalidArgument || !strings.Contains(e.Rule, "UTF-8") || effects != 0 {
			t.Errorf("%q: %v, %d effects", ref, err, effects)
		}
		if _, err := client.Lookup(t.Context(), ref); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", ref, err)
		}
	}
	if n := ledger.Calls("Begin"); n != 0 {
		t.Errorf("%d Begins", n)
	}
}

// A report is not lost over text that no message can carry.
func TestTextThatIsNotUTF8IsLeftOutOfReports(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	options := clientlib.Options{Abandoned: clientlib.Refuse()}
	quoting := func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		return clientlib.Response{}, status.Error(codes.NotFound, "no user caf\xe9")
	}
	if result, err := client.Do(t.Context(), ref, bytesOf("a"), quoting, options); status.Convert(err).Message() != "no user caf\xe9" || !result.Recorded {
		t.Errorf("%+v %v", result, err)
	}
	_, err := client.Do(t.Context(), ref, bytesOf("a"), quoting, options)
	var replayed *clientlib.ReplayedFailure
	if !errors.As(err, &replayed) || replayed.GRPCStatus().Message() != "no user caf\ufffd" || replayed.OriginalTime.IsZero() {
		t.Errorf("%v", err)
	}
	other := clientlib.Ref{Operation: "op", Key: "other"}
	result, err := client.Do(t.Context(), other, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
		return clientlib.Response{
			Body: []byte("caf\xe9"), ContentType: "text/\xe9", ResourceType: "charge", ResourceID: "\xe9", Code: 7,
			Metadata: []clientlib.MetadataPair{{Name: "\xe9", Value: []byte("\xe9")}},
		}, nil
	}, options)
	if err != nil || !result.Recorded {
		t.Errorf("%+v %v", result, err)
	}
	kept := ledger.Entry(other).GetAnswer().GetResponse()
	if string(kept.GetBody()) != "caf\xe9" || kept.GetCode() != 7 || kept.GetContentType()+kept.GetResourceType()+kept.GetResourceId() != "" {
		t.Errorf("%v", kept)
	}
}

// While a service moves from one algorithm to the next it sends both, and meets entries of either.
func TestTwoFingerprintsOfOneRequest(t *testing.T) {
	client := idemtest.New(t).Client(patient)
	other := func(text string) fingerprint.Fingerprint {
		f := bytesOf(text)
		f.Algorithm = "my-own-v2"
		return f
	}
	effects := 0
	do := func(first, second fingerprint.Fingerprint) (clientlib.Result, error) {
		return client.Do(t.Context(), ref, first, counted(&effects, "x"), clientlib.Options{Abandoned: clientlib.Refuse(), OtherFingerprint: second})
	}
	none := fingerprint.Fingerprint{}
	if _, err := do(bytesOf("a"), none); err != nil {
		t.Fatal(err)
	}
	if result, err := do(other("a"), bytesOf("a")); err != nil || result.Outcome != clientlib.Replayed {
		t.Errorf("%+v %v", result, err)
	}
	if _, err := do(other("a"), none); !errors.Is(err, clientlib.ErrHashIncomparable) {
		t.Error(err)
	}
	if _, err := do(other("a"), bytesOf("b")); !errors.Is(err, clientlib.ErrKeyReused) || effects != 1 {
		t.Errorf("%v, %d effects", err, effects)
	}
}

// An operator who settles an entry by force while its work runs has the last word.
func TestAnOperatorSettlesWhileTheWorkRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, listens := range []bool{true, false} {
			ledger := idemtest.New(t)
			client := clientOf(t, ledger)
			result, err := client.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, claim clientlib.Claim) (clientlib.Response, error) {
				_, err := ledger.Admin().ResolveEntry(t.Context(), &idemv1.ResolveEntryRequest{
					Ref: &idemv1.EntryRef{Operation: ref.Operation, Key: ref.Key}, Attempt: claim.Attempt, Reason: "it hangs", Force: true,
					Resolution: &idemv1.ResolveEntryRequest_Complete{Complete: &idemv1.Response{Body: []byte("by hand")}},
				})
				if err != nil {
					t.Error(err)
				}
				if listens {
					<-ctx.Done() // by the next heartbeat
					if cause := context.Cause(ctx); !errors.Is(cause, clientlib.ErrAlreadySettled) {
						t.Errorf("cause: %v", cause)
					}
				}
				return clientlib.Response{Body: []byte("late")}, nil
			}, clientlib.Options{Abandoned: clientlib.Rerun()})
			if err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "by hand" || result.Attempt != 0 {
				t.Errorf("%+v %v", result, err)
			}
		}
	})
}

// The work's context is the work's: what it left running learns that it is over.
func TestTheWorksContextEndsWithTheWork(t *testing.T) {
	client := idemtest.New(t).Client(patient)
	var kept context.Context
	_, err := client.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
		kept = ctx
		return clientlib.Response{}, nil
	}, clientlib.Options{Abandoned: clientlib.Rerun()})
	if err != nil || kept.Err() == nil {
		t.Errorf("%v; the context's error is %v", err, kept.Err())
	}
}

// runtime.Goexit, as t.FailNow calls it, gives the claim up as a panic does.
func TestWorkThatLeavesByGoexitGivesTheClaimUp(t *testing.T) {
	ledger := idemtest.New(t)
	client := clientOf(t, ledger)
	var gone sync.WaitGroup
	gone.Go(func() {
		_, _ = client.Do(t.Context(), ref, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
			runtime.Goexit()
			return clientlib.Response{}, nil
		}, clientlib.Options{Abandoned: clientlib.Refuse()})
	})
	gone.Wait()
	if entry := ledger.Entry(ref); entry.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED || entry.GetHasCurrentAttempt() {
		t.Errorf("%v", entry)
	}
}

func TestAHooksPanicGivesTheClaimUp(t *testing.T) {
	for _, policy := range []idemv1.OnAbandoned{idemv1.OnAbandoned_ON_ABANDONED_RECLAIM, idemv1.OnAbandoned_ON_ABANDONED_HOLD} {
		ledger := idemtest.New(t)
		client := clientOf(t, ledger)
		if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{
			Policy: &idemv1.Policy{Tenant: "*", Operation: "*", OnAbandoned: policy},
		}); err != nil {
			t.Fatal(err)
		}
		ledger.Advance(time.Minute)
		abandon(t, client)
		effects := 0
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not go on")
				}
			}()
			_, _ = client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{
				Abandoned: clientlib.Recover(func(context.Context, clientlib.Claim) (clientlib.Finding, error) { panic("boom") }),
			})
		}()
		if entry := ledger.Entry(ref); entry.GetHasCurrentAttempt() || !entry.GetDoubt() || effects != 0 {
			t.Errorf("%v: %v, %d effects", policy, entry, effects)
		}
	}
}

// Sixty-four at once, in one process, have one effect; every one of them gets the one answer.
func TestManyAtOnceHaveOneEffect(t *testing.T) {
	client := idemtest.New(t).Client(patient)
	var effects atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			result, err := client.Do(t.Context(), ref, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
				effects.Add(1)
				return clientlib.Response{Body: []byte("x")}, nil
			}, clientlib.Options{Abandoned: clientlib.Refuse(), Wait: time.Minute})
			if err != nil || string(result.Response.Body) != "x" {
				t.Errorf("%+v %v", result, err)
			}
		})
	}
	all.Wait()
	if n := effects.Load(); n != 1 {
		t.Errorf("%d effects", n)
	}
}
