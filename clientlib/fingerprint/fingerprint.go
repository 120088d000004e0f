// Package fingerprint turns a request into a short digest that says what was asked, so that a ledger can
// tell a retry (same key, same request) from a mistake (same key, another request).
//
// Three algorithms exist. Each has an id that travels with its hash, and hashes only compare when their
// ids do:
//
//   - [AlgorithmProto] walks a protobuf message by its descriptor. Protobuf's own serialisation will not do:
//     it differs between languages, releases and even runs.
//   - [AlgorithmJSON] takes a JSON text, whatever its white space, member order and spelling of numbers.
//   - [AlgorithmBytes] takes bytes as they are.
//
// docs/fingerprint.md specifies all three exactly enough to write them in another language, and
// testdata/vectors.json holds the vectors that every implementation has to agree on. What is hashed never
// changes under an id: a change makes a new id.
package fingerprint

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
)

// The ids of the algorithms. A hash is only ever compared with one of the same id.
const (
	AlgorithmProto = "proto-sha256-v1"
	AlgorithmJSON  = "json-sha256-v1"
	AlgorithmBytes = "bytes-sha256-v1"
)

// MaxDepth is how deep messages (or JSON arrays and objects) may nest; the outermost one is level 1.
// It is the same number that protobuf parsers use, and the same for every implementation, so that a request
// does not have a fingerprint in one language and none in another.
const MaxDepth = 100

// Fingerprint says what was asked, as far as its algorithm can see.
type Fingerprint struct {
	// Algorithm is one of the ids above.
	Algorithm string
	// Hash is the digest, 32 bytes for every algorithm so far.
	Hash []byte
}

// Equal reports whether both fingerprints have the same algorithm and the same hash. False for two
// algorithms means "cannot tell", not "another request": compare the algorithms first where that matters.
func (f Fingerprint) Equal(other Fingerprint) bool {
	return f.Algorithm == other.Algorithm && bytes.Equal(f.Hash, other.Hash)
}

// String gives "algorithm:hash" with the hash in hexadecimal.
func (f Fingerprint) String() string {
	return f.Algorithm + ":" + hex.EncodeToString(f.Hash)
}

// domain is what is hashed before anything of the request, so that no fingerprint equals a plain digest
// of the same bytes, and no fingerprint of one algorithm equals one of another.
func domain(algorithm string) []byte {
	return []byte("idem.fingerprint:" + algorithm + "\x00")
}

var (
	domainProto = domain(AlgorithmProto)
	domainJSON  = domain(AlgorithmJSON)
	domainBytes = domain(AlgorithmBytes)
)

// Reason says in one word why an input was refused. The words are part of the specification: every
// implementation refuses the same inputs for the same reasons. A Reason is an error, so that
// errors.Is(err, fingerprint.ReasonEmpty) works on what this package returns.
type Reason string

const (
	// ReasonEmpty: there was nothing to hash. Most often the body had been read to its end by somebody
	// else first; hashing what is left would give every request the same fingerprint.
	ReasonEmpty Reason = "empty"
	// ReasonTooDeep: nested deeper than MaxDepth.
	ReasonTooDeep Reason = "too-deep"
	// ReasonInvalidUTF8: a string, or a JSON text, that is not UTF-8.
	ReasonInvalidUTF8 Reason = "invalid-utf8"

	// ReasonSyntax: not one JSON text, or more than one.
	ReasonSyntax Reason = "syntax"
	// ReasonDuplicateName: a JSON object with the same member name twice. Parsers disagree about which
	// one counts, so two readers of one request could see two requests.
	ReasonDuplicateName Reason = "duplicate-name"
	// ReasonLoneSurrogate: a JSON string with half of a UTF-16 surrogate pair, which is no character.
	ReasonLoneSurrogate Reason = "lone-surrogate"
	// ReasonExponent: a JSON number beyond what a power of ten of ±999999999 can write.
	ReasonExponent Reason = "exponent"

	// ReasonUnknownFields: a strict hasher met a field, or a value of a closed enum, that its descriptor
	// does not have.
	ReasonUnknownFields Reason = "unknown-fields"
	// ReasonOpaqueAny: a strict hasher met a google.protobuf.Any whose type it cannot resolve.
	ReasonOpaqueAny Reason = "opaque-any"
	// ReasonBadAny: the bytes in a google.protobuf.Any are not a message of the type that it names.
	ReasonBadAny Reason = "bad-any"
)

// Error makes a Reason usable as the target of errors.Is.
func (r Reason) Error() string { return string(r) }

// Error says why an input has no fingerprint. It never quotes the input, which may be somebody's secret:
// only the place, as a byte offset (JSON) or as field names from the schema (protobuf).
type Error struct {
	// Algorithm is the id of the algorithm that refused.
	Algorithm string
	// Reason is the specification's word for it.
	Reason Reason
	// Where is the place, for example "byte 17" or "items.price". It is empty when it is the whole input.
	Where string
	// Detail is a sentence for people.
	Detail string
}

func (e *Error) Error() string {
	var text strings.Builder
	fmt.Fprintf(&text, "fingerprint: %s: %s", e.Algorithm, e.Reason)
	if e.Where != "" {
		fmt.Fprintf(&text, " at %s", e.Where)
	}
	if e.Detail != "" {
		fmt.Fprintf(&text, ": %s", e.Detail)
	}
	return text.String()
}

// Unwrap gives the Reason, for errors.Is.
func (e *Error) Unwrap() error { return e.Reason }

// emptyInput is the refusal of a request of which nothing is there.
func emptyInput(algorithm string) *Error {
	return &Error{Algorithm: algorithm, Reason: ReasonEmpty,
		Detail: "nothing to hash; a body that was already read to its end gives every request the same hash"}
}
