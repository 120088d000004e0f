package httpidem

import (
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/clientlib"
)

// Names of header fields.
const (
	// DefaultHeader is the request header in which the key comes.
	DefaultHeader = "Idempotency-Key"
	// ReplayedHeader is "true" with an answer that is not of now.
	ReplayedHeader = "Idempotency-Replayed"
	// OutcomeHeader says what became of a guarded request, in a word of [clientlib.Outcome].
	OutcomeHeader = "Idem-Outcome"
	// OriginalTimeHeader has, with a replay, when the original was recorded, in RFC 3339.
	OriginalTimeHeader = "Idem-Original-Time"
	// WouldBeHeader has, in a dry run, what the outcome would have been.
	WouldBeHeader = "Idem-Would-Be"
)

// MaxKeyChars is how long a key may be.
const MaxKeyChars = 255

// keyOf reads the key from a request. Several fields must agree: one of two different keys would be somebody's mistake.
func keyOf(header http.Header, name string, quotedOnly bool) (key string, present bool, err *clientlib.Error) {
	for _, value := range header.Values(name) {
		next, rule := parseKey(value)
		switch {
		case rule != "":
			return "", true, badKey(name, rule)
		case quotedOnly && !strings.HasPrefix(value, `"`):
			return "", true, badKey(name, "must be in double quotes")
		case present && next != key:
			return "", true, badKey(name, "must not be there with two different values")
		}
		key, present = next, true
	}
	return key, present, nil
}

// parseKey gives the key that a field's value stands for, or the rule that it breaks. A value in double quotes is a string of
// Structured Fields (RFC 9651, section 3.3.3), as the draft has it; one without is taken as it is. Both come to the same key,
// since quotes and escapes are how it is written and not what it is.
func parseKey(value string) (key, rule string) {
	if value == "" {
		return "", "must not be empty"
	}
	if value[0] != '"' {
		key, rule = value, bareRule(value)
	} else {
		key, rule = unquote(value)
	}
	switch {
	case rule != "":
		return "", rule
	case key == "":
		return "", "must not be empty"
	case len(key) > MaxKeyChars:
		return "", "must not have more than 255 characters"
	}
	return key, ""
}

// bareRule says what is wrong with a key without quotes. Commas, semicolons, spaces and quotes mean something in header
// fields (two fields that a proxy joined, for example), so a key with them has to be quoted.
func bareRule(value string) string {
	for i := range len(value) {
		switch c := value[i]; {
		case c < ' ' || c == 0x7f:
			return "must not have control characters"
		case c > '~':
			return "must be of ASCII characters"
		case c == ' ' || c == '"' || c == ',' || c == ';':
			return "must be in double quotes where it has a space, comma, semicolon or quote"
		}
	}
	return ""
}

func unquote(value string) (key, rule string) {
	var content strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"':
			if i+1 < len(value) {
				// The draft defines no parameters, and to drop one that means something would be guessing.
				return "", "must have nothing after the closing quote"
			}
			return content.String(), ""
		case c == '\\':
			i++
			if i == len(value) || value[i] != '"' && value[i] != '\\' {
				return "", `must not have a backslash before anything but " or \`
			}
			content.WriteByte(value[i])
		case c < ' ' || c == 0x7f:
			return "", "must not have control characters"
		case c > '~':
			return "", "must be of ASCII characters"
		default:
			content.WriteByte(c)
		}
	}
	return "", "must have a closing quote"
}

// quote writes a key as a string of Structured Fields. False: it has characters that no such string has.
func quote(key string) (string, bool) {
	var text strings.Builder
	text.WriteByte('"')
	for i := range len(key) {
		switch c := key[i]; {
		case c < ' ' || c > '~':
			return "", false
		case c == '"' || c == '\\':
			text.WriteByte('\\')
		}
		text.WriteByte(key[i])
	}
	text.WriteByte('"')
	return text.String(), true
}

func badKey(name, rule string) *clientlib.Error {
	return &clientlib.Error{
		Code: codes.InvalidArgument, Reason: clientlib.ReasonInvalidKey, Message: "the header " + name + " " + rule,
		Field: name, Rule: rule, FromServer: true,
	}
}

func keyRequired(name string) *clientlib.Error {
	return &clientlib.Error{
		Code: codes.InvalidArgument, Reason: clientlib.ReasonKeyRequired, Message: "this request needs a key, in the header " + name,
		Field: name, Rule: "is required", FromServer: true,
	}
}
