package sim

import (
	"fmt"
	"sync"
	"time"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// The ways in which a world can fail, by name.
const (
	effectWithoutGrant = "an effect without a grant"
	grantWithoutRow    = "a grant without a row"
	twoLiveClaims      = "two live claims"
	changedAnswer      = "an answer that changed"
	earlyForgetting    = "an early forgetting"
	waiterLeftBehind   = "a waiter left behind"
	unwarnedEffect     = "a second effect that nobody was warned of"
	answerOfNothing    = "an answer without an effect"
)

// auditor knows what a ledger promises, and nothing of how it keeps it.
type auditor struct {
	mu         sync.Mutex
	trace      []string
	complaints []string
	entries    map[string]*audited
	effects    map[string][]effect // by key
}

// audited is one life of one key: from its first grant until it may be forgotten.
type audited struct {
	incarnation int64
	attempts    map[int32]*grant
	answer      string // as it was first told
	// answerUntil and knownUntil are what the ledger said of how long it replays the answer, and knows the key.
	answerUntil, knownUntil time.Time
}

// grant is a claim as the wire carried it.
type grant struct {
	fence      int64
	leaseUntil time.Time
	reported   bool // its holder said, or may have said, what came of it
	warned     bool // previous_abandoned
	recoverer  bool
}

// effect is something that happened in the world.
type effect struct {
	incarnation, fence int64
	attempt            int32
	answer             string
}

func newAuditor() *auditor {
	return &auditor{entries: map[string]*audited{}, effects: map[string][]effect{}}
}

func (a *auditor) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteLocked(format, args...)
}

func (a *auditor) noteLocked(format string, args ...any) {
	a.trace = append(a.trace, fmt.Sprintf("%s  ", time.Now().UTC().Format("04:05.000000"))+fmt.Sprintf(format, args...))
}

func (a *auditor) complainLocked(name, format string, args ...any) {
	text := name + ": " + fmt.Sprintf(format, args...)
	a.complaints = append(a.complaints, text)
	a.noteLocked("*** %s", text)
}

func (a *auditor) complain(name, format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.complainLocked(name, format, args...)
}

// granted takes in a grant as a daemon sent it, whether or not it arrived. rowThere says whether the store has it.
func (a *auditor) granted(key string, c *idemv1.Claim, called time.Time, rowThere bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !rowThere {
		a.complainLocked(grantWithoutRow, "%s, attempt %d of %d", key, c.GetAttempt(), c.GetIncarnation())
	}
	e := a.entries[key]
	if e == nil || e.incarnation != c.GetIncarnation() {
		if e != nil && time.Now().Before(e.knownUntil) {
			a.complainLocked(earlyForgetting, "%s is to be known until %v, and was granted anew", key, e.knownUntil)
		}
		e = &audited{incarnation: c.GetIncarnation(), attempts: map[int32]*grant{}}
		a.entries[key] = e
	}
	until := c.GetLeaseExpireTime().AsTime()
	g := e.attempts[c.GetAttempt()]
	if g == nil {
		g = &grant{fence: c.GetFence(), warned: c.GetPreviousAbandoned(), recoverer: c.GetRecoverOnly()}
		e.attempts[c.GetAttempt()] = g
		a.newGrantLocked(key, e, c, until.Add(-c.GetLease().AsDuration()), called)
	}
	if g.fence != c.GetFence() {
		a.complainLocked(twoLiveClaims, "%s, attempt %d has the fences %d and %d", key, c.GetAttempt(), g.fence, c.GetFence())
	}
	g.leaseUntil = until
}

