package server_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// A policy comes back as it was written: what was unset stays unset, zero stays zero, and what it comes to is shown beside it.
func TestPolicyComesBackAsWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for name, c := range map[string]struct {
		policy    *idemv1.Policy
		retention time.Duration
		decides   idemv1.RetentionHorizon
	}{
		"nothing set":       {&idemv1.Policy{}, ledger.DefaultRetention, idemv1.RetentionHorizon_RETENTION_HORIZON_BUILT_IN},
		"nobody waits":      {&idemv1.Policy{MaxWait: seconds(0)}, ledger.DefaultRetention, idemv1.RetentionHorizon_RETENTION_HORIZON_BUILT_IN},
		"new again at once": {&idemv1.Policy{Tombstone: seconds(0)}, ledger.DefaultRetention, idemv1.RetentionHorizon_RETENTION_HORIZON_BUILT_IN},
		"under the floor": {
			&idemv1.Policy{Horizons: &idemv1.Horizons{ClientRetry: seconds(1)}}, ledger.MinRetention,
			idemv1.RetentionHorizon_RETENTION_HORIZON_FLOOR,
		},
		"everything set": {&idemv1.Policy{
			Horizons: &idemv1.Horizons{
				ClientRetry: seconds(10), QueueRedelivery: seconds(20), WebhookReplay: seconds(50), OperatorReplay: seconds(40), Settlement: seconds(30),
			},
			Tombstone: seconds(5), Lease: seconds(7), MaxWait: seconds(9), MaxAttempts: 3,
			OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_RECLAIM, ReclaimWithin: seconds(100), MaxResponseBytes: 1000,
			StoreResponse: idemv1.StoreResponse_STORE_RESPONSE_POINTER,
			KeyFormat:     &idemv1.KeyFormat{Kind: idemv1.KeyFormatKind_KEY_FORMAT_KIND_PATTERN, Pattern: "ord_[0-9]+", RefuseTimestamps: true},
			BindPrincipal: true, ResponseMetadataAllow: []string{"vary", "etag"},
		}, 50 * time.Second, idemv1.RetentionHorizon_RETENTION_HORIZON_WEBHOOK_REPLAY},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.policy
			p.Tenant, p.Operation = "acme", name
			put, err := r.admin.PutPolicy(r.ctx, &idemv1.PutPolicyRequest{Policy: p})
			if err != nil {
				t.Fatal(err)
			}
			if put.GetEffectiveTime().AsTime().Before(r.daemon.Clock().Now().Wall()) {
				t.Errorf("it counts from %v, before it was written", put.GetEffectiveTime().AsTime())
			}
			got, err := r.admin.GetPolicy(r.ctx, &idemv1.GetPolicyRequest{Tenant: "acme", Operation: name})
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got.GetPolicy(), put.GetPolicy()) || got.GetSource() != idemv1.PolicySource_POLICY_SOURCE_TENANT_OPERATION {
				t.Errorf("put %v, got %v from %v", put.GetPolicy(), got.GetPolicy(), got.GetSource())
			}
			shown := got.GetPolicy()
			if shown.GetRetention().AsDuration() != c.retention || shown.GetRetentionHorizon() != c.decides || shown.GetEtag() != "1" || shown.GetUpdateTime() == nil {
				t.Errorf("it comes to %v by %v, etag %q, written %v", shown.GetRetention().AsDuration(), shown.GetRetentionHorizon(), shown.GetEtag(), shown.GetUpdateTime())
			}
			shown.Retention, shown.RetentionHorizon, shown.Etag, shown.UpdateTime = nil, 0, "", nil
			if !proto.Equal(shown, p) {
				t.Errorf("written %v, shown %v", p, shown)
			}
		})
	}
}

