package clientlib

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// awayFor answers all but Begin only after a while.
func awayFor(d time.Duration) func(context.Context, int, proto.Message) (proto.Message, error) {
	began := time.Now()
	return func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		if _, ok := request.(*idemv1.BeginRequest); !ok && time.Since(began) < d {
			return nil, away
		}
		return grant(request, time.Minute), nil
	}
}

func TestAnOutcomeIsRecordedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, awayFor(5*time.Minute))
		began := time.Now()
		result, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun)
		if err != nil || result.Recorded || result.Outcome != Executed || string(result.Response.Body) != "x" {
			t.Errorf("%+v %v", result, err)
		}
		if took := time.Since(began); took > DefaultSettleTimeout {
			t.Errorf("the caller waited %v", took)
		}
		<-time.After(6 * time.Minute) // past the lease, five times over
		reports := s.of("Complete")
		if last := reports[len(reports)-1].at.Sub(began); last < 5*time.Minute || last > 5*time.Minute+resendMax {
			t.Errorf("the last report was sent after %v", last)
		}
		if len(s.of("Fail")) != 0 || len(s.of("Begin")) != 1 {
			t.Error("a success was turned into something else")
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestBackgroundRecordingHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, awayFor(time.Hour))
		if _, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil {
			t.Error(err)
		}
		began := time.Now()
		<-time.After(30 * time.Minute)
		reports := s.of("Complete")
		if last := reports[len(reports)-1].at.Sub(began); last > DefaultSettleLimit {
			t.Errorf("still at it after %v", last)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseWaitsForOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			away time.Duration
			ok   bool
		}{{6 * time.Second, true}, {time.Minute, false}} {
			client, s := scriptedClient(t, Config{}, awayFor(c.away))
			if _, err := client.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil {
				t.Error(err)
			}
			began := time.Now()
			err := client.Close()
			if (err == nil) != c.ok || time.Since(began) > DefaultCloseTimeout+time.Millisecond {
				t.Errorf("away for %v: %v after %v, %d reports", c.away, err, time.Since(began), len(s.of("Complete")))
			}
		}
	})
}

func TestTheBackgroundIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := scriptedClient(t, Config{MaxBackground: 2}, awayFor(time.Hour))
		for i := range 3 {
			if result, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil || result.Recorded {
				t.Errorf("%d: %+v %v", i, result, err)
			}
		}
		if c.background != 2 {
			t.Errorf("%d in the background", c.background)
		}
		if err := c.Close(); err == nil {
			t.Error("Close says nothing of what was lost")
		}
	})
}

