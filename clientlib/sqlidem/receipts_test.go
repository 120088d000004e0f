package sqlidem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/sqlidem"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger/sqlstore/pgtest"
)

func TestWithReceiptsWorkRunsOnceAndEveryRetryGetsItsAnswer(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		g := w.guard(t)
		for _, want := range []clientlib.Outcome{clientlib.Executed, clientlib.Replayed, clientlib.Replayed} {
			result, err := g.do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{})
			if err != nil || result.Outcome != want || string(result.Response.Body) != "charged k" || result.Attempt != 1 || !result.Recorded {
				t.Errorf("%+v, %v", result, err)
			}
		}
		if _, err := g.do(t.Context(), "k", asked("b"), mustNotRun(t), sqlidem.ReceiptOptions{}); !errors.Is(err, clientlib.ErrKeyReused) {
			t.Error(err)
		}
		if n := w.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// The process dies after Begin and before it did anything.
func TestAnAttemptThatDiedBeforeTheWorkIsRunAgain(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		request := asked("a")
		_, err := w.ledger.Client(clientlib.Config{}).Begin(t.Context(), &idemv1.BeginRequest{
			Ref: &idemv1.EntryRef{Tenant: "acme", Operation: "charge", Key: "k"}, AttemptId: uuid.NewString(),
			Fingerprints: []*idemv1.Fingerprint{{Algorithm: request.Algorithm, Hash: request.Hash}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.ledger.LapseLease(ref("k"))
		result, err := w.guard(t).do(t.Context(), "k", request, claimed(charge("k")), sqlidem.ReceiptOptions{})
		if err != nil || result.Outcome != clientlib.Executed || result.Attempt != 2 || w.effects(t, "k") != 1 {
			t.Errorf("%+v, %v, %d effects", result, err, w.effects(t, "k"))
		}
	})
}

// The process dies after the commit and before its report.
func TestAReceiptSettlesTheEntryOfAnAttemptThatDied(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		w.crash(t, "k", claimed(charge("k")))
		g := w.guard(t)
		result, err := g.do(t.Context(), "k", asked("a"), mustNotRun(t), sqlidem.ReceiptOptions{})
		if err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "charged k" || !result.Recorded {
			t.Errorf("%+v, %v", result, err)
		}
		if age := time.Since(result.OriginalTime); age < -time.Minute || age > time.Minute {
			t.Errorf("the original is of %v", result.OriginalTime)
		}
		if got := w.condition("k"); got != idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED || w.effects(t, "k") != 1 {
			t.Errorf("%v, %d effects", got, w.effects(t, "k"))
		}
	})
}

func TestAFinalFailureIsInItsReceiptBeforeItIsReported(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		w.crash(t, "k", func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
			_, _ = charge("k")(ctx, tx)
			return clientlib.Response{}, status.Error(codes.FailedPrecondition, "no money")
		})
		for range 2 {
			result, err := w.guard(t).do(t.Context(), "k", asked("a"), mustNotRun(t), sqlidem.ReceiptOptions{})
			var failure *clientlib.ReplayedFailure
			if !errors.As(err, &failure) || result.Outcome != clientlib.ReplayedAsFailure || status.Code(err) != codes.FailedPrecondition || failure.GRPCStatus().Message() != "no money" {
				t.Errorf("%+v, %v", result, err)
			}
		}
		if got := w.condition("k"); got != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL || w.effects(t, "k") != 0 {
			t.Errorf("%v, %d effects", got, w.effects(t, "k"))
		}
	})
}

