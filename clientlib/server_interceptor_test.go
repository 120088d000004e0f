package clientlib_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// called is what a call came to.
type called struct {
	answer  string
	err     error
	header  metadata.MD
	trailer metadata.MD
}

func (c called) outcome() string {
	if o := c.trailer.Get(clientlib.OutcomeTrailer); len(o) == 1 {
		return o[0]
	}
	return fmt.Sprint(c.trailer.Get(clientlib.OutcomeTrailer))
}

func call(ctx context.Context, conn grpc.ClientConnInterface, method string, request proto.Message, options ...grpc.CallOption) called {
	reply := &wrapperspb.StringValue{}
	var c called
	c.err = conn.Invoke(ctx, method, request, reply, append(options, grpc.Header(&c.header), grpc.Trailer(&c.trailer))...)
	c.answer = reply.GetValue()
	return c
}

func keyed(t testing.TB, keys ...string) context.Context {
	ctx := t.Context()
	for _, key := range keys {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	}
	return ctx
}

func TestAKeyedMethodRunsOnce(t *testing.T) {
	s, _ := guardedShop(t, nil)
	s.set(func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
		key, _ := clientlib.KeyFrom(ctx)
		claim, ok := clientlib.ClaimFrom(ctx)
		outgoing, _ := metadata.FromOutgoingContext(ctx)
		if !ok || claim.Attempt != 1 || claim.Fence == 0 || key != "k" || !slices.Equal(outgoing.Get("idempotency-key"), []string{"k"}) {
			t.Errorf("the handler sees key %q, claim %+v, outgoing %v", key, claim, outgoing)
		}
		return wrapperspb.String("charged"), nil
	})
	first := call(keyed(t, "k"), s.conn, charge, s.request("amount", "5", "meta.sent_at", "10:00"))
	second := call(keyed(t, "k"), s.conn, charge, s.request("amount", "5", "meta.sent_at", "10:01"))
	if first.err != nil || second.err != nil || first.answer != "charged" || second.answer != "charged" {
		t.Fatalf("%+v, %+v", first, second)
	}
	if first.outcome() != "executed" || second.outcome() != "replayed" {
		t.Errorf("outcomes %s, %s", first.outcome(), second.outcome())
	}
	if times := second.trailer.Get(clientlib.OriginalTimeTrailer); len(times) != 1 {
		t.Errorf("original time: %v", times)
	} else if _, err := time.Parse(time.RFC3339Nano, times[0]); err != nil {
		t.Error(err)
	}
	other := call(keyed(t, "k"), s.conn, charge, s.request("amount", "6"))
	if e, ok := clientlib.AsError(other.err); !ok || !errors.Is(e, clientlib.ErrKeyReused) || status.Code(other.err) != codes.FailedPrecondition {
		t.Errorf("another request under the key: %v", other.err)
	}
	if other.outcome() != "refused" {
		t.Errorf("outcome %s", other.outcome())
	}
	if n := s.effects.Load(); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestMethodsThatAreNotGuardedPass(t *testing.T) {
	s, ledger := guardedShop(t, nil)
	for _, method := range []string{get, plain} {
		for range 2 {
			if c := call(keyed(t, "k"), s.conn, method, s.request()); c.err != nil || len(c.trailer.Get(clientlib.OutcomeTrailer)) != 0 {
				t.Errorf("%s: %+v", method, c)
			}
		}
	}
	if n := s.effects.Load(); n != 4 {
		t.Errorf("%d effects", n)
	}
	// An IDEMPOTENT method passes without a key, and is guarded with one.
	for _, want := range []string{"bypassed", "bypassed"} {
		if c := call(t.Context(), s.conn, ensure, s.request()); c.err != nil || c.outcome() != want {
			t.Errorf("%+v", c)
		}
	}
	for _, want := range []string{"executed", "replayed"} {
		if c := call(keyed(t, "e"), s.conn, ensure, s.request()); c.err != nil || c.outcome() != want {
			t.Errorf("%+v", c)
		}
	}
	if n := ledger.Calls("Begin"); n != 2 {
		t.Errorf("%d Begins", n)
	}
}

