package workload_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/cmd/idemd/internal/workload"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/server/servertest"
)

// config is a short run of everything, ended by its number of turns and not by time.
func config(clients ...workload.Client) workload.Config {
	return workload.Config{
		Clients: clients, Tenant: "load", Operation: "op", Workers: 4, Duration: time.Minute, Turns: 100, BodyBytes: 50,
		Mix: workload.Mix{workload.Fresh: 1, workload.Replay: 1, workload.Duplicates: 1, workload.Mismatch: 1},
	}
}

func run(t *testing.T, c workload.Config) *workload.Report {
	t.Helper()
	r, err := workload.Run(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (x *between) connect(t *testing.T, d *servertest.Daemon) workload.Client {
	t.Helper()
	conn, err := d.Dial(grpc.WithUnaryInterceptor(x.intercept))
	if err != nil {
		t.Fatal(err)
	}
	return workload.Unary(conn)
}

// between stands between load and daemon, and falsifies what the daemon says.
type between struct {
	mu    sync.Mutex
	begun map[string]bool // attempt ids
	// begin and complete may change an answer; again: this attempt id was seen before.
	begin    func(req *idemv1.BeginRequest, resp *idemv1.BeginResponse, again bool, err error) error
	complete func(resp *idemv1.CompleteResponse) error
}

func (x *between) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	err := invoke(ctx, method, req, reply, cc, options...)
	switch r := req.(type) {
	case *idemv1.BeginRequest:
		x.mu.Lock()
		again := x.begun[r.GetAttemptId()]
		x.begun[r.GetAttemptId()] = true
		x.mu.Unlock()
		if resp, ok := reply.(*idemv1.BeginResponse); ok && x.begin != nil {
			return x.begin(r, resp, again, err)
		}
	case *idemv1.CompleteRequest:
		if resp, ok := reply.(*idemv1.CompleteResponse); ok && x.complete != nil && err == nil {
			return x.complete(resp)
		}
	}
	return err
}

func grant(resp *idemv1.BeginResponse, token string) {
	resp.Outcome = &idemv1.BeginResponse_Granted{Granted: &idemv1.Claim{ClaimToken: []byte(token), Attempt: 1, Fence: 7}}
}

func refusal(code codes.Code, reason clientlib.Reason) error {
	return (&clientlib.Error{Code: code, Reason: reason, Message: "a lie"}).GRPCStatus().Err()
}

// TestADaemonThatBreaksAPromiseIsFoundOut: every check finds the lie that it is for.
func TestADaemonThatBreaksAPromiseIsFoundOut(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lie    string
		broken workload.Promise
		*between
	}{
		{"a settled entry is granted again", workload.OneGrant, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if resp.GetCompleted() != nil {
				grant(resp, "again")
			}
			return err
		}}},
		{"two of several callers are granted", workload.OneGrant, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if resp.GetInProgress() != nil {
				grant(resp, "another")
			}
			return err
		}}},
		{"a first grant is no first attempt", workload.OneGrant, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if g := resp.GetGranted(); g != nil {
				g.Attempt = 2
			}
			return err
		}}},
		{"a new key is refused as known", workload.OneGrant, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if resp.GetGranted() != nil {
				resp.Reset()
				return refusal(codes.FailedPrecondition, clientlib.ReasonKeyReused)
			}
			return err
		}}},
		{"one bit of an answer changes", workload.SameAnswer, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if a := resp.GetCompleted(); a != nil {
				a.Response.Body[len(a.Response.Body)-1] ^= 1
			}
			return err
		}}},
		{"an answer forgets its code", workload.SameAnswer, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if a := resp.GetCompleted(); a != nil {
				a.Response.ContentType = ""
			}
			return err
		}}},
		{"a replay does not say that it is one", workload.SameAnswer, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if a := resp.GetCompleted(); a != nil {
				a.Replayed = false
			}
			return err
		}}},
		{"a replay tells the time of now", workload.SameAnswer, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if a := resp.GetCompleted(); a != nil {
				a.OriginalTime = timestamppb.New(a.GetOriginalTime().AsTime().Add(time.Second))
			}
			return err
		}}},
		{"a body is not kept", workload.SameAnswer, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if a := resp.GetCompleted(); a != nil {
				a.Response.Body, a.Response.BodyOmitted = nil, true
			}
			return err
		}}},
		{"a resent Begin is told another claim", workload.SameClaim, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, again bool, err error) error {
			if again && (resp.GetGranted() != nil || resp.GetCompleted() != nil) {
				grant(resp, "other")
			}
			return err
		}}},
		{"a resent Begin is told IN_PROGRESS", workload.SameClaim, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, again bool, err error) error {
			if again && (resp.GetGranted() != nil || resp.GetCompleted() != nil) {
				resp.Outcome = &idemv1.BeginResponse_InProgress{InProgress: &idemv1.InProgress{RetryAfter: durationpb.New(time.Millisecond)}}
			}
			return err
		}}},
		{"a resent Complete is refused", workload.ResendOK, &between{complete: func(resp *idemv1.CompleteResponse) error {
			if resp.GetResent() {
				return refusal(codes.FailedPrecondition, clientlib.ReasonAlreadySettled)
			}
			return nil
		}}},
		{"a resent Complete settles anew", workload.ResendOK, &between{complete: func(resp *idemv1.CompleteResponse) error {
			if resp.GetResent() {
				resp.Times.SettleTime = timestamppb.New(resp.GetTimes().GetSettleTime().AsTime().Add(time.Microsecond))
			}
			return nil
		}}},
		{"another request is told the answer", workload.MismatchRefused, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if err == nil {
				return nil
			}
			resp.Outcome = &idemv1.BeginResponse_Completed{Completed: &idemv1.Answer{}}
			return nil
		}}},
		{"another request is told that it exists", workload.MismatchRefused, &between{begin: func(_ *idemv1.BeginRequest, _ *idemv1.BeginResponse, _ bool, err error) error {
			if err == nil {
				return nil
			}
			return refusal(codes.AlreadyExists, clientlib.ReasonKeyReused)
		}}},
		{"what was completed is not there", workload.NothingLost, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if resp.GetCompleted() != nil {
				resp.Reset()
				return refusal(codes.FailedPrecondition, clientlib.ReasonExpired)
			}
			return err
		}}},
		{"what was completed is still in progress", workload.NothingLost, &between{begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
			if resp.GetCompleted() != nil {
				resp.Outcome = &idemv1.BeginResponse_InProgress{InProgress: &idemv1.InProgress{}}
			}
			return err
		}}},
		{"a claim is lost before its time", workload.NothingLost, &between{complete: func(resp *idemv1.CompleteResponse) error {
			resp.Reset()
			return refusal(codes.FailedPrecondition, clientlib.ReasonClaimLost)
		}}},
	} {
		t.Run(c.lie, func(t *testing.T) {
			t.Parallel()
			c.begun = map[string]bool{}
			r := run(t, config(c.connect(t, servertest.New(t, servertest.Options{}))))
			for _, p := range r.Promises {
				if p.Promise == c.broken && p.Broken == 0 {
					t.Errorf("%s was checked %d times, and found kept: %+v", p.Promise, p.Checked, r)
				}
			}
			if r.Broken == 0 || len(r.Examples) == 0 {
				t.Errorf("%d broken, told: %q", r.Broken, r.Examples)
			}
		})
	}
}

