package clientlib_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/retry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// clientGuard is a guard for a caller of the shop.
func clientGuard(t testing.TB, ledger *idemtest.Ledger) clientlib.Guard {
	t.Helper()
	return clientlib.Guard{
		Ledger: ledger.Client(patient), Abandoned: clientlib.Rerun(), Files: makeFiles(t, shopSpecs()),
	}
}

// keysSeen notes the keys that reach the server.
type keysSeen struct {
	mu   sync.Mutex
	keys []string
}

func (k *keysSeen) interceptor(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	k.mu.Lock()
	k.keys = append(k.keys, strings.Join(md.Get("idempotency-key"), "|"))
	k.mu.Unlock()
	return handler(ctx, request)
}

func (k *keysSeen) distinct() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(k.keys)))
}

// flaky fails the first calls after their effect, as a broken connection does.
func flaky(calls int64) func(context.Context, string, proto.Message) (proto.Message, error) {
	var n atomic.Int64
	return func(context.Context, string, proto.Message) (proto.Message, error) {
		if n.Add(1) <= calls {
			return nil, status.Error(codes.Unavailable, "the connection broke")
		}
		return wrapperspb.String("done"), nil
	}
}

func retries() grpc.UnaryClientInterceptor {
	return retry.UnaryClientInterceptor(retry.WithMax(4), retry.WithBackoff(retry.BackoffLinear(time.Millisecond)))
}

func TestAClientsGuardReplaysLocally(t *testing.T) {
	var seen keysSeen
	s := newShop(t, seen.interceptor)
	s.set(func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-list", "a", "x-list", "b"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-after", "c"))
		return wrapperspb.String("done"), nil
	})
	ledger := idemtest.New(t)
	policy := &idemv1.Policy{Tenant: "*", Operation: "*", ResponseMetadataAllow: []string{"x-list", "x-after"}}
	if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: policy}); err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute)
	guard := clientGuard(t, ledger)
	guard.ReplayMetadata = []string{"x-list", "x-after"}
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(guard))))
	ctx := clientlib.WithKey(t.Context(), "k")
	first := call(ctx, conn, charge, s.request("amount", "1"))
	finished := false
	second := call(ctx, conn, charge, s.request("amount", "1"), grpc.OnFinish(func(err error) { finished = err == nil }))
	if first.err != nil || second.err != nil || second.answer != "done" || second.outcome() != "replayed" || !finished {
		t.Errorf("%+v, %+v", first, second)
	}
	if !slices.Equal(second.header.Get("x-list"), []string{"a", "b"}) || !slices.Equal(second.trailer.Get("x-after"), []string{"c"}) {
		t.Errorf("%v %v", second.header, second.trailer)
	}
	if s.effects.Load() != 1 || !slices.Equal(seen.distinct(), []string{"k"}) {
		t.Errorf("%d effects, keys %v", s.effects.Load(), seen.distinct())
	}
	// Without a key each call is an intent of its own: set A, set B, set A again are three.
	for range 2 {
		if c := call(t.Context(), conn, charge, s.request("amount", "1")); c.err != nil {
			t.Error(c.err)
		}
	}
	if s.effects.Load() != 3 || len(seen.distinct()) != 3 {
		t.Errorf("%d effects, keys %v", s.effects.Load(), seen.distinct())
	}
}

func TestC54_ChainsOfRetryAndGuard(t *testing.T) {
	for name, c := range map[string]struct {
		chain func(guard, keys grpc.UnaryClientInterceptor) []grpc.UnaryClientInterceptor
		ctx   func(context.Context) context.Context
		loud  bool
	}{
		"guard outside": {chain: func(g, _ grpc.UnaryClientInterceptor) []grpc.UnaryClientInterceptor {
			return []grpc.UnaryClientInterceptor{g, retries()}
		}},
		"retry outside, with a key": {
			chain: func(g, _ grpc.UnaryClientInterceptor) []grpc.UnaryClientInterceptor {
				return []grpc.UnaryClientInterceptor{retries(), g}
			},
			ctx: func(ctx context.Context) context.Context { return clientlib.WithKey(ctx, "mine") },
		},
		"retry outside, with the outer half": {chain: func(g, k grpc.UnaryClientInterceptor) []grpc.UnaryClientInterceptor {
			return []grpc.UnaryClientInterceptor{k, retries(), g}
		}},
		"retry outside, no key": {loud: true, chain: func(g, _ grpc.UnaryClientInterceptor) []grpc.UnaryClientInterceptor {
			return []grpc.UnaryClientInterceptor{retries(), g}
		}},
	} {
		var seen keysSeen
		s := newShop(t, seen.interceptor)
		s.set(flaky(2))
		guard := clientGuard(t, idemtest.New(t))
		chain := c.chain(must(clientlib.UnaryClientInterceptor(guard)), must(clientlib.UnaryClientKeyInterceptor(guard)))
		conn := s.dialer(grpc.WithChainUnaryInterceptor(chain...))
		ctx := t.Context()
		if c.ctx != nil {
			ctx = c.ctx(ctx)
		}
		got := call(ctx, conn, charge, s.request())
		if keys := seen.distinct(); len(keys) != 1 || keys[0] == "" || strings.Contains(keys[0], "|") {
			t.Errorf("%s: keys %v", name, keys)
		}
		if c.loud {
			if !errorIs(got.err, clientlib.ErrKeyRequired) || !strings.Contains(got.err.Error(), "outside") || s.effects.Load() != 1 {
				t.Errorf("%s: %v", name, got.err)
			}
		} else if got.err != nil || got.answer != "done" || s.effects.Load() != 3 {
			t.Errorf("%s: %+v, %d effects", name, got, s.effects.Load())
		}
	}
}

