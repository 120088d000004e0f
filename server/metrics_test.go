package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// sample is one value of a metric.
type sample struct {
	labels map[string]string
	value  float64
	count  uint64
}

// collected reads a metric as Prometheus would.
func collected(t *testing.T, c prometheus.Collector) []sample {
	t.Helper()
	ch := make(chan prometheus.Metric, 10_000)
	c.Collect(ch)
	close(ch)
	var out []sample
	for m := range ch {
		var raw dto.Metric
		if err := m.Write(&raw); err != nil {
			t.Fatal(err)
		}
		s := sample{labels: map[string]string{}}
		for _, l := range raw.GetLabel() {
			s.labels[l.GetName()] = l.GetValue()
		}
		s.value = raw.GetCounter().GetValue() + raw.GetGauge().GetValue()
		s.count = raw.GetHistogram().GetSampleCount()
		out = append(out, s)
	}
	return out
}

func valueOf(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	return collected(t, c)[0].value
}

// However many operations callers make up, the labels stay bounded, and a refused call can not use them up.
func TestOperationLabelsAreBounded(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	count := func(operation string, err error) {
		m.count(idemv1.LedgerService_Begin_FullMethodName, &idemv1.BeginRequest{Ref: &idemv1.EntryRef{Operation: operation}}, &idemv1.BeginResponse{}, err)
	}
	for i := range 10 * MaxOperationLabels {
		count(fmt.Sprint("refused ", i), &ledger.Refusal{Reason: ledger.ReasonPermissionDenied})
	}
	for i := range 10 * MaxOperationLabels {
		count(fmt.Sprint("granted ", i), nil)
	}
	count("granted 0", &ledger.Refusal{Reason: ledger.ReasonExpired})
	operations, total := map[string]float64{}, 0.0
	for _, s := range collected(t, m.outcomes) {
		operations[s.labels["operation"]] += s.value
		total += s.value
	}
	if len(operations) != MaxOperationLabels+1 || operations[otherLabel] != 19*MaxOperationLabels || operations["granted 0"] != 2 {
		t.Errorf("%d labels, %v calls under %q, %v under the first", len(operations), operations[otherLabel], otherLabel, operations["granted 0"])
	}
	if total != 20*MaxOperationLabels+1 {
		t.Errorf("%v calls were counted", total)
	}
}

// Each outcome has its word.
func TestOutcomeWords(t *testing.T) {
	t.Parallel()
	granted := func(c *idemv1.Claim) *idemv1.BeginResponse {
		return &idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Granted{Granted: c}}
	}
	for _, c := range []struct {
		resp any
		err  error
		want string
	}{
		{granted(&idemv1.Claim{}), nil, "granted"},
		{granted(&idemv1.Claim{Resumed: true, PreviousAbandoned: true}), nil, "resumed"},
		{granted(&idemv1.Claim{PreviousAbandoned: true}), nil, "granted_previous_abandoned"},
		{&idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Completed{}}, nil, "completed"},
		{&idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_Failed{}}, nil, "failed"},
		{&idemv1.BeginResponse{Outcome: &idemv1.BeginResponse_InProgress{}}, nil, "in_progress"},
		{&idemv1.CompleteResponse{}, nil, "ok"},
		{&idemv1.CompleteResponse{Resent: true}, nil, "resent"},
		{&idemv1.FailResponse{Resent: true}, nil, "resent"},
		{nil, nil, "ok"},
		{nil, onWire(&ledger.Refusal{Reason: ledger.ReasonKeyReused}), "KEY_REUSED"},
		{nil, onWire(context.Canceled), "CANCELED"},
		{nil, onWire(errors.New("x")), "INTERNAL"},
	} {
		if got := outcomeOf(c.resp, c.err); got != c.want {
			t.Errorf("%v, %v: %q, want %q", c.resp, c.err, got, c.want)
		}
	}
}

// What the ledger tells its observer stands in the metrics.
func TestMetricsObserveTheLedger(t *testing.T) {
	t.Parallel()
	m := NewMetrics(prometheus.NewRegistry())
	for _, err := range []error{nil, ledger.ErrUnknown, ledger.ErrContended, ledger.ErrUnavailable, ledger.ErrBadRow, context.Canceled, context.DeadlineExceeded, errors.New("x")} {
		m.StoreCall("get", time.Millisecond, err)
	}
	if got := collected(t, m.storeSeconds)[0]; got.count != 8 || got.labels["call"] != "get" {
		t.Errorf("store latency: %+v", got)
	}
	classes := map[string]float64{}
	for _, s := range collected(t, m.storeErrors) {
		classes[s.labels["class"]] = s.value
	}
	if want := map[string]float64{"unknown": 1, "contended": 1, "unavailable": 1, "bad_row": 1, "context": 2, "other": 1}; fmt.Sprint(classes) != fmt.Sprint(want) {
		t.Errorf("store errors: %v, want %v", classes, want)
	}
	m.Waiting(7)
	m.Overdue(3*time.Second, 4*time.Second, 5)
	if valueOf(t, m.waiting) != 7 || valueOf(t, m.oldestDue) != 3 || valueOf(t, m.oldestHeld) != 4 || valueOf(t, m.held) != 5 {
		t.Errorf("waiting %v, due %v, held %v since %v", valueOf(t, m.waiting), valueOf(t, m.oldestDue), valueOf(t, m.held), valueOf(t, m.oldestHeld))
	}
	m.Swept(ledger.SweepProgress{Examined: 6, Closed: 1, Lapsed: 2, Forgotten: 3, Held: 4, Missed: 5})
	m.Swept(ledger.SweepProgress{Examined: 6, Forgotten: 3})
	actions := map[string]float64{}
	for _, s := range collected(t, m.swept) {
		actions[s.labels["action"]] = s.value
	}
	if want := map[string]float64{"examined": 12, "closed": 1, "lapsed": 2, "forgotten": 6, "held": 4, "missed": 5}; fmt.Sprint(actions) != fmt.Sprint(want) {
		t.Errorf("swept: %v, want %v", actions, want)
	}
}

// Every metric of idemd has a help that says something, and the help of the bounded one states its bound.
func TestMetricsExplainThemselves(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	s := newTestServer(t, func(c *Config) { c.Metrics, c.Version = NewMetrics(reg), "v1.2.3" })
	s.metrics.count(idemv1.LedgerService_Lookup_FullMethodName, nil, nil, nil)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	help := map[string]string{}
	for _, f := range families {
		help[f.GetName()] = f.GetHelp()
		if len(f.GetHelp()) < 10 {
			t.Errorf("%s: %q", f.GetName(), f.GetHelp())
		}
	}
	if want := fmt.Sprintf("first %d operations", MaxOperationLabels); !strings.Contains(help["idemd_outcomes_total"], want) {
		t.Errorf("the help of idemd_outcomes_total does not say %q: %q", want, help["idemd_outcomes_total"])
	}
	for _, name := range []string{"idemd_build_info", "idemd_ready", "idemd_panics_total", "grpc_server_started_total", "grpc_server_handled_total"} {
		if help[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
}