// TestALieAboutAHotEntryIsReported: those entries are made before the load, and asked for at its end.
func TestALieAboutAHotEntryIsReported(t *testing.T) {
	t.Parallel()
	x := &between{begun: map[string]bool{}, begin: func(_ *idemv1.BeginRequest, resp *idemv1.BeginResponse, _ bool, err error) error {
		if g := resp.GetGranted(); g != nil {
			g.Attempt = 2
		}
		return err
	}}
	c := config(x.connect(t, servertest.New(t, servertest.Options{})))
	c.HotKeys = 3
	if r := run(t, c); r.Broken == 0 {
		t.Errorf("found nothing broken: %+v", r)
	}
}

// TestAnHonestDaemonIsFoundHonest, whatever the keys are and whether duplicates wait.
func TestAnHonestDaemonIsFoundHonest(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*workload.Config){
		"as it is":     func(*workload.Config) {},
		"UUIDv7":       func(c *workload.Config) { c.Keys = workload.UUIDv7 },
		"hot keys":     func(c *workload.Config) { c.HotKeys = 3 },
		"waiting":      func(c *workload.Config) { c.Wait, c.Duplicates = 5*time.Second, 8 },
		"under a rate": func(c *workload.Config) { c.Rate = 4000 },
		"empty":        func(c *workload.Config) { c.BodyBytes = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := servertest.New(t, servertest.Options{})
			x := between{begun: map[string]bool{}}
			c := config(x.connect(t, d), x.connect(t, d))
			change(&c)
			r := run(t, c)
			if r.Broken != 0 || r.ErrorCount() != 0 {
				t.Errorf("found %d broken, %v, %q", r.Broken, r.Errors, r.Examples)
			}
			for _, p := range r.Promises {
				// Whether a resend meets its live claim is a matter of luck.
				if p.Checked == 0 && p.Promise != workload.SameClaim {
					t.Errorf("%s was not checked", p.Promise)
				}
			}
			if r.Rechecked == 0 || r.Turns+r.NotBegun != c.Turns {
				t.Errorf("%d turns done, %d not begun, want %d; %d entries rechecked", r.Turns, r.NotBegun, c.Turns, r.Rechecked)
			}
			if spans := map[workload.Span]bool{}; c.Rate > 0 {
				for _, s := range r.Spans {
					spans[s.Span] = true
				}
				if !spans[workload.SpanQueued] || !spans[workload.SpanPair] {
					t.Errorf("not measured: %v", r.Spans)
				}
			}
		})
	}
}

