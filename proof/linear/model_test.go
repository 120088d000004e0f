package linear

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// The model is docs/states.md once more, for one entry, written from the tables there and sharing no code with the ledger. Of time it knows
// whether the lease of the current attempt is over. Retention never passes here.
//
// A lease counts from when the store read its clock for the write, and others see the write when it is durable, a sync later. Where all leases
// are ended in between, one that was just granted is over from the start. So where they were ended since the call began, the model leaves
// open whether the new one is.

// report is what came of an attempt. The zero report is none.
type report struct {
	kind verdict
	text byte // of the answer, so that two reports of a kind can differ
}

type verdict byte

const (
	success verdict = iota + 1
	final
	retryable
	unknown
)

func (r report) String() string {
	names := map[verdict]string{0: "nothing", success: "success", final: "final", retryable: "retryable", unknown: "unknown"}
	if r.kind == 0 || r.kind == unknown {
		return names[r.kind]
	}
	return fmt.Sprintf("%s %c", names[r.kind], r.text)
}

// said is a report and whose it is.
type said struct {
	by     int8
	report report
}

const most = 64 // attempts of an entry

type attempt struct {
	id      int16
	recover bool
	ended   report // what ended it
}

// entry is the model's state. It is compared with ==.
type entry struct {
	known    bool
	print    byte
	settled  verdict // 0: pending
	answer   said
	current  bool // the last attempt holds the claim, or settled the entry
	lease    leaseState
	lapses   int16 // how often all leases were ended
	doubt    bool
	evidence said
	fresh    bool // the evidence came after the last attempt began
	runs     int8
	n        int8
	attempts [most]attempt
	credit   bool // an operator's, for one more run
	erased   bool
	decided  resolutions // by operators
}

type leaseState byte

const (
	running leaseState = iota
	over
	runningOrOver
)

type kind byte

const (
	begin kind = iota + 1
	tell       // Complete and Fail
	extend
	lookup
	lapse // all leases end
	resolve
	erase
)

// call is what a client asks.
type call struct {
	kind    kind
	id      int16 // of the attempt; of its claim where it reports or extends
	recover bool
	print   byte
	attempt int8 // the claim's
	report  report
	action  action // of an operator who resolves
	force   bool   // of an operator
	// lapses is how often all leases had been ended before the call was made.
	lapses int16
}

// told is what it is answered.
type told struct {
	// what is an outcome (granted, answer, in progress, ok, renewed, view), a reason of refusal, or "?": nobody knows.
	what        string
	attempt     int8
	resumed     bool
	doubt       bool
	recoverOnly bool
	settled     bool // the report settled the entry
	said        said // the answer, or the evidence that goes with a grant
	condition   string
	// unsure is how many writes within the call had an unknown outcome. Then it cannot be said which of the call's tries the answer is of.
	unsure int
	// resent is how many further times the call was sent, of which nobody knows what came.
	resent int
	// hides: there may have been such writes, and none of them happened. Then what another call of the same meaning did can be taken for this one's.
	hides bool
	token string
}

// vague reports whether it need not be told apart from what an earlier try, or the same call sent before, did.
func (t told) vague() bool { return t.unsure > 0 || t.hides }

const nobodyKnows = "?"

func modelOf(limit int8) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return entry{} },
		Step: func(state, input, output any) (bool, any) {
			ok, next := state.(entry).step(input.(call), output.(told), limit)
			return ok, next
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%v → %v", input, output) },
		DescribeState:     func(state any) string { return state.(entry).String() },
	}
}

// step says whether c can be answered t in state e, and what comes after. A call of unknown outcome has its effect.
func (e entry) step(c call, t told, limit int8) (bool, entry) {
	switch c.kind {
	case begin:
		return e.begin(c, t, limit)
	case tell:
		return e.report(c, t)
	case extend:
		return e.extend(c, t)
	case lookup:
		return e.look(t, limit)
	case resolve:
		return e.resolve(c, t)
	case erase:
		return e.erase(c, t)
	default:
		e.lapses++
		if e.pending() && e.current {
			e.lease = over
		}
		return true, e
	}
}

