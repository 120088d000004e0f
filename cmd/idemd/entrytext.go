package main

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// maxShownBytes is how much of a body is shown among other things. --body shows all of it.
const maxShownBytes = 2048

func conditionWord(c idemv1.EntryCondition) string { return words(c.String(), "ENTRY_CONDITION_") }

// meaning says what a condition means to somebody who does not read design documents at night.
func meaning(c idemv1.EntryCondition) string {
	switch c {
	case idemv1.EntryCondition_ENTRY_CONDITION_LIVE:
		return "somebody is at work on it now"
	case idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED:
		return "nobody knows whether it happened; the next retry may run it again"
	case idemv1.EntryCondition_ENTRY_CONDITION_HELD:
		return "nobody knows whether it happened; retries are refused until somebody settles it"
	case idemv1.EntryCondition_ENTRY_CONDITION_LAPSED:
		return "abandoned, and nobody came for it; retries are refused"
	case idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED:
		return "done; retries get this answer"
	case idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL:
		return "failed for good; retries get this failure"
	case idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE:
		return "failed, and nothing happened; the next retry runs"
	case idemv1.EntryCondition_ENTRY_CONDITION_EXPIRED:
		return "settled, and its answer is gone; retries are refused"
	default:
		return ""
	}
}

// printEntry shows an entry to a person.
func (w *world) printEntry(out *printer, e *idemv1.Entry) {
	clock := w.clock(e.GetTimes().GetStoreTime())
	var f facts
	f.add("operation", "%s", oneLine(e.GetRef().GetOperation()))
	f.add("key", "%s", oneLine(e.GetRef().GetKey()))
	f.add("tenant", "%s", oneLine(e.GetRef().GetTenant()))
	f.add("condition", "%s: %s", conditionWord(e.GetCondition()), meaning(e.GetCondition()))
	if e.GetDoubt() {
		f.add("doubt", "an attempt was given up, taken over or released: it may have had its effect all the same")
	}
	if e.GetErased() {
		f.add("erased", "yes: only a tombstone is left")
	}
	addTimes(&f, clock, e)
	f.add("fence", "%d", e.GetFence())
	addTerms(&f, e)
	for _, fp := range e.GetFingerprints() {
		f.add("fingerprint", "%s %s", oneLine(fp.GetAlgorithm()), hex.EncodeToString(fp.GetHash()))
	}
	addOutcome(&f, clock, e)
	addEvidence(&f, clock, e.GetEvidence())
	f.print(out)
	printAttempts(out, clock, e.GetAttempts())
	printResolutions(out, clock, e.GetResolutions())
}

func addTimes(f *facts, clock clockFace, e *idemv1.Entry) {
	times := e.GetTimes()
	f.add("created", "%s", clock.tell(times.GetCreateTime()))
	if e.GetCondition() == idemv1.EntryCondition_ENTRY_CONDITION_LIVE || e.GetHasCurrentAttempt() {
		f.add("lease ends", "%s", clock.tell(times.GetLeaseExpireTime()))
	}
	f.add("abandoned", "%s", clock.tell(times.GetAbandonTime()))
	if e.GetState() == idemv1.EntryState_ENTRY_STATE_PENDING {
		f.add("held from", "%s", clock.tell(times.GetHoldTime()))
		f.add("lapses", "%s", clock.tell(times.GetLapseTime()))
	}
	f.add("settled", "%s", clock.tell(times.GetSettleTime()))
	if !e.GetErased() {
		f.add("replayed until", "%s", clock.tell(times.GetExpireTime()))
	}
	f.add("known until", "%s", clock.tell(times.GetTombstoneExpireTime()))
}

