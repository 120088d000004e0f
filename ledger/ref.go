package ledger

import (
	"fmt"
	"unicode/utf8"
)

// Ref names an entry. The parts are kept exactly as given: never trimmed, never folded, and never joined by a separator.
type Ref struct {
	Tenant    string
	Operation string
	Key       string
}

// Fingerprint is what a request was, as a hash under a named algorithm. Hashes of different algorithms are never compared.
type Fingerprint struct {
	Algorithm string
	Hash      []byte
}

// Validate refuses a scope outside the limits, naming the part and the rule (INVALID_TENANT, INVALID_OPERATION, INVALID_KEY).
func (r Ref) Validate() *Refusal {
	if ref := validatePart(ReasonInvalidTenant, "ref.tenant", r.Tenant, MaxTenantChars); ref != nil {
		return ref
	}
	if ref := validatePart(ReasonInvalidOperation, "ref.operation", r.Operation, MaxOperationChars); ref != nil {
		return ref
	}
	// An entry under the name that means all of them could be neither listed nor erased by itself, and a policy for it would be everybody's.
	switch every {
	case r.Tenant:
		return invalid(ReasonInvalidTenant, "ref.tenant", `must not be "*", which stands for every tenant`)
	case r.Operation:
		return invalid(ReasonInvalidOperation, "ref.operation", `must not be "*", which stands for every operation`)
	}
	return validatePart(ReasonInvalidKey, "ref.key", r.Key, MaxKeyChars)
}

// every stands for every tenant or every operation, in policies and filters.
const every = "*"

func validatePart(reason Reason, field, value string, maxChars int) *Refusal {
	if value == "" {
		return invalid(reason, field, "must not be empty")
	}
	return validateText(reason, field, value, maxChars)
}

// validateText is the one rule for every text that is stored and shown: valid UTF-8, a length, no control characters
// (C0, DEL, C1), since those break logs, terminals and, for NUL, PostgreSQL.
func validateText(reason Reason, field, value string, maxChars int) *Refusal {
	if PlainText(value, maxChars) {
		return nil
	}
	if !utf8.ValidString(value) {
		return invalid(reason, field, "must be valid UTF-8")
	}
	if n := utf8.RuneCountInString(value); n > maxChars {
		return invalid(reason, field, fmt.Sprintf("must have at most %d characters, has %d", maxChars, n))
	}
	for i, c := range value {
		if c < 0x20 || (c >= 0x7f && c <= 0x9f) {
			return invalid(reason, field, fmt.Sprintf("must not contain control characters, has U+%04X at byte %d", c, i))
		}
	}
	return nil
}

// PlainText reports whether a text has at most that many characters, all of printable ASCII: nearly every text has, it is seen at once, and no rule for texts here or in the
// .proto refuses one for its characters.
func PlainText(text string, maxChars int) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return len(text) <= maxChars
}
