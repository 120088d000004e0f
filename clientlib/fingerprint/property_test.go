package fingerprint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"pgregory.net/rapid"
)

// propertyTypes are the message types that the properties below are checked on.
var propertyTypes = []string{"Scalars", "Optionals", "Lists", "Maps", "Choice", "Request", "old.Old"}

// drawMessage makes any message of a type, at most levels deep.
func drawMessage(t *rapid.T, descriptor protoreflect.MessageDescriptor, levels int) *dynamicpb.Message {
	message := dynamicpb.NewMessage(descriptor)
	fields := descriptor.Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !rapid.Bool().Draw(t, "set "+string(field.Name())) || levels == 1 && hasMessage(field) {
			continue
		}
		switch {
		case field.IsMap():
			entries := message.Mutable(field).Map()
			for range rapid.IntRange(0, 3).Draw(t, "entries") {
				entries.Set(drawScalar(t, field.MapKey()).MapKey(), drawValue(t, field.MapValue(), levels))
			}
		case field.IsList():
			list := message.Mutable(field).List()
			for range rapid.IntRange(0, 3).Draw(t, "elements") {
				list.Append(drawValue(t, field, levels))
			}
		default:
			message.Set(field, drawValue(t, field, levels))
		}
	}
	return message
}

func hasMessage(field protoreflect.FieldDescriptor) bool {
	if field.IsMap() {
		field = field.MapValue()
	}
	return field.Message() != nil
}

func drawValue(t *rapid.T, field protoreflect.FieldDescriptor, levels int) protoreflect.Value {
	if field.Message() != nil {
		return protoreflect.ValueOfMessage(drawMessage(t, field.Message(), levels-1))
	}
	return drawScalar(t, field)
}

func drawScalar(t *rapid.T, field protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(field.Name())
	switch field.Kind() { //nolint:exhaustive // messages and groups are drawn elsewhere
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(rapid.Int32Range(-2, 3).Draw(t, name)))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(rapid.Int32().Draw(t, name))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(rapid.Int64().Draw(t, name))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(rapid.Uint32().Draw(t, name))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(rapid.Uint64().Draw(t, name))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits(rapid.Uint32().Draw(t, name)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(rapid.Uint64().Draw(t, name)))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.String().Draw(t, name))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOf(rapid.Byte()).Draw(t, name))
	}
	panic(field.Kind())
}

// sameRequest is what docs/fingerprint.md calls the same request, said a second time with protobuf's own
// notion of equality: after numbers have the one form that the page gives them, and what it leaves out is gone.
func sameRequest(a, b proto.Message) bool {
	return proto.Equal(normalised(a), normalised(b))
}

func normalised(message proto.Message) proto.Message {
	message = proto.Clone(message)
	normalise(message.ProtoReflect())
	return message
}

func normalise(message protoreflect.Message) {
	message.SetUnknown(nil)
	var present []protoreflect.FieldDescriptor // extensions too
	message.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		present = append(present, field)
		return true
	})
	for _, field := range present {
		if markedExcluded(field.Options()) {
			message.Clear(field)
			continue
		}
		switch {
		case field.IsMap():
			entries := message.Mutable(field).Map()
			entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				switch {
				case field.MapValue().Message() != nil:
					normalise(value.Message())
				case undeclared(field.MapValue(), value):
					entries.Clear(key)
				}
				return true
			})
		case field.IsList():
			list := message.Mutable(field).List()
			kept := 0
			for i := range list.Len() {
				value := list.Get(i)
				if field.Message() != nil {
					normalise(value.Message())
				}
				if !undeclared(field, value) {
					list.Set(kept, value)
					kept++
				}
			}
			list.Truncate(kept)
		case field.Message() != nil:
			normalise(message.Mutable(field).Message())
		case undeclared(field, message.Get(field)):
			message.Clear(field)
		case field.Kind() == protoreflect.FloatKind || field.Kind() == protoreflect.DoubleKind:
			if message.Get(field).Float() == 0 && !field.HasPresence() {
				message.Clear(field)
			}
		}
	}
}

func undeclared(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
	return field.Enum() != nil && field.Enum().IsClosed() && field.Enum().Values().ByNumber(value.Enum()) == nil
}