// stalledAttempt is an attempt at level 2 that stops in the middle of its transaction until it is told to go on.
func (w *world) stalledAttempt(t *testing.T, key string) (finish func() (clientlib.Result, error)) {
	t.Helper()
	begun, goOn := make(chan struct{}), make(chan struct{})
	type outcome struct {
		result clientlib.Result
		err    error
	}
	done := make(chan outcome, 1)
	var once sync.Once
	g := w.guard(t)
	go func() {
		result, err := g.do(context.Background(), key, asked("a"), func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
			err := tx.exec(ctx, "INSERT INTO effects (intent, note) VALUES ($1, 'by the one that stalled')", key)
			once.Do(func() { close(begun) })
			<-goOn
			return answer("by the one that stalled"), err
		}, sqlidem.ReceiptOptions{})
		done <- outcome{result, err}
	}()
	await(t, begun)
	w.ledger.LapseLease(ref(key))
	return func() (clientlib.Result, error) {
		close(goOn)
		out := await(t, done)
		return out.result, out.err
	}
}

// TestEachAttemptAfterTheFirstCommitsItsFenceBeforeItsWork, whatever the ones before it came to.
func TestEachAttemptAfterTheFirstCommitsItsFenceBeforeItsWork(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		g := w.guard(t)
		// The first one is known to have done nothing, the second one is abandoned.
		for attempt := int32(1); attempt <= 3; attempt++ {
			work := func(ctx context.Context, _ tx, claim clientlib.Claim) (clientlib.Response, error) {
				fence := w.count(t, "SELECT coalesce(max(fence), 0) FROM idem_receipts")
				if want := map[bool]int64{true: 0, false: claim.Fence}[attempt == 1]; int64(fence) != want || claim.Attempt != attempt {
					t.Errorf("attempt %d is at work behind fence %d, want %d", claim.Attempt, fence, want)
				}
				return clientlib.Response{}, errors.New("not now")
			}
			if attempt == 2 {
				w.crash(t, "k", work)
			} else if _, err := g.do(t.Context(), "k", asked("a"), work, sqlidem.ReceiptOptions{}); err == nil {
				t.Errorf("attempt %d was told success", attempt)
			}
		}
	})
}

// C76: attempt 1 stalls, attempt 2 fences and fails FINAL, attempt 1 wakes and commits: its transaction fails.
func TestC76AnAttemptThatWakesUpBehindAFenceFails(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		finish := w.stalledAttempt(t, "k")
		broke := status.Error(codes.FailedPrecondition, "no money")
		if _, err := w.guard(t).do(t.Context(), "k", asked("a"), func(context.Context, tx, clientlib.Claim) (clientlib.Response, error) {
			return clientlib.Response{}, clientlib.Final(broke)
		}, sqlidem.ReceiptOptions{}); !errors.Is(err, broke) {
			t.Fatalf("attempt 2: %v", err)
		}
		result, err := finish()
		// It is told what counts: the failure of attempt 2.
		var failure *clientlib.ReplayedFailure
		if !errors.As(err, &failure) || failure.Attempt != 2 || result.Outcome != clientlib.ReplayedAsFailure {
			t.Errorf("attempt 1: %+v, %v", result, err)
		}
		if n := w.effects(t, "k"); n != 0 {
			t.Errorf("%d effects", n)
		}
		if e := w.ledger.Entry(ref("k")); e.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL {
			t.Errorf("%v", e)
		}
	})
}

