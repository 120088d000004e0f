package httpidem

import (
	"net/http"
	"strings"
	"testing"
)

func TestAKeyIsWhatItsHeaderSays(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 255)
	for value, want := range map[string]string{
		// In double quotes: a string of Structured Fields.
		`"8e03978e-40d5-43e8-bc93-6894a57f9324"`: "8e03978e-40d5-43e8-bc93-6894a57f9324",
		`"a b"`:                                  "a b",
		`" a "`:                                  " a ",
		`"a,b;c=d"`:                              "a,b;c=d",
		`"a\"b\\c"`:                              `a"b\c`,
		`" "`:                                    " ",
		`"` + long + `"`:                         long,
		// Bare: as it is.
		"8e03978e-40d5-43e8-bc93-6894a57f9324": "8e03978e-40d5-43e8-bc93-6894a57f9324",
		"ABC":                                  "ABC",
		`a\b`:                                  `a\b`,
		"a/b:c|d%e=":                           "a/b:c|d%e=",
		"?1":                                   "?1",
		":YWJj:":                               ":YWJj:",
		long:                                   long,
	} {
		got, rule := parseKey(value)
		if got != want || rule != "" {
			t.Errorf("%q: %q, %s", value, got, rule)
		}
	}
}

func TestAKeyThatIsNoneIsRefusedByARule(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("k", 256)
	for value, want := range map[string]string{
		"":                 "empty",
		`""`:               "empty",
		`"`:                "closing quote",
		`"abc`:             "closing quote",
		`"abc\"`:           "closing quote",
		`"a\bc"`:           "backslash",
		`"abc\`:            "backslash",
		`"abc" `:           "after the closing quote",
		`"abc";v=1`:        "after the closing quote",
		`"abc", "abc"`:     "after the closing quote",
		"\"a\x00\"":        "control",
		"\"a\n\"":          "control",
		"a\x7f":            "control",
		"a\tb":             "control",
		"\"\u00e9\"":       "ASCII",
		"\U0001f600":       "ASCII",
		"\xff":             "ASCII",
		"a b":              "double quotes",
		"a,a":              "double quotes",
		"a;v=1":            "double quotes",
		`a"b`:              "double quotes",
		long:               "255",
		`"` + long + `"`:   "255",
		" ":                "double quotes",
		"abc, \"abc\"":     "double quotes",
		`"abc""abc"`:       "after the closing quote",
		"abc\r\nX-Evil: 1": "control",
	} {
		if got, rule := parseKey(value); got != "" || !strings.Contains(rule, want) {
			t.Errorf("%q: %q, %q and not %q", value, got, rule, want)
		}
	}
}

func TestAKeyInQuotesAndBareAreTheSame(t *testing.T) {
	t.Parallel()
	key, present, err := keyOf(http.Header{"K": {`"abc"`, "abc"}}, "k", false)
	if key != "abc" || !present || err != nil {
		t.Error(key, present, err)
	}
	if _, _, err := keyOf(http.Header{"K": {"abc"}}, "k", true); err == nil || !strings.Contains(err.Rule, "in double quotes") {
		t.Error(err)
	}
	if _, _, err := keyOf(http.Header{"K": {`"abc"`}}, "k", true); err != nil {
		t.Error(err)
	}
}

// FuzzKeyHeader holds the reader of keys against the writer: whatever is read is a key by the rules, and is read again as it was
// written.
func FuzzKeyHeader(f *testing.F) {
	for _, seed := range []string{
		"", `""`, "a", `"a"`, `"a\"b"`, `"a\\"`, `"a";b=c`, "a,b", `"a", "b"`, "\x00", "\"\xff\"", `"`, `\`, `"\`, "é", " a", "a ",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, rule := parseKey(value)
		if (key == "") != (rule != "") {
			t.Fatalf("%q: key %q, rule %q", value, key, rule)
		}
		if rule == "" {
			if len(key) > MaxKeyChars || strings.Trim(key, printable) != "" {
				t.Fatalf("%q: %q is no key", value, key)
			}
			if value[0] != '"' && key != value {
				t.Fatalf("%q was changed to %q", value, key)
			}
		}
		written, ok := quote(value)
		if !ok {
			if strings.Trim(value, printable) == "" {
				t.Fatalf("%q can be written", value)
			}
			return
		}
		again, rule := parseKey(written)
		if value != "" && len(value) <= MaxKeyChars && (rule != "" || again != value) {
			t.Fatalf("%q is written %q and read %q (%s)", value, written, again, rule)
		}
	})
}

// printable is every character from space to tilde.
var printable = func() string {
	var all strings.Builder
	for c := byte(' '); c <= '~'; c++ {
		all.WriteByte(c)
	}
	return all.String()
}()