// mutations lists everything that can be changed about a message in one place; each changes it when called.
func mutations(message protoreflect.Message) []func() {
	var list []func()
	fields := message.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case !message.Has(field):
			switch {
			case field.IsMap():
				key := oneBitOff(field.MapKey(), field.MapKey().Default()).MapKey()
				list = append(list, func() { m := message.Mutable(field).Map(); m.Set(key, m.NewValue()) })
			case field.IsList():
				list = append(list, func() { l := message.Mutable(field).List(); l.Append(l.NewElement()) })
			case field.Message() != nil:
				list = append(list, func() { message.Mutable(field) })
			case field.HasPresence():
				list = append(list, func() { message.Set(field, field.Default()) })
			default:
				list = append(list, func() { message.Set(field, oneBitOff(field, message.Get(field))) })
			}
		case field.IsMap():
			message.Get(field).Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				list = append(list, func() { message.Mutable(field).Map().Clear(key) })
				if field.MapValue().Message() != nil {
					list = append(list, mutations(value.Message())...)
				} else {
					list = append(list, func() { message.Mutable(field).Map().Set(key, oneBitOff(field.MapValue(), value)) })
				}
				return true
			})
		case field.IsList():
			elements := message.Get(field).List()
			list = append(list, func() { l := message.Mutable(field).List(); l.Truncate(l.Len() - 1) })
			for i := range elements.Len() {
				if field.Message() != nil {
					list = append(list, mutations(elements.Get(i).Message())...)
				} else {
					list = append(list, func() { message.Mutable(field).List().Set(i, oneBitOff(field, elements.Get(i))) })
				}
			}
		case field.Message() != nil:
			list = append(list, func() { message.Clear(field) })
			list = append(list, mutations(message.Get(field).Message())...)
		default:
			list = append(list, func() { message.Clear(field) })
			list = append(list, func() { message.Set(field, oneBitOff(field, message.Get(field))) })
		}
	}
	return list
}

// oneBitOff gives the value with its lowest bit turned over, or a bit added where there is none.
func oneBitOff(field protoreflect.FieldDescriptor, value protoreflect.Value) protoreflect.Value {
	switch field.Kind() { //nolint:exhaustive // messages and groups are changed elsewhere
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(!value.Bool())
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(value.Enum() ^ 1)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(value.Int()) ^ 1)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(value.Int() ^ 1)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(value.Uint()) ^ 1)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(value.Uint() ^ 1)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(math.Float32frombits(math.Float32bits(float32(value.Float())) ^ 1))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(math.Float64frombits(math.Float64bits(value.Float()) ^ 1))
	case protoreflect.StringKind:
		changed := []byte(value.String())
		for i := len(changed) - 1; i >= 0; i-- {
			if changed[i] ^= 1; utf8.Valid(changed) {
				return protoreflect.ValueOfString(string(changed))
			}
			changed[i] ^= 1
		}
		return protoreflect.ValueOfString(value.String() + "\x01")
	case protoreflect.BytesKind:
		if len(value.Bytes()) == 0 {
			return protoreflect.ValueOfBytes([]byte{1})
		}
		changed := slices.Clone(value.Bytes())
		changed[len(changed)-1] ^= 1
		return protoreflect.ValueOfBytes(changed)
	}
	panic(field.Kind())
}

// TestC40_OneChangeChangesTheHash: of any message, one bit, one element, one entry, one field set or unset
// makes another fingerprint, unless docs/fingerprint.md says that it is the same request.
func TestC40_OneChangeChangesTheHash(t *testing.T) {
	_, schemas := loadVectors(t)
	s := schemas["main"]
	for _, name := range propertyTypes {
		hasher := mustHasher(t, s.descriptor(t, vectorsPackage+name), ProtoConfig{Resolver: s.types})
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			original := drawMessage(t, hasher.root.message, 3)
			changed := proto.Clone(original)
			all := mutations(changed.ProtoReflect())
			all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]()

			before, err := hasher.Sum(original)
			if err != nil {
				t.Fatal(err)
			}
			after, err := hasher.Sum(changed)
			if errorsAnyOf(err, ReasonBadAny) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if before.Equal(after.Fingerprint) != sameRequest(original, changed) {
				t.Fatalf("same fingerprint: %v, same request: %v\n%v\n%v", before.Equal(after.Fingerprint), sameRequest(original, changed), original, changed)
			}
		}))
	}
}

func errorsAnyOf(err error, reasons ...Reason) bool {
	var refusal *Error
	return errors.As(err, &refusal) && slices.Contains(reasons, refusal.Reason)
}

