package server

import (
	"math"
	"strings"
	"testing"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Whatever a response holds, it comes back from the ledger's form as it was.
func TestResponsesSurviveConversion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := drawMessage(t, (&idemv1.Response{}).ProtoReflect(), 3).Interface().(*idemv1.Response)
		if !r.GetBodyOmitted() {
			r.BodySizeBytes, r.BodySha256 = 0, nil // said only of a body that is not there
		}
		if got := response(responseOf(r)); !proto.Equal(got, r) {
			t.Fatalf("%v became %v", r, got)
		}
	})
}

// Whatever a status holds, unknown codes and unknown details too, it comes back as it was.
func TestStatusesSurviveConversion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		st := &statuspb.Status{Code: rapid.Int32().Draw(t, "code"), Message: rapid.String().Draw(t, "message")}
		for range rapid.IntRange(0, 4).Draw(t, "details") {
			st.Details = append(st.Details, &anypb.Any{TypeUrl: rapid.String().Draw(t, "type"), Value: rapid.SliceOf(rapid.Byte()).Draw(t, "value")})
		}
		if got := statusOf(failureOf(st)); !proto.Equal(got, st) {
			t.Fatalf("%v became %v", st, got)
		}
	})
}

// Whatever a policy holds, within what validation lets through, it is shown as it was written.
func TestPoliciesSurviveConversion(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawMessage(t, (&idemv1.Policy{}).ProtoReflect(), 2).Interface().(*idemv1.Policy)
		p.Retention, p.RetentionHorizon, p.UpdateTime, p.Etag = nil, 0, nil, "" // output only
		normal := proto.Clone(p).(*idemv1.Policy)
		// Zero is the same as unset, but for a wait and a tombstone.
		for _, d := range []**durationpb.Duration{&normal.Lease, &normal.ReclaimWithin} {
			dropZero(d)
		}
		if h := normal.GetHorizons(); h != nil {
			for _, d := range []**durationpb.Duration{&h.ClientRetry, &h.QueueRedelivery, &h.WebhookReplay, &h.OperatorReplay, &h.Settlement} {
				dropZero(d)
			}
			if proto.Size(h) == 0 {
				normal.Horizons = nil
			}
		}
		if f := normal.GetKeyFormat(); f != nil && proto.Size(f) == 0 {
			normal.KeyFormat = nil
		}
		written := policyOf(p)
		got := policy(ledger.PolicyView{Policy: &written, Rules: written.Rules(ledger.Clamp{})})
		got.Retention, got.RetentionHorizon = nil, 0
		if !proto.Equal(got, normal) {
			t.Fatalf("%v\nbecame\n%v", normal, got)
		}
	})
}

func dropZero(d **durationpb.Duration) {
	if (*d).AsDuration() == 0 {
		*d = nil
	}
}

// drawMessage fills a message in at random: every field may be there or not.
func drawMessage(t *rapid.T, m protoreflect.Message, depth int) protoreflect.Message {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := string(f.FullName())
		switch {
		case !rapid.Bool().Draw(t, name+" is set"):
		case f.IsList():
			list := m.Mutable(f).List()
			for range rapid.IntRange(0, 3).Draw(t, name+" length") {
				if f.Message() != nil {
					list.Append(protoreflect.ValueOfMessage(drawMessage(t, list.NewElement().Message(), depth-1)))
				} else {
					list.Append(drawScalar(t, f))
				}
			}
		case f.Message() == nil:
			m.Set(f, drawScalar(t, f))
		case f.Message().FullName() == "google.protobuf.Duration":
			d := rapid.Int64Range(0, int64(10*365*24*time.Hour)).Draw(t, name)
			m.Set(f, protoreflect.ValueOfMessage(duration(time.Duration(d)).ProtoReflect()))
		case depth > 0:
			m.Set(f, protoreflect.ValueOfMessage(drawMessage(t, m.NewField(f).Message(), depth-1)))
		}
	}
	return m
}

func drawScalar(t *rapid.T, f protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(f.FullName())
	switch f.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, name))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, name))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, name))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, name))
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(rapid.IntRange(0, values.Len()-1).Draw(t, name)).Number())
	default:
		t.Fatalf("%s is of kind %v, which this test does not draw", name, f.Kind())
		return protoreflect.Value{}
	}
}

