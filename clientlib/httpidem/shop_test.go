package httpidem_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const charges = "POST /charges"

// shop is a service with one guarded route, /charges, on the loopback interface.
type shop struct {
	t      *testing.T
	ledger *idemtest.Ledger
	server *httptest.Server
	client *http.Client
	// effects counts how often the handler was run.
	effects atomic.Int64

	mu     sync.Mutex
	handle http.HandlerFunc
}

var silent = slog.New(slog.NewTextHandler(io.Discard, nil))

// newShop starts a service whose guard is as change leaves it.
func newShop(t *testing.T, change func(*httpidem.Config)) *shop {
	t.Helper()
	ledger := idemtest.New(t)
	return newShopOn(t, ledger, ledger.Client(clientlib.Config{}), change)
}

func newShopOn(t *testing.T, ledger *idemtest.Ledger, client *clientlib.Client, change func(*httpidem.Config)) *shop {
	t.Helper()
	s := &shop{t: t, ledger: ledger}
	config := httpidem.Config{Ledger: client, Abandoned: clientlib.Rerun(), Principal: httpidem.Anonymous, Logger: silent}
	if change != nil {
		change(&config)
	}
	guard, err := httpidem.Middleware(config)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	handler := guard(http.HandlerFunc(s.serve))
	for _, pattern := range []string{"/charges", "/charges/{id}", "/refunds"} {
		mux.Handle(pattern, handler)
	}
	s.server = httptest.NewUnstartedServer(mux)
	s.server.Config.ErrorLog = slog.NewLogLogger(silent.Handler(), slog.LevelError)
	s.server.Start()
	s.client = s.server.Client()
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		s.server.Close()
	})
	return s
}

func (s *shop) set(handle http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = handle
}

func (s *shop) serve(w http.ResponseWriter, r *http.Request) {
	s.effects.Add(1)
	s.mu.Lock()
	handle := s.handle
	s.mu.Unlock()
	if handle == nil {
		_, _ = io.WriteString(w, "charged")
		return
	}
	handle(w, r)
}

// got is what a request came to.
type got struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
}

func (g got) outcome() string { return g.header.Get(httpidem.OutcomeHeader) }

func (g got) replayed() bool { return g.header.Get(httpidem.ReplayedHeader) == "true" }

func (g got) problem(t testing.TB) httpidem.Problem {
	t.Helper()
	var p httpidem.Problem
	if g.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("not a problem: %d %v %q", g.status, g.header, g.body)
		return p
	}
	if err := json.Unmarshal([]byte(g.body), &p); err != nil {
		t.Error(err)
	}
	if p.Status != g.status || p.Title == "" || !strings.HasPrefix(p.Type, httpidem.DefaultProblemBase) {
		t.Errorf("a problem that contradicts itself: %d %+v", g.status, p)
	}
	return p
}

// edit changes a request before it is sent.
type edit func(*http.Request)

func key(values ...string) edit {
	return func(r *http.Request) { r.Header["Idempotency-Key"] = values }
}

func field(name, value string) edit { return func(r *http.Request) { r.Header.Set(name, value) } }

func (s *shop) request(ctx context.Context, method, path, body string, edits ...edit) *http.Request {
	s.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, s.server.URL+path, reader)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range edits {
		e(r)
	}
	return r
}

func (s *shop) send(r *http.Request) got {
	s.t.Helper()
	response, err := s.client.Do(r)
	if err != nil {
		s.t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		return got{header: http.Header{}}
	}
	return read(s.t, response)
}

func read(t testing.TB, response *http.Response) got {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Error(err)
	}
	return got{status: response.StatusCode, header: response.Header, trailer: response.Trailer, body: string(body)}
}

func (s *shop) post(path, body string, edits ...edit) got {
	s.t.Helper()
	return s.send(s.request(s.t.Context(), http.MethodPost, path, body, edits...))
}

// charge posts the one charge that most tests are about.
func (s *shop) charge(edits ...edit) got {
	s.t.Helper()
	return s.post("/charges", `{"amount": 5}`, append([]edit{field("Content-Type", "application/json"), key("k")}, edits...)...)
}

func (s *shop) wantEffects(want int64) {
	s.t.Helper()
	if n := s.effects.Load(); n != want {
		s.t.Errorf("%d effects, want %d", n, want)
	}
}

var ref = clientlib.Ref{Operation: charges, Key: "k"}

// allow lets the policy keep response headers of these names.
func (s *shop) allow(names ...string) {
	s.t.Helper()
	putPolicy(s.t, s.ledger, names)
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// putPolicy has the ledger keep response headers of these names, for all operations.
func putPolicy(t testing.TB, ledger *idemtest.Ledger, names []string) {
	t.Helper()
	_, err := ledger.Admin().PutPolicy(within(t), &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
		Tenant: "*", Operation: "*", ResponseMetadataAllow: names,
	}})
	if err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute) // until every daemon follows the policy
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
