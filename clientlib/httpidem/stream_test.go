package httpidem_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/httpidem"
)

// wantNotKept says of a retry that it is told where to look, and that nothing is run again.
func (s *shop) wantNotKept() {
	s.t.Helper()
	got := s.charge()
	if p := got.problem(s.t); got.status != http.StatusGone || p.Reason != clientlib.ReasonAnswerNotKept {
		s.t.Errorf("%+v", got)
	}
	s.wantEffects(1)
}

func TestWhatIsFlushedIsPassedOnAtOnce(t *testing.T) {
	for name, flush := range map[string]func(w http.ResponseWriter){
		"Flusher": func(w http.ResponseWriter) {
			if f, ok := w.(http.Flusher); ok {
				f.Flush()
			}
		},
		"ResponseController": func(w http.ResponseWriter) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		},
	} {
		s := newShop(t, nil)
		arrived := make(chan struct{})
		s.set(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Kind", "stream")
			_, _ = io.WriteString(w, "one ")
			flush(w)
			<-arrived // the client has the first piece while the handler still runs
			_, _ = io.WriteString(w, "two")
		})
		r := s.request(t.Context(), http.MethodPost, "/charges", `{"amount": 5}`, field("Content-Type", "application/json"), key("k"))
		response, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		piece := make([]byte, 4)
		if _, err := io.ReadFull(response.Body, piece); err != nil || string(piece) != "one " {
			t.Fatal(name, err, piece)
		}
		close(arrived)
		if got := read(t, response); got.body != "two" || got.outcome() != "executed" || got.header.Get("X-Kind") != "stream" {
			t.Errorf("%s: %+v", name, got)
		}
		s.settled()
		s.wantNotKept()
	}
}

// settled waits until the entry is: an answer that was passed on reaches its client before it is recorded.
func (s *shop) settled() {
	s.t.Helper()
	for s.ledger.Entry(ref).GetTimes().GetSettleTime() == nil {
		if s.t.Context().Err() != nil {
			s.t.Fatal("never settled")
		}
	}
}

func TestServerSentEvents(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, "data: 1\n\n")
	})
	if got := s.charge(); got.body != "data: 1\n\n" {
		t.Errorf("%+v", got)
	}
	s.settled()
	s.wantNotKept()
}

func TestAHijackedConnection(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		if _, err := w.Write([]byte("x")); err != http.ErrHijacked { //nolint:errorlint // net/http returns it as it is
			t.Error(err)
		}
		w.WriteHeader(500)
		_, _ = buffer.WriteString("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nby me")
		_ = buffer.Flush()
	})
	if got := s.charge(); got.body != "by me" {
		t.Errorf("%+v", got)
	}
	s.settled()
	s.wantNotKept()
}

func TestInformationalStatusesGoOutAtOnce(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusCreated)
		w.WriteHeader(http.StatusTeapot) // too late, as without a guard
		_, _ = io.WriteString(w, "charged")
	})
	var early []int
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
		early = append(early, code)
		return nil
	}})
	first := s.send(s.request(ctx, http.MethodPost, "/charges", `{"amount": 5}`, field("Content-Type", "application/json"), key("k")))
	second := s.charge()
	if len(early) != 1 || early[0] != 103 || first.status != 201 || second.status != 201 || second.body != "charged" || !second.replayed() {
		t.Errorf("%v %+v %+v", early, first, second)
	}
}

func TestAResponseControllersDeadlinesReachTheConnection(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
	})
	s.charge()
}

func TestAPanicLeavesTheIntentInDoubt(t *testing.T) {
	for _, value := range []any{http.ErrAbortHandler, "broken"} {
		s := newShop(t, nil)
		s.set(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "half an ans")
			panic(value)
		})
		r := s.request(t.Context(), http.MethodPost, "/charges", `{"amount": 5}`, field("Content-Type", "application/json"), key("k"))
		r.GetBody = nil // or net/http sends it again by itself, because it has a key
		if response, err := s.client.Do(r); err == nil {
			t.Errorf("%v: %+v", value, read(t, response))
		}
		if entry := s.ledger.Entry(ref); entry.GetCondition() != isAbandoned || !entry.GetDoubt() {
			t.Errorf("%v: %v", value, entry)
		}
		s.set(func(_ http.ResponseWriter, r *http.Request) {
			if claim, ok := clientlib.ClaimFrom(r.Context()); !ok || !claim.PreviousAbandoned || claim.Attempt != 2 {
				t.Errorf("%+v", claim)
			}
		})
		if got := s.charge(); got.outcome() != "executed" {
			t.Errorf("%v: %+v", value, got)
		}
	}
}