// TestC40_EveryBitOfTheWire: turn over every single bit of some requests as they are sent. What still parses
// has another fingerprint, or is the same message to protobuf as well.
func TestC40_EveryBitOfTheWire(t *testing.T) {
	file, schemas := loadVectors(t)
	flipped := 0
	for _, name := range []string{
		"scalars", "optional: set to default", "lists", "map keys in order of their bytes", "oneof: empty message", "struct",
		"nothing excluded", "proto2: groups", "excluded by its mark", "NaN", "rollout: old request, new schema",
	} {
		at := slices.IndexFunc(file.Proto, func(v protoVector) bool { return v.Name == name })
		vector := file.Proto[at]
		s := schemas[vector.Descriptors]
		hasher := mustHasher(t, s.descriptor(t, vector.Message), ProtoConfig{Resolver: s.types})
		wire := mustHex(t, vector.Wire)
		original := s.parse(t, vector.Message, wire)
		for bit := range 8 * len(wire) {
			wire[bit/8] ^= 1 << (bit % 8)
			changed := dynamicpb.NewMessage(hasher.root.message)
			parsed := parse(wire, changed, s.types)
			wire[bit/8] ^= 1 << (bit % 8)
			if !parsed {
				continue
			}
			flipped++
			got, err := hasher.Sum(changed)
			if errorsAnyOf(err, ReasonInvalidUTF8) {
				continue
			}
			if err != nil {
				t.Fatalf("%s, bit %d: %v", name, bit, err)
			}
			if (fmt.Sprintf("%x", got.Hash) == vector.Hash) != sameRequest(original, changed) {
				t.Errorf("%s, bit %d: same request %v, but the fingerprints say otherwise", name, bit, sameRequest(original, changed))
			}
		}
	}
	if flipped < 1000 {
		t.Errorf("only %d messages to look at", flipped)
	}
}

// TestC41_SerialisationsAgree: the same message, its records in any order and its lists packed or not, is the
// same request.
func TestC41_SerialisationsAgree(t *testing.T) {
	_, schemas := loadVectors(t)
	s := schemas["main"]
	for _, name := range propertyTypes {
		hasher := mustHasher(t, s.descriptor(t, vectorsPackage+name), ProtoConfig{Resolver: s.types})
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			message := drawMessage(t, hasher.root.message, 3)
			wire, err := proto.MarshalOptions{AllowPartial: true}.Marshal(message)
			if err != nil {
				t.Fatal(err)
			}
			rewritten := rewrite(t, hasher.root.message, wire)
			again := dynamicpb.NewMessage(hasher.root.message)
			if err := (proto.UnmarshalOptions{Resolver: s.types, AllowPartial: true}).Unmarshal(rewritten, again); err != nil {
				t.Fatal(err)
			}
			want, err := hasher.Sum(message)
			if err != nil {
				t.Fatal(err)
			}
			got, err := hasher.Sum(again)
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(want.Fingerprint) {
				t.Fatalf("%x and %x are one message with two fingerprints", wire, rewritten)
			}
		}))
	}
}

// rewrite serialises a message otherwise: records of different fields in another order, entries of maps too,
// packed lists in pieces or unpacked, and all of that in submessages.
func rewrite(t *rapid.T, descriptor protoreflect.MessageDescriptor, wire []byte) []byte {
	type record struct {
		number protowire.Number
		raw    []byte
	}
	var records []record
	for len(wire) > 0 {
		number, kind, tagSize := protowire.ConsumeTag(wire)
		size := protowire.ConsumeFieldValue(number, kind, wire[tagSize:])
		if size < 0 {
			t.Fatal("not a message")
		}
		value := wire[tagSize : tagSize+size]
		raw := wire[:tagSize+size]
		wire = wire[tagSize+size:]
		field := descriptor.Fields().ByNumber(number)
		switch {
		case field == nil:
		case kind == protowire.BytesType && field.Message() != nil:
			inner, _ := protowire.ConsumeBytes(value)
			raw = protowire.AppendBytes(protowire.AppendTag(nil, number, kind), rewrite(t, field.Message(), inner))
		case kind == protowire.BytesType && field.IsList() && field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind:
			packed, _ := protowire.ConsumeBytes(value)
			raw = nil
			for len(packed) > 0 {
				elementKind := protowire.VarintType
				if field.Kind() == protoreflect.DoubleKind {
					elementKind = protowire.Fixed64Type
				}
				n := protowire.ConsumeFieldValue(number, elementKind, packed)
				if rapid.Bool().Draw(t, "unpacked") {
					raw = append(protowire.AppendTag(raw, number, elementKind), packed[:n]...)
				} else {
					raw = protowire.AppendBytes(protowire.AppendTag(raw, number, protowire.BytesType), packed[:n])
				}
				packed = packed[n:]
			}
		}
		records = append(records, record{number, raw})
	}
	// Records of one field keep their order: for lists it counts.
	order := rapid.Permutation(records).Draw(t, "order")
	slices.SortStableFunc(records, func(a, b record) int { return int(a.number) - int(b.number) })
	taken := map[protowire.Number]int{}
	var out []byte
	for _, pick := range order {
		skip := taken[pick.number]
		taken[pick.number]++
		for _, candidate := range records {
			if candidate.number != pick.number {
				continue
			}
			if skip == 0 {
				out = append(out, candidate.raw...)
				break
			}
			skip--
		}
	}
	return out
}

