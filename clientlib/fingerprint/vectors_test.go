package fingerprint

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"hash"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unicode/utf8"

	"crypto/sha256"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

var update = flag.Bool("update", false, "write testdata/vectors.json anew; needs protoc")

const vectorsFile = "testdata/vectors.json"

// vectorFile is testdata/vectors.json. docs/fingerprint.md says what each field means.
type vectorFile struct {
	Comment     []string          `json:"comment"`
	Descriptors map[string]string `json:"descriptors"`
	Proto       []protoVector     `json:"proto"`
	JSON        []jsonVector      `json:"json"`
	Bytes       []bytesVector     `json:"bytes"`
}

type protoVector struct {
	Name          string   `json:"name"`
	Descriptors   string   `json:"descriptors"`
	Message       string   `json:"message"`
	Wire          string   `json:"wire"`
	Exclude       []string `json:"exclude,omitempty"`
	HashedName    string   `json:"hashed_name,omitempty"`
	Strict        bool     `json:"strict,omitempty"`
	NotIn         []string `json:"not_in,omitempty"`
	Canonical     string   `json:"canonical,omitempty"`
	Hash          string   `json:"hash,omitempty"`
	UnknownFields int      `json:"unknown_fields"`
	OpaqueAnys    int      `json:"opaque_anys"`
	Error         Reason   `json:"error,omitempty"`
}

type jsonVector struct {
	Name      string   `json:"name"`
	Text      string   `json:"text,omitempty"`
	Hex       string   `json:"hex,omitempty"`
	Exclude   []string `json:"exclude,omitempty"`
	Canonical string   `json:"canonical,omitempty"`
	Hash      string   `json:"hash,omitempty"`
	Error     Reason   `json:"error,omitempty"`
}

type bytesVector struct {
	Name    string `json:"name"`
	Hex     string `json:"hex,omitempty"`
	Pattern int    `json:"pattern,omitempty"`
	Hash    string `json:"hash,omitempty"`
	Error   Reason `json:"error,omitempty"`
}

// pattern is a payload of any size that needs no room in the file: byte i is i modulo 251.
func pattern(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i % 251)
	}
	return data
}

// schema is one FileDescriptorSet, ready for dynamic messages.
type schema struct {
	files *protoregistry.Files
	types *dynamicpb.Types
}

func newSchema(t testing.TB, set *descriptorpb.FileDescriptorSet) schema {
	t.Helper()
	files, err := protodesc.NewFiles(set)
	if err != nil {
		t.Fatal(err)
	}
	return schema{files, dynamicpb.NewTypes(files)}
}

func (s schema) descriptor(t testing.TB, name string) protoreflect.MessageDescriptor {
	t.Helper()
	found, err := s.files.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return found.(protoreflect.MessageDescriptor)
}

func (s schema) parse(t testing.TB, name string, wire []byte) *dynamicpb.Message {
	t.Helper()
	message := dynamicpb.NewMessage(s.descriptor(t, name))
	options := proto.UnmarshalOptions{Resolver: s.types, AllowPartial: true}
	if err := options.Unmarshal(wire, message); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return message
}

func (s schema) text(t testing.TB, name, text string) *dynamicpb.Message {
	t.Helper()
	message := dynamicpb.NewMessage(s.descriptor(t, name))
	options := prototext.UnmarshalOptions{Resolver: s.types, AllowPartial: true}
	if err := options.Unmarshal([]byte(text), message); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return message
}

// loadVectors reads the committed vectors.
func loadVectors(t testing.TB) (vectorFile, map[string]schema) {
	t.Helper()
	raw, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var file vectorFile
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	return file, schemasOf(t, file)
}

func schemasOf(t testing.TB, file vectorFile) map[string]schema {
	t.Helper()
	schemas := map[string]schema{}
	for name, encoded := range file.Descriptors {
		raw, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		var set descriptorpb.FileDescriptorSet
		if err := proto.Unmarshal(raw, &set); err != nil {
			t.Fatal(err)
		}
		schemas[name] = newSchema(t, &set)
	}
	return schemas
}

// recorder is a digest that also keeps what it was given.
type recorder struct {
	hash.Hash
	written bytes.Buffer
}

func (r *recorder) Write(data []byte) (int, error) {
	r.written.Write(data)
	return r.Hash.Write(data)
}

// canonical gives what h hashes of message, without the domain prefix, and the result of hashing it.
func (h *ProtoHasher) canonical(message proto.Message) ([]byte, ProtoResult, error) {
	record := &recorder{Hash: sha256.New()}
	result, err := h.sum(&walker{digest: record}, message)
	return bytes.TrimPrefix(record.written.Bytes(), domainProto), result, err
}

