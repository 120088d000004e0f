package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	"github.com/idemd/idemd/clientlib/webhook"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func hmacOf(secret []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, secret)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}

func stripeHeader(at time.Time, body string) http.Header {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	signature := hex.EncodeToString(hmacOf([]byte(stripeSecret), []byte(timestamp+"."+body)))
	return header("Stripe-Signature", "t="+timestamp+",v1="+signature, "Content-Type", "application/json")
}

func githubHeader(id, event, body string) http.Header {
	return header("X-Hub-Signature-256", "sha256="+hex.EncodeToString(hmacOf([]byte(githubSecret), []byte(body))),
		"X-GitHub-Delivery", id, "X-GitHub-Event", event, "Content-Type", "application/json")
}

// endpoint is a receiver with its ledger, and what its handler did.
type endpoint struct {
	t        *testing.T
	ledger   *idemtest.Ledger
	receiver *webhook.Receiver
	worked   chan worked

	mu     sync.Mutex
	handle webhook.Handler
	seen   []webhook.Delivery
}

type worked struct {
	id       string
	attempt  int
	standing webhook.Standing
	err      error
}

// newEndpoint makes a receiver of Stripe's deliveries that is as change leaves it. Nothing is worked off before run.
func newEndpoint(t *testing.T, ledger *idemtest.Ledger, change func(*webhook.Config, *webhook.LedgerConfig)) *endpoint {
	t.Helper()
	e := &endpoint{t: t, ledger: ledger, worked: make(chan worked, 1000)}
	receipts := webhook.LedgerConfig{Ledger: ledger.Client(clientlib.Config{}), Entries: ledger.Admin(), Abandoned: clientlib.Rerun()}
	config := webhook.Config{
		Name: "stripe", Sender: webhook.Stripe{Secrets: []string{stripeSecret}},
		Handler: func(ctx context.Context, d webhook.Delivery) error {
			e.mu.Lock()
			e.seen = append(e.seen, d)
			handle := e.handle
			e.mu.Unlock()
			if handle == nil {
				return nil
			}
			return handle(ctx, d)
		},
		Now: func() time.Time { return stripeNow }, FirstPause: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Hooks: webhook.Hooks{Worked: func(id string, attempt int, standing webhook.Standing, err error) {
			e.worked <- worked{id, attempt, standing, err}
		}},
	}
	if change != nil {
		change(&config, &receipts)
	}
	if config.Receipts == nil {
		kept, err := webhook.NewLedger(receipts)
		if err != nil {
			t.Fatal(err)
		}
		config.Receipts = kept
	}
	receiver, err := webhook.New(config)
	if err != nil {
		t.Fatal(err)
	}
	e.receiver = receiver
	return e
}

// run does the work until the test, or the process that it stands for, is over.
func (e *endpoint) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- e.receiver.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			e.t.Errorf("run: %v", err)
		}
	})
	e.t.Cleanup(stop)
	return stop
}

func (e *endpoint) post(h http.Header, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(e.t.Context(), http.MethodPost, "/hooks", strings.NewReader(body))
	r.Header = h
	w := httptest.NewRecorder()
	e.receiver.ServeHTTP(w, r)
	return w
}

func (e *endpoint) deliver(id string) *httptest.ResponseRecorder {
	body := event(id)
	return e.post(stripeHeader(stripeNow, body), body)
}

func event(id string) string {
	return fmt.Sprintf(`{"id":%q,"type":"charge.succeeded","created":1614556799}`, id)
}

func (e *endpoint) await() worked {
	e.t.Helper()
	select {
	case w := <-e.worked:
		return w
	case <-time.After(20 * time.Second):
		e.t.Fatal("nothing was worked off")
		return worked{}
	}
}

func (e *endpoint) effects() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.seen)
}

func (e *endpoint) want(w *httptest.ResponseRecorder, status int, standing string) {
	e.t.Helper()
	if w.Code != status || w.Header().Get(webhook.StandingHeader) != standing {
		e.t.Errorf("answered %d %q %q, want %d %q", w.Code, w.Header().Get(webhook.StandingHeader), w.Body, status, standing)
	}
}

