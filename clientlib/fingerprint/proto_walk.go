package fingerprint

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// The tags of the canonical form, one before every value.
const (
	tagInteger   = 0x01 // 8 bytes, two's complement
	tagFloat     = 0x02 // 4 bytes, IEEE 754
	tagDouble    = 0x03 // 8 bytes, IEEE 754
	tagText      = 0x04 // length, bytes
	tagMessage   = 0x05 // fields (number, value), then endOfFields
	tagList      = 0x06 // count, values
	tagMap       = 0x07 // count, pairs of values
	tagAny       = 0x08 // length, type name, value
	tagOpaqueAny = 0x09 // length, type URL, length, bytes
)

// endOfFields stands where a field number would; no field has this one.
const endOfFields = 0

// maxAnys is how many Anys may stand inside one another. Each has to be parsed while those around it are
// still held, so without a bound a small request could make itself large, MaxDepth times over.
const maxAnys = 8

// flushAt is how much is gathered before it goes into the digest, which is slow for small writes.
const flushAt = 4096

// walker is the state of one walk: what was written, and what was left out.
type walker struct {
	hasher  *ProtoHasher
	digest  hash.Hash
	buffer  []byte
	entries []mapEntry   // of all maps that are being walked, innermost last
	present []*fieldPlan // extensions of all messages that are being walked, likewise

	depth, anys     int
	unknown, opaque int
}

type mapEntry struct {
	key   protoreflect.MapKey
	value protoreflect.Value
}

var walkers = sync.Pool{New: func() any { return &walker{digest: sha256.New()} }}

// release gives the walker back. It must not keep the message alive, nor the room that a huge map took.
func (w *walker) release() {
	const entriesKept = 1024
	clear(w.entries) // whatever a refusal left
	if cap(w.entries) > entriesKept {
		w.entries = nil
	}
	w.digest.Reset()
	*w = walker{digest: w.digest, buffer: w.buffer[:0], entries: w.entries[:0], present: w.present[:0]}
	walkers.Put(w)
}

func (w *walker) flush() {
	w.digest.Write(w.buffer)
	w.buffer = w.buffer[:0]
}

func (w *walker) uint32(value uint32) {
	w.buffer = binary.BigEndian.AppendUint32(w.buffer, value)
}

// tag starts a value.
func (w *walker) tag(tag byte) {
	if len(w.buffer) >= flushAt {
		w.flush()
	}
	w.buffer = append(w.buffer, tag)
}

func (w *walker) integer(value uint64) {
	w.tag(tagInteger)
	w.buffer = binary.BigEndian.AppendUint64(w.buffer, value)
}

// text writes a length and bytes. Long ones go through the buffer in pieces, so that it stays small.
func (w *walker) text(value string) {
	w.uint32(uint32(len(value)))
	for len(value) > flushAt {
		w.buffer = append(w.buffer, value[:flushAt]...)
		w.flush()
		value = value[flushAt:]
	}
	w.buffer = append(w.buffer, value...)
}

func (w *walker) bytes(value []byte) {
	w.uint32(uint32(len(value)))
	if len(value) > flushAt {
		w.flush()
		w.digest.Write(value)
		return
	}
	w.buffer = append(w.buffer, value...)
}

func refuseProto(reason Reason, detail string) error {
	return &Error{Algorithm: AlgorithmProto, Reason: reason, Detail: detail}
}

// within adds the field to the place where a refusal says that it happened.
func within(field protoreflect.FieldDescriptor, err error) error {
	var refusal *Error
	if !errors.As(err, &refusal) {
		return err
	}
	name := string(field.Name())
	if field.IsExtension() {
		name = "[" + string(field.FullName()) + "]"
	}
	if refusal.Where != "" {
		name += "."
	}
	refusal.Where = name + refusal.Where
	return err
}

// left counts what the descriptor does not have.
func (w *walker) left(count int) error {
	w.unknown += count
	if count > 0 && w.hasher.strict {
		return refuseProto(ReasonUnknownFields, "the message has fields, or values of closed enums, that this program's schema does not")
	}
	return nil
}

// message writes the value that message is.
func (w *walker) message(p *plan, message protoreflect.Message) error {
	if w.depth == MaxDepth {
		return refuseProto(ReasonTooDeep, "more than 100 levels of messages")
	}
	w.depth++
	if err := w.left(countUnknown(message.GetUnknown())); err != nil {
		return err
	}
	var err error
	if p.typeURL != nil {
		err = w.any(p, message)
	} else {
		w.tag(tagMessage)
		err = w.fields(p, message)
		w.uint32(endOfFields)
	}
	w.depth--
	return err
}