func TestKeyAndTenantFields(t *testing.T) {
	s, ledger := guardedShop(t, nil)
	for _, want := range []string{"executed", "replayed"} {
		c := call(t.Context(), s.conn, byID, s.request("request_id", "r1", "tenant", "acme"))
		if c.err != nil || c.outcome() != want {
			t.Errorf("%+v", c)
		}
	}
	ledger.Entry(clientlib.Ref{Tenant: "acme", Operation: "charge-by-id", Key: "r1"})
	// Metadata comes before the field.
	if c := call(keyed(t, "m"), s.conn, byID, s.request("request_id", "r1", "tenant", "acme")); c.outcome() != "executed" {
		t.Errorf("%+v", c)
	}
}

func TestC30_EmptyAnswersAreAnswers(t *testing.T) {
	s, _ := guardedShop(t, nil)
	for i, answer := range []proto.Message{&wrapperspb.StringValue{}, wrapperspb.String(""), (*wrapperspb.StringValue)(nil)} {
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) { return answer, nil })
		for _, want := range []string{"executed", "replayed"} {
			c := call(keyed(t, fmt.Sprint("k", i)), s.conn, charge, s.request())
			if c.err != nil || c.answer != "" || c.outcome() != want {
				t.Errorf("%d: %+v", i, c)
			}
		}
	}
	s.set(nil)
	for _, want := range []string{"executed", "replayed"} {
		var trailer metadata.MD
		err := s.conn.Invoke(keyed(t, "k"), empty, s.request(), &emptypb.Empty{}, grpc.Trailer(&trailer))
		if err != nil || !slices.Equal(trailer.Get(clientlib.OutcomeTrailer), []string{want}) {
			t.Errorf("%v %v", err, trailer)
		}
	}
}

func TestC31_AnAnswerOverTheLimitIsNotRunAgain(t *testing.T) {
	s, _ := guardedShop(t, func(g *clientlib.Guard) {
		g.Pointer = func(string, proto.Message) (string, string) { return "charge", "ch_42" }
	})
	// The body is tag, length and text: just as long as the built-in policy keeps, and a byte longer.
	for size, kept := range map[int]bool{1<<20 - 4: true, 1<<20 - 3: false} {
		long := strings.Repeat("x", size)
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
			return wrapperspb.String(long), nil
		})
		before := s.effects.Load()
		key := fmt.Sprint("k", size)
		if c := call(keyed(t, key), s.conn, charge, s.request()); c.err != nil || c.answer != long {
			t.Fatalf("first: %v", c.err)
		}
		c := call(keyed(t, key), s.conn, charge, s.request())
		if s.effects.Load() != before+1 {
			t.Errorf("%d: it ran again", size)
		}
		if kept {
			if c.err != nil || c.answer != long {
				t.Errorf("%d: %v", size, c.err)
			}
			continue
		}
		e, ok := clientlib.AsError(c.err)
		if !ok || !errors.Is(e, clientlib.ErrAnswerNotKept) || e.Metadata["resource_id"] != "ch_42" || e.Metadata["original_time"] == "" ||
			e.Metadata["body_size_bytes"] != fmt.Sprint(size+4) || c.outcome() != "replayed" {
			t.Errorf("%d: %v %+v", size, c.err, e)
		}
	}
}

func TestC31_ABodyOverTheMessageLimitIsLeftOut(t *testing.T) {
	s, ledger := guardedShop(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn := s.dialer(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32 << 20)))
	long := strings.Repeat("x", 10<<20)
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return wrapperspb.String(long), nil
	})
	ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", "k")
	if c := call(ctx, conn, charge, s.request()); c.err != nil || c.answer != long {
		t.Fatalf("%v", c.err)
	}
	if c := call(ctx, conn, charge, s.request()); !errorIs(c.err, clientlib.ErrAnswerNotKept) {
		t.Errorf("%v", c.err)
	}
	answer := ledger.Entry(clientlib.Ref{Operation: "shop.v1.Payments/Charge", Key: "k"}).GetAnswer().GetResponse()
	if answer.GetBodySizeBytes() < 10<<20 || len(answer.GetBodySha256()) != 32 {
		t.Errorf("%+v", answer)
	}
}

func errorIs(err, target error) bool {
	e, ok := clientlib.AsError(err)
	return ok && errors.Is(e, target)
}

