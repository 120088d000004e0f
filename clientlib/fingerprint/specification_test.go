package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestSpecificationExamples: the worked examples of docs/fingerprint.md are what this package computes.
func TestSpecificationExamples(t *testing.T) {
	raw, err := os.ReadFile("../../docs/fingerprint.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	expect := func(what, text string) {
		t.Helper()
		if !strings.Contains(page, text) {
			t.Errorf("docs/fingerprint.md does not have the %s:\n%s", what, text)
		}
	}

	for _, algorithm := range []string{AlgorithmProto, AlgorithmJSON, AlgorithmBytes} {
		empty := sha256.Sum256([]byte("idem.fingerprint:" + algorithm + "\x00"))
		expect("hash of nothing", fmt.Sprintf("| `%s` | `%x` |", algorithm, empty))
	}

	bytesResult, err := Bytes([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	expect("hash of hello", hex.EncodeToString(bytesResult.Hash))

	jsonHasher, err := NewJSONHasher(JSONConfig{Exclude: []string{"/trace"}})
	if err != nil {
		t.Fatal(err)
	}
	input := `{"currency": "EUR", "amount": 1999.0, "trace": "7f3a"}`
	jsonResult, err := jsonHasher.Sum([]byte(input))
	if err != nil {
		t.Fatal(err)
	}
	canonicalJSON, _ := jsonHasher.canonical([]byte(input))
	expect("JSON input", input)
	expect("canonical JSON", "canonical  "+string(canonicalJSON)+"\n")
	expect("canonical JSON in hex", hex.EncodeToString(canonicalJSON))
	expect("hash of the JSON", hex.EncodeToString(jsonResult.Hash))

	_, schemas := loadVectors(t)
	descriptor := schemas["main"].descriptor(t, vectorsPackage+"Request")
	protoHasher, err := NewProtoHasher(descriptor, ProtoConfig{Exclude: []string{"trace_id"}})
	if err != nil {
		t.Fatal(err)
	}
	message := schemas["main"].text(t, vectorsPackage+"Request", `account: "a" amount: -5 trace_id: "t" meta { region: "r" }`)
	canonicalProto, protoResult, err := protoHasher.canonical(message)
	if err != nil {
		t.Fatal(err)
	}
	start := strings.Index(page, "    00000020 ")
	if start < 0 {
		t.Fatal("docs/fingerprint.md has no protobuf example")
	}
	var shown strings.Builder
	for line := range strings.Lines(page[start:]) {
		if !strings.HasPrefix(line, "    0") {
			break
		}
		digits, _, _ := strings.Cut(line[4:], "  ")
		shown.WriteString(strings.ReplaceAll(digits, " ", ""))
	}
	if got := hex.EncodeToString(canonicalProto); shown.String() != got {
		t.Errorf("docs/fingerprint.md shows %s for the protobuf example, not %s", shown.String(), got)
	}
	expect("hash of the protobuf example", hex.EncodeToString(protoResult.Hash))
}

// TestSpecificationNamesTheReasons: a reason that the page does not explain is no part of the specification.
func TestSpecificationNamesTheReasons(t *testing.T) {
	raw, err := os.ReadFile("../../docs/fingerprint.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range allReasons {
		if !strings.Contains(string(raw), "`"+string(reason)+"`") {
			t.Errorf("docs/fingerprint.md does not say when an input is refused for %q", reason)
		}
	}
}
