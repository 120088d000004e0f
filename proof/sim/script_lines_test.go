package sim

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// What a recorded call asks of the decision table, and how it was answered, in one line as of a script. An answer and a verdict that agree read the same.

// callOf reads a request as the ledger does.
func (t *table) callOf(b *began) (*call, error) {
	c := &call{emitted: map[string]ledger.Verdict{}}
	switch b.Method {
	case idemv1.LedgerService_Begin_FullMethodName:
		r := &idemv1.BeginRequest{}
		if err := protojson.Unmarshal(b.Request, r); err != nil {
			return nil, err
		}
		id, err := uuid.Parse(r.GetAttemptId())
		if err != nil {
			return nil, err
		}
		ref := t.about(c, "begin", r.GetRef())
		begin := ledger.BeginDecision{
			Scope: c.scope, Ref: ref, IDHash: t.secret.AttemptID(c.scope, id), Lease: r.GetLease().AsDuration(), Holder: r.GetHolder(),
		}
		for _, print := range r.GetFingerprints() {
			begin.Fingerprints = append(begin.Fingerprints, ledger.Fingerprint{Algorithm: print.GetAlgorithm(), Hash: print.GetHash()})
		}
		c.line += fmt.Sprintf(" attempt=%.8s by=%q lease=%v", r.GetAttemptId(), r.GetHolder(), begin.Lease)
		if r.GetMode() == idemv1.BeginMode_BEGIN_MODE_RECOVER {
			begin.Mode = ledger.Recover
			c.line += " mode=recover"
		}
		c.req, c.waits = begin, r.GetWait().AsDuration() > 0
	case idemv1.LedgerService_Complete_FullMethodName:
		r := &idemv1.CompleteRequest{}
		if err := protojson.Unmarshal(b.Request, r); err != nil {
			return nil, err
		}
		t.about(c, "complete", r.GetRef())
		t.report(c, r.GetClaimToken(), responseOf(r.GetResponse()), nil)
	case idemv1.LedgerService_Fail_FullMethodName:
		r := &idemv1.FailRequest{}
		if err := protojson.Unmarshal(b.Request, r); err != nil {
			return nil, err
		}
		t.about(c, "fail", r.GetRef())
		t.report(c, r.GetClaimToken(), nil, failureOf(r))
	case idemv1.LedgerService_Extend_FullMethodName:
		r := &idemv1.ExtendRequest{}
		if err := protojson.Unmarshal(b.Request, r); err != nil {
			return nil, err
		}
		t.about(c, "extend", r.GetRef())
		extend := ledger.ExtendDecision{Scope: c.scope, Lease: r.GetLease().AsDuration()}
		extend.Claim, extend.Issued = t.secret.Claim(c.scope, r.GetClaimToken())
		c.line += fmt.Sprintf(" token=%s lease=%v", t.token(extend.Claim), extend.Lease)
		c.req = extend
	case idemv1.LedgerService_Lookup_FullMethodName:
		r := &idemv1.LookupRequest{}
		if err := protojson.Unmarshal(b.Request, r); err != nil {
			return nil, err
		}
		t.about(c, "lookup", r.GetRef())
		c.req = ledger.LookupDecision{}
	default:
		return nil, fmt.Errorf("no call of the simulation is a %s", b.Method)
	}
	return c, nil
}

func (t *table) about(c *call, verb string, ref *idemv1.EntryRef) ledger.Ref {
	out := ledger.Ref{Tenant: ref.GetTenant(), Operation: ref.GetOperation(), Key: ref.GetKey()}
	c.scope, c.line = t.secret.Scope(out), fmt.Sprintf("%s %s %s", verb, ref.GetOperation(), ref.GetKey())
	return out
}

func (t *table) report(c *call, token []byte, response *ledger.Response, failure *ledger.Failure) {
	report := ledger.ReportDecision{Scope: c.scope, Report: ledger.ReportDigest(response, failure)}
	report.Claim, report.Issued = t.secret.Claim(c.scope, token)
	c.line += " token=" + t.token(report.Claim)
	if response != nil {
		report.Response = t.rules.TrimResponse(response)
		c.line += fmt.Sprintf(" body=%q", response.Body)
	} else {
		report.Failure = t.rules.TrimFailure(failure)
		c.line += fmt.Sprintf(" %s message=%q", dispositions[failure.Disposition], failure.Message)
	}
	c.req = report
}

// token names a claim by its attempt, and by the life of the key that it is of.
func (t *table) token(c ledger.Claim) string {
	return fmt.Sprintf("%d@%s", c.Attempt, t.time(c.Incarnation))
}

func responseOf(r *idemv1.Response) *ledger.Response {
	out := &ledger.Response{
		Code: r.GetCode(), Body: r.GetBody(), ContentType: r.GetContentType(), ResourceType: r.GetResourceType(), ResourceID: r.GetResourceId(),
	}
	for _, m := range r.GetMetadata() {
		out.Metadata = append(out.Metadata, ledger.MetadataPair{Name: m.GetKey(), Value: m.GetValue()})
	}
	return out
}

