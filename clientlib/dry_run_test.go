package clientlib_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func dryRun() clientlib.Options {
	return clientlib.Options{Abandoned: clientlib.Refuse(), DryRun: true}
}

// deaf is a connection whose other end never answers.
type deaf struct{ grpc.ClientConnInterface }

func (deaf) Invoke(ctx context.Context, _ string, _, _ any, _ ...grpc.CallOption) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestADryRunRunsWhateverTheLedgerSays(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, ledger *idemtest.Ledger, client *clientlib.Client) (clientlib.Ref, clientlib.Outcome){
		"an earlier attempt is in doubt": func(t *testing.T, _ *idemtest.Ledger, client *clientlib.Client) (clientlib.Ref, clientlib.Outcome) {
			abandon(t, client)
			return ref, clientlib.Executed
		},
		"it is held": func(t *testing.T, ledger *idemtest.Ledger, client *clientlib.Client) (clientlib.Ref, clientlib.Outcome) {
			policy := &idemv1.Policy{Tenant: "*", Operation: "*", OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD}
			if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: policy}); err != nil {
				t.Fatal(err)
			}
			ledger.Advance(time.Minute)
			abandon(t, client)
			return ref, clientlib.Refused
		},
		"it was done": func(t *testing.T, _ *idemtest.Ledger, client *clientlib.Client) (clientlib.Ref, clientlib.Outcome) {
			effects := 0
			if _, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "then"), dryRun()); err != nil {
				t.Fatal(err)
			}
			return ref, clientlib.Replayed
		},
		"the key is none": func(*testing.T, *idemtest.Ledger, *clientlib.Client) (clientlib.Ref, clientlib.Outcome) {
			return clientlib.Ref{Operation: "op"}, clientlib.Refused
		},
		"the client is closed": func(t *testing.T, _ *idemtest.Ledger, client *clientlib.Client) (clientlib.Ref, clientlib.Outcome) {
			if err := client.Close(); err != nil {
				t.Fatal(err)
			}
			return ref, clientlib.Refused
		},
	} {
		t.Run(name, func(t *testing.T) {
			ledger := idemtest.New(t)
			client := ledger.Client(patient)
			ref, would := prepare(t, ledger, client)
			effects := 0
			result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "now"), dryRun())
			if err != nil || effects != 1 || string(result.Response.Body) != "now" || result.WouldBe != would {
				t.Errorf("%+v %v, %d effects", result, err, effects)
			}
		})
	}
}

func TestADryRunIsNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := clientlib.New(clientlib.Config{Conn: deaf{}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		for deadline, most := range map[time.Duration]time.Duration{
			time.Second: time.Second / 2, time.Hour: clientlib.DefaultSettleTimeout,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			began := time.Now()
			result, err := client.Do(ctx, ref, bytesOf("a"), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
				if took := time.Since(began); took > most || ctx.Err() != nil {
					t.Errorf("with %v in all the work begins after %v: %v", deadline, took, ctx.Err())
				}
				return clientlib.Response{}, nil
			}, dryRun())
			if err != nil || result.WouldBe != clientlib.Refused {
				t.Errorf("%+v %v", result, err)
			}
			cancel()
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestADryRunWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := idemtest.New(t).Client(clientlib.Config{})
		_, err := client.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
			options, effects, began := dryRun(), 0, time.Now()
			options.Wait = time.Minute
			result, err := client.Do(ctx, ref, bytesOf("a"), counted(&effects, "now"), options)
			if err != nil || effects != 1 || result.WouldBe != clientlib.InProgress || time.Since(began) > time.Second {
				t.Errorf("%+v %v after %v", result, err, time.Since(began))
			}
			return clientlib.Response{}, nil
		}, dryRun())
		if err != nil {
			t.Error(err)
		}
	})
}

func TestADryRunDoesNotMindALostClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := idemtest.New(t)
		client := ledger.Client(clientlib.Config{})
		result, err := client.Do(t.Context(), ref, bytesOf("a"), func(ctx context.Context, _ clientlib.Claim) (clientlib.Response, error) {
			ledger.LapseLease(ref)
			effects := 0
			if other, err := client.Do(ctx, ref, bytesOf("a"), counted(&effects, "other"), dryRun()); err != nil || other.Attempt != 2 {
				t.Errorf("%+v %v", other, err)
			}
			<-time.After(2 * time.Minute) // heartbeats have learned of it
			if ctx.Err() != nil {
				t.Errorf("the work was cancelled: %v", context.Cause(ctx))
			}
			return clientlib.Response{Body: []byte("mine")}, nil
		}, dryRun())
		if err != nil || string(result.Response.Body) != "mine" || result.WouldBe != clientlib.Executed {
			t.Errorf("%+v %v", result, err)
		}
	})
}

func TestADryRunOfAClientsGuard(t *testing.T) {
	s := newShop(t)
	guard := clientGuard(t, idemtest.New(t))
	guard.DryRun = true
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(guard))))
	for _, keys := range [][]string{{"k"}, {"k"}, {"a", "b"}} {
		if c := call(keyed(t, keys...), conn, charge, s.request()); c.err != nil || c.answer != "done" {
			t.Errorf("%v: %+v", keys, c)
		}
	}
	if n := s.effects.Load(); n != 3 {
		t.Errorf("%d effects", n)
	}
}

func TestOffAsksNobody(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(clientlib.Config{})
	effects := 0
	for range 2 {
		result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), clientlib.Options{Off: true})
		if err != nil || result.Outcome != clientlib.Bypassed {
			t.Errorf("%+v %v", result, err)
		}
	}
	s := newShop(t)
	off := clientlib.Guard{Off: true}
	for _, interceptor := range []grpc.UnaryClientInterceptor{
		must(clientlib.UnaryClientInterceptor(off)), must(clientlib.UnaryClientKeyInterceptor(off)),
	} {
		conn := s.dialer(grpc.WithUnaryInterceptor(interceptor))
		if c := call(t.Context(), conn, charge, s.request()); c.err != nil {
			t.Error(c.err)
		}
	}
	if n := ledger.Calls("Begin"); n != 0 || effects != 2 || s.effects.Load() != 2 {
		t.Errorf("%d Begins, %d and %d effects", n, effects, s.effects.Load())
	}
}

func TestAClosedClientRefuses(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(clientlib.Config{})
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	effects := 0
	options := clientlib.Options{Abandoned: clientlib.Refuse()}
	result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), options)
	if !errors.Is(err, clientlib.ErrLedgerUnavailable) || result.Outcome != clientlib.Refused || effects != 0 || ledger.Calls("Begin") != 0 {
		t.Errorf("%+v %v, %d effects", result, err, effects)
	}
	options.FailOpen = true
	if result, err := client.Do(t.Context(), ref, bytesOf("a"), counted(&effects, "x"), options); err != nil || result.Outcome != clientlib.Bypassed || effects != 1 {
		t.Errorf("%+v %v, %d effects", result, err, effects)
	}
}