// The same where attempt 2 succeeds, and where it is still at work.
func TestAnAttemptThatWakesUpNeverHasASecondEffect(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		finish := w.stalledAttempt(t, "done")
		second, err := w.guard(t).do(t.Context(), "done", asked("a"), claimed(charge("done")), sqlidem.ReceiptOptions{})
		if err != nil || second.Outcome != clientlib.Executed || second.Attempt != 2 {
			t.Errorf("attempt 2: %+v, %v", second, err)
		}
		first, err := finish()
		if err != nil || first.Outcome != clientlib.Replayed || string(first.Response.Body) != "charged done" || w.effects(t, "done") != 1 {
			t.Errorf("attempt 1: %+v, %v, %d effects", first, err, w.effects(t, "done"))
		}

		finish = w.stalledAttempt(t, "running")
		begun, goOn, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(over)
			_, err := w.guard(t).do(context.Background(), "running", asked("a"), func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
				close(begun)
				<-goOn
				return charge("running")(ctx, tx)
			}, sqlidem.ReceiptOptions{})
			if err != nil {
				t.Errorf("attempt 2: %v", err)
			}
		}()
		await(t, begun)
		if result, err := finish(); !errors.Is(err, clientlib.ErrClaimLost) || status.Code(err) != codes.Aborted {
			t.Errorf("attempt 1, while attempt 2 is at work: %+v, %v", result, err)
		}
		close(goOn)
		await(t, over)
		if n := w.effects(t, "running"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

func TestAnErrorThatIsNotFinalIsKnownToHaveDoneNothing(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		broke := status.Error(codes.Internal, "broke")
		g := w.guard(t)
		result, err := g.do(t.Context(), "k", asked("a"), func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
			_, _ = charge("k")(ctx, tx)
			return clientlib.Response{}, broke
		}, sqlidem.ReceiptOptions{})
		if err != broke || result.Outcome != clientlib.Executed { //nolint:errorlint // as it is
			t.Errorf("%+v, %v", result, err)
		}
		if e := w.ledger.Entry(ref("k")); e.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE || e.GetDoubt() {
			t.Errorf("%v", e)
		}
		result, err = g.do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{})
		if err != nil || result.Outcome != clientlib.Executed || result.Attempt != 2 || w.effects(t, "k") != 1 {
			t.Errorf("%+v, %v, %d effects", result, err, w.effects(t, "k"))
		}
	})
}

// C05: under HOLD nothing is run again by itself; the receipt settles it, or says that nothing happened.
func TestC05AHeldEntryIsSettledByItsReceipt(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		_, err := w.ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
			Tenant: "acme", Operation: "charge", OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD, Lease: durationpb.New(time.Minute),
		}})
		if err != nil {
			t.Fatal(err)
		}
		w.crash(t, "done", claimed(charge("done")))
		w.crash(t, "not done", func(context.Context, tx, clientlib.Claim) (clientlib.Response, error) {
			return clientlib.Response{}, status.Error(codes.Internal, "broke")
		})
		for _, key := range []string{"done", "not done"} {
			if got := w.condition(key); got != idemv1.EntryCondition_ENTRY_CONDITION_HELD {
				t.Errorf("%s is %v", key, got)
			}
		}
		g := w.guard(t)
		if result, err := g.recover(t.Context(), "done"); err != nil || result.Outcome != clientlib.Replayed || string(result.Response.Body) != "charged done" {
			t.Errorf("recovered by a job: %+v, %v", result, err)
		}
		result, err := g.do(t.Context(), "not done", asked("a"), claimed(charge("not done")), sqlidem.ReceiptOptions{})
		if err != nil || result.Outcome != clientlib.Executed || w.effects(t, "not done") != 1 {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// C11, at level 2.
func TestC11ACommitOfUnknownOutcomeIsReadBackByItsFence(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		proxy := pgtest.NewProxy(t, w.url)
		g := guardOf(w.through(t, proxy), w.ledger.Client(clientlib.Config{}), 0)
		for i, f := range commitFaults {
			for _, attempt := range []int32{1, 2} {
				key := fmt.Sprint(i, attempt)
				if attempt == 2 {
					w.crash(t, key, func(context.Context, tx, clientlib.Claim) (clientlib.Response, error) {
						return clientlib.Response{}, errors.New("broke")
					})
				}
				runs := 0
				result, err := g.do(t.Context(), key, asked("a"), func(ctx context.Context, tx tx, _ clientlib.Claim) (clientlib.Response, error) {
					if runs++; runs == 1 {
						proxy.Arm(f.fault, w.commitText(), f.code, 1)
					}
					return charge(key)(ctx, tx)
				}, sqlidem.ReceiptOptions{})
				if err != nil || result.Outcome != clientlib.Executed || result.Attempt != attempt || string(result.Response.Body) != "charged "+key {
					t.Errorf("%s, attempt %d: %+v, %v", f.name, attempt, result, err)
				}
				if want := map[bool]int{true: 1, false: 2}[f.happened]; runs != want || w.effects(t, key) != 1 {
					t.Errorf("%s, attempt %d: run %d times, %d effects", f.name, attempt, runs, w.effects(t, key))
				}
			}
		}
	})
}