var dispositions = map[ledger.Disposition]string{ledger.Final: "final", ledger.Retryable: "retryable", ledger.Unknown: "unknown"}

// failureOf is the failure of a request, and of a reply.
func failureOf(r interface {
	GetStatus() *statuspb.Status
	GetDisposition() idemv1.Disposition
	GetDetailsOmitted() bool
},
) *ledger.Failure {
	out := &ledger.Failure{Code: r.GetStatus().GetCode(), Message: r.GetStatus().GetMessage(), DetailsOmitted: r.GetDetailsOmitted()}
	for of, name := range dispositions {
		if strings.HasSuffix(r.GetDisposition().String(), strings.ToUpper(name)) {
			out.Disposition = of
		}
	}
	for _, d := range r.GetStatus().GetDetails() {
		out.Details = append(out.Details, ledger.Detail{TypeURL: d.GetTypeUrl(), Value: d.GetValue()})
	}
	return out
}

// verdict is how a call may be answered that comes to v. row is as it stands then. Where a call finds what it may itself have written a moment before, it
// does not say so: it may leave the flag out.
func (t *table) verdict(c *call, v ledger.Verdict, row *ledger.Entry, at ledger.Time) []string {
	switch v.Outcome {
	case ledger.Refused:
		return []string{string(v.Refusal.Reason)}
	case ledger.Granted:
		return []string{"GRANTED" + t.grant(row)}
	case ledger.Resumed:
		return []string{"RESUMED" + t.grant(row), "GRANTED" + t.grant(row)}
	case ledger.Replayed, ledger.FailedAs:
		return []string{t.told(row.Response, row.Failure, row.SettledBy, row.SettledAt, row.DueAt)}
	case ledger.InProgress:
		return []string{fmt.Sprintf("IN_PROGRESS attempt=%d holder=%q", row.Last.Number, row.Last.Holder)}
	case ledger.Found:
		said := t.found(conditions[row.ConditionAt(at)], row.Last.Number, row.Fence(), row.Revision, row.Doubt)
		if (row.Response != nil || row.Failure != nil) && row.ConditionAt(at) != ledger.Expired {
			said += " " + t.told(row.Response, row.Failure, row.SettledBy, row.SettledAt, row.DueAt)
		}
		return []string{said}
	case ledger.Renewed:
		return []string{fmt.Sprintf("RENEWED until=%s lease=%v", t.time(row.Last.LeaseUntil), max(row.Last.LeaseUntil.Sub(at), 0))}
	case ledger.Done, ledger.Unchanged:
		said := fmt.Sprintf("OK attempt=%d created=%s", c.req.(ledger.ReportDecision).Claim.Attempt, t.time(row.Incarnation))
		if row.SettledAt != 0 {
			expires := row.SettledAt.Add(row.Terms.Retention)
			said += fmt.Sprintf(" settled=%s expires=%s forget=%s", t.time(row.SettledAt), t.time(expires), t.time(expires.Add(row.Terms.Tombstone)))
		}
		if v.Outcome == ledger.Done {
			return []string{said}
		}
		return []string{said + " unchanged", said}
	default:
		return []string{fmt.Sprintf("outcome %d", v.Outcome)}
	}
}

var conditions = map[ledger.Condition]string{
	ledger.Live: "LIVE", ledger.Abandoned: "ABANDONED", ledger.Held: "HELD", ledger.Lapsed: "LAPSED", ledger.Expired: "EXPIRED",
	ledger.ConditionCompleted: "COMPLETED", ledger.ConditionFailedFinal: "FAILED_FINAL", ledger.ConditionFailedRetryable: "FAILED_RETRYABLE",
}

func (t *table) found(condition string, attempts int32, fence, revision int64, doubt bool) string {
	out := fmt.Sprintf("FOUND %s attempts=%d fence=%s revision=%d", condition, attempts, t.time(ledger.Time(fence)), revision)
	if doubt {
		out += " doubt"
	}
	return out
}

func (t *table) grant(row *ledger.Entry) string {
	out := fmt.Sprintf(" attempt=%d incarnation=%s fence=+%d lease=%s", row.Last.Number, t.time(row.Incarnation), row.Fence()-int64(row.Incarnation), t.time(row.Last.LeaseUntil))
	if row.Last.RecoverOnly {
		out += " recover_only"
	}
	if row.Doubt {
		out += " previous_abandoned"
		if e := row.Evidence; e.Success() {
			out += fmt.Sprintf(" evidence=%d:%q", e.Attempt, e.Response.Body)
		} else if e != nil {
			out += fmt.Sprintf(" evidence=%d:%s", e.Attempt, e.Failure.Message)
		}
	}
	return out
}