// TestWhoeverWasNotGrantedIsSeenToGetTheAnswer: also those who were told IN_PROGRESS at first.
func TestWhoeverWasNotGrantedIsSeenToGetTheAnswer(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	c := config(workload.Unary(d.Conn()))
	c.Mix = workload.Mix{workload.Duplicates: 1}
	r := run(t, c)
	for _, p := range r.Promises {
		// Of four callers two are one, so that at least two are not granted.
		if want := 2*c.Turns + r.Rechecked; p.Promise == workload.SameAnswer && p.Checked < want {
			t.Errorf("%d answers were compared in %d turns, want at least %d", p.Checked, c.Turns, want)
		}
	}
}

// TestLostRepliesBreakNoPromise: what was sent again is told apart from what came twice.
func TestLostRepliesBreakNoPromise(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	var mu sync.Mutex
	calls := 0
	d.LoseReplies(func(method string) bool {
		mu.Lock()
		defer mu.Unlock()
		calls++
		return calls%7 == 0 && (strings.HasSuffix(method, "/Begin") || strings.HasSuffix(method, "/Complete"))
	})
	c := config(workload.Unary(d.Conn()))
	c.Turns = 100
	r := run(t, c)
	if d.LostReplies() == 0 || len(r.Resends) == 0 {
		t.Fatalf("%d replies were lost, %v sent again", d.LostReplies(), r.Resends)
	}
	if r.Broken != 0 || r.ErrorCount() != 0 {
		t.Errorf("found %d broken, %v, %q", r.Broken, r.Errors, r.Examples)
	}
}

// TestAnOutageIsAnErrorAndNoBrokenPromise.
func TestAnOutageIsAnErrorAndNoBrokenPromise(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	d.Down()
	c := config(workload.Unary(d.Conn()))
	c.Turns, c.GiveUp = 8, time.Nanosecond
	r := run(t, c)
	if r.Broken != 0 || r.ErrorCount() != 8 || r.Turns != 0 {
		t.Errorf("%d turns, %d broken, errors %v", r.Turns, r.Broken, r.Errors)
	}
	c.HotKeys = 1
	if _, err := workload.Run(t.Context(), c, nil); status.Code(err) != codes.Unavailable {
		t.Errorf("without its hot entries: %v", err)
	}
}

