package temporal_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	tlog "go.temporal.io/sdk/log"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"go.uber.org/goleak"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	"github.com/idemd/idemd/clientlib/temporal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider charges cards. It knows nothing of keys but to note them.
type provider struct {
	mu      sync.Mutex
	charges []string // keys
	refunds []string // the keys of refunds
	of      []string // what they refund
}

func (p *provider) charge(key string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.charges = append(p.charges, key)
	return fmt.Sprintf("ch_%d", len(p.charges))
}

func (p *provider) find(key string) (string, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, known := range p.charges {
		if known == key {
			return fmt.Sprintf("ch_%d", i+1), true
		}
	}
	return "", false
}

func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.charges)
}

// Charge is what an activity answers.
type Charge struct {
	ID     string
	Amount int
}

// rig is an activity worker's environment and what its activities reach.
type rig struct {
	t        *testing.T
	ledger   *idemtest.Ledger
	provider *provider
	// after runs in the activity, once the provider has charged.
	after func(ctx context.Context) error
	// client is that of the latest worker.
	client *clientlib.Client
	// config is that of the clients to come.
	config clientlib.Config
}

func newRig(t *testing.T) *rig { return &rig{t: t, ledger: idemtest.New(t), provider: &provider{}} }

// charge is the activity.
func (r *rig) charge(ctx context.Context, amount int) (Charge, error) {
	key, _ := clientlib.KeyFrom(ctx)
	charged := Charge{r.provider.charge(key), amount}
	if r.after != nil {
		if err := r.after(ctx); err != nil {
			return Charge{}, err
		}
	}
	return charged, nil
}

// ask is a recovery hook: it asks the provider.
func (r *rig) ask(_ context.Context, claim clientlib.Claim) (clientlib.Finding, error) {
	call, _ := claim.Request.(temporal.Call)
	if call.Info.ActivityType.Name == "" {
		r.t.Errorf("the hook is asked about %+v", claim.Request)
	}
	if id, ok := r.provider.find(claim.Ref.Key); ok {
		amount, _ := call.Args[0].(int)
		return temporal.Happened(nil, Charge{id, amount})
	}
	return clientlib.DidNotHappen(), nil
}

func (r *rig) interceptor(change func(*temporal.Config)) interceptor.WorkerInterceptor {
	r.t.Helper()
	r.client = r.ledger.Client(r.config)
	config := temporal.Config{Ledger: r.client, Abandoned: clientlib.Recover(r.ask)}
	if change != nil {
		change(&config)
	}
	once, err := temporal.NewInterceptor(config)
	if err != nil {
		r.t.Fatal(err)
	}
	return once
}

// mortal is for clients of processes that die: they soon stop to wait for a ledger that does not hear them.
var mortal = clientlib.Config{LedgerTimeout: 50 * time.Millisecond, SettleTimeout: time.Millisecond, CloseTimeout: time.Millisecond}

// dead buries a process whose connection is gone: nothing that it still has to tell will ever arrive. Then the ledger is there for others.
func (r *rig) dead(client *clientlib.Client) {
	_ = client.Close()
	r.ledger.ComeBack()
}

var silent = tlog.NewStructuredLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

// worker is a worker process, which runs the activity once. Two of them get the same activity, as Temporal gives it out again.
func (r *rig) worker(run any, change func(*temporal.Config)) *testsuite.TestActivityEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(silent)
	env := suite.NewTestActivityEnvironment().SetExecuteActivitiesInWorkflow(true)
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{r.interceptor(change)}})
	env.RegisterActivityWithOptions(run, activity.RegisterOptions{Name: "charge"})
	return env
}

func get(t *testing.T, value converter.EncodedValue, err error) (c Charge) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := value.Get(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *rig) wantCharges(want int) {
	r.t.Helper()
	if n := r.provider.count(); n != want {
		r.t.Errorf("the card was charged %d times, want %d", n, want)
	}
}

// One of the eight cases. The worker dies after the ledger knows of the call, and before Temporal does.
func TestAnActivityCompletesTheExternalCallAndDiesBeforeReporting(t *testing.T) {
	r := newRig(t)
	value, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	first := get(t, value, err) // Temporal never hears of it
	value, err = r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	if second := get(t, value, err); second != first {
		t.Errorf("the next attempt answered %+v, the first one %+v", second, first)
	}
	r.wantCharges(1)
}