// computed gives v as this implementation has it, from its inputs alone.
func (v protoVector) computed(t *testing.T, s schema) protoVector {
	t.Helper()
	wire := mustHex(t, v.Wire)
	hasher, err := NewProtoHasher(s.descriptor(t, v.Message), ProtoConfig{
		Exclude: v.Exclude, Name: protoreflect.FullName(v.HashedName), Strict: v.Strict, Resolver: s.types,
	})
	if err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	message := s.parse(t, v.Message, wire)
	v.Canonical, v.Hash, v.UnknownFields, v.OpaqueAnys, v.Error = "", "", 0, 0, ""
	canonical, recorded, err := hasher.canonical(message)
	result, errPooled := hasher.Sum(message)
	if (err == nil) != (errPooled == nil) || !recorded.Equal(result.Fingerprint) {
		t.Errorf("%s: recorded %v (%v), hashed %v (%v)", v.Name, recorded, err, result, errPooled)
	}
	if err != nil {
		v.Error = reasonOf(t, err)
		return v
	}
	v.Canonical = hex.EncodeToString(canonical)
	v.Hash = hex.EncodeToString(result.Hash)
	v.UnknownFields, v.OpaqueAnys = result.UnknownFields, result.OpaqueAnys
	return v
}

func (v jsonVector) input(t *testing.T) []byte {
	if v.Hex != "" {
		return mustHex(t, v.Hex)
	}
	return []byte(v.Text)
}

func (v jsonVector) computed(t *testing.T) jsonVector {
	t.Helper()
	hasher, err := NewJSONHasher(JSONConfig{Exclude: v.Exclude})
	if err != nil {
		t.Fatalf("%s: %v", v.Name, err)
	}
	v.Canonical, v.Hash, v.Error = "", "", ""
	result, err := hasher.Sum(v.input(t))
	if err != nil {
		v.Error = reasonOf(t, err)
		return v
	}
	canonical, _ := hasher.canonical(v.input(t))
	v.Canonical, v.Hash = string(canonical), hex.EncodeToString(result.Hash)
	return v
}

func (v bytesVector) computed(t *testing.T) bytesVector {
	t.Helper()
	data := mustHex(t, v.Hex)
	if v.Pattern > 0 {
		data = pattern(v.Pattern)
	}
	v.Hash, v.Error = "", ""
	result, err := Bytes(data)
	if err != nil {
		v.Error = reasonOf(t, err)
		return v
	}
	v.Hash = hex.EncodeToString(result.Hash)
	return v
}