func TestACallerWhoLeavesAnAwayLedgerDoesNotHoldCloseUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := scriptedClient(t, Config{}, func(context.Context, int, proto.Message) (proto.Message, error) { return nil, away })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Do(ctx, testRef, testPrint(t), respond("x"), rerun)
		if e, ok := AsError(err); !ok || e.FromServer {
			t.Errorf("%v", err)
		}
		began := time.Now()
		if err := c.Close(); err != nil || time.Since(began) > DefaultSettleTimeout+resendMax {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestAReportThatIsNotTakenIsSentWithLess(t *testing.T) {
	tooLarge := status.Error(codes.ResourceExhausted, "grpc: received message larger than max")
	invalid := (&Error{Code: codes.InvalidArgument, Reason: ReasonInvalidReport}).GRPCStatus().Err()
	for name, c := range map[string]struct {
		refusals []error
		sends    int
	}{"too large": {[]error{tooLarge}, 2}, "too large, then invalid": {[]error{tooLarge, invalid}, 3}, "never": {[]error{invalid, invalid, invalid, invalid}, 3}} {
		client, s := scriptedClient(t, Config{}, func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.CompleteRequest); ok && n < len(c.refusals) {
				return nil, c.refusals[n]
			}
			return grant(request, time.Minute), nil
		})
		result, err := client.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			return Response{Body: []byte("body"), ContentType: "text/plain", ResourceType: "charge", ResourceID: "ch_1"}, nil
		}, rerun)
		sent := s.of("Complete")
		if err != nil || string(result.Response.Body) != "body" || len(sent) != c.sends {
			t.Errorf("%s: %+v %v, %d sent", name, result, err, len(sent))
		}
		second, _ := sent[1].request.(*idemv1.CompleteRequest)
		if r := second.GetResponse(); !r.GetBodyOmitted() || r.GetBodySizeBytes() != 4 || len(r.GetBodySha256()) != 32 || r.GetResourceId() != "ch_1" {
			t.Errorf("%s: %v", name, second)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A limit of rate passes, and what was left out of a report for it would be lost. One that does not pass may be one of size after all.
func TestAReportKeepsItsBodyThroughALimitOfRate(t *testing.T) {
	for limited, keeps := range map[int]bool{1: true, oddTries: true, oddTries + 1: false} {
		synctest.Test(t, func(t *testing.T) {
			refused := 0
			client, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
				if _, ok := request.(*idemv1.CompleteRequest); ok && refused < limited {
					refused++
					return nil, status.Error(codes.ResourceExhausted, "429 (Too Many Requests)")
				}
				return grant(request, time.Minute), nil
			})
			if _, err := client.Do(t.Context(), testRef, testPrint(t), respond("body"), rerun); err != nil {
				t.Error(err)
			}
			sent := s.of("Complete")
			last, _ := sent[len(sent)-1].request.(*idemv1.CompleteRequest)
			if len(sent) != limited+1 || last.GetResponse().GetBodyOmitted() == keeps {
				t.Errorf("turned away %d times: %d sent, the last one %v", limited, len(sent), last)
			}
			if err := client.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFailuresFitTheMessageLimit(t *testing.T) {
	client, s := scriptedClient(t, Config{MaxMessageBytes: minMessageBytes}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		return grant(request, time.Minute), nil
	})
	for name, p := range map[string]*spb.Status{
		"details": {Code: 5, Message: "gone", Details: []*anypb.Any{{TypeUrl: "x/y", Value: make([]byte, minMessageBytes)}}},
		"message": {Code: 5, Message: strings.Repeat("x", minMessageBytes)},
	} {
		_, err := client.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			return Response{}, status.FromProto(p).Err()
		}, rerun)
		if !proto.Equal(status.Convert(err).Proto(), p) {
			t.Errorf("%s: the caller gets another error", name)
		}
		reports := s.of("Fail")
		sent, _ := reports[len(reports)-1].request.(*idemv1.FailRequest)
		if !sent.GetDetailsOmitted() || proto.Size(sent) > minMessageBytes || sent.GetStatus().GetCode() != 5 {
			t.Errorf("%s: %d bytes", name, proto.Size(sent))
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestALedgersStatusIsNotStored(t *testing.T) {
	client, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		return grant(request, time.Minute), nil
	})
	downstream := (&Error{Code: codes.FailedPrecondition, Reason: ReasonKeyReused, Message: "secret of another ledger"}).GRPCStatus().Err()
	_, err := client.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) { return Response{}, downstream }, rerun)
	if !errors.Is(err, downstream) {
		t.Errorf("%v", err)
	}
	sent, _ := s.of("Fail")[0].request.(*idemv1.FailRequest)
	if sent.GetDisposition() != idemv1.Disposition_DISPOSITION_UNKNOWN || len(sent.GetStatus().GetDetails()) != 0 || strings.Contains(sent.String(), "secret") {
		t.Errorf("%v", sent)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestATimeThatIsUpBeforeTheFirstReportIsNoReasonToDropIt(t *testing.T) {
	client, s := scriptedClient(t, Config{SettleTimeout: time.Nanosecond}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		return grant(request, time.Minute), nil
	})
	if result, err := client.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil || result.Recorded {
		t.Errorf("%+v %v", result, err)
	}
	if err := client.Close(); err != nil || len(s.of("Complete")) != 1 {
		t.Errorf("%v, %d reports", err, len(s.of("Complete")))
	}
}

