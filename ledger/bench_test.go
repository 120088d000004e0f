package ledger_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// bench is a ledger on the reference store, behind a store with which things can go wrong, on a clock that the test moves.
type bench struct {
	t      *testing.T
	clock  *storetest.Clock
	model  *storetest.Model
	faulty *storetest.Faulty
	ledger *ledger.Ledger
}

// newBench returns one whose daemon has been up for long: nothing waits for holders to come back.
func newBench(t *testing.T) *bench {
	t.Helper()
	clock := storetest.NewClock(epoch.Add(-30 * 24 * time.Hour))
	b := benchOn(t, clock, storetest.NewModel(clock, 0))
	clock.Set(epoch)
	return b
}

// benchOn opens one more daemon on a store.
func benchOn(t *testing.T, clock *storetest.Clock, model *storetest.Model) *bench {
	t.Helper()
	b := &bench{t: t, clock: clock, model: model, faulty: storetest.NewFaulty(model, nil)}
	b.ledger = b.open(ledger.Config{})
	return b
}

// open opens a ledger on the bench's store, where the config says nothing else.
func (b *bench) open(cfg ledger.Config) *ledger.Ledger {
	b.t.Helper()
	if cfg.Store == nil {
		cfg.Store = b.faulty
	}
	if cfg.SweepEvery == 0 {
		cfg.SweepEvery = -1
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := ledger.New(b.t.Context(), cfg)
	b.must(err)
	return l
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) ref(key string) ledger.Ref {
	return ledger.Ref{Tenant: "acme", Operation: "charge", Key: key}
}

func (b *bench) policy(p ledger.Policy) {
	b.t.Helper()
	_, err := b.ledger.PutPolicy(b.t.Context(), p, -1)
	b.must(err)
}

// beginRequest is a Begin for a key of acme's charge by an attempt that is named.
func (b *bench) beginRequest(key, attempt string) ledger.BeginRequest {
	return ledger.BeginRequest{Ref: b.ref(key), Fingerprints: fingerprintsOf(command{}), AttemptID: uuidOf(attempt), Holder: "A"}
}

// held is a claim and what it is on.
type claim struct {
	ref ledger.Ref
	*ledger.Grant
}

// begin begins and must be granted.
func (b *bench) begin(key, attempt string) claim {
	b.t.Helper()
	r, err := b.ledger.Begin(b.t.Context(), ledger.Caller{}, b.beginRequest(key, attempt))
	b.must(err)
	if r.Granted == nil {
		b.t.Fatalf("begin %s by %s: not granted: %+v", key, attempt, r)
	}
	return claim{b.ref(key), r.Granted}
}

// tryBegin begins and returns whatever comes of it.
func (b *bench) tryBegin(key, attempt string) (ledger.BeginResult, error) {
	b.t.Helper()
	return b.ledger.Begin(b.t.Context(), ledger.Caller{}, b.beginRequest(key, attempt))
}

func (b *bench) tryComplete(c claim, body string) (ledger.ReportResult, error) {
	b.t.Helper()
	return b.ledger.Complete(b.t.Context(), ledger.Caller{}, ledger.CompleteRequest{
		Ref: c.ref, Token: c.Token, Response: &ledger.Response{Body: []byte(body)},
	})
}

func (b *bench) complete(c claim, body string) ledger.ReportResult {
	b.t.Helper()
	r, err := b.tryComplete(c, body)
	b.must(err)
	return r
}

func (b *bench) tryFail(c claim, d ledger.Disposition) (ledger.ReportResult, error) {
	b.t.Helper()
	return b.ledger.Fail(b.t.Context(), ledger.Caller{}, ledger.FailRequest{
		Ref: c.ref, Token: c.Token, Failure: &ledger.Failure{Code: 14, Message: "no", Disposition: d},
	})
}

func (b *bench) fail(c claim, d ledger.Disposition) {
	b.t.Helper()
	_, err := b.tryFail(c, d)
	b.must(err)
}

func (b *bench) tryExtend(c claim) (ledger.ExtendResult, error) {
	b.t.Helper()
	return b.ledger.Extend(b.t.Context(), ledger.Caller{}, ledger.ExtendRequest{Ref: c.ref, Token: c.Token})
}

func (b *bench) resolve(ref ledger.Ref, action ledger.ResolveAction, attempt int32, force bool) ledger.Resolved {
	b.t.Helper()
	r := ledger.ResolveRequest{Ref: ref, Action: action, Attempt: attempt, Reason: "test", Force: force}
	switch action {
	case ledger.ResolveComplete:
		r.Response = &ledger.Response{Body: []byte("o")}
	case ledger.ResolveFail:
		r.Failure = &ledger.Failure{Code: 9, Message: "o"}
	case ledger.ResolveRelease:
	}
	v, err := b.ledger.Resolve(b.t.Context(), ledger.Caller{Principal: "olga"}, r)
	b.must(err)
	return v
}

func (b *bench) lookup(key string) ledger.View {
	b.t.Helper()
	v, err := b.ledger.Lookup(b.t.Context(), ledger.Caller{}, b.ref(key))
	b.must(err)
	return v
}

func (b *bench) row(key string) *ledger.Entry {
	b.t.Helper()
	reading, err := b.model.Get(b.t.Context(), b.ledger.Secret().Scope(b.ref(key)))
	b.must(err)
	return reading.Entry
}

func (b *bench) sweep() ledger.SweepProgress {
	b.t.Helper()
	p, err := b.ledger.Sweep(b.t.Context(), ledger.SweepRequest{}, nil)
	b.must(err)
	return p
}

// reasonOf is the reason of a refusal, "" of anything else.
func reasonOf(err error) ledger.Reason {
	var r *ledger.Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return ""
}

func (b *bench) wantReason(err error, want ledger.Reason) {
	b.t.Helper()
	if reasonOf(err) != want {
		b.t.Errorf("got %v, want %s", err, want)
	}
}
