package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/idemd/idemd/ledger"
)

// table plays a recording against the pure decision table. Rows are what the recorded writes made of them; what the table says to a call on the row as it
// stood at each reading is all that the call may write, and all that it may be answered.
//
// Two things that a verdict rests on are not in a recording. The takeover floor is in the daemon's memory: the table is asked with none and with one of just
// now, so a takeover or IN_PROGRESS passes where an abandoned claim is current, and nowhere else; how long IN_PROGRESS says to wait is left out. Faults happen
// above the recording: a call that ends without a verdict (STORE_UNAVAILABLE, DRAINING, its caller gone) passes whatever the table says, but not what it wrote.
type table struct {
	start  ledger.Time
	secret *ledger.Secret
	rules  *ledger.Rules // of the one policy there is
	rows   map[ledger.ScopeID]*ledger.Entry
	calls  map[int]*call
	// looks are the readings that a daemon made for those who wait at that very instant.
	looks  map[ledger.ScopeID][]look
	sweeps map[string]bool // the writes that are a sweep's to make
	script []string
}

type look struct {
	at  ledger.Time
	row *ledger.Entry
}

// call is one that is under way, or was: a write of it may land later.
type call struct {
	line  string // as in a script
	scope ledger.ScopeID
	req   ledger.Request
	waits bool
	// emitted are the verdicts with a write, by the write.
	emitted map[string]ledger.Verdict
	// says is what the call may be answered by now.
	says []string
}

// undecided are the answers that are no verdict.
var undecided = map[string]bool{
	string(ledger.ReasonStoreUnavailable): true, string(ledger.ReasonDraining): true,
	context.Canceled.Error(): true, context.DeadlineExceeded.Error(): true,
}

// replayTable returns the recording as a script, a line for each call that was answered, as far as it agrees with the table; and the first line that does
// not, with what the table says: "" if there is none.
func replayTable(steps []step) (script []string, disagreement string) {
	t := &table{
		start: steps[0].At, rows: map[ledger.ScopeID]*ledger.Entry{}, calls: map[int]*call{}, looks: map[ledger.ScopeID][]look{}, sweeps: map[string]bool{},
	}
	for _, s := range steps {
		if disagreement := t.step(s); disagreement != "" {
			return t.script, disagreement
		}
	}
	return t.script, ""
}

func (t *table) step(s step) (disagreement string) {
	switch {
	case s.Began != nil:
		return t.began(s)
	case s.Ended != nil:
		return t.ended(s)
	case s.Get != nil:
		t.read(s)
	case s.Write != nil:
		return t.write(s)
	case s.Page != nil:
		t.page(s)
	case s.Forget != nil:
		return t.forget(s)
	case s.PutSetting != nil && s.Answer == true:
		return t.put(s.PutSetting.Setting)
	}
	return ""
}

func (t *table) put(setting ledger.Setting) (disagreement string) {
	var err error
	switch setting.Kind {
	case "secret":
		t.secret, err = ledger.NewSecret(setting.Body)
	case "policy":
		var p ledger.Policy
		err = json.Unmarshal(setting.Body, &p)
		t.rules = p.Rules(ledger.Clamp{})
	}
	if err != nil {
		return fmt.Sprintf("the setting %s cannot be read: %v", setting.Kind, err)
	}
	return ""
}

func (t *table) env(at, floor ledger.Time) ledger.Env {
	return ledger.Env{Now: at, Floor: floor, Rules: t.rules}
}

func (t *table) began(s step) (disagreement string) {
	c, err := t.callOf(s.Began)
	if err != nil {
		return fmt.Sprintf("%s: call %d: %v", t.time(s.At), s.Call, err)
	}
	t.calls[s.Call] = c
	if w := ledger.Speculate(c.req, t.env(0, 0)); w != nil {
		// The outcome that goes with a path that needs no reading.
		outcome := ledger.Granted
		switch c.req.(type) {
		case ledger.ReportDecision:
			outcome = ledger.Done
		case ledger.ExtendDecision:
			outcome = ledger.Renewed
		}
		c.emitted[canonical(w)] = ledger.Verdict{Outcome: outcome, Write: w}
	}
	t.hear(c, s.At)
	return ""
}

// read is a reading: a call's own, upon which it decides anew, or a look for all who wait.
func (t *table) read(s step) {
	row := t.rows[*s.Get]
	if c := t.calls[s.Call]; c != nil {
		c.says = nil
		t.decide(c, row, s.At)
		t.hear(c, s.At)
		return
	}
	heard := t.looks[*s.Get]
	if len(heard) > 0 && heard[0].at != s.At {
		heard = nil
	}
	t.looks[*s.Get] = append(heard, look{s.At, row})
	for _, c := range t.calls {
		if c.scope == *s.Get && c.waits {
			t.decide(c, row, s.At)
		}
	}
}

// hear takes in what was found for those who wait at this instant: a call that joins them may be told.
func (t *table) hear(c *call, at ledger.Time) {
	for _, l := range t.looks[c.scope] {
		if c.waits && l.at == at {
			t.decide(c, l.row, at)
		}
	}
}

func (t *table) decide(c *call, row *ledger.Entry, at ledger.Time) {
	for _, floor := range []ledger.Time{0, at} {
		v := ledger.Decide(row, c.req, t.env(at, floor))
		if v.Write != nil {
			c.emitted[canonical(v.Write)] = v
		} else {
			c.may(t.verdict(c, v, row, at))
		}
	}
}

func (c *call) may(answers []string) {
	for _, answer := range answers {
		if !slices.Contains(c.says, answer) {
			c.says = append(c.says, answer)
		}
	}
}