func TestC32_EveryCodeHasOneClassAndReplaysAsItWas(t *testing.T) {
	final := map[codes.Code]bool{
		codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.FailedPrecondition: true,
		codes.OutOfRange: true, codes.Unimplemented: true,
	}
	retryable := map[codes.Code]bool{codes.Unauthenticated: true, codes.PermissionDenied: true, codes.ResourceExhausted: true}
	s, ledger := guardedShop(t, nil)
	info, err := anypb.New(&errdetails.ErrorInfo{Domain: "shop", Reason: "NO_FUNDS"})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := anypb.New(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "amount"}}})
	if err != nil {
		t.Fatal(err)
	}
	unknown := &anypb.Any{TypeUrl: "type.example/nobody.knows.This", Value: []byte{0, 0xff, 1}}
	for code := codes.Code(1); code <= 17; code++ {
		key := fmt.Sprint("k", code)
		p := status.New(code, "no: "+code.String()).Proto()
		p.Details = []*anypb.Any{info, bad, unknown}
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
			return nil, status.FromProto(p).Err()
		})
		before := s.effects.Load()
		first := call(keyed(t, key), s.conn, charge, s.request())
		second := call(keyed(t, key), s.conn, charge, s.request())
		ran := s.effects.Load() - before
		for _, c := range []called{first, second} {
			if got := status.Convert(c.err).Proto(); !proto.Equal(got, p) {
				t.Errorf("%v: %v", code, got)
			}
		}
		entry := ledger.Entry(clientlib.Ref{Operation: "shop.v1.Payments/Charge", Key: key})
		condition := entry.GetCondition()
		switch {
		case final[code]:
			if ran != 1 || condition != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL || second.outcome() != "replayed-failure" {
				t.Errorf("%v: ran %d, %v, %s", code, ran, condition, second.outcome())
			}
		case retryable[code]:
			if ran != 2 || condition != idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE || entry.GetDoubt() {
				t.Errorf("%v: ran %d, %v", code, ran, condition)
			}
		default:
			if ran != 2 || condition != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED || !entry.GetDoubt() {
				t.Errorf("%v: ran %d, %v", code, ran, condition)
			}
		}
	}
}

func TestHandlersSayOtherwise(t *testing.T) {
	s, _ := guardedShop(t, nil)
	for name, c := range map[string]struct {
		err  error
		ran  int64
		code codes.Code
	}{
		"final":              {clientlib.Final(status.Error(codes.Aborted, "declined")), 1, codes.Aborted},
		"nothing happened":   {clientlib.NothingHappened(status.Error(codes.InvalidArgument, "later")), 2, codes.InvalidArgument},
		"wrapped":            {fmt.Errorf("outer: %w", clientlib.Final(errors.New("plain"))), 1, codes.Unknown},
		"a ledger's refusal": {clientlib.Final((&clientlib.Error{Code: codes.FailedPrecondition, Reason: clientlib.ReasonKeyReused}).GRPCStatus().Err()), 2, codes.FailedPrecondition},
	} {
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) { return nil, c.err })
		before := s.effects.Load()
		for range 2 {
			if got := call(keyed(t, name), s.conn, charge, s.request()); status.Code(got.err) != c.code {
				t.Errorf("%s: %v", name, got.err)
			}
		}
		if ran := s.effects.Load() - before; ran != c.ran {
			t.Errorf("%s: ran %d times, not %d", name, ran, c.ran)
		}
	}
}

func TestC33_MetadataIsReplayedAsItWas(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) {
		g.ReplayMetadata = []string{"x-list", "x-both", "x-raw-bin", "x-not-in-policy"}
	})
	_, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
		Tenant: "*", Operation: "*", ResponseMetadataAllow: []string{"x-list", "x-both", "x-raw-bin", "x-not-in-guard"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute) // until every daemon follows the policy
	raw := string([]byte{0, 0xff, ',', 'a'})
	s.set(func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
		header := metadata.Pairs("x-list", "a,b", "x-list", "c", "x-both", "h", "x-raw-bin", raw, "set-cookie", "s", "authorization", "a",
			"x-request-id", "r", "x-ratelimit-remaining", "3", "x-not-in-policy", "p", "x-not-in-guard", "g")
		if err := grpc.SetHeader(ctx, header); err != nil {
			t.Error(err)
		}
		if err := grpc.SetTrailer(ctx, metadata.Pairs("x-both", "t1", "x-both", "t2", "set-cookie", "s", "x-request-id", "r")); err != nil {
			t.Error(err)
		}
		return wrapperspb.String("done"), nil
	})
	call(keyed(t, "k"), s.conn, charge, s.request())
	c := call(keyed(t, "k"), s.conn, charge, s.request())
	if c.err != nil || c.outcome() != "replayed" {
		t.Fatalf("%+v", c)
	}
	for name, want := range map[string][]string{
		"x-list": {"a,b", "c"}, "x-both": {"h"}, "x-raw-bin": {raw}, "set-cookie": nil, "authorization": nil, "x-request-id": nil,
		"x-ratelimit-remaining": nil, "x-not-in-policy": nil, "x-not-in-guard": nil,
	} {
		if got := c.header.Get(name); !slices.Equal(got, want) {
			t.Errorf("header %s: %q", name, got)
		}
	}
	if got := c.trailer.Get("x-both"); !slices.Equal(got, []string{"t1", "t2"}) || len(c.trailer.Get("set-cookie")) != 0 {
		t.Errorf("trailer %v", c.trailer)
	}
}

