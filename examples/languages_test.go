package examples_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// language is how the programs of one language are run.
type language struct {
	name    string
	command []string // before the program's arguments; the program's name without its ending is added to the last
	ending  string
}

// python finds a Python that has gRPC. Debian's is a package of Debian's own Python, which need not be the first on the PATH.
func python(t *testing.T) language {
	t.Helper()
	for _, interpreter := range []string{"/usr/bin/python3", "python3"} {
		if exec.CommandContext(t.Context(), interpreter, "-c", "import grpc, google.protobuf").Run() == nil {
			return language{"python", []string{interpreter, "python/"}, ".py"}
		}
	}
	t.Skip("skipped the Python examples: no python3 with gRPC; `apt-get install python3-grpcio python3-protobuf` would run them")
	return language{}
}

// node finds Node.js and the packages of the examples.
func node(t *testing.T) language {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("skipped the Node examples: no node on the PATH; Node.js 20 or later and `npm ci --prefix examples/node` would run them")
	}
	if _, err := os.Stat(filepath.Join("node", "node_modules", "@grpc", "grpc-js")); err != nil {
		t.Skip("skipped the Node examples: their packages are not installed; `npm ci --prefix examples/node` would run them")
	}
	return language{"node", []string{"node", "node/"}, ".js"}
}

// run runs one of its programs to the end.
func (l language) run(t *testing.T, name string, args ...string) (stdout, stderr string, ok bool) {
	t.Helper()
	last := len(l.command) - 1
	source := l.command[last] + name + l.ending
	// Reading the sources tells the test cache that the result depends on them.
	sources, _ := filepath.Glob(l.command[last] + "*" + l.ending)
	for _, path := range sources {
		if _, err := os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.command[0], append([]string{source}, args...)...)
	cmd.Env = append(environment(), "PYTHONDONTWRITEBYTECODE=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), err == nil
}

// prints runs a program that is to end well, and returns what it prints.
func (l language) prints(t *testing.T, name string, args ...string) string {
	t.Helper()
	stdout, stderr, ok := l.run(t, name, args...)
	if !ok {
		t.Fatalf("%s %s %v failed: %s%s", l.name, name, args, stdout, stderr)
	}
	return stdout
}

// refused runs a program that is to be refused for a reason.
func (l language) refused(t *testing.T, reason, name string, args ...string) {
	t.Helper()
	stdout, stderr, ok := l.run(t, name, args...)
	if ok || stdout != "" || !strings.HasPrefix(stderr, "refused: "+reason+" ") {
		t.Errorf("%s %s %v: want %s, got %q %q", l.name, name, args, reason, stdout, stderr)
	}
}

var languages = map[string]func(*testing.T) language{"python": python, "node": node}

// TestLanguagesCallAGuardedService: the key in metadata is all that it takes; a retry in any language gets the answer that the first one got
// in any other.
func TestLanguagesCallAGuardedService(t *testing.T) {
	t.Parallel()
	service := startPayments(t, startDaemon(t, t.TempDir(), "127.0.0.1:0"))
	inGo := language{"Go", []string{program(t, "pay")}, ""}
	for name, find := range languages {
		t.Run(name, func(t *testing.T) {
			l := find(t)
			account := "account of " + name
			first := l.prints(t, "pay", service.addr, name+"-1", account, "1250")
			if !regexp.MustCompile(`^executed: charge ch_\d+, 1250 cents in all\n$`).MatchString(first) {
				t.Fatalf("the first: %q", first)
			}
			replayed := strings.Replace(first, "executed", "replayed", 1)
			if again := l.prints(t, "pay", service.addr, name+"-1", account, "1250"); again != replayed {
				t.Errorf("again: %q, want %q", again, replayed)
			}
			l.refused(t, "KEY_REUSED", "pay", service.addr, name+"-1", account, "9999")
			l.refused(t, "INVALID_ARGUMENT", "pay", service.addr, name+"-2", account, "0")
			if second := l.prints(t, "pay", service.addr, name+"-3", account, "50"); !strings.HasSuffix(second, " 1300 cents in all\n") {
				t.Errorf("another key: %q", second)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, inGo.command[0], "-payments", service.addr, "-key", name+"-1", "-account", account, "-cents", "1250").Output()
			if want := strings.Replace(replayed, "replayed", "[replayed]", 1); err != nil || string(out) != want {
				t.Errorf("the same from Go: %q %v, want %q", out, err, want)
			}
		})
	}
}

// TestLanguagesUseTheLedgerThemselves: Begin, do it, Complete, in a program of a page. One language replays what another has done, so they agree
// about the fingerprint.
func TestLanguagesUseTheLedgerThemselves(t *testing.T) {
	t.Parallel()
	daemon := startDaemon(t, t.TempDir(), "127.0.0.1:0")
	for name, find := range languages {
		t.Run(name, func(t *testing.T) {
			l := find(t)
			file := filepath.Join(t.TempDir(), "lines")
			if got := l.prints(t, "once", daemon.addr, name, file, "grüße"); got != "executed: line 1\n" {
				t.Errorf("the first: %q", got)
			}
			for other, find := range languages {
				t.Run("and again from "+other, func(t *testing.T) {
					o := find(t)
					if got := o.prints(t, "once", daemon.addr, name, file, "grüße"); got != "replayed: line 1\n" {
						t.Errorf("%q", got)
					}
					o.refused(t, "KEY_REUSED", "once", daemon.addr, name, file, "something else")
				})
			}
			if content, err := os.ReadFile(file); err != nil || string(content) != "grüße\n" {
				t.Errorf("the file has %q %v", content, err)
			}
			// What fails half-way is in doubt, and the next one does not run it.
			nowhere := filepath.Join(file, "is a file")
			if stdout, stderr, ok := l.run(t, "once", daemon.addr, name+" fails", nowhere, "x"); ok {
				t.Errorf("it cannot have worked: %q %q", stdout, stderr)
			}
			if _, stderr, ok := l.run(t, "once", daemon.addr, name+" fails", file, "x"); ok || !strings.Contains(stderr, "in doubt") {
				t.Errorf("after a failure: %q", stderr)
			}
			// An operator who has looked has it run once more.
			daemon.release(t, "append-line", name+" fails")
			if got := l.prints(t, "once", daemon.addr, name+" fails", file, "x"); got != "executed: line 2\n" {
				t.Errorf("after the release: %q", got)
			}
		})
	}
}

// TestCodeIsGeneratedFromTheDescriptorSet as docs/languages.md says: one file is all that it takes, without the .proto files and what they import.
func TestCodeIsGeneratedFromTheDescriptorSet(t *testing.T) {
	t.Parallel()
	plugin, err := exec.LookPath("grpc_python_plugin")
	if err != nil {
		t.Skip("skipped generating code: no grpc_python_plugin; `apt-get install protobuf-compiler protobuf-compiler-grpc` would run it")
	}
	if _, err := exec.LookPath("protoc"); err != nil {
		t.Skip("skipped generating code: no protoc; `apt-get install protobuf-compiler protobuf-compiler-grpc` would run it")
	}
	out := t.TempDir()
	args := []string{"--descriptor_set_in=descriptors/idem.binpb", "--plugin=protoc-gen-grpc_python=" + plugin, "--grpc_python_out=" + out}
	for _, kind := range []string{"python", "java", "ruby", "php", "csharp", "cpp"} {
		args = append(args, "--"+kind+"_out="+out)
	}
	args = append(args, "idem/v1/ledger.proto", "idem/v1/entry.proto", "idem/v1/policy.proto", "google/rpc/status.proto", "google/rpc/error_details.proto")
	if said, err := exec.CommandContext(t.Context(), "protoc", args...).CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, said)
	}
	interpreter := python(t).command[0]
	cmd := exec.CommandContext(t.Context(), interpreter, "-c", "from idem.v1 import ledger_pb2, ledger_pb2_grpc; ledger_pb2_grpc.LedgerServiceStub; ledger_pb2.BeginRequest()")
	cmd.Dir = out
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("the generated Python: %v\n%s", err, said)
	}
}

