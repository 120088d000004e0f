package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// refusalCase produces one refusal through the wire.
type refusalCase struct {
	reason ledger.Reason
	code   codes.Code
	// field is the one that BadRequest names.
	field string
	// help: ErrorInfo's metadata says what would help.
	help bool
	// retry: RetryInfo goes with it.
	retry   bool
	options servertest.Options
	provoke func(*rig) error
}

// Every reason that a caller can meet is met here, once through the wire, and looks as docs/errors.md says.
func TestEveryReasonOnTheWire(t *testing.T) {
	t.Parallel()
	met := map[ledger.Reason]bool{}
	for _, c := range refusalCases() {
		met[c.reason] = true
		t.Run(string(c.reason), func(t *testing.T) {
			t.Parallel()
			got := wantRefusal(t, c.provoke(newRig(t, c.options)), c.reason, c.code)
			if got.text == "" || strings.Contains(got.text, string(c.reason)+":") {
				t.Errorf("the message is %q, want words without the reason", got.text)
			}
			if (got.retry != nil) != c.retry {
				t.Errorf("RetryInfo %v, want one: %t", got.retry, c.retry)
			}
			if got.retry != nil && got.retry.GetRetryDelay().AsDuration() <= 0 {
				t.Errorf("RetryInfo says to retry after %v", got.retry.GetRetryDelay().AsDuration())
			}
			if help := got.info.GetMetadata()["help"]; (help != "") != c.help {
				t.Errorf("metadata %v, want help: %t", got.info.GetMetadata(), c.help)
			}
			if c.field == "" && got.bad != nil || c.field != "" && !namesField(got, c.field) {
				t.Errorf("BadRequest %v, want it to name %q", got.bad, c.field)
			}
		})
	}
	for _, reason := range append(ledger.Reasons(), server.ReasonUnauthenticated) {
		if !met[reason] {
			t.Errorf("%s is produced by no case", reason)
		}
	}
}

func namesField(got refusal, field string) bool {
	for _, v := range got.bad.GetFieldViolations() {
		if v.GetField() == field && v.GetDescription() != "" && v.GetReason() == got.info.GetReason() {
			return true
		}
	}
	return false
}

func refusalCases() []refusalCase {
	out := append(stateRefusals(), operatorRefusals()...)
	out = append(out, whoAndWhenRefusals()...)
	for _, c := range invalidRequests() {
		out = append(out, refusalCase{reason: c.reason, code: codes.InvalidArgument, field: c.field, provoke: c.send})
	}
	return out
}

// stateRefusals: what the entry's state refuses a guard.
func stateRefusals() []refusalCase {
	return []refusalCase{
		{reason: ledger.ReasonKeyReused, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			r.grant("k")
			return second(r.Begin(r.ctx, beginRequest("k", func(b *idemv1.BeginRequest) {
				b.Fingerprints = []*idemv1.Fingerprint{fingerprint("another request")}
			})))
		}},
		{reason: ledger.ReasonHashIncomparable, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			r.grant("k")
			return second(r.Begin(r.ctx, beginRequest("k", func(b *idemv1.BeginRequest) { b.Fingerprints[0].Algorithm = "another-v1" })))
		}},
		{reason: ledger.ReasonAbandoned, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			r.putPolicy(&idemv1.Policy{OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD})
			r.fail("k", r.grant("k"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("who knows"))
			return second(r.Begin(r.ctx, beginRequest("k")))
		}},
		{reason: ledger.ReasonExpired, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			r.complete("k", r.grant("k"), &idemv1.Response{})
			r.advance(ledger.DefaultRetention)
			return second(r.Begin(r.ctx, beginRequest("k")))
		}},
		{reason: ledger.ReasonAlreadySettled, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			c := r.grant("k")
			r.complete("k", c, &idemv1.Response{Code: 1})
			return second(r.Complete(r.ctx, completeRequest("k", c, &idemv1.Response{Code: 2})))
		}},
		{reason: ledger.ReasonClaimLost, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			c := r.grant("k")
			r.advance(ledger.DefaultLease)
			r.grant("k")
			return second(r.Extend(r.ctx, &idemv1.ExtendRequest{Ref: refTo("k"), ClaimToken: c.GetClaimToken()}))
		}},
		{reason: ledger.ReasonEntryNotFound, code: codes.NotFound, provoke: func(r *rig) error {
			return second(r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: refTo("k")}))
		}},
	}
}

// second is the error of a call whose answer does not matter.
func second[R any](_ R, err error) error { return err }

