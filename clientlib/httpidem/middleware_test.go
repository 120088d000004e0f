package httpidem_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
	"github.com/idemd/idemd/clientlib/idemtest"
)

func TestARequestIsCarriedOutOnce(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, r *http.Request) {
		claim, ok := clientlib.ClaimFrom(r.Context())
		name, _ := clientlib.KeyFrom(r.Context())
		body, err := io.ReadAll(r.Body)
		if !ok || claim.Attempt != 1 || claim.Fence == 0 || name != "k" || string(body) != `{"amount": 5}` || err != nil || r.Pattern != "/charges" {
			t.Errorf("the handler sees claim %+v, key %q, body %q, %v, pattern %q", claim, name, body, err, r.Pattern)
		}
		w.Header().Set("Location", "/charges/1")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	})
	first, second := s.charge(key(`"k"`)), s.charge()
	if first.status != 201 || first.replayed() || first.outcome() != "executed" {
		t.Errorf("%+v", first)
	}
	if second.status != 201 || second.body != "charged" || !second.replayed() || second.outcome() != "replayed" || second.header.Get("Location") != "/charges/1" {
		t.Errorf("%+v", second)
	}
	s.wantEffects(1)
}

func TestSixtyFourAtOnceHaveOneEffect(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) { c.Wait = 20 * time.Second })
	var all sync.WaitGroup
	answers := make([]got, 64)
	for i := range answers {
		all.Go(func() { answers[i] = s.charge() })
	}
	all.Wait()
	executed := 0
	for _, a := range answers {
		if a.outcome() == "executed" {
			executed++
		}
		if a.status != 200 || a.body != "charged" {
			t.Errorf("%+v", a)
		}
	}
	if executed != 1 {
		t.Errorf("%d executed", executed)
	}
	s.wantEffects(1)
}

func TestAConcurrentRequestIsToldToComeBack(t *testing.T) {
	s := newShop(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	s.set(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-leave
	})
	first := make(chan got)
	go func() { first <- s.charge() }()
	<-entered
	second := s.charge()
	if p := second.problem(t); second.status != 409 || p.Reason != clientlib.ReasonInProgress || second.header.Get("Retry-After") == "" || second.outcome() != "in-progress" {
		t.Errorf("%+v", second)
	}
	close(leave)
	if got := <-first; got.status != 200 {
		t.Errorf("%+v", got)
	}
}

func TestOtherMethodsAndRoutesAreUntouched(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) {
		c.Routes = map[string]httpidem.Route{"POST /refunds": {Unguarded: true}}
	})
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE"} {
		for range 2 {
			if got := s.send(s.request(t.Context(), method, "/charges", "", key("k"))); got.status != 200 || got.outcome() != "" {
				t.Errorf("%s: %+v", method, got)
			}
		}
	}
	for range 2 {
		if got := s.post("/refunds", "x", key("k")); got.outcome() != "" {
			t.Errorf("%+v", got)
		}
	}
	s.wantEffects(12)
	if s.ledger.Calls("Begin") != 0 {
		t.Error("the ledger was asked")
	}
	s = newShop(t, func(c *httpidem.Config) { c.Methods = []string{"PUT"}; c.Header = "X-Request-Key" })
	for range 2 {
		s.send(s.request(t.Context(), "PUT", "/charges", "x", field("X-Request-Key", "k")))
		s.send(s.request(t.Context(), "POST", "/charges", "x"))
	}
	s.wantEffects(3)
}

