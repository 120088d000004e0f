package server_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// rig is a daemon in memory and the generated clients on it: what a caller in any language has.
type rig struct {
	t      testing.TB
	daemon *servertest.Daemon
	idemv1.LedgerServiceClient
	admin   idemv1.AdminServiceClient
	ctx     context.Context
	waiters *waiters
}

func newRig(t testing.TB, o servertest.Options) *rig {
	t.Helper()
	waiters := &waiters{changed: make(chan struct{})}
	if o.Observer == nil {
		o.Observer = waiters
	}
	d := servertest.New(t, o)
	return &rig{
		t: t, daemon: d, LedgerServiceClient: onSessions(t, idemv1.NewLedgerServiceClient(d.Conn())), admin: idemv1.NewAdminServiceClient(d.Conn()),
		// Not the test's own context, which ends before its clean-up does.
		ctx: context.Background(), waiters: waiters,
	}
}

// waiters tells tests when a Begin waits.
type waiters struct {
	mu      sync.Mutex
	n       int
	changed chan struct{}
}

func (w *waiters) now() (int, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n, w.changed
}

func (w *waiters) Waiting(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n = n
	close(w.changed)
	w.changed = make(chan struct{})
}

func (*waiters) StoreCall(string, time.Duration, error)    {}
func (*waiters) Swept(ledger.SweepProgress)                {}
func (*waiters) Overdue(time.Duration, time.Duration, int) {}

// told is what a Begin was told.
type told struct {
	resp *idemv1.BeginResponse
	err  error
}

// wait begins on another's claim and returns once the daemon knows that it waits. The channel gives what it was told in the end.
func (r *rig) wait(ctx context.Context, key string) <-chan told {
	r.t.Helper()
	out := make(chan told, 1)
	before, _ := r.waiters.now()
	go func() {
		resp, err := r.Begin(ctx, beginRequest(key, waitFor(time.Minute)))
		out <- told{resp, err}
	}()
	for {
		n, changed := r.waiters.now()
		if n > before {
			return out
		}
		select {
		case <-changed:
		case got := <-out:
			r.t.Fatalf("the waiter was told at once: %v, %v", got.resp, got.err)
		}
	}
}

// operation is what every entry of these tests is about.
const operation = "shop.v1.PaymentService/Charge"

func refTo(key string) *idemv1.EntryRef { return &idemv1.EntryRef{Operation: operation, Key: key} }

// algorithm and hash are the fingerprint of every request that does not say otherwise.
const algorithm = "test-v1"

func fingerprint(text string) *idemv1.Fingerprint {
	hash := make([]byte, 32)
	copy(hash, text)
	return &idemv1.Fingerprint{Algorithm: algorithm, Hash: hash}
}

// beginRequest is a well-formed request for a new attempt.
func beginRequest(key string, change ...func(*idemv1.BeginRequest)) *idemv1.BeginRequest {
	r := &idemv1.BeginRequest{
		Ref: refTo(key), AttemptId: uuid.NewString(), Fingerprints: []*idemv1.Fingerprint{fingerprint("request")}, Holder: "pod-1",
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func (r *rig) begin(key string, change ...func(*idemv1.BeginRequest)) *idemv1.BeginResponse {
	r.t.Helper()
	resp, err := r.Begin(r.ctx, beginRequest(key, change...))
	if err != nil {
		r.t.Fatalf("Begin: %v", err)
	}
	return resp
}

// grant begins and wants the claim.
func (r *rig) grant(key string, change ...func(*idemv1.BeginRequest)) *idemv1.Claim {
	r.t.Helper()
	resp := r.begin(key, change...)
	if resp.GetGranted() == nil {
		r.t.Fatalf("Begin answered %v, want a grant", resp)
	}
	return resp.GetGranted()
}

func completeRequest(key string, c *idemv1.Claim, response *idemv1.Response) *idemv1.CompleteRequest {
	return &idemv1.CompleteRequest{Ref: refTo(key), ClaimToken: c.GetClaimToken(), Response: response}
}

func (r *rig) complete(key string, c *idemv1.Claim, response *idemv1.Response) *idemv1.CompleteResponse {
	r.t.Helper()
	resp, err := r.Complete(r.ctx, completeRequest(key, c, response))
	if err != nil {
		r.t.Fatalf("Complete: %v", err)
	}
	return resp
}

func failRequest(key string, c *idemv1.Claim, d idemv1.Disposition, st *statuspb.Status) *idemv1.FailRequest {
	return &idemv1.FailRequest{Ref: refTo(key), ClaimToken: c.GetClaimToken(), Status: st, Disposition: d}
}

func (r *rig) fail(key string, c *idemv1.Claim, d idemv1.Disposition, st *statuspb.Status) *idemv1.FailResponse {
	r.t.Helper()
	resp, err := r.Fail(r.ctx, failRequest(key, c, d, st))
	if err != nil {
		r.t.Fatalf("Fail: %v", err)
	}
	return resp
}

func (r *rig) lookup(key string) *idemv1.Entry {
	r.t.Helper()
	resp, err := r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: refTo(key)})
	if err != nil {
		r.t.Fatalf("Lookup: %v", err)
	}
	return resp.GetEntry()
}

