package fingerprint

import (
	"unicode/utf16"
	"unicode/utf8"
)

// compareUTF16 orders two UTF-8 strings as RFC 8785 does, by their UTF-16 code units. That differs from the
// order of their bytes in one case: U+10000 and above are written with surrogates (D800 to DFFF), which come
// before U+E000 to U+FFFF.
func compareUTF16(a, b []byte) int {
	for i := 0; i < len(a) && i < len(b); i++ {
		if a[i] == b[i] {
			continue
		}
		aAstral, bAstral := a[i] >= 0xF0, b[i] >= 0xF0
		if aAstral != bAstral && a[i] >= 0xEE && b[i] >= 0xEE {
			if aAstral {
				return -1
			}
			return 1
		}
		return int(a[i]) - int(b[i])
	}
	return len(a) - len(b)
}

// string reads a string and gives the characters that it stands for: a part of the input where it has no
// escapes, a copy otherwise.
func (r *jsonReader) string() ([]byte, error) {
	start, escaped := r.pos+1, false
	for i := start; i < len(r.in); i++ {
		switch char := r.in[i]; {
		case char == '"':
			r.pos = i + 1
			if !escaped {
				return r.in[start:i], nil
			}
			return r.unescape(r.in[start:i], start)
		case char == '\\':
			escaped = true
			i++ // whatever follows, it does not end the string; unescape judges it
		case char < 0x20:
			return nil, r.refuse(ReasonSyntax, i, "a control character in a string has to be escaped")
		}
	}
	return nil, r.refuse(ReasonSyntax, start-1, "a string without an end")
}

// unescape gives the characters that raw stands for; offset is where raw stands in the input.
func (r *jsonReader) unescape(raw []byte, offset int) ([]byte, error) {
	out := make([]byte, 0, len(raw)) // an escape is never shorter than its character
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++ // never past the end: string took a backslash and what follows it together
		switch raw[i] {
		case '"', '\\', '/':
			out = append(out, raw[i])
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			unit, ok := hexUnit(raw[i+1:])
			if !ok {
				return nil, r.refuse(ReasonSyntax, offset+i, "\\u is followed by four hexadecimal digits")
			}
			i += 4
			if !utf16.IsSurrogate(unit) {
				out = utf8.AppendRune(out, unit)
				continue
			}
			char := rune(utf8.RuneError)
			if i+2 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
				if low, ok := hexUnit(raw[i+3:]); ok {
					char = utf16.DecodeRune(unit, low)
				}
			}
			if char == utf8.RuneError {
				return nil, r.refuse(ReasonLoneSurrogate, offset+i-5, "half of a surrogate pair")
			}
			i += 6
			out = utf8.AppendRune(out, char)
		default:
			return nil, r.refuse(ReasonSyntax, offset+i, "no such escape")
		}
	}
	return out, nil
}

// hexUnit reads the four digits of a \u escape.
func hexUnit(digits []byte) (rune, bool) {
	if len(digits) < 4 {
		return 0, false
	}
	var unit rune
	for _, digit := range digits[:4] {
		switch {
		case '0' <= digit && digit <= '9':
			unit = unit<<4 | rune(digit-'0')
		case 'a' <= digit && digit <= 'f':
			unit = unit<<4 | rune(digit-'a'+10)
		case 'A' <= digit && digit <= 'F':
			unit = unit<<4 | rune(digit-'A'+10)
		default:
			return 0, false
		}
	}
	return unit, true
}

// appendJSONString appends text in quotes, escaped as RFC 8785 says: only what has to be, in its shortest form.
func appendJSONString(out, text []byte) []byte {
	const digits = "0123456789abcdef"
	out = append(out, '"')
	plain := 0 // where the stretch that needs no escape began
	for i, char := range text {
		if char >= 0x20 && char != '"' && char != '\\' {
			continue
		}
		out = append(out, text[plain:i]...)
		plain = i + 1
		switch {
		case char == '"' || char == '\\':
			out = append(out, '\\', char)
		case char == '\b':
			out = append(out, '\\', 'b')
		case char == '\t':
			out = append(out, '\\', 't')
		case char == '\n':
			out = append(out, '\\', 'n')
		case char == '\f':
			out = append(out, '\\', 'f')
		case char == '\r':
			out = append(out, '\\', 'r')
		default:
			out = append(out, '\\', 'u', '0', '0', digits[char>>4], digits[char&0xF])
		}
	}
	out = append(out, text[plain:]...)
	return append(out, '"')
}
