package temporal_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdk "go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/temporal"
)

// dying is a worker that dies, as Temporal sees it: what the activity came to is never reported. It stands outside of the guard.
type dying struct {
	interceptor.WorkerInterceptorBase
	attempts int32 // how many of an activity's attempts die
	between  func()
}

func (d *dying) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &dyingActivity{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, dying: d}
}

type dyingActivity struct {
	interceptor.ActivityInboundInterceptorBase
	dying *dying
}

func (d *dyingActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	result, err := d.Next.ExecuteActivity(ctx, in)
	if activity.GetInfo(ctx).Attempt <= d.dying.attempts {
		if d.dying.between != nil {
			d.dying.between()
		}
		return nil, errors.New("the worker died, and Temporal gives the activity out again")
	}
	return result, err
}

// fleet is two workers: the first one gets every activity's first attempt, the second one all others.
type fleet struct {
	interceptor.WorkerInterceptorBase
	first, second interceptor.WorkerInterceptor
}

func (f *fleet) InterceptActivity(ctx context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &fleetActivity{
		ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: f.second.InterceptActivity(ctx, next)},
		first:                          f.first.InterceptActivity(ctx, next),
	}
}

type fleetActivity struct {
	interceptor.ActivityInboundInterceptorBase
	first interceptor.ActivityInboundInterceptor
}

func (f *fleetActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	if activity.GetInfo(ctx).Attempt == 1 {
		return f.first.ExecuteActivity(ctx, in)
	}
	return f.Next.ExecuteActivity(ctx, in)
}

// refund is the compensation's activity: it is told what it undoes.
func (r *rig) refund(ctx context.Context, of string) error {
	key, _ := clientlib.KeyFrom(ctx)
	r.provider.mu.Lock()
	defer r.provider.mu.Unlock()
	r.provider.refunds, r.provider.of = append(r.provider.refunds, key), append(r.provider.of, of)
	return nil
}

func (r *rig) ship(context.Context) error {
	return sdk.NewNonRetryableApplicationError("out of stock", "OutOfStock", nil)
}

// order is a saga: it charges, ships, and gives the money back where it cannot ship.
func (r *rig) order(ctx workflow.Context, amount int) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: time.Minute, RetryPolicy: &sdk.RetryPolicy{InitialInterval: time.Second, MaximumAttempts: 5},
	})
	var charged Charge
	if err := workflow.ExecuteActivity(temporal.Step(ctx, "charge"), "charge", amount).Get(ctx, &charged); err != nil {
		return err
	}
	if charged.ID != "ch_1" || charged.Amount != amount {
		return errors.New("the workflow was told of another charge")
	}
	shipped := workflow.ExecuteActivity(temporal.Step(ctx, "ship"), "ship").Get(ctx, nil)
	if shipped == nil {
		return nil
	}
	undo := temporal.Compensation(ctx, "charge")
	return errors.Join(shipped, workflow.ExecuteActivity(undo, "refund", temporal.StepKey(ctx, "charge")).Get(ctx, nil))
}

func (r *rig) workflow(dies *dying, once interceptor.WorkerInterceptor) *testsuite.TestWorkflowEnvironment {
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(silent)
	env := suite.NewTestWorkflowEnvironment()
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{dies, once}})
	env.RegisterWorkflow(r.order)
	for name, run := range map[string]any{"charge": r.charge, "refund": r.refund, "ship": r.ship} {
		env.RegisterActivityWithOptions(run, activity.RegisterOptions{Name: name})
	}
	return env
}

// Every attempt but the last dies before it reports, in each step and in the compensation.
func TestASagaWhoseWorkersDieChargesOnceAndRefundsOnce(t *testing.T) {
	r := newRig(t)
	env := r.workflow(&dying{attempts: 3}, r.interceptor(nil))
	env.ExecuteWorkflow(r.order, 5)
	if err := env.GetWorkflowError(); err == nil || !strings.Contains(err.Error(), "out of stock") {
		t.Fatal(err)
	}
	r.wantCharges(1)
	charge := r.provider.charges[0]
	if !slices.Equal(r.provider.of, []string{charge}) {
		t.Errorf("refunds of %v; the charge's key is %s", r.provider.of, charge)
	}
	if !slices.Equal(r.provider.refunds, []string{clientlib.DeriveKey(charge, temporal.CompensationStep)}) {
		t.Errorf("the compensation's key is %v: it must be its own, and follow from the charge's, %s", r.provider.refunds, charge)
	}
}

// The worker dies so that the ledger does not hear of the charge either. The next attempt asks the provider.
func TestASagaWhoseWorkerDiesBeforeAnybodyHearsOfTheChargeChargesOnce(t *testing.T) {
	r := newRig(t)
	both := &fleet{second: r.interceptor(nil)}
	r.config = mortal
	both.first = r.interceptor(nil)
	r.after = func(context.Context) error {
		r.ledger.GoAway()
		return nil
	}
	env := r.workflow(&dying{attempts: 1, between: func() {
		if r.after != nil {
			r.after = nil
			r.dead(r.client)
			r.ledger.LapseLease(clientlib.Ref{Operation: "temporal:charge", Key: r.provider.charges[0]})
		}
	}}, both)
	env.ExecuteWorkflow(r.order, 5)
	if err := env.GetWorkflowError(); err == nil || !strings.Contains(err.Error(), "out of stock") {
		t.Fatal(err)
	}
	r.wantCharges(1)
	if len(r.provider.refunds) != 1 {
		t.Errorf("%d refunds", len(r.provider.refunds))
	}
}

// Local activities are numbered by themselves, so that one can have the number of another activity.
func TestALocalActivityIsNotTakenForAnotherOfItsNumber(t *testing.T) {
	r := newRig(t)
	var number string
	r.after = func(ctx context.Context) error {
		if info := activity.GetInfo(ctx); info.IsLocalActivity {
			number = info.ActivityID
		}
		return nil
	}
	env := r.workflow(&dying{}, r.interceptor(nil))
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		local := workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
		if err := workflow.ExecuteLocalActivity(local, r.charge, 5).Get(ctx, nil); err != nil {
			return err
		}
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute, ActivityID: number})
		return workflow.ExecuteActivity(ctx, "charge", 7).Get(ctx, nil)
	})
	if err := env.GetWorkflowError(); err != nil || number == "" {
		t.Fatalf("%v, number %q", err, number)
	}
	r.wantCharges(2)
}