// jsonNode is a JSON value that can be written in many ways.
type jsonNode struct {
	literal string
	digits  string // of a number, without a zero at its end; its value is 0.digits
	text    *string
	list    []*jsonNode
	names   []string // with list as their values
	object  bool
}

func drawJSON(t *rapid.T, levels int) *jsonNode {
	kinds := 5
	if levels == 1 {
		kinds = 3
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return &jsonNode{literal: rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "literal")}
	case 1:
		return &jsonNode{digits: rapid.StringMatching(`-?[1-9][0-9]{0,25}[1-9]`).Draw(t, "digits")}
	case 2:
		text := rapid.String().Draw(t, "text")
		return &jsonNode{text: &text}
	case 3:
		node := &jsonNode{}
		for range rapid.IntRange(0, 3).Draw(t, "elements") {
			node.list = append(node.list, drawJSON(t, levels-1))
		}
		return node
	default:
		node := &jsonNode{object: true, names: rapid.SliceOfNDistinct(rapid.String(), 0, 4, rapid.ID).Draw(t, "names")}
		for range node.names {
			node.list = append(node.list, drawJSON(t, levels-1))
		}
		return node
	}
}

// write writes the value in any of the ways in which it can be written.
func (n *jsonNode) write(t *rapid.T) string {
	space := func() string { return rapid.StringMatching(`[ \t\r\n]{0,2}`).Draw(t, "space") }
	switch {
	case n.literal != "":
		return space() + n.literal + space()
	case n.digits != "":
		digits, sign := strings.TrimPrefix(n.digits, "-"), ""
		if digits != n.digits {
			sign = "-"
		}
		digits += strings.Repeat("0", rapid.IntRange(0, 3).Draw(t, "zeros"))
		point := rapid.IntRange(0, len(digits)).Draw(t, "point")
		whole, fraction := digits[:point], digits[point:]
		if whole == "" {
			whole = "0"
		}
		if fraction != "" {
			fraction = "." + fraction
		}
		exponent := ""
		if point > 0 || rapid.Bool().Draw(t, "exponent") {
			exponent = rapid.SampledFrom([]string{"e", "E"}).Draw(t, "e") + rapid.SampledFrom([]string{"-", "-0", "-00"}).Draw(t, "minus") + fmt.Sprint(point)
		}
		return space() + sign + whole + fraction + exponent + space()
	case n.text != nil:
		return space() + writeJSONString(t, *n.text) + space()
	case !n.object:
		var parts []string
		for _, element := range n.list {
			parts = append(parts, element.write(t))
		}
		return space() + "[" + space() + strings.Join(parts, ",") + "]" + space()
	default:
		var parts []string
		for i, name := range n.names {
			parts = append(parts, space()+writeJSONString(t, name)+space()+":"+n.list[i].write(t))
		}
		parts = rapid.Permutation(parts).Draw(t, "order")
		return space() + "{" + space() + strings.Join(parts, ",") + "}" + space()
	}
}

func writeJSONString(t *rapid.T, text string) string {
	var out strings.Builder
	for _, char := range text {
		switch {
		case char < 0x20 || char == '"' || char == '\\' || rapid.IntRange(0, 4).Draw(t, "escape") == 0:
			if char > 0xFFFF {
				char -= 0x10000
				fmt.Fprintf(&out, `\u%04x\u%04X`, 0xD800+char>>10, 0xDC00+char&0x3FF)
			} else {
				fmt.Fprintf(&out, `\u%04X`, char)
			}
		default:
			out.WriteRune(char)
		}
	}
	return `"` + out.String() + `"`
}

// TestC42_SpellingsAgree: one JSON value written in two ways has one fingerprint.
func TestC42_SpellingsAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := drawJSON(t, 4)
		first, second := node.write(t), node.write(t)
		a, err := JSON([]byte(first))
		if err != nil {
			t.Fatalf("%q: %v", first, err)
		}
		b, err := JSON([]byte(second))
		if err != nil {
			t.Fatalf("%q: %v", second, err)
		}
		if !a.Equal(b) {
			t.Fatalf("%q and %q are one value with two fingerprints", first, second)
		}
	})
}