// fields writes the fields that message has, in the order of their numbers.
func (w *walker) fields(p *plan, message protoreflect.Message) error {
	if p.extendable {
		return w.fieldsAndExtensions(p, message)
	}
	for _, field := range p.fields {
		if !message.Has(field.descriptor) {
			continue
		}
		if err := w.field(field, message); err != nil {
			return within(field.descriptor, err)
		}
	}
	return nil
}

// fieldsAndExtensions merges the extensions that message has into the fields that its descriptor lists.
func (w *walker) fieldsAndExtensions(p *plan, message protoreflect.Message) error {
	base := len(w.present)
	for _, field := range p.fields {
		if message.Has(field.descriptor) {
			w.present = append(w.present, field)
		}
	}
	message.Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if field.IsExtension() {
			if made := w.hasher.planOfExtension(field); made != nil {
				w.present = append(w.present, made)
			}
		}
		return true
	})
	sorted := w.present[base:]
	slices.SortFunc(sorted, func(a, b *fieldPlan) int { return cmp.Compare(a.number, b.number) })
	for _, field := range sorted {
		if err := w.field(field, message); err != nil {
			return within(field.descriptor, err)
		}
	}
	w.present = w.present[:base]
	return nil
}

// countUnknown counts the records in raw unknown fields; a group counts as one.
func countUnknown(raw protoreflect.RawFields) int {
	count := 0
	for len(raw) > 0 {
		_, _, size := protowire.ConsumeField(raw)
		count++
		if size < 0 {
			break // only a program that set them by hand gets here: parsers keep whole records
		}
		raw = raw[size:]
	}
	return count
}

// field writes the number and value of a field that message has, unless the value is none after all.
func (w *walker) field(field *fieldPlan, message protoreflect.Message) error {
	value := message.Get(field.descriptor)
	switch {
	case field.key != 0:
		return w.mapOf(field, value.Map())
	case field.descriptor.IsList():
		return w.list(field, value.List())
	case field.implicitFloat && value.Float() == 0:
		return nil
	case field.closed != nil && field.closed.ByNumber(value.Enum()) == nil:
		return w.left(1)
	}
	w.uint32(field.number)
	return w.value(field, value)
}

func (w *walker) list(field *fieldPlan, list protoreflect.List) error {
	count := list.Len()
	if field.closed != nil {
		for i := range list.Len() {
			if field.closed.ByNumber(list.Get(i).Enum()) == nil {
				count--
			}
		}
		if err := w.left(list.Len() - count); err != nil || count == 0 {
			return err
		}
	}
	w.uint32(field.number)
	w.tag(tagList)
	w.uint32(uint32(count))
	for i := range list.Len() {
		value := list.Get(i)
		if field.closed != nil && field.closed.ByNumber(value.Enum()) == nil {
			continue
		}
		if err := w.value(field, value); err != nil {
			return err
		}
	}
	return nil
}

// mapOf writes the entries of a map in the order of the bytes that their keys are written as.
func (w *walker) mapOf(field *fieldPlan, entries protoreflect.Map) error {
	base, undeclared := len(w.entries), 0
	entries.Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
		if field.closed != nil && field.closed.ByNumber(value.Enum()) == nil {
			undeclared++
			return true
		}
		w.entries = append(w.entries, mapEntry{key, value})
		return true
	})
	sorted := w.entries[base:]
	if err := w.left(undeclared); err != nil || len(sorted) == 0 {
		return err
	}
	if field.key == encodeString {
		slices.SortFunc(sorted, func(a, b mapEntry) int { return strings.Compare(a.key.String(), b.key.String()) })
	} else {
		slices.SortFunc(sorted, func(a, b mapEntry) int {
			return cmp.Compare(integerOf(field.key, a.key.Value()), integerOf(field.key, b.key.Value()))
		})
	}
	w.uint32(field.number)
	w.tag(tagMap)
	w.uint32(uint32(len(sorted)))
	for _, entry := range sorted {
		if err := w.scalar(field.key, entry.key.Value()); err != nil {
			return err
		}
		if err := w.value(field, entry.value); err != nil {
			return err
		}
	}
	clear(w.entries[base:])
	w.entries = w.entries[:base]
	return nil
}