// newGrantLocked checks an attempt that was granted at an instant for the first time.
func (a *auditor) newGrantLocked(key string, e *audited, c *idemv1.Claim, at, called time.Time) {
	if e.answer != "" && called.Before(e.answerUntil) {
		a.complainLocked(changedAnswer, "%s was answered %q for good, and then attempt %d was granted", key, e.answer, c.GetAttempt())
	}
	for number, other := range e.attempts {
		if number < c.GetAttempt() && !other.reported && at.Before(other.leaseUntil) {
			a.complainLocked(twoLiveClaims, "%s: attempt %d was granted at %v while attempt %d had its claim until %v", key, c.GetAttempt(), at, number, other.leaseUntil)
		}
		if number > c.GetAttempt() && other.fence <= c.GetFence() {
			a.complainLocked(twoLiveClaims, "%s: attempt %d has the fence %d, and attempt %d has %d", key, number, other.fence, c.GetAttempt(), c.GetFence())
		}
	}
}

// extended takes in a renewal as a daemon sent it.
func (a *auditor) extended(key string, fence int64, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[key]; e != nil {
		if g := e.attempts[int32(fence-e.incarnation)]; g != nil {
			g.leaseUntil = until
		}
	}
}

// reporting takes in that a report is on its way: from now on its claim may be over.
func (a *auditor) reporting(key string, fence int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[key]; e != nil {
		if g := e.attempts[int32(fence-e.incarnation)]; g != nil {
			g.reported = true
		}
	}
}

// settled takes in what a report was told of the entry's times: an answer that is final, and until when it is kept.
func (a *auditor) settled(key string, incarnation int64, answer string, times *idemv1.EntryTimes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[key]
	if e == nil || e.incarnation != incarnation || times.GetSettleTime() == nil {
		return
	}
	a.answeredLocked(key, e, answer)
	settled := times.GetSettleTime().AsTime()
	e.answerUntil, e.knownUntil = settled.Add(retention), settled.Add(retention+tombstone)
	if times.GetExpireTime().AsTime().Before(e.answerUntil) || times.GetTombstoneExpireTime().AsTime().Before(e.knownUntil) {
		a.complainLocked(earlyForgetting, "%s was promised less than its policy says: %v", key, times)
	}
}

// replayed takes in an answer that a Begin was given.
func (a *auditor) replayed(key, answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.entries[key]; e != nil {
		a.answeredLocked(key, e, answer)
	}
}

func (a *auditor) answeredLocked(key string, e *audited, answer string) {
	if e.answer != "" && e.answer != answer {
		a.complainLocked(changedAnswer, "%s was answered %q, and then %q", key, e.answer, answer)
	}
	e.answer = answer
	for _, effect := range a.effects[key] {
		if effect.answer == answer {
			return
		}
	}
	if answer != declined {
		a.complainLocked(answerOfNothing, "%s is answered %q, which never happened", key, answer)
	}
}

// refused takes in that a Begin was refused for good, or told that there is no such entry.
func (a *auditor) refused(key, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entries[key]
	if e == nil {
		return
	}
	now := time.Now()
	if reason == "EXPIRED" && now.Before(e.answerUntil) || reason == "ENTRY_NOT_FOUND" && now.Before(e.knownUntil) {
		a.complainLocked(earlyForgetting, "%s was answered until %v and is known until %v, and was refused %s", key, e.answerUntil, e.knownUntil, reason)
	}
}

// happened takes in an effect, at the moment at which it cannot be undone any more.
func (a *auditor) happened(key string, x effect, mayRepeat bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noteLocked("effect on %s by attempt %d", key, x.attempt)
	e := a.entries[key]
	var g *grant
	if e != nil && e.incarnation == x.incarnation {
		g = e.attempts[x.attempt]
	}
	if g == nil || g.fence != x.fence || g.recoverer {
		a.complainLocked(effectWithoutGrant, "%s by attempt %d of %d", key, x.attempt, x.incarnation)
		return
	}
	for _, earlier := range a.effects[key] {
		if earlier.incarnation == x.incarnation && (!mayRepeat || !g.warned) {
			a.complainLocked(unwarnedEffect, "%s by attempt %d, after attempt %d", key, x.attempt, earlier.attempt)
		}
	}
	a.effects[key] = append(a.effects[key], x)
}
