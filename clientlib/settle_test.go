package clientlib

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

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
