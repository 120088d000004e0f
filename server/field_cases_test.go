package server_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server/servertest"
)

// Faults that users of other systems met, as far as they show at the wire.

// replay begins an entry that was settled and returns the replay.
func (r *rig) replay(key string) *idemv1.Answer {
	r.t.Helper()
	a := r.begin(key).GetCompleted()
	if a == nil {
		r.t.Fatal("the entry is not completed")
	}
	return a
}

// C30: an empty message, Empty, an all-default message, a zero-byte body: replayed as they were, distinct from "no answer kept".
func TestC30_EmptyAnswersAreAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	empty, err := proto.Marshal(&emptypb.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]*idemv1.Response{
		"an all-default response":         {},
		"a zero-byte body of a type":      {Body: []byte{}, ContentType: "application/grpc+proto"},
		"google.protobuf.Empty":           {Body: empty, ContentType: "application/x-protobuf;type=google.protobuf.Empty"},
		"a code and nothing else":         {Code: 204},
		"a body that is one zero byte":    {Body: []byte{0}},
		"no answer kept, by the client":   {BodyOmitted: true},
		"no answer kept, but described":   {BodyOmitted: true, BodySizeBytes: 9 << 20, BodySha256: bytes.Repeat([]byte{7}, 32)},
		"a pointer and no body":           {ResourceType: "charge", ResourceId: "ch_42"},
		"a pointer and a body left out":   {ResourceType: "charge", ResourceId: "ch_42", BodyOmitted: true},
		"a text that is only white space": {Body: []byte(" \n"), ContentType: " "},
	} {
		r.complete(name, r.grant(name), answer)
		got := r.replay(name)
		if !proto.Equal(got.GetResponse(), answer) {
			t.Errorf("%s: replayed as %v, was %v", name, got.GetResponse(), answer)
		}
		if !proto.Equal(r.lookup(name).GetAnswer(), got) {
			t.Errorf("%s: Lookup shows %v, Begin replays %v", name, r.lookup(name).GetAnswer(), got)
		}
	}
}

// C12 at the wire: a thousand times a caller gives Complete a millisecond and the store takes from none to four. It is told success, or that its time
// was over; then it resends and is told success, never "lost", or it never comes back. The daemon's own limits are not the caller's, so it goes on either
// way, also where the store did not say what became of the write.
func TestC12_CompleteAgainstAShortDeadline(t *testing.T) {
	t.Parallel()
	inBubble(t, servertest.Options{}, func(t *testing.T, r *rig) {
		writes := 0
		r.daemon.Store().Plan(storetest.On(storetest.Write, func(storetest.Call) storetest.Fault {
			writes++
			took := time.Duration(writes%5) * time.Millisecond
			slow := func(context.Context) error { pass(took); return nil }
			switch writes % 3 {
			case 0:
				return storetest.Fault{Before: slow}
			case 1:
				return storetest.Fault{After: slow}
			default:
				return storetest.Fault{Before: slow, Kind: storetest.LoseRequest}
			}
		}))
		cut := 0
		for i := range 1000 {
			key := fmt.Sprint(i)
			req := completeRequest(key, r.grant(key), &idemv1.Response{Body: []byte(key)})
			ctx, cancel := context.WithTimeout(r.ctx, time.Millisecond)
			_, err := r.Complete(ctx, req)
			cancel()
			if err != nil {
				if cut++; status.Code(err) != codes.DeadlineExceeded {
					t.Fatalf("completing %d: %v", i, err)
				}
				if i%2 == 0 {
					// This caller never comes back. The daemon reads back and writes again all the same: nobody else will.
					pass(time.Second)
				} else if _, err := r.Complete(r.ctx, req); err != nil {
					t.Fatalf("completing %d again: %v", i, err)
				}
			}
			if got := string(r.replay(key).GetResponse().GetBody()); got != key {
				t.Fatalf("%d is answered %q", i, got)
			}
		}
		if cut < 100 || cut > 900 {
			t.Errorf("%d of 1000 callers ran out of time: it was to be some and not all", cut)
		}
	})
}

