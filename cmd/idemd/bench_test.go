package main

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemd/idemd/cmd/idemd/internal/workload"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// quickBench is a bench that ends by its turns.
func quickBench(more ...string) []string {
	return append([]string{"bench", "--turns", "60", "--warmup", "0s", "--duration", "1m", "--workers", "4", "--mix", "fresh=1,replay=1,duplicates=1,mismatch=1"}, more...)
}

func TestBenchReportsAndLeavesNoEntries(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	got := d.runs("", quickBench("-o", "json")...)
	var report benchReport
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || got.code != exitOK {
		t.Fatalf("exit %d, %v: %s%s", got.code, err, got.stdout, got.stderr)
	}
	if !strings.HasPrefix(report.Tenant, "idemd-bench-") || report.Turns != 60 || report.Erased == 0 || report.Rechecked == 0 || len(report.Failures) != 0 {
		t.Errorf("reported %+v", report)
	}
	if report.CallsAlone != 0 || d.sessions() != 0 {
		t.Errorf("nobody asked for sessions: %d calls by themselves, %d sessions", report.CallsAlone, d.sessions())
	}
	// The first call on each connection finds no stream: nobody waits for one.
	streamed := d.runs("", quickBench("--session", "-o", "json")...)
	if err := json.Unmarshal([]byte(streamed.stdout), &report); err != nil || streamed.code != exitOK || d.sessions() == 0 || report.CallsAlone < int64(report.Connections) {
		t.Errorf("exit %d, %v, %d sessions, %d calls by themselves: %s", streamed.code, err, d.sessions(), report.CallsAlone, streamed.stderr)
	}
	if text := d.runs("", quickBench("--session")...); !strings.Contains(text.stdout, " calls found no open stream") {
		t.Errorf("calls that were made by themselves are not told:\n%s", text.stdout)
	}
	if long := d.runs("", quickBench("--turns", "8", "--body-bytes", "3000000")...); long.code != exitOK {
		t.Errorf("answers over the default limit: exit %d: %s%s", long.code, long.stdout, long.stderr)
	}
	text := d.runs("", quickBench("--hot-keys", "3", "--keys", "uuidv7")...)
	for _, want := range []string{"60 turns in", "SPAN ", "pair ", "PROMISE ", "one-grant ", "erased, whose tombstones go"} {
		if !strings.Contains(text.stdout, want) || text.code != exitOK {
			t.Errorf("exit %d, %q is not in:\n%s%s", text.code, want, text.stdout, text.stderr)
		}
	}
	// Erased entries stand under no tenant; they are tombstones, and there is no policy left.
	if stats := d.runs("", "stats", "--tenant", "*"); strings.Contains(stats.stdout, "idemd-bench") || !strings.Contains(stats.stdout, "expired") {
		t.Errorf("left:\n%s", stats.stdout)
	}
	if policies := d.runs("", "policy", "list", "-o", "json"); policies.stdout != "" {
		t.Errorf("policies are left: %s", policies.stdout)
	}
	d.clock.Advance(time.Minute + benchGrace)
	if swept := d.runs("", "sweep"); swept.code != exitOK {
		t.Error(swept.stderr)
	}
	if stats := d.runs("", "stats", "--tenant", "*"); stats.stdout != "no entries\n" {
		t.Errorf("tombstones are left:\n%s", stats.stdout)
	}
}

// TestOnlyCallsByThemselvesAreCounted, and not the streams that others go on.
func TestOnlyCallsByThemselvesAreCounted(t *testing.T) {
	t.Parallel()
	var counter callCounter
	conn := counter.on(refusingConn{})
	for range 2 {
		_ = conn.Invoke(t.Context(), "", nil, nil)
		_, _ = conn.NewStream(t.Context(), nil, "")
	}
	if got := counter.n.Load(); got != 2 {
		t.Errorf("two calls and two streams: counted %d", got)
	}
}

// refusingConn fails everything.
type refusingConn struct{}

func (refusingConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.New("no")
}

func (refusingConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no")
}

