package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// errorInfo is what a refusal carries.
func errorInfo(reason string) *errdetails.ErrorInfo {
	return &errdetails.ErrorInfo{Domain: errorDomain, Reason: reason}
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

func target10s() *target {
	return &target{addr: "memory", timeout: durationFlag(10 * time.Second), output: &choice{value: formText}}
}

func TestDurationsAreReadAndWrittenInDays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "90d": 90 * day, "1d12h": 36 * time.Hour, "1d1ms": day + time.Millisecond, "1m30s": 90 * time.Second, "250ms": 250 * time.Millisecond,
		"1h": time.Hour, "100h": 100 * time.Hour,
	} {
		got, err := parseDuration(text)
		if err != nil || got != want {
			t.Errorf("%s is read as %v, %v", text, got, err)
		}
		if again, err := parseDuration(formatDuration(got)); err != nil || again != got {
			t.Errorf("%v is written %s, which is read as %v, %v", got, formatDuration(got), again, err)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", time.Minute: "1m", time.Hour: "1h", 90 * day: "90d", 36 * time.Hour: "1d12h", 10*time.Minute + time.Second: "10m1s",
		time.Hour + time.Second: "1h0m1s", 10 * time.Second: "10s", day + 500*time.Millisecond: "1d500ms",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
	for _, text := range []string{"", "d", "10", "-1s", "-1d", "1.5d", "1d-1h", "1h1d", "99999999999999999999d", "1w"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// TestWhatOthersWroteCannotSpeakToTheTerminal: keys, holders and answers come from anywhere.
func TestWhatOthersWroteCannotSpeakToTheTerminal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain, ünïcode, 漢字\n\ttoo":  "plain, ünïcode, 漢字\n\ttoo",
		"\x1b]0;title\x07":           `\x1b]0;title\a`,
		"back\rwards":                `back\rwards`,
		"right\u202eleft":            `right\u202eleft`,
		"no utf-8: \xff.":            `no utf-8: \xff.`,
		"replacement: \ufffd itself": `replacement: \xef itself`,
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is printed as %s, want %s", text, got, want)
		}
	}
	d := newMemoryDaemon(t)
	if err := d.begin("evil"); err != nil {
		t.Fatal(err)
	}
	if _, err := d.caller.Complete(t.Context(), &idemv1.CompleteRequest{
		Ref: ref("evil"), ClaimToken: d.claims["evil"].GetClaimToken(), Response: &idemv1.Response{Body: []byte("\x1b[2Jgone\x00"), ContentType: "\x1b[31m"},
	}); err != nil {
		t.Fatal(err)
	}
	if r := d.runs("", "lookup", ref("evil").GetOperation(), "evil"); r.code != exitOK || strings.ContainsAny(r.stdout, "\x1b\x00") {
		t.Errorf("%+v", r)
	}
	if r := d.runs("", "lookup", ref("evil").GetOperation(), "evil", "--body"); r.stdout != "\x1b[2Jgone\x00" {
		t.Errorf("--body is to print the bytes as they are, and printed %q", r.stdout)
	}
}

func TestWhatIsShownForTheShellIsReadBackByIt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"shop.v1.PaymentService/Charge": "shop.v1.PaymentService/Charge", "": "''", "two words": "'two words'", "it's": `'it'\''s'`, "$(rm)": "'$(rm)'", "*": "'*'",
	} {
		if got := shellQuote(text); got != want {
			t.Errorf("%q is quoted %s, want %s", text, got, want)
		}
	}
}