// The same, but neither the ledger nor Temporal heard of the call: the provider is asked.
func TestAnActivityCompletesTheExternalCallAndDiesBeforeReportingToAnybody(t *testing.T) {
	r := newRig(t)
	r.after = func(context.Context) error {
		r.ledger.GoAway() // with the process
		return nil
	}
	r.config = mortal
	_, _ = r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	r.dead(r.client)
	r.config, r.after = clientlib.Config{}, nil
	r.lapse()
	value, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	if got := get(t, value, err); got != (Charge{"ch_1", 5}) {
		t.Errorf("%+v", got)
	}
	r.wantCharges(1)
}

// The worker dies before the call: the provider is asked, and the call is made.
func TestAnActivityDiesBeforeTheExternalCall(t *testing.T) {
	r := newRig(t)
	dies := func(context.Context, int) (Charge, error) {
		r.ledger.GoAway()
		return Charge{}, errors.New("nobody hears this")
	}
	r.config = mortal
	_, _ = r.worker(dies, nil).ExecuteActivity("charge", 5)
	r.dead(r.client)
	r.config = clientlib.Config{}
	r.lapse()
	value, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	get(t, value, err)
	r.wantCharges(1)
}

// key is that of the one activity that these environments know: it does not change from worker to worker.
func (r *rig) key() string {
	r.t.Helper()
	var found string
	env := r.worker(func(ctx context.Context, _ int) (Charge, error) {
		found = temporal.Key(activity.GetInfo(ctx))
		return Charge{}, nil
	}, func(c *temporal.Config) { c.Guarded = func(activity.Info) bool { return false } })
	if _, err := env.ExecuteActivity("charge", 5); err != nil {
		r.t.Fatal(err)
	}
	return found
}

func (r *rig) lapse() { r.ledger.LapseLease(clientlib.Ref{Operation: "temporal:charge", Key: r.key()}) }

func TestAnAttemptThatTemporalThinksDeadIsNotJoinedByAnother(t *testing.T) {
	r := newRig(t)
	value, err := r.worker(func(ctx context.Context, amount int) (Charge, error) {
		// It has timed out by Temporal's clock, and is given to another worker, while it is at work.
		_, err := r.worker(r.charge, nil).ExecuteActivity("charge", amount)
		var busy *sdk.ApplicationError
		if !errors.As(err, &busy) || busy.Type() != "IN_PROGRESS" || busy.NonRetryable() || busy.NextRetryDelay() <= 0 {
			t.Errorf("the second worker was told %v", err)
		}
		return r.charge(ctx, amount)
	}, nil).ExecuteActivity("charge", 5)
	get(t, value, err)
	r.wantCharges(1)
}

