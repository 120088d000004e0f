package ledger_test

import (
	"bytes"
	"slices"
	"strings"

	"github.com/idemd/idemd/ledger"
)

// cell is one cell of the decision table: what arrived, and what the entry was at that instant.
type cell struct {
	row    string
	column ledger.Condition
}

// The columns, by short names.
const (
	absent    = ledger.Absent
	live      = ledger.Live
	abandoned = ledger.Abandoned
	held      = ledger.Held
	completed = ledger.ConditionCompleted
	final     = ledger.ConditionFailedFinal
	retryable = ledger.ConditionFailedRetryable
	lapsed    = ledger.Lapsed
	expired   = ledger.Expired
)

// cellsOf says which cells a request reaches. It is written from the design's table and shares nothing with Decide but the condition. last is
// the row as it last was, also when it was deleted since.
func cellsOf(row, last *ledger.Entry, req ledger.Request, env ledger.Env) []cell {
	condition := row.ConditionAt(env.Now)
	if last == nil {
		last = row
	}
	in := func(row string) []cell { return []cell{{row, condition}} }
	nobody := ledger.PrincipalHash{}
	if condition != absent && row.Terms.Bound != nobody && row.Terms.Bound != env.Bound && !env.Operator {
		return in(verbOf(req) + ", another principal")
	}
	switch r := req.(type) {
	case ledger.BeginDecision:
		return in(beginRow(row, condition, r, env))
	case ledger.ReportDecision:
		return in(reportRow(last, r))
	case ledger.ExtendDecision:
		return in(verbOf(req) + ", " + tokenKind(last, r.Issued, r.Claim))
	case ledger.ResolveDecision:
		return resolveRows(row, condition, r)
	case ledger.EraseDecision:
		if r.Force {
			return in("erase, forced")
		}
	}
	return in(verbOf(req))
}

func verbOf(req ledger.Request) string {
	switch r := req.(type) {
	case ledger.BeginDecision:
		return "begin"
	case ledger.ReportDecision:
		if r.Response != nil {
			return "complete"
		}
		return "fail"
	case ledger.ExtendDecision:
		return "extend"
	case ledger.EraseDecision:
		return "erase"
	case ledger.LookupDecision:
		return "lookup"
	default:
		return "apply"
	}
}

func attemptsOf(e *ledger.Entry) []ledger.Attempt {
	if e == nil {
		return nil
	}
	return append(slices.Clone(e.Earlier), e.Last)
}

func beginRow(row *ledger.Entry, condition ledger.Condition, r ledger.BeginDecision, env ledger.Env) string {
	kind := "begin RUN, new id"
	if r.Mode == ledger.Recover {
		kind = "begin RECOVER, new id"
	}
	if condition == absent {
		return kind
	}
	for _, a := range attemptsOf(row) {
		if a.IDHash != r.IDHash {
			continue
		}
		kind = "begin, earlier id"
		if row.Current && a.Number == row.Last.Number {
			kind = "begin, current id"
		}
		if a.Holder != r.Holder || a.Principal != env.Principal || a.RecoverOnly != (r.Mode == ledger.Recover) {
			return "begin, id of another caller"
		}
	}
	shared, equal := 0, 0
	for _, ours := range row.Fingerprints {
		for _, theirs := range r.Fingerprints {
			if ours.Algorithm == theirs.Algorithm {
				shared++
				if bytes.Equal(ours.Hash, theirs.Hash) {
					equal++
				}
			}
		}
	}
	switch {
	case shared == 0:
		return "begin, no shared algorithm"
	case equal < shared:
		return "begin, another fingerprint"
	case kind == "begin RUN, new id" && row.Credit:
		return kind + ", on a release credit"
	case kind == "begin RUN, new id" && (condition == held || condition == retryable) && row.RunGrants >= row.Terms.MaxAttempts:
		return kind + ", at the cap"
	}
	return kind
}

// tokenKind says what a token proves about the entry as it last was.
func tokenKind(last *ledger.Entry, issued bool, c ledger.Claim) string {
	if !issued || last == nil || c.Incarnation != last.Incarnation {
		return "token never issued"
	}
	if last.Current && c.Attempt == last.Last.Number {
		return "current token"
	}
	return "earlier token"
}

func reportRow(last *ledger.Entry, r ledger.ReportDecision) string {
	kind := verbOf(r) + ", " + tokenKind(last, r.Issued, r.Claim)
	if strings.HasSuffix(kind, "never issued") {
		return kind
	}
	for _, a := range attemptsOf(last) {
		if a.Number == r.Claim.Attempt && a.Report == r.Report {
			return kind + ", same report"
		}
	}
	return kind + ", new report"
}

func resolveRows(row *ledger.Entry, condition ledger.Condition, r ledger.ResolveDecision) []cell {
	kind := map[ledger.ResolveAction]string{
		ledger.ResolveComplete: "resolve complete", ledger.ResolveFail: "resolve fail", ledger.ResolveRelease: "resolve release",
	}[r.Action]
	if row != nil {
		for _, d := range row.Resolutions {
			if d.Action == r.Action && d.Attempt == r.Attempt && d.Report == r.Report {
				return []cell{{"resolve, decided so before", condition}}
			}
		}
		switch {
		case row.Last.Number != r.Attempt:
			return []cell{{"resolve, another attempt", condition}}
		case r.Force:
			kind += ", forced"
		case r.Action != ledger.ResolveRelease && row.Settlement == r.Report:
			kind += ", same answer"
		}
	}
	return []cell{{kind, condition}}
}