func TestC34_AReplayedFailureSaysSo(t *testing.T) {
	s, _ := guardedShop(t, nil)
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.FailedPrecondition, "no funds")
	})
	first := call(keyed(t, "k"), s.conn, charge, s.request())
	second := call(keyed(t, "k"), s.conn, charge, s.request())
	if first.outcome() != "executed" || len(first.trailer.Get(clientlib.OriginalTimeTrailer)) != 0 {
		t.Errorf("%+v", first)
	}
	if second.outcome() != "replayed-failure" || len(second.trailer.Get(clientlib.OriginalTimeTrailer)) != 1 {
		t.Errorf("%+v", second)
	}
}

func TestC53_KeyMetadata(t *testing.T) {
	s, _ := guardedShop(t, nil)
	for name, c := range map[string]struct {
		keys   []string
		reason clientlib.Reason
		rule   string
	}{
		"empty":           {[]string{""}, clientlib.ReasonInvalidKey, "must not be empty"},
		"two different":   {[]string{"a", "b"}, clientlib.ReasonInvalidKey, "two different values"},
		"empty and not":   {[]string{"a", ""}, clientlib.ReasonInvalidKey, "must not be empty"},
		"a space behind":  {[]string{"a "}, clientlib.ReasonInvalidKey, "without a space at either end"},
		"a space before":  {[]string{" a"}, clientlib.ReasonInvalidKey, "without a space at either end"},
		"none":            {nil, clientlib.ReasonKeyRequired, "is required"},
		"two equal ones":  {[]string{"same", "same"}, "", ""},
		"odd, and a key":  {[]string{`"a, b; c=%20\\"`}, "", ""},
		"a space between": {[]string{"a b"}, "", ""},
	} {
		got := call(keyed(t, c.keys...), s.conn, charge, s.request())
		if c.reason == "" {
			if got.err != nil {
				t.Errorf("%s: %v", name, got.err)
			}
			continue
		}
		e, ok := clientlib.AsError(got.err)
		if !ok || e.Reason != c.reason || e.Code != codes.InvalidArgument || e.Field != "idempotency-key" ||
			!strings.Contains(e.Message, "idempotency-key") || !strings.Contains(e.Rule, c.rule) || got.outcome() != "refused" {
			t.Errorf("%s: %v", name, got.err)
		}
	}
	if n := s.effects.Load(); n != 3 {
		t.Errorf("%d effects", n)
	}
}

func TestPrincipalsDoNotShareAnswers(t *testing.T) {
	var current string
	s, _ := guardedShop(t, func(g *clientlib.Guard) {
		g.Principal = clientlib.PrincipalFrom(func(context.Context) (string, error) { return current, nil })
	})
	current = "ann"
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.err != nil {
		t.Fatal(c.err)
	}
	current = "bob"
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); !errorIs(c.err, clientlib.ErrKeyReused) {
		t.Errorf("%+v", c)
	}
	current = "ann"
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.outcome() != "replayed" {
		t.Errorf("%+v", c)
	}
	current = ""
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); status.Code(c.err) != codes.Unauthenticated {
		t.Errorf("%+v", c)
	}
}

