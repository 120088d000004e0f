package linear

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/idemd/idemd/ledger"
)

// What operators do to an entry while its clients are at work, and docs/states.md on it.

// operable is a daemon as operators see it.
type operable interface {
	resolve(ctx context.Context, key string, c call) told
	// erase erases the whole tenant, and returns what became of each key that is asked for.
	erase(ctx context.Context, keys []string, force bool) map[string]told
}

type action byte

const (
	complete action = iota + 1
	fail
	release
)

func (a action) String() string { return [...]string{"", "complete", "fail", "release"}[a] }

// resolution is an operator's decision, as the entry remembers it.
type resolution struct {
	action  action
	attempt int8
	report  report
}

const mostResolutions = 24 // of an entry in one run, which is more than any has

type resolutions struct {
	n    int8
	list [mostResolutions]resolution
}

func (r *resolutions) add(d resolution) {
	r.list[r.n] = d
	r.n++
}

func (r resolutions) has(d resolution) bool {
	for i := range r.n {
		if r.list[i] == d {
			return true
		}
	}
	return false
}

// judgedLive is whether the claim is live, which an answer can tell where it was open.
func (e *entry) judgedLive(saysLive bool) bool {
	if e.pending() && e.current && e.lease == runningOrOver {
		e.lease = over
		if saysLive {
			e.lease = running
		}
	}
	return e.live()
}

func (e entry) resolve(c call, t told) (bool, entry) {
	refused := func(reason string) (bool, entry) { return t.what == reason || t.what == nobodyKnows, e }
	decision := resolution{c.action, c.attempt, c.report}
	settled := e.settled == success || e.settled == final || e.settled == retryable && c.action == release
	switch {
	case !e.known:
		return refused("ENTRY_NOT_FOUND")
	case e.erased:
		return refused("EXPIRED")
	case e.decided.has(decision) || settled && c.attempt == e.n && c.action != release && e.answer.report == c.report:
		return t.what == nobodyKnows || t.what == "ok" && (t.resumed || t.unsure > 0), e
	case c.attempt != e.n:
		return refused("CLAIM_LOST")
	case settled:
		return refused("ALREADY_SETTLED")
	case !c.force && e.judgedLive(t.what == "CLAIM_LIVE"):
		return refused("CLAIM_LIVE")
	}
	if c.action == release {
		e.current, e.lease, e.doubt, e.credit = false, running, true, true
	} else {
		e.settled, e.answer, e.lease, e.doubt, e.credit = c.report.kind, said{report: c.report}, running, false, false
	}
	e.decided.add(decision)
	return t.what == nobodyKnows || t.what == "ok" && (!t.resumed || t.unsure > 0), e
}

// erase is the erasure of the whole tenant, for one of its entries. What it was answered is still recognised where it is reported again.
func (e entry) erase(c call, t told) (bool, entry) {
	if e.known && !e.erased {
		if !c.force && e.judgedLive(t.what == "skipped") {
			return t.what == "skipped" || t.what == nobodyKnows, e
		}
		e.erased, e.lease, e.evidence = true, running, said{}
	}
	return t.what == "done" || t.what == nobodyKnows, e
}

// resolves has a client play the operator: looks, and decides on the attempt that it saw; or sends an earlier decision again.
func (c *client) resolves(ctx context.Context, d daemon, k *key) {
	operator, ok := d.(operable)
	if !ok {
		return
	}
	var decision call
	if earlier := c.decided[k]; len(earlier) > 0 && c.rng.IntN(3) == 0 {
		decision = earlier[c.rng.IntN(len(earlier))]
	} else {
		seen := c.looks(ctx, d, k)
		if seen.what != "view" || k.decisions.Add(1) > mostResolutions {
			return
		}
		decision = call{kind: resolve, attempt: seen.attempt, action: action(1 + c.rng.IntN(3)), force: c.rng.IntN(3) == 0}
		switch text := byte('a' + c.rng.IntN(2)); decision.action {
		case complete:
			decision.report = report{success, text}
		case fail:
			decision.report = report{final, text}
		case release: // carries no answer
		}
		c.decided[k] = append(c.decided[k], decision)
	}
	called := c.history.now()
	c.history.add(c.n, k.name, decision, operator.resolve(ctx, k.name, decision), called)
}

// erases has a client erase everything that its tenant has.
func (c *client) erases(ctx context.Context, d daemon) {
	operator, ok := d.(operable)
	if !ok {
		return
	}
	force := c.rng.IntN(2) == 0
	called := c.history.now()
	for key, t := range operator.erase(ctx, c.history.keys, force) {
		c.history.add(c.n, key, call{kind: erase, force: force}, t, called)
	}
}

func (d inProcess) resolve(ctx context.Context, key string, c call) told {
	return asked(ctx, func(ctx context.Context) (told, error) {
		r := ledger.ResolveRequest{
			Ref: d.ref(key), Attempt: int32(c.attempt), Reason: "proof", Force: c.force,
			Action: map[action]ledger.ResolveAction{complete: ledger.ResolveComplete, fail: ledger.ResolveFail, release: ledger.ResolveRelease}[c.action],
		}
		switch c.action {
		case complete:
			r.Response = &ledger.Response{Body: []byte{c.report.text}}
		case fail:
			r.Failure = &ledger.Failure{Code: 9, Message: string(c.report.text)}
		case release: // carries no answer
		}
		out, err := d.ledger.Resolve(ctx, ledger.Caller{}, r)
		var refusal *ledger.Refusal
		if errors.As(err, &refusal) && refusal.Reason == ledger.ReasonStoreUnavailable {
			err = ledger.ErrUnknown // it may have been done, and the look afterwards failed
		}
		return told{what: "ok", resumed: out.Resent}, err
	})
}

func (d inProcess) erase(ctx context.Context, keys []string, force bool) map[string]told {
	skipped := map[string]bool{}
	t := asked(ctx, func(ctx context.Context) (told, error) {
		r := ledger.EraseRequest{Tenant: tenant, CreatedUntil: time.UnixMicro(math.MaxInt64 / 2), Force: force}
		_, err := d.ledger.Erase(ctx, ledger.Caller{}, r, func(p ledger.EraseProgress) error {
			for _, s := range p.SkippedEntries {
				skipped[s.LogKey] = true
			}
			return nil
		})
		return told{what: "done"}, err
	})
	if t.what != "done" {
		t.what = nobodyKnows // of the others before the one that failed
	}
	out := map[string]told{}
	for _, key := range keys {
		one := t
		if one.what == "done" && skipped[d.ledger.LogKey(d.ref(key))] {
			one.what = "skipped"
		}
		out[key] = one
	}
	return out
}

func (c call) operatorString() string {
	if c.kind == erase {
		return fmt.Sprintf("erase, force %t", c.force)
	}
	return fmt.Sprintf("operator's %v %v of attempt %d, force %t", c.action, c.report, c.attempt, c.force)
}