func TestC54_RetryOutsideWithAKeyField(t *testing.T) {
	var seen keysSeen
	s := newShop(t, seen.interceptor)
	s.set(flaky(1))
	conn := s.dialer(grpc.WithChainUnaryInterceptor(retries(), must(clientlib.UnaryClientInterceptor(clientGuard(t, idemtest.New(t))))))
	if c := call(t.Context(), conn, byID, s.request("request_id", "r9")); c.err != nil || !slices.Equal(seen.distinct(), []string{"r9"}) {
		t.Errorf("%+v, keys %v", c, seen.distinct())
	}
}

func TestC63_BothSidesGuarded(t *testing.T) {
	s, ledger := guardedShop(t, nil)
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(clientGuard(t, ledger)))))
	ctx := clientlib.WithKey(t.Context(), "k")
	for _, want := range []string{"executed", "replayed"} {
		if c := call(ctx, conn, charge, s.request()); c.err != nil || c.outcome() != want {
			t.Errorf("%+v", c)
		}
	}
	if s.effects.Load() != 1 {
		t.Errorf("%d effects", s.effects.Load())
	}
	for _, operation := range []string{"shop.v1.Payments/Charge", "call:shop.v1.Payments/Charge"} {
		ledger.Entry(clientlib.Ref{Operation: operation, Key: "k"})
	}
}

func TestC75_ABrokenCallIsNotKnownToHaveFailed(t *testing.T) {
	s := newShop(t)
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.Unavailable, "it died after the effect")
	})
	ledger := idemtest.New(t)
	guard := clientGuard(t, ledger)
	// Not even where the table says so.
	guard.Classes = clientlib.Classes{codes.Unavailable: clientlib.Retryable, codes.ResourceExhausted: clientlib.Retryable}
	asked := 0
	guard.Abandoned = clientlib.Recover(func(_ context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
		asked++
		if claim.Method != charge || claim.Request == nil || claim.Ref.Key != "k" {
			t.Errorf("%+v", claim)
		}
		return clientlib.HappenedWith(wrapperspb.String("then")), nil
	})
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(guard))))
	ctx := clientlib.WithKey(t.Context(), "k")
	if c := call(ctx, conn, charge, s.request()); status.Code(c.err) != codes.Unavailable {
		t.Fatal(c.err)
	}
	entry := ledger.Entry(clientlib.Ref{Operation: "call:shop.v1.Payments/Charge", Key: "k"})
	if entry.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED || !entry.GetDoubt() {
		t.Errorf("%v", entry.GetCondition())
	}
	if c := call(ctx, conn, charge, s.request()); c.err != nil || c.answer != "then" || asked != 1 || s.effects.Load() != 1 {
		t.Errorf("%+v, asked %d, %d effects", c, asked, s.effects.Load())
	}
}