// The caller gets its answer back and may do with it what it likes, while the report still waits for the ledger.
func TestWhatWaitsInTheBackgroundIsACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, awayFor(time.Minute))
		result, err := c.Do(t.Context(), testRef, testPrint(t), respond("as it was"), rerun)
		if err != nil {
			t.Fatal(err)
		}
		copy(result.Response.Body, "changed !")
		<-time.After(2 * time.Minute)
		reports := s.of("Complete")
		last, _ := reports[len(reports)-1].request.(*idemv1.CompleteRequest)
		if got := string(last.GetResponse().GetBody()); got != "as it was" {
			t.Errorf("reported %q", got)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Past 64 MiB outcomes wait without their bodies, and what is recorded makes room again.
func TestWhatWaitsInTheBackgroundIsBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// With no time for a report before the caller gets its answer, all of them wait in the background.
		c, s := scriptedClient(t, Config{SettleTimeout: time.Nanosecond}, func(ctx context.Context, _ int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.CompleteRequest); ok {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return grant(request, time.Minute), nil
		})
		body := strings.Repeat("x", 8<<20)
		for i := range 9 {
			ref := Ref{Operation: "op", Key: fmt.Sprint(i)}
			if result, err := c.Do(t.Context(), ref, testPrint(t), respond(body), rerun); err != nil || len(result.Response.Body) != len(body) {
				t.Fatal(err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		omitted := map[string]bool{}
		for _, sent := range s.of("Complete") {
			report, _ := sent.request.(*idemv1.CompleteRequest)
			omitted[report.GetRef().GetKey()] = report.GetResponse().GetBodyOmitted() // the last one counts
		}
		for i := range 9 {
			if got, ok := omitted[fmt.Sprint(i)]; !ok || got != (i >= 7) {
				t.Errorf("outcome %d is recorded: %v, without its body: %v", i, ok, got)
			}
		}
		if c.kept != 0 {
			t.Errorf("%d bytes count as kept when there are none", c.kept)
		}
	})
}

// A Begin whose answer nobody waited for may have been granted. The claim is looked for, by the same attempt, and handed back.
func TestAClaimThatNobodyHeardOfIsHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for mode, disposition := range map[idemv1.BeginMode]idemv1.Disposition{
			idemv1.BeginMode_BEGIN_MODE_RUN:     idemv1.Disposition_DISPOSITION_RETRYABLE, // the work was not begun
			idemv1.BeginMode_BEGIN_MODE_RECOVER: idemv1.Disposition_DISPOSITION_UNKNOWN,   // it speaks for all attempts, and nobody has looked
		} {
			lost := false
			c, s := scriptedClient(t, Config{}, func(ctx context.Context, _ int, request proto.Message) (proto.Message, error) {
				begin, ok := request.(*idemv1.BeginRequest)
				switch {
				case ok && mode == idemv1.BeginMode_BEGIN_MODE_RECOVER && begin.GetMode() != mode:
					return nil, (&Error{Code: codes.FailedPrecondition, Reason: ReasonAbandoned}).GRPCStatus().Err()
				case ok && !lost:
					lost = true
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return grant(request, time.Minute), nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			hook := func(context.Context, Claim) (Finding, error) { return DidNotHappen(), nil }
			_, err := c.Do(ctx, testRef, testPrint(t), respond("x"), Options{Abandoned: Recover(hook), Wait: time.Second})
			if status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%v: %v", mode, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			begins, fails := s.of("Begin"), s.of("Fail")
			sent, _ := begins[len(begins)-2].request.(*idemv1.BeginRequest)
			again, _ := begins[len(begins)-1].request.(*idemv1.BeginRequest)
			if again.GetAttemptId() != sent.GetAttemptId() || again.GetMode() != mode || again.GetWait() != nil {
				t.Errorf("%v: looked for by %v", mode, again)
			}
			if len(fails) != 1 {
				t.Fatalf("%v: %d reports", mode, len(fails))
			}
			if fail, _ := fails[0].request.(*idemv1.FailRequest); fail.GetDisposition() != disposition || len(s.of("Complete")) != 0 {
				t.Errorf("%v: handed back as %v", mode, fail.GetDisposition())
			}
		}
	})
}

// What the ledger will not have now it may have later: a report is not given up for that.
func TestAReportIsNotGivenUpForAQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.CompleteRequest); ok && n == 0 {
				return nil, (&Error{Code: codes.ResourceExhausted, Reason: ReasonQuota}).GRPCStatus().Err()
			}
			return grant(request, time.Minute), nil
		})
		if _, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil || len(s.of("Complete")) != 2 {
			t.Errorf("%v, %d reports", err, len(s.of("Complete")))
		}
	})
}

// okError says of itself that it is no error.
type okError struct{}

