package httpidem_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
)

var errBroken = errors.New("the connection broke")

// far is the other side: it answers by a list, and remembers what was asked.
type far struct {
	mu      sync.Mutex
	answers []any // an error, a status, or a *http.Response; the last one for ever
	keys    []string
	bodies  []string
	at      []time.Time
	open    int // bodies that were not closed
}

// counted notes whether a body was closed.
type counted struct {
	io.Reader
	f    *far
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() {
		c.f.mu.Lock()
		defer c.f.mu.Unlock()
		c.f.open--
	})
	return nil
}

func (f *far) body(text string) *counted {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open++
	return &counted{Reader: strings.NewReader(text), f: f}
}

func (f *far) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	f.mu.Lock()
	f.keys = append(f.keys, strings.Join(r.Header.Values("Idempotency-Key"), "|"))
	f.bodies, f.at = append(f.bodies, string(body)), append(f.at, time.Now())
	answer := f.answers[min(len(f.keys), len(f.answers))-1]
	f.mu.Unlock()
	switch a := answer.(type) {
	case error:
		return nil, a
	case int:
		return &http.Response{StatusCode: a, Header: http.Header{}, Body: f.body("body")}, nil
	case string:
		status, after, _ := strings.Cut(a, " ")
		code := must(strconv.Atoi(status))
		return &http.Response{StatusCode: code, Header: http.Header{"Retry-After": {after}}, Body: f.body("body")}, nil
	default:
		panic("no such answer")
	}
}

// come sends one POST through a transport to far, and returns the status (0: an error).
func (f *far) come(t testing.TB, config httpidem.TransportConfig, edits ...edit) (status int, err error) {
	t.Helper()
	config.Base = f
	transport := must(httpidem.NewTransport(config))
	r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://far.example/charges", strings.NewReader("asked")))
	for _, e := range edits {
		e(r)
	}
	response, err := transport.RoundTrip(r)
	if err == nil {
		status = response.StatusCode
		_ = response.Body.Close()
	}
	if f.open != 0 {
		t.Errorf("%d bodies left open", f.open)
	}
	return status, err
}

func TestWhatIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		answers []any
		status  int
		tries   int
	}{
		"fine":                       {[]any{200}, 200, 1},
		"broken, then fine":          {[]any{errBroken, errBroken, 200}, 200, 3},
		"broken for ever":            {[]any{errBroken}, 0, 4},
		"in flight, then fine":       {[]any{"409 1", 201}, 201, 2},
		"a conflict":                 {[]any{409, 201}, 409, 1},
		"too early":                  {[]any{425, 201}, 201, 2},
		"too many":                   {[]any{429, "429 2", 201}, 201, 3},
		"away, asks to come back":    {[]any{"503 1", 201}, 201, 2},
		"away":                       {[]any{503, 201}, 503, 1},
		"away for ever":              {[]any{"503 1"}, 503, 4},
		"asks for too long a wait":   {[]any{"503 31", 201}, 503, 1},
		"an error of the service":    {[]any{500, 201}, 500, 1},
		"a key reused":               {[]any{422, 201}, 422, 1},
		"a certificate that is none": {[]any{&tls.CertificateVerificationError{Err: errBroken}, 200}, 0, 1},
		"cancelled over there":       {[]any{context.Canceled, 200}, 200, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &far{answers: c.answers}
			status, err := f.come(t, httpidem.TransportConfig{})
			if status != c.status || (err != nil) != (c.status == 0) || len(f.keys) != c.tries {
				t.Errorf("%s: %d %v, %d tries", name, status, err, len(f.keys))
			}
			for i, key := range f.keys {
				if key != f.keys[0] || f.bodies[i] != "asked" {
					t.Errorf("%s: %q %q", name, f.keys, f.bodies)
				}
			}
			if id, err := strconv.Unquote(f.keys[0]); err != nil || uuid.Validate(id) != nil {
				t.Errorf("%s: %q", name, f.keys[0])
			}
		})
	}
}

func TestThePausesGrowAndKeepToRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{answers: []any{errBroken, errBroken, "409 3", http.StatusOK}}
		if _, err := f.come(t, httpidem.TransportConfig{FirstDelay: time.Second, MaxTries: 9}); err != nil {
			t.Fatal(err)
		}
		for i, c := range []struct{ least, most time.Duration }{{500 * time.Millisecond, time.Second}, {time.Second, 2 * time.Second}, {3 * time.Second, 4 * time.Second}} {
			if d := f.at[i+1].Sub(f.at[i]); d < c.least || d > c.most {
				t.Errorf("pause %d: %v", i, d)
			}
		}
		// A date, too.
		f = &far{answers: []any{"503 " + time.Now().Add(10*time.Second).UTC().Format(http.TimeFormat), 200}}
		if status, err := f.come(t, httpidem.TransportConfig{}); status != 200 || err != nil || f.at[1].Sub(f.at[0]) < 9*time.Second {
			t.Error(status, err, f.at)
		}
	})
}

func TestTheDeadlineEndsTheTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{answers: []any{"503 5"}}
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Second)
		defer cancel()
		began := time.Now()
		status, err := f.come(t, httpidem.TransportConfig{MaxTries: 100}, func(r *http.Request) { *r = *r.WithContext(ctx) })
		if status != 503 || err != nil || len(f.keys) > 3 || time.Since(began) > 12*time.Second {
			t.Error(status, err, len(f.keys), time.Since(began))
		}
		f = &far{answers: []any{errBroken}}
		cancel()
		if _, err := f.come(t, httpidem.TransportConfig{}, func(r *http.Request) { *r = *r.WithContext(ctx) }); !errors.Is(err, errBroken) || len(f.keys) != 1 {
			t.Error(err, len(f.keys))
		}
	})
}