// The policy that counts is found by the order of lookup, and GetPolicy says at which step.
func TestGetPolicySaysWhereItStands(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for _, step := range []struct {
		tenant, operation string
		source            idemv1.PolicySource
	}{
		{"", "", idemv1.PolicySource_POLICY_SOURCE_BUILT_IN},
		{"*", "*", idemv1.PolicySource_POLICY_SOURCE_EVERYWHERE},
		{"*", "op", idemv1.PolicySource_POLICY_SOURCE_OPERATION},
		{"acme", "*", idemv1.PolicySource_POLICY_SOURCE_TENANT},
		{"acme", "op", idemv1.PolicySource_POLICY_SOURCE_TENANT_OPERATION},
	} {
		if step.tenant != "" {
			r.putPolicy(&idemv1.Policy{Tenant: step.tenant, Operation: step.operation})
		}
		got, err := r.admin.GetPolicy(r.ctx, &idemv1.GetPolicyRequest{Tenant: "acme", Operation: "op", Effective: true})
		if err != nil || got.GetSource() != step.source {
			t.Errorf("after writing (%q, %q): %v, %v, want %v", step.tenant, step.operation, got, err, step.source)
		}
	}
}

// An etag writes or deletes the version that was read, and no other; none at all writes whatever is stored. A resend changes nothing.
func TestPolicyEtags(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	put := func(etag string, attempts int32) (*idemv1.PutPolicyResponse, error) {
		return r.admin.PutPolicy(r.ctx, &idemv1.PutPolicyRequest{
			Policy: &idemv1.Policy{Tenant: "t", Operation: "o", MaxAttempts: attempts, Etag: etag},
		})
	}
	for _, etag := range []string{"1", "0", "nonsense", "-1"} {
		_, err := put(etag, 1)
		wantRefusal(t, err, ledger.ReasonPolicyChanged, codes.Aborted)
	}
	for i, etag := range []string{"", "1", "2", ""} {
		got, err := put(etag, int32(i+1))
		if err != nil || got.GetPolicy().GetEtag() != fmt.Sprint(i+1) {
			t.Errorf("etag %q: %v, %v", etag, got, err)
		}
		if again, err := put(etag, int32(i+1)); err != nil || again.GetPolicy().GetEtag() != fmt.Sprint(i+1) {
			t.Errorf("etag %q, resent: %v, %v", etag, again, err)
		}
	}
	for _, etag := range []string{"1", "01", "5", " 4"} {
		_, err := r.admin.DeletePolicy(r.ctx, &idemv1.DeletePolicyRequest{Tenant: "t", Operation: "o", Etag: etag})
		wantRefusal(t, err, ledger.ReasonPolicyChanged, codes.Aborted)
	}
	if got, err := r.admin.DeletePolicy(r.ctx, &idemv1.DeletePolicyRequest{Tenant: "t", Operation: "o", Etag: "4"}); err != nil || got.GetEffectiveTime() == nil {
		t.Errorf("%v, %v", got, err)
	}
	_, err := r.admin.DeletePolicy(r.ctx, &idemv1.DeletePolicyRequest{Tenant: "t", Operation: "o"})
	wantRefusal(t, err, ledger.ReasonPolicyNotFound, codes.NotFound)
}

