package clientlib

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestHeartbeatsComeAtAThirdOfTheLeaseFromBeforeBeginWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.BeginRequest); ok {
				<-time.After(2 * time.Second) // the grant is on its way for this long
			}
			return grant(request, 9*time.Second), nil
		})
		_, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			<-time.After(9 * time.Second)
			return Response{}, nil
		}, rerun)
		if err != nil {
			t.Fatal(err)
		}
		beats := s.of("Extend")
		for i, want := range []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second} {
			if len(beats) != 3 || beats[i].at.Sub(began) != want {
				t.Fatalf("beat %d of %d: %v", i, len(beats), beats[i].at.Sub(began))
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Where a store's clocks are apart, the holder is told less than its lease. Heartbeats that asked for what they were told would end up with nothing.
func TestHeartbeatsDoNotShortenALeaseThatIsToldShorter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const margin = 500 * time.Millisecond
		given := 9 * time.Second
		c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
			if extend, ok := request.(*idemv1.ExtendRequest); ok && extend.GetLease() != nil {
				given = extend.GetLease().AsDuration()
			}
			return grant(request, given-margin), nil
		})
		_, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			<-time.After(time.Minute)
			return Response{}, nil
		}, rerun)
		if err != nil || given != 9*time.Second || len(s.of("Extend")) > 30 {
			t.Errorf("%v: after %d heartbeats the lease is %v", err, len(s.of("Extend")), given)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestAHeartbeatThatFailsIsTriedAgainInsideTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, func(ctx context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.ExtendRequest); ok && n < 4 {
				if n == 0 {
					<-ctx.Done() // a dead connection
					return nil, ctx.Err()
				}
				return nil, away
			}
			return grant(request, 30*time.Second), nil
		})
		began := time.Now()
		_, err := c.Do(t.Context(), testRef, testPrint(t), func(ctx context.Context, _ Claim) (Response, error) {
			<-time.After(60 * time.Second)
			return Response{}, ctx.Err()
		}, rerun)
		beats := s.of("Extend")
		if err != nil || len(beats) < 6 || beats[4].at.Sub(began) > 28*time.Second {
			t.Errorf("%v, %d beats, the first that got through at %v", err, len(beats), beats[4].at.Sub(began))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestHeartbeatsGoOnWhenTheCallerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
			return grant(request, 9*time.Second), nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		_, _ = c.Do(ctx, testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			cancel()
			<-time.After(20 * time.Second) // work that does not listen
			return Response{}, nil
		}, rerun)
		if n := len(s.of("Extend")); n != 6 || len(s.of("Complete")) != 1 {
			t.Errorf("%d beats", n)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// No heartbeat crosses the report: one that overtook it could renew what is already settled, or be told that it is lost.
func TestTheReportWaitsForAHeartbeatInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answered time.Time
		c, s := scriptedClient(t, Config{}, func(ctx context.Context, _ int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.ExtendRequest); ok {
				<-ctx.Done()
				<-time.After(time.Second) // gRPC takes its time to notice
				answered = time.Now()
				return nil, ctx.Err()
			}
			return grant(request, 9*time.Second), nil
		})
		_, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			<-time.After(3500 * time.Millisecond)
			return Response{}, nil
		}, rerun)
		if reports := s.of("Complete"); err != nil || len(s.of("Extend")) != 1 || len(reports) != 1 || reports[0].at.Before(answered) {
			t.Errorf("%v: reported at %v, the heartbeat's end was at %v", err, reports, answered)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The ledger says how long the renewed lease is, and the next heartbeats go by that.
func TestHeartbeatsGoByTheLeaseThatTheLedgerGives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c, s := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.ExtendRequest); ok {
				return &idemv1.ExtendResponse{Lease: durationpb.New(6 * time.Second)}, nil
			}
			return grant(request, 30*time.Second), nil
		})
		_, err := c.Do(t.Context(), testRef, testPrint(t), func(context.Context, Claim) (Response, error) {
			<-time.After(15 * time.Second)
			return Response{}, nil
		}, rerun)
		beats := s.of("Extend")
		if err != nil || len(beats) != 3 || beats[0].at.Sub(began) != 10*time.Second || beats[1].at.Sub(began) != 12*time.Second {
			t.Errorf("%v, %d beats", err, len(beats))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Every refusal that says that there is nothing left to hold ends the work; any other leaves it running.
func TestWhichRefusalsEndTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for reason, ends := range map[Reason]bool{
			ReasonClaimLost: true, ReasonAlreadySettled: true, ReasonExpired: true, ReasonEntryNotFound: true,
			ReasonStoreUnavailable: false, ReasonPermissionDenied: false, ReasonInternal: false, ReasonBadRow: false,
		} {
			c, _ := scriptedClient(t, Config{}, func(_ context.Context, _ int, request proto.Message) (proto.Message, error) {
				if _, ok := request.(*idemv1.ExtendRequest); ok {
					return nil, (&Error{Code: codes.FailedPrecondition, Reason: reason}).GRPCStatus().Err()
				}
				return grant(request, 9*time.Second), nil
			})
			_, err := c.Do(t.Context(), testRef, testPrint(t), func(ctx context.Context, _ Claim) (Response, error) {
				<-time.After(4 * time.Second)
				if cause := context.Cause(ctx); (cause != nil) != ends || ends && !errors.Is(cause, sentinel(reason)) {
					t.Errorf("%s: %v", reason, cause)
				}
				return Response{}, nil
			}, rerun)
			if err != nil {
				t.Errorf("%s: %v", reason, err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