func (okError) Error() string              { return "odd" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

func TestAnErrorThatSaysOKIsAFailure(t *testing.T) {
	c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		return grant(request, time.Minute), nil
	})
	_, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) { return Response{}, okError{} }, rerun)
	if !errors.Is(err, okError{}) || len(s.of("Fail")) != 1 || len(s.of("Complete")) != 0 {
		t.Fatalf("%v", err)
	}
	if sent, _ := s.of("Fail")[0].request.(*idemv1.FailRequest); sent.GetStatus().GetCode() != int32(codes.Unknown) || sent.GetDisposition() != idemv1.Disposition_DISPOSITION_UNKNOWN {
		t.Errorf("%v", sent)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// The entry of a claim that was lost says what its caller gets: the answer or the failure for good, and else word to ask again.
// That holds for a caller whose time is over as well.
func TestWhatACallerGetsWhoseClaimWasLost(t *testing.T) {
	lost := (&Error{Code: codes.FailedPrecondition, Reason: ReasonClaimLost}).GRPCStatus().Err()
	failure := func(d idemv1.Disposition) *idemv1.Entry {
		return &idemv1.Entry{Outcome: &idemv1.Entry_Failure{Failure: &idemv1.Failure{Status: &spb.Status{Code: 5}, Disposition: d}}}
	}
	for name, c := range map[string]struct {
		entry   *idemv1.Entry
		outcome Outcome
	}{
		"settled":          {&idemv1.Entry{Outcome: &idemv1.Entry_Answer{Answer: &idemv1.Answer{Response: &idemv1.Response{Body: []byte("theirs")}}}}, Replayed},
		"failed for good":  {failure(idemv1.Disposition_DISPOSITION_FINAL), ReplayedAsFailure},
		"to be done again": {failure(idemv1.Disposition_DISPOSITION_RETRYABLE), Executed},
		"not settled":      {&idemv1.Entry{}, Executed},
	} {
		client, _ := scriptedClient(t, Config{}, func(ctx context.Context, _ int, request proto.Message) (proto.Message, error) {
			switch request.(type) {
			case *idemv1.CompleteRequest:
				return nil, lost
			case *idemv1.LookupRequest:
				return &idemv1.LookupResponse{Entry: c.entry}, ctx.Err()
			}
			return grant(request, time.Minute), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		result, err := client.Do(ctx, testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			cancel()
			return Response{Body: []byte("mine")}, nil
		}, rerun)
		if again := c.outcome == Executed; result.Outcome != c.outcome || errors.Is(err, ErrClaimLost) != again || result.Outcome == Replayed && string(result.Response.Body) != "theirs" {
			t.Errorf("%s: %+v %v", name, result, err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// inDoubt is a grant after an attempt that was abandoned.
func inDoubt(request proto.Message) proto.Message {
	answer := grant(request, time.Minute)
	if begun, ok := answer.(*idemv1.BeginResponse); ok {
		begun.GetGranted().PreviousAbandoned = true
	}
	return answer
}

// A recovery whose finding could not be recorded yet does not say that it is.
func TestARecoveryThatIsNotRecordedYetSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, finding := range map[string]Finding{"happened": Happened(Response{}), "failed": FailedFinally(errors.New("declined"))} {
			for _, tries := range []int{0, 8} {
				c, _ := scriptedClient(t, Config{}, func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
					if _, ok := request.(*idemv1.BeginRequest); !ok && n < tries {
						return nil, away
					}
					return inDoubt(request), nil
				})
				hook := func(context.Context, Claim) (Finding, error) { return finding, nil }
				result, _ := c.Do(t.Context(), testRef, testPrint(t), respond("x"), Options{Abandoned: Recover(hook)})
				if result.Recorded != (tries == 0) {
					t.Errorf("%s, away for %d tries: %+v", name, tries, result)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestHappenedWithIsForGuardedMethods(t *testing.T) {
	c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		return inDoubt(request), nil
	})
	hook := func(context.Context, Claim) (Finding, error) { return HappenedWith(&idemv1.Entry{}), nil }
	_, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), Options{Abandoned: Recover(hook)})
	if !errors.Is(err, ErrAbandoned) || len(s.of("Complete")) != 0 || !strings.Contains(errors.Unwrap(err).Error(), "HappenedWith") {
		t.Errorf("%v", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A wait for somebody else does not go on past what was asked for, whatever the ledger proposes.
func TestAWaitIsNoLongerThanAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, func(context.Context, int, proto.Message) (proto.Message, error) {
			return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_InProgress{InProgress: &idemv1.InProgress{RetryAfter: durationpb.New(4 * time.Second)}}}, nil
		})
		for wait, begins := range map[time.Duration]int{0: 1, 3 * time.Second: 1, 10 * time.Second: 3} {
			before, began := len(s.of("Begin")), time.Now()
			_, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), Options{Abandoned: Rerun(), Wait: wait})
			if n := len(s.of("Begin")) - before; !errors.Is(err, ErrInProgress) || time.Since(began) > wait || n != begins {
				t.Errorf("wait %v: %v after %v, %d Begins", wait, err, time.Since(began), n)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close while work runs: its outcome is reported at once, or, with the ledger away, lost; it is never waited for.
func TestWorkThatOutlivesClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, d := range []time.Duration{0, time.Hour} {
			c, s := scriptedClient(t, Config{}, awayFor(d))
			began := time.Now()
			result, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
				return Response{Body: []byte("x")}, c.Close()
			}, rerun)
			if err != nil || result.Recorded != (d == 0) || string(result.Response.Body) != "x" || time.Since(began) > DefaultSettleTimeout {
				t.Errorf("away for %v: %+v %v after %v", d, result, err, time.Since(began))
			}
			sent := len(s.of("Complete"))
			<-time.After(time.Hour)
			if len(s.of("Complete")) != sent {
				t.Errorf("away for %v: it goes on after Close", d)
			}
		}
	})
}