func TestBenchSaysWhyItFailed(t *testing.T) {
	t.Parallel()
	good := workload.Report{Turns: 1000, TurnsPerSecond: 100, Spans: []workload.SpanReport{{Span: workload.SpanBegin, P99: 0.02}, {Span: workload.SpanPair, P99: 9}}}
	flags := benchFlags{load: workload.Config{Workers: 4}, maxP99: durationFlag(30 * time.Millisecond), minRate: 90, maxErrors: 2}
	if got := flags.failures(&good); len(got) != 0 {
		t.Errorf("a good run failed: %q", got)
	}
	for want, change := range map[string]func(*workload.Report){
		"BROKEN PROMISES: 3":              func(r *workload.Report) { r.Broken = 3 },
		"called off":                      func(r *workload.Report) { r.Interrupted = true },
		"3 turns came to no end":          func(r *workload.Report) { r.Errors = []workload.Count{{What: "INTERNAL", N: 3}} },
		"89.0 turns a second":             func(r *workload.Report) { r.TurnsPerSecond = 89 },
		"the rate was not kept: 20 turns": func(r *workload.Report) { r.NotBegun = 20 },
		"begin: the 99th percentile is 31ms": func(r *workload.Report) {
			r.Spans = []workload.SpanReport{{Span: workload.SpanBegin, P99: 0.031}}
		},
	} {
		bad := good
		change(&bad)
		if got := flags.failures(&bad); len(got) != 1 || !strings.Contains(got[0], want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestBenchRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"workers":      {"--workers", "0"},
		"--connection": {"--connections", "0"},
		"want turn=":   {"--mix", "fresh=1,other=2"},
		"weight above": {"--mix", "fresh=0"},
		"keys":         {"--keys", "serial"},
		"--min-rate":   {"--min-rate", "NaN"},
		"--max-errors": {"--max-errors", "-1"},
	} {
		got := runAlone(t, nil, append([]string{"bench"}, args...)...)
		if got.code != exitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("%v: exit %d, %s", args, got.code, got.stderr)
		}
	}
	if got := runAlone(t, nil, "bench", "--addr", "127.0.0.1:1"); got.code != exitUnreachable {
		t.Errorf("nobody there: exit %d, %s", got.code, got.stderr)
	}
}

// liar is a daemon that falsifies what another says.
type liar struct {
	idemv1.UnimplementedLedgerServiceServer
	idemv1.UnimplementedAdminServiceServer
	honest idemv1.LedgerServiceClient
	lie    func(*idemv1.BeginRequest, *idemv1.BeginResponse, error) (*idemv1.BeginResponse, error)
}

func (l *liar) Begin(ctx context.Context, r *idemv1.BeginRequest) (*idemv1.BeginResponse, error) {
	resp, err := l.honest.Begin(ctx, r)
	return l.lie(r, resp, err)
}

func (l *liar) Complete(ctx context.Context, r *idemv1.CompleteRequest) (*idemv1.CompleteResponse, error) {
	return l.honest.Complete(ctx, r)
}

func (l *liar) GetPolicy(context.Context, *idemv1.GetPolicyRequest) (*idemv1.GetPolicyResponse, error) {
	return &idemv1.GetPolicyResponse{}, nil
}

func (l *liar) PutPolicy(context.Context, *idemv1.PutPolicyRequest) (*idemv1.PutPolicyResponse, error) {
	return &idemv1.PutPolicyResponse{}, nil
}

// lies returns a memory daemon whose commands reach a liar in front of it.
func lies(t *testing.T, lie func(*idemv1.BeginRequest, *idemv1.BeginResponse, error) (*idemv1.BeginResponse, error)) *memoryDaemon {
	t.Helper()
	d := newMemoryDaemon(t)
	listener := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	l := &liar{honest: d.caller, lie: lie}
	idemv1.RegisterLedgerServiceServer(s, l)
	idemv1.RegisterAdminServiceServer(s, l)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	return &memoryDaemon{t: t, clock: d.clock, listener: listener}
}

// TestBenchFailsOnABrokenPromise, and on data that it could not erase.
func TestBenchFailsOnABrokenPromise(t *testing.T) {
	t.Parallel()
	d := lies(t, func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
		if answer := resp.GetCompleted(); answer != nil {
			answer.Replayed = false
		}
		return resp, err
	})
	got := d.runs("", quickBench()...)
	if got.code != exitFailed || !strings.Contains(got.stderr, "BROKEN PROMISES") || !strings.Contains(got.stdout, "BROKEN same-answer: key ") {
		t.Errorf("exit %d: %s%s", got.code, got.stdout, got.stderr)
	}
	// This liar knows no DeleteEntries.
	if !strings.Contains(got.stderr, "idemd erase idemd-bench-") || !strings.Contains(got.stderr, "not everything was erased") {
		t.Errorf("it does not say what is left: %s", got.stderr)
	}
}