func TestAnErrorThatTemporalDoesNotRetryIsReplayedAsItWas(t *testing.T) {
	r := newRig(t)
	r.after = func(context.Context) error {
		return sdk.NewNonRetryableApplicationError("the card is stolen", "CardRefused", nil, "details", 7)
	}
	for attempt := range 2 {
		_, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
		var refused *sdk.ApplicationError
		var text string
		var number int
		if !errors.As(err, &refused) || !refused.NonRetryable() || refused.Type() != "CardRefused" ||
			refused.Details(&text, &number) != nil || text != "details" || number != 7 || !strings.Contains(refused.Error(), "the card is stolen") {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
	r.wantCharges(1)
}

func TestAnErrorThatIsMarkedFinalIsNotRetried(t *testing.T) {
	r := newRig(t)
	r.after = func(context.Context) error { return clientlib.Final(errors.New("no such customer")) }
	for attempt := range 2 {
		_, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
		var refused *sdk.ApplicationError
		if !errors.As(err, &refused) || !refused.NonRetryable() || !strings.Contains(refused.Error(), "no such customer") {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
	r.wantCharges(1)
}

// An error that says nothing of the effect leaves it open: the choice for abandoned attempts decides.
func TestAfterAnyOtherErrorTheProviderIsAsked(t *testing.T) {
	r := newRig(t)
	r.after = func(context.Context) error { return errors.New("the reply was lost") }
	if _, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5); err == nil || !strings.Contains(err.Error(), "the reply was lost") {
		t.Error(err)
	}
	r.after = nil
	value, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	if got := get(t, value, err); got != (Charge{"ch_1", 5}) {
		t.Errorf("%+v", got)
	}
	r.wantCharges(1)
}

func TestAfterNothingHappenedTheNextAttemptSimplyRuns(t *testing.T) {
	r := newRig(t)
	refuse := func(c *temporal.Config) { c.Abandoned = clientlib.Refuse() }
	_, _ = r.worker(func(context.Context, int) (Charge, error) {
		return Charge{}, clientlib.NothingHappened(errors.New("the network is away"))
	}, refuse).ExecuteActivity("charge", 5)
	value, err := r.worker(r.charge, refuse).ExecuteActivity("charge", 5)
	get(t, value, err)
	r.wantCharges(1)
}

func TestWhereNobodyCanBeAskedAnOperatorDecides(t *testing.T) {
	r := newRig(t)
	refuse := func(c *temporal.Config) { c.Abandoned = clientlib.Refuse() }
	r.after = func(context.Context) error { return errors.New("the reply was lost") }
	_, _ = r.worker(r.charge, refuse).ExecuteActivity("charge", 5)
	_, err := r.worker(r.charge, refuse).ExecuteActivity("charge", 5)
	var undecided *sdk.ApplicationError
	if !errors.As(err, &undecided) || undecided.Type() != "ABANDONED" || undecided.NonRetryable() || undecided.NextRetryDelay() < time.Minute {
		t.Errorf("%v", err)
	}
	r.wantCharges(1)
}

func TestWhileTheLedgerIsAwayNothingIsRun(t *testing.T) {
	r := newRig(t)
	r.ledger.GoAway()
	r.config = mortal
	_, err := r.worker(r.charge, nil).ExecuteActivity("charge", 5)
	var away *sdk.ApplicationError
	if !errors.As(err, &away) || away.Type() != "LEDGER_UNAVAILABLE" || away.NonRetryable() {
		t.Errorf("%v", err)
	}
	r.wantCharges(0)
}

func TestAnActivityWithoutAResultIsReplayedToo(t *testing.T) {
	r := newRig(t)
	run := func(ctx context.Context, amount int) error {
		_, err := r.charge(ctx, amount)
		return err
	}
	for range 2 {
		if _, err := r.worker(run, nil).ExecuteActivity("charge", 5); err != nil {
			t.Fatal(err)
		}
	}
	r.wantCharges(1)
}

func TestAKeyOfTheBusinesssOwnOutlivesRuns(t *testing.T) {
	r := newRig(t)
	keyed := func(c *temporal.Config) {
		c.Key = func(_ activity.Info, args []any) string { return fmt.Sprintf("order-%v", args[0]) }
	}
	for _, order := range []int{17, 17, 18} {
		value, err := r.worker(r.charge, keyed).ExecuteActivity("charge", order)
		get(t, value, err)
	}
	if r.wantCharges(2); strings.Join(r.provider.charges, " ") != "order-17 order-18" {
		t.Errorf("the provider has %v", r.provider.charges)
	}
}

func TestKeysTellApartWhateverCanBeTold(t *testing.T) {
	info := func(namespace, workflowID, runID, activityID string) activity.Info {
		return activity.Info{Namespace: namespace, WorkflowExecution: workflow.Execution{ID: workflowID, RunID: runID}, ActivityID: activityID}
	}
	alone := info("n", "", "", "a")
	alone.ActivityRunID = "r"
	local := info("n", "w", "r", "5") // numbered by themselves: the fifth local activity, and not the one at event 5
	local.IsLocalActivity = true
	seen := map[string]int{}
	for i, one := range []activity.Info{
		info("n", "w", "r", "5"), info("m", "w", "r", "5"), info("n", "v", "r", "5"), info("n", "w", "s", "5"), info("n", "w", "r", "6"),
		info("n", "w", "r5", ""), info("n", "wr", "", "5"), info("nw", "", "r", "5"), info("n", "w", "r", "compensate:5"), alone, local,
		info("n", "w:1", "r", "5"), info("n:1", "w", "r", "5"),
	} {
		key := temporal.Key(one)
		if other, known := seen[key]; known || len(key) != 36 {
			t.Errorf("%d and %d have one key, %q", i, other, key)
		}
		seen[key] = i
	}
	retried := info("n", "w", "r", "5")
	retried.Attempt = 2
	if temporal.Key(retried) != temporal.Key(info("n", "w", "r", "5")) {
		t.Error("a retry has a key of its own")
	}
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	if _, err := temporal.NewInterceptor(temporal.Config{Abandoned: clientlib.Rerun()}); err == nil {
		t.Error("no ledger was accepted")
	}
	if _, err := temporal.NewInterceptor(temporal.Config{Ledger: idemtest.New(t).Client(clientlib.Config{})}); err == nil {
		t.Error("no choice for abandoned attempts was accepted")
	}
}