// write compares a write with those that the table emitted, and its answer with what [ledger.Write.Apply] makes of the row.
func (t *table) write(s step) (disagreement string) {
	w := canonical(s.Write)
	c := t.calls[s.Call]
	if c == nil && !t.sweeps[w] && !t.late(s.Write.Scope, w) {
		return fmt.Sprintf("%s nobody's: writes %s\nwhich the table emitted for no call and for no sweep", t.time(s.At), w)
	}
	v, emitted := ledger.Verdict{}, false
	if c != nil {
		if v, emitted = c.emitted[w]; !emitted {
			return fmt.Sprintf("%s %s: writes %s\nthe table says %s", t.time(s.At), c.line, w, c.allowed())
		}
	}
	row, applied := s.Write.Apply(t.rows[s.Write.Scope], s.At)
	written := ledger.Written{Applied: applied}
	if applied {
		t.rows[s.Write.Scope] = row
		written.Stamps = ledger.StampsOf(row, s.At)
		if c != nil {
			c.may(t.verdict(c, v, row, s.At))
		}
	}
	if canonical(written) != canonical(s.Answer) {
		return fmt.Sprintf("%s a write %s\nis answered %s, and comes to %s", t.time(s.At), w, canonical(s.Answer), canonical(written))
	}
	return ""
}

// late reports whether a write may be one that a call was told was of unknown outcome. It landed without its call's context.
func (t *table) late(scope ledger.ScopeID, w string) bool {
	for _, c := range t.calls {
		if _, emitted := c.emitted[w]; emitted && c.scope == scope {
			return true
		}
	}
	return false
}

// page lets a sweep write what the table says of the rows that it finds.
func (t *table) page(s step) {
	for _, row := range t.rows {
		if s.Page.Order == ledger.ByDue && row.DueAt <= s.At {
			if _, w := ledger.DecideSweep(row, s.At); w != nil {
				t.sweeps[canonical(w)] = true
			}
		}
	}
}

func (t *table) forget(s step) (disagreement string) {
	for _, gone := range s.Forget {
		row := t.rows[gone.Scope]
		if row == nil || row.Incarnation != gone.Incarnation || row.Revision != gone.Revision {
			continue
		}
		if action, _ := ledger.DecideSweep(row, s.At); action != ledger.SweepForget {
			return fmt.Sprintf("%s forgets %s, of which the table says that it is to stay until %s", t.time(s.At), row.Ref.Key, t.time(row.ForgetAt()))
		}
		delete(t.rows, gone.Scope)
	}
	return ""
}

func (t *table) ended(s step) (disagreement string) {
	c := t.calls[s.Call]
	answer, err := t.answer(s.Ended, c)
	line := fmt.Sprintf("%s %s -> %s", t.time(s.At), c.line, answer)
	if err != nil {
		return fmt.Sprintf("%s: %v", line, err)
	}
	if !undecided[s.Ended.Refused] && !slices.Contains(c.says, answer) {
		return fmt.Sprintf("%s\nthe table says %s", line, c.allowed())
	}
	t.script, c.waits = append(t.script, line), false
	return ""
}

func (c *call) allowed() string {
	if len(c.says) == 0 {
		return "nothing, without a write"
	}
	return strings.Join(c.says, "\nor ")
}

// canonical is how two things are compared: "none" can be written in two ways.
func canonical(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	decoded, err := decodeAnswer(out)
	if err != nil {
		return err.Error()
	}
	out, _ = json.Marshal(decoded) // it was JSON before
	return string(out)
}

// TestARecordingReplaysAgainstTheDecisionTable: every write and every answer of some worlds, or of the one whose recording SIM_REPLAY names, is the table's.
func TestARecordingReplaysAgainstTheDecisionTable(t *testing.T) {
	t.Parallel()
	paths := []string{os.Getenv("SIM_REPLAY")}
	if given := paths[0]; given == "" {
		paths = nil
		for range 20 {
			seed := rand.Uint64()
			t.Logf("world %d", seed)
			paths = append(paths, recorded(t, seed, fault{}))
		}
	}
	for _, path := range paths {
		steps := decode(t, path)
		script, disagreement := replayTable(steps)
		if disagreement != "" || len(paths) == 1 {
			t.Logf("as a script:\n%s", strings.Join(script, "\n"))
		}
		if disagreement != "" {
			t.Errorf("line %d: %s", len(script)+1, disagreement)
		}
		if len(script) == 0 {
			t.Error("no call was replayed")
		}
	}
}

// TestAReplayedRecordingFindsWhatTheDecisionTableDoesNotSay: in worlds in which the ledger acts on what is not so, the replay says at which call.
func TestAReplayedRecordingFindsWhatTheDecisionTableDoesNotSay(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]struct {
		store func(ledger.Store) ledger.Store
		// found is in what the replay says.
		found []string
	}{
		"a live claim is taken over":     {hasty, []string{": writes", "the table says IN_PROGRESS"}},
		"another answer is told":         {scribbling, []string{"-> COMPLETED body=\"declined\"", "the table says COMPLETED"}},
		"a grant is not kept":            {forgetfulOfGrants, []string{"-> GRANTED", "the table says"}},
		"an answer is forgotten early":   {forgetful, []string{"forgets", "is to stay until"}},
		"a settled entry is in progress": {stale, []string{"-> IN_PROGRESS", "the table says COMPLETED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				_, disagreement := replayTable(decode(t, recorded(t, seed, fault{store: wrong.store})))
				found := true
				for _, part := range wrong.found {
					found = found && strings.Contains(disagreement, part)
				}
				if found {
					t.Logf("world %d: %s", seed, disagreement)
					return
				}
				if disagreement != "" {
					t.Logf("world %d, by another sign: %s", seed, disagreement)
				}
			}
			t.Error("20 worlds, and the replay never says so")
		})
	}
}
