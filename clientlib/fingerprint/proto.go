package fingerprint

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// ProtoConfig says what a ProtoHasher leaves out and how it treats what it does not know. The zero value
// hashes every field that the descriptor has, but for those marked [(idem.v1.hash_exclude) = true].
type ProtoConfig struct {
	// Exclude lists the paths of fields to leave out, such as "trace_id" or "meta.request_time": names as
	// they stand in the .proto, from the message down. A path goes through a repeated field into each of
	// its messages and through a map into each of its values. It does not go into a google.protobuf.Any,
	// nor name an extension; marks and ExcludeField reach both.
	Exclude []string

	// ExcludeField, if set, is asked about every field that is not marked, those of nested messages, of
	// messages inside a google.protobuf.Any and extensions included; true leaves the field out. It has to
	// answer the same for a field every time, and may be called by several goroutines.
	ExcludeField func(protoreflect.FieldDescriptor) bool

	// Name, if set, is hashed in place of the message's full name. By default a request of another
	// message type is another request, even when every field is the same: acme.v1.Charge is not
	// acme.v2.Charge. A service that renames its message and wants the keys in flight to survive sets the
	// old name here.
	Name protoreflect.FullName

	// Resolver finds the types of messages inside a google.protobuf.Any, and of extensions within those.
	// By default it is protoregistry.GlobalTypes, all types linked into the program. An empty
	// protoregistry.Types resolves nothing: every Any is then taken as its bytes.
	Resolver Resolver

	// Strict refuses a message in which something would be left out or taken on trust without the
	// configuration saying so: fields that the descriptor does not have, and Anys of unknown type.
	Strict bool
}

// Resolver finds message and extension types; *protoregistry.Types and *dynamicpb.Types are resolvers.
type Resolver interface {
	protoregistry.MessageTypeResolver
	protoregistry.ExtensionTypeResolver
}

// ProtoHasher fingerprints messages of one type. It is built once, does not change, and may be used by any
// number of goroutines.
type ProtoHasher struct {
	name         string
	root         *plan
	excludeField func(protoreflect.FieldDescriptor) bool
	resolver     Resolver
	strict       bool

	// Plans for types that are only met in messages: inside an Any, in extensions, or a second descriptor
	// of a nested type. Bounded, for a resolver might make new descriptors each time it is asked.
	met      sync.Map // planKey → *plan, protoreflect.FieldDescriptor → *fieldPlan
	metCount atomic.Int32
}

const metMax = 1000

// ProtoResult is a fingerprint and what it does not cover.
type ProtoResult struct {
	Fingerprint

	// UnknownFields counts what was left out because the descriptor does not have it: unknown fields, and
	// undeclared values of closed enums, wherever the walk came by. Count it in a metric: above zero means
	// that somebody sends a newer schema than this program was built with.
	UnknownFields int
	// OpaqueAnys counts the google.protobuf.Any messages that were taken as their bytes, because the
	// resolver does not have their type. Two serialisations of one message are then two requests. An Any
	// with nothing in it is not counted.
	OpaqueAnys int
}

// NewProtoHasher builds the hasher for a message type. It refuses a configuration with a path that leads
// nowhere, and one that leaves nothing of a message to hash.
func NewProtoHasher(message protoreflect.MessageDescriptor, config ProtoConfig) (*ProtoHasher, error) {
	if message == nil {
		return nil, fmt.Errorf("fingerprint: no message descriptor")
	}
	hasher := &ProtoHasher{
		name:         string(message.FullName()),
		excludeField: config.ExcludeField,
		resolver:     config.Resolver,
		strict:       config.Strict,
	}
	if config.Name != "" {
		if !config.Name.IsValid() {
			return nil, fmt.Errorf("fingerprint: %q is not the full name of a message", config.Name)
		}
		hasher.name = string(config.Name)
	}
	if hasher.resolver == nil {
		hasher.resolver = protoregistry.GlobalTypes
	}
	var excluded *pathStep
	for _, path := range config.Exclude {
		if excluded == nil {
			excluded = &pathStep{}
		}
		if err := excluded.add(message, path); err != nil {
			return nil, err
		}
	}
	hasher.root = hasher.compile(message, excluded, map[planKey]*plan{})
	if len(hasher.root.fields) == 0 && message.Fields().Len() > 0 && !hasher.root.extendable {
		return nil, fmt.Errorf("fingerprint: every field of %s is excluded, so that all requests would agree", message.FullName())
	}
	return hasher, nil
}