// C31 at the wire: an answer over the policy's limit settles the entry all the same, and says what was left out.
func TestC31_AnswerOverTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for size, kept := range map[int]bool{ledger.DefaultMaxResponseBytes: true, ledger.DefaultMaxResponseBytes + 1: false} {
		key := fmt.Sprint(size)
		body := bytes.Repeat([]byte("x"), size)
		r.complete(key, r.grant(key), &idemv1.Response{Body: body, ResourceId: "ch_42"})
		got := r.replay(key).GetResponse()
		if kept != bytes.Equal(got.GetBody(), body) || got.GetBodyOmitted() == kept || got.GetResourceId() != "ch_42" {
			t.Errorf("%d bytes: %d came back, omitted %t, pointer %q", size, len(got.GetBody()), got.GetBodyOmitted(), got.GetResourceId())
		}
		if !kept && (got.GetBodySizeBytes() != int64(size) || len(got.GetBodySha256()) != 32) {
			t.Errorf("what was left out is not described: %d bytes, hash of %d bytes", got.GetBodySizeBytes(), len(got.GetBodySha256()))
		}
	}
}

// The largest body that a policy can keep goes both ways.
func TestLargestBodyGoesBothWays(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.putPolicy(&idemv1.Policy{MaxResponseBytes: ledger.MaxResponseBytes})
	body := bytes.Repeat([]byte("0123456789abcdef"), ledger.MaxResponseBytes/16)
	r.complete("k", r.grant("k"), &idemv1.Response{Body: body})
	if got := r.replay("k").GetResponse(); !bytes.Equal(got.GetBody(), body) {
		t.Errorf("%d of %d bytes came back, omitted %t", len(got.GetBody()), len(body), got.GetBodyOmitted())
	}
	if got := r.lookup("k").GetAnswer().GetResponse(); !bytes.Equal(got.GetBody(), body) {
		t.Error("Lookup shows another body")
	}
}

// unknownAny is a detail of a type that nothing in this process knows, with bytes that are no protobuf at all.
func unknownAny() *anypb.Any {
	return &anypb.Any{TypeUrl: "types.example.com/shop.v7.Declined", Value: []byte{0xff, 0x00, 0x01, 'x'}}
}

func mustAny(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// C32: every gRPC code from 1 to 16 with details, an unknown Any among them, and numbers that are no code: the replay is identical.
func TestC32_EveryCodeIsReplayedIdentically(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	details := []*anypb.Any{
		mustAny(t, &errdetails.ErrorInfo{Reason: "CARD_DECLINED", Domain: "shop.example.com", Metadata: map[string]string{"a": "1", "b": "2"}}),
		unknownAny(),
		mustAny(t, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "amount", Description: "must be positive"}}}),
		unknownAny(), // twice is twice
		{TypeUrl: "", Value: nil},
	}
	for _, code := range []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 99, -1, 1 << 30} {
		for _, with := range [][]*anypb.Any{nil, details} {
			key := fmt.Sprintf("code %d with %d details", code, len(with))
			failed := &statuspb.Status{Code: code, Message: "declined: \u00e9\u4e16\U0001f642", Details: with}
			r.fail(key, r.grant(key), idemv1.Disposition_DISPOSITION_FINAL, failed)
			got := r.begin(key).GetFailed()
			sameBytes(t, key, failed, got.GetStatus())
			if got.GetDisposition() != idemv1.Disposition_DISPOSITION_FINAL || got.GetDetailsOmitted() {
				t.Errorf("%s: replayed as %v, details omitted %t", key, got.GetDisposition(), got.GetDetailsOmitted())
			}
			sameBytes(t, key+", looked up", failed, r.lookup(key).GetFailure().GetStatus())
		}
	}
	// A caller that turns the replay into its own status gets the details by status.Details.
	replayed := status.FromProto(r.begin("code 9 with 5 details").GetFailed().GetStatus())
	info, ok := replayed.Details()[0].(*errdetails.ErrorInfo)
	if !ok || info.GetReason() != "CARD_DECLINED" || replayed.Code() != codes.FailedPrecondition {
		t.Errorf("read by status.Details: %v", replayed.Details())
	}
}

