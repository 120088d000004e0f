package server

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Numbers of fields that these tests write by hand.
const (
	callsField, callIDField, requestIDField, beginField = 1, 1, 3, 4
	refField, keyField                                  = 1, 3
)

func bytesField(number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

// brokenCall is a Begin whose key is no UTF-8.
func brokenCall(id uint64) []byte {
	call := protowire.AppendVarint(protowire.AppendTag(nil, callIDField, protowire.VarintType), id)
	return append(call, bytesField(beginField, bytesField(refField, bytesField(keyField, []byte("k\xff"))))...)
}

func decode(t testing.TB, raw []byte) *idemv1.SessionRequest {
	t.Helper()
	out := &idemv1.SessionRequest{}
	if err := newRequestCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, out); err != nil {
		t.Fatalf("an undecodable message is an error, and is not handed on: %v", err)
	}
	return out
}

// A call that can not be decoded is refused alone, with its field; the others of its message are as they were sent.
func TestUndecodableCallOfASessionIsRefusedAlone(t *testing.T) {
	t.Parallel()
	good, err := proto.Marshal(&idemv1.SessionRequest{
		Calls: []*idemv1.SessionCall{{Id: 1, Timeout: durationpb.New(5), RequestId: "r", Request: &idemv1.SessionCall_Lookup{
			Lookup: &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Operation: "o", Key: "k"}},
		}}},
		CancelIds: []uint64{7, 8},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, append(bytesField(callsField, brokenCall(2)), good...))
	if len(got.GetCalls()) != 2 || len(got.GetCancelIds()) != 2 || unreadable(got) != nil {
		t.Fatalf("decoded as %v", got)
	}
	if one := got.GetCalls()[1]; one.GetId() != 1 || one.GetLookup().GetRef().GetKey() != "k" || one.GetTimeout().AsDuration() != 5 || one.GetRequestId() != "r" {
		t.Errorf("the good call is %v", one)
	}
	if got.GetCalls()[0].GetId() != 2 {
		t.Errorf("the bad call is %v", got.GetCalls()[0])
	}
	s := newTestServer(t, nil)
	_, err = s.unaryCall(idemv1.LedgerService_Begin_FullMethodName, nil).handle(t.Context(), got.GetCalls()[0].GetBegin())
	if st := status.Convert(err); st.Code() != codes.InvalidArgument || reasonIn(st) != ledger.ReasonInvalidKey {
		t.Errorf("the bad call is refused %v", err)
	}
}

// A request id that is no text is passed over, as every other bad one is.
func TestUndecodableRequestIDIsPassedOver(t *testing.T) {
	t.Parallel()
	begin, err := proto.Marshal(&idemv1.SessionCall{Id: 3, Request: &idemv1.SessionCall_Begin{Begin: &idemv1.BeginRequest{Holder: "h"}}})
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, bytesField(callsField, append(bytesField(requestIDField, []byte("\xff")), begin...)))
	if len(got.GetCalls()) != 1 || got.GetCalls()[0].GetBegin().GetHolder() != "h" || got.GetCalls()[0].GetRequestId() != "" || unreadable(got.GetCalls()[0].GetBegin()) != nil {
		t.Errorf("decoded as %v", got)
	}
}

// What can not be told call by call is refused as a whole.
func TestUndecodableSessionMessage(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string][]byte{
		"garbage":       {0xff, 0xff},
		"no id":         bytesField(callsField, brokenCall(0)),
		"a broken call": bytesField(callsField, []byte{0x20, 0xff}),
		"no calls":      append(bytesField(callsField, brokenCall(1)), 0xff),
	} {
		if got := decode(t, raw); unreadable(got) == nil || len(got.GetCalls()) != 0 {
			t.Errorf("%s is decoded as %v", name, got)
		}
	}
}

// Whatever a caller sends, decoding ends with a message: that which protobuf itself reads, or one in which every call has an id and is either
// whole or marked, or one that is marked as a whole.
func FuzzSessionMessage(f *testing.F) {
	f.Add(bytesField(callsField, brokenCall(2)))
	f.Add(append(bytesField(callsField, brokenCall(2)), bytesField(callsField, brokenCall(3))...))
	f.Add([]byte{0xff})
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, callsField, protowire.VarintType), 48))
	f.Add(bytesField(callsField, bytesField(requestIDField, []byte("\xff"))))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, plain := decode(t, raw), &idemv1.SessionRequest{}
		err := proto.Unmarshal(raw, plain)
		if err == nil {
			if byCall := (&idemv1.SessionRequest{}); !readCalls(byCall, raw) || !proto.Equal(byCall, plain) || !proto.Equal(got, plain) {
				t.Fatalf("protobuf reads %v; call by call it is %v, and the codec reads %v", plain, byCall, got)
			}
			return
		}
		if unreadable(got) != nil {
			return
		}
		if _, err := proto.Marshal(got); err != nil {
			t.Errorf("what was read can not be written: %v", err)
		}
	})
}