// Policies are listed page by page, each once, by tenant and operation.
func TestListPoliciesByPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for _, tenant := range []string{"b", "a", "*"} {
		for _, op := range []string{"y", "x", "*"} {
			r.putPolicy(&idemv1.Policy{Tenant: tenant, Operation: op})
		}
	}
	list := func(tenant string, size int32) (names []string, pages int) {
		token := ""
		for {
			got, err := r.admin.ListPolicies(r.ctx, &idemv1.ListPoliciesRequest{Tenant: tenant, PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			pages++
			for _, p := range got.GetPolicies() {
				names = append(names, p.GetTenant()+"/"+p.GetOperation())
			}
			if token = got.GetNextPageToken(); token == "" {
				return names, pages
			}
		}
	}
	all := "[*/* */x */y a/* a/x a/y b/* b/x b/y]"
	for size, pages := range map[int32]int{0: 1, 1: 9, 2: 5, 3: 3, 9: 1, 5000: 1} {
		if got, n := list("", size); fmt.Sprint(got) != all || n != pages {
			t.Errorf("by pages of %d: %v on %d pages", size, got, n)
		}
	}
	if got, _ := list("a", 2); fmt.Sprint(got) != "[a/* a/x a/y]" {
		t.Errorf("of one tenant: %v", got)
	}
	if got, _ := list("*", 2); fmt.Sprint(got) != "[*/* */x */y]" {
		t.Errorf("of every tenant: %v", got)
	}
	for _, token := range []string{"!", "bm8"} {
		_, err := r.admin.ListPolicies(r.ctx, &idemv1.ListPoliciesRequest{PageToken: token})
		wantRefusal(t, err, ledger.ReasonInvalidPage, codes.InvalidArgument)
	}
	for own, other := range map[string]string{"": "a", "a": "", "b": "*"} {
		page, err := r.admin.ListPolicies(r.ctx, &idemv1.ListPoliciesRequest{Tenant: own, PageSize: 1})
		if err != nil || page.GetNextPageToken() == "" {
			t.Fatal(page, err)
		}
		_, err = r.admin.ListPolicies(r.ctx, &idemv1.ListPoliciesRequest{Tenant: other, PageToken: page.GetNextPageToken()})
		wantRefusal(t, err, ledger.ReasonInvalidPage, codes.InvalidArgument)
	}
}

// An operator of one tenant sees and changes its own tenant's policies and entries, and nobody else's.
func TestOperatorOfOneTenant(t *testing.T) {
	t.Parallel()
	who := principals{}
	r := newRig(t, servertest.Options{Identify: func(ctx context.Context, method string) (server.Principal, error) {
		p, err := who.identify(ctx, method)
		p.Roles |= server.Operator
		return p, err
	}})
	root, mine := who.as("root", "")(r.ctx), who.as("operator", "a")(r.ctx)
	for _, tenant := range []string{"a", "b", "*"} {
		p := &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{Tenant: tenant, Operation: "o"}}
		if _, err := r.admin.PutPolicy(root, p); err != nil {
			t.Fatal(err)
		}
		p.Policy.MaxAttempts = 2
		if _, err := r.admin.PutPolicy(mine, p); (err == nil) != (tenant == "a") {
			t.Errorf("PutPolicy for %q: %v", tenant, err)
		}
		_, err := r.admin.ListEntries(mine, &idemv1.ListEntriesRequest{Tenant: tenant})
		if (err == nil) != (tenant == "a") {
			t.Errorf("ListEntries of %q: %v", tenant, err)
		}
		if _, err := r.admin.GetStats(mine, &idemv1.GetStatsRequest{Tenant: tenant}); (err == nil) != (tenant == "a") {
			t.Errorf("GetStats of %q: %v", tenant, err)
		}
	}
	got, err := r.admin.ListPolicies(mine, &idemv1.ListPoliciesRequest{})
	if err != nil || len(got.GetPolicies()) != 1 || got.GetPolicies()[0].GetTenant() != "a" {
		t.Errorf("ListPolicies: %v, %v", got, err)
	}
	effective, err := r.admin.GetPolicy(mine, &idemv1.GetPolicyRequest{Tenant: "a", Operation: "another", Effective: true})
	if err != nil || effective.GetSource() != idemv1.PolicySource_POLICY_SOURCE_BUILT_IN {
		t.Errorf("the policy that counts for its own tenant: %v, %v", effective, err)
	}
	stream, err := r.admin.Sweep(mine, &idemv1.SweepRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantRefusal(t, err, ledger.ReasonPermissionDenied, codes.PermissionDenied)
}

// Entries are listed as an overview, narrowed as asked, page by page.
func TestListEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.complete("old", r.grant("old"), &idemv1.Response{Body: []byte("body")})
	r.advance(time.Hour)
	r.grant("live")
	r.fail("given up", r.grant("given up"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("x"))
	r.fail("taken over", r.grant("taken over"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("x"))
	r.grant("taken over")
	r.grant("another", func(b *idemv1.BeginRequest) { b.Ref.Operation = "another" })
	r.grant("theirs", func(b *idemv1.BeginRequest) { b.Ref.Tenant = "theirs" })

	live, abandoned := idemv1.EntryCondition_ENTRY_CONDITION_LIVE, idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED
	for _, c := range []struct {
		req  *idemv1.ListEntriesRequest
		want []string
	}{
		{&idemv1.ListEntriesRequest{}, []string{"old", "live", "given up", "taken over", "another"}},
		{&idemv1.ListEntriesRequest{Operation: operation}, []string{"old", "live", "given up", "taken over"}},
		{&idemv1.ListEntriesRequest{Tenant: "*"}, []string{"old", "live", "given up", "taken over", "another", "theirs"}},
		{&idemv1.ListEntriesRequest{Tenant: "*", Operation: operation}, []string{"old", "live", "given up", "taken over", "theirs"}},
		{&idemv1.ListEntriesRequest{Tenant: "theirs", Operation: "*"}, []string{"theirs"}},
		{&idemv1.ListEntriesRequest{Conditions: []idemv1.EntryCondition{live}}, []string{"live", "taken over", "another"}},
		{&idemv1.ListEntriesRequest{Conditions: []idemv1.EntryCondition{live, abandoned}}, []string{"live", "taken over", "another", "given up"}},
		{&idemv1.ListEntriesRequest{DoubtOnly: true}, []string{"given up", "taken over"}},
		{&idemv1.ListEntriesRequest{OlderThan: seconds(60)}, []string{"old"}},
	} {
		for _, size := range []int32{0, 1, 2, 5000} {
			c.req.PageSize, c.req.PageToken = size, ""
			got := map[string]*idemv1.Entry{}
			for {
				page, err := r.admin.ListEntries(r.ctx, c.req)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range page.GetEntries() {
					got[e.GetRef().GetKey()] = e
				}
				if c.req.PageToken = page.GetNextPageToken(); c.req.PageToken == "" {
					break
				}
			}
			if len(got) != len(c.want) {
				t.Errorf("%v: %d entries, want %d", c.req, len(got), len(c.want))
			}
			for _, key := range c.want {
				e := got[key]
				if e == nil {
					t.Errorf("%v: %q is missing", c.req, key)
					continue
				}
				if len(e.GetAttempts()) != 1 || e.GetAttempts()[0].GetAttempt() != e.GetLatestAttempt() || e.GetOutcome() != nil || e.GetEvidence() != nil {
					t.Errorf("%v: %q is shown with its history: %v", c.req, key, e)
				}
			}
		}
	}
}

// Held entries are listed, of the tenant that is asked for.
func TestListHeldEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.putPolicy(&idemv1.Policy{Tenant: "*", Operation: "*", OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD})
	for i := range 40 {
		r.grant(fmt.Sprint(i))
	}
	r.grant("theirs", func(b *idemv1.BeginRequest) { b.Ref.Tenant = "theirs" })
	r.advance(time.Hour)
	req := &idemv1.ListEntriesRequest{Conditions: []idemv1.EntryCondition{idemv1.EntryCondition_ENTRY_CONDITION_HELD}, PageSize: 7}
	seen := map[string]bool{}
	for {
		page, err := r.admin.ListEntries(r.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.GetEntries() {
			if e.GetRef().GetTenant() != server.DefaultTenant || e.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_HELD || seen[e.GetRef().GetKey()] {
				t.Errorf("listed %v", e)
			}
			seen[e.GetRef().GetKey()] = true
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if len(seen) != 40 {
		t.Errorf("%d of 40 held entries are listed", len(seen))
	}
}

// An operator settles or releases what is stuck; the same again says that it was resent.
func TestResolveEntry(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	resolve := func(key string, way func(*idemv1.ResolveEntryRequest)) *idemv1.Entry {
		t.Helper()
		r.fail(key, r.grant(key), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("x"))
		req := &idemv1.ResolveEntryRequest{Ref: refTo(key), Attempt: 1, Reason: "asked the provider"}
		way(req)
		var shown *idemv1.Entry
		for _, resent := range []bool{false, true} {
			got, err := r.admin.ResolveEntry(r.ctx, req)
			if err != nil || got.GetResent() != resent {
				t.Fatalf("%s: %v, %v, want resent %t", key, got, err, resent)
			}
			shown = got.GetEntry()
		}
		if n := shown.GetResolutions(); len(n) != 1 || n[0].GetReason() != "asked the provider" || n[0].GetAttempt() != 1 || n[0].GetResolveTime() == nil {
			t.Errorf("%s: resolutions %v", key, n)
		}
		return shown
	}
	done := resolve("complete", func(q *idemv1.ResolveEntryRequest) {
		q.Resolution = &idemv1.ResolveEntryRequest_Complete{Complete: &idemv1.Response{ResourceId: "ch_42"}}
	})
	if done.GetAnswer().GetResponse().GetResourceId() != "ch_42" || done.GetAnswer().GetAttempt() != 0 ||
		done.GetResolutions()[0].GetKind() != idemv1.ResolutionKind_RESOLUTION_KIND_COMPLETE {
		t.Errorf("completed as %v", done)
	}
	if got := r.replay("complete"); got.GetResponse().GetResourceId() != "ch_42" {
		t.Errorf("replayed as %v", got)
	}
	failed := resolve("fail", func(q *idemv1.ResolveEntryRequest) {
		q.Resolution = &idemv1.ResolveEntryRequest_Fail{Fail: unavailable("the provider never heard of it")}
	})
	if failed.GetFailure().GetDisposition() != idemv1.Disposition_DISPOSITION_FINAL {
		t.Errorf("failed as %v", failed)
	}
	released := resolve("release", func(q *idemv1.ResolveEntryRequest) {
		q.Resolution = &idemv1.ResolveEntryRequest_Release{Release: &idemv1.Release{}}
	})
	if !released.GetReleaseCredit() {
		t.Errorf("released as %v", released)
	}
	if c := r.grant("release"); c.GetAttempt() != 2 || !c.GetPreviousAbandoned() || !c.GetOnCredit() {
		t.Errorf("granted after the release: %v", c)
	}
}

// A sweep reports what it did, and a dry run what it would do.
func TestSweepReports(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	for i := range 3 {
		r.complete(fmt.Sprint("done ", i), r.grant(fmt.Sprint("done ", i)), &idemv1.Response{})
	}
	r.grant("left")
	r.advance(ledger.DefaultRetention + ledger.DefaultLease)
	run := func(req *idemv1.SweepRequest) *idemv1.SweepResponse {
		t.Helper()
		stream, err := r.admin.Sweep(r.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := last(stream)
		if err != nil || !got.GetDone() {
			t.Fatalf("the last report is %v, %v", got, err)
		}
		return got
	}
	for _, req := range []*idemv1.SweepRequest{{DryRun: true}, {DryRun: true}, {}} {
		if got := run(req); got.GetTombstonedCount() != 4 || got.GetLapsedCount() != 1 || got.GetForgottenCount() != 0 || got.GetExaminedCount() != 4 {
			t.Errorf("dry run %t: %v", req.GetDryRun(), got)
		}
	}
	r.advance(ledger.DefaultRetention)
	if got := run(&idemv1.SweepRequest{Limit: 1}); got.GetForgottenCount() != 1 {
		t.Errorf("a sweep of one: %v", got)
	}
	if got := run(&idemv1.SweepRequest{}); got.GetForgottenCount() != 3 || got.GetOldestOverdueTime() != nil {
		t.Errorf("the rest: %v", got)
	}
}

// A policy is applied to the standing entries for which it counts; a dry run only counts them.
func TestApplyPolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	other := func(b *idemv1.BeginRequest) { b.Ref.Operation = "another" }
	theirs := func(b *idemv1.BeginRequest) { b.Ref.Tenant = "theirs" }
	r.grant("1")
	r.grant("2")
	r.grant("3", other)
	r.grant("4", theirs)
	apply := func(tenant, op string, dry bool) (*idemv1.ApplyPolicyResponse, error) {
		stream, err := r.admin.ApplyPolicy(r.ctx, &idemv1.ApplyPolicyRequest{Tenant: tenant, Operation: op, DryRun: dry})
		if err != nil {
			t.Fatal(err)
		}
		return last(stream)
	}
	_, err := apply("*", "*", false)
	wantRefusal(t, err, ledger.ReasonPolicyNotFound, codes.NotFound)
	r.putPolicy(&idemv1.Policy{MaxAttempts: 3})
	r.putPolicy(&idemv1.Policy{Tenant: "*", Operation: "*", MaxAttempts: 4})
	for _, c := range []struct {
		tenant, op        string
		dry               bool
		examined, changed int64
	}{
		{server.DefaultTenant, operation, true, 2, 2},
		{server.DefaultTenant, operation, false, 2, 2},
		{server.DefaultTenant, operation, false, 2, 0},
		{"*", "*", true, 2, 2},
		{"*", "*", false, 2, 2},
	} {
		got, err := apply(c.tenant, c.op, c.dry)
		if err != nil || !got.GetDone() || got.GetExaminedCount() != c.examined || got.GetChangedCount() != c.changed {
			t.Errorf("%+v: %v, %v", c, got, err)
		}
	}
	if got := r.lookup("1").GetTerms().GetMaxAttempts(); got != 3 {
		t.Errorf("max_attempts of an entry with a policy of its own: %d", got)
	}
	if got, err := r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Tenant: "theirs", Operation: operation, Key: "4"}}); err != nil ||
		got.GetEntry().GetTerms().GetMaxAttempts() != 4 {
		t.Errorf("max_attempts of an entry under (*, *): %v, %v", got, err)
	}
}

// Long work reports as it goes: the counts only rise, and only the last report says that it is done.
func TestStreamedWorkReportsProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	const entries = 1200
	for i := range entries {
		r.grant(fmt.Sprint(i))
	}
	r.putPolicy(&idemv1.Policy{MaxAttempts: 3})
	stream, err := r.admin.ApplyPolicy(r.ctx, &idemv1.ApplyPolicyRequest{Tenant: server.DefaultTenant, Operation: operation})
	if err != nil {
		t.Fatal(err)
	}
	var reports []*idemv1.ApplyPolicyResponse
	for {
		got, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := len(reports); n > 0 && (got.GetExaminedCount() < reports[n-1].GetExaminedCount() || reports[n-1].GetDone()) {
			t.Errorf("%v comes after %v", got, reports[n-1])
		}
		reports = append(reports, got)
	}
	if n := len(reports); n < 3 || !reports[n-1].GetDone() || reports[n-1].GetChangedCount() != entries || reports[0].GetExaminedCount() >= entries {
		t.Errorf("reported %v", reports)
	}
}