// TestBenchErasesWhenItIsCalledOff runs the real program, and interrupts it.
func TestBenchErasesWhenItIsCalledOff(t *testing.T) {
	t.Parallel()
	path := binaryPath(t)
	daemon := startDaemon(t, "--data-dir", t.TempDir())
	conn, err := grpc.NewClient("passthrough:///"+daemon.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	admin := idemv1.NewAdminServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := command(ctx, path, "bench", "--addr", daemon.grpc, "--duration", "1h", "--workers", "4")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tenants := func() (names []string) {
		stats, err := admin.GetStats(ctx, &idemv1.GetStatsRequest{Tenant: "*"})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range stats.GetCounts() {
			names = append(names, c.GetTenant())
		}
		return names
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(strings.Join(tenants(), " "), "idemd-bench-") {
		select {
		case <-ctx.Done():
			t.Fatalf("no load: %s", &out)
		case <-tick.C:
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != exitFailed || !strings.Contains(out.String(), "it was called off") {
		t.Errorf("%v: %s", err, &out)
	}
	if left := strings.Join(tenants(), ""); left != "" {
		t.Errorf("entries are left of %q: %s", left, &out)
	}
}

func TestProbeWorksAndLeavesNothing(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	first := d.runs("", "probe")
	if first.code != exitOK || !strings.Contains(first.stdout, "it works") {
		t.Fatalf("exit %d: %s%s", first.code, first.stdout, first.stderr)
	}
	before := d.clock.Now()
	got := d.runs("", "probe", "-o", "json")
	var p probe
	if err := json.Unmarshal([]byte(got.stdout), &p); err != nil || !p.OK || len(p.Steps) != 5 || p.Fault != "" {
		t.Errorf("%v: %s%s", err, got.stdout, got.stderr)
	}
	if d.clock.Now() != before {
		t.Error("the second probe waited for its policy")
	}
	d.clock.Advance(probeRetention + time.Second)
	d.runs("", "sweep")
	if stats := d.runs("", "stats", "--tenant", "*"); stats.stdout != "no entries\n" {
		t.Errorf("left after a sweep:\n%s", stats.stdout)
	}
}

func TestProbeKeepsItsDeadline(t *testing.T) {
	t.Parallel()
	d := newMemoryDaemon(t)
	got := d.runs("", "probe", "--deadline", "1ns", "-o", "json")
	if got.code != exitFailed || !strings.Contains(got.stdout, `"ok":false,"fault":"begin: not done within --deadline 1ns"`) {
		t.Errorf("exit %d: %s%s", got.code, got.stdout, got.stderr)
	}
	nobody := &memoryDaemon{t: t, listener: bufconn.Listen(1)}
	_ = nobody.listener.Close()
	if got := nobody.runs("", "probe"); got.code != exitUnreachable {
		t.Errorf("nobody there: exit %d, %s", got.code, got.stderr)
	}
}

// TestProbeFindsOutEachLie: one for each of its steps.
func TestProbeFindsOutEachLie(t *testing.T) {
	t.Parallel()
	seen := func() func(id string) bool {
		ids := map[string]bool{}
		return func(id string) bool {
			before := ids[id]
			ids[id] = true
			return before
		}
	}
	for want, lie := range map[string]func(*idemv1.BeginRequest, *idemv1.BeginResponse, error) (*idemv1.BeginResponse, error){
		"begin: not done within --deadline": func(*idemv1.BeginRequest, *idemv1.BeginResponse, error) (*idemv1.BeginResponse, error) {
			return nil, status.Error(codes.DeadlineExceeded, "a moment before its caller sees that the time is over")
		},
		"begin: a new key was not granted": func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
			if g := resp.GetGranted(); g != nil {
				g.Attempt = 2
			}
			return resp, err
		},
		"resend: a Begin that was sent again": func() func(r *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
			again := seen()
			return func(r *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
				if again(r.GetAttemptId()) {
					resp.GetGranted().ClaimToken[0] ^= 1
				}
				return resp, err
			}
		}(),
		"complete: CLAIM_LOST": func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
			if g := resp.GetGranted(); g != nil {
				g.ClaimToken = []byte("none that was ever issued")
			}
			return resp, err
		},
		"replay: a retry was not told the answer": func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
			if a := resp.GetCompleted(); a != nil {
				a.Response.Body = nil
			}
			return resp, err
		},
		"mismatch: another request": func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, err error) (*idemv1.BeginResponse, error) {
			if err != nil {
				return &idemv1.BeginResponse{}, nil
			}
			return resp, nil
		},
	} {
		got := lies(t, lie).runs("", "probe")
		if got.code != exitFailed || !strings.Contains(got.stderr, want) {
			t.Errorf("want %q, got exit %d: %s%s", want, got.code, got.stdout, got.stderr)
		}
	}
}
