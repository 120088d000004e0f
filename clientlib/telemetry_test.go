package clientlib

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// notes is what was counted and traced, as text.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(name string, set attribute.Set) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, name+" "+set.Encoded(attribute.DefaultEncoder()))
}

type notingMeters struct {
	metricnoop.MeterProvider
	notes *notes
}

func (m notingMeters) Meter(string, ...metric.MeterOption) metric.Meter {
	return notingMeter{notes: m.notes}
}

type notingMeter struct {
	metricnoop.Meter
	notes *notes
}

func (m notingMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return notingCounter{name: name, notes: m.notes}, nil
}

type notingCounter struct {
	metricnoop.Int64Counter
	name  string
	notes *notes
}

func (c notingCounter) Add(_ context.Context, _ int64, options ...metric.AddOption) {
	c.notes.add(c.name, metric.NewAddConfig(options).Attributes())
}

type notingTracers struct {
	tracenoop.TracerProvider
	notes *notes
}

func (t notingTracers) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return notingTracer{notes: t.notes}
}

type notingTracer struct {
	tracenoop.Tracer
	notes *notes
}

func (t notingTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(options...)
	t.notes.add(name, attribute.NewSet(config.Attributes()...))
	return ctx, notingSpan{notes: t.notes}
}

type notingSpan struct {
	tracenoop.Span
	notes *notes
}

func (s notingSpan) SetAttributes(set ...attribute.KeyValue) {
	s.notes.add("span", attribute.NewSet(set...))
}

func (s notingSpan) SetStatus(code otelcodes.Code, description string) {
	s.notes.add("status "+code.String()+" "+description, attribute.NewSet())
}

func TestOutcomesAreCountedAndTracedWithoutKeys(t *testing.T) {
	seen := &notes{}
	client, _ := scriptedClient(t, Config{MeterProvider: notingMeters{notes: seen}, TracerProvider: notingTracers{notes: seen}},
		func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
			if n == 0 {
				return nil, away
			}
			return grant(request, time.Minute), nil
		})
	ref := Ref{Tenant: "the-tenant", Operation: "op", Key: "the-key"}
	if _, err := client.Do(t.Context(), ref, testPrint(t), respond("the-body"), rerun); err != nil {
		t.Error(err)
	}
	_, _ = client.Do(t.Context(), ref, testPrint(t), func(context.Context, Claim) (Response, error) {
		return Response{}, status.Error(codes.NotFound, "the-message")
	}, rerun)
	text := strings.Join(seen.lines, "\n")
	for _, want := range []string{"idem.client.calls idem.operation=op,idem.outcome=executed", "idem.client.resends idem.call=Begin", "idem.guard idem.operation=op", "span idem.attempt=1,idem.recorded=true", "status Error NotFound"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	for _, secret := range []string{"the-key", "the-tenant", "the-body", "the-message"} {
		if strings.Contains(text, secret) {
			t.Errorf("%q is in\n%s", secret, text)
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatADryRunLetPassIsCountedAsWhatItWouldBe(t *testing.T) {
	seen := &notes{}
	client, _ := scriptedClient(t, Config{MeterProvider: notingMeters{notes: seen}, TracerProvider: notingTracers{notes: seen}}, nil)
	g, m := &guard{Guard: Guard{Ledger: client, DryRun: true}}, &method{GuardedMethod: GuardedMethod{Operation: "op"}}
	server := &serverCall{guard: g, method: m, handler: func(context.Context, any) (any, error) { return "answer", nil }}
	caller := &clientCall{guard: g, method: m, invoker: func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		return nil
	}}
	for side, refuse := range map[string]func(context.Context, error) (Result, error){"server": server.refuse, "client": caller.refuse} {
		seen.lines = nil
		if result, err := refuse(t.Context(), ErrInvalidKey); err != nil || result.Outcome != Bypassed || result.WouldBe != Refused {
			t.Errorf("%s: %+v %v", side, result, err)
		}
		if text, want := strings.Join(seen.lines, "\n"), "idem.client.calls idem.operation=op,idem.outcome=bypassed,idem.would_be=refused"; !strings.Contains(text, want) {
			t.Errorf("%s: %q is not in\n%s", side, want, text)
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestFieldsThatNoFingerprintCoversAreCounted(t *testing.T) {
	seen := &notes{}
	client, _ := scriptedClient(t, Config{MeterProvider: notingMeters{notes: seen}, TracerProvider: notingTracers{notes: seen}}, nil)
	hasher, err := fingerprint.NewProtoHasher((&emptypb.Empty{}).ProtoReflect().Descriptor(), fingerprint.ProtoConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g, m := &guard{Guard: Guard{Ledger: client}}, &method{GuardedMethod: GuardedMethod{Operation: "op"}, hasher: hasher}
	request := &emptypb.Empty{}
	for _, unknown := range []int{0, 1} {
		if unknown > 0 {
			request.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		}
		if _, err := g.fingerprint(t.Context(), m, request); err != nil {
			t.Error(err)
		}
		if n := strings.Count(strings.Join(seen.lines, "\n"), "idem.client.unknown_fields idem.operation=op"); n != unknown {
			t.Errorf("%d unknown fields: counted %d times", unknown, n)
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

func TestClaimsAndOutcomesThatAreLostAreCounted(t *testing.T) {
	seen := &notes{}
	lost := (&Error{Code: codes.FailedPrecondition, Reason: ReasonClaimLost}).GRPCStatus().Err()
	refused := (&Error{Code: codes.PermissionDenied, Reason: ReasonPermissionDenied}).GRPCStatus().Err()
	client, _ := scriptedClient(t, Config{MeterProvider: notingMeters{notes: seen}, TracerProvider: notingTracers{notes: seen}},
		func(_ context.Context, n int, request proto.Message) (proto.Message, error) {
			if _, ok := request.(*idemv1.CompleteRequest); ok {
				return nil, []error{lost, refused}[n]
			}
			return grant(request, time.Minute), nil
		})
	for _, want := range []string{"idem.client.claims_lost idem.operation=op", "idem.client.outcomes_not_recorded idem.operation=op"} {
		seen.lines = nil
		_, _ = client.Do(t.Context(), testRef, testPrint(t), respond("x"), rerun)
		if text := strings.Join(seen.lines, "\n"); !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}