func TestTheLedgerAwayIsARefusalUnlessMarked(t *testing.T) {
	ledger := idemtest.New(t)
	s := newShop(t, must(clientlib.UnaryServerInterceptor(clientlib.Guard{
		Ledger: ledger.Client(clientlib.Config{LedgerTimeout: 100 * time.Millisecond}), Abandoned: clientlib.Refuse(),
		Principal: clientlib.Anonymous, Files: makeFiles(t, shopSpecs()),
	})))
	for reason, fault := range map[clientlib.Reason][2]func(){
		clientlib.ReasonLedgerUnavailable: {ledger.GoAway, ledger.ComeBack},
		clientlib.ReasonStoreUnavailable:  {ledger.LoseStore, ledger.FindStore},
	} {
		before := s.effects.Load()
		fault[0]()
		c := call(keyed(t, string(reason)), s.conn, charge, s.request())
		e, ok := clientlib.AsError(c.err)
		if !ok || e.Reason != reason || e.Code != codes.Unavailable || e.RetryAfter == 0 || c.outcome() != "refused" {
			t.Errorf("%s: %+v", reason, c)
		}
		if s.effects.Load() != before {
			t.Errorf("%s: the handler was run", reason)
		}
		if c := call(keyed(t, string(reason)+"-open"), s.conn, open, s.request()); c.err != nil || c.outcome() != "bypassed" {
			t.Errorf("%s, marked: %+v", reason, c)
		}
		fault[1]()
	}
}

func TestDryRunAndOff(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) { g.DryRun = true })
	for _, want := range []string{"executed", "replayed"} {
		c := call(keyed(t, "k"), s.conn, charge, s.request())
		if c.err != nil || !slices.Equal(c.trailer.Get(clientlib.WouldBeTrailer), []string{want}) {
			t.Errorf("%+v", c)
		}
	}
	for _, ctx := range []context.Context{keyed(t, ""), t.Context()} {
		if c := call(ctx, s.conn, charge, s.request()); c.err != nil || !slices.Equal(c.trailer.Get(clientlib.WouldBeTrailer), []string{"refused"}) {
			t.Errorf("%+v", c)
		}
	}
	if n := s.effects.Load(); n != 4 {
		t.Errorf("%d effects", n)
	}
	_ = ledger
	off := newShop(t, must(clientlib.UnaryServerInterceptor(clientlib.Guard{Off: true})))
	if c := call(t.Context(), off.conn, charge, off.request()); c.err != nil || c.outcome() != "[]" {
		t.Errorf("%+v", c)
	}
}

func TestAHandlersPanicGivesTheClaimUp(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(patient)
	ref := clientlib.Ref{Operation: "op", Key: "k"}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not go on")
			}
		}()
		_, _ = client.Do(t.Context(), ref, bytesOf("a"), func(context.Context, clientlib.Claim) (clientlib.Response, error) {
			panic("boom")
		}, clientlib.Options{Abandoned: clientlib.Refuse()})
	}()
	entry := ledger.Entry(ref)
	if entry.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED || entry.GetHasCurrentAttempt() {
		t.Errorf("%v", entry)
	}
	if bytes.Contains([]byte(entry.String()), []byte("boom")) {
		t.Error("the panic's value was stored")
	}
}

func TestC15_TheStreamIsResetAfterTheEffect(t *testing.T) {
	s, ledger := guardedShop(t, nil)
	ctx, cancel := context.WithCancel(keyed(t, "k"))
	returned := make(chan struct{})
	s.set(func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
		defer close(returned)
		cancel()
		<-ctx.Done()
		return wrapperspb.String("charged"), nil
	})
	if c := call(ctx, s.conn, charge, s.request()); status.Code(c.err) != codes.Canceled {
		t.Fatal(c.err)
	}
	<-returned
	s.set(nil)
	// The retry may come before the outcome is recorded: it is then in progress, never run.
	for {
		c := call(keyed(t, "k"), s.conn, charge, s.request())
		if errorIs(c.err, clientlib.ErrInProgress) {
			continue
		}
		if c.err != nil || c.answer != "charged" || c.outcome() != "replayed" {
			t.Errorf("%+v", c)
		}
		break
	}
	if ledger.Calls("Complete") != 1 || s.effects.Load() != 1 {
		t.Errorf("%d reports, %d effects", ledger.Calls("Complete"), s.effects.Load())
	}
}

