package server

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"github.com/google/uuid"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// ordinary are requests as most are.
func ordinary() []proto.Message {
	ref := &idemv1.EntryRef{Tenant: "acme", Operation: "/payments.v1.PaymentService/Charge", Key: uuid.NewString()}
	begin := &idemv1.BeginRequest{
		Ref: ref, Fingerprints: []*idemv1.Fingerprint{{Algorithm: "proto-1", Hash: make([]byte, 32)}}, AttemptId: uuid.NewString(),
		Holder: "payments-7f9c8d6b5-x2x4z", Wait: durationpb.New(1e9), Mode: idemv1.BeginMode_BEGIN_MODE_RUN,
	}
	complete := &idemv1.CompleteRequest{Ref: ref, ClaimToken: make([]byte, 45), Response: &idemv1.Response{Body: make([]byte, 200), ContentType: "application/proto"}}
	fail := &idemv1.FailRequest{
		Ref: ref, ClaimToken: make([]byte, 45), Status: &statuspb.Status{Code: 9, Message: "declined"}, Disposition: idemv1.Disposition_DISPOSITION_FINAL,
	}
	extend := &idemv1.ExtendRequest{Ref: ref, ClaimToken: make([]byte, 45), Lease: durationpb.New(30e9)}
	return []proto.Message{
		begin, complete, fail, extend, &idemv1.LookupRequest{Ref: ref},
		&idemv1.SessionRequest{
			Calls: []*idemv1.SessionCall{
				{Id: 1, Timeout: durationpb.New(1e9), Request: &idemv1.SessionCall_Begin{Begin: begin}},
				{Id: 2, RequestId: "r", Request: &idemv1.SessionCall_Complete{Complete: complete}},
			},
			CancelIds: []uint64{7},
		},
	}
}

func TestOrdinaryRequestsArePlain(t *testing.T) {
	t.Parallel()
	for _, req := range ordinary() {
		if !plainlyValid(req) {
			t.Errorf("%T is evaluated by the rules: %v", req, req)
		}
	}
}

// Nothing is plain that the rules of the .proto refuse. The requests are ordinary ones in which some fields were changed, at any depth, to what lies on either side of a
// limit; fields that are added to the .proto later are among them.
func TestWhatIsPlainIsWellFormed(t *testing.T) {
	t.Parallel()
	validator, err := newValidator()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same every time
	plains, refused := map[string]int{}, map[string]int{}
	for range 20_000 {
		for _, req := range ordinary() {
			for range 1 + random.IntN(3) {
				disturb(random, req.ProtoReflect())
			}
			if named, ok := req.(interface{ GetRef() *idemv1.EntryRef }); ok && named.GetRef() != nil && refOf(named.GetRef()).Validate() != nil {
				continue // the ledger refuses it before anybody looks whether it is plain
			}
			name := string(req.ProtoReflect().Descriptor().Name())
			broken := validator.rules.Validate(req, protovalidate.WithFailFast())
			if broken != nil {
				refused[name]++
			}
			if !plainlyValid(req) {
				continue
			}
			if plains[name]++; broken != nil {
				t.Fatalf("%s is plain, and the rules refuse it: %v\n%v", name, broken, req)
			}
		}
	}
	for _, req := range ordinary() {
		name := string(req.ProtoReflect().Descriptor().Name())
		// Of a Lookup only a missing ref is refused by the rules and not by the ledger.
		if plains[name] < 1000 || refused[name] < 100 {
			t.Errorf("of %s %d were plain and %d refused: too few to say anything", name, plains[name], refused[name])
		}
	}
}

// disturb changes one field of m, or of what is in it.
func disturb(random *rand.Rand, m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	field := fields.Get(random.IntN(fields.Len()))
	switch {
	case field.IsMap():
	case field.IsList():
		disturbList(random, m.Mutable(field).List(), field)
	case field.Message() == nil:
		m.Set(field, scalar(random, field))
	case random.IntN(8) == 0:
		m.Clear(field)
	default:
		disturb(random, m.Mutable(field).Message())
	}
}

func disturbList(random *rand.Rand, list protoreflect.List, field protoreflect.FieldDescriptor) {
	element := func() protoreflect.Value {
		if field.Message() == nil {
			return scalar(random, field)
		}
		return list.NewElement()
	}
	switch n := list.Len(); {
	case random.IntN(8) == 0:
		list.Truncate(0)
	case random.IntN(20) == 0:
		more := element()
		if n > 0 {
			more = list.Get(0) // which is well formed, most often
		}
		for list.Len() < MaxSessionCalls+random.IntN(3)-1 {
			list.Append(more)
		}
	case n > 0 && field.Message() != nil && random.IntN(2) == 0:
		disturb(random, list.Get(random.IntN(n)).Message())
	case n > 0 && field.Message() != nil && random.IntN(2) == 0:
		list.Append(protoreflect.ValueOfMessage(proto.Clone(list.Get(random.IntN(n)).Message().Interface()).ProtoReflect()))
	default:
		list.Append(element())
	}
}

// scalar is a value of a field's kind that might be on the wrong side of a limit.
func scalar(random *rand.Rand, field protoreflect.FieldDescriptor) protoreflect.Value {
	lengths := []int{0, 1, 15, 16, 17, 31, 32, 33, 35, 36, 37, 63, 64, 65, 127, 128, 129, 254, 255, 256, 1024}
	length := lengths[random.IntN(len(lengths))]
	numbers := []int64{0, 1, -1, 2, 3, 4, 5, 1e9 - 1, 1e9, 86_399, 86_400, 86_401, math.MaxInt32, math.MinInt32, 315_576_000_000, math.MaxInt64, math.MinInt64}
	number := numbers[random.IntN(len(numbers))]
	switch field.Kind() {
	case protoreflect.StringKind:
		texts := []string{
			strings.Repeat("a", length), strings.Repeat("é", length), "*", "A", "under_score", "a b", "tab\t", "\x7f", "\u0085", "\u00a0", "~", "\x1f", " ",
			uuid.Nil.String(), uuid.NewString(), strings.ToUpper(uuid.NewString()), "00000000-0000-1000-0000-000000000000",
			strings.ReplaceAll(uuid.NewString(), "-", ""), fmt.Sprintf("{%s}", uuid.NewString())[:36], strings.Repeat("g", 8) + uuid.NewString()[8:],
		}
		return protoreflect.ValueOfString(texts[random.IntN(len(texts))])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, length))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(random.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(number))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(number))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(number)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(number))
	default:
		panic("no value for a field of kind " + field.Kind().String())
	}
}