// While the service's own database is away nothing can be said about earlier attempts. That is no reason to bother an operator.
func TestAnAttemptThatCannotReadTheReceiptSaysThatTheStoreIsAway(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		w.crash(t, "k", claimed(charge("k")))
		proxy := pgtest.NewProxy(t, w.url)
		g := guardOf(w.through(t, proxy), w.ledger.Client(clientlib.Config{}), 0)
		proxy.Arm(pgtest.CutBefore, "idem:fence", "", -1)
		result, err := g.do(t.Context(), "k", asked("a"), mustNotRun(t), sqlidem.ReceiptOptions{})
		if !errors.Is(err, clientlib.ErrStoreUnavailable) || strings.Contains(err.Error(), "operator") || status.Code(err) != codes.Unavailable {
			t.Errorf("%+v, %v", result, err)
		}
		proxy.Disarm()
		if result, err := g.do(t.Context(), "k", asked("a"), mustNotRun(t), sqlidem.ReceiptOptions{}); err != nil || result.Outcome != clientlib.Replayed {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

func TestAReceiptOfAnotherRequestSettlesNothing(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		w.crash(t, "k", claimed(charge("k")))
		request := asked("b")
		_, err := w.ledger.Client(clientlib.Config{}).Begin(t.Context(), &idemv1.BeginRequest{
			Ref: &idemv1.EntryRef{Tenant: "acme", Operation: "charge", Key: "other"}, AttemptId: uuid.NewString(),
			Fingerprints: []*idemv1.Fingerprint{{Algorithm: request.Algorithm, Hash: request.Hash}},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.ledger.LapseLease(ref("other"))
		// As if a restore had mixed up the rows.
		execute(t, w.url, fmt.Sprintf("UPDATE idem_receipts SET key = 'other', incarnation = %[1]d, fence = %[1]d + 1", w.ledger.Entry(ref("other")).GetIncarnation()))
		if result, err := w.guard(t).do(t.Context(), "other", asked("b"), mustNotRun(t), sqlidem.ReceiptOptions{}); !errors.Is(err, clientlib.ErrKeyReused) {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// A receipt outlives its entry: it goes when the daemon has forgotten what it is for, and not before.
func TestAReceiptOutlivesItsEntry(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		g := guardOf(w.service(t), w.ledger.Client(clientlib.Config{}), time.Hour)
		must(g.do(t.Context(), "done", asked("a"), claimed(charge("done")), sqlidem.ReceiptOptions{}))
		w.crash(t, "left", claimed(charge("left")))
		sweep := func(when string, want sqlidem.Swept) {
			t.Helper()
			if swept, err := g.sweep(t.Context()); err != nil || swept != want {
				t.Errorf("%s: %+v, %v, want %+v", when, swept, err, want)
			}
		}
		sweep("at once", sqlidem.Swept{})
		w.advance(t, time.Hour)
		sweep("before the entries end", sqlidem.Swept{Examined: 1, Kept: 1}) // that of the other process is kept for longer
		w.advance(t, sqlidem.DefaultReceiptRetention)
		sweep("likewise", sqlidem.Swept{Examined: 2, Kept: 2})
		sweep("right after that", sqlidem.Swept{}) // nobody asks the daemon about them for a while
		w.ledger.Advance(8 * 24 * time.Hour)       // tombstones
		w.advance(t, sqlidem.DefaultReceiptRetention)
		sweep("while a late retry is recognised", sqlidem.Swept{Examined: 2, Kept: 2})
		w.ledger.Advance(8 * 24 * time.Hour) // forgotten
		w.advance(t, sqlidem.DefaultReceiptRetention)
		w.ledger.GoAway()
		if swept, err := g.sweep(shortly(t)); err == nil || swept.Forgotten != 0 {
			t.Errorf("while the daemon is away: %+v, %v", swept, err)
		}
		w.ledger.ComeBack()
		sweep("forgotten", sqlidem.Swept{Examined: 2, Forgotten: 2})
		if n := w.count(t, "SELECT count(*) FROM idem_receipts"); n != 0 {
			t.Errorf("%d receipts are left", n)
		}
	})
}

// shortly is a context for a call that is to fail.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// The receipt of an earlier life of the entry says nothing about the next one, and does not stand in its way.
func TestAReceiptOfAnEarlierLifeIsNoAnswer(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		must(w.guard(t).do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{}))
		w.ledger.Advance(15 * 24 * time.Hour)
		w.crash(t, "k", func(context.Context, tx, clientlib.Claim) (clientlib.Response, error) {
			return clientlib.Response{}, errors.New("broke")
		})
		result, err := w.guard(t).do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{})
		if err != nil || result.Outcome != clientlib.Executed || w.effects(t, "k") != 2 {
			t.Errorf("%+v, %v, %d effects in all", result, err, w.effects(t, "k"))
		}
	})
}