func TestAGuardAroundTheMux(t *testing.T) {
	ledger := idemtest.New(t)
	mux := http.NewServeMux()
	effects := 0
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { effects++ })
	mux.Handle("POST /charges/{id}", handler)
	mux.Handle("/refunds/", handler)
	config := httpidem.Config{Ledger: ledger.Client(clientlib.Config{}), Abandoned: clientlib.Refuse(), Principal: httpidem.Anonymous, Logger: silent}
	send := func(guarded http.Handler, method, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader("x"))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		return w
	}
	// It does not know the routes: that is said, and nothing is run.
	if w := send(must(httpidem.Middleware(config))(mux), "POST", "/charges/1"); w.Code != 500 || !strings.Contains(w.Body.String(), "NO_OPERATION") || effects != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	config.Operation = httpidem.PatternOf(mux)
	guarded := must(httpidem.Middleware(config))(mux)
	for range 2 {
		if w := send(guarded, "POST", "/charges/1"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		send(guarded, "PATCH", "/refunds/1")
	}
	if effects != 2 {
		t.Errorf("%d effects", effects)
	}
	if w := send(guarded, "POST", "/nowhere"); w.Code != 404 || w.Header().Get(httpidem.OutcomeHeader) != "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	for _, ref := range []clientlib.Ref{{Operation: "POST /charges/{id}", Key: "k"}, {Operation: "PATCH /refunds/", Key: "k"}} {
		ledger.Entry(ref)
	}
}

func TestC50_NobodyGetsAnothersAnswer(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) {
		c.Principal = httpidem.PrincipalFrom(func(r *http.Request) (string, error) {
			if name := r.Header.Get("X-User"); name != "nobody" {
				return name, nil
			}
			return "", errors.New("no such user")
		})
		c.Tenant = func(r *http.Request) (string, error) {
			if tenant := r.Header.Get("X-Tenant"); tenant != "none" {
				return tenant, nil
			}
			return "", errors.New("no such tenant")
		}
	})
	ann := field("X-User", "ann")
	if first, second := s.charge(ann), s.charge(ann); first.outcome() != "executed" || !second.replayed() {
		t.Errorf("%+v %+v", first, second)
	}
	if got := s.charge(field("X-User", "bob")); got.status != 422 || got.problem(t).Reason != clientlib.ReasonKeyReused {
		t.Errorf("%+v", got)
	}
	for _, e := range []edit{field("X-User", ""), field("X-User", "nobody"), func(r *http.Request) { ann(r); field("X-Tenant", "none")(r) }} {
		if got := s.charge(e); got.status != 403 || got.problem(t).Reason != clientlib.ReasonNoPrincipal {
			t.Errorf("%+v", got)
		}
	}
	s.wantEffects(1)
	if got := s.charge(ann, field("X-Tenant", "other")); got.outcome() != "executed" {
		t.Errorf("%+v", got)
	}
}

