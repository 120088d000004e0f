package ledger_test

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The decision table is proved by scripts in testdata/scripts, one request a line with its outcome; README.md there has the grammar. Each
// script runs twice: through a Ledger on a store, and through Decide with nothing around it. A third test counts which cells of the table
// the scripts reached.

// command is one line of a script.
type command struct {
	where string // file and line
	text  string
	verb  string
	words []string // what has no "=", after the verb
	args  map[string]string
	want  string // "" where the line expects nothing
}

func (c command) arg(name, def string) string {
	if v, ok := c.args[name]; ok {
		return v
	}
	return def
}

func (c command) has(word string) bool { return slices.Contains(c.words, word) }

// word returns the nth bare word after the verb, "" if there is none.
func (c command) word(n int) string {
	if n < len(c.words) {
		return c.words[n]
	}
	return ""
}

func (c command) duration(t *testing.T, name string) time.Duration {
	t.Helper()
	v, ok := c.args[name]
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		t.Fatalf("%s: %s: %v", c.where, name, err)
	}
	return d
}

// outcome is what a request came to: a word, flags that a script must name exactly, and values that it may name.
type outcome struct {
	word   string
	flags  []string
	values map[string]string
}

func said(word string, flags ...string) outcome {
	o := outcome{word: word, values: map[string]string{}}
	for _, f := range flags {
		if f != "" {
			o.flags = append(o.flags, f)
		}
	}
	return o
}

func (o outcome) with(name string, value any) outcome {
	o.values[name] = fmt.Sprint(value)
	return o
}

func (o outcome) String() string {
	parts := append([]string{o.word}, o.flags...)
	for _, name := range slices.Sorted(maps.Keys(o.values)) {
		parts = append(parts, name+"="+o.values[name])
	}
	return strings.Join(parts, " ")
}

// differs says how o departs from what a script wants, "" if it does not.
func (o outcome) differs(want string) string {
	words := strings.Fields(want)
	if words[0] != o.word {
		return "want " + words[0]
	}
	var flags []string
	for _, w := range words[1:] {
		name, value, isValue := strings.Cut(w, "=")
		switch {
		case !isValue:
			flags = append(flags, w)
		case o.values[name] != value:
			return fmt.Sprintf("want %s=%s", name, value)
		}
	}
	slices.Sort(flags)
	got := slices.Sorted(slices.Values(o.flags))
	if !slices.Equal(flags, got) {
		return fmt.Sprintf("want flags %q, got %q", flags, got)
	}
	return ""
}

const scriptDir = "testdata/scripts"

func scriptFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(scriptDir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in %s: %v", scriptDir, err)
	}
	return files
}

// readScript returns the commands of a script and the rules that it says it is about.
func readScript(t *testing.T, path, prefix string) (commands []command, rules []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(strings.ReplaceAll(lines.Text(), "$", prefix))
		if rule, ok := strings.CutPrefix(text, "# rule:"); ok {
			rules = append(rules, strings.TrimSpace(rule))
		}
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		c := parseCommand(text)
		c.where = fmt.Sprintf("%s:%d", filepath.Base(path), n)
		if c.verb != "include" {
			commands = append(commands, c)
			continue
		}
		included, _ := readScript(t, filepath.Join(scriptDir, c.word(0)), c.arg("as", ""))
		commands = append(commands, included...)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return commands, rules
}

func parseCommand(text string) command {
	c := command{text: text, args: map[string]string{}}
	request, want, _ := strings.Cut(text, "->")
	c.want = strings.TrimSpace(want)
	fields := strings.Fields(request)
	c.verb = fields[0]
	if strings.HasPrefix(c.verb, "T+") || strings.HasPrefix(c.verb, "T-") {
		c.verb, c.words = "T", []string{fields[0][1:]}
		return c
	}
	for _, f := range fields[1:] {
		if name, value, ok := strings.Cut(f, "="); ok {
			c.args[name] = value
		} else {
			c.words = append(c.words, f)
		}
	}
	return c
}

var moveParts = regexp.MustCompile(`[+-][^+-]+`)

// parseMove reads a time line: signed lengths, added up.
func parseMove(t *testing.T, c command) time.Duration {
	t.Helper()
	total := time.Duration(0)
	for _, part := range moveParts.FindAllString(c.word(0), -1) {
		d, err := time.ParseDuration(part)
		if err != nil {
			t.Fatalf("%s: %v", c.where, err)
		}
		total += d
	}
	return total
}

// engine carries commands out.
type engine interface {
	run(t *testing.T, c command) outcome
}

func runScript(t *testing.T, path string, e engine) {
	t.Helper()
	commands, _ := readScript(t, path, "")
	for _, c := range commands {
		got := e.run(t, c)
		if c.want == "" {
			continue
		}
		if d := got.differs(c.want); d != "" {
			t.Errorf("%s: %s\n\tgot %s\n\t%s", c.where, c.text, got, d)
		}
	}
}

func TestScriptsThroughALedger(t *testing.T) {
	t.Parallel()
	for _, path := range scriptFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			runScript(t, path, newLedgerEngine(t, path))
		})
	}
}

func TestScriptsThroughDecide(t *testing.T) {
	t.Parallel()
	for _, path := range scriptFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			t.Parallel()
			runScript(t, path, newDecideEngine(t, path))
		})
	}
}
