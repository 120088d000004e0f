package webhook_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/webhook"
)

// memory is receipts that a test looks into, for tests of when work is done. Time in them is virtual.
type memory struct {
	mu         sync.Mutex
	unfinished []string
	scans      int
	scanErr    error
	before     func() error // what Run returns instead of running the work, if it is an error
}

func (m *memory) Keep(_ context.Context, d webhook.Delivery) (webhook.Standing, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.unfinished, d.ID) {
		return webhook.Waiting, nil
	}
	m.unfinished = append(m.unfinished, d.ID)
	return webhook.Fresh, nil
}

func (m *memory) Unfinished(_ context.Context, _ string, found func(string) error) error {
	m.mu.Lock()
	m.scans++
	ids, err := slices.Clone(m.unfinished), m.scanErr
	m.mu.Unlock()
	for _, id := range ids {
		if err := found(id); err != nil {
			return err
		}
	}
	return err
}

func (m *memory) Run(ctx context.Context, receiver, id string, work webhook.Handler) (webhook.Standing, error) {
	m.mu.Lock()
	before := m.before
	m.mu.Unlock()
	if before != nil {
		if err := before(); err != nil {
			return webhook.Waiting, err
		}
	}
	if err := work(ctx, webhook.Delivery{Receiver: receiver, ID: id}); err != nil {
		return webhook.Waiting, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfinished = slices.DeleteFunc(m.unfinished, func(other string) bool { return other == id })
	return webhook.Done, nil
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// signedByAnybody opens what has a header Id: these tests are not about signatures.
type signedByAnybody struct{}

func (signedByAnybody) Validate() error { return nil }

func (signedByAnybody) Open(h http.Header, _ []byte, _ time.Time) (webhook.Delivery, error) {
	return webhook.Delivery{ID: h.Get("Id")}, nil
}

// inBubble runs a receiver in virtual time.
func inBubble(t *testing.T, m *memory, config webhook.Config, test func(t *testing.T, receiver *webhook.Receiver)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		config.Name, config.Sender, config.Receipts, config.Logger = "r", signedByAnybody{}, m, slog.New(slog.DiscardHandler)
		receiver, err := webhook.New(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- receiver.Run(ctx) }()
		synctest.Wait()
		test(t, receiver)
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

func give(receiver *webhook.Receiver, id string) {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/", strings.NewReader("{}"))
	r.Header.Set("Id", id)
	receiver.ServeHTTP(httptest.NewRecorder(), r)
	synctest.Wait()
}

func passes(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestNoMoreThanTheWorkersAreAtWork(t *testing.T) {
	m := &memory{unfinished: []string{"1", "2", "3", "4", "5", "6", "7"}}
	var mu sync.Mutex
	now, most, order := 0, 0, []string{}
	config := webhook.Config{Workers: 3, Handler: func(_ context.Context, d webhook.Delivery) error {
		mu.Lock()
		now++
		most = max(most, now)
		order = append(order, d.ID)
		mu.Unlock()
		<-time.After(time.Second)
		mu.Lock()
		now--
		mu.Unlock()
		return nil
	}}
	inBubble(t, m, config, func(t *testing.T, _ *webhook.Receiver) {
		passes(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(order)
		if most != 3 || len(order) != 7 || len(slices.Compact(order)) != 7 {
			t.Errorf("%d at a time, %v", most, order)
		}
	})
}

func TestPausesGrowAndTheProcessGivesUpInTheEnd(t *testing.T) {
	m := &memory{}
	var mu sync.Mutex
	var at []time.Time
	var gaveUp atomic.Int64
	config := webhook.Config{
		MaxAttempts: 5, FirstPause: time.Second, LongestPause: 4 * time.Second, Rescan: time.Minute,
		Handler: func(context.Context, webhook.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now())
			return errors.New("no")
		},
		Hooks: webhook.Hooks{GaveUp: func(string, int, error) { gaveUp.Add(1) }},
	}
	inBubble(t, m, config, func(t *testing.T, receiver *webhook.Receiver) {
		give(receiver, "a")
		passes(time.Hour)
		mu.Lock()
		if len(at) != 5 || gaveUp.Load() != 1 {
			t.Fatalf("%d attempts; given up %d times", len(at), gaveUp.Load())
		}
		for i, longest := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			if pause := at[i+1].Sub(at[i]); pause < longest/2 || pause > longest {
				t.Errorf("pause %d is %v, of up to %v", i, pause, longest)
			}
		}
		mu.Unlock()
		// Somebody has it redelivered, after the fault was mended: that is worth another try, where a rescan is not.
		give(receiver, "a")
		mu.Lock()
		defer mu.Unlock()
		if len(at) != 6 {
			t.Errorf("%d attempts after it was redelivered", len(at))
		}
	})
}

func TestARedeliveryWhileTheFirstIsHandledIsNotHandledBesideIt(t *testing.T) {
	m := &memory{}
	var ran atomic.Int64
	var standings []webhook.Standing
	var hold chan struct{}
	config := webhook.Config{
		Handler: func(context.Context, webhook.Delivery) error {
			ran.Add(1)
			<-hold
			return nil
		},
		Hooks: webhook.Hooks{Received: func(_ webhook.Delivery, standing webhook.Standing) { standings = append(standings, standing) }},
	}
	inBubble(t, m, config, func(t *testing.T, receiver *webhook.Receiver) {
		hold = make(chan struct{})
		for range 3 {
			give(receiver, "a")
		}
		if ran.Load() != 1 || !slices.Equal(standings, []webhook.Standing{webhook.Fresh, webhook.Waiting, webhook.Waiting}) {
			t.Errorf("it was handled %d times; its senders were told %v", ran.Load(), standings)
		}
		close(hold)
		synctest.Wait()
		passes(time.Hour)
		if ran.Load() != 1 || len(m.unfinished) != 0 {
			t.Errorf("it was handled %d times, %v are left", ran.Load(), m.unfinished)
		}
	})
}

func TestWhatWasNotRunIsNoAttempt(t *testing.T) {
	m := &memory{}
	var asked, ran atomic.Int64
	m.before = func() error {
		if asked.Add(1) <= 50 {
			return &webhook.NotNow{After: time.Second, Err: clientlib.ErrLedgerUnavailable}
		}
		return nil
	}
	config := webhook.Config{MaxAttempts: 2, FirstPause: time.Second, LongestPause: 10 * time.Second, Handler: func(context.Context, webhook.Delivery) error {
		if ran.Add(1) == 1 {
			return errors.New("no")
		}
		return nil
	}}
	inBubble(t, m, config, func(t *testing.T, receiver *webhook.Receiver) {
		give(receiver, "a")
		passes(time.Hour)
		if ran.Load() != 2 || len(m.unfinished) != 0 {
			t.Errorf("after an hour in which the receipts came back it was run %d times", ran.Load())
		}
	})
}

func TestADeliveryOfAProcessThatDiedIsFoundByTheNextRescan(t *testing.T) {
	m := &memory{}
	var ran atomic.Int64
	config := webhook.Config{Rescan: time.Minute, Handler: func(context.Context, webhook.Delivery) error {
		ran.Add(1)
		return nil
	}}
	inBubble(t, m, config, func(t *testing.T, _ *webhook.Receiver) {
		m.set(func() { m.unfinished = append(m.unfinished, "of another process") })
		passes(59 * time.Second)
		if ran.Load() != 0 {
			t.Error("it was found before the rescan")
		}
		passes(2 * time.Second)
		if ran.Load() != 1 {
			t.Errorf("it was run %d times", ran.Load())
		}
		// A search that fails is made again soon, and not for ever at once.
		m.set(func() { m.scanErr, m.scans = errors.New("away"), 0 })
		passes(2 * time.Minute)
		m.set(func() {
			if m.scans < 2 || m.scans > 60 {
				t.Errorf("%d searches", m.scans)
			}
		})
	})
}

func TestDeliveriesOverTheQueuesLimitAreLeftToTheRescan(t *testing.T) {
	m := &memory{}
	var ran atomic.Int64
	var hold chan struct{} // made in the bubble, where waiting for it lets time pass
	config := webhook.Config{Workers: 1, MaxQueued: 2, Rescan: time.Minute, Handler: func(context.Context, webhook.Delivery) error {
		<-hold
		ran.Add(1)
		return nil
	}}
	inBubble(t, m, config, func(t *testing.T, receiver *webhook.Receiver) {
		hold = make(chan struct{})
		for _, id := range []string{"1", "2", "3", "4", "5"} {
			give(receiver, id)
		}
		close(hold)
		synctest.Wait()
		if ran.Load() != 2 {
			t.Errorf("%d were queued", ran.Load())
		}
		passes(10 * time.Minute)
		if ran.Load() != 5 || len(m.unfinished) != 0 {
			t.Errorf("%d were run in the end, %v are left", ran.Load(), m.unfinished)
		}
	})
}

// TestDeliveriesThatWereGivenUpTakeNoRoomFromOthers, however many they are.
func TestDeliveriesThatWereGivenUpTakeNoRoomFromOthers(t *testing.T) {
	m := &memory{}
	var mu sync.Mutex
	runs := map[string]int{}
	config := webhook.Config{MaxQueued: 2, MaxAttempts: 1, Rescan: time.Minute, Handler: func(_ context.Context, d webhook.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		runs[d.ID]++
		if strings.HasPrefix(d.ID, "poison") {
			return errors.New("no")
		}
		return nil
	}}
	inBubble(t, m, config, func(t *testing.T, receiver *webhook.Receiver) {
		for _, id := range []string{"poison 1", "poison 2", "poison 3", "poison 4", "good 1", "good 2"} {
			give(receiver, id)
		}
		mu.Lock()
		if runs["good 1"] != 1 || runs["good 2"] != 1 {
			t.Errorf("runs: %v", runs)
		}
		mu.Unlock()
		passes(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		// Two are remembered as given up; of the others a rescan knows no better.
		if runs["poison 1"] != 1 || runs["poison 2"] != 1 || runs["poison 4"] < 2 {
			t.Errorf("runs: %v", runs)
		}
	})
}

func TestStoppingLetsHandlersEndAndThenCutsThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		config := webhook.Config{
			Name: "r", Sender: signedByAnybody{}, Receipts: &memory{unfinished: []string{"a"}}, StopTimeout: 10 * time.Second,
			Logger: slog.New(slog.DiscardHandler),
			Handler: func(ctx context.Context, _ webhook.Delivery) error {
				<-ctx.Done()
				cause = ctx.Err()
				return cause
			},
		}
		receiver, err := webhook.New(config)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- receiver.Run(ctx) }()
		synctest.Wait()
		stopped := time.Now()
		cancel()
		if err := <-over; err != nil || !errors.Is(cause, context.Canceled) {
			t.Errorf("%v %v", err, cause)
		}
		if took := time.Since(stopped); took != 10*time.Second {
			t.Errorf("the handler was given %v", took)
		}
	})
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	good := webhook.Config{
		Name: "r", Sender: signedByAnybody{}, Receipts: &memory{}, Handler: func(context.Context, webhook.Delivery) error { return nil },
	}
	for name, change := range map[string]func(*webhook.Config){
		"no name":             func(c *webhook.Config) { c.Name = "" },
		"a long name":         func(c *webhook.Config) { c.Name = strings.Repeat("n", 129) },
		"no sender":           func(c *webhook.Config) { c.Sender = nil },
		"a sender without":    func(c *webhook.Config) { c.Sender = webhook.GitHub{} },
		"no receipts":         func(c *webhook.Config) { c.Receipts = nil },
		"no handler":          func(c *webhook.Config) { c.Handler = nil },
		"a negative limit":    func(c *webhook.Config) { c.MaxBodyBytes = -1 },
		"negative workers":    func(c *webhook.Config) { c.Workers = -1 },
		"a negative pause":    func(c *webhook.Config) { c.FirstPause = -1 },
		"a secret header":     func(c *webhook.Config) { c.KeepHeaders = []string{"authorization"} },
		"the signature, kept": func(c *webhook.Config) { c.KeepHeaders = []string{"stripe-signature"} },
	} {
		config := good
		change(&config)
		if _, err := webhook.New(config); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := webhook.New(good); err != nil {
		t.Error(err)
	}
	if _, err := webhook.NewLedger(webhook.LedgerConfig{}); err == nil {
		t.Error("receipts without a ledger were accepted")
	}
}