func (e entry) pending() bool { return e.known && e.settled == 0 }
func (e entry) live() bool    { return e.pending() && e.current && e.lease == running }

// given is the lease that a call gives.
func (e entry) given(c call) leaseState {
	if e.lapses > c.lapses {
		return runningOrOver
	}
	return running
}

// renew renews the lease. One that runs is never the shorter for it, however late the call had its effect.
func (e *entry) renew(c call) {
	if e.lease != running {
		e.lease = e.given(c)
	}
}

// byOperator reports whether an operator settled the entry.
func (e entry) byOperator() bool {
	return e.settled != 0 && e.answer.by == 0 && e.answer.report.kind != 0
}

// attemptOf is the number of the attempt with that id, 0 if there is none, and whether it is the current one.
func (e entry) attemptOf(id int16) (int8, bool) {
	for i := range e.n {
		if e.attempts[i].id == id {
			return i + 1, e.current && i+1 == e.n
		}
	}
	return 0, false
}

func (e entry) begin(c call, t told, limit int8) (bool, entry) {
	own, current := e.attemptOf(c.id)
	capped := e.runs >= limit && !e.credit || e.n >= most
	refused := func(reason string) (bool, entry) { return t.what == reason || t.what == nobodyKnows, e }
	answered := func() (bool, entry) {
		return t.what == nobodyKnows || t.what == "answer" && t.said == e.answer, e
	}
	switch {
	case !e.known && c.recover:
		return refused("ENTRY_NOT_FOUND")
	case !e.known:
		return e.grant(c, t)
	case e.print != c.print:
		return refused("KEY_REUSED")
	case e.erased:
		return refused("EXPIRED")
	case e.settled == success || e.settled == final:
		return answered()
	case e.settled == retryable && (current || own == 0 && (c.recover || capped)):
		return answered()
	case own != 0 && !current:
		return refused("CLAIM_LOST")
	case current:
		e.renew(c)
		return t.what == nobodyKnows || t.what == "granted" && (t.resumed || t.vague()) && e.granted(c, t), e
	case e.settled == retryable:
		return e.grant(c, t)
	case e.live() || t.what == "in progress" && e.current: // the latter is grace: the holder comes back first
		return t.what == nobodyKnows || t.what == "in progress" && t.attempt == e.n, e
	case !c.recover && capped:
		return refused("ABANDONED")
	default:
		return e.grant(c, t)
	}
}

// grant makes the next attempt.
func (e entry) grant(c call, t told) (bool, entry) {
	if e.pending() && e.current {
		e.doubt = true
	}
	if !e.known {
		e.known, e.print = true, c.print
	}
	e.attempts[e.n] = attempt{id: c.id, recover: c.recover}
	e.n++
	switch {
	case c.recover:
	case e.credit:
		e.credit = false
	default:
		e.runs++
	}
	e.settled, e.answer, e.current, e.lease, e.fresh = 0, said{}, true, e.given(c), false
	return t.what == nobodyKnows || t.what == "granted" && (!t.resumed || t.vague()) && e.granted(c, t), e
}

// granted reports whether t is what a holder of the last attempt is told.
func (e entry) granted(c call, t told) bool {
	evidence := said{}
	if e.doubt {
		evidence = e.evidence
	}
	return t.attempt == e.n && t.recoverOnly == c.recover && t.doubt == e.doubt && t.said == evidence
}

