package fingerprint

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// JSON fingerprints one JSON text. White space, the order of members, escapes in strings and the spelling
// of numbers make no difference; every other difference does, numbers beyond what a float64 can tell apart
// included. An ambiguous text (duplicate member names, lone surrogates, invalid UTF-8, anything after the
// first value) is refused rather than guessed at.
func JSON(text []byte) (Fingerprint, error) {
	var hasher JSONHasher
	return hasher.Sum(text)
}

// JSONConfig says what a JSONHasher leaves out.
type JSONConfig struct {
	// Exclude lists JSON Pointers (RFC 6901) of values to leave out, such as "/meta/request_time".
	// A pointer to what a text does not have changes nothing. A number matches an element of an array
	// (counted in the array as it was sent) or a member of that name.
	Exclude []string
}

// JSONHasher fingerprints JSON texts, leaving out what its configuration says. It does not change after it
// is built and may be used by any number of goroutines. The zero value leaves nothing out.
type JSONHasher struct {
	exclude *pointerStep
}

// NewJSONHasher builds a hasher, or says which pointer is not one.
func NewJSONHasher(config JSONConfig) (*JSONHasher, error) {
	hasher := &JSONHasher{}
	for _, pointer := range config.Exclude {
		if pointer == "" {
			return nil, fmt.Errorf("fingerprint: the JSON pointer \"\" leaves out the whole text, and with it every difference")
		}
		if pointer[0] != '/' {
			return nil, fmt.Errorf("fingerprint: %q is not a JSON pointer: it has to start with /", pointer)
		}
		if hasher.exclude == nil {
			hasher.exclude = &pointerStep{}
		}
		step := hasher.exclude
		for token := range strings.SplitSeq(pointer[1:], "/") {
			name, err := unescapePointer(token)
			if err != nil {
				return nil, fmt.Errorf("fingerprint: %q is not a JSON pointer: %w", pointer, err)
			}
			step = step.grow(name)
		}
		step.excluded = true
	}
	return hasher, nil
}

// Sum fingerprints text.
func (h *JSONHasher) Sum(text []byte) (Fingerprint, error) {
	canonical, err := h.canonical(text)
	if err != nil {
		return Fingerprint{}, err
	}
	digest := sha256.New()
	digest.Write(domainJSON)
	digest.Write(canonical)
	return Fingerprint{Algorithm: AlgorithmJSON, Hash: digest.Sum(nil)}, nil
}

// canonical gives the one JSON text that stands for all equal ones.
func (h *JSONHasher) canonical(text []byte) ([]byte, error) {
	reader := jsonReader{in: text, out: make([]byte, 0, len(text))}
	if err := reader.text(h.exclude); err != nil {
		return nil, err
	}
	return reader.out, nil
}

// pointerStep is one level of the excluded pointers, put together as a tree.
type pointerStep struct {
	excluded bool
	next     map[string]*pointerStep
}

func (s *pointerStep) grow(name string) *pointerStep {
	if s.next == nil {
		s.next = map[string]*pointerStep{}
	}
	if s.next[name] == nil {
		s.next[name] = &pointerStep{}
	}
	return s.next[name]
}

// at gives the step below, or nil where no pointer leads.
func (s *pointerStep) at(name string) *pointerStep {
	if s == nil {
		return nil
	}
	return s.next[name]
}

func (s *pointerStep) excludes() bool { return s != nil && s.excluded }

