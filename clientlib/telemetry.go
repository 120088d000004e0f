package clientlib

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"
)

const scopeName = "github.com/idemd/idemd/clientlib"

// telemetry counts and traces what guards decide. Operations are in it, because there are few and they are no secrets; keys,
// tenants and bodies never are.
type telemetry struct {
	tracer        trace.Tracer
	outcomes      metric.Int64Counter
	duration      metric.Float64Histogram
	resends       metric.Int64Counter
	lostClaims    metric.Int64Counter
	unrecorded    metric.Int64Counter
	pending       metric.Int64UpDownCounter
	unknownFields metric.Int64Counter
}

func newTelemetry(config Config) (*telemetry, error) {
	meters, tracers := config.MeterProvider, config.TracerProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	meter := meters.Meter(scopeName)
	t := &telemetry{tracer: tracers.Tracer(scopeName)}
	var err error
	counter := func(name, description string) metric.Int64Counter {
		made, e := meter.Int64Counter(name, metric.WithDescription(description))
		if e != nil {
			err = e
		}
		return made
	}
	t.outcomes = counter("idem.client.calls", "Guarded calls, by operation and outcome.")
	t.resends = counter("idem.client.resends", "Calls to the ledger that were resent, by call.")
	t.lostClaims = counter("idem.client.claims_lost", "Claims that were lost while the work ran, by operation.")
	t.unrecorded = counter("idem.client.outcomes_not_recorded", "Outcomes that the ledger could not be told, by operation.")
	t.unknownFields = counter("idem.client.unknown_fields", "Request fields that no fingerprint covers because this program's schema does not have them, by operation.")
	var e error
	if t.duration, e = meter.Float64Histogram("idem.client.call.duration", metric.WithUnit("s"),
		metric.WithDescription("How long guarded calls took, the work included.")); e != nil {
		err = e
	}
	if t.pending, e = meter.Int64UpDownCounter("idem.client.outcomes_pending",
		metric.WithDescription("Outcomes that are being recorded in the background.")); e != nil {
		err = e
	}
	if err != nil {
		return nil, invalidConfig("make the instruments: %w", err)
	}
	return t, nil
}

// call opens a span for a guarded call; the work's own spans are inside it.
func (t *telemetry) call(ctx context.Context, operation string) (context.Context, func(Result, error)) {
	began := time.Now()
	ctx, span := t.tracer.Start(ctx, "idem.guard", trace.WithAttributes(attribute.String("idem.operation", operation)))
	return ctx, func(result Result, err error) {
		attributes := []attribute.KeyValue{
			attribute.String("idem.operation", operation), attribute.String("idem.outcome", string(result.Outcome)),
		}
		if result.WouldBe != "" {
			attributes = append(attributes, attribute.String("idem.would_be", string(result.WouldBe)))
		}
		if e, ok := AsError(err); ok && e.Reason != "" {
			attributes = append(attributes, attribute.String("idem.reason", string(e.Reason)))
		}
		set := metric.WithAttributes(attributes...)
		t.outcomes.Add(ctx, 1, set)
		t.duration.Record(ctx, time.Since(began).Seconds(), set)
		span.SetAttributes(attributes...)
		span.SetAttributes(attribute.Int("idem.attempt", int(result.Attempt)), attribute.Bool("idem.recorded", result.Recorded))
		if err != nil {
			// The code only: a message can hold what the caller sent.
			span.SetStatus(otelcodes.Error, status.Code(err).String())
		}
		span.End()
	}
}

func (t *telemetry) resent(ctx context.Context, call string) {
	t.resends.Add(ctx, 1, metric.WithAttributes(attribute.String("idem.call", call)))
}

func (t *telemetry) claimLost(ctx context.Context, operation string) {
	t.lostClaims.Add(ctx, 1, ofOperation(operation))
}

func (t *telemetry) notRecorded(ctx context.Context, operation string) {
	t.unrecorded.Add(ctx, 1, ofOperation(operation))
}

func (t *telemetry) settling(ctx context.Context, change int64) { t.pending.Add(ctx, change) }

func (t *telemetry) notCovered(ctx context.Context, operation string, fields int) {
	if fields > 0 {
		t.unknownFields.Add(ctx, int64(fields), ofOperation(operation))
	}
}

func ofOperation(operation string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("idem.operation", operation))
}