func sameBytes(t *testing.T, what string, want, got proto.Message) {
	t.Helper()
	a, errA := proto.MarshalOptions{Deterministic: true}.Marshal(want)
	b, errB := proto.MarshalOptions{Deterministic: true}.Marshal(got)
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// C33: metadata with commas, repeated names and binary values comes back in its order and multiplicity; what belongs to one exchange or is
// a credential never does.
func TestC33_MetadataKeepsOrderAndMultiplicity(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.putPolicy(&idemv1.Policy{ResponseMetadataAllow: []string{"vary", "trace-bin", "x-shop", "warning"}})
	kept := []*idemv1.MetadataEntry{
		{Key: "vary", Value: []byte("Accept, Accept-Language")},
		{Key: "trace-bin", Value: []byte{0, 0xff, ',', 0}},
		{Key: "vary", Value: []byte("Origin")},
		{Key: "x-shop", Value: nil},
		{Key: "trace-bin", Value: []byte{}},
		{Key: "vary", Value: []byte("Accept, Accept-Language")},
		{Key: "warning", Value: []byte(" 199 - \"x\" ")},
	}
	var sent []*idemv1.MetadataEntry
	for i, m := range kept {
		sent = append(sent, m, &idemv1.MetadataEntry{Key: []string{
			"set-cookie", "authorization", "x-request-id", "x-ratelimit-remaining", "grpc-status", "not-allowed", "retry-after",
		}[i], Value: []byte("never")})
	}
	r.complete("k", r.grant("k"), &idemv1.Response{Metadata: sent})
	got := r.replay("k").GetResponse().GetMetadata()
	if !proto.Equal(&idemv1.Response{Metadata: got}, &idemv1.Response{Metadata: kept}) {
		t.Errorf("replayed %v, want %v", got, kept)
	}
}

// C33: names that carry credentials or cookies can not even be allowed.
func TestC33_CredentialsCanNotBeAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for _, name := range []string{"set-cookie", "authorization", "x-request-id", "x-ratelimit-limit", "Vary", "a b", "x-auth-token"} {
		_, err := r.admin.PutPolicy(r.ctx, &idemv1.PutPolicyRequest{
			Policy: &idemv1.Policy{Tenant: "t", Operation: "o", ResponseMetadataAllow: []string{"ok", name}},
		})
		wantRefusal(t, err, ledger.ReasonInvalidPolicy, codes.InvalidArgument)
	}
}

// C34: a replayed failure can be told from a fresh one, with the time of the original; a replayed answer likewise.
func TestC34_ReplaysSayThatTheyAre(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	failed := r.fail("f", r.grant("f"), idemv1.Disposition_DISPOSITION_FINAL, unavailable("down"))
	done := r.complete("c", r.grant("c"), &idemv1.Response{})
	r.advance(time.Hour)
	f := r.begin("f").GetFailed()
	if !f.GetReplayed() || f.GetAttempt() != 1 || !proto.Equal(f.GetOriginalTime(), failed.GetTimes().GetSettleTime()) ||
		!proto.Equal(f.GetExpireTime(), failed.GetTimes().GetExpireTime()) {
		t.Errorf("the failure is replayed as %v, it was settled at %v", f, failed.GetTimes())
	}
	a := r.replay("c")
	if !a.GetReplayed() || a.GetAttempt() != 1 || !proto.Equal(a.GetOriginalTime(), done.GetTimes().GetSettleTime()) ||
		!proto.Equal(a.GetExpireTime(), done.GetTimes().GetExpireTime()) {
		t.Errorf("the answer is replayed as %v, it was settled at %v", a, done.GetTimes())
	}
}