// value writes one value: a singular field's, an element's, or a map value's.
func (w *walker) value(field *fieldPlan, value protoreflect.Value) error {
	if field.message != nil {
		message := value.Message()
		return w.message(w.hasher.planOf(message, field.message), message)
	}
	return w.scalar(field.value, value)
}

func (w *walker) scalar(how encoding, value protoreflect.Value) error {
	switch how {
	case encodeFloat:
		w.tag(tagFloat)
		w.buffer = binary.BigEndian.AppendUint32(w.buffer, floatBits(float32(value.Float())))
	case encodeDouble:
		w.tag(tagDouble)
		w.buffer = binary.BigEndian.AppendUint64(w.buffer, doubleBits(value.Float()))
	case encodeString:
		text := value.String()
		if !utf8.ValidString(text) {
			return refuseProto(ReasonInvalidUTF8, "a string that is not UTF-8")
		}
		w.tag(tagText)
		w.text(text)
	case encodeBytes:
		w.tag(tagText)
		w.bytes(value.Bytes())
	default:
		w.integer(integerOf(how, value))
	}
	return nil
}

// integerOf gives the bits of a value of an integer kind, bool and enum included, sign-extended to 64.
func integerOf(how encoding, value protoreflect.Value) uint64 {
	switch how {
	case encodeBool:
		if value.Bool() {
			return 1
		}
		return 0
	case encodeInt:
		return uint64(value.Int())
	case encodeUint:
		return value.Uint()
	default: // encodeEnum
		return uint64(int64(value.Enum()))
	}
}

// floatBits gives the bits of a float: one NaN for all of them, and zero for minus zero, which is the same
// number and which some protobuf runtimes drop on the wire.
func floatBits(value float32) uint32 {
	switch {
	case value != value:
		return 0x7FC00000
	case value == 0:
		return 0
	}
	return math.Float32bits(value)
}

// doubleBits does for a double what floatBits does for a float.
func doubleBits(value float64) uint64 {
	switch {
	case value != value:
		return 0x7FF8000000000000
	case value == 0:
		return 0
	}
	return math.Float64bits(value)
}

// any writes a google.protobuf.Any: as the message in it where its type is known, else as its bytes.
func (w *walker) any(p *plan, message protoreflect.Message) error {
	typeURL, raw := message.Get(p.typeURL).String(), message.Get(p.value).Bytes()
	if !utf8.ValidString(typeURL) {
		return refuseProto(ReasonInvalidUTF8, "a type URL that is not UTF-8")
	}
	name := typeURL[strings.LastIndexByte(typeURL, '/')+1:]
	messageType, err := w.hasher.resolve(protoreflect.FullName(name))
	if err != nil {
		return err
	}
	if messageType == nil {
		if typeURL != "" || len(raw) > 0 { // an empty one has nothing to resolve
			w.opaque++
			if w.hasher.strict {
				return refuseProto(ReasonOpaqueAny, "the type in this google.protobuf.Any is not known")
			}
		}
		w.tag(tagOpaqueAny)
		w.text(typeURL)
		w.bytes(raw)
		return nil
	}
	if w.anys == maxAnys {
		return refuseProto(ReasonTooDeep, "more than 8 google.protobuf.Any inside one another")
	}
	inner := messageType.New()
	if !parse(raw, inner.Interface(), w.hasher.resolver) {
		return refuseProto(ReasonBadAny, "the bytes are not a message of the type that is named")
	}
	w.tag(tagAny)
	w.text(name)
	w.anys++
	err = w.message(w.hasher.planOfAny(inner.Descriptor()), inner)
	w.anys--
	return err
}

// parse reads the bytes in an Any and reports whether they are a message.
func parse(raw []byte, message proto.Message, resolver Resolver) (ok bool) {
	// The bytes come from outside, and protobuf-go v1.36 panics on some map entries in dynamic messages (one
	// whose second key is of another wire type). That must not end the program of whoever asks for a hash.
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return proto.UnmarshalOptions{AllowPartial: true, Resolver: resolver}.Unmarshal(raw, message) == nil
}

// resolve finds the type of that name, or nil when there is none.
func (h *ProtoHasher) resolve(name protoreflect.FullName) (protoreflect.MessageType, error) {
	if !name.IsValid() {
		return nil, nil
	}
	found, err := h.resolver.FindMessageByName(name)
	switch {
	case err == nil:
		return found, nil
	case errors.Is(err, protoregistry.NotFound):
		return nil, nil
	default:
		return nil, refuseProto(ReasonBadAny, "what is named is not a message type")
	}
}