func TestAClientBelievesTheServersWord(t *testing.T) {
	s, serverLedger := guardedShop(t, nil)
	ledger := idemtest.New(t)
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(clientGuard(t, ledger)))))
	condition := func(key string) idemv1.EntryCondition {
		return ledger.Entry(clientlib.Ref{Operation: "call:shop.v1.Payments/Charge", Key: key}).GetCondition()
	}
	// The server's ledger is away: its guard says that the handler did not run.
	serverLedger.LoseStore()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = call(clientlib.WithKey(short, "cut"), conn, charge, s.request())
	serverLedger.FindStore()
	if got := condition("cut"); got != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED && got != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE {
		t.Errorf("%v", got)
	}
	// The key was used for another request on the server: refused there, so nothing happened.
	if c := call(keyed(t, "used"), s.conn, charge, s.request("amount", "1")); c.err != nil {
		t.Fatal(c.err)
	}
	if c := call(clientlib.WithKey(t.Context(), "used"), conn, charge, s.request("amount", "2")); !errorIs(c.err, clientlib.ErrKeyReused) {
		t.Errorf("%+v", c)
	}
	if got := condition("used"); got != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE {
		t.Errorf("%v", got)
	}
	// A failure that the server keeps as final is final, whatever its code.
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return nil, clientlib.Final(status.Error(codes.Aborted, "declined"))
	})
	for range 2 {
		if c := call(clientlib.WithKey(t.Context(), "final"), conn, charge, s.request()); status.Code(c.err) != codes.Aborted {
			t.Errorf("%+v", c)
		}
	}
	if got := condition("final"); got != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL {
		t.Errorf("%v", got)
	}
}

func TestAnEarlierTryIsNotSpokenFor(t *testing.T) {
	// The first try has its effect and breaks; the second is refused by the server's guard. "Refused" is true of the second only,
	// whichever way the retry makes itself known.
	const byServiceConfig = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.001s",
		"maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	silently := func(
		ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption,
	) error {
		err := invoker(ctx, method, request, reply, conn, options...)
		if status.Code(err) == codes.Unavailable {
			err = invoker(ctx, method, request, reply, conn, options...)
		}
		return err
	}
	for name, option := range map[string]func(guard grpc.UnaryClientInterceptor) []grpc.DialOption{
		"an interceptor": func(guard grpc.UnaryClientInterceptor) []grpc.DialOption {
			return []grpc.DialOption{grpc.WithChainUnaryInterceptor(guard, retries())}
		},
		"an interceptor that does not say so": func(guard grpc.UnaryClientInterceptor) []grpc.DialOption {
			return []grpc.DialOption{grpc.WithChainUnaryInterceptor(guard, silently)}
		},
		"gRPC itself": func(guard grpc.UnaryClientInterceptor) []grpc.DialOption {
			return []grpc.DialOption{grpc.WithUnaryInterceptor(guard), grpc.WithDefaultServiceConfig(byServiceConfig)}
		},
	} {
		s, _ := guardedShop(t, func(g *clientlib.Guard) { g.Abandoned = clientlib.Refuse() })
		s.set(flaky(1))
		ledger := idemtest.New(t)
		conn := s.dialer(option(must(clientlib.UnaryClientInterceptor(clientGuard(t, ledger))))...)
		if c := call(clientlib.WithKey(t.Context(), "k"), conn, charge, s.request()); !errorIs(c.err, clientlib.ErrAbandoned) || s.effects.Load() != 1 {
			t.Fatalf("%s: %+v, %d effects", name, c, s.effects.Load())
		}
		entry := ledger.Entry(clientlib.Ref{Operation: "call:shop.v1.Payments/Charge", Key: "k"})
		if entry.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED {
			t.Errorf("%s: %v", name, entry.GetCondition())
		}
	}
}

// The caller gets the very error of the call, and an interceptor inside may say what it means.
func TestAnErrorOfACallComesBackAsItIs(t *testing.T) {
	for class, condition := range map[string]idemv1.EntryCondition{
		"as it is":         idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED,
		"nothing happened": idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE,
		"final":            idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL,
		"refused":          idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE,
	} {
		broke := errors.New("the connection broke")
		ledger := idemtest.New(t)
		inside := func(_ context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, options ...grpc.CallOption) error {
			switch class {
			case "nothing happened":
				return clientlib.NothingHappened(broke)
			case "final":
				return clientlib.Final(broke)
			case "refused":
				for _, option := range options {
					if o, ok := option.(grpc.TrailerCallOption); ok {
						*o.TrailerAddr = metadata.Pairs(clientlib.OutcomeTrailer, string(clientlib.InProgress))
					}
				}
			}
			return broke
		}
		s := newShop(t)
		conn := s.dialer(grpc.WithChainUnaryInterceptor(must(clientlib.UnaryClientInterceptor(clientGuard(t, ledger))), inside))
		if c := call(clientlib.WithKey(t.Context(), "k"), conn, charge, s.request()); c.err != broke { //nolint:errorlint // the very error
			t.Errorf("%s: %#v", class, c.err)
		}
		if got := ledger.Entry(clientlib.Ref{Operation: "call:shop.v1.Payments/Charge", Key: "k"}).GetCondition(); got != condition {
			t.Errorf("%s: %v", class, got)
		}
	}
}

