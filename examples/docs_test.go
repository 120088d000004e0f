package examples_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// blocks are the pieces of a page in one language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		found = append(found, block[1])
	}
	return found
}

// snippetHead is what the pieces of Go in the documentation stand in: a program that has these.
const snippetHead = `package snippets

import (
	"context"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/idemd/idemd/clientlib"
	fp "github.com/idemd/idemd/clientlib/fingerprint"
	"github.com/idemd/idemd/clientlib/httpidem"
	"github.com/idemd/idemd/clientlib/idemtest"
)

var (
	ctx            context.Context
	t              testing.TB
	creds          credentials.TransportCredentials = insecure.NewCredentials()
	orderID, month string
	fingerprint    fp.Fingerprint
	ref            clientlib.Ref
	ledger         *clientlib.Client
	mux            *http.ServeMux
	charge         http.Handler
	authenticate   func(http.Handler) http.Handler
	userOf         func(*http.Request) (string, error)
	r              *http.Request

	_ = []any{grpc.NewServer, httpidem.Anonymous, idemtest.New, time.Second}
)
`

// TestTheGoOfTheDocumentationCompiles: whoever copies a piece of it has no typing to put right.
func TestTheGoOfTheDocumentationCompiles(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	source.WriteString(snippetHead)
	declared := regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) :=`)
	n := 0
	for _, page := range []string{"../README.md", "../docs/client.md", "../docs/http.md"} {
		for _, block := range blocks(t, page, "go") {
			n++
			for _, address := range regexp.MustCompile(`"[^"]*:(\d+)"`).FindAllStringSubmatch(block, -1) {
				if address[1] != "7433" {
					t.Errorf("%s has a daemon at %s; --grpc-listen is at port 7433", page, address[0])
				}
			}
			used := ""
			for _, names := range declared.FindAllStringSubmatch(block, -1) {
				for name := range strings.SplitSeq(names[1], ", ") {
					used += "\t_ = " + name + "\n"
				}
			}
			block = strings.ReplaceAll(block, "{ ... }", `{ panic("the work") }`)
			fmt.Fprintf(&source, "\n// %s\nfunc snippet%d() {\n%s%s}\n", page, n, block, used)
		}
	}
	if n < 7 {
		t.Fatalf("%d pieces", n)
	}
	file := filepath.Join(t.TempDir(), "snippets.go")
	if err := os.WriteFile(file, []byte(source.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, source.String())
	}
}

// TestTheFirstContactOfTheReadme: its calls, one after the other, come to what it says.
func TestTheFirstContactOfTheReadme(t *testing.T) {
	t.Parallel()
	daemon := startDaemon(t, t.TempDir(), "127.0.0.1:0")
	conn, err := grpc.NewClient("passthrough:///"+daemon.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ledger := idemv1.NewLedgerServiceClient(conn)
	calls := regexp.MustCompile(`(?s)grpcurl -plaintext -d '(.*?)'\s+(?:\\\n\s+)?127\.0\.0\.1:7433 idem\.v1\.LedgerService/(\w+)`).
		FindAllStringSubmatch(strings.Join(blocks(t, "../README.md", "sh"), "\n"), -1)
	if len(calls) != 3 {
		t.Fatalf("%d calls", len(calls))
	}
	key, token := "order-1", ""
	// The shell puts its variables in.
	filledIn := func(request string) []byte {
		return []byte(strings.NewReplacer("'$KEY'", key, "'$TOKEN'", token).Replace(request))
	}
	begin := func(request string) *idemv1.BeginResponse {
		var parsed idemv1.BeginRequest
		if err := protojson.Unmarshal(filledIn(request), &parsed); err != nil {
			t.Fatal(err)
		}
		response, err := ledger.Begin(t.Context(), &parsed)
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	granted, err := protojson.Marshal(begin(calls[0][1]))
	if err != nil {
		t.Fatal(err)
	}
	if match := regexp.MustCompile(`"claimToken": ?"([^"]+)"`).FindSubmatch(granted); match != nil {
		token = string(match[1])
	}
	var complete idemv1.CompleteRequest
	if err := protojson.Unmarshal(filledIn(calls[1][1]), &complete); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Complete(t.Context(), &complete); err != nil {
		t.Fatal(err)
	}
	if again := begin(calls[2][1]).GetCompleted(); !again.GetReplayed() || string(again.GetResponse().GetBody()) != "receipt-77" {
		t.Errorf("the retry: %v", again)
	}
	if shown := string(daemon.operate(t, "lookup", "charge", key)); !strings.Contains(shown, "receipt-77") {
		t.Errorf("lookup shows\n%s", shown)
	}
}

// TestTheCommandsOfTheDocumentationRunOnce: the scripts that README and docs/exec.md run are run once.
func TestTheCommandsOfTheDocumentationRunOnce(t *testing.T) {
	t.Parallel()
	daemon := startDaemon(t, t.TempDir(), "127.0.0.1:0")
	bin := filepath.Dir(program(t, "idemd"))
	line := regexp.MustCompile(`(?m)^idemd exec .* -- \./(\S+).*$`)
	n := 0
	for _, page := range []string{"../README.md", "../docs/exec.md"} {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range line.FindAllStringSubmatch(string(raw), -1) {
			n++
			dir := t.TempDir()
			script := "#!/bin/sh\necho once >>runs\necho \"it is $*\"\n"
			if err := os.WriteFile(filepath.Join(dir, command[1]), []byte(script), 0o700); err != nil { //nolint:gosec // a program
				t.Fatal(err)
			}
			var first string
			for i := range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				cmd := exec.CommandContext(ctx, "sh", "-c", command[0])
				cmd.Dir = dir
				cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "IDEMD_ADDR=" + daemon.addr}
				out, err := cmd.Output()
				cancel()
				if err != nil || i > 0 && string(out) != first {
					t.Errorf("%s: %q %v, and at first %q", command[0], out, err, first)
				}
				first = string(out)
			}
			if runs, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || string(runs) != "once\n" {
				t.Errorf("%s: run %q %v", command[0], runs, err)
			}
		}
	}
	if n < 2 {
		t.Errorf("%d commands", n)
	}
}
