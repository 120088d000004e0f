package httpidem

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/idemd/idemd/clientlib"
)

func TestEveryProblemIsInTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	g := &guard{Config: Config{ProblemBase: DefaultProblemBase}}
	for reason, kind := range problemKinds {
		_, anchor, _ := strings.Cut(g.problemType(reason), "#")
		if !strings.Contains(string(text), `<a id="`+anchor+`">`) {
			t.Errorf("docs/http.md has no anchor %s", anchor)
		}
		row := "| `" + string(reason) + "` | " + strconv.Itoa(kind.status)
		if reason != ReasonFailed && !strings.Contains(string(text), row) {
			t.Errorf("docs/http.md has no row that begins %s", row)
		}
	}
}

// docs/errors.md gives the statuses of the reasons that guards add.
func TestTheStatusesOfGuardsReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| `[A-Z_]+` \\| (\\d+) \\|").FindAllStringSubmatch(string(text), -1)
	if len(rows) < 7 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		if kind := problemKinds[clientlib.Reason(row[1])]; strconv.Itoa(kind.status) != row[2] {
			t.Errorf("%s is documented as %s and is %d", row[1], row[2], kind.status)
		}
	}
}

func TestOnlyWhereARetryHelpsIsThereARetryAfter(t *testing.T) {
	t.Parallel()
	g := &guard{Config: Config{ProblemBase: "https://shop.example/problems/"}}
	for reason, kind := range problemKinds {
		if reason == ReasonFailed {
			continue
		}
		p, after := g.refused(&clientlib.Error{Reason: reason, RetryAfter: 1500 * time.Millisecond})
		w := httptest.NewRecorder()
		sendProblem(w, p, after)
		want := ""
		if kind.retry {
			want = "2" // rounded up: not before its time
		}
		if w.Code != kind.status || w.Header().Get("Retry-After") != want || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v", reason, w.Code, w.Header())
		}
		if kind.retry != (kind.status == 409 && reason != clientlib.ReasonAbandoned || kind.status == 429 || kind.status == 503) {
			t.Errorf("%s: %+v", reason, kind)
		}
	}
	if p, after := g.refused(&clientlib.Error{Code: codes.Canceled}); p.Status != 503 || after == 0 || p.Type != "https://shop.example/problems/ledger-unavailable" {
		t.Errorf("%+v", p)
	}
	if p, _ := g.refused(&clientlib.Error{Reason: clientlib.ReasonInvalidTenant}); p.Status != 500 {
		t.Errorf("%+v", p)
	}
	if p, _ := g.refused(problemOf(errors.New("odd"))); p.Status != 503 {
		t.Errorf("%+v", p)
	}
}

func TestGRPCCodesAndStatusesGoThereAndBack(t *testing.T) {
	t.Parallel()
	for code := codes.Canceled; code <= codes.Unauthenticated+1; code++ {
		if status := statusOf(code); status < 400 || status > 599 {
			t.Errorf("%v: %d", code, status)
		}
	}
	for status := 200; status < 600; status++ {
		kept, reason, _ := answerOf(failureOf(clientlib.Response{Code: int32(status)}, true))
		if int(kept.Code) != status || reason != "" {
			t.Errorf("%d: %+v %s", status, kept, reason)
		}
		// Without the details, which the ledger drops when they are long, the status is still known.
		kept, reason, _ = answerOf(failureOf(clientlib.Response{Code: int32(status)}, false))
		if int(kept.Code) != status || reason != clientlib.ReasonAnswerNotKept {
			t.Errorf("%d: %+v %s", status, kept, reason)
		}
	}
	for message, want := range map[string]int32{"HTTP 999 x": 500, "HTTP": 500, "no": 500, "HTTP 10": 500} {
		if kept, reason, _ := answerOf(errors.New(message)); kept.Code != want || reason != ReasonFailed {
			t.Errorf("%s: %+v %s", message, kept, reason)
		}
	}
}

func TestWhatCannotBeKeptWithItsTypeIsNotKept(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]http.Header{
		"a type that is no text": {"Content-Type": {"text/\xff"}},
		"a type that is long":    {"Content-Type": {"text/" + strings.Repeat("x", 1020)}},
		"an encoding":            {"Content-Encoding": {strings.Repeat("x", 1020)}},
	} {
		kept := record(Answer{Header: header, Body: []byte("x")}, nil, nil)
		if !kept.BodyOmitted || kept.Body != nil || kept.ContentType != "" {
			t.Errorf("%s: %+v", name, kept)
		}
	}
	odd := "text/plain; idem-http=x"
	kept := record(Answer{Header: http.Header{"Content-Type": {odd}}}, nil, nil)
	if contentType, encoding, _ := cutNote(kept.ContentType); contentType != odd || encoding != "" {
		t.Errorf("%q, %q", contentType, encoding)
	}
	if _, id := locationOf(Answer{Header: http.Header{"Location": {"/\xff"}}}); id != "" {
		t.Error(id)
	}
}

func TestQueriesAndTypesThatCannotBeReadAreTakenAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"a=1;b=2", "a=%zz"} {
		if got := canonicalQuery(raw); got != raw {
			t.Errorf("%q: %q", raw, got)
		}
	}
	for _, odd := range []string{"", ";", "text/plain; a", "a b/c"} {
		if got := canonicalType(odd); got != odd {
			t.Errorf("%q: %q", odd, got)
		}
	}
}

func TestWhatIsStoredIsStillNotReplayedWhereItMustNot(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	replay(w, clientlib.Response{Code: 200, Metadata: []clientlib.MetadataPair{
		{Name: "set-cookie", Value: []byte("s")}, {Name: "idem-outcome", Value: []byte("executed")}, {Name: "etag", Value: []byte("v")},
	}})
	if h := w.Header(); h.Get("Set-Cookie") != "" || h.Get(OutcomeHeader) != "" || h.Get("Etag") != "v" {
		t.Errorf("%v", h)
	}
}

func TestSwitchingProtocolsIsPassedOnAtOnce(t *testing.T) {
	t.Parallel()
	c := newCapture(httptest.NewRecorder(), 10)
	c.WriteHeader(http.StatusSwitchingProtocols)
	if !c.committed() {
		t.Error("held back")
	}
}