func TestAnOperatorsAnswerInJSONIsReplayed(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) { g.Abandoned = clientlib.Refuse() })
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.Unavailable, "")
	})
	call(keyed(t, "k"), s.conn, charge, s.request())
	_, err := ledger.Admin().ResolveEntry(t.Context(), &idemv1.ResolveEntryRequest{
		Ref: &idemv1.EntryRef{Operation: "shop.v1.Payments/Charge", Key: "k"}, Attempt: 1, Reason: "the provider has it",
		Resolution: &idemv1.ResolveEntryRequest_Complete{Complete: &idemv1.Response{Body: []byte(`"by hand"`), ContentType: "application/json"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.err != nil || c.answer != "by hand" || c.outcome() != "replayed" {
		t.Errorf("%+v", c)
	}
}

func TestOtherKeyNames(t *testing.T) {
	names := []string{"x-request-key", "idempotency-key"}
	s, ledger := guardedShop(t, func(g *clientlib.Guard) { g.KeyNames = names })
	guard := clientGuard(t, ledger)
	guard.KeyNames = names
	conn := s.dialer(grpc.WithUnaryInterceptor(must(clientlib.UnaryClientInterceptor(guard))))
	if c := call(clientlib.WithKey(t.Context(), "k"), conn, charge, s.request()); c.err != nil {
		t.Fatal(c.err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-request-key", "k")
	if c := call(ctx, s.conn, charge, s.request()); c.outcome() != "replayed" {
		t.Errorf("%+v", c)
	}
	both := metadata.AppendToOutgoingContext(ctx, "idempotency-key", "other")
	if c := call(both, s.conn, charge, s.request()); !errorIs(c.err, clientlib.ErrInvalidKey) {
		t.Errorf("%+v", c)
	}
}

func TestTenantsOfAGuard(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) {
		g.Tenant = func(_ context.Context, method string) (string, error) {
			if method != charge {
				return "", status.Error(codes.PermissionDenied, "no tenant")
			}
			return "acme", nil
		}
	})
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.err != nil {
		t.Fatal(c.err)
	}
	ledger.Entry(clientlib.Ref{Tenant: "acme", Operation: "shop.v1.Payments/Charge", Key: "k"})
	if c := call(keyed(t, "k"), s.conn, empty, s.request()); status.Code(c.err) != codes.PermissionDenied || c.outcome() != "refused" {
		t.Errorf("%+v", c)
	}
}

// What stands outside of a guard can give a call its key.
func TestAKeyFromTheContextOfAServer(t *testing.T) {
	ledger := idemtest.New(t)
	s := newShop(t, func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(clientlib.WithKey(ctx, "schlüssel"), request)
	}, must(clientlib.UnaryServerInterceptor(clientlib.Guard{
		Ledger: ledger.Client(patient), Abandoned: clientlib.Rerun(), Principal: clientlib.Anonymous, Files: makeFiles(t, shopSpecs()),
	})))
	for _, want := range []string{"executed", "replayed"} {
		if c := call(t.Context(), s.conn, byID, s.request("request_id", "r1")); c.err != nil || c.outcome() != want {
			t.Errorf("%+v", c)
		}
	}
	ledger.Entry(clientlib.Ref{Operation: "charge-by-id", Key: "schlüssel"})
}

// C02 on a server: the handler has sent metadata of its own, and then another's answer counts. Metadata that is out cannot be
// taken back, so none of the other's goes on top.
func TestC02_AnothersAnswerCountsOnAServer(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) { g.ReplayMetadata = []string{"x-by"} })
	policy := &idemv1.Policy{Tenant: "*", Operation: "*", ResponseMetadataAllow: []string{"x-by"}}
	if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: policy}); err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute)
	s.set(func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
		by := fmt.Sprint(s.effects.Load())
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-by", by)); err != nil {
			t.Error(err)
		}
		if by == "1" {
			ledger.LapseLease(clientlib.Ref{Operation: "shop.v1.Payments/Charge", Key: "k"})
			if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.answer != "2" || c.outcome() != "executed" {
				t.Errorf("%+v", c)
			}
		}
		return wrapperspb.String(by), nil
	})
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.answer != "2" || c.outcome() != "replayed" || !slices.Equal(c.header.Get("x-by"), []string{"1"}) {
		t.Errorf("%+v", c)
	}
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.answer != "2" || !slices.Equal(c.header.Get("x-by"), []string{"2"}) {
		t.Errorf("%+v", c)
	}
}