func unescapePointer(token string) (string, error) {
	for i := 0; i < len(token); i++ {
		if token[i] == '~' && (i+1 == len(token) || token[i+1] != '0' && token[i+1] != '1') {
			return "", fmt.Errorf("~ has to be followed by 0 or 1")
		}
	}
	if !utf8.ValidString(token) {
		return "", fmt.Errorf("it is not UTF-8")
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(token), nil
}

// jsonReader reads a text once and writes its canonical form as it goes. Members of an object are written
// in the order in which they come and put in order when the object ends, so that nothing but the text, its
// canonical form and a list of the members still open is ever held.
type jsonReader struct {
	in    []byte
	pos   int
	depth int

	out     []byte
	members []jsonMember // of all objects that are still open, innermost last
	scratch []byte
}

// jsonMember is one member of an object that is still open.
type jsonMember struct {
	name       []byte // decoded
	offset     int    // of the name in the input
	start, end int    // of "name":value in out; equal when the member is excluded
}

func (r *jsonReader) refuse(reason Reason, offset int, detail string) error {
	return &Error{Algorithm: AlgorithmJSON, Reason: reason, Where: "byte " + strconv.Itoa(offset), Detail: detail}
}

// text reads the whole input: one value and white space.
func (r *jsonReader) text(exclude *pointerStep) error {
	if !utf8.Valid(r.in) {
		return r.refuse(ReasonInvalidUTF8, invalidUTF8At(r.in), "the text is not UTF-8")
	}
	r.space()
	if r.pos == len(r.in) {
		return emptyInput(AlgorithmJSON)
	}
	if err := r.value(exclude); err != nil {
		return err
	}
	r.space()
	if r.pos != len(r.in) {
		return r.refuse(ReasonSyntax, r.pos, "something follows the value")
	}
	return nil
}

func invalidUTF8At(text []byte) int {
	offset := 0
	for offset < len(text) {
		char, size := utf8.DecodeRune(text[offset:])
		if char == utf8.RuneError && size == 1 {
			break
		}
		offset += size
	}
	return offset
}

func (r *jsonReader) space() {
	for r.pos < len(r.in) {
		switch r.in[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

// peek gives the next byte, or 0, which no JSON text has outside of its (escaped) strings, at the end.
func (r *jsonReader) peek() byte {
	if r.pos < len(r.in) {
		return r.in[r.pos]
	}
	return 0
}

func (r *jsonReader) value(exclude *pointerStep) error {
	switch char := r.peek(); {
	case char == '{':
		return r.nested(r.object, exclude)
	case char == '[':
		return r.nested(r.array, exclude)
	case char == '"':
		text, err := r.string()
		if err != nil {
			return err
		}
		r.out = appendJSONString(r.out, text)
		return nil
	case char == '-' || '0' <= char && char <= '9':
		return r.number()
	case char == 't':
		return r.literal("true")
	case char == 'f':
		return r.literal("false")
	case char == 'n':
		return r.literal("null")
	case r.pos == len(r.in):
		return r.refuse(ReasonSyntax, r.pos, "the text ends where a value should stand")
	default:
		return r.refuse(ReasonSyntax, r.pos, "no value starts like this")
	}
}

func (r *jsonReader) literal(word string) error {
	if !strings.HasPrefix(string(r.in[r.pos:min(len(r.in), r.pos+len(word))]), word) {
		return r.refuse(ReasonSyntax, r.pos, "no value starts like this")
	}
	r.pos += len(word)
	r.out = append(r.out, word...)
	return nil
}

// nested reads an object or an array, one level deeper.
func (r *jsonReader) nested(read func(*pointerStep) error, exclude *pointerStep) error {
	if r.depth == MaxDepth {
		return r.refuse(ReasonTooDeep, r.pos, fmt.Sprintf("more than %d levels of arrays and objects", MaxDepth))
	}
	r.depth++
	r.pos++ // the bracket
	err := read(exclude)
	r.depth--
	return err
}

func (r *jsonReader) array(exclude *pointerStep) error {
	start := len(r.out)
	r.out = append(r.out, '[')
	r.space()
	if r.peek() == ']' {
		r.pos++
		r.out = append(r.out, ']')
		return nil
	}
	for index := 0; ; index++ {
		var step *pointerStep
		if exclude != nil {
			step = exclude.at(strconv.Itoa(index))
		}
		before := len(r.out)
		if before > start+1 {
			r.out = append(r.out, ',')
		}
		r.space()
		if err := r.value(step); err != nil {
			return err
		}
		if step.excludes() {
			r.out = r.out[:before]
		}
		r.space()
		switch r.peek() {
		case ',':
			r.pos++
		case ']':
			r.pos++
			r.out = append(r.out, ']')
			return nil
		default:
			return r.refuse(ReasonSyntax, r.pos, "an array goes on with , or ends with ]")
		}
	}
}

func (r *jsonReader) object(exclude *pointerStep) error {
	base, start := len(r.members), len(r.out)
	r.out = append(r.out, '{')
	r.space()
	if r.peek() == '}' {
		r.pos++
		r.out = append(r.out, '}')
		return nil
	}
	for {
		r.space()
		if err := r.member(exclude, start); err != nil {
			return err
		}
		r.space()
		switch r.peek() {
		case ',':
			r.pos++
			continue
		case '}':
			r.pos++
		default:
			return r.refuse(ReasonSyntax, r.pos, "an object goes on with , or ends with }")
		}
		break
	}
	if err := r.sortMembers(base, start); err != nil {
		return err
	}
	r.members = r.members[:base]
	r.out = append(r.out, '}')
	return nil
}

// member reads "name": value and remembers where its canonical form stands; start is where the object's does.
func (r *jsonReader) member(exclude *pointerStep, start int) error {
	offset := r.pos
	if r.peek() != '"' {
		return r.refuse(ReasonSyntax, r.pos, "a member starts with its name in quotes")
	}
	name, err := r.string()
	if err != nil {
		return err
	}
	r.space()
	if r.peek() != ':' {
		return r.refuse(ReasonSyntax, r.pos, "a member's name is followed by :")
	}
	r.pos++
	r.space()

	var step *pointerStep
	if exclude != nil {
		step = exclude.at(string(name))
	}
	before := len(r.out)
	if before > start+1 {
		r.out = append(r.out, ',')
	}
	member := jsonMember{name: name, offset: offset, start: len(r.out)}
	r.out = appendJSONString(r.out, name)
	r.out = append(r.out, ':')
	if err := r.value(step); err != nil {
		return err
	}
	if step.excludes() {
		r.out = r.out[:before]
		member.start = before
	}
	member.end = len(r.out)
	// An excluded member stays in the list: its name must not come twice either.
	r.members = append(r.members, member)
	return nil
}

// sortMembers puts the members of the object that starts at out[start] in order.
func (r *jsonReader) sortMembers(base, start int) error {
	members := r.members[base:]
	inOrder := func(a, b jsonMember) int { return compareUTF16(a.name, b.name) }
	sorted := slices.IsSortedFunc(members, inOrder)
	if !sorted {
		slices.SortStableFunc(members, inOrder)
	}
	for i := 1; i < len(members); i++ {
		if string(members[i-1].name) == string(members[i].name) {
			return r.refuse(ReasonDuplicateName, members[i].offset, "the object already has a member of this name")
		}
	}
	if sorted {
		return nil
	}
	r.scratch = append(r.scratch[:0], r.out[start:]...)
	r.out = r.out[:start+1]
	for _, member := range members {
		if member.start == member.end {
			continue
		}
		if len(r.out) > start+1 {
			r.out = append(r.out, ',')
		}
		r.out = append(r.out, r.scratch[member.start-start:member.end-start]...)
	}
	return nil
}