// C32 on a client: every code has one class, none is retryable by its number alone, and what is final is replayed without a call.
func TestC32_EveryCodeOnAClient(t *testing.T) {
	final := []codes.Code{
		codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented,
	}
	s := newShop(t)
	ledger := idemtest.New(t)
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(clientGuard(t, ledger)))))
	unknown := &anypb.Any{TypeUrl: "type.example/nobody.knows.This", Value: []byte{0, 0xff, 1}}
	for code := codes.Code(1); code <= 17; code++ {
		p := status.New(code, "no: "+code.String()).Proto()
		p.Details = []*anypb.Any{unknown}
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
			return nil, status.FromProto(p).Err()
		})
		key, before := fmt.Sprint("k", code), s.effects.Load()
		for range 2 {
			if c := call(clientlib.WithKey(t.Context(), key), conn, charge, s.request()); !proto.Equal(status.Convert(c.err).Proto(), p) {
				t.Errorf("%v: %v", code, c.err)
			}
		}
		calls, want := int64(2), idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED
		if slices.Contains(final, code) {
			calls, want = 1, idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL
		}
		got := ledger.Entry(clientlib.Ref{Operation: "call:shop.v1.Payments/Charge", Key: key}).GetCondition()
		if made := s.effects.Load() - before; made != calls || got != want {
			t.Errorf("%v: called %d times, %v", code, made, got)
		}
	}
}

// C02 on a client: another process has taken over while the call was under way, and its answer counts.
func TestC02_AnothersAnswerCountsOnAClient(t *testing.T) {
	s := newShop(t)
	ledger := idemtest.New(t)
	var conn *grpc.ClientConn
	ctx := clientlib.WithKey(t.Context(), "k")
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		if s.effects.Load() > 1 {
			return wrapperspb.String("the second's"), nil
		}
		ledger.LapseLease(clientlib.Ref{Operation: "call:shop.v1.Payments/Charge", Key: "k"})
		if c := call(ctx, conn, charge, s.request()); c.answer != "the second's" {
			t.Errorf("%+v", c)
		}
		return wrapperspb.String("the first's"), nil
	})
	conn = s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(clientGuard(t, ledger)))))
	if c := call(ctx, conn, charge, s.request()); c.err != nil || c.answer != "the second's" {
		t.Errorf("%+v", c)
	}
}

// The self-test is the guard's to make, and not that of the small half outside of it.
func TestAGuardInTwoHalvesTestsItselfOnce(t *testing.T) {
	ledger := idemtest.New(t)
	guard := clientGuard(t, ledger)
	guard.SelfTest = true
	_ = must(clientlib.UnaryClientKeyInterceptor(guard))
	_ = must(clientlib.UnaryClientInterceptor(guard))
	if n := ledger.Calls("Complete"); n != 1 {
		t.Errorf("%d self-tests", n)
	}
}

func TestC53_KeysOfAClient(t *testing.T) {
	s := newShop(t)
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(clientGuard(t, idemtest.New(t))))))
	for name, ctx := range map[string]context.Context{
		"two different":   keyed(t, "a", "b"),
		"empty":           keyed(t, ""),
		"does not travel": clientlib.WithKey(t.Context(), "schlüssel"),
	} {
		if c := call(ctx, conn, charge, s.request()); !errorIs(c.err, clientlib.ErrInvalidKey) || status.Code(c.err) != codes.InvalidArgument {
			t.Errorf("%s: %+v", name, c)
		}
	}
	// WithKey stands in place of what a handler's own call left there.
	ctx := clientlib.WithKey(clientlib.WithKey(t.Context(), "outer"), clientlib.DeriveKey("outer", "step"))
	if c := call(ctx, conn, charge, s.request()); c.err != nil {
		t.Error(c.err)
	}
}

func TestFailOpenMethod(t *testing.T) {
	s := newShop(t)
	ledger := idemtest.New(t)
	guard := clientGuard(t, ledger)
	guard.Ledger = ledger.Client(clientlib.Config{LedgerTimeout: 50 * time.Millisecond})
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(guard))))
	ledger.GoAway()
	if c := call(t.Context(), conn, open, s.request()); c.err != nil || s.effects.Load() != 1 {
		t.Errorf("%+v", c)
	}
	c := call(t.Context(), conn, charge, s.request())
	if !errors.Is(c.err, clientlib.ErrLedgerUnavailable) || status.Code(c.err) != codes.Unavailable || s.effects.Load() != 1 {
		t.Errorf("%+v", c)
	}
	ledger.ComeBack()
}
