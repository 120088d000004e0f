package ledger_test

import (
	"crypto/sha256"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// epoch is the instant T+0 of every script and of most tests.
const epoch ledger.Time = 1_700_000_000_000_000

// world is what both engines share: the clock, and how the names in a script become values.
type world struct {
	clock  *storetest.Clock
	margin time.Duration
	fences map[ledger.ScopeID]int64
}

func newWorld(t *testing.T, path string) *world {
	t.Helper()
	w := &world{clock: storetest.NewClock(epoch), fences: map[ledger.ScopeID]int64{}}
	commands, _ := readScript(t, path, "")
	for _, c := range commands {
		if c.verb == "store" {
			w.margin = c.duration(t, "margin")
		}
	}
	return w
}

func refOf(c command) ledger.Ref {
	return ledger.Ref{Tenant: c.arg("tenant", "acme"), Operation: c.word(0), Key: c.word(1)}
}

// uuidOf makes an attempt's id from its name in the script.
func uuidOf(name string) [16]byte {
	sum := sha256.Sum256([]byte("attempt " + name))
	return [16]byte(sum[:16])
}

// fingerprintsOf reads hash=h1, hash=other:h1 and hash=test:h1,other:h2.
func fingerprintsOf(c command) (out []ledger.Fingerprint) {
	for part := range strings.SplitSeq(c.arg("hash", "h1"), ",") {
		algorithm, name, ok := strings.Cut(part, ":")
		if !ok {
			algorithm, name = "test", part
		}
		sum := sha256.Sum256([]byte(algorithm + name))
		out = append(out, ledger.Fingerprint{Algorithm: algorithm, Hash: sum[:]})
	}
	return out
}

func modeOf(c command) ledger.Mode {
	if c.arg("mode", "run") == "recover" {
		return ledger.Recover
	}
	return ledger.Run
}

func responseOf(c command) *ledger.Response {
	return &ledger.Response{Body: []byte(c.arg("body", "")), ResourceType: c.arg("resource", "")}
}

func failureOf(c command) *ledger.Failure {
	f := &ledger.Failure{Code: 9, Message: c.arg("message", "no"), Disposition: ledger.Final}
	switch {
	case c.has("retryable"):
		f.Disposition = ledger.Retryable
	case c.has("unknown"):
		f.Disposition = ledger.Unknown
	}
	return f
}

func policyOf(t *testing.T, c command) ledger.Policy {
	t.Helper()
	p := ledger.Policy{
		Tenant: c.arg("tenant", "*"), Operation: c.word(0), Lease: c.duration(t, "lease"), ReclaimWithin: c.duration(t, "reclaim_within"),
		Horizons: ledger.Horizons{ClientRetry: c.duration(t, "retention")}, BindPrincipal: c.has("bind_principal"),
	}
	if c.arg("on_abandoned", "") == "HOLD" {
		p.OnAbandoned = ledger.Hold
	}
	if _, ok := c.args["tombstone"]; ok {
		d := c.duration(t, "tombstone")
		p.Tombstone = &d
	}
	p.MaxAttempts = int32(number(t, c, "max_attempts"))
	p.MaxResponseBytes = number(t, c, "max_response_bytes")
	switch c.arg("store_response", "") {
	case "POINTER":
		p.StoreResponse = ledger.StorePointer
	case "NONE":
		p.StoreResponse = ledger.StoreNone
	}
	return p
}

func number(t *testing.T, c command, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(c.arg(name, "0"), 10, 64)
	if err != nil {
		t.Fatalf("%s: %s: %v", c.where, name, err)
	}
	return n
}

// at shows an instant as a length since the script began.
func at(i ledger.Time) string {
	switch i {
	case 0:
		return "none"
	case ledger.Never:
		return "never"
	}
	return "T+" + i.Sub(epoch).String()
}

// granted notes a fence and fails when it does not rise: fences only rise for a scope, also across forgetting.
func (w *world) granted(t *testing.T, c command, scope ledger.ScopeID, resumed bool, fence int64) {
	t.Helper()
	before := w.fences[scope]
	if fence < before || fence == before && !resumed {
		t.Errorf("%s: the fence went from %d to %d", c.where, before, fence)
	}
	w.fences[scope] = fence
}

func grantOutcome(
	resumed, doubt, recoverOnly, onCredit bool, attempt int32, incarnation ledger.Time, fence int64, lease time.Duration, ev *ledger.Evidence,
) outcome {
	word := "GRANTED"
	if resumed {
		word = "RESUMED"
	}
	o := said(word, flag(doubt, "previous_abandoned"), flag(recoverOnly, "recover_only"), flag(onCredit, "on_credit"))
	o = o.with("attempt", attempt).with("fence", "+"+strconv.FormatInt(fence-int64(incarnation), 10)).with("lease", lease)
	return o.with("evidence", evidenceOf(ev))
}

func flag(on bool, name string) string {
	if on {
		return name
	}
	return ""
}

func evidenceOf(ev *ledger.Evidence) string {
	switch {
	case ev == nil:
		return "none"
	case ev.Success():
		return strconv.Itoa(int(ev.Attempt)) + ":" + string(ev.Response.Body)
	default:
		return strconv.Itoa(int(ev.Attempt)) + ":" + ev.Failure.Message
	}
}

func answerOutcome(r *ledger.Response, f *ledger.Failure, attempt int32, settled, expires ledger.Time) outcome {
	o := said("FAILED")
	if r != nil {
		o = said("COMPLETED", flag(r.BodyOmitted, "body_omitted")).with("body", string(r.Body)).with("resource", r.ResourceType)
	} else if f != nil {
		o = o.with("message", f.Message)
	}
	return o.with("attempt", attempt).with("settled", at(settled)).with("expires", at(expires))
}

func refusalOutcome(r *ledger.Refusal, keptEvidence bool) outcome {
	return said(string(r.Reason), flag(keptEvidence, "+evidence")).with("field", r.Field)
}

var conditionNames = map[ledger.Condition]string{
	ledger.Absent: "ABSENT", ledger.Live: "LIVE", ledger.Abandoned: "ABANDONED", ledger.Held: "HELD", ledger.ConditionCompleted: "COMPLETED",
	ledger.ConditionFailedFinal: "FAILED_FINAL", ledger.ConditionFailedRetryable: "FAILED_RETRYABLE", ledger.Lapsed: "LAPSED",
	ledger.Expired: "EXPIRED",
}

func lookupOutcome(v ledger.View) outcome {
	e := v.Entry
	o := said(conditionNames[v.Condition], flag(e.Doubt, "doubt"), flag(e.Credit, "credit"))
	o = o.with("attempts", e.Last.Number).with("evidence", evidenceOf(e.Evidence)).with("expires", at(v.ExpiresAt)).with("forget", at(v.ForgetAt))
	o = o.with("lease", at(v.LeaseUntil)).with("resolutions", len(e.Resolutions)).with("answer", "none").with("holder", e.Last.Holder)
	if e.Current {
		o = o.with("current", e.Last.Number)
	} else {
		o = o.with("current", "none")
	}
	switch {
	case e.Response != nil:
		o = o.with("answer", string(e.Response.Body))
	case e.Failure != nil:
		o = o.with("answer", e.Failure.Message)
	}
	return o
}

// keptEvidence reports whether a request left evidence that was not there before.
func keptEvidence(before, after *ledger.Entry) bool {
	if after == nil || after.Evidence == nil {
		return false
	}
	return before == nil || before.Evidence == nil || before.Evidence.Report != after.Evidence.Report ||
		before.Evidence.Attempt != after.Evidence.Attempt
}

func sweepOutcome(closed, lapsed, forgotten, held int64) outcome {
	return said("SWEPT").with("closed", closed).with("lapsed", lapsed).with("forgotten", forgotten).with("held", held)
}

func unchanged(before, after *ledger.Entry) string {
	same := before == nil && after == nil || before != nil && after != nil && before.Revision == after.Revision
	return flag(same, "unchanged")
}