// C52: odd keys are kept exactly, each its own entry, or refused INVALID_KEY with the rule.
func TestC52_KeysAreKeptExactlyOrRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	kept := []string{
		" ", "  ", "k", "k ", " k", "\"k\"", "'k'", "K", "\u00e9", "e\u0301", strings.Repeat("k", 255), strings.Repeat("\u4e16", 255),
		strings.Repeat("\U0001f642", 200), "a/b", "a:b", "a|b", "%00", "\\n", "NULL", "; DROP TABLE entries", "\u200b", "\ufeff",
	}
	for i, key := range kept {
		r.complete(key, r.grant(key), &idemv1.Response{Code: int32(i)})
	}
	for i, key := range kept {
		if got := r.replay(key).GetResponse().GetCode(); got != int32(i) {
			t.Errorf("%q is answered as key %d, want %d", key, got, i)
		}
		if got := r.lookup(key).GetRef().GetKey(); got != key {
			t.Errorf("%q comes back as %q", key, got)
		}
	}
	for key, rule := range map[string]string{
		"":                        "must not be empty",
		"a\x00b":                  "U+0000 at byte 1",
		"k\n":                     "U+000A at byte 1",
		"\tk":                     "U+0009 at byte 0",
		"\u007f":                  "U+007F at byte 0",
		"a\u0085":                 "U+0085 at byte 1",
		strings.Repeat("k", 256):  "has 256",
		strings.Repeat("é", 257):  "has 257",
		strings.Repeat("k", 9000): "has 9000",
	} {
		_, err := r.Begin(r.ctx, beginRequest(key))
		got := wantRefusal(t, err, ledger.ReasonInvalidKey, codes.InvalidArgument)
		v := got.bad.GetFieldViolations()
		if len(v) != 1 || v[0].GetField() != "ref.key" || !strings.Contains(v[0].GetDescription(), rule) {
			t.Errorf("%.20q: %v, want the field ref.key and a rule with %q", key, v, rule)
		}
		if len(key) > 3 && strings.Contains(got.text, key) {
			t.Errorf("the refusal repeats the key: %q", got.text)
		}
	}
}

// rawCodec sends bytes as they are, as a client in another language might.
type rawCodec struct{ encoding.CodecV2 }

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(_ mem.BufferSlice, _ any) error { return nil }

// C52: a key that is not UTF-8, which C++ and PHP let pass, is refused as any other bad key is; so is a message that is no protobuf.
func TestC52_KeyThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	var ref, begin []byte
	ref = protowire.AppendTag(ref, 2, protowire.BytesType)
	ref = protowire.AppendString(ref, operation)
	ref = protowire.AppendTag(ref, 3, protowire.BytesType)
	ref = protowire.AppendString(ref, "k\xff\xfe")
	begin = protowire.AppendTag(begin, 1, protowire.BytesType)
	begin = protowire.AppendBytes(begin, ref)
	send := func(method string, raw []byte) error {
		return r.daemon.Conn().Invoke(r.ctx, method, raw, new([]byte), grpc.ForceCodecV2(rawCodec{}))
	}
	got := wantRefusal(t, send(idemv1.LedgerService_Begin_FullMethodName, begin), ledger.ReasonInvalidKey, codes.InvalidArgument)
	if got.bad.GetFieldViolations()[0].GetField() != "ref.key" {
		t.Errorf("BadRequest %v", got.bad)
	}
	wantRefusal(t, send(idemv1.LedgerService_Lookup_FullMethodName, []byte{0xff, 0xff}), ledger.ReasonInvalidRequest, codes.InvalidArgument)

	stream, err := r.daemon.Conn().NewStream(r.ctx, &grpc.StreamDesc{ServerStreams: true}, idemv1.AdminService_ApplyPolicy_FullMethodName,
		grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg([]byte{0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, stream.RecvMsg(new([]byte)), ledger.ReasonInvalidRequest, codes.InvalidArgument)
}

// Who may not call at all is told that, and not what is wrong with the request.
func TestUndecodableRequestIsIdentifiedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{Identify: tied("a", 0)})
	err := r.daemon.Conn().Invoke(r.ctx, idemv1.LedgerService_Lookup_FullMethodName, []byte{0xff, 0xff}, new([]byte), grpc.ForceCodecV2(rawCodec{}))
	wantRefusal(t, err, ledger.ReasonPermissionDenied, codes.PermissionDenied)
}

