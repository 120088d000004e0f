package linear

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/ledger"
)

// inProcess is a ledger in this process, called as the server calls it.
type inProcess struct{ ledger *ledger.Ledger }

// operation has a policy with so few runs that histories come to their end.
const (
	tenant    = "proof"
	operation = "linear"
	fewRuns   = 5
)

// open starts a daemon on a store. It notes, call by call, whether a write had an unknown outcome.
func open(t testing.TB, store ledger.Store) inProcess {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		l, err := ledger.New(ctx, ledger.Config{Store: noting{store}, SweepEvery: -1})
		if err == nil {
			_, err = l.PutPolicy(ctx, ledger.Policy{
				Tenant: tenant, Operation: operation, MaxAttempts: fewRuns, Lease: lease, Horizons: ledger.Horizons{ClientRetry: 1000 * time.Hour},
			}, -1)
		}
		if err == nil {
			_, err = l.GetPolicy(ctx, tenant, operation, false) // reads it again, so that it holds from now on
		}
		if err == nil {
			return inProcess{l}
		}
		if ctx.Err() != nil {
			t.Fatalf("a ledger: %v", err)
		}
	}
}

// noting tells the call that a write was made for that its outcome is unknown.
type noting struct{ ledger.Store }

type unsureKey struct{}

func (n noting) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	written, err := n.Store.Write(ctx, w)
	if err != nil && !errors.Is(err, ledger.ErrUnavailable) && !errors.Is(err, ledger.ErrContended) {
		if unsure, ok := ctx.Value(unsureKey{}).(*atomic.Int32); ok {
			unsure.Add(1)
		}
	}
	return written, err
}

// asked carries out one call and turns its error into what was told.
func asked(ctx context.Context, do func(context.Context) (told, error)) told {
	unsure := new(atomic.Int32)
	t, err := do(context.WithValue(ctx, unsureKey{}, unsure))
	t.unsure = int(unsure.Load())
	var refusal *ledger.Refusal
	switch {
	case err == nil:
	case errors.As(err, &refusal) && refusal.Reason != ledger.ReasonStoreUnavailable:
		t.what = string(refusal.Reason)
	case errors.As(err, &refusal) && !errors.Is(err, ledger.ErrUnknown):
		t.what = nothingDone
	default:
		t.what = nobodyKnows
	}
	return t
}

// nothingDone: the store could not be reached, and the ledger says that it certainly did nothing.
const nothingDone = "STORE_UNAVAILABLE"

func (d inProcess) ref(key string) ledger.Ref {
	return ledger.Ref{Tenant: tenant, Operation: operation, Key: key}
}

func (d inProcess) begin(ctx context.Context, key string, id uuid.UUID, c call, wait time.Duration) told {
	return asked(ctx, func(ctx context.Context) (told, error) {
		r := ledger.BeginRequest{
			Ref: d.ref(key), AttemptID: id, AttemptIDText: id.String(), Wait: wait, Holder: "client",
			Fingerprints: []ledger.Fingerprint{{Algorithm: "test", Hash: []byte{31: c.print + 1}}},
		}
		if c.recover {
			r.Mode = ledger.Recover
		}
		out, err := d.ledger.Begin(ctx, ledger.Caller{}, r)
		switch {
		case err != nil:
			return told{}, err
		case out.Granted != nil:
			g := out.Granted
			t := told{what: "granted", attempt: int8(g.Attempt), resumed: g.Resumed, doubt: g.PreviousAbandoned, recoverOnly: g.RecoverOnly, token: string(g.Token)}
			if e := g.Evidence; e != nil {
				t.said = said{int8(e.Attempt), reportOf(e.Response, e.Failure)}
			}
			return t, nil
		case out.InProgress != nil:
			return told{what: "in progress", attempt: int8(out.InProgress.Attempt)}, nil
		case out.Completed != nil:
			return told{what: "answer", said: said{int8(out.Completed.Attempt), reportOf(out.Completed.Response, nil)}}, nil
		default:
			return told{what: "answer", said: said{int8(out.Failed.Attempt), reportOf(nil, out.Failed.Failure)}}, nil
		}
	})
}

func reportOf(response *ledger.Response, failure *ledger.Failure) report {
	switch {
	case response != nil:
		return report{success, response.Body[0]}
	case failure == nil:
		return report{}
	case failure.Disposition == ledger.Final:
		return report{final, failure.Message[0]}
	case failure.Disposition == ledger.Retryable:
		return report{retryable, failure.Message[0]}
	default:
		return report{kind: unknown}
	}
}

func (d inProcess) report(ctx context.Context, key, token string, r report) told {
	return asked(ctx, func(ctx context.Context) (told, error) {
		var out ledger.ReportResult
		var err error
		if r.kind == success {
			out, err = d.ledger.Complete(ctx, ledger.Caller{}, ledger.CompleteRequest{
				Ref: d.ref(key), Token: []byte(token), Response: &ledger.Response{Body: []byte{r.text}},
			})
		} else {
			disposition := map[verdict]ledger.Disposition{final: ledger.Final, retryable: ledger.Retryable, unknown: ledger.Unknown}[r.kind]
			message := "?"
			if r.text != 0 {
				message = string(r.text)
			}
			out, err = d.ledger.Fail(ctx, ledger.Caller{}, ledger.FailRequest{
				Ref: d.ref(key), Token: []byte(token), Failure: &ledger.Failure{Code: 9, Message: message, Disposition: disposition},
			})
		}
		return told{what: "ok", attempt: int8(out.Attempt), resumed: out.Resent, settled: out.SettledAt != 0}, err
	})
}

func (d inProcess) extend(ctx context.Context, key, token string) told {
	return asked(ctx, func(ctx context.Context) (told, error) {
		_, err := d.ledger.Extend(ctx, ledger.Caller{}, ledger.ExtendRequest{Ref: d.ref(key), Token: []byte(token)})
		return told{what: "renewed"}, err
	})
}

func (d inProcess) lookup(ctx context.Context, key string) told {
	return asked(ctx, func(ctx context.Context) (told, error) {
		view, err := d.ledger.Lookup(ctx, ledger.Caller{}, d.ref(key))
		if err != nil {
			return told{}, err
		}
		e := view.Entry
		t := told{what: "view", attempt: int8(e.Last.Number), doubt: e.Doubt, condition: conditions[view.Condition]}
		if e.Response != nil || e.Failure != nil {
			t.said = said{int8(e.SettledBy), reportOf(e.Response, e.Failure)}
		}
		return t, nil
	})
}

var conditions = map[ledger.Condition]string{
	ledger.Live: "live", ledger.Abandoned: "abandoned", ledger.Held: "held", ledger.ConditionCompleted: "completed",
	ledger.ConditionFailedFinal: "failed", ledger.ConditionFailedRetryable: "retryable", ledger.Lapsed: "lapsed", ledger.Expired: "expired",
}
