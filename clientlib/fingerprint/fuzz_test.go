package fingerprint

import (
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

// FuzzProto: whatever parses has a fingerprint or is refused for a reason; it is the same after protobuf wrote
// and read the message again; and two messages share one only when protobuf too takes them for equal.
func FuzzProto(f *testing.F) {
	file, schemas := loadVectors(f)
	s := schemas["main"]
	var hashers []*ProtoHasher
	for _, name := range propertyTypes {
		hashers = append(hashers, mustHasher(f, s.descriptor(f, vectorsPackage+name), ProtoConfig{Resolver: s.types}))
	}
	for _, vector := range file.Proto {
		kind := slices.Index(propertyTypes, strings.TrimPrefix(vector.Message, vectorsPackage))
		if kind >= 0 && len(vector.Wire) < 2000 {
			wire := mustHex(f, vector.Wire)
			f.Add(byte(kind), wire, wire)
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, first, second []byte) {
		hasher := hashers[int(kind)%len(hashers)]
		a := fuzzedMessage(t, s, hasher, first)
		b := fuzzedMessage(t, s, hasher, second)
		if a == nil || b == nil {
			return
		}
		hashA, errA := hasher.Sum(a)
		hashB, errB := hasher.Sum(b)
		if errA != nil || errB != nil {
			return
		}
		if hashA.Equal(hashB.Fingerprint) != sameRequest(a, b) && !hasAny(a.ProtoReflect()) {
			t.Errorf("same fingerprint: %v, same request: %v\n%v\n%v", hashA.Equal(hashB.Fingerprint), sameRequest(a, b), a, b)
		}
	})
}

// fuzzedMessage reads wire, checks what can be said of one message alone, and gives nil when it does not parse.
func fuzzedMessage(t *testing.T, s schema, hasher *ProtoHasher, wire []byte) proto.Message {
	message := dynamicpb.NewMessage(hasher.root.message)
	if !parse(wire, message, s.types) {
		return nil
	}
	first, err := hasher.Sum(message)
	if err != nil && !errorsAnyOf(err, allReasons...) {
		t.Fatalf("refused without a reason: %v", err)
	}
	for _, deterministic := range []bool{false, true} {
		rewritten, errMarshal := proto.MarshalOptions{AllowPartial: true, Deterministic: deterministic}.Marshal(message)
		if errMarshal != nil {
			continue // a string that is not UTF-8, which Sum has refused as well
		}
		again := dynamicpb.NewMessage(hasher.root.message)
		if !parse(rewritten, again, s.types) {
			t.Fatalf("protobuf does not read what it wrote: %x", rewritten)
		}
		second, errAgain := hasher.Sum(again)
		if (err == nil) != (errAgain == nil) || err == nil && (!first.Equal(second.Fingerprint) || first.UnknownFields != second.UnknownFields) {
			t.Errorf("%x: %v (%v); %x: %v (%v)", wire, first, err, rewritten, second, errAgain)
		}
	}
	return message
}

// hasAny says whether there is an Any somewhere in message. Protobuf compares those by their bytes.
func hasAny(message protoreflect.Message) bool {
	if message.Descriptor().FullName() == "google.protobuf.Any" {
		return true
	}
	found := false
	message.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case !hasMessage(field):
		case field.IsMap():
			value.Map().Range(func(_ protoreflect.MapKey, value protoreflect.Value) bool {
				found = found || hasAny(value.Message())
				return !found
			})
		case field.IsList():
			for i := range value.List().Len() {
				found = found || hasAny(value.List().Get(i).Message())
			}
		default:
			found = hasAny(value.Message())
		}
		return !found
	})
	return found
}