func TestAStatusThatIsNonePanicsAsInNetHTTP(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		w.WriteHeader(42)
	})
	s.charge()
}

func TestAStreamThatBrokeIsNotTakenForSuccess(t *testing.T) {
	for name, want := range map[string]struct {
		final   bool
		settled bool
	}{"no word": {false, false}, "final": {true, true}} {
		s := newShop(t, nil)
		done := make(chan struct{})
		s.set(func(w http.ResponseWriter, r *http.Request) {
			defer close(done)
			if want.final {
				httpidem.Final(r.Context())
			}
			_, _ = io.WriteString(w, "one")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		r := s.request(t.Context(), http.MethodPost, "/charges", `{"amount": 5}`, field("Content-Type", "application/json"), key("k"))
		response, err := s.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(response.Body).ReadByte(); err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close() // the client goes away
		<-done
		s.server.CloseClientConnections()
		s.server.Close() // waits for the handler, so for its outcome
		condition := s.ledger.Entry(ref).GetCondition()
		if want.settled != (condition == isCompleted) || !want.settled && condition != isAbandoned {
			t.Errorf("%s: %v", name, condition)
		}
	}
}

func TestAClaimThatIsLostWhileTheHandlerRuns(t *testing.T) {
	for _, settled := range []bool{true, false} {
		s := newShop(t, nil)
		entered, leave, second := make(chan struct{}), make(chan struct{}), make(chan got, 1)
		s.set(func(w http.ResponseWriter, r *http.Request) {
			if claim, _ := clientlib.ClaimFrom(r.Context()); claim.Attempt > 1 {
				close(entered)
				<-leave
				_, _ = io.WriteString(w, "second")
				return
			}
			s.ledger.LapseLease(ref)
			go func() { second <- s.charge() }()
			<-entered
			if settled {
				close(leave)
				second <- <-second
			}
			w.Header().Set("X-Of", "the first")
			_, _ = io.WriteString(w, "first")
		})
		first := s.charge()
		if first.header.Get("X-Of") != "" {
			t.Errorf("%+v", first)
		}
		if settled {
			if first.status != 200 || first.body != "second" || !first.replayed() {
				t.Errorf("%+v", first)
			}
		} else {
			if p := first.problem(t); first.status != 409 || p.Reason != clientlib.ReasonClaimLost || first.header.Get("Retry-After") == "" {
				t.Errorf("%+v", first)
			}
			close(leave)
		}
		if got := <-second; got.body != "second" || got.outcome() != "executed" {
			t.Errorf("%+v", got)
		}
	}
}

func TestWhatIsPassedOnIsNotFollowedByAnotherAnswer(t *testing.T) {
	s := newShop(t, nil)
	s.set(func(w http.ResponseWriter, r *http.Request) {
		if claim, _ := clientlib.ClaimFrom(r.Context()); claim.Attempt > 1 {
			_, _ = io.WriteString(w, "second")
			return
		}
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		s.ledger.LapseLease(ref)
		s.charge()
	})
	if got := s.charge(); got.body != "first" {
		t.Errorf("%+v", got)
	}
	if got := s.charge(); got.body != "second" || !got.replayed() {
		t.Errorf("%+v", got)
	}
}

func TestTheBodyOfABufferedAnswerIsGuessedOnce(t *testing.T) {
	s := newShop(t, nil)
	page := "<!DOCTYPE html><html></html>"
	s.set(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })
	first, second := s.charge(), s.charge()
	if kind := first.header.Get("Content-Type"); !strings.HasPrefix(kind, "text/html") || second.header.Get("Content-Type") != kind {
		t.Errorf("%v, %v", first.header, second.header)
	}
	s.set(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, page)
	})
	first, second = s.charge(key("untyped")), s.charge(key("untyped"))
	if first.header.Get("Content-Type") != "" || second.header.Get("Content-Type") != "" || second.body != page {
		t.Errorf("%v, %v", first.header, second.header)
	}
}
