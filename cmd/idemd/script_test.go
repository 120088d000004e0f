package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

var rewrite = flag.Bool("rewrite", false, "write what the commands print into testdata/*.script, to be read before it is committed")

// TestCommands runs the sessions in testdata: what an operator types, and all that comes of it. In a session
//
//	$ idemd …       is a command line; what is indented under it is what it prints, and its exit code where it is not 0;
//	                "| " stands before what goes to standard error, and "~" for an empty line
//	< word          is what a person types when the command before asks
//	@ verb args     is what a service does meanwhile, or the clock
func TestCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) == 0 {
		t.Fatalf("no sessions in testdata: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".script"), func(t *testing.T) {
			t.Parallel()
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := session(t, string(want))
			if *rewrite {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(want) && !*rewrite {
				t.Errorf("%s says otherwise (go test ./cmd/idemd -run TestCommands -rewrite, then look at the difference):\n%s", path, firstDifference(got, string(want)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d\n got: %s\nwant: %s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}

func session(t *testing.T, script string) string {
	d := newMemoryDaemon(t)
	var out strings.Builder
	lines := strings.Split(strings.TrimRight(script, "\n"), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "< ") && i > 0 {
			continue
		}
		fmt.Fprintln(&out, line)
		switch {
		case strings.HasPrefix(line, "@ "):
			if err := d.act(strings.Fields(line[2:])); err != nil {
				t.Fatalf("line %d: %s: %v", i+1, line, err)
			}
		case strings.HasPrefix(line, "$ idemd "):
			typed := ""
			if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "< ") {
				typed = lines[i+1][2:] + "\n"
				fmt.Fprintln(&out, lines[i+1])
			}
			writeResult(&out, d.runs(typed, shellWords(line[len("$ idemd "):])...))
		}
	}
	return out.String()
}

// writeResult indents what was printed; standard error stands behind a bar.
func writeResult(out *strings.Builder, r result) {
	for _, part := range []struct{ text, start string }{{r.stdout, "  "}, {r.stderr, "  | "}} {
		if part.text == "" {
			continue
		}
		for _, line := range strings.Split(strings.TrimSuffix(part.text, "\n"), "\n") {
			if line == "" && part.start == "  " {
				line = "~" // an empty line would be the script's own
			}
			fmt.Fprintln(out, strings.TrimRight(part.start+line, " "))
		}
	}
	if r.code != 0 {
		fmt.Fprintf(out, "  = exit %d\n", r.code)
	}
}

// act does what a service would do.
func (d *memoryDaemon) act(words []string) error {
	switch words[0] {
	case "begin":
		return d.begin(words[1])
	case "complete":
		_, err := d.caller.Complete(d.t.Context(), &idemv1.CompleteRequest{
			Ref: ref(words[1]), ClaimToken: d.claims[words[1]].GetClaimToken(),
			Response: &idemv1.Response{
				Body: []byte(strings.Join(words[2:], " ")), ContentType: "text/plain", ResourceType: "charge", ResourceId: "ch_" + words[1],
			},
		})
		return err
	case "fail":
		disposition := idemv1.Disposition(idemv1.Disposition_value["DISPOSITION_"+words[2]])
		_, err := d.caller.Fail(d.t.Context(), &idemv1.FailRequest{
			Ref: ref(words[1]), ClaimToken: d.claims[words[1]].GetClaimToken(), Disposition: disposition,
			Status: &rpcstatus.Status{Code: 9, Message: strings.Join(words[3:], " ")},
		})
		return err
	case "later":
		length, err := parseDuration(words[1])
		d.clock.Advance(length)
		return err
	}
	return fmt.Errorf("no such verb")
}

// shellWords splits a line as a shell does, as far as single quotes go.
func shellWords(line string) []string {
	var out []string
	var word strings.Builder
	quoted, started := false, false
	for _, r := range line {
		switch {
		case r == '\'':
			quoted, started = !quoted, true
		case r == ' ' && !quoted:
			if started {
				out = append(out, word.String())
			}
			word.Reset()
			started = false
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if started {
		out = append(out, word.String())
	}
	return out
}
