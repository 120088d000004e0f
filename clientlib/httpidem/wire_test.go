package httpidem_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
)

// overHTTP2 has the shop served over HTTP/2, too, and asked over that.
func (s *shop) overHTTP2() {
	s.t.Helper()
	server := httptest.NewUnstartedServer(s.server.Config.Handler)
	server.Config.ErrorLog = s.server.Config.ErrorLog
	server.EnableHTTP2 = true
	server.StartTLS()
	s.t.Cleanup(server.Close)
	s.server.URL, s.client = server.URL, server.Client()
	s.t.Cleanup(s.client.CloseIdleConnections)
}

// unknownLength sends a request in pieces, without saying how long it is.
func unknownLength(r *http.Request) { r.ContentLength = -1 }

func TestHTTP2(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) { c.ReplayHeaders = []string{"x-sum"} })
	s.allow("x-sum")
	s.overHTTP2()
	s.set(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("%s", r.Proto)
		}
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(body)
		w.Header().Set("X-Sum", fmt.Sprint(len(body)))
	})
	for name, c := range map[string]struct {
		body  string
		edits []edit
	}{
		"a body":                   {"asked", []edit{key("a")}},
		"a body of unknown length": {"asked", []edit{key("b"), unknownLength}},
		"no body":                  {"", []edit{key("c")}},
	} {
		first, again := s.post("/charges", c.body, c.edits...), s.post("/charges", c.body, c.edits...)
		for _, g := range []got{first, again} {
			if g.status != http.StatusCreated || g.body != c.body || g.trailer.Get("X-Sum") != fmt.Sprint(len(c.body)) {
				t.Errorf("%s: %+v", name, g)
			}
		}
		if first.outcome() != "executed" || again.outcome() != "replayed" {
			t.Errorf("%s: %s, %s", name, first.outcome(), again.outcome())
		}
	}
	s.wantEffects(3)
}

func TestHTTP2ClientsThatGoAway(t *testing.T) {
	s := newShop(t, nil)
	s.overHTTP2()
	ctx, cancel := context.WithCancel(t.Context())
	s.set(func(w http.ResponseWriter, r *http.Request) {
		cancel() // the stream is reset
		<-r.Context().Done()
		_, _ = io.WriteString(w, "charged")
	})
	if response, err := s.client.Do(s.request(ctx, http.MethodPost, "/charges", "x", key("k"))); err == nil {
		_ = response.Body.Close()
		t.Fatal("the client did not go away")
	}
	s.set(nil)
	for {
		g := s.post("/charges", "x", key("k"))
		if g.status == http.StatusConflict {
			continue // it is on its way to the ledger
		}
		if g.outcome() != "replayed" || g.body != "charged" {
			t.Errorf("%+v", g)
		}
		break
	}
	s.wantEffects(1)
}

// A client that asks before it sends its body is told to send it where the guard will read it, and spared where it will not.
func TestAClientThatAsksBeforeItSendsItsBody(t *testing.T) {
	s := newShop(t, func(c *httpidem.Config) { c.MaxBodyBytes = 10 })
	s.set(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	ask := func(headers string) (*bufio.Reader, net.Conn, string) {
		conn := must((&net.Dialer{}).DialContext(t.Context(), "tcp", s.server.Listener.Addr().String()))
		if _, err := io.WriteString(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n"+headers+"\r\n"); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(conn)
		line := must(reader.ReadString('\n'))
		return reader, conn, strings.TrimSpace(line)
	}
	reader, conn, line := ask("Idempotency-Key: k\r\nContent-Length: 5\r\n")
	if line != "HTTP/1.1 100 Continue" {
		t.Fatal(line)
	}
	_, _ = io.WriteString(conn, "hello")
	rest := string(must(io.ReadAll(reader)))
	if !strings.Contains(rest, "HTTP/1.1 200 OK") || !strings.HasSuffix(rest, "\r\n\r\nhello") {
		t.Errorf("%q", rest)
	}
	_ = conn.Close()
	for headers, want := range map[string]string{
		"Idempotency-Key: k\r\nContent-Length: 11\r\n": "HTTP/1.1 413 Request Entity Too Large",
		"Content-Length: 5\r\n":                        "HTTP/1.1 400 Bad Request",
	} {
		_, conn, line := ask(headers)
		if line != want {
			t.Errorf("%q: %s", headers, line)
		}
		_ = conn.Close()
	}
	s.wantEffects(1)
}

// A HEAD has no effect, whatever headers it carries, and none of the guard's.
func TestAHeadIsLeftAlone(t *testing.T) {
	s := newShop(t, nil)
	for range 2 {
		g := s.send(s.request(t.Context(), http.MethodHead, "/charges", "", key("k")))
		if g.status != http.StatusOK || g.outcome() != "" {
			t.Errorf("%+v", g)
		}
	}
	s.wantEffects(2)
}

// What a handler writes beyond the length that it announced is refused to it, as net/http does, so that the client and a retry
// get the same.
func TestAnAnswerThatIsLongerThanItSaid(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		_, _ = io.WriteString(w, "done")
		if _, err := io.WriteString(w, " and more"); !errors.Is(err, http.ErrContentLength) {
			t.Errorf("%v", err)
		}
	})
	first, again := s.charge(), s.charge()
	if first.body != "done" || again.body != "done" || !again.replayed() {
		t.Errorf("%+v, %+v", first, again)
	}
}

// A redirect that is followed is a request of its own. A key that the caller gave goes along; one that the transport made does not.
func TestATransportFollowsRedirects(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		seen = append(seen, strings.Join([]string{r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), string(body)}, " "))
		mu.Unlock()
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/charges", http.StatusTemporaryRedirect)
		case "/done":
			http.Redirect(w, r, "/charges/1", http.StatusSeeOther)
		}
	}))
	defer target.Close()
	client := &http.Client{Transport: must(httpidem.NewTransport(httpidem.TransportConfig{Base: target.Client().Transport}))}
	post := func(ctx context.Context, path string, edits ...edit) []string {
		seen = nil
		r := must(http.NewRequestWithContext(ctx, http.MethodPost, target.URL+path, strings.NewReader("asked")))
		for _, e := range edits {
			e(r)
		}
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		read(t, response)
		return seen
	}
	want := []string{`POST /moved "mine" asked`, `POST /charges "mine" asked`}
	if got := post(clientlib.WithKey(t.Context(), "mine"), "/moved"); !slices.Equal(got, want) {
		t.Errorf("by the context: %q", got)
	}
	if got := post(t.Context(), "/moved", key(`"mine"`)); !slices.Equal(got, want) {
		t.Errorf("by the header: %q", got)
	}
	got := post(t.Context(), "/moved")
	if len(got) != 2 || strings.Fields(got[0])[2] == strings.Fields(got[1])[2] || !strings.HasSuffix(got[1], " asked") {
		t.Errorf("fresh: %q", got)
	}
	if got := post(clientlib.WithKey(t.Context(), "mine"), "/done"); len(got) != 2 || got[1] != "GET /charges/1  " {
		t.Errorf("see other: %q", got)
	}
	client.CloseIdleConnections()
}