// TestARunCanBeCalledOff, and says that it was.
func TestARunCanBeCalledOff(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	x := between{begun: map[string]bool{}, complete: func(*idemv1.CompleteResponse) error { once.Do(cancel); return nil }}
	c := config(x.connect(t, d))
	c.Turns = 0
	r, err := workload.Run(ctx, c, nil)
	if err != nil || !r.Interrupted || r.ErrorCount() != 0 || r.Broken != 0 || r.Rechecked != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestLatencyUnderARateCountsFromWhenATurnWasDue: one worker, held up once, makes all later turns late, and the report says so.
func TestLatencyUnderARateCountsFromWhenATurnWasDue(t *testing.T) {
	t.Parallel()
	const held = 150 * time.Millisecond
	d := servertest.New(t, servertest.Options{})
	var once sync.Once
	x := between{begun: map[string]bool{}, begin: func(_ *idemv1.BeginRequest, _ *idemv1.BeginResponse, _ bool, err error) error {
		once.Do(func() { <-time.After(held) })
		return err
	}}
	c := config(x.connect(t, d))
	c.Workers, c.Turns, c.Rate, c.Mix = 1, 20, 10_000, workload.Mix{workload.Fresh: 1}
	r := run(t, c)
	for _, s := range r.Spans {
		// All twenty were due within 2 ms, so each waited for the one that was held up, or was it.
		if want := (held - 20*time.Millisecond).Seconds(); (s.Span == workload.SpanPair || s.Span == workload.SpanBegin) && s.P50 < want {
			t.Errorf("%s: half of them within %.3f s, want over %.3f s: %+v", s.Span, s.P50, want, s)
		}
	}
	if r.Turns != c.Turns {
		t.Errorf("%d turns, want %d", r.Turns, c.Turns)
	}
}

// TestTurnsThatFoundNoWorkerAreCounted: all that were due, and not one for each worker.
func TestTurnsThatFoundNoWorkerAreCounted(t *testing.T) {
	t.Parallel()
	d := servertest.New(t, servertest.Options{})
	x := between{begun: map[string]bool{}, begin: func(_ *idemv1.BeginRequest, _ *idemv1.BeginResponse, _ bool, err error) error {
		<-time.After(100 * time.Millisecond)
		return err
	}}
	c := config(x.connect(t, d))
	c.Workers, c.Turns, c.Rate, c.Duration, c.Mix = 1, 0, 1000, 50*time.Millisecond, workload.Mix{workload.Fresh: 1}
	if r := run(t, c); r.Turns > 1 || r.Turns+r.NotBegun != 50 {
		t.Errorf("of 50 turns %d were done and %d not begun", r.Turns, r.NotBegun)
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := config(nil)
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*workload.Config){
		"client":     func(c *workload.Config) { c.Clients = nil },
		"tenant":     func(c *workload.Config) { c.Tenant = "" },
		"workers":    func(c *workload.Config) { c.Workers = 0 },
		"rate":       func(c *workload.Config) { c.Rate = -1 },
		"time":       func(c *workload.Config) { c.Duration = 0 },
		"turns":      func(c *workload.Config) { c.Turns = -1 },
		"mix":        func(c *workload.Config) { c.Mix = workload.Mix{} },
		"keys":       func(c *workload.Config) { c.Keys = "serial" },
		"hot":        func(c *workload.Config) { c.HotKeys = -1 },
		"bodies":     func(c *workload.Config) { c.BodyBytes = workload.MaxBodyBytes + 1 },
		"duplicates": func(c *workload.Config) { c.Duplicates = 1 },
		"negative":   func(c *workload.Config) { c.Wait = -1 },
		"shorter":    func(c *workload.Config) { c.Wait, c.CallTimeout = time.Second, time.Second },
		"again":      func(c *workload.Config) { c.GiveUp = workload.Lease },
	} {
		c := config(nil)
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that names %q, got %v", want, err)
		}
	}
}