// operatorRefusals: what operators are refused.
func operatorRefusals() []refusalCase {
	return []refusalCase{
		{reason: ledger.ReasonPolicyNotFound, code: codes.NotFound, help: true, provoke: func(r *rig) error {
			return second(r.admin.GetPolicy(r.ctx, &idemv1.GetPolicyRequest{Tenant: "t", Operation: "o"}))
		}},
		{reason: ledger.ReasonPolicyChanged, code: codes.Aborted, help: true, provoke: func(r *rig) error {
			r.putPolicy(&idemv1.Policy{Lease: seconds(5)})
			return second(r.admin.DeletePolicy(r.ctx, &idemv1.DeletePolicyRequest{Tenant: server.DefaultTenant, Operation: operation, Etag: "7"}))
		}},
		{reason: ledger.ReasonTooManyPolicies, code: codes.ResourceExhausted, help: true, provoke: func(r *rig) error {
			for i := range ledger.MaxPolicies {
				setting := ledger.Setting{Kind: "policy", Name: fmt.Sprintf("acme\n%d", i), Body: []byte("{}")}
				if _, err := r.daemon.Store().PutSetting(r.ctx, setting, 0); err != nil {
					return err
				}
			}
			return second(r.admin.PutPolicy(r.ctx, &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{Tenant: "acme", Operation: "one more"}}))
		}},
		{reason: ledger.ReasonClaimLive, code: codes.FailedPrecondition, help: true, provoke: func(r *rig) error {
			r.grant("k")
			return second(r.admin.ResolveEntry(r.ctx, &idemv1.ResolveEntryRequest{
				Ref: refTo("k"), Attempt: 1, Reason: "stuck", Resolution: &idemv1.ResolveEntryRequest_Release{Release: &idemv1.Release{}},
			}))
		}},
		{reason: ledger.ReasonSweepElsewhere, code: codes.Aborted, retry: true, provoke: sweepElsewhere},
	}
}

// sweepElsewhere asks one daemon to sweep while another on the same store is in the middle of it.
func sweepElsewhere(r *rig) error {
	other := newRig(r.t, servertest.Options{Clock: r.daemon.Clock(), Store: r.daemon.Store()})
	reached, release := make(chan struct{}, 1), make(chan struct{})
	r.daemon.Store().Plan(storetest.On(storetest.Page, storetest.Script(storetest.Fault{Before: func(ctx context.Context) error {
		reached <- struct{}{}
		return storetest.Until(release)(ctx)
	}})))
	swept := make(chan error, 1)
	go func() { swept <- sweep(other, &idemv1.SweepRequest{}) }()
	<-reached
	err := sweep(r, &idemv1.SweepRequest{})
	close(release)
	if err := <-swept; err != nil {
		r.t.Errorf("the sweep that came first: %v", err)
	}
	return err
}

// sweep reads a sweep to its end.
func sweep(r *rig, req *idemv1.SweepRequest) error {
	stream, err := r.admin.Sweep(r.ctx, req)
	if err != nil {
		return err
	}
	_, err = last(stream)
	return err
}

// last reads a stream to its end and returns its last message.
func last[R any](stream grpc.ServerStreamingClient[R]) (*R, error) {
	var message *R
	for {
		next, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return message, nil
		case err != nil:
			return message, err
		}
		message = next
	}
}

// whoAndWhenRefusals: what has nothing to do with the entry.
func whoAndWhenRefusals() []refusalCase {
	lookup := func(r *rig) error {
		return second(r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: refTo("k")}))
	}
	return []refusalCase{
		{
			reason: server.ReasonUnauthenticated, code: codes.Unauthenticated, provoke: lookup,
			options: servertest.Options{Identify: func(context.Context, string) (server.Principal, error) {
				return server.Principal{}, errors.New("a reason for the log only")
			}},
		},
		{
			reason: ledger.ReasonPermissionDenied, code: codes.PermissionDenied, options: servertest.Options{Identify: tied("a", server.Reader)},
			provoke: func(r *rig) error {
				return second(r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Tenant: "b", Operation: "o", Key: "k"}}))
			},
		},
		{
			reason: ledger.ReasonQuota, code: codes.ResourceExhausted, retry: true, help: true,
			options: servertest.Options{Waiting: ledger.WaitLimits{Entry: 1}},
			provoke: func(r *rig) error {
				r.grant("k")
				ctx, cancel := context.WithCancel(r.ctx)
				waiting := r.wait(ctx, "k")
				err := second(r.Begin(r.ctx, beginRequest("k", waitFor(time.Minute))))
				cancel()
				<-waiting
				return err
			},
		},
		{reason: ledger.ReasonStoreUnavailable, code: codes.Unavailable, retry: true, provoke: func(r *rig) error {
			r.daemon.Down()
			defer r.daemon.Up()
			return lookup(r)
		}},
		{reason: ledger.ReasonBadRow, code: codes.DataLoss, help: true, provoke: func(r *rig) error {
			refuses := func(context.Context) error { return fmt.Errorf("CHECK constraint failed: %w", ledger.ErrBadRow) }
			r.daemon.Store().Plan(storetest.On(storetest.Write, storetest.Script(storetest.Fault{Before: refuses})))
			return second(r.Begin(r.ctx, beginRequest("k")))
		}},
		{reason: ledger.ReasonDraining, code: codes.Unavailable, retry: true, provoke: func(r *rig) error {
			r.daemon.Ledger().Drain()
			return second(r.Begin(r.ctx, beginRequest("k")))
		}},
		{
			reason: ledger.ReasonInternal, code: codes.Internal, provoke: lookup,
			options: servertest.Options{Identify: func(context.Context, string) (server.Principal, error) { panic("a bug") }},
		},
	}
}

