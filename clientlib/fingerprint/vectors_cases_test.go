package fingerprint

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	vectorsPackage = "idem.fingerprint.vectors."
	oldPackage     = vectorsPackage + "old."
	rolloutPackage = vectorsPackage + "rollout."
)

// protoCases are the inputs of the protobuf vectors; what comes of them is computed.
func protoCases(t *testing.T, schemas map[string]schema) []protoVector {
	t.Helper()
	main := schemas["main"]
	var cases []protoVector
	var last *protoVector
	// wire adds a case from bytes, text one from protobuf's text format.
	wire := func(name, message string, wire []byte) {
		cases = append(cases, protoVector{Name: name, Descriptors: "main", Message: vectorsPackage + message, Wire: hex.EncodeToString(wire)})
		last = &cases[len(cases)-1]
	}
	marshal := func(s schema, message, text string) []byte {
		raw, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(s.text(t, vectorsPackage+message, text))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	text := func(name, message, text string) { wire(name, message, marshal(main, message, text)) }

	text("message without fields", "Nothing", ``)
	text("all defaults", "Scalars", ``)
	text("scalars", "Scalars", `
		string: "h\303\251llo" double: 1.5 float: -0.25 int32: -1 int64: -9223372036854775808 uint32: 4294967295
		uint64: 18446744073709551615 sint32: -2 sint64: -3 fixed32: 4 fixed64: 5 sfixed32: -6 sfixed64: -7
		bool: true bytes: "\000\377" color: COLOR_MINUS leaf { number: 1 } last: 9`)
	text("empty submessage is present", "Scalars", `leaf {}`)
	wire("implicit presence: zero on the wire is absent", "Scalars", []byte{0x18, 0x00, 0x72, 0x00})
	wire("last value on the wire counts", "Scalars", []byte{0x18, 0x05, 0x18, 0x07})
	wire("submessages on the wire are merged", "Scalars", []byte{0x8a, 0x01, 0x02, 0x08, 0x01, 0x8a, 0x01, 0x03, 0x12, 0x01, 'x'})
	text("submessage, not merged", "Scalars", `leaf { number: 1 text: "x" }`)
	text("open enum: undeclared value", "Scalars", `color: 99`)
	text("composed e acute", "Scalars", `string: "\303\251"`)
	text("decomposed e acute", "Scalars", `string: "e\314\201"`)
	text("long text", "Scalars", fmt.Sprintf("string: %q bytes: %q", strings.Repeat("0123456789", 500), strings.Repeat("9876543210", 500)))

	text("optional: unset", "Optionals", ``)
	text("optional: set to default", "Optionals", `double: 0 float: 0 int32: 0 bool: false string: "" bytes: "" color: COLOR_UNSPECIFIED`)
	text("optional: int32 set to default", "Optionals", `int32: 0`)

	double := func(number protowire.Number, bits uint64) []byte {
		return protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), bits)
	}
	float := func(number protowire.Number, bits uint32) []byte {
		return protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), bits)
	}
	wire("NaN", "Scalars", append(double(1, 0x7FF8000000000000), float(2, 0x7FC00000)...))
	wire("NaN with sign and payload", "Scalars", append(double(1, 0xFFF8000000000123), float(2, 0xFFC00123)...))
	wire("minus zero, implicit presence", "Scalars", append(double(1, 1<<63), float(2, 1<<31)...))
	wire("minus zero, explicit presence", "Optionals", append(double(1, 1<<63), float(2, 1<<31)...))
	text("plus zero, explicit presence", "Optionals", `double: 0 float: 0`)
	text("infinities and the smallest", "Lists", `doubles: inf doubles: -inf doubles: 5e-324 doubles: -5e-324 doubles: 1.7976931348623157e308`)
	text("floats of a list keep their zeros", "Lists", `doubles: 0 doubles: -0.0 doubles: nan`)

	packed := []byte{0x0a, 0x05, 0x01, 0x02, 0x03, 0xac, 0x02}
	unpacked := []byte{0x08, 0x01, 0x08, 0x02, 0x08, 0x03, 0x08, 0xac, 0x02}
	wire("packed list, sent packed", "Lists", packed)
	wire("packed list, sent unpacked", "Lists", unpacked)
	wire("packed list, sent in both ways", "Lists", append([]byte{0x0a, 0x02, 0x01, 0x02}, 0x08, 0x03, 0x08, 0xac, 0x02))
	wire("unpacked list, sent packed", "Lists", []byte{0x12, 0x02, 0x01, 0x02})
	wire("unpacked list, sent unpacked", "Lists", []byte{0x10, 0x01, 0x10, 0x02})
	text("lists", "Lists", `packed: [0, -1] texts: ["", "a"] blobs: ["", "\001"] colors: [COLOR_UNSPECIFIED, COLOR_BLUE, 7]
		leaves: [{}, {number: 1}] flags: [true, false]`)
	text("list in another order", "Lists", `texts: ["a", ""]`)
	wire("empty packed list is absent", "Lists", []byte{0x0a, 0x00})

	text("map of 50", "Maps", mapOf50())
	wire("map of 50, sent in another order", "Maps", shuffledMap(t, marshal(main, "Maps", mapOf50())))
	text("map keys in order of their bytes", "Maps", `
		texts { key: "" value: "1" } texts { key: "a" value: "2" } texts { key: "ab" value: "3" } texts { key: "b" value: "4" }
		texts { key: "\357\275\241" value: "5" } texts { key: "\360\220\200\200" value: "6" }
		leaves { key: -1 value { number: 1 } } leaves { key: 0 value {} } leaves { key: 1 value { number: 2 } }
		leaves { key: -2147483648 value { number: 3 } } leaves { key: 256 value { number: 4 } }
		signed { key: -1 value: true } signed { key: 1 value: false }
		unsigned { key: 18446744073709551615 value: 1 } unsigned { key: 2 value: 3 }
		doubles { key: true value: -0.0 } doubles { key: false value: nan }
		colors { key: "x" value: 42 }
		nested { key: "n" value { texts { key: "z" value: "1" } texts { key: "y" value: "2" } } } nested { key: "m" value {} }`)
	wire("map: an entry without key and value", "Maps", []byte{0x0a, 0x00})
	wire("map: the last entry of a key counts", "Maps", []byte{0x0a, 0x06, 0x0a, 0x01, 'k', 0x12, 0x01, '1', 0x0a, 0x06, 0x0a, 0x01, 'k', 0x12, 0x01, '2'})

	text("oneof: nothing", "Choice", ``)
	text("oneof: number set to default", "Choice", `number: 0`)
	text("oneof: text set to default", "Choice", `text: ""`)
	text("oneof: empty message", "Choice", `leaf {}`)
	wire("oneof: minus zero", "Choice", double(4, 1<<63))
	wire("oneof: the last on the wire counts", "Choice", []byte{0x08, 0x01, 0x12, 0x01, 'x'})

	text("struct", "Request", `extra { fields { key: "b" value { null_value: NULL_VALUE } } fields { key: "a" value { list_value {
		values { number_value: 1.5 } values { bool_value: false } values { string_value: "s" } values { number_value: -0.0 } } } } }`)
	text("struct: a value without a kind", "Request", `extra { fields { key: "a" value {} } }`)
	last.NotIn = []string{"node"} // makes it null

	any := func(typeURL string, value []byte) []byte {
		inner := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), typeURL)
		inner = protowire.AppendBytes(protowire.AppendTag(inner, 2, protowire.BytesType), value)
		return protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), inner)
	}
	wire("any: known type", "Request", any("type.googleapis.com/"+vectorsPackage+"Lists", packed))
	wire("any: known type, serialised otherwise, under another prefix", "Request", any("example.com/types/"+vectorsPackage+"Lists", unpacked))
	wire("any: known type with an unknown field", "Request", any("type.googleapis.com/"+vectorsPackage+"Leaf", []byte{0x08, 0x01, 0x50, 0x01}))
	wire("any: marked field in it", "Request", any("type.googleapis.com/"+vectorsPackage+"Marked", []byte{0x0a, 0x01, 'k', 0x12, 0x01, 'd'}))
	wire("any: unknown type", "Request", any("type.googleapis.com/idem.fingerprint.Elsewhere", packed))
	wire("any: unknown type, other bytes", "Request", any("type.googleapis.com/idem.fingerprint.Elsewhere", unpacked))
	wire("any: unknown type, strict", "Request", any("type.googleapis.com/idem.fingerprint.Elsewhere", packed))
	last.Strict = true
	wire("any: empty", "Request", []byte{0x2a, 0x00})
	wire("any: empty, strict", "Request", []byte{0x2a, 0x00})
	last.Strict = true
	wire("any: bytes without a type", "Request", any("", []byte{1, 2, 3}))
	wire("any: not a message of its type", "Request", any("type.googleapis.com/"+vectorsPackage+"Leaf", []byte{0x12, 0x05, 'x'}))
	wire("any: in an any", "Request", any("type.googleapis.com/"+vectorsPackage+"Request", any("type.googleapis.com/"+vectorsPackage+"Leaf", []byte{0x08, 0x01})))
	wire("any: an any itself", "Request", any("type.googleapis.com/google.protobuf.Any", []byte{0x0a, 0x00}))
	text("any: ten side by side", "Request", strings.Repeat(`details { [type.googleapis.com/idem.fingerprint.vectors.Leaf] { number: 1 } } `, 10))
	nested := []byte(nil)
	for range maxAnys {
		nested = any("type.googleapis.com/"+vectorsPackage+"Request", nested)
	}
	wire("any: eight inside one another", "Request", nested)
	wire("any: nine inside one another", "Request", any("type.googleapis.com/"+vectorsPackage+"Request", nested))

	wire("unknown fields", "Leaf", []byte{0x08, 0x01, 0x50, 0x01, 0x5a, 0x01, 'x', 0x65, 1, 2, 3, 4})
	text("the same without unknown fields", "Leaf", `number: 1`)
	wire("unknown field in a nested message", "Scalars", []byte{0x8a, 0x01, 0x02, 0x50, 0x01})
	wire("unknown field, strict", "Leaf", []byte{0x08, 0x01, 0x50, 0x01})
	last.Strict = true
	wire("unknown group counts once", "Leaf", []byte{0x53, 0x08, 0x01, 0x08, 0x01, 0x54})

	request := `account: "a" amount: 5 trace_id: "t1" meta { request_time { seconds: 1 } region: "r" }
		metas { request_time { seconds: 2 } region: "s" } metas { request_time { seconds: 3 } }
		meta_by_name { key: "k" value { request_time { seconds: 4 } region: "u" } }
		inner { trace_id: "t2" amount: 6 }`
	text("nothing excluded", "Request", request)
	text("excluded: a field", "Request", request)
	last.Exclude = []string{"trace_id"}
	text("excluded: a nested field, through a list and a map too", "Request", request)
	last.Exclude = []string{"meta.request_time", "metas.request_time", "meta_by_name.request_time"}
	text("excluded: at one level only", "Request", request)
	last.Exclude = []string{"inner.trace_id"}
	text("excluded: a message", "Request", request)
	last.Exclude = []string{"meta", "metas", "meta_by_name"}
	wire("excluded: what is in there is not counted", "Request", []byte{0x0a, 0x01, 'a', 0x22, 0x02, 0x50, 0x01})
	last.Exclude = []string{"meta"}
	text("excluded by its mark", "Marked", `kept: "k" dropped: "d" not_dropped: "n" meta { region: "r" }`)
	text("excluded by its mark, in a list", "Request", `marked { dropped: "d" } marked { kept: "k" }`)
	text("another name hashed", "Leaf", `number: 1`)
	last.HashedName = "acme.v0.Leaf"

	text("proto2: nothing set, not even what is required", "old.Old", ``)
	text("proto2: defaults set", "old.Old", `id: 0 count: 7 name: "x" suit: NO_SUIT`)
	text("proto2: groups", "old.Old", `id: 1 Extra { number: 2 old { id: 3 } } Item { text: "a" } Item {}`)
	text("proto2: extensions", "old.Old", `id: 1 last: 2 [idem.fingerprint.vectors.old.tags]: ["b", "a"]
		[idem.fingerprint.vectors.old.level]: 0 [idem.fingerprint.vectors.old.parent] { id: 4 }`)
	text("proto2: marked extension", "old.Old", `id: 1 [idem.fingerprint.vectors.old.dropped]: "d"`)
	wire("proto2: extension that nobody declared", "old.Old", []byte{0x08, 0x01, 0xb0, 0x09, 0x01})
	wire("proto2: closed enum, undeclared value", "old.Old", []byte{0x08, 0x01, 0x20, 0x63})
	wire("proto2: closed enum, undeclared values in a list", "old.Old", []byte{0x08, 0x01, 0x28, 0x01, 0x28, 0x63, 0x28, 0x02})
	wire("proto2: closed enum, undeclared value in a packed list", "old.Old", []byte{0x08, 0x01, 0x32, 0x03, 0x01, 0x63, 0x02})
	wire("proto2: closed enum, only undeclared values in a list", "old.Old", []byte{0x08, 0x01, 0x28, 0x63})
	wire("proto2: closed enum, undeclared value in a map", "old.Old", []byte{0x08, 0x01,
		0x3a, 0x05, 0x0a, 0x01, 'a', 0x10, 0x01, 0x3a, 0x05, 0x0a, 0x01, 'b', 0x10, 0x63})
	last.NotIn = []string{"python"} // makes it the enum's first value
	wire("proto2: text that is not UTF-8", "old.Old", []byte{0x08, 0x01, 0x1a, 0x02, 0xc3, 0x28})
	last.NotIn = []string{"node"} // puts U+FFFD for what it cannot read

	text("64 levels", "Request", nestedRequest(64))
	text("101 levels", "Request", nestedRequest(MaxDepth+1))

	for _, edition := range []struct{ name, text string }{
		{"editions: implicit presence", `implicit: 0 implicit_double: -0.0`},
		{"editions: explicit presence", `explicit: 0`},
		{"editions: the others", `implicit: 1 expanded: [1, 2] delimited { explicit: 2 delimited {} } closed: CLOSED_ONE implicit_double: 1`},
	} {
		wire(edition.name, "editions.Mixed", marshal(schemas["editions"], "editions.Mixed", edition.text))
		last.Descriptors, last.NotIn = "editions", []string{"python"} // 4.21 is older than editions
	}

	rollout := func(name, descriptors string, wire []byte) {
		cases = append(cases, protoVector{Name: name, Descriptors: descriptors, Message: rolloutPackage + "Order", Wire: hex.EncodeToString(wire)})
	}
	v1 := marshal(schemas["rollout_v1"], "rollout.Order", `account: "a" amount: -5 method: METHOD_CARD items { sku: "s" count: 2 } items {}
		item_by_name { key: "k" value { sku: "t" } } address: "here" note: "n"`)
	v2 := marshal(schemas["rollout_v2"], "rollout.Order", `account: "a" method: METHOD_TRANSFER coupon: "" locker: "l"
		lines { sku: "s" price: 3 } gift { text: "g" }`)
	rollout("rollout: old request, old schema", "rollout_v1", v1)
	rollout("rollout: old request, new schema", "rollout_v2", v1)
	rollout("rollout: new request, new schema", "rollout_v2", v2)
	rollout("rollout: new request, old schema", "rollout_v1", v2)
	return cases
}

