package temporal

import (
	"strconv"
	"strings"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/workflow"

	"github.com/idemd/idemd/clientlib"
)

// Key is the key of an activity: the same for all of its attempts, and another for every other activity.
//
// It is made of the namespace, the workflow's id and run id, and the activity's id. The activity's id alone is a number that counts
// from the start of each run's history, so without the run id a second run's fifth step would be answered with the first run's fifth.
// The attempt's number is left out, because a retry is the same intent. An activity that no workflow started has its own run id in place
// of the workflow's two. Local activities have numbers of their own, so that an activity is local is in it as well.
//
// A run id changes where Temporal begins a workflow anew: on a retry of the workflow, continue-as-new, cron, and reset. Steps of the new
// run are then new intents. Where the intent is the business's own (charge order 17, whatever run does it), see Config.Key.
func Key(info activity.Info) string {
	run := info.ActivityRunID
	if info.WorkflowExecution.ID != "" {
		run = ""
		if info.IsLocalActivity {
			run = local
		}
	}
	return key(info.Namespace, info.WorkflowExecution.ID, info.WorkflowExecution.RunID, run, info.ActivityID)
}

// key is a UUID, so that it fits into any header, and is derived by lengths, so that no two lists of parts make one text.
func key(namespace, workflowID, runID, activityRunID, activityID string) string {
	step, compensates := strings.CutPrefix(activityID, compensation)
	var text strings.Builder
	for _, part := range []string{namespace, workflowID, runID, activityRunID} {
		text.WriteString(strconv.Itoa(len(part)) + ":" + part)
	}
	of := clientlib.DeriveKey(text.String(), step)
	if compensates {
		return clientlib.DeriveKey(of, CompensationStep)
	}
	return of
}

const (
	// local stands where an activity without a workflow has its run id.
	local = "local"
	// compensation is what the activity ids of compensations begin with.
	compensation = "compensate:"
	// CompensationStep is the step by which a compensation's key is derived from that of what it undoes:
	// clientlib.DeriveKey(StepKey(ctx, "charge"), CompensationStep).
	CompensationStep = "compensate"
)

// Step names the activities that are executed with the context: one step of a workflow. Its key is StepKey(ctx, name). A run has each
// name once: two activities of one name and run are one intent, and the second is answered with the first one's answer. A loop numbers
// its steps.
func Step(ctx workflow.Context, name string) workflow.Context {
	options := workflow.GetActivityOptions(ctx)
	options.ActivityID = name
	return workflow.WithActivityOptions(ctx, options)
}

// Compensation names the activities that are executed with the context: what undoes a step. It has a key of its own, derived from the
// step's.
func Compensation(ctx workflow.Context, step string) workflow.Context {
	return Step(ctx, compensation+step)
}

// StepKey is the key of a step of this run, for a workflow that hands it to somebody: to a compensation, which says what it undoes by it.
func StepKey(ctx workflow.Context, name string) string {
	info := workflow.GetInfo(ctx)
	return key(info.Namespace, info.WorkflowExecution.ID, info.WorkflowExecution.RunID, "", name)
}