func TestABodyThatIsCutShortBeginsNothing(t *testing.T) {
	s := newShop(t, nil)
	conn := must((&net.Dialer{}).DialContext(t.Context(), "tcp", s.server.Listener.Addr().String()))
	_, err := io.WriteString(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 100\r\n\r\nhalf a bo")
	if err != nil {
		t.Fatal(err)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	answer, _ := io.ReadAll(conn)
	_ = conn.Close()
	if !strings.HasPrefix(string(answer), "HTTP/1.1 400") || !strings.Contains(string(answer), "BODY_UNREADABLE") {
		t.Errorf("%s", answer)
	}
	s.wantEffects(0)
	if s.ledger.Calls("Begin") != 0 {
		t.Error("something was begun")
	}
}

func TestABodyOverTheLimit(t *testing.T) {
	for _, pass := range []bool{false, true} {
		s := newShop(t, func(c *httpidem.Config) { c.MaxBodyBytes, c.PassTooLarge = 10, pass })
		s.set(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		for _, chunked := range []bool{false, true} {
			r := s.request(t.Context(), http.MethodPost, "/charges", "01234567890", key("k"))
			if chunked {
				r.ContentLength = -1
			}
			got := s.send(r)
			if pass && (got.body != "01234567890" || got.outcome() != "bypassed") {
				t.Errorf("%+v", got)
			}
			if !pass && (got.status != 413 || got.problem(t).Reason != httpidem.ReasonBodyTooLarge) {
				t.Errorf("%+v", got)
			}
		}
		if s.ledger.Calls("Begin") != 0 {
			t.Error("something was begun")
		}
	}
}

func TestTheLedgerIsOutOfReach(t *testing.T) {
	for _, open := range []bool{false, true} {
		ledger := idemtest.New(t)
		client := ledger.Client(clientlib.Config{LedgerTimeout: 100 * time.Millisecond, CloseTimeout: 100 * time.Millisecond})
		s := newShopOn(t, ledger, client, func(c *httpidem.Config) {
			c.Routes = map[string]httpidem.Route{charges: {FailOpen: open}}
		})
		ledger.GoAway()
		got := s.charge()
		ledger.ComeBack()
		if open {
			if got.status != 200 || got.outcome() != "bypassed" {
				t.Errorf("%+v", got)
			}
			for ledger.Calls("Complete") == 0 {
				runtime.Gosched() // the ledger is told afterwards
			}
			s.settled()
			if again := s.charge(); !again.replayed() || again.body != got.body {
				t.Errorf("%+v", again)
			}
			s.wantEffects(1)
			continue
		}
		if p := got.problem(t); got.status != 503 || p.Reason != clientlib.ReasonLedgerUnavailable || got.header.Get("Retry-After") == "" {
			t.Errorf("%+v", got)
		}
		s.wantEffects(0)
	}
}

func TestRefusalsOfTheLedger(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) { c.Abandoned = clientlib.Refuse() })
	s.charge()
	s.ledger.Advance(8 * 24 * time.Hour)
	if got := s.charge(); got.status != http.StatusGone || got.problem(t).Reason != clientlib.ReasonExpired || got.header.Get("Retry-After") != "" {
		t.Errorf("%+v", got)
	}
	s.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	s.charge(key("doubt"))
	got := s.charge(key("doubt"))
	if p := got.problem(t); got.status != http.StatusConflict || p.Reason != clientlib.ReasonAbandoned || got.header.Get("Retry-After") != "" {
		t.Errorf("%+v", got)
	}
	s.wantEffects(2)
	s.ledger.LoseStore()
	client := s.ledger.Client(clientlib.Config{LedgerTimeout: 100 * time.Millisecond})
	s = newShopOn(t, s.ledger, client, nil)
	if got := s.charge(); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("%+v", got)
	}
	s.ledger.FindStore()
}