// C53, as far as the ledger sees it: what names no key, no entry or no operation is refused with the field that is missing, and what names a
// key twice over is not possible, since it is a field.
func TestC53_MissingNamesAreNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for field, c := range map[string]struct {
		reason ledger.Reason
		ref    *idemv1.EntryRef
	}{
		"ref":           {ledger.ReasonInvalidRequest, nil},
		"ref.key":       {ledger.ReasonInvalidKey, &idemv1.EntryRef{Operation: operation}},
		"ref.operation": {ledger.ReasonInvalidOperation, &idemv1.EntryRef{Key: "k"}},
	} {
		for _, call := range []func() error{
			func() error {
				return second(r.Begin(r.ctx, beginRequest("k", func(b *idemv1.BeginRequest) { b.Ref = c.ref })))
			},
			func() error {
				return second(r.Complete(r.ctx, &idemv1.CompleteRequest{Ref: c.ref, ClaimToken: []byte("t"), Response: &idemv1.Response{}}))
			},
			func() error {
				return second(r.Extend(r.ctx, &idemv1.ExtendRequest{Ref: c.ref, ClaimToken: []byte("t")}))
			},
			func() error { return second(r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: c.ref})) },
			func() error {
				return second(r.Fail(r.ctx, &idemv1.FailRequest{
					Ref: c.ref, ClaimToken: []byte("t"), Status: unavailable("x"), Disposition: idemv1.Disposition_DISPOSITION_FINAL,
				}))
			},
		} {
			got := wantRefusal(t, call(), c.reason, codes.InvalidArgument)
			if v := got.bad.GetFieldViolations(); len(v) != 1 || v[0].GetField() != field {
				t.Errorf("%s: BadRequest %v", field, v)
			}
		}
	}
}

// C50: the same key from another tenant, another operation, or under bind_principal another principal, never gets the other's answer.
func TestC50_NobodyGetsAnothersAnswer(t *testing.T) {
	t.Parallel()
	who := principals{}
	r := newRig(t, servertest.Options{Identify: who.identify})
	a, b := who.as("alice", "a"), who.as("bob", "b")
	begin := func(as asPrincipal, ref *idemv1.EntryRef) (*idemv1.BeginResponse, error) {
		return r.Begin(as(r.ctx), beginRequest("", func(q *idemv1.BeginRequest) { q.Ref = ref }))
	}
	first, err := begin(a, refTo("k"))
	if err != nil || first.GetGranted() == nil {
		t.Fatalf("%v, %v", first, err)
	}
	if other, err := begin(b, refTo("k")); err != nil || other.GetGranted().GetAttempt() != 1 {
		t.Errorf("another tenant's same key: %v, %v", other, err)
	}
	if other, err := begin(a, &idemv1.EntryRef{Operation: "another", Key: "k"}); err != nil || other.GetGranted().GetAttempt() != 1 {
		t.Errorf("another operation's same key: %v, %v", other, err)
	}
	_, err = begin(b, &idemv1.EntryRef{Tenant: "a", Operation: operation, Key: "k"})
	wantRefusal(t, err, ledger.ReasonPermissionDenied, codes.PermissionDenied)

	root := who.as("root", "")
	bound := &idemv1.Policy{Tenant: "a", Operation: "*", BindPrincipal: true}
	if _, err := r.admin.PutPolicy(root(r.ctx), &idemv1.PutPolicyRequest{Policy: bound}); err != nil {
		t.Fatal(err)
	}
	mine, err := begin(a, refTo("bound"))
	if err != nil {
		t.Fatal(err)
	}
	carol := who.as("carol", "a")
	_, err = begin(carol, refTo("bound"))
	wantRefusal(t, err, ledger.ReasonPermissionDenied, codes.PermissionDenied)
	_, err = r.Complete(carol(r.ctx), completeRequest("bound", mine.GetGranted(), &idemv1.Response{}))
	wantRefusal(t, err, ledger.ReasonPermissionDenied, codes.PermissionDenied)
	_, err = r.Lookup(carol(r.ctx), &idemv1.LookupRequest{Ref: refTo("bound")})
	wantRefusal(t, err, ledger.ReasonPermissionDenied, codes.PermissionDenied)
	shown, err := r.Lookup(root(r.ctx), &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Tenant: "a", Operation: operation, Key: "bound"}})
	if err != nil || !shown.GetEntry().GetTerms().GetPrincipalBound() || shown.GetEntry().GetAttempts()[0].GetPrincipal() != "alice" {
		t.Errorf("an operator looks the bound entry up: %v, %v", shown, err)
	}
}