// A tenant is erased: what was in its entries is gone, live ones are named by the hash that logs show, later ones are left.
func TestDeleteEntries(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.complete("done", r.grant("done"), &idemv1.Response{Body: []byte("personal")})
	live := r.grant("live")
	r.advance(time.Second)
	cutOff := timestamppb.New(r.daemon.Clock().Now().Wall())
	r.grant("created at the cut-off")
	erase := func(force bool) *idemv1.DeleteEntriesResponse {
		t.Helper()
		stream, err := r.admin.DeleteEntries(r.ctx, &idemv1.DeleteEntriesRequest{Tenant: server.DefaultTenant, CreateTimeBefore: cutOff, Force: force})
		if err != nil {
			t.Fatal(err)
		}
		got, err := last(stream)
		if err != nil || !got.GetDone() {
			t.Fatalf("the last report is %v, %v", got, err)
		}
		return got
	}
	got := erase(false)
	if got.GetErasedCount() != 1 || got.GetSkippedCount() != 1 || len(got.GetSkipped()) != 1 {
		t.Fatalf("erased %v", got)
	}
	skipped := got.GetSkipped()[0]
	want := r.daemon.Ledger().LogKey(ledger.Ref{Tenant: server.DefaultTenant, Operation: operation, Key: "live"})
	if skipped.GetRefHash() != want || skipped.GetCondition() != idemv1.EntryCondition_ENTRY_CONDITION_LIVE ||
		!proto.Equal(skipped.GetLeaseExpireTime(), live.GetLeaseExpireTime()) {
		t.Errorf("skipped %v, want %s, live until %v", skipped, want, live.GetLeaseExpireTime())
	}
	e := r.lookup("done")
	if !e.GetErased() || e.GetOutcome() != nil || e.GetAttempts()[0].GetHolder() != "" || e.GetRef().GetKey() != "done" {
		t.Errorf("the erased entry shows %v", e)
	}
	if got := erase(true); got.GetErasedCount() != 1 || got.GetSkippedCount() != 0 {
		t.Errorf("erased by force: %v", got)
	}
	if r.lookup("created at the cut-off").GetErased() {
		t.Error("an entry that was not created before the cut-off is erased")
	}
	for _, bad := range []*idemv1.DeleteEntriesRequest{
		{Tenant: "*", CreateTimeBefore: cutOff}, {Tenant: "", CreateTimeBefore: cutOff}, {Tenant: "t"},
		{Tenant: "t", CreateTimeBefore: &timestamppb.Timestamp{Seconds: -1}}, {Tenant: "t", CreateTimeBefore: &timestamppb.Timestamp{Nanos: -1}},
	} {
		stream, err := r.admin.DeleteEntries(r.ctx, bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = stream.Recv(); readRefusal(err).code != codes.InvalidArgument || readRefusal(err).bad == nil {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// Entries are counted by tenant, operation and condition, those in doubt apart; what is past its tombstone is no entry any more.
func TestGetStats(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	r.putPolicy(&idemv1.Policy{Tenant: "*", Operation: "*", Horizons: &idemv1.Horizons{ClientRetry: seconds(60)}, Tombstone: seconds(0)})
	r.complete("gone", r.grant("gone"), &idemv1.Response{})
	r.advance(time.Minute)
	r.putPolicy(&idemv1.Policy{OnAbandoned: idemv1.OnAbandoned_ON_ABANDONED_HOLD})
	r.complete("done", r.grant("done"), &idemv1.Response{})
	r.grant("live")
	r.fail("held", r.grant("held"), idemv1.Disposition_DISPOSITION_UNKNOWN, unavailable("x"))
	held := r.daemon.Clock().Now()
	r.grant("another", func(b *idemv1.BeginRequest) { b.Ref.Operation = "another" })
	r.grant("theirs", func(b *idemv1.BeginRequest) { b.Ref.Tenant = "theirs" })
	count := func(req *idemv1.GetStatsRequest) (string, *idemv1.GetStatsResponse) {
		t.Helper()
		got, err := r.admin.GetStats(r.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, c := range got.GetCounts() {
			text += fmt.Sprintf("%s/%s %d: %d, %d in doubt\n", c.GetTenant(), c.GetOperation(), c.GetCondition(), c.GetEntryCount(), c.GetDoubtCount())
		}
		return text, got
	}
	mine := "default/" + operation + " 1: 1, 0 in doubt\ndefault/" + operation + " 3: 1, 1 in doubt\ndefault/" + operation + " 5: 1, 0 in doubt\n"
	another, theirs := "default/another 1: 1, 0 in doubt\n", "theirs/"+operation+" 1: 1, 0 in doubt\n"
	for _, c := range []struct {
		req  *idemv1.GetStatsRequest
		want string
	}{
		{&idemv1.GetStatsRequest{}, another + mine},
		{&idemv1.GetStatsRequest{Operation: operation}, mine},
		{&idemv1.GetStatsRequest{Tenant: "*"}, another + mine + theirs},
		{&idemv1.GetStatsRequest{Tenant: "*", Operation: operation}, mine + theirs},
	} {
		text, got := count(c.req)
		if text != c.want {
			t.Errorf("%v:\n%swant\n%s", c.req, text, c.want)
		}
		wantTime(t, "store_time", got.GetStoreTime(), r.daemon.Clock().Now())
		wantTime(t, "oldest_held_time", got.GetOldestHeldTime(), held)
		if got.GetOldestOverdueTime() == nil {
			t.Errorf("%v: nothing is overdue, but a tombstone is past", c.req)
		}
	}
}

// A client that goes away stops the work that it asked for.
func TestClientThatGoesAwayStopsTheWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, servertest.Options{})
	reached, pages := make(chan struct{}, 1), 0 // pages belongs to the plan, which sees one call at a time
	r.daemon.Store().Plan(storetest.On(storetest.Page, func(storetest.Call) storetest.Fault {
		if pages++; pages != 2 {
			return storetest.Fault{}
		}
		return storetest.Fault{Before: func(ctx context.Context) error {
			reached <- struct{}{}
			<-ctx.Done()
			return nil
		}}
	}))
	ctx, cancel := context.WithCancel(r.ctx)
	stream, err := r.admin.Sweep(ctx, &idemv1.SweepRequest{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	<-reached
	cancel()
	if _, err := last(stream); readRefusal(err).code != codes.Canceled {
		t.Errorf("the client was told %v", err)
	}
	// The daemon closes without cutting a call off: the sweep has ended.
	if err := r.daemon.Close(); err != nil {
		t.Error(err)
	}
	if pages != 2 {
		t.Errorf("the sweep went on to page %d", pages)
	}
}