// Sum fingerprints message, which has to be of the type that the hasher was built for. It only reads.
func (h *ProtoHasher) Sum(message proto.Message) (ProtoResult, error) {
	w := walkers.Get().(*walker)
	defer w.release()
	return h.sum(w, message)
}

// sum fingerprints message with w, which is as good as new.
func (h *ProtoHasher) sum(w *walker, message proto.Message) (ProtoResult, error) {
	if message == nil || !message.ProtoReflect().IsValid() {
		return ProtoResult{}, emptyInput(AlgorithmProto)
	}
	reflected := message.ProtoReflect()
	if got, want := reflected.Descriptor().FullName(), h.root.message.FullName(); got != want {
		return ProtoResult{}, fmt.Errorf("fingerprint: this hasher is for %s, not for %s", want, got)
	}
	w.hasher = h
	w.buffer = append(w.buffer, domainProto...)
	w.text(h.name)
	if err := w.message(h.planOf(reflected, h.root), reflected); err != nil {
		return ProtoResult{}, err
	}
	w.flush()
	result := ProtoResult{UnknownFields: w.unknown, OpaqueAnys: w.opaque}
	result.Algorithm = AlgorithmProto
	result.Hash = w.digest.Sum(nil)
	return result, nil
}

// plan is how messages of one type are walked, at one place of the excluded paths.
type plan struct {
	message protoreflect.MessageDescriptor
	// excluded is where the excluded paths have led to; nil where none leads on.
	excluded *pathStep
	// fields are those that are hashed, by ascending number.
	fields []*fieldPlan
	// extendable is set for messages that can have fields beyond those above.
	extendable bool
	// typeURL and value are set for google.protobuf.Any only.
	typeURL, value protoreflect.FieldDescriptor
}

// planKey tells plans apart. The same type can have several: a path excludes a field at one place only.
type planKey struct {
	message  protoreflect.MessageDescriptor
	excluded *pathStep
}

// fieldPlan is how one field is walked.
type fieldPlan struct {
	descriptor protoreflect.FieldDescriptor
	number     uint32
	// value is how the field's value is written, or that of an element, or of a map's value.
	value encoding
	// key is how a map's keys are written.
	key encoding
	// implicitFloat: the field is present when its value is not zero, and minus zero is zero here although
	// protoreflect has it for present.
	implicitFloat bool
	// closed is the closed enum whose undeclared values are unknown fields; nil for every other kind.
	closed protoreflect.EnumValueDescriptors
	// message is the plan for the messages in it, if it has any.
	message *plan
}

// encoding is how a scalar is written.
type encoding uint8

const (
	encodeBool encoding = iota + 1
	encodeInt
	encodeUint
	encodeEnum
	encodeFloat
	encodeDouble
	encodeString
	encodeBytes
	encodeMessage
)

func encodingOf(kind protoreflect.Kind) encoding {
	switch kind {
	case protoreflect.BoolKind:
		return encodeBool
	case protoreflect.EnumKind:
		return encodeEnum
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind,
		protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return encodeInt
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return encodeUint
	case protoreflect.FloatKind:
		return encodeFloat
	case protoreflect.DoubleKind:
		return encodeDouble
	case protoreflect.StringKind:
		return encodeString
	case protoreflect.BytesKind:
		return encodeBytes
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return encodeMessage
	}
	panic(fmt.Sprintf("fingerprint: protobuf has a kind %v that this package does not know", kind))
}

// compile makes the plan for a type and, through known, for all types that it leads to, each once.
func (h *ProtoHasher) compile(message protoreflect.MessageDescriptor, excluded *pathStep, known map[planKey]*plan) *plan {
	key := planKey{message, excluded}
	if made, ok := known[key]; ok {
		return made
	}
	made := &plan{message: message, excluded: excluded, extendable: message.ExtensionRanges().Len() > 0}
	known[key] = made // before its fields: a message may contain itself
	fields := message.Fields()
	if message.FullName() == "google.protobuf.Any" {
		typeURL, value := fields.ByNumber(1), fields.ByNumber(2)
		if typeURL != nil && typeURL.Kind() == protoreflect.StringKind && value != nil && value.Kind() == protoreflect.BytesKind {
			made.typeURL, made.value = typeURL, value
		}
	}
	for i := range fields.Len() {
		field := fields.Get(i)
		step := excluded.at(field.Number())
		if step.excludes() || h.excludes(field) {
			continue
		}
		made.fields = append(made.fields, h.compileField(field, step, known))
	}
	slices.SortFunc(made.fields, func(a, b *fieldPlan) int { return int(a.number) - int(b.number) })
	return made
}