// C40 at a guard: whatever part of a keyed request changes, but what is excluded, it is another request.
func TestC40_EveryPartOfAKeyedRequestCounts(t *testing.T) {
	s, _ := guardedShop(t, nil)
	base := []string{"request_id", "r", "amount", "5", "tenant", ""}
	if c := call(keyed(t, "k"), s.conn, charge, s.request(base...)); c.err != nil {
		t.Fatal(c.err)
	}
	for _, field := range []string{"request_id", "amount", "tenant"} {
		changed := append(slices.Clone(base), field, "4") // one bit from 5
		if c := call(keyed(t, "k"), s.conn, charge, s.request(changed...)); !errorIs(c.err, clientlib.ErrKeyReused) {
			t.Errorf("%s: %+v", field, c)
		}
	}
	tagged := s.request(base...)
	tagged.Mutable(s.input.Fields().ByName("tags")).List().Append(protoreflect.ValueOfString("x"))
	inside := s.request(base...)
	meta := inside.Mutable(s.input.Fields().ByName("meta")).Message()
	meta.Set(meta.Descriptor().Fields().ByName("id"), protoreflect.ValueOfString("x"))
	for name, request := range map[string]proto.Message{"a list": tagged, "a message inside": inside} {
		if c := call(keyed(t, "k"), s.conn, charge, request); !errorIs(c.err, clientlib.ErrKeyReused) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if c := call(keyed(t, "k"), s.conn, charge, s.request(base...)); c.outcome() != "replayed" || s.effects.Load() != 1 {
		t.Errorf("%+v", c)
	}
}

// C41 at a guard: a client with a newer schema sends a field that this server does not know, and its retry goes to one that has
// been there longer. Neither is told that it reuses a key.
func TestC41_AFieldThatTheServerDoesNotKnow(t *testing.T) {
	s, _ := guardedShop(t, nil)
	newer := s.request("amount", "5")
	newer.SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "new"))
	for i, request := range []proto.Message{newer, s.request("amount", "5"), newer} {
		if c := call(keyed(t, "k"), s.conn, charge, request); c.err != nil || (c.outcome() == "replayed") != (i > 0) {
			t.Errorf("%d: %+v", i, c)
		}
	}
}

// C33: what a guard does not list any more is not replayed, although it was kept.
func TestC33_MetadataThatIsNoLongerListed(t *testing.T) {
	ledger := idemtest.New(t)
	policy := &idemv1.Policy{Tenant: "*", Operation: "*", ResponseMetadataAllow: []string{"x-list"}}
	if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: policy}); err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute)
	for _, listed := range [][]string{{"x-list"}, nil} {
		s := newShop(t, must(clientlib.UnaryServerInterceptor(clientlib.Guard{
			Ledger: ledger.Client(patient), Abandoned: clientlib.Rerun(), Principal: clientlib.Anonymous,
			Files: makeFiles(t, shopSpecs()), ReplayMetadata: listed,
		})))
		s.set(func(ctx context.Context, _ string, _ proto.Message) (proto.Message, error) {
			return wrapperspb.String("done"), grpc.SetHeader(ctx, metadata.Pairs("x-list", "a"))
		})
		if c := call(keyed(t, "k"), s.conn, charge, s.request()); c.err != nil || (len(c.header.Get("x-list")) == 1) != (listed != nil) {
			t.Errorf("%v: %+v", listed, c)
		}
	}
}

// An answer over gRPC's own limit of 4 MiB comes back whole where the policy keeps it.
func TestALongAnswerIsReplayedWhole(t *testing.T) {
	s, ledger := guardedShop(t, nil)
	policy := &idemv1.Policy{Tenant: "*", Operation: "*", MaxResponseBytes: 8 << 20}
	if _, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: policy}); err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute)
	conn := s.dialer(grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32 << 20)))
	long := strings.Repeat("x", 5<<20)
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return wrapperspb.String(long), nil
	})
	for _, want := range []string{"executed", "replayed"} {
		if c := call(keyed(t, "k"), conn, charge, s.request()); c.err != nil || c.answer != long || c.outcome() != want {
			t.Errorf("%v, %s, %d bytes", c.err, c.outcome(), len(c.answer))
		}
	}
}