// tied is credentials of one tenant.
func tied(tenant string, roles server.Roles) func(context.Context, string) (server.Principal, error) {
	return func(context.Context, string) (server.Principal, error) {
		return server.Principal{Name: "service@" + tenant, Tenant: tenant, Roles: roles}, nil
	}
}

func waitFor(d time.Duration) func(*idemv1.BeginRequest) {
	return func(b *idemv1.BeginRequest) { b.Wait = durationpb.New(d) }
}

// invalidCase is a request that breaks one rule.
type invalidCase struct {
	reason ledger.Reason
	field  string
	send   func(*rig) error
}

func badBegin(change func(*idemv1.BeginRequest)) func(*rig) error {
	return func(r *rig) error { return second(r.Begin(r.ctx, beginRequest("k", change))) }
}

func invalidRequests() []invalidCase {
	return []invalidCase{
		{ledger.ReasonInvalidTenant, "ref.tenant", badBegin(func(b *idemv1.BeginRequest) { b.Ref.Tenant = strings.Repeat("t", 129) })},
		{ledger.ReasonInvalidOperation, "ref.operation", badBegin(func(b *idemv1.BeginRequest) { b.Ref.Operation = "" })},
		{ledger.ReasonInvalidKey, "ref.key", badBegin(func(b *idemv1.BeginRequest) { b.Ref.Key = "" })},
		{ledger.ReasonInvalidFingerprint, "fingerprints", badBegin(func(b *idemv1.BeginRequest) { b.Fingerprints = nil })},
		{ledger.ReasonInvalidAttemptID, "attempt_id", badBegin(func(b *idemv1.BeginRequest) { b.AttemptId = "attempt 1" })},
		{ledger.ReasonInvalidHolder, "holder", badBegin(func(b *idemv1.BeginRequest) { b.Holder = "pod\n1" })},
		{ledger.ReasonInvalidLease, "lease", badBegin(func(b *idemv1.BeginRequest) { b.Lease = &durationpb.Duration{Nanos: 5e8} })},
		{ledger.ReasonInvalidWait, "wait", badBegin(func(b *idemv1.BeginRequest) { b.Wait = seconds(-1) })},
		{ledger.ReasonInvalidReport, "response", func(r *rig) error {
			return second(r.Complete(r.ctx, completeRequest("k", r.grant("k"), nil)))
		}},
		{ledger.ReasonInvalidReason, "reason", func(r *rig) error {
			return second(r.admin.ResolveEntry(r.ctx, &idemv1.ResolveEntryRequest{
				Ref: refTo("k"), Attempt: 1, Resolution: &idemv1.ResolveEntryRequest_Release{Release: &idemv1.Release{}},
			}))
		}},
		{ledger.ReasonInvalidPolicy, "policy.horizons.settlement", func(r *rig) error {
			return second(r.admin.PutPolicy(r.ctx, &idemv1.PutPolicyRequest{
				Policy: &idemv1.Policy{Tenant: "t", Operation: "o", Horizons: &idemv1.Horizons{Settlement: seconds(-1)}},
			}))
		}},
		{ledger.ReasonInvalidPage, "page_token", func(r *rig) error {
			return second(r.admin.ListEntries(r.ctx, &idemv1.ListEntriesRequest{PageToken: "no token of ours"}))
		}},
		{ledger.ReasonInvalidRequest, "ref", func(r *rig) error { return second(r.Lookup(r.ctx, &idemv1.LookupRequest{})) }},
	}
}
