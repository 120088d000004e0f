package httpidem_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// conditions of an entry.
const (
	isCompleted = idemv1.EntryCondition_ENTRY_CONDITION_COMPLETED
	isFinal     = idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL
	isRetryable = idemv1.EntryCondition_ENTRY_CONDITION_FAILED_RETRYABLE
	isAbandoned = idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED
)

// defaultClass is docs/http.md's table, written once more: 2xx and 3xx completed, these, and all others unknown.
func defaultClass(status int) idemv1.EntryCondition {
	switch status {
	case 400, 402, 404, 405, 406, 409, 410, 411, 412, 413, 414, 415, 416, 417, 422, 426, 428, 431, 451:
		return isFinal
	case 401, 403, 407, 421, 425, 429:
		return isRetryable
	}
	if status < 400 {
		return isCompleted
	}
	return isAbandoned
}

func TestEveryStatusSettlesAsTheTableSays(t *testing.T) {
	s := newShop(t, nil)
	for status := 200; status <= 599; status++ {
		name := fmt.Sprintf("k%d", status)
		s.set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/x-test")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "first")
		})
		before := s.effects.Load()
		first := s.charge(key(name))
		want := defaultClass(status)
		entry := s.ledger.Entry(clientlib.Ref{Operation: charges, Key: name})
		if first.status != status || first.outcome() != "executed" || entry.GetCondition() != want {
			t.Fatalf("%d: %+v, %v and not %v", status, first, entry.GetCondition(), want)
		}
		second := s.charge(key(name))
		if second.status != status || second.body != first.body || second.header.Get("Content-Type") != first.header.Get("Content-Type") {
			t.Errorf("%d: first %+v, then %+v", status, first, second)
		}
		kept := want == isCompleted || want == isFinal
		if ran := s.effects.Load() - before; kept != (ran == 1) || kept != second.replayed() {
			t.Errorf("%d: ran %d times; then %+v", status, ran, second)
		}
		if outcome := map[idemv1.EntryCondition]string{isCompleted: "replayed", isFinal: "replayed-failure"}[want]; kept && outcome != second.outcome() {
			t.Errorf("%d: %s and not %s", status, second.outcome(), outcome)
		}
	}
}

func TestAServiceChangesTheTable(t *testing.T) {
	classes := httpidem.DefaultClasses()
	classes[http.StatusServiceUnavailable] = clientlib.Retryable
	classes[http.StatusConflict] = clientlib.Unknown
	s := newShop(t, func(c *httpidem.Config) {
		c.Classes = classes
		c.Routes = map[string]httpidem.Route{"POST /refunds": {Classes: httpidem.Classes{http.StatusServiceUnavailable: clientlib.FinalFailure}}}
	})
	for _, c := range []struct {
		path   string
		status int
		want   idemv1.EntryCondition
	}{
		{"/charges", 503, isRetryable}, {"/charges", 409, isAbandoned}, {"/charges", 404, isFinal},
		{"/refunds", 503, isFinal}, {"/refunds", 404, isAbandoned},
	} {
		s.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(c.status) })
		name := fmt.Sprint(c.path, c.status)
		s.post(c.path, "x", key(name))
		if got := s.ledger.Entry(clientlib.Ref{Operation: "POST " + c.path, Key: name}).GetCondition(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestAHandlersWordIsStrongerThanItsStatus(t *testing.T) {
	s := newShop(t, nil)
	for name, c := range map[string]struct {
		status int
		say    func(r *http.Request)
		want   idemv1.EntryCondition
	}{
		"nothing happened, 503":         {503, func(r *http.Request) { httpidem.NothingHappened(r.Context()) }, isRetryable},
		"nothing happened, 404":         {404, func(r *http.Request) { httpidem.NothingHappened(r.Context()) }, isRetryable},
		"nothing happened, 200":         {200, func(r *http.Request) { httpidem.NothingHappened(r.Context()) }, isRetryable},
		"final, 503":                    {503, func(r *http.Request) { httpidem.Final(r.Context()) }, isFinal},
		"final, 200":                    {200, func(r *http.Request) { httpidem.Final(r.Context()) }, isCompleted},
		"both, the later counts":        {503, func(r *http.Request) { httpidem.NothingHappened(r.Context()); httpidem.Final(r.Context()) }, isFinal},
		"both, the other way about":     {503, func(r *http.Request) { httpidem.Final(r.Context()); httpidem.NothingHappened(r.Context()) }, isRetryable},
		"no word, 503":                  {503, func(*http.Request) {}, isAbandoned},
		"nothing happened, hijack-less": {429, func(r *http.Request) { httpidem.Final(r.Context()) }, isFinal},
	} {
		s.set(func(w http.ResponseWriter, r *http.Request) {
			c.say(r)
			w.WriteHeader(c.status)
		})
		got := s.charge(key(quoted(name)))
		if condition := s.ledger.Entry(clientlib.Ref{Operation: charges, Key: name}).GetCondition(); got.status != c.status || condition != c.want {
			t.Errorf("%s: %d, %v", name, got.status, condition)
		}
	}
	httpidem.Final(t.Context()) // and without a guard they do nothing
	httpidem.NothingHappened(t.Context())
}

func quoted(s string) string { return `"` + s + `"` }

func TestAnAnswerThatAsksForAnotherTryIsNotFinal(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusConflict)
	})
	s.charge()
	if got := s.ledger.Entry(ref).GetCondition(); got != isAbandoned {
		t.Error(got)
	}
}