func (e entry) report(c call, t told) (bool, entry) {
	if !e.known {
		return t.what == "ENTRY_NOT_FOUND" || t.what == nobodyKnows, e
	}
	if c.attempt > e.n || e.attempts[c.attempt-1].id != c.id {
		return false, e // it has a token of a claim that there never was
	}
	a := &e.attempts[c.attempt-1]
	holder := e.current && c.attempt == e.n
	refused := func(reason string) bool { return t.what == reason || t.what == nobodyKnows }
	switch {
	case a.ended == c.report || e.byOperator() && e.answer.report == c.report:
		return t.what == nobodyKnows || t.what == "ok" && (t.resumed || t.vague()) && t.attempt == c.attempt, e
	case e.erased:
		return refused("EXPIRED"), e
	case e.settled == success && !holder:
		return refused("CLAIM_LOST"), e
	case (e.settled == success || e.settled == final) && holder:
		return refused("ALREADY_SETTLED"), e
	case e.settled != 0 || !holder:
		e.keepEvidence(said{c.attempt, c.report})
		return refused("CLAIM_LOST"), e
	}
	settles := c.report.kind
	if settles == retryable && e.doubt && (!a.recover || e.evidence.report.kind == success && e.fresh) {
		settles = unknown // it cannot speak for the others
	}
	a.ended = c.report
	switch settles {
	case unknown:
		e.current, e.lease, e.doubt = false, running, true
	case retryable:
		e.doubt = false
		fallthrough
	default:
		e.settled, e.answer, e.lease = settles, said{c.attempt, c.report}, running
	}
	ok := t.what == "ok" && t.attempt == c.attempt && (t.vague() || !t.resumed && t.settled == (settles != unknown))
	return ok || t.what == nobodyKnows, e
}

// keepEvidence takes in a report that came too late.
func (e *entry) keepEvidence(s said) {
	if have := e.evidence; have == s || have.report.kind == success && s.report.kind != success {
		return
	}
	e.evidence, e.fresh = s, true
	if s.report.kind != success {
		return
	}
	e.doubt = true
	if e.settled == retryable {
		e.settled, e.answer, e.current = 0, said{}, false
	}
}

func (e entry) extend(c call, t told) (bool, entry) {
	if !e.known || c.attempt > e.n || e.attempts[c.attempt-1].id != c.id {
		return false, e
	}
	holder := e.current && c.attempt == e.n
	want := "renewed"
	switch {
	case e.erased:
		want = "EXPIRED"
	case !holder || e.settled == retryable:
		want = "CLAIM_LOST"
	case e.settled != 0:
		want = "ALREADY_SETTLED"
	default:
		e.renew(c)
	}
	return t.what == want || t.what == nobodyKnows, e
}

// look is a Lookup. What it shows of a lease settles what was open.
func (e entry) look(t told, limit int8) (bool, entry) {
	e.judgedLive(t.condition == "live")
	if !e.known {
		return t.what == "ENTRY_NOT_FOUND", e
	}
	shown := e.answer
	if e.erased {
		shown = said{}
	}
	return t.what == "view" && t.attempt == e.n && t.condition == e.condition(limit) && t.said == shown && t.doubt == e.doubt, e
}

func (e entry) condition(limit int8) string {
	switch {
	case e.erased:
		return "expired"
	case e.settled != 0:
		return map[verdict]string{success: "completed", final: "failed", retryable: "retryable"}[e.settled]
	case e.live():
		return "live"
	case e.runs >= limit:
		return "held"
	default:
		return "abandoned"
	}
}

func (e entry) String() string {
	if !e.known {
		return "no entry"
	}
	return fmt.Sprintf("%s, attempt %d (current %t), doubt %t, answer %v, evidence %v", e.condition(most), e.n, e.current, e.doubt, e.answer, e.evidence)
}

func (s said) String() string { return fmt.Sprintf("%v by %d", s.report, s.by) }

func (c call) String() string {
	switch c.kind {
	case begin:
		return fmt.Sprintf("begin id %d, recover %t, print %d", c.id, c.recover, c.print)
	case tell:
		return fmt.Sprintf("attempt %d (id %d) reports %v", c.attempt, c.id, c.report)
	case extend:
		return fmt.Sprintf("attempt %d (id %d) extends", c.attempt, c.id)
	case lookup:
		return "lookup"
	case resolve, erase:
		return c.operatorString()
	default:
		return "the leases end"
	}
}

func (t told) String() string {
	text := fmt.Sprintf("%s %d", t.what, t.attempt)
	if t.condition != "" {
		text += " " + t.condition
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{{t.resumed, "resumed"}, {t.doubt, "doubt"}, {t.recoverOnly, "recover-only"}, {t.settled, "settled"}, {t.vague(), "unsure"}} {
		if flag.set {
			text += ", " + flag.name
		}
	}
	if t.said != (said{}) {
		text += ", " + t.said.String()
	}
	return text
}