func mapOf50() string {
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "texts { key: \"key-%d\" value: \"value %d\" } ", i, i*i)
	}
	return text.String()
}

// shuffledMap gives the records of wire in another order, the same one every time.
func shuffledMap(t *testing.T, wire []byte) []byte {
	t.Helper()
	var records [][]byte
	for len(wire) > 0 {
		_, _, size := protowire.ConsumeField(wire)
		if size < 0 {
			t.Fatal("not a message")
		}
		records = append(records, wire[:size])
		wire = wire[size:]
	}
	random := rand.New(rand.NewPCG(1, 2))
	random.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	var shuffled []byte
	for _, record := range records {
		shuffled = append(shuffled, record...)
	}
	return shuffled
}

func nestedRequest(levels int) string {
	return strings.Repeat("inner { ", levels-1) + "amount: 1" + strings.Repeat(" }", levels-1)
}

// jsonCases are the inputs of the JSON vectors.
func jsonCases() []jsonVector {
	cases := []jsonVector{
		{Name: "literals", Text: `[true, false, null]`},
		{Name: "top-level scalar", Text: ` "x" `},
		{Name: "empty object", Text: `{}`},
		{Name: "empty object, spaced", Text: " {\t\r\n} "},
		{Name: "empty array", Text: `[ ]`},
		{Name: "members in order", Text: `{"a":1,"b":[{"c":2,"d":3}]}`},
		{Name: "members out of order", Text: "{\"b\" : [ {\"d\" : 3, \"c\" : 2} ],\n \"a\" : 1}"},
		{Name: "array order counts", Text: `[2,1]`},
		{Name: "names that differ only by case", Text: `{"b":1,"B":2,"a":3,"A":4}`},
		{Name: "names in order of UTF-16 units", Text: "{\"\uFF61\":1,\"\U00010000\":2,\"\uE000\":3,\"\uD7FF\":4,\"\":5,\"a\":6}"},
		{Name: "names in order of UTF-16 units, escaped", Text: `{"\uFF61":1,"\ud800\udc00":2,"\ue000":3,"\uD7FF":4,"":5,"\u0061":6}`},
		{Name: "the sorting example of RFC 8785", Text: `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`},
		{Name: "composed e acute", Text: "\"\u00e9\""},
		{Name: "decomposed e acute", Text: "\"e\u0301\""},
		{Name: "escapes", Text: `"\u0000\u0001\u001F\b\t\n\f\r\"\\\/\u002f\u007f\u2028\ud834\udd1e\uFFFF"`},
		{Name: "escapes, written otherwise", Text: "\"\\u0000\\u0001\\u001f\\u0008\\u0009\\u000a\\u000C\\u000d\\u0022\\u005c//\u007f\u2028\U0001D11E\uFFFF\""},

		{Name: "2^53", Text: `9007199254740992`},
		{Name: "2^53 + 1", Text: `9007199254740993`},
		{Name: "1", Text: `1`},
		{Name: "1.0", Text: `1.0`},
		{Name: "1e0", Text: `1e0`},
		{Name: "10e-1", Text: `10e-1`},
		{Name: "0.1E+1", Text: `0.1E+1`},
		{Name: "1e400", Text: `1e400`},
		{Name: "10 to the 400, written out", Text: "1" + strings.Repeat("0", 400)},
		{Name: "-1e-400", Text: `-1e-400`},
		{Name: "zeros", Text: `[0, -0, 0.0, -0.00, 0e5, 0e-5, 0E999999999]`},
		{Name: "numbers", Text: `[100, 1.50, -12.340e-5, 0.001, 123456789012345678901234567890.123, 1e+2, 1e-007]`},
		{Name: "largest exponent", Text: `[1e999999999, 1e-999999999, 1e0000000000000000000001, 0.1e1000000000, 10e-1000000000]`},
		{Name: "exponent too large", Text: `1e1000000000`},
		{Name: "exponent too small", Text: `1e-1000000000`},
		{Name: "exponent too large, after the digits", Text: `10e999999999`},
		{Name: "exponent too small, after the digits", Text: `0.1e-999999999`},
		{Name: "exponent far too large", Text: `1e99999999999999999999999999999999`},
		{Name: "exponent that is 1 modulo 2^64", Text: `1e18446744073709551617`},
		{Name: "exponent far too large, of zero", Text: `[0e99999999999999999999999999999999, 0.0E-99999999999999999999999999999999]`},

		{Name: "excluded: a member", Text: `{"amount":1,"trace":"t","meta":{"time":2,"region":"r"}}`, Exclude: []string{"/trace"}},
		{Name: "excluded: the first and the last member", Text: `{"z":1,"a":2,"m":3}`, Exclude: []string{"/a", "/z"}},
		{Name: "excluded: a nested member", Text: `{"meta":{"time":2,"region":"r"},"amount":1}`, Exclude: []string{"/meta/time"}},
		{Name: "excluded: all members", Text: `{"meta":{"time":2}}`, Exclude: []string{"/meta/time"}},
		{Name: "excluded: an element", Text: `{"items":[{"id":1,"t":2},{"id":3,"t":4}]}`, Exclude: []string{"/items/0", "/items/1/t", "/items/2"}},
		{Name: "excluded: escaped pointer", Text: `{"a/b":1,"c~d":2,"~1":3,"e":4}`, Exclude: []string{"/a~1b", "/c~0d", "/~01"}},
		{Name: "excluded: a number as a name", Text: `{"0":1,"1":2}`, Exclude: []string{"/0"}},
		{Name: "excluded: nothing there", Text: `{"a":1}`, Exclude: []string{"/b/c", "/a/b", "/-"}},
		{Name: "excluded: the empty name", Text: `{"":1,"a":2}`, Exclude: []string{"/"}},
		{Name: "excluded, but twice there", Text: `{"a":1,"t":1,"t":2}`, Exclude: []string{"/t"}},
		{Name: "excluded, but not well-formed", Text: `{"a":1,"t":[1,}`, Exclude: []string{"/t"}},

		{Name: "duplicate member", Text: `{"a":1,"b":2,"a":1}`},
		{Name: "duplicate member, escaped", Text: `{"a":1,"\u0061":2}`},
		{Name: "duplicate member, deep", Text: `[{"a":{"b":1,"b":1}}]`},
		{Name: "lone high surrogate", Text: `"\ud800"`},
		{Name: "lone low surrogate", Text: `"\udc00"`},
		{Name: "surrogates in the wrong order", Text: `"\udc00\ud800"`},
		{Name: "high surrogate before something else", Text: `"\ud800\u0041"`},
		{Name: "lone surrogate in a name", Text: `{"\ud800":1}`},
		{Name: "invalid UTF-8", Text: "\"\xff\""},
		{Name: "overlong UTF-8", Text: "\"\xc0\x80\""},
		{Name: "surrogate in UTF-8", Text: "\"\xed\xa0\x80\""},
		{Name: "cut UTF-8", Text: "\"\xe2\x82\""},
		{Name: "no text", Text: ``},
		{Name: "white space only", Text: " \r\n\t"},
		{Name: "100 levels", Text: strings.Repeat(`[`, 100) + strings.Repeat(`]`, 100)},
		{Name: "101 levels", Text: strings.Repeat(`{"a":`, 50) + strings.Repeat(`[`, 51) + strings.Repeat(`]`, 51) + strings.Repeat(`}`, 50)},
	}
	for _, text := range []string{
		`1 2`, `{} {}`, `{"a":1}x`, "1\x00", "\ufeff1", "\u00a01", `{`, `[`, `"`, `"\"`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{a:1}`,
		`{'a':1}`, `{1:2}`, `[1`, `[1,`, `[1,]`, `[,1]`, `[1 2]`, `]`, `}`, `tru`, `truex`, `True`, `NaN`, `Infinity`, `-Infinity`, `undefined`,
		`01`, `-01`, `00`, `+1`, `.5`, `1.`, `-`, `-.5`, `1e`, `1e+`, `1.e1`, `1_000`, `0x1`, `1e1.5`, "\"\n\"", "\"\x1f\"", "\"\x00\"",
		`"\x"`, `"\u"`, `"\u12"`, `"\u12g4"`, `"\U0041"`, `"\'"`, `// c`, `/* c */ 1`,
	} {
		cases = append(cases, jsonVector{Name: "not JSON: " + fmt.Sprintf("%+q", text), Text: text})
	}
	return cases
}

// bytesCases are the inputs of the bytes vectors.
func bytesCases() []bytesVector {
	cases := []bytesVector{
		{Name: "nothing"},
		{Name: "one zero byte", Hex: "00"},
		{Name: "hello", Hex: hex.EncodeToString([]byte("hello"))},
		{Name: "JSON is bytes too", Hex: hex.EncodeToString([]byte(`{"a":1}`))},
	}
	for _, size := range []int{1, 4095, 4096, 4097, 65536, 4 << 20} {
		cases = append(cases, bytesVector{Name: fmt.Sprintf("%d bytes", size), Pattern: size})
	}
	return cases
}