// While Close waits for one outcome there is room for those of work that ends meanwhile.
func TestCloseTakesInWhatEndsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, awayFor(8*time.Second))
		if _, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil {
			t.Error(err)
		}
		var all sync.WaitGroup
		begun := make(chan struct{})
		all.Go(func() {
			_, err := c.Do(t.Context(), Ref{Operation: "op", Key: "late"}, testPrint(t), func(context.Context, Claim) (Response, error) {
				close(begun)
				<-time.After(time.Second)
				return Response{}, nil
			}, rerun)
			if err != nil {
				t.Error(err)
			}
		})
		<-begun
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		all.Wait()
		keys := map[string]bool{}
		reports := s.of("Complete")
		for _, sent := range reports[len(reports)-2:] { // those that got through
			report, _ := sent.request.(*idemv1.CompleteRequest)
			keys[report.GetRef().GetKey()] = true
		}
		if !keys["late"] || !keys[testRef.Key] {
			t.Errorf("recorded: %v", keys)
		}
	})
}

// An answer that is not kept is still worth saying, however much goes with it.
func TestWhatGoesWithABodyFitsTheMessageLimitToo(t *testing.T) {
	c, s := scriptedClient(t, Config{MaxMessageBytes: minMessageBytes}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		return grant(request, time.Minute), nil
	})
	_, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
		return Response{Code: 7, Body: []byte("x"), Metadata: []MetadataPair{{Name: "x", Value: make([]byte, minMessageBytes)}}}, nil
	}, rerun)
	if err != nil {
		t.Error(err)
	}
	sent, _ := s.of("Complete")[0].request.(*idemv1.CompleteRequest)
	if r := sent.GetResponse(); proto.Size(sent) > minMessageBytes || !r.GetBodyOmitted() || r.GetBodySizeBytes() != 1 || r.GetCode() != 7 {
		t.Errorf("%d bytes: %v", proto.Size(sent), r)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// An answer that should not happen may hide a grant, which is looked for and handed back.
func TestABugOfTheLedgersMayHaveGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.BeginRequest); ok && n < oddTries {
				return nil, status.Error(codes.Internal, "a bug")
			}
			return grant(request, time.Minute), nil
		})
		if _, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); !errors.Is(err, ErrLedgerUnavailable) {
			t.Error(err)
		}
		if err := c.Close(); err != nil || len(s.of("Fail")) != 1 {
			t.Errorf("%v, %d claims were handed back", err, len(s.of("Fail")))
		}
	})
}