// TestJSONIsOneDocumentOnALine for each entry, whatever protojson does to its spaces.
func TestJSONIsOneDocumentOnALine(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	for _, key := range []string{"a", "b", "c"} {
		if err := d.begin(key); err != nil {
			t.Fatal(err)
		}
	}
	r := d.runs("", "list", "-o", "json")
	lines := strings.Split(strings.TrimSuffix(r.stdout, "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%+v", r)
	}
	for _, line := range lines {
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(line)); err != nil || compact.String() != line {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// TestListGoesThroughAllPages, and stops at its limit.
func TestListGoesThroughAllPages(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	const n = listPageSize + 20
	for i := range n {
		if err := d.begin("k" + strings.Repeat("x", i%200) + time.Duration(i).String()); err != nil {
			t.Fatal(err)
		}
	}
	if r := d.runs("", "list", "--all", "-o", "json"); strings.Count(r.stdout, "\n") != n || r.stderr != "" {
		t.Errorf("%d lines, %s", strings.Count(r.stdout, "\n"), r.stderr)
	}
	if r := d.runs("", "list", "--limit", "510", "-o", "json"); strings.Count(r.stdout, "\n") != 510 || !strings.Contains(r.stderr, "more entries follow") {
		t.Errorf("%d lines, %s", strings.Count(r.stdout, "\n"), r.stderr)
	}
	if r := d.runs("", "list", "--limit", "520", "-o", "json"); strings.Count(r.stdout, "\n") != n || r.stderr != "" {
		t.Errorf("%d lines, %s", strings.Count(r.stdout, "\n"), r.stderr)
	}
}

// TestExitCodesTellWhoSpoke: the daemon that refuses, or the network that does not find it.
func TestExitCodesTellWhoSpoke(t *testing.T) {
	t.Parallel()
	reason := func(code codes.Code, reason string) error {
		s, err := status.New(code, "x").WithDetails(errorInfo(reason))
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"done":                            {nil, exitOK},
		"refused":                         {reason(codes.FailedPrecondition, "CLAIM_LIVE"), exitFailed},
		"the store is away":               {reason(codes.Unavailable, "STORE_UNAVAILABLE"), exitFailed},
		"the daemon drains":               {reason(codes.Unavailable, "DRAINING"), exitFailed},
		"the transport broke":             {status.Error(codes.Unavailable, "connection reset"), exitUnreachable},
		"no answer in time":               {status.Error(codes.DeadlineExceeded, "x"), exitFailed},
		"no answer in time, by our clock": {context.DeadlineExceeded, exitFailed},
		"wrong arguments":                 {usage("x"), exitUsage},
	} {
		if got := exitCode(called(c.err, "localhost:1")); got != c.want {
			t.Errorf("%s: exit %d, want %d", name, got, c.want)
		}
	}
}

func TestCompletionsAreThereForEveryShell(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := runAlone(t, []string{"IDEMD_STOR=x"}, "completion", shell); r.code != exitOK || !strings.Contains(r.stdout, "idemd") || r.stderr != "" {
			t.Errorf("%s: exit %d, %s", shell, r.code, r.stderr)
		}
	}
	if r := runAlone(t, nil, "__complete", "list", "--condition", "h"); !strings.Contains(r.stdout, "held") {
		t.Errorf("conditions: %+v", r)
	}
}

// TestProgressIsOneLineThatIsWrittenOver on a terminal, and what it came to is all that standard output gets.
func TestProgressIsOneLineThatIsWrittenOver(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	if err := d.begin("order-1"); err != nil {
		t.Fatal(err)
	}
	d.clock.Advance(30 * day)
	var stdout, stderr bytes.Buffer
	w := &world{stdin: strings.NewReader(""), stdout: &printer{to: &stdout}, stderr: &printer{to: &stderr}, zone: time.UTC, draws: true, dial: d.dial}
	if code := w.run(t.Context(), []string{"sweep"}); code != exitOK || !strings.HasPrefix(stdout.String(), "examined 1, ") {
		t.Errorf("exit %d, %q", code, stdout.String())
	}
	if drawn := stderr.String(); strings.Contains(drawn, "\n") || !strings.HasPrefix(drawn, "\r\x1b[K") || !strings.HasSuffix(drawn, "\r\x1b[K") {
		t.Errorf("drawn: %q", drawn)
	}
}

// TestWhatCouldNotBePrintedIsAFailure: half a list is not the list.
func TestWhatCouldNotBePrintedIsAFailure(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	w := &world{stdin: strings.NewReader(""), stdout: &printer{to: fullDisk{}}, stderr: &printer{to: &stderr}}
	if code := w.run(t.Context(), []string{"version"}); code != exitFailed || !strings.Contains(stderr.String(), "no space left") {
		t.Errorf("exit %d, %s", code, stderr.String())
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestVersionIsForPeopleAndForScripts(t *testing.T) {
	t.Parallel()
	if r := runAlone(t, nil, "version"); r.code != exitOK || !strings.HasPrefix(r.stdout, "idemd ") {
		t.Errorf("%+v", r)
	}
	var b build
	if r := runAlone(t, nil, "version", "-o", "json"); json.Unmarshal([]byte(r.stdout), &b) != nil || b != buildVersion() {
		t.Errorf("%+v", r)
	}
	if r := runAlone(t, nil, "--version"); r.code != exitOK || !strings.HasPrefix(r.stdout, "idemd ") {
		t.Errorf("%+v", r)
	}
}