// putPolicy writes a policy that counts for every entry of these tests.
func (r *rig) putPolicy(p *idemv1.Policy) {
	r.t.Helper()
	if p.Tenant == "" {
		p.Tenant = server.DefaultTenant
	}
	if p.Operation == "" {
		p.Operation = operation
	}
	if _, err := r.admin.PutPolicy(r.ctx, &idemv1.PutPolicyRequest{Policy: p}); err != nil {
		r.t.Fatalf("PutPolicy: %v", err)
	}
}

func (r *rig) advance(d time.Duration) { r.daemon.Clock().Advance(d) }

func seconds(n int64) *durationpb.Duration { return &durationpb.Duration{Seconds: n} }

func unavailable(message string) *statuspb.Status {
	return &statuspb.Status{Code: int32(codes.Unavailable), Message: message}
}

// refusal is a refusal as a caller reads it: by status.Details alone.
type refusal struct {
	code   codes.Code
	text   string
	info   *errdetails.ErrorInfo
	bad    *errdetails.BadRequest
	retry  *errdetails.RetryInfo
	others int
}

func readRefusal(err error) refusal {
	st := status.Convert(err)
	out := refusal{code: st.Code(), text: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			out.info = d
		case *errdetails.BadRequest:
			out.bad = d
		case *errdetails.RetryInfo:
			out.retry = d
		default:
			out.others++
		}
	}
	return out
}

// wantRefusal checks that err is that refusal, and returns it for a closer look.
func wantRefusal(t testing.TB, err error, reason ledger.Reason, code codes.Code) refusal {
	t.Helper()
	got := readRefusal(err)
	if err == nil || got.info == nil || got.info.GetReason() != string(reason) || got.info.GetDomain() != "idem.v1" || got.code != code {
		t.Fatalf("got %v with details %v, want %s with code %s", err, status.Convert(err).Details(), reason, code)
	}
	if got.others != 0 {
		t.Errorf("%s carries %d further details", reason, got.others)
	}
	return got
}

// principals identifies callers by a name in their metadata, as tests need it.
type principals struct{}

const nameHeader = "test-principal"

// identify reads "name|tenant"; without a tenant it is an operator of all of them.
func (principals) identify(ctx context.Context, _ string) (server.Principal, error) {
	sent := metadata.ValueFromIncomingContext(ctx, nameHeader)
	if len(sent) != 1 {
		return server.Principal{}, status.Error(codes.Unauthenticated, "who is it?")
	}
	name, tenant, _ := strings.Cut(sent[0], "|")
	if tenant == "" {
		return server.Principal{Name: name, AnyTenant: true, Roles: server.Operator}, nil
	}
	return server.Principal{Name: name, Tenant: tenant, Roles: server.Reader | server.Writer}, nil
}

// asPrincipal puts somebody's name into a call.
type asPrincipal func(context.Context) context.Context

func (principals) as(name, tenant string) asPrincipal {
	return func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, nameHeader, name+"|"+tenant)
	}
}

// holdNextWrite stops the next write to the store: it says so on reached and goes on when release is closed.
func holdNextWrite(reached chan<- struct{}, release <-chan struct{}) storetest.Plan {
	return storetest.On(storetest.Write, storetest.Script(storetest.Fault{Before: func(ctx context.Context) error {
		reached <- struct{}{}
		return storetest.Until(release)(ctx)
	}}))
}

// inBubble runs a test on a daemon whose timers are the bubble's: time passes only while everything waits.
func inBubble(t *testing.T, o servertest.Options, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, o)) })
}

// pass lets the bubble's time pass. Nobody waits for it.
func pass(d time.Duration) { <-time.After(d) }