// Every value of every enum that goes over the wire has its counterpart in the ledger, and back.
func TestEnumsHaveTheirCounterparts(t *testing.T) {
	t.Parallel()
	check := func(name string, values protoreflect.EnumValueDescriptors, has func(protoreflect.EnumNumber) bool) {
		for i := range values.Len() {
			v := values.Get(i)
			if has(v.Number()) == (v.Number() == 0) {
				t.Errorf("%s: %s has a counterpart: %t", name, v.Name(), v.Number() == 0)
			}
		}
	}
	conditions, ends, resolutions, horizons := map[idemv1.EntryCondition]bool{}, map[idemv1.AttemptEnding]bool{}, map[idemv1.ResolutionKind]bool{}, map[idemv1.RetentionHorizon]bool{}
	for _, c := range wireConditions {
		conditions[c] = true
	}
	for _, e := range wireEndings {
		ends[e] = true
	}
	for _, r := range wireResolutions {
		resolutions[r] = true
	}
	for _, h := range retentionHorizons {
		horizons[h] = true
	}
	check("condition", idemv1.EntryCondition(0).Descriptor().Values(), func(n protoreflect.EnumNumber) bool { return conditions[idemv1.EntryCondition(n)] })
	check("ending", idemv1.AttemptEnding(0).Descriptor().Values(), func(n protoreflect.EnumNumber) bool { return ends[idemv1.AttemptEnding(n)] })
	check("resolution", idemv1.ResolutionKind(0).Descriptor().Values(), func(n protoreflect.EnumNumber) bool { return resolutions[idemv1.ResolutionKind(n)] })
	check("horizon", idemv1.RetentionHorizon(0).Descriptor().Values(), func(n protoreflect.EnumNumber) bool { return horizons[idemv1.RetentionHorizon(n)] })
	check("disposition", idemv1.Disposition(0).Descriptor().Values(), func(n protoreflect.EnumNumber) bool { return dispositions[idemv1.Disposition(n)] != 0 })
	for wire, ours := range dispositions {
		if wireDispositions[ours] != wire {
			t.Errorf("%v becomes %v", wire, wireDispositions[ours])
		}
	}
	// These have the ledger's numbers.
	for wire, ours := range map[protoreflect.Enum]int16{
		idemv1.OnAbandoned_ON_ABANDONED_RECLAIM: int16(ledger.Reclaim), idemv1.OnAbandoned_ON_ABANDONED_HOLD: int16(ledger.Hold),
		idemv1.StoreResponse_STORE_RESPONSE_FULL: int16(ledger.StoreFull), idemv1.StoreResponse_STORE_RESPONSE_POINTER: int16(ledger.StorePointer),
		idemv1.StoreResponse_STORE_RESPONSE_NONE: int16(ledger.StoreNone), idemv1.KeyFormatKind_KEY_FORMAT_KIND_ANY: int16(ledger.KeyAny),
		idemv1.KeyFormatKind_KEY_FORMAT_KIND_UUID: int16(ledger.KeyUUID), idemv1.KeyFormatKind_KEY_FORMAT_KIND_PATTERN: int16(ledger.KeyPattern),
	} {
		if int16(wire.Number()) != ours {
			t.Errorf("%v has number %d, the ledger's is %d", wire, wire.Number(), ours)
		}
	}
}

// Instants that are not set, relative or never are unset on the wire.
func TestTimestamps(t *testing.T) {
	t.Parallel()
	for _, unset := range []ledger.Time{0, ledger.Never, ledger.In(time.Second), math.MinInt64} {
		if got := timestamp(unset); got != nil {
			t.Errorf("%d becomes %v", unset, got)
		}
	}
	if got := timestamp(1_800_000_000_123_456); got.GetSeconds() != 1_800_000_000 || got.GetNanos() != 123_456_000 {
		t.Errorf("got %v", got)
	}
}

// An etag is read only as it was written.
func TestEtagsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	for etag, want := range map[string]int64{
		"": anyRevision, "1": 1, "12": 12, "0": noRevision, "-1": noRevision, "01": noRevision, "+1": noRevision, " 1": noRevision, "1.0": noRevision,
		"9223372036854775808": noRevision,
	} {
		if got := revisionOf(etag); got != want {
			t.Errorf("%q is revision %d, want %d", etag, got, want)
		}
	}
}

// An entry that is held by the time it would lapse does not lapse.
func TestLapseTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ hold, due, want ledger.Time }{
		{ledger.Never, 5_000_000, 5_000_000}, {6_000_000, 5_000_000, 5_000_000}, {5_000_000, 5_000_000, 0}, {0, 5_000_000, 0}, {0, ledger.Never, 0},
	} {
		if got := lapseTime(&ledger.Entry{HoldFrom: c.hold, DueAt: c.due}); !proto.Equal(got, timestamp(c.want)) {
			t.Errorf("held from %d, due at %d: %v", c.hold, c.due, got)
		}
	}
}

// The conversion itself takes a UUID in its canonical form only, whatever validation let through.
func TestAttemptIDIsParsedStrictly(t *testing.T) {
	t.Parallel()
	const id = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
	for text, ok := range map[string]bool{
		id: true, strings.ToUpper(id): true, "{" + id + "}": false, "urn:uuid:" + id: false, strings.ReplaceAll(id, "-", ""): false, "": false,
	} {
		if _, err := beginRequestOf(&idemv1.BeginRequest{AttemptId: text}); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
