package ledger_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// ledgerEngine runs scripts through a Ledger on the reference store.
type ledgerEngine struct {
	*world
	model  *storetest.Model
	faulty *storetest.Faulty
	ledger *ledger.Ledger
	tokens map[string][]byte
}

func newLedgerEngine(t *testing.T, path string) *ledgerEngine {
	t.Helper()
	e := &ledgerEngine{world: newWorld(t, path), tokens: map[string][]byte{}}
	e.model = storetest.NewModel(e.clock, e.margin)
	e.faulty = storetest.NewFaulty(e.model, nil)
	// The daemon has been up for long, so that no takeover waits for holders to come back, unless the script says so.
	e.clock.Advance(-30 * 24 * time.Hour)
	e.restart(t)
	e.clock.Set(epoch)
	return e
}

func (e *ledgerEngine) restart(t *testing.T) {
	t.Helper()
	l, err := ledger.New(t.Context(), ledger.Config{Store: e.faulty, SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	e.ledger = l
}

func (e *ledgerEngine) outage(t *testing.T) {
	t.Helper()
	e.faulty.Down()
	if err := e.ledger.Ready(t.Context()); err == nil {
		t.Fatal("the store is away, and the ledger is ready")
	}
	e.faulty.Up()
	if err := e.ledger.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (e *ledgerEngine) row(t *testing.T, ref ledger.Ref) *ledger.Entry {
	t.Helper()
	reading, err := e.model.Get(t.Context(), e.ledger.Secret().Scope(ref))
	if err != nil {
		t.Fatal(err)
	}
	return reading.Entry
}

func (e *ledgerEngine) token(t *testing.T, c command) []byte {
	t.Helper()
	name := c.args["token"]
	if name == "forged" {
		return []byte(strings.Repeat("x", 45))
	}
	token, ok := e.tokens[name]
	if !ok {
		t.Fatalf("%s: attempt %q was never granted", c.where, name)
	}
	return token
}

func (e *ledgerEngine) run(t *testing.T, c command) outcome {
	t.Helper()
	switch c.verb {
	case "T":
		e.clock.Advance(parseMove(t, c))
	case "store":
	case "restart":
		e.restart(t)
	case "outage":
		e.outage(t)
	case "policy":
		if _, err := e.ledger.PutPolicy(t.Context(), policyOf(t, c), -1); err != nil {
			t.Fatalf("%s: %v", c.where, err)
		}
	case "rows":
		return said(itoa(e.model.Len()))
	case "sweep":
		p, err := e.ledger.Sweep(t.Context(), ledger.SweepRequest{}, nil)
		return e.or(t, c, err, false, func() outcome { return sweepOutcome(p.Closed, p.Lapsed, p.Forgotten, p.Held) })
	case "erase":
		p, err := e.ledger.Erase(t.Context(), ledger.Caller{}, ledger.EraseRequest{
			Tenant: c.word(0), CreatedUntil: e.clock.Now().Wall(), Force: c.has("force"),
		}, nil)
		return e.or(t, c, err, false, func() outcome { return said("DONE").with("erased", p.Erased).with("skipped", p.Skipped) })
	case "apply":
		p, err := e.ledger.ApplyPolicy(t.Context(), ledger.ApplyRequest{Tenant: c.arg("tenant", "*"), Operation: c.word(0)}, nil)
		return e.or(t, c, err, false, func() outcome { return said("DONE").with("changed", p.Changed) })
	default:
		return e.request(t, c)
	}
	return outcome{}
}

// request runs what is about one entry.
func (e *ledgerEngine) request(t *testing.T, c command) outcome {
	t.Helper()
	ref, ctx := refOf(c), t.Context()
	caller := ledger.Caller{Principal: c.arg("as", ""), Operator: c.has("operator")}
	before := e.row(t, ref)
	var show func() outcome
	var err error
	switch c.verb {
	case "begin":
		var r ledger.BeginResult
		r, err = e.ledger.Begin(ctx, caller, ledger.BeginRequest{
			Ref: ref, Fingerprints: fingerprintsOf(c), AttemptID: uuidOf(c.args["attempt"]), Lease: c.duration(t, "lease"),
			Holder: c.arg("by", ""), Mode: modeOf(c),
		})
		show = func() outcome { return e.begun(t, c, ref, r) }
	case "complete", "fail":
		var r ledger.ReportResult
		if c.verb == "complete" {
			r, err = e.ledger.Complete(ctx, caller, ledger.CompleteRequest{Ref: ref, Token: e.token(t, c), Response: responseOf(c)})
		} else {
			r, err = e.ledger.Fail(ctx, caller, ledger.FailRequest{Ref: ref, Token: e.token(t, c), Failure: failureOf(c)})
		}
		show = func() outcome { return said("OK", flag(r.Resent, "unchanged")).with("attempt", r.Attempt) }
	case "extend":
		var r ledger.ExtendResult
		r, err = e.ledger.Extend(ctx, caller, ledger.ExtendRequest{Ref: ref, Token: e.token(t, c), Lease: c.duration(t, "lease")})
		show = func() outcome { return said("RENEWED").with("lease", r.Lease).with("until", at(r.LeaseUntil)) }
	case "resolve":
		err = e.resolve(ctx, t, c, ref, caller)
		show = func() outcome { return said("OK", unchanged(before, e.row(t, ref))) }
	case "lookup":
		var v ledger.View
		v, err = e.ledger.Lookup(ctx, caller, ref)
		show = func() outcome { return lookupOutcome(v) }
	default:
		t.Fatalf("%s: unknown verb %q", c.where, c.verb)
	}
	return e.or(t, c, err, keptEvidence(before, e.row(t, ref)), show)
}

func (e *ledgerEngine) resolve(ctx context.Context, t *testing.T, c command, ref ledger.Ref, caller ledger.Caller) error {
	t.Helper()
	r := ledger.ResolveRequest{Ref: ref, Attempt: int32(number(t, c, "attempt")), Reason: c.arg("reason", "because"), Force: c.has("force")}
	switch c.word(2) {
	case "complete":
		r.Action, r.Response = ledger.ResolveComplete, responseOf(c)
	case "fail":
		r.Action, r.Failure = ledger.ResolveFail, failureOf(c)
	default:
		r.Action = ledger.ResolveRelease
	}
	_, err := e.ledger.Resolve(ctx, caller, r)
	return err
}

func (e *ledgerEngine) begun(t *testing.T, c command, ref ledger.Ref, r ledger.BeginResult) outcome {
	t.Helper()
	switch {
	case r.Granted != nil:
		g := r.Granted
		e.tokens[c.args["attempt"]] = g.Token
		e.granted(t, c, e.ledger.Secret().Scope(ref), g.Resumed, g.Fence)
		return grantOutcome(g.Resumed, g.PreviousAbandoned, g.RecoverOnly, g.OnCredit, g.Attempt, g.Incarnation, g.Fence, g.Lease, g.Evidence)
	case r.Completed != nil:
		a := r.Completed
		return answerOutcome(a.Response, nil, a.Attempt, a.SettledAt, a.ExpiresAt)
	case r.Failed != nil:
		a := r.Failed
		return answerOutcome(nil, a.Failure, a.Attempt, a.SettledAt, a.ExpiresAt)
	default:
		p := r.InProgress
		return said("IN_PROGRESS").with("attempt", p.Attempt).with("holder", p.Holder).with("retry_after", p.RetryAfter)
	}
}

// or shows a refusal, or what show says.
func (e *ledgerEngine) or(t *testing.T, c command, err error, kept bool, show func() outcome) outcome {
	t.Helper()
	if err == nil {
		return show()
	}
	var refusal *ledger.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("%s: %v", c.where, err)
	}
	return refusalOutcome(refusal, kept)
}