func TestWhichKeyARequestGets(t *testing.T) {
	withKey := func(k string) edit {
		return func(r *http.Request) { *r = *r.WithContext(clientlib.WithKey(r.Context(), k)) }
	}
	for name, c := range map[string]struct {
		bare  bool
		edits []edit
		want  string
	}{
		"of the context":             {false, []edit{withKey("abc")}, `"abc"`},
		"of the context, bare":       {true, []edit{withKey("abc")}, "abc"},
		"quotes and backslashes":     {false, []edit{withKey(`a"b\`)}, `"a\"b\\"`},
		"of the header":              {false, []edit{key("mine")}, "mine"},
		"of the header before":       {false, []edit{withKey("abc"), key(`"mine"`)}, `"mine"`},
		"an empty header":            {false, []edit{key("")}, "error"},
		"two headers":                {false, []edit{key("a", "b")}, "error"},
		"no ASCII":                   {false, []edit{withKey("é")}, "error"},
		"no ASCII, bare":             {true, []edit{withKey("é")}, "error"},
		"empty":                      {false, []edit{withKey("")}, "error"},
		"with spaces where bare":     {true, []edit{withKey("a b")}, "error"},
		"that looks quoted but bare": {true, []edit{withKey(`"a"`)}, "error"},
	} {
		f := &far{answers: []any{200}}
		body := func(r *http.Request) { r.Body, r.GetBody = f.body("asked"), nil } // to be closed also when nothing is sent
		_, err := f.come(t, httpidem.TransportConfig{Bare: c.bare}, append(c.edits, body)...)
		if (err != nil) != (c.want == "error") || err == nil && f.keys[0] != c.want || err != nil && len(f.keys) > 0 {
			t.Errorf("%s: %v, %q", name, err, f.keys)
		}
	}
}

func TestTwoRequestsAreTwoIntents(t *testing.T) {
	f := &far{answers: []any{200}}
	for range 2 {
		if _, err := f.come(t, httpidem.TransportConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	if f.keys[0] == f.keys[1] {
		t.Error(f.keys)
	}
}

func TestOtherMethodsAreLeftAlone(t *testing.T) {
	f := &far{answers: []any{"503 1"}}
	if status, err := f.come(t, httpidem.TransportConfig{}, func(r *http.Request) { r.Method = http.MethodGet }); status != 503 || err != nil || len(f.keys) != 1 || f.keys[0] != "" {
		t.Error(status, err, f.keys)
	}
}

func TestOnlyABodyThatIsThereAgainIsSentAgain(t *testing.T) {
	for name, c := range map[string]struct {
		body   func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error))
		tries  int
		failed bool
	}{
		"none":  {func(*far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) { return nil, 0, nil }, 4, false},
		"empty": {func(*far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) { return http.NoBody, 0, nil }, 4, false},
		"a stream under the limit": {func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) {
			return f.body("asked"), -1, nil
		}, 4, false},
		"a stream over the limit": {func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) {
			return f.body("asked again and again"), -1, nil
		}, 1, false},
		"one that says so": {func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) {
			return f.body("asked again and again"), 21, nil
		}, 1, false},
		"one over the limit that can be had again": {func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) {
			again := func() (io.ReadCloser, error) { return f.body("asked again and again"), nil }
			return must(again()), 21, again
		}, 4, false},
		"one that cannot be read": {func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) {
			body := f.body("")
			body.Reader = io.MultiReader(strings.NewReader("x"), failing{})
			return body, -1, nil
		}, 0, true},
		"one that cannot be had again": {func(f *far) (io.ReadCloser, int64, func() (io.ReadCloser, error)) {
			return f.body("asked"), 5, func() (io.ReadCloser, error) { return nil, errBroken }
		}, 1, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &far{answers: []any{"503 1"}}
			var want string
			status, err := f.come(t, httpidem.TransportConfig{MaxBufferBytes: 10}, func(r *http.Request) {
				r.Body, r.ContentLength, r.GetBody = c.body(f)
				if b, ok := r.Body.(*counted); ok && !c.failed {
					data, _ := io.ReadAll(b.Reader)
					want, b.Reader = string(data), bytes.NewReader(data)
				}
			})
			if len(f.keys) != c.tries || (err != nil) != c.failed || err == nil && status != 503 {
				t.Errorf("%s: %d %v, %d tries", name, status, err, len(f.keys))
			}
			for _, body := range f.bodies {
				if body != want && !c.failed {
					t.Errorf("%s: %q", name, f.bodies)
				}
			}
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

// lossy carries requests out, and loses some of the replies.
type lossy struct {
	base http.RoundTripper
	mu   sync.Mutex
	lose int
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.base.RoundTrip(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.lose > 0 {
		l.lose--
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return nil, errBroken
	}
	return response, err
}

func TestLostRepliesHaveOneEffect(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	transport := must(httpidem.NewTransport(httpidem.TransportConfig{
		Base: &lossy{base: s.client.Transport, lose: 3}, FirstDelay: time.Millisecond,
	}))
	client := &http.Client{Transport: transport}
	for i := range 3 {
		r := s.request(t.Context(), http.MethodPost, "/charges", fmt.Sprint("charge ", i))
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got := read(t, response)
		if got.body != fmt.Sprint("charge ", i) || got.replayed() != (i == 0) {
			t.Errorf("%d: %+v", i, got)
		}
	}
	s.wantEffects(3)
	client.CloseIdleConnections()
}

func TestATransportAndAGuardWaitForEachOther(t *testing.T) {
	s := newShop(t, nil)
	entered, leave := make(chan struct{}, 1), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(leave) })
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		<-leave
		_, _ = io.WriteString(w, "charged")
	})
	transport := must(httpidem.NewTransport(httpidem.TransportConfig{
		Base: s.client.Transport, FirstDelay: time.Millisecond, MaxTries: 20,
		RetryResponse: func(response *http.Response) bool {
			if response.StatusCode == http.StatusConflict {
				goOn() // the first one may finish now
				response.Header.Del("Retry-After")
			}
			return response.StatusCode == http.StatusConflict
		},
	}))
	client := &http.Client{Transport: transport}
	ctx := clientlib.WithKey(t.Context(), "one intent")
	answers := make(chan got, 2)
	post := func() {
		response, err := client.Do(s.request(ctx, http.MethodPost, "/charges", "x"))
		if err != nil {
			t.Error(err)
			answers <- got{}
			return
		}
		answers <- read(t, response)
	}
	go post()
	<-entered
	go post()
	for range 2 {
		if got := <-answers; got.body != "charged" {
			t.Errorf("%+v", got)
		}
	}
	s.wantEffects(1)
}

func TestWhatIsWrongWithATransportIsAnErrorAtOnce(t *testing.T) {
	for want, config := range map[string]httpidem.TransportConfig{
		"Header":         {Header: "a b"},
		"MaxTries":       {MaxTries: -1},
		"delay":          {MaxDelay: -1},
		"MaxBufferBytes": {MaxBufferBytes: -1},
	} {
		if _, err := httpidem.NewTransport(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