func addTerms(f *facts, e *idemv1.Entry) {
	terms := e.GetTerms()
	if terms == nil {
		return
	}
	text := fmt.Sprintf("keep %s, tombstone %s, %s when abandoned", formatDuration(terms.GetRetention().AsDuration()),
		formatDuration(terms.GetTombstone().AsDuration()), words(terms.GetOnAbandoned().String(), "ON_ABANDONED_"))
	if terms.GetReclaimWithin() != nil {
		text += " within " + formatDuration(terms.GetReclaimWithin().AsDuration())
	}
	text += fmt.Sprintf(", %d of %d runs used", e.GetRunCount(), terms.GetMaxAttempts())
	if terms.GetPrincipalBound() {
		text += ", bound to its principal"
	}
	if e.GetReleaseCredit() {
		text += ", released to run once more"
	}
	f.add("terms", "%s", text)
}

func addOutcome(f *facts, clock clockFace, e *idemv1.Entry) {
	switch outcome := e.GetOutcome().(type) {
	case *idemv1.Entry_Answer:
		f.add("answered", "%s by %s", clock.tell(outcome.Answer.GetOriginalTime()), whoSettled(outcome.Answer.GetAttempt()))
		addResponse(f, outcome.Answer.GetResponse())
	case *idemv1.Entry_Failure:
		f.add("failed", "%s by %s", clock.tell(outcome.Failure.GetOriginalTime()), whoSettled(outcome.Failure.GetAttempt()))
		f.add("failure", "%s", statusText(outcome.Failure.GetStatus(), outcome.Failure.GetDetailsOmitted()))
	}
}

func whoSettled(attempt int32) string {
	if attempt == 0 {
		return "an operator"
	}
	return "attempt " + strconv.Itoa(int(attempt))
}

func addResponse(f *facts, r *idemv1.Response) {
	f.add("code", "%d", r.GetCode())
	if r.GetResourceType() != "" || r.GetResourceId() != "" {
		f.add("resource", "%s %s", oneLine(r.GetResourceType()), oneLine(r.GetResourceId()))
	}
	for _, m := range r.GetMetadata() {
		f.add("metadata", "%s: %s", oneLine(m.GetKey()), oneLine(string(m.GetValue())))
	}
	f.add("body", "%s", bodyText(r))
}

func bodyText(r *idemv1.Response) string {
	kind := oneLine(r.GetContentType())
	if kind != "" {
		kind = " of " + kind
	}
	if r.GetBodyOmitted() {
		size := "of unknown size"
		if r.GetBodySizeBytes() > 0 {
			size = fmt.Sprintf("of %d bytes", r.GetBodySizeBytes())
		}
		return fmt.Sprintf("not kept (%s%s)", size, kind)
	}
	body := r.GetBody()
	if len(body) == 0 {
		return "empty"
	}
	shown := printable(string(body[:min(len(body), maxShownBytes)]))
	if len(shown) > 2*maxShownBytes {
		return fmt.Sprintf("%d bytes%s, not text: see it with --body", len(body), kind)
	}
	more := ""
	if len(body) > maxShownBytes {
		more = "\n(… see all of it with --body)"
	}
	return fmt.Sprintf("%d bytes%s\n%s%s", len(body), kind, shown, more)
}

func statusText(s *rpcstatus.Status, detailsOmitted bool) string {
	text := codeName(s.GetCode()) + ": " + printable(s.GetMessage())
	if n := len(s.GetDetails()); n > 0 {
		text += fmt.Sprintf(" (and %d details, see -o json)", n)
	}
	if detailsOmitted {
		text += " (its details were not kept)"
	}
	return text
}

// codeName is a gRPC code as the specification writes it, with its number; numbers that gRPC does not know are an application's own.
func codeName(code int32) string {
	name := codes.Code(uint32(code)).String()
	if strings.HasPrefix(name, "Code(") {
		return "code " + strconv.Itoa(int(code))
	}
	return fmt.Sprintf("%s (%d)", screamingCase(name), code)
}

// screamingCase writes FailedPrecondition as FAILED_PRECONDITION.
func screamingCase(name string) string {
	var out strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			out.WriteByte('_')
		}
		out.WriteRune(r)
	}
	return strings.ToUpper(out.String())
}