func TestARecoveryHookAnswersInPlaceOfTheHandler(t *testing.T) {
	for name, c := range map[string]struct {
		finding func() clientlib.Finding
		status  int
		body    string
		outcome string
	}{
		"happened": {func() clientlib.Finding {
			return httpidem.Happened(httpidem.Answer{Status: 201, Body: []byte("then"), Header: http.Header{
				"Content-Type": {"text/plain"}, "Location": {"/charges/7"}, "Set-Cookie": {"s"}}})
		}, 201, "then", "replayed"},
		"failed": {func() clientlib.Finding {
			return httpidem.FailedFinally(httpidem.Answer{Status: 402, Body: []byte("declined")})
		}, 402, "declined", "replayed-failure"},
		"did not happen": {clientlib.DidNotHappen, 200, "now", "executed"},
	} {
		s := newShop(t, func(c0 *httpidem.Config) {
			c0.Abandoned = clientlib.Recover(func(_ context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
				r, ok := claim.Request.(*http.Request)
				if !ok || r.URL.Path != "/charges" {
					t.Errorf("%s: %T", name, claim.Request)
					return clientlib.Finding{}, nil
				}
				if body, err := io.ReadAll(r.Body); string(body) != `{"amount": 5}` || err != nil {
					t.Errorf("%s: %q, %v", name, body, err)
				}
				return c.finding(), nil
			})
		})
		s.set(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
		s.charge()
		s.set(func(w http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); string(body) != `{"amount": 5}` {
				t.Errorf("%s: the handler reads %q", name, body)
			}
			_, _ = io.WriteString(w, "now")
		})
		second, third := s.charge(), s.charge()
		if second.status != c.status || second.body != c.body || second.outcome() != c.outcome {
			t.Errorf("%s: %+v", name, second)
		}
		if third.status != c.status || third.body != c.body || !third.replayed() || third.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %+v", name, third)
		}
		if name == "happened" && (second.header.Get("Location") != "/charges/7" || third.header.Get("Location") != "/charges/7") {
			t.Errorf("%v, %v", second.header, third.header)
		}
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) { c.DryRun, c.MaxBodyBytes = true, 100 })
	would := func(g got) string { return g.header.Get(httpidem.WouldBeHeader) }
	for i, want := range []string{"executed", "replayed", "replayed"} {
		if got := s.charge(); got.body != "charged" || would(got) != want || got.replayed() {
			t.Errorf("%d: %+v", i, got)
		}
	}
	if got := s.post("/charges", "another", key("k")); got.body != "charged" || would(got) != "refused" {
		t.Errorf("%+v", got)
	}
	if got := s.post("/charges", "no key"); got.body != "charged" || would(got) != "refused" {
		t.Errorf("%+v", got)
	}
	s.set(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	long := strings.Repeat("x", 200)
	if got := s.post("/charges", long, key("long")); got.body != long || would(got) != "refused" {
		t.Errorf("%+v", got)
	}
	s.wantEffects(6)
	off := must(httpidem.Middleware(httpidem.Config{Off: true}))
	w := httptest.NewRecorder()
	off(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/", nil))
	if w.Code != 404 {
		t.Error(w.Code)
	}
}

func TestWhatIsWrongWithAConfigurationIsAnErrorAtOnce(t *testing.T) {
	client := idemtest.New(t).Client(clientlib.Config{})
	for want, change := range map[string]func(*httpidem.Config){
		"needs a Ledger":           func(c *httpidem.Config) { c.Ledger = nil },
		"needs a Principal":        func(c *httpidem.Config) { c.Principal = httpidem.Principal{} },
		"there is no default":      func(c *httpidem.Config) { c.Abandoned = clientlib.Abandoned{} },
		"needs a hook":             func(c *httpidem.Config) { c.Abandoned = clientlib.Recover(nil) },
		"MaxBodyBytes":             func(c *httpidem.Config) { c.MaxBodyBytes = -1 },
		"MaxResponseBytes":         func(c *httpidem.Config) { c.MaxResponseBytes = -1 },
		"Config.Keys":              func(c *httpidem.Config) { c.Keys = 7 },
		"not the name of a header": func(c *httpidem.Config) { c.Header = "Idempotency Key" },
		"a safe method":            func(c *httpidem.Config) { c.Methods = []string{"POST", "GET"} },
		"the status 200":           func(c *httpidem.Config) { c.Classes = httpidem.Classes{200: clientlib.FinalFailure} },
		"the class 9":              func(c *httpidem.Config) { c.Classes = httpidem.Classes{400: 9} },
		"from 1 s to 24 h":         func(c *httpidem.Config) { c.Lease = 1 },
		`"Set-Cookie"`:             func(c *httpidem.Config) { c.ReplayHeaders = []string{"Set-Cookie"} },
		"ReplayHeaders has \"\"":   func(c *httpidem.Config) { c.ReplayHeaders = []string{""} },
		"HashHeaders":              func(c *httpidem.Config) { c.HashHeaders = []string{"a:b"} },
		"HashExclude":              func(c *httpidem.Config) { c.HashExclude = []string{"meta"} },
		"Config.Routes, POST /x":   func(c *httpidem.Config) { c.Routes = map[string]httpidem.Route{"POST /x": {Wait: -1}} },
		"Route.Keys":               func(c *httpidem.Config) { c.Routes = map[string]httpidem.Route{"POST /x": {Keys: -1}} },
	} {
		config := httpidem.Config{Ledger: client, Abandoned: clientlib.Rerun(), Principal: httpidem.Anonymous}
		change(&config)
		if _, err := httpidem.Middleware(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