// hashExcludeNumber is the field option (idem.v1.hash_exclude). It is known by its number here, so that
// whoever wants a fingerprint does not have to link the whole API, and so that descriptors read at run time
// are understood, where options that the program was not built with are unknown fields.
const (
	hashExcludeNumber = 51731
	hashExcludeName   = "idem.v1.hash_exclude"
)

// excludes says whether a field is left out wherever it is met.
func (h *ProtoHasher) excludes(field protoreflect.FieldDescriptor) bool {
	return markedExcluded(field.Options()) || h.excludeField != nil && h.excludeField(field)
}

// markedExcluded says whether the options of a field say (idem.v1.hash_exclude) = true.
func markedExcluded(options protoreflect.ProtoMessage) bool {
	marked := false
	for raw := options.ProtoReflect().GetUnknown(); len(raw) > 0; {
		number, kind, tagSize := protowire.ConsumeTag(raw)
		size := protowire.ConsumeFieldValue(number, kind, raw[max(tagSize, 0):])
		if tagSize < 0 || size < 0 {
			break
		}
		if number == hashExcludeNumber && kind == protowire.VarintType {
			value, _ := protowire.ConsumeVarint(raw[tagSize:])
			marked = value != 0
		}
		raw = raw[tagSize+size:]
	}
	options.ProtoReflect().Range(func(option protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		// The number is from a range in which somebody else's option may have it too; the name decides.
		if option.Number() == hashExcludeNumber && option.FullName() == hashExcludeName {
			marked = value.Bool()
		}
		return true
	})
	return marked
}

func (h *ProtoHasher) compileField(field protoreflect.FieldDescriptor, excluded *pathStep, known map[planKey]*plan) *fieldPlan {
	made := &fieldPlan{descriptor: field, number: uint32(field.Number())}
	valueField := field
	if field.IsMap() {
		made.key = encodingOf(field.MapKey().Kind())
		valueField = field.MapValue()
	}
	made.value = encodingOf(valueField.Kind())
	switch made.value {
	case encodeFloat, encodeDouble:
		made.implicitFloat = !field.HasPresence()
	case encodeEnum:
		if valueField.Enum().IsClosed() {
			made.closed = valueField.Enum().Values()
		}
	case encodeMessage:
		made.message = h.compile(valueField.Message(), excluded, known)
	case encodeBool, encodeInt, encodeUint, encodeString, encodeBytes:
		// Their encoding says all there is to know.
	}
	return made
}

// planOf gives the plan for message, which is the expected one unless somebody mixed descriptors: two
// dynamic copies of a file, or a dynamic message inside a generated one. Fields can only be read through the
// message's own descriptor.
func (h *ProtoHasher) planOf(message protoreflect.Message, expected *plan) *plan {
	descriptor := message.Descriptor()
	if descriptor == expected.message {
		return expected
	}
	key := planKey{descriptor, expected.excluded}
	if made, ok := h.met.Load(key); ok {
		return made.(*plan)
	}
	made := h.compile(descriptor, expected.excluded, map[planKey]*plan{})
	h.remember(key, made)
	return made
}

// planOfAny gives the plan for the message inside an Any.
func (h *ProtoHasher) planOfAny(descriptor protoreflect.MessageDescriptor) *plan {
	key := planKey{descriptor, nil}
	if made, ok := h.met.Load(key); ok {
		return made.(*plan)
	}
	made := h.compile(descriptor, nil, map[planKey]*plan{})
	h.remember(key, made)
	return made
}

// planOfExtension gives the plan for a field that its message's descriptor does not list, or nil when it is
// left out.
func (h *ProtoHasher) planOfExtension(field protoreflect.FieldDescriptor) *fieldPlan {
	if made, ok := h.met.Load(field); ok {
		return made.(*fieldPlan)
	}
	var made *fieldPlan
	if !h.excludes(field) {
		made = h.compileField(field, nil, map[planKey]*plan{})
	}
	h.remember(field, made)
	return made
}

func (h *ProtoHasher) remember(key, made any) {
	if h.metCount.Load() >= metMax {
		return
	}
	if _, loaded := h.met.LoadOrStore(key, made); !loaded {
		h.metCount.Add(1)
	}
}