func addEvidence(f *facts, clock clockFace, e *idemv1.Evidence) {
	if e == nil {
		return
	}
	f.add("evidence", "attempt %d reported too late, %s", e.GetAttempt(), clock.tell(e.GetReportTime()))
	switch report := e.GetReport().(type) {
	case *idemv1.Evidence_Completed:
		f.add("", "it was done, code %d", report.Completed.GetCode())
		if report.Completed.GetResourceId() != "" {
			f.add("", "resource %s %s", oneLine(report.Completed.GetResourceType()), oneLine(report.Completed.GetResourceId()))
		}
		f.add("", "%s", bodyText(report.Completed))
	case *idemv1.Evidence_Failed:
		f.add("", "%s, %s", statusText(report.Failed, e.GetDetailsOmitted()), words(e.GetDisposition().String(), "DISPOSITION_"))
	}
}

func printAttempts(out *printer, clock clockFace, attempts []*idemv1.Attempt) {
	if len(attempts) == 0 {
		return
	}
	out.printf("\n")
	rows := make([][]string, 0, len(attempts))
	for _, a := range attempts {
		kind := "run"
		switch {
		case a.GetRecoverOnly():
			kind = "recover"
		case a.GetOnCredit():
			kind = "released"
		}
		rows = append(rows, []string{
			strconv.Itoa(int(a.GetAttempt())), kind, clock.tell(a.GetBeginTime()), words(a.GetEnding().String(), "ATTEMPT_ENDING_"),
			clock.tell(a.GetEndTime()), formatDuration(a.GetLease().AsDuration()), oneLine(a.GetHolder()), oneLine(a.GetPrincipal()),
		})
	}
	table(out, []string{"ATTEMPT", "FOR", "BEGAN", "ENDING", "ENDED", "LEASE", "HOLDER", "PRINCIPAL"}, rows)
}

func printResolutions(out *printer, clock clockFace, resolutions []*idemv1.Resolution) {
	if len(resolutions) == 0 {
		return
	}
	out.printf("\n")
	rows := make([][]string, 0, len(resolutions))
	for _, r := range resolutions {
		rows = append(rows, []string{
			words(r.GetKind().String(), "RESOLUTION_KIND_"), strconv.Itoa(int(r.GetAttempt())), clock.tell(r.GetResolveTime()),
			oneLine(r.GetPrincipal()), oneLine(r.GetReason()),
		})
	}
	table(out, []string{"RESOLVED", "ATTEMPT", "WHEN", "BY", "REASON"}, rows)
}

// printNext says how to go on with an entry that waits for somebody.
func (w *world) printNext(out *printer, e *idemv1.Entry) {
	switch e.GetCondition() {
	case idemv1.EntryCondition_ENTRY_CONDITION_HELD, idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED:
	default:
		return
	}
	tenant := ""
	if name := e.GetRef().GetTenant(); name != defaultTenant {
		tenant = " --tenant " + shellQuote(name)
	}
	out.printf("\nFind out whether it happened, then one of\n")
	for _, how := range []struct{ word, extra, when string }{
		{"complete", " --code 0", "it happened"},
		{"fail", " --code aborted --message …", "it did not, and must not any more"},
		{"release", "", "it did not, and the next retry may run it"},
	} {
		out.printf("  idemd resolve %s %s %s%s --attempt %d%s --reason …  # %s\n", how.word, shellQuote(e.GetRef().GetOperation()),
			shellQuote(e.GetRef().GetKey()), tenant, e.GetLatestAttempt(), how.extra, how.when)
	}
}

// shellQuote writes a word so that a shell reads it back, and a terminal shows it.
func shellQuote(text string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._/:@%+=,", r)
	}
	if text != "" && strings.IndexFunc(text, func(r rune) bool { return !safe(r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(oneLine(text), "'", `'\''`) + "'"
}