func (t *table) told(r *ledger.Response, f *ledger.Failure, attempt int32, settled, expires ledger.Time) string {
	said := fmt.Sprintf("attempt=%d settled=%s expires=%s", attempt, t.time(settled), t.time(expires))
	if r != nil {
		return fmt.Sprintf("COMPLETED body=%q %s", r.Body, said)
	}
	return fmt.Sprintf("FAILED %s message=%q %s", dispositions[f.Disposition], f.Message, said)
}

// time is an instant as in a script, counted from the first step.
func (t *table) time(at ledger.Time) string {
	switch at {
	case 0:
		return "none"
	case ledger.Never:
		return "never"
	}
	return "T+" + at.Sub(t.start).String()
}

// answer is what a caller was told, in the words of verdict.
func (t *table) answer(e *ended, c *call) (string, error) {
	if e.Refused != "" {
		return e.Refused, nil
	}
	switch c.req.(type) {
	case ledger.BeginDecision:
		out := &idemv1.BeginResponse{}
		err := protojson.Unmarshal(e.Reply, out)
		return t.answerOfBegin(out), err
	case ledger.ExtendDecision:
		out := &idemv1.ExtendResponse{}
		err := protojson.Unmarshal(e.Reply, out)
		return fmt.Sprintf("RENEWED until=%s lease=%v", t.wire(out.GetLeaseExpireTime()), out.GetLease().AsDuration()), err
	}
	if _, lookup := c.req.(ledger.LookupDecision); lookup {
		out := &idemv1.LookupResponse{}
		err := protojson.Unmarshal(e.Reply, out)
		return t.answerOfLookup(out.GetEntry()), err
	}
	// The replies to the two reports have the same fields.
	out := &idemv1.CompleteResponse{}
	err := protojson.Unmarshal(e.Reply, out)
	times := out.GetTimes()
	said := fmt.Sprintf("OK attempt=%d created=%s", out.GetAttempt(), t.wire(times.GetCreateTime()))
	if times.GetSettleTime() != nil {
		said += fmt.Sprintf(" settled=%s expires=%s forget=%s", t.wire(times.GetSettleTime()), t.wire(times.GetExpireTime()), t.wire(times.GetTombstoneExpireTime()))
	}
	if out.GetResent() {
		said += " unchanged"
	}
	return said, err
}

func (t *table) answerOfBegin(out *idemv1.BeginResponse) string {
	switch {
	case out.GetGranted() != nil:
		return t.answerOfGrant(out.GetGranted())
	case out.GetCompleted() != nil:
		return t.completed(out.GetCompleted())
	case out.GetFailed() != nil:
		return t.failed(out.GetFailed())
	default:
		return fmt.Sprintf("IN_PROGRESS attempt=%d holder=%q", out.GetInProgress().GetAttempt(), out.GetInProgress().GetHolder())
	}
}

func (t *table) completed(a *idemv1.Answer) string {
	return t.told(responseOf(a.GetResponse()), nil, a.GetAttempt(), stamp(a.GetOriginalTime()), stamp(a.GetExpireTime()))
}

func (t *table) failed(a *idemv1.Failure) string {
	return t.told(nil, failureOf(a), a.GetAttempt(), stamp(a.GetOriginalTime()), stamp(a.GetExpireTime()))
}

func (t *table) answerOfLookup(e *idemv1.Entry) string {
	condition := strings.TrimPrefix(e.GetCondition().String(), "ENTRY_CONDITION_")
	said := t.found(condition, e.GetLatestAttempt(), e.GetFence(), e.GetRevision(), e.GetDoubt())
	if e.GetAnswer() != nil {
		said += " " + t.completed(e.GetAnswer())
	}
	if e.GetFailure() != nil {
		said += " " + t.failed(e.GetFailure())
	}
	return said
}

func (t *table) answerOfGrant(g *idemv1.Claim) string {
	said := "GRANTED"
	if g.GetResumed() {
		said = "RESUMED"
	}
	said += fmt.Sprintf(" attempt=%d incarnation=%s fence=+%d lease=%s",
		g.GetAttempt(), t.time(ledger.Time(g.GetIncarnation())), g.GetFence()-g.GetIncarnation(), t.wire(g.GetLeaseExpireTime()))
	if g.GetRecoverOnly() {
		said += " recover_only"
	}
	if g.GetPreviousAbandoned() {
		said += " previous_abandoned"
	}
	if e := g.GetEvidence(); e.GetCompleted() != nil {
		said += fmt.Sprintf(" evidence=%d:%q", e.GetAttempt(), e.GetCompleted().GetBody())
	} else if e != nil {
		said += fmt.Sprintf(" evidence=%d:%s", e.GetAttempt(), e.GetFailed().GetMessage())
	}
	return said
}

func (t *table) wire(at *timestamppb.Timestamp) string { return t.time(stamp(at)) }

func stamp(at *timestamppb.Timestamp) ledger.Time {
	if at == nil {
		return 0
	}
	return ledger.Time(at.AsTime().UnixMicro())
}
