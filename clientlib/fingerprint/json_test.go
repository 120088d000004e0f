package fingerprint

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

func mustJSON(t *testing.T, text string) Fingerprint {
	t.Helper()
	result, err := JSON([]byte(text))
	if err != nil {
		t.Fatalf("%.60q: %v", text, err)
	}
	return result
}

// TestC42_JSONValues: the same value has one fingerprint however it is written, and no two values share one.
func TestC42_JSONValues(t *testing.T) {
	// Texts on one line are one value; those of different lines are different ones.
	values := [][]string{
		{`9007199254740992`, `9007199254740992.0`, `9.007199254740992e15`, `90071992547409920e-1`},
		{`9007199254740993`, `9007199254740993.000`},
		{`1`, `1.0`, `1e0`, `1E+0`, `10e-1`, `0.1e1`, ` 1 `, "\r\n1\t"},
		{`-1`, `-1.0`},
		{`0`, `-0`, `0.0`, `0e7`},
		{`1e400`, `10e399`, "1" + strings.Repeat("0", 400)},
		{`1e401`},
		{`1e-400`},
		{`"1"`},
		{`true`}, {`false`}, {`null`}, {`"null"`}, {`""`}, {`[]`}, {`{}`}, {`[null]`}, {`[[]]`}, {`{"":null}`},
		{"\"\u00e9\"", `"\u00e9"`, `"\u00E9"`},
		{"\"e\u0301\"", `"e\u0301"`, `"\u0065\u0301"`},
		{`"/"`, `"\/"`, `"\u002f"`},
		{"\"\U0001F600\"", `"\ud83d\ude00"`, `"\uD83D\uDE00"`},
		{`{"a":1,"A":2}`, `{"A":2,"a":1}`, `{"\u0041":2.0,"a":1}`},
		{`{"a":2,"A":1}`},
		{`{"a":1}`},
		{"{\"\uff61\":1,\"\U00010000\":2}", "{\"\U00010000\":2,\"\uff61\":1}", `{"\uff61":1,"\ud800\udc00":2}`},
		{`[1,2]`, `[ 1 , 2 ]`},
		{`[2,1]`},
		{`[12]`},
		{`{"a":{"b":1},"c":2}`, `{"c":2,"a":{"b":1}}`},
		{`{"a":{"b":1,"c":2}}`, `{"a":{"c":2,"b":1}}`},
		{`{"a":"b\",\"c\":\"d"}`},
		{`{"a":"b","c":"d"}`},
	}
	seen := map[string]string{}
	for _, spellings := range values {
		first := mustJSON(t, spellings[0])
		for _, spelling := range spellings[1:] {
			if !mustJSON(t, spelling).Equal(first) {
				t.Errorf("%.60q and %.60q are one value with two fingerprints", spellings[0], spelling)
			}
		}
		if other, ok := seen[first.String()]; ok {
			t.Errorf("%.60q and %.60q are two values with one fingerprint", spellings[0], other)
		}
		seen[first.String()] = spellings[0]
	}
}

// TestC42_JSONMemberOrder: RFC 8785 orders by UTF-16 code units, where U+10000 comes before U+FF61.
func TestC42_JSONMemberOrder(t *testing.T) {
	var hasher JSONHasher
	got, err := hasher.canonical([]byte("{\"\uff61\":1,\"\U00010000\":2,\"b\":3,\"B\":4,\"\ue000\":5,\"\ud7ff\":6,\"\U0010ffff\":7,\"\uffff\":8,\"ab\":9,\"a\":0}"))
	if err != nil {
		t.Fatal(err)
	}
	want := "{\"B\":4,\"a\":0,\"ab\":9,\"b\":3,\"\ud7ff\":6,\"\U00010000\":2,\"\U0010ffff\":7,\"\ue000\":5,\"\uff61\":1,\"\uffff\":8}"
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestC42_JSONRefusals: what parsers disagree about is refused, with the place where it stands.
func TestC42_JSONRefusals(t *testing.T) {
	for _, test := range []struct {
		text   string
		reason Reason
		where  string
	}{
		{`"\ud800"`, ReasonLoneSurrogate, "byte 1"},
		{`{"a\udc00":1}`, ReasonLoneSurrogate, "byte 3"},
		{`{"a":1,"b":2,"a":3}`, ReasonDuplicateName, "byte 13"},
		{`{"a":1,"\u0061":1}`, ReasonDuplicateName, "byte 7"},
		{`{"b":{"a":1,"a":1}}`, ReasonDuplicateName, "byte 12"},
		{"\"a\xff\"", ReasonInvalidUTF8, "byte 2"},
		{`{"a":1} {"a":1}`, ReasonSyntax, "byte 8"},
		{`[1,`, ReasonSyntax, "byte 3"},
		{strings.Repeat("[", MaxDepth+1), ReasonTooDeep, "byte 100"},
		{"\t ", ReasonEmpty, ""},
	} {
		_, err := JSON([]byte(test.text))
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Reason != test.reason || refusal.Where != test.where {
			t.Errorf("%.40q: %v, want %s at %s", test.text, err, test.reason, test.where)
		}
	}
}

// TestJSONDuplicateAmongMany: a duplicate is found wherever it stands among members that have to be sorted.
func TestJSONDuplicateAmongMany(t *testing.T) {
	for duplicate := range 60 {
		var members []string
		for i := range 60 {
			members = append(members, fmt.Sprintf(`"%d":%d`, (i*37)%60, i))
		}
		members = append(members, fmt.Sprintf(`"%d":1`, duplicate))
		if _, err := JSON([]byte("{" + strings.Join(members, ",") + "}")); !errors.Is(err, ReasonDuplicateName) {
			t.Errorf("a second %d: %v, want %s", duplicate, err, ReasonDuplicateName)
		}
	}
}

// TestJSONRefusalsDoNotQuote: a body is somebody's secret, and errors end in logs.
func TestJSONRefusalsDoNotQuote(t *testing.T) {
	for _, text := range []string{
		`{"hunter2":"hunter2","hunter2":1}`, `"hunter2\ud800"`, `{"hunter2":hunter2}`, `hunter2`, "\"hunter2\xff\"", `{"hunter2":1e9999999999}`,
	} {
		_, err := JSON([]byte(text))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestJSONExponentBomb: a short number that stands for a huge one costs no more than its text.
func TestJSONExponentBomb(t *testing.T) {
	text := []byte("[" + strings.Repeat("1e999999999,", 1000) + "1e-999999999]")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := JSON(text); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 10*uint64(len(text))+1<<16 {
		t.Errorf("%d bytes of text took %d bytes", len(text), used)
	}
}

// TestJSONPointersRefused: a pointer that cannot be one is found when the hasher is built.
func TestJSONPointersRefused(t *testing.T) {
	for pointer, want := range map[string]string{
		"":        "whole text",
		"a":       "start with /",
		"#/a":     "start with /",
		"/a~":     "followed by 0 or 1",
		"/a~2b":   "followed by 0 or 1",
		"/a/\xff": "not UTF-8",
	} {
		_, err := NewJSONHasher(JSONConfig{Exclude: []string{"/fine", pointer}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error that says %q", pointer, err, want)
		}
	}
}