// TestExamplesInOtherLanguagesAreShort: they are read as documentation.
func TestExamplesInOtherLanguagesAreShort(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"python/*.py", "node/*.js"} {
		sources, err := filepath.Glob(pattern)
		if err != nil || len(sources) != 3 {
			t.Fatalf("%s: %v %v", pattern, sources, err)
		}
		for _, source := range sources {
			content, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			if lines := bytes.Count(content, []byte("\n")); lines > 99 {
				t.Errorf("%s has %d lines", source, lines)
			}
			if longest := longestLine(content); longest > 140 {
				t.Errorf("%s has a line of %d characters", source, longest)
			}
		}
	}
}

// TestTheDocumentationShowsTheExamples: what docs/languages.md shows of a language stands in a program that is tested, word by word.
func TestTheDocumentationShowsTheExamples(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/languages.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```(python|js)\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(shown) < 4 {
		t.Fatalf("it shows %d pieces", len(shown))
	}
	for _, piece := range shown {
		sources, _ := filepath.Glob(map[string]string{"python": "python/*.py", "js": "node/*.js"}[piece[1]])
		found := false
		for _, source := range sources {
			content, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(content), piece[2])
		}
		if !found {
			t.Errorf("no example has this:\n%s", piece[2])
		}
	}
}

func longestLine(content []byte) int {
	longest := 0
	for line := range strings.SplitSeq(string(content), "\n") {
		longest = max(longest, len([]rune(line)))
	}
	return longest
}

// TestLockFilesNameNoRegistry: npm takes the one that it is configured with.
func TestLockFilesNameNoRegistry(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("node/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`"resolved": *"[^"]*"`).Find(content); found != nil {
		t.Errorf("%s: npm install with the .npmrc that is there leaves it out", found)
	}
}