func mustHex(t testing.TB, text string) []byte {
	t.Helper()
	data, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func reasonOf(t testing.TB, err error) Reason {
	t.Helper()
	var reason Reason
	if !errors.As(err, &reason) {
		t.Fatalf("%v has no reason", err)
	}
	return reason
}

// TestVectors: this implementation gives what testdata/vectors.json says, on a build that is not the one
// that wrote it.
func TestVectors(t *testing.T) {
	if *update {
		writeVectors(t)
	}
	file, schemas := loadVectors(t)
	for _, want := range file.Proto {
		t.Run("proto/"+want.Name, func(t *testing.T) {
			if got := want.computed(t, schemas[want.Descriptors]); !sameJSON(t, got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	for _, want := range file.JSON {
		t.Run("json/"+want.Name, func(t *testing.T) {
			if got := want.computed(t); !sameJSON(t, got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	for _, want := range file.Bytes {
		t.Run("bytes/"+want.Name, func(t *testing.T) {
			if got := want.computed(t); got != want {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
}

func sameJSON(t *testing.T, a, b any) bool {
	t.Helper()
	aText, errA := json.Marshal(a)
	bText, errB := json.Marshal(b)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	return bytes.Equal(aText, bText)
}

var allReasons = []Reason{
	ReasonEmpty, ReasonTooDeep, ReasonInvalidUTF8, ReasonSyntax, ReasonDuplicateName, ReasonLoneSurrogate,
	ReasonExponent, ReasonUnknownFields, ReasonOpaqueAny, ReasonBadAny,
}

// TestVectorsCoverTheReasons: a reason that no vector shows is one that two implementations may disagree on.
func TestVectorsCoverTheReasons(t *testing.T) {
	file, _ := loadVectors(t)
	seen := map[Reason]bool{}
	for _, vector := range file.Proto {
		seen[vector.Error] = true
	}
	for _, vector := range file.JSON {
		seen[vector.Error] = true
	}
	for _, vector := range file.Bytes {
		seen[vector.Error] = true
	}
	for _, reason := range allReasons {
		if !seen[reason] {
			t.Errorf("no vector is refused for %q", reason)
		}
	}
}

// writeVectors makes testdata/vectors.json from the cases in vectors_cases_test.go.
func writeVectors(t *testing.T) {
	t.Helper()
	file := vectorFile{
		Comment: []string{
			"Test vectors for docs/fingerprint.md, which says what each field means.",
			"Written by: go test ./clientlib/fingerprint -run TestVectors -update",
		},
		Descriptors: map[string]string{
			"main":       protoc(t, "vectors.proto", "vectors_proto2.proto"),
			"rollout_v1": protoc(t, "rollout_v1.proto"),
			"rollout_v2": protoc(t, "rollout_v2.proto"),
			"editions":   inBase64(t, editionsSet()),
		},
	}
	schemas := schemasOf(t, file)
	for _, vector := range protoCases(t, schemas) {
		file.Proto = append(file.Proto, vector.computed(t, schemas[vector.Descriptors]))
	}
	for _, vector := range jsonCases() {
		if !utf8.ValidString(vector.Text) {
			vector.Hex, vector.Text = hex.EncodeToString([]byte(vector.Text)), ""
		}
		file.JSON = append(file.JSON, vector.computed(t))
	}
	for _, vector := range bytesCases() {
		file.Bytes = append(file.Bytes, vector.computed(t))
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(vectorsFile, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// protoc compiles files of testdata, with what they import, to a FileDescriptorSet in base64.
func protoc(t *testing.T, files ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "set.binpb")
	arguments := append([]string{"-I", "testdata", "-I", "../../proto", "--include_imports", "--descriptor_set_out=" + out}, files...)
	if output, err := exec.CommandContext(t.Context(), "protoc", arguments...).CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, output)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

func inBase64(t *testing.T, set *descriptorpb.FileDescriptorSet) string {
	t.Helper()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// editionsSet describes a file of edition 2023, which not every protoc reads:
//
//	edition = "2023";
//	package idem.fingerprint.vectors.editions;
//
//	enum Closed { option features.enum_type = CLOSED; CLOSED_ZERO = 0; CLOSED_ONE = 1; }
//
//	message Mixed {
//	  int32 implicit = 1 [features.field_presence = IMPLICIT];
//	  int32 explicit = 2;
//	  repeated int32 expanded = 3 [features.repeated_field_encoding = EXPANDED];
//	  Mixed delimited = 4 [features.message_encoding = DELIMITED];
//	  Closed closed = 5;
//	  double implicit_double = 6 [features.field_presence = IMPLICIT];
//	}
func editionsSet() *descriptorpb.FileDescriptorSet {
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, features *descriptorpb.FeatureSet) *descriptorpb.FieldDescriptorProto {
		made := &descriptorpb.FieldDescriptorProto{
			Name: &name, JsonName: &name, Number: &number, Type: kind.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		if features != nil {
			made.Options = &descriptorpb.FieldOptions{Features: features}
		}
		return made
	}
	int32Type := descriptorpb.FieldDescriptorProto_TYPE_INT32
	implicit := &descriptorpb.FeatureSet{FieldPresence: descriptorpb.FeatureSet_IMPLICIT.Enum()}
	expanded := field("expanded", 3, int32Type, &descriptorpb.FeatureSet{RepeatedFieldEncoding: descriptorpb.FeatureSet_EXPANDED.Enum()})
	expanded.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	delimited := field("delimited", 4, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE, &descriptorpb.FeatureSet{MessageEncoding: descriptorpb.FeatureSet_DELIMITED.Enum()})
	delimited.TypeName = proto.String("." + vectorsPackage + "editions.Mixed")
	closed := field("closed", 5, descriptorpb.FieldDescriptorProto_TYPE_ENUM, nil)
	closed.TypeName = proto.String("." + vectorsPackage + "editions.Closed")
	return &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{{
		Name:    proto.String("editions.proto"),
		Package: proto.String(vectorsPackage + "editions"),
		Syntax:  proto.String("editions"),
		Edition: descriptorpb.Edition_EDITION_2023.Enum(),
		EnumType: []*descriptorpb.EnumDescriptorProto{{
			Name:    proto.String("Closed"),
			Value:   []*descriptorpb.EnumValueDescriptorProto{{Name: proto.String("CLOSED_ZERO"), Number: proto.Int32(0)}, {Name: proto.String("CLOSED_ONE"), Number: proto.Int32(1)}},
			Options: &descriptorpb.EnumOptions{Features: &descriptorpb.FeatureSet{EnumType: descriptorpb.FeatureSet_CLOSED.Enum()}},
		}},
		MessageType: []*descriptorpb.DescriptorProto{{
			Name: proto.String("Mixed"),
			Field: []*descriptorpb.FieldDescriptorProto{
				field("implicit", 1, int32Type, implicit),
				field("explicit", 2, int32Type, nil),
				expanded, delimited, closed,
				field("implicit_double", 6, descriptorpb.FieldDescriptorProto_TYPE_DOUBLE, implicit),
			},
		}},
	}}}
}