func TestTheSelfTestNoticesALedgerThatDoesNotReplay(t *testing.T) {
	answer := func(body string) *idemv1.BeginResponse {
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Completed{Completed: &idemv1.Answer{Response: &idemv1.Response{Body: []byte(body)}}}}
	}
	for name, second := range map[string]func(request proto.Message) (proto.Message, error){
		"grants it once more":     func(request proto.Message) (proto.Message, error) { return grant(request, time.Minute), nil },
		"gives another's answer":  func(proto.Message) (proto.Message, error) { return answer("another's"), nil },
		"goes away":               func(proto.Message) (proto.Message, error) { return nil, status.Error(codes.Unimplemented, "") },
		"gives an answer of none": func(proto.Message) (proto.Message, error) { return answer(""), nil },
	} {
		c, _ := scriptedClient(t, Config{}, func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.BeginRequest); ok && n > 0 {
				return second(request)
			}
			return grant(request, time.Minute), nil
		})
		if err := c.SelfTest(t.Context()); err == nil {
			t.Errorf("it passes with a ledger that %s", name)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAFailureOfNothingWasNotFoundOut(t *testing.T) {
	if finding := FailedFinally(nil); finding.kind != foundNothingOut {
		t.Errorf("%+v", finding)
	}
}

// Credentials that ran out while the work ran, or a proxy that does not find the ledger for a moment, are no last word on an outcome.
func TestAnOutcomeIsNotGivenUpWhileNobodyWantsUs(t *testing.T) {
	for name, refusal := range map[string]error{
		"credentials ran out": (&Error{Code: codes.Unauthenticated, Reason: ReasonUnauthenticated}).GRPCStatus().Err(),
		"a proxy's 401":       status.Error(codes.Unauthenticated, "401 (Unauthorized)"),
		"a proxy's 403":       status.Error(codes.PermissionDenied, "403 (Forbidden)"),
		"a proxy's 404":       status.Error(codes.Unimplemented, "404 (Not Found)"),
		"a proxy's limit":     status.Error(codes.ResourceExhausted, "429 (Too Many Requests)"),
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
				if _, ok := request.(*idemv1.BeginRequest); !ok && time.Since(began) < 5*time.Minute {
					return nil, refusal
				}
				return grant(request, time.Minute), nil
			})
			result, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun)
			if err != nil || result.Recorded || result.Outcome != Executed || time.Since(began) > DefaultSettleTimeout {
				t.Errorf("%s: %+v %v after %v", name, result, err, time.Since(began))
			}
			<-time.After(6 * time.Minute)
			reports := s.of("Complete")
			if last := reports[len(reports)-1].at.Sub(began); last < 5*time.Minute || len(s.of("Fail")) != 0 || len(s.of("Begin")) != 1 {
				t.Errorf("%s: the last report was sent after %v", name, last)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	// What the ledger itself says of the call stands.
	c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
		if _, ok := request.(*idemv1.BeginRequest); !ok {
			return nil, (&Error{Code: codes.PermissionDenied, Reason: ReasonPermissionDenied}).GRPCStatus().Err()
		}
		return grant(request, time.Minute), nil
	})
	if result, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil || result.Recorded || len(s.of("Complete")) != 1 {
		t.Errorf("%+v %v, %d reports", result, err, len(s.of("Complete")))
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A bad row stays bad until somebody puts it right: the outcome is not sent again and again, and the caller has its answer. Where a Begin is refused for one, the
// work is not run, also where it would be without a ledger.
func TestABadRowIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := (&Error{Code: codes.DataLoss, Reason: ReasonBadRow}).GRPCStatus().Err()
		refuseBegin := false
		c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
			if _, begin := request.(*idemv1.BeginRequest); begin && !refuseBegin {
				return grant(request, time.Minute), nil
			}
			return nil, bad
		})
		result, err := c.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun)
		if err != nil || string(result.Response.Body) != "x" {
			t.Errorf("%+v, %v", result, err)
		}
		refuseBegin = true
		open := rerun
		open.FailOpen = true
		_, err = c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			t.Error("the work was run")
			return Response{}, nil
		}, open)
		if !errors.Is(err, sentinel(ReasonBadRow)) || status.Code(err) != codes.DataLoss {
			t.Error(err)
		}
		<-time.After(time.Hour)
		if completes, begins := len(s.of("Complete")), len(s.of("Begin")); completes != 1 || begins != 2 {
			t.Errorf("%d Completes, %d Begins", completes, begins)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}