func TestARefusalOfAGuardFurtherOnIsNotKept(t *testing.T) {
	inner := newShop(t, nil)
	inner.charge()
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, r *http.Request) {
		// A gateway: the same key, and a body that the inner service has seen another of.
		passedOn := inner.post("/charges", "another", key("k"))
		for name, values := range passedOn.header {
			w.Header()[name] = values
		}
		w.WriteHeader(passedOn.status)
		_, _ = io.WriteString(w, passedOn.body)
	})
	if got := s.charge(); got.status != http.StatusUnprocessableEntity || got.outcome() != "executed" {
		t.Errorf("%+v", got)
	}
	if got := s.ledger.Entry(ref).GetCondition(); got != isAbandoned {
		t.Error(got)
	}
}

func TestAReplayFurtherOnIsAnAnswerOfNow(t *testing.T) {
	inner := newShop(t, nil)
	inner.charge()
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		passedOn := inner.charge()
		for name, values := range passedOn.header {
			w.Header()[name] = values
		}
		_, _ = io.WriteString(w, passedOn.body)
	})
	first := s.charge()
	if first.replayed() || first.header.Get(httpidem.OriginalTimeHeader) != "" || first.outcome() != "executed" || first.body != "charged" {
		t.Errorf("%+v", first)
	}
	if second := s.charge(); !second.replayed() || second.body != "charged" {
		t.Errorf("%+v", second)
	}
}

func TestAnOperatorsWordIsReplayed(t *testing.T) {
	for name, c := range map[string]struct {
		request *idemv1.ResolveEntryRequest
		status  int
		body    string
	}{
		"completed": {&idemv1.ResolveEntryRequest{Resolution: &idemv1.ResolveEntryRequest_Complete{
			Complete: &idemv1.Response{Code: 201, Body: []byte("by hand"), ContentType: "text/plain"}}}, 201, "by hand"},
		"completed, with no status": {&idemv1.ResolveEntryRequest{Resolution: &idemv1.ResolveEntryRequest_Complete{
			Complete: &idemv1.Response{Body: []byte("by hand")}}}, 200, "by hand"},
		"failed": {&idemv1.ResolveEntryRequest{Resolution: &idemv1.ResolveEntryRequest_Fail{Fail: notFound}}, 404, ""},
	} {
		ledger := idemtest.New(t)
		s := newShopOn(t, ledger, ledger.Client(clientlib.Config{}), nil)
		s.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
		s.charge()
		c.request.Ref, c.request.Attempt, c.request.Reason = &idemv1.EntryRef{Operation: charges, Key: "k"}, 1, "seen at the bank"
		if _, err := ledger.Admin().ResolveEntry(t.Context(), c.request); err != nil {
			t.Fatal(name, err)
		}
		got := s.charge()
		if got.status != c.status || !got.replayed() || c.body != "" && got.body != c.body {
			t.Errorf("%s: %+v", name, got)
		}
		if c.body == "" {
			if p := got.problem(t); p.Reason != httpidem.ReasonFailed || p.Detail != "no such charge" {
				t.Errorf("%s: %+v", name, p)
			}
		}
		s.wantEffects(1)
	}
}