// An attempt of an earlier life of the entry, which wakes up when the entry was forgotten and begun anew, is not answered with what the next
// life did.
func TestAReceiptOfALaterLifeIsNoAnswerEither(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		w.crash(t, "k", func(context.Context, tx, clientlib.Claim) (clientlib.Response, error) {
			must(w.guard(t).do(t.Context(), "other", asked("a"), claimed(charge("other")), sqlidem.ReceiptOptions{}))
			// The receipt of the next life, as a daemon would have it whose entry is of this moment.
			execute(t, w.url, `UPDATE idem_receipts SET key = 'k', incarnation = incarnation + 1000000000000, fence = fence + 1000000000000`)
			return clientlib.Response{}, errors.New("it dies here")
		})
		result, err := w.guard(t).do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{})
		if !errors.Is(err, clientlib.ErrClaimLost) || w.effects(t, "k") != 0 {
			t.Errorf("%+v, %v, %d effects", result, err, w.effects(t, "k"))
		}
	})
}

// meddling is a connection on which something happens between a sweep's look at a receipt and its deletion.
type meddling struct {
	grpc.ClientConnInterface
	meddle func()
}

func (m meddling) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	err := m.ClientConnInterface.Invoke(ctx, method, request, reply, options...)
	if strings.HasSuffix(method, "/Lookup") {
		m.meddle()
	}
	return err
}

func TestASweepLeavesAReceiptThatWasWrittenAnewWhileItLooked(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		must(w.guard(t).do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{}))
		w.ledger.Advance(16 * 24 * time.Hour) // forgotten
		w.advance(t, sqlidem.DefaultReceiptRetention+time.Hour)
		client := must(clientlib.New(clientlib.Config{Conn: meddling{w.ledger.Conn(), func() {
			must(w.guard(t).do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{}))
		}}}))
		defer func() { _ = client.Close() }()
		if _, err := guardOf(w.service(t), client, 0).sweep(t.Context()); err != nil {
			t.Error(err)
		}
		if n := w.count(t, "SELECT count(*) FROM idem_receipts WHERE answer IS NOT NULL"); n != 1 {
			t.Errorf("%d receipts of the entry's next life are left", n)
		}
	})
}

func TestOf64ConcurrentDuplicatesWithReceiptsOneRuns(t *testing.T) {
	onEveryWorld(t, func(t *testing.T, w *world) {
		g := w.guard(t)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				<-start
				result, err := g.do(t.Context(), "k", asked("a"), claimed(charge("k")), sqlidem.ReceiptOptions{Wait: patience})
				if err != nil || string(result.Response.Body) != "charged k" {
					t.Errorf("%+v, %v", result, err)
				}
			})
		}
		close(start)
		wg.Wait()
		if n := w.effects(t, "k"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}