// FuzzJSON holds the reader against encoding/json: they take the same texts, but for what the specification
// refuses, and see the same value in them.
func FuzzJSON(f *testing.F) {
	for _, vector := range jsonCases() {
		f.Add([]byte(vector.Text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var hasher JSONHasher
		canonical, err := hasher.canonical(text)
		if err != nil {
			switch reason := reasonOf(t, err); reason {
			case ReasonSyntax, ReasonEmpty:
				if json.Valid(text) && utf8.Valid(text) {
					t.Errorf("%q: %v, but it is valid", text, err)
				}
			case ReasonInvalidUTF8:
				if utf8.Valid(text) {
					t.Errorf("%q: %v, but it is UTF-8", text, err)
				}
			case ReasonLoneSurrogate, ReasonDuplicateName, ReasonExponent, ReasonTooDeep:
				// Checked by what encoding/json would make of it, were it accepted: see below.
			default:
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if !json.Valid(text) || !json.Valid(canonical) {
			t.Fatalf("%q was taken, as %q, but is not JSON", text, canonical)
		}
		again, err := hasher.canonical(canonical)
		if err != nil || !bytes.Equal(again, canonical) {
			t.Errorf("%q becomes %q, and that becomes %q (%v)", text, canonical, again, err)
		}
		if want := oracleJSON(t, text); string(canonical) != want {
			t.Errorf("%q becomes %q, want %q", text, canonical, want)
		}
	})
}

// oracleJSON gives the canonical form by way of encoding/json and big numbers.
func oracleJSON(t *testing.T, text []byte) string {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		t.Fatalf("%q: something follows", text)
	}
	return oracleValue(value)
}

var numberParts = regexp.MustCompile(`^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$`)

func oracleValue(value any) string {
	switch value := value.(type) {
	case json.Number:
		parts := numberParts.FindStringSubmatch(value.String())
		digits, _ := new(big.Int).SetString(parts[2]+parts[3], 10)
		if digits.Sign() == 0 {
			return "0"
		}
		exponent, ok := new(big.Int).SetString(parts[4], 10)
		if !ok {
			exponent = new(big.Int)
		}
		exponent.Sub(exponent, big.NewInt(int64(len(parts[3]))))
		written := digits.String()
		significant := strings.TrimRight(written, "0")
		exponent.Add(exponent, big.NewInt(int64(len(written)-len(significant))))
		if exponent.Sign() == 0 {
			return parts[1] + significant
		}
		return parts[1] + significant + "e" + exponent.String()
	case []any:
		var parts []string
		for _, element := range value {
			parts = append(parts, oracleValue(element))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case map[string]any:
		var names []string
		for name := range value {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int {
			return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		})
		var parts []string
		for _, name := range names {
			parts = append(parts, oracleString(name)+":"+oracleValue(value[name]))
		}
		return "{" + strings.Join(parts, ",") + "}"
	case string:
		return oracleString(value)
	default:
		written, _ := json.Marshal(value)
		return string(written)
	}
}

func oracleString(text string) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(text); err != nil {
		panic(err)
	}
	written := strings.TrimSuffix(out.String(), "\n")
	// encoding/json escapes two characters more than RFC 8785. An escaped backslash before the u is no escape.
	written = regexp.MustCompile(`(\\\\)|\\u2028|\\u2029`).ReplaceAllStringFunc(written, func(found string) string {
		switch found {
		case `\u2028`:
			return "\u2028"
		case `\u2029`:
			return "\u2029"
		}
		return found
	})
	return written
}

// FuzzBytes: where the input is cut makes no difference.
func FuzzBytes(f *testing.F) {
	f.Add([]byte(""), uint16(0))
	f.Add([]byte("hello"), uint16(2))
	f.Add(pattern(4097), uint16(4096))
	f.Fuzz(func(t *testing.T, data []byte, cut uint16) {
		at := min(int(cut), len(data))
		whole, err := Bytes(data)
		var hasher BytesHasher
		_, _ = hasher.Write(data[:at])
		_, _ = hasher.Write(data[at:])
		cutHash, errCut := hasher.Sum()
		if (err == nil) != (len(data) > 0) || (errCut == nil) != (err == nil) || !whole.Equal(cutHash) {
			t.Errorf("whole %v (%v), cut at %d %v (%v)", whole, err, at, cutHash, errCut)
		}
	})
}
