package clientlib

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

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