func TestADeliveryIsAnsweredBeforeItsWorkAndWorkedOffOnce(t *testing.T) {
	e := newEndpoint(t, idemtest.New(t), nil)
	e.want(e.deliver("evt_1"), http.StatusAccepted, "fresh")
	if e.effects() != 0 {
		t.Fatal("there was an effect before the sender was answered")
	}
	e.want(e.deliver("evt_1"), http.StatusAccepted, "waiting")
	e.run()
	if w := e.await(); w.standing != webhook.Done || w.attempt != 1 {
		t.Errorf("%+v", w)
	}
	e.want(e.deliver("evt_1"), http.StatusOK, "done")
	if n := e.effects(); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestTheHandlerGetsWhatTheOrderCanBeToldBy(t *testing.T) {
	ledger := idemtest.New(t)
	e := newEndpoint(t, ledger, func(c *webhook.Config, _ *webhook.LedgerConfig) {
		c.Sequence = func(d webhook.Delivery) (int64, bool) {
			var version int64
			_, err := fmt.Sscanf(string(d.Body[strings.Index(string(d.Body), `"version":`):]), `"version":%d`, &version)
			return version, err == nil
		}
		c.KeepHeaders = []string{"Content-Type", "Traceparent"}
	})
	keys := make(chan string, 2)
	e.handle = func(ctx context.Context, _ webhook.Delivery) error {
		key, _ := clientlib.KeyFrom(ctx)
		if _, ok := clientlib.ClaimFrom(ctx); !ok {
			t.Error("the handler has no claim")
		}
		keys <- key
		return nil
	}
	// The second event overtakes the first.
	for _, version := range []int{2, 1} {
		body := fmt.Sprintf(`{"id":"evt_%d","type":"invoice.updated","created":%d,"version":%d}`, version, 1614556700+version, version)
		e.post(stripeHeader(stripeNow, body), body)
	}
	e.run()
	if a, b := <-keys, <-keys; a == b || a == "" {
		t.Errorf("two deliveries have the keys %q and %q for what they call", a, b)
	}
	e.await()
	e.await()
	for _, d := range e.seen {
		version := int64(d.ID[len("evt_")] - '0')
		if !d.Sequenced || d.Sequence != version || !d.CreatedAt.Equal(time.Unix(1614556700+version, 0)) ||
			!d.SentAt.Equal(stripeNow) || !d.ReceivedAt.Equal(stripeNow) || d.Type != "invoice.updated" || d.Receiver != "stripe" {
			t.Errorf("the handler of %s got %+v", d.ID, d)
		}
		if d.Header.Get("Content-Type") != "application/json" || len(d.Header) != 1 {
			t.Errorf("headers %v", d.Header)
		}
	}
}

func TestTheSameIdWithAnotherBodyIsRefusedLoudly(t *testing.T) {
	e := newEndpoint(t, idemtest.New(t), nil)
	e.deliver("evt_1")
	other := `{"id":"evt_1","type":"charge.succeeded","created":1614556799,"amount":99}`
	w := e.post(stripeHeader(stripeNow, other), other)
	e.want(w, http.StatusConflict, "")
	e.run()
	e.await()
	if w = e.post(stripeHeader(stripeNow, other), other); w.Code != http.StatusConflict {
		t.Errorf("after it was done: %d", w.Code)
	}
	if string(e.seen[0].Body) != event("evt_1") || e.effects() != 1 {
		t.Errorf("%d effects, with %s", e.effects(), e.seen[0].Body)
	}
}

func TestWhatIsNotSignedLeavesNoTrace(t *testing.T) {
	ledger := idemtest.New(t)
	e := newEndpoint(t, ledger, func(c *webhook.Config, _ *webhook.LedgerConfig) { c.MaxBodyBytes = 100 })
	stale := event("evt_1")
	for _, c := range []struct {
		name   string
		header http.Header
		body   string
		status int
	}{
		{"no signature", header(), event("evt_1"), http.StatusUnauthorized},
		{"of another body", stripeHeader(stripeNow, event("evt_2")), event("evt_1"), http.StatusUnauthorized},
		{"a recording of ten minutes ago", stripeHeader(stripeNow.Add(-10*time.Minute), stale), stale, http.StatusUnauthorized},
		{"too long", stripeHeader(stripeNow, strings.Repeat("a", 101)), strings.Repeat("a", 101), http.StatusRequestEntityTooLarge},
		{"no id", stripeHeader(stripeNow, `{"type":"a"}`), `{"type":"a"}`, http.StatusBadRequest},
		{"an id with a control character", stripeHeader(stripeNow, `{"id":"a\u0000"}`), `{"id":"a\u0000"}`, http.StatusBadRequest},
	} {
		if w := e.post(c.header, c.body); w.Code != c.status {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
	}
	get := httptest.NewRecorder()
	e.receiver.ServeHTTP(get, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/hooks", nil))
	if get.Code != http.StatusMethodNotAllowed || get.Header().Get("Allow") != "POST" {
		t.Errorf("GET: %d %v", get.Code, get.Header())
	}
	if n := ledger.Calls("Begin"); n != 0 {
		t.Errorf("the ledger was asked %d times", n)
	}
}

func TestASenderThatHangsUpIsReceivedAllTheSame(t *testing.T) {
	e := newEndpoint(t, idemtest.New(t), nil)
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	body := event("evt_1")
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/hooks", strings.NewReader(body))
	r.Header = stripeHeader(stripeNow, body)
	w := httptest.NewRecorder()
	e.receiver.ServeHTTP(w, r)
	e.want(w, http.StatusAccepted, "fresh")
}

func TestWithoutAReceiptTheSenderIsAskedToSendAgain(t *testing.T) {
	ledger := idemtest.New(t)
	e := newEndpoint(t, ledger, func(c *webhook.Config, l *webhook.LedgerConfig) {
		l.Ledger = ledger.Client(clientlib.Config{LedgerTimeout: 50 * time.Millisecond})
	})
	ledger.GoAway()
	w := e.deliver("evt_1")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	ledger.ComeBack()
	e.want(e.deliver("evt_1"), http.StatusAccepted, "fresh")
}

// The ledger granted the receipt and never confirmed it: it may be there or not, and the sender must not believe that it is.
func TestAReceiptThatIsNotConfirmedIsNotAccepted(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(clientlib.Config{SettleTimeout: time.Millisecond, SettleLimit: time.Millisecond, CloseTimeout: time.Millisecond})
	e := newEndpoint(t, ledger, func(_ *webhook.Config, l *webhook.LedgerConfig) { l.Ledger = client })
	ledger.LoseRequests("Complete", 4)
	if w := e.deliver("evt_1"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	_ = client.Close() // the process dies with what it had still to tell
	ledger.LapseLease(clientlib.Ref{Operation: "webhook:stripe", Key: "evt_1"})
	next := newEndpoint(t, ledger, nil)
	next.want(next.deliver("evt_1"), http.StatusAccepted, "fresh")
}

func TestAReceiptThatThePolicyCutsShortIsNotAccepted(t *testing.T) {
	ledger := idemtest.New(t)
	_, err := ledger.Admin().PutPolicy(t.Context(), &idemv1.PutPolicyRequest{Policy: &idemv1.Policy{
		Tenant: "*", Operation: "webhook:stripe", MaxResponseBytes: 10,
	}})
	if err != nil {
		t.Fatal(err)
	}
	ledger.Advance(time.Minute)
	e := newEndpoint(t, ledger, nil)
	for range 2 {
		if w := e.deliver("evt_1"); w.Code != http.StatusInternalServerError {
			t.Errorf("%d %s: the sender believes that it was received", w.Code, w.Body)
		}
	}
}

func TestWorkThatFailsIsTriedAgainUntilItIsDone(t *testing.T) {
	e := newEndpoint(t, idemtest.New(t), nil)
	failures := 2
	e.handle = func(context.Context, webhook.Delivery) error {
		if failures--; failures >= 0 {
			return errors.New("not yet")
		}
		return nil
	}
	e.deliver("evt_1")
	e.run()
	for attempt := 1; attempt <= 3; attempt++ {
		w := e.await()
		if w.attempt != attempt || (attempt < 3) != (w.standing == webhook.Waiting) || (attempt < 3) != (w.err != nil) {
			t.Errorf("%+v", w)
		}
	}
	e.want(e.deliver("evt_1"), http.StatusOK, "done")
}

func TestAFinalFailureIsNotTriedAgain(t *testing.T) {
	e := newEndpoint(t, idemtest.New(t), nil)
	e.handle = func(context.Context, webhook.Delivery) error { return clientlib.Final(errors.New("no such customer")) }
	e.deliver("evt_1")
	e.run()
	if w := e.await(); w.standing != webhook.Failed {
		t.Errorf("%+v", w)
	}
	e.want(e.deliver("evt_1"), http.StatusOK, "failed")
	if n := e.effects(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

func TestAPanicIsAFailureLikeAnyOther(t *testing.T) {
	e := newEndpoint(t, idemtest.New(t), nil)
	e.handle = func(context.Context, webhook.Delivery) error {
		e.mu.Lock()
		first := len(e.seen) == 1
		e.mu.Unlock()
		if first {
			panic("a bug")
		}
		return nil
	}
	e.deliver("evt_1")
	e.run()
	if w := e.await(); w.err == nil || w.standing != webhook.Waiting {
		t.Errorf("%+v", w)
	}
	if w := e.await(); w.standing != webhook.Done {
		t.Errorf("%+v", w)
	}
}

func TestANewProcessTakesUpWhatTheOldOneLeftBehind(t *testing.T) {
	ledger := idemtest.New(t)
	old := newEndpoint(t, ledger, nil)
	done := newEndpoint(t, ledger, nil)
	done.deliver("evt_done")
	stop := done.run()
	done.await()
	stop()
	for i := range 5 {
		old.want(old.deliver("evt_"+strconv.Itoa(i)), http.StatusAccepted, "fresh") // and it dies before it gets to any of them
	}

	next := newEndpoint(t, ledger, nil)
	receipts, err := webhook.NewLedger(webhook.LedgerConfig{
		Ledger: ledger.Client(clientlib.Config{}), Entries: ledger.Admin(), Abandoned: clientlib.Refuse(),
	})
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	if err := receipts.Unfinished(t.Context(), "stripe", func(id string) error {
		if left++; id == "evt_done" {
			t.Error("what is done counts as unfinished")
		}
		return nil
	}); err != nil || left != 5 {
		t.Errorf("%d are unfinished: %v", left, err)
	}
	next.run()
	got := map[string]int{}
	for range 5 {
		w := next.await()
		got[w.id]++
	}
	for i := range 5 {
		if id := "evt_" + strconv.Itoa(i); got[id] != 1 {
			t.Errorf("%s was worked off %d times", id, got[id])
		}
	}
	if got["evt_done"] != 0 {
		t.Error("what was done before was done again")
	}
	if d := next.seen[0]; string(d.Body) != event(d.ID) {
		t.Errorf("the new process has %s of %s", d.Body, d.ID)
	}
}

// The process dies while its handler runs. What then becomes of the delivery is the choice that was made for abandoned attempts.
func TestWorkThatWasAbandonedIsRunAgainOrLeftToAnOperator(t *testing.T) {
	for _, c := range []struct {
		name      string
		abandoned clientlib.Abandoned
		effects   int
	}{
		{"Rerun", clientlib.Rerun(), 1},
		{"Refuse", clientlib.Refuse(), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ledger := idemtest.New(t)
			ref := clientlib.Ref{Operation: "webhook-work:stripe", Key: "evt_1"}
			var died webhook.Delivery
			first := newEndpoint(t, ledger, nil)
			first.deliver("evt_1")
			entry := ledger.Entry(clientlib.Ref{Operation: "webhook:stripe", Key: "evt_1"})
			client := ledger.Client(clientlib.Config{})
			if _, err := client.Begin(t.Context(), &idemv1.BeginRequest{
				Ref: &idemv1.EntryRef{Operation: ref.Operation, Key: ref.Key}, Fingerprints: entry.GetFingerprints(),
			}); err != nil {
				t.Fatal(err, died)
			}
			ledger.LapseLease(ref)

			gaveUp := make(chan error, 1)
			next := newEndpoint(t, ledger, func(config *webhook.Config, l *webhook.LedgerConfig) {
				l.Abandoned = c.abandoned
				config.Hooks.GaveUp = func(_ string, _ int, err error) { gaveUp <- err }
			})
			next.run()
			if c.effects == 1 {
				if w := next.await(); w.standing != webhook.Done {
					t.Errorf("%+v", w)
				}
			} else if err := <-gaveUp; !errors.Is(err, webhook.ErrUndecided) {
				t.Error(err)
			}
			if n := next.effects(); n != c.effects {
				t.Errorf("the handler ran %d times", n)
			}
		})
	}
}

func TestTwoReceiversOnOneLedgerWorkOffEachDeliveryOnce(t *testing.T) {
	ledger := idemtest.New(t)
	both := []*endpoint{newEndpoint(t, ledger, nil), newEndpoint(t, ledger, nil)}
	const deliveries = 20
	var senders sync.WaitGroup
	for i := range deliveries {
		for _, e := range both {
			senders.Go(func() {
				if w := e.deliver("evt_" + strconv.Itoa(i)); w.Code/100 != 2 && w.Code != http.StatusServiceUnavailable {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
	}
	senders.Wait()
	for _, e := range both {
		e.run()
	}
	for range deliveries {
		select {
		case <-both[0].worked:
		case <-both[1].worked:
		case <-time.After(20 * time.Second):
			t.Fatal("not all were worked off")
		}
	}
	if n := both[0].effects() + both[1].effects(); n != deliveries {
		t.Errorf("%d effects of %d deliveries", n, deliveries)
	}
}
