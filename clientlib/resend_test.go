package clientlib

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestResending(t *testing.T) {
	quota := (&Error{Code: codes.ResourceExhausted, Reason: ReasonQuota, RetryAfter: 3 * time.Second}).GRPCStatus().Err()
	for name, c := range map[string]struct {
		refusals []error
		tries    int
		atLeast  time.Duration
		err      error
	}{
		"unavailable": {refusals: []error{away, away, away}, tries: 4},
		"quota":       {refusals: []error{quota}, tries: 2, atLeast: 3 * time.Second},
		"internal":    {refusals: []error{status.Error(codes.Internal, "bug"), status.Error(codes.Internal, "bug")}, tries: 3},
		"a bug for ever": {
			refusals: []error{status.Error(codes.Internal, ""), status.Error(codes.Unknown, ""), status.Error(codes.Internal, ""), status.Error(codes.Internal, ""), away},
			tries:    4, err: errAny,
		},
		"its own time":   {refusals: []error{status.Error(codes.DeadlineExceeded, "")}, tries: 2},
		"a bad row":      {refusals: []error{(&Error{Code: codes.DataLoss, Reason: ReasonBadRow}).GRPCStatus().Err(), away}, tries: 1, err: sentinel(ReasonBadRow)},
		"refused":        {refusals: []error{(&Error{Code: codes.FailedPrecondition, Reason: ReasonExpired}).GRPCStatus().Err()}, tries: 1, err: ErrExpired},
		"without a hint": {refusals: []error{status.Error(codes.ResourceExhausted, "")}, tries: 1, err: errAny},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, s := scriptedClient(t, Config{}, func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
					if n < len(c.refusals) {
						return nil, c.refusals[n]
					}
					return grant(request, time.Minute), nil
				})
				began := time.Now()
				_, err := client.Begin(t.Context(), &idemv1.BeginRequest{Ref: testRef.proto()})
				sent := s.of("Begin")
				if len(sent) != c.tries || time.Since(began) < c.atLeast || (err != nil) != (c.err != nil) {
					t.Errorf("%d tries in %v: %v", len(sent), time.Since(began), err)
				}
				if c.err != nil && c.err != errAny && !errors.Is(err, c.err) { //nolint:errorlint // a marker of this test
					t.Error(err)
				}
				for _, a := range sent {
					if !proto.Equal(a.request, sent[0].request) {
						t.Error("a resend is another request")
					}
				}
				if request, _ := sent[0].request.(*idemv1.BeginRequest); request.GetAttemptId() == "" || request.GetHolder() == "" {
					t.Errorf("%v", request)
				}
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

var errAny = errors.New("any error")

func TestADeadConnectionIsLeftInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, s := scriptedClient(t, Config{}, func(ctx context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.BeginRequest); ok && n == 0 {
				<-ctx.Done()
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			return grant(request, time.Minute), nil
		})
		began := time.Now()
		if _, err := client.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun); err != nil || time.Since(began) > DefaultTryTimeout+resendMax {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if len(s.of("Begin")) != 2 {
			t.Errorf("%d Begins", len(s.of("Begin")))
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestTheCallersDeadlineIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := scriptedClient(t, Config{}, func(context.Context, int, proto.Message) (proto.Message, error) { return nil, away })
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := client.Do(ctx, testRef, testPrint(t), respond("x"), rerun)
		// There is no use in waiting for a try that will not be made: the caller hears the reason while it still listens.
		if time.Since(began) >= 300*time.Millisecond || !errors.Is(err, ErrLedgerUnavailable) || status.Code(err) != codes.Unavailable {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestDelaysGrowAndAreNeverShorterThanAsked(t *testing.T) {
	for try := range 40 {
		d := resendDelay(try, resendMax, 0)
		want := min(resendFirst<<min(try, 10), resendMax)
		if d < want/2 || d > want {
			t.Errorf("try %d: %v, not between %v and %v", try, d, want/2, want)
		}
		if asked := resendDelay(try, resendMax, 7*time.Second); asked < 7*time.Second || asked > 9*time.Second {
			t.Errorf("try %d: %v", try, asked)
		}
	}
}

// TestACallIsTriedForAsLongAsWasSaid where the ledger says nothing: LedgerTimeout in all and TryTimeout each time, and no longer than the caller has.
func TestACallIsTriedForAsLongAsWasSaid(t *testing.T) {
	for name, c := range map[string]struct {
		try, ledger, caller, lasts time.Duration
		first                      time.Duration
		tries                      int
	}{
		"several tries":               {try: 4 * time.Second, ledger: 10 * time.Second, lasts: 10 * time.Second, first: 4 * time.Second, tries: 3},
		"the first would last longer": {try: time.Minute, ledger: 10 * time.Second, lasts: 10 * time.Second, first: 10 * time.Second, tries: 1},
		"the caller has less":         {try: 4 * time.Second, ledger: 10 * time.Second, caller: 6 * time.Second, lasts: 6 * time.Second, first: 4 * time.Second, tries: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var first time.Duration
				client, s := scriptedClient(t, Config{TryTimeout: c.try, LedgerTimeout: c.ledger}, func(ctx context.Context, n int, _ proto.Message) (proto.Message, error) {
					began := time.Now()
					<-ctx.Done()
					if n == 0 {
						first = time.Since(began)
					}
					return nil, status.FromContextError(ctx.Err()).Err()
				})
				ctx, began := t.Context(), time.Now()
				if c.caller > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.caller)
					defer cancel()
				}
				_, err := client.Complete(ctx, &idemv1.CompleteRequest{Ref: testRef.proto()})
				if lasted, tries := time.Since(began), len(s.of("Complete")); err == nil || lasted != c.lasts || first != c.first || tries != c.tries {
					t.Errorf("%d tries, the first for %v, all for %v: %v", tries, first, lasted, err)
				}
			})
		})
	}
}
