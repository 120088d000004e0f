package server

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/encoding"
	// Registers the codec that this one wraps.
	_ "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// requestCodec is gRPC's own, but for requests that can not be decoded. gRPC answers those INTERNAL by itself, before any interceptor sees
// the call. Most often they are texts that are not UTF-8, which C++, PHP and Ruby let their callers send: that is the caller's fault, and has to be
// refused as such, with the field, after the caller was identified, and counted and logged as every call is. So such a request is handed on empty
// and marked, and admission refuses it.
type requestCodec struct{ encoding.CodecV2 }

func newRequestCodec() requestCodec { return requestCodec{encoding.GetCodecV2("proto")} }

// Unmarshal implements [encoding.CodecV2].
func (c requestCodec) Unmarshal(data mem.BufferSlice, into any) error {
	err := c.CodecV2.Unmarshal(data, into)
	m, ok := into.(proto.Message)
	if err == nil || !ok || m.ProtoReflect().Descriptor().ParentFile().Package() != ErrorDomain {
		return err
	}
	raw := data.Materialize()
	if session, ok := m.(*idemv1.SessionRequest); ok && readCalls(session, raw) {
		return nil
	}
	markUnreadable(m.ProtoReflect(), raw)
	return nil
}

// markUnreadable empties a request that could not be decoded from raw.
func markUnreadable(m protoreflect.Message, raw []byte) {
	proto.Reset(m.Interface())
	mark := protowire.AppendTag(nil, unreadableNumber, protowire.BytesType)
	m.SetUnknown(protowire.AppendString(mark, notUTF8(m.Descriptor(), raw)))
}

// readCalls decodes a session's message call by call, so that what is wrong with one call is told to that one. It reports false where a call
// can not be told by its id, or something else than a call is wrong.
func readCalls(into *idemv1.SessionRequest, raw []byte) bool {
	proto.Reset(into)
	calls := (&idemv1.SessionRequest{}).ProtoReflect().Descriptor().Fields().ByName("calls").Number()
	var others []byte
	for len(raw) > 0 {
		number, wire, n := protowire.ConsumeTag(raw)
		size := protowire.ConsumeFieldValue(number, wire, raw[max(n, 0):])
		if n < 0 || size < 0 {
			return false
		}
		if number != calls || wire != protowire.BytesType {
			others = append(others, raw[:n+size]...)
		} else {
			value, _ := protowire.ConsumeBytes(raw[n:])
			call := &idemv1.SessionCall{}
			if err := proto.Unmarshal(value, call); err != nil && !readCall(call, value) {
				return false
			}
			into.Calls = append(into.Calls, call)
		}
		raw = raw[n+size:]
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(others, into) == nil
}

// readCall decodes what can be decoded of a call. A request that can not be is marked, and a request id is left out.
func readCall(call *idemv1.SessionCall, raw []byte) bool {
	proto.Reset(call)
	m := call.ProtoReflect()
	for len(raw) > 0 {
		number, wire, n := protowire.ConsumeTag(raw)
		size := protowire.ConsumeFieldValue(number, wire, raw[max(n, 0):])
		if n < 0 || size < 0 {
			return false
		}
		field := m.Descriptor().Fields().ByNumber(number)
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(raw[:n+size], call); err != nil {
			switch value, _ := protowire.ConsumeBytes(raw[n:]); {
			case field == nil || wire != protowire.BytesType || field.Kind() == protoreflect.StringKind:
			case field.ContainingOneof() != nil:
				markUnreadable(m.Mutable(field).Message(), value)
			default:
				return false
			}
		}
		raw = raw[n+size:]
	}
	return call.GetId() != 0
}

// unreadableNumber is a field number that protobuf keeps for implementations, so no message has it. Its value is the path of the text that is
// no UTF-8; empty where something else is wrong. A caller who sends it is refused, and has asked for it.
const unreadableNumber = 19_999

// unreadable refuses a request that could not be decoded.
func unreadable(req any) error {
	m, ok := req.(proto.Message)
	if !ok || len(m.ProtoReflect().GetUnknown()) == 0 {
		return nil
	}
	number, kind, n := protowire.ConsumeTag(m.ProtoReflect().GetUnknown())
	if n < 0 || number != unreadableNumber || kind != protowire.BytesType {
		return nil
	}
	field, _ := protowire.ConsumeString(m.ProtoReflect().GetUnknown()[n:])
	if field == "" {
		return &ledger.Refusal{Reason: ledger.ReasonInvalidRequest, Message: "the message can not be decoded: it is no valid protobuf of its kind"}
	}
	return badField(reasonOf(field), field, "must be valid UTF-8")
}

// notUTF8 finds the first text in a message that is no UTF-8 and returns its path, "" where there is none. It looks at what callers name things by, one
// message inside another, and not into lists beyond their first bad member.
func notUTF8(kind protoreflect.MessageDescriptor, raw []byte) string {
	for len(raw) > 0 {
		number, wire, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return ""
		}
		raw = raw[n:]
		size := protowire.ConsumeFieldValue(number, wire, raw)
		if size < 0 {
			return ""
		}
		if path := notUTF8In(kind.Fields().ByNumber(number), wire, raw[:size]); path != "" {
			return path
		}
		raw = raw[size:]
	}
	return ""
}

func notUTF8In(field protoreflect.FieldDescriptor, wire protowire.Type, raw []byte) string {
	if field == nil || wire != protowire.BytesType {
		return ""
	}
	value, _ := protowire.ConsumeBytes(raw)
	switch {
	case field.Kind() == protoreflect.StringKind && !utf8.Valid(value):
		return string(field.Name())
	case field.Kind() == protoreflect.MessageKind:
		if inner := notUTF8(field.Message(), value); inner != "" {
			return strings.Join([]string{string(field.Name()), inner}, ".")
		}
	}
	return ""
}
