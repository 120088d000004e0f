package fingerprint

import "strconv"

// maxExponent bounds the exponent of the canonical form. Every number that anybody means is inside, and
// arithmetic on exponents fits any language's plain integers. The number itself is never expanded, so a large
// exponent costs nothing.
const maxExponent = 999_999_999

// number reads a number and appends its canonical form: the digits without zeros at either end, then "e" and
// the power of ten that they are to be multiplied with, unless that is 0. Zero is "0", whatever its sign.
func (r *jsonReader) number() error {
	start, offset := len(r.out), r.pos
	if r.peek() == '-' {
		r.pos++
		r.out = append(r.out, '-')
	}
	first := len(r.out)
	whole := r.digits()
	switch {
	case len(whole) == 0:
		return r.refuse(ReasonSyntax, r.pos, "a number has digits here")
	case len(whole) > 1 && whole[0] == '0':
		return r.refuse(ReasonSyntax, r.pos-len(whole), "a number does not start with a needless 0")
	}
	r.out = append(r.out, whole...)
	exponent := int64(0)
	if r.peek() == '.' {
		r.pos++
		fraction := r.digits()
		if len(fraction) == 0 {
			return r.refuse(ReasonSyntax, r.pos, "a number has digits here")
		}
		r.out = append(r.out, fraction...)
		exponent -= int64(len(fraction))
	}
	if r.peek() == 'e' || r.peek() == 'E' {
		written, err := r.exponent()
		if err != nil {
			return err
		}
		exponent += written
	}

	end := len(r.out)
	for end > first && r.out[end-1] == '0' {
		end--
		exponent++
	}
	leading := first
	for leading < end && r.out[leading] == '0' {
		leading++
	}
	if leading == end {
		r.out = append(r.out[:start], '0')
		return nil
	}
	if exponent > maxExponent || exponent < -maxExponent {
		return r.refuse(ReasonExponent, offset, "the number is too large or too small")
	}
	r.out = append(r.out[:first], r.out[leading:end]...)
	if exponent != 0 {
		r.out = append(r.out, 'e')
		r.out = strconv.AppendInt(r.out, exponent, 10)
	}
	return nil
}

func (r *jsonReader) digits() []byte {
	start := r.pos
	for '0' <= r.peek() && r.peek() <= '9' {
		r.pos++
	}
	return r.in[start:r.pos]
}

// exponent reads "e" and what follows it. Beyond 15 digits it gives some number that is too large whatever the
// digits of a text that fits into memory add to it.
func (r *jsonReader) exponent() (int64, error) {
	r.pos++ // e or E
	negative := r.peek() == '-'
	if negative || r.peek() == '+' {
		r.pos++
	}
	digits := r.digits()
	if len(digits) == 0 {
		return 0, r.refuse(ReasonSyntax, r.pos, "an exponent has digits here")
	}
	var exponent int64
	for _, digit := range digits {
		if exponent < 1e15 {
			exponent = exponent*10 + int64(digit-'0')
		}
	}
	if negative {
		exponent = -exponent
	}
	return exponent, nil
}
