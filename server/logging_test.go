package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/server"
	"github.com/idemd/idemd/server/servertest"
)

// logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: level}))
}

// lines are the log's calls of one RPC.
func (b *logBuffer) lines(t *testing.T, rpc string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for _, line := range strings.Split(strings.TrimSpace(b.String()), "\n") {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("%q is no JSON: %v", line, err)
		}
		if fields["msg"] == "call" && fields["rpc"] == rpc {
			out = append(out, fields)
		}
	}
	return out
}

// The secrets of a run: none of them may be seen anywhere but in answers.
const (
	secretKey      = "key-3f1c secret"
	secretBody     = "body-9d2e secret"
	secretMetadata = "metadata-77aa secret"
	secretDetail   = "detail-51bb secret"
	secretToken    = "token-08cc secret"
	secretMessage  = "message-e4dd secret"
)

// everything makes calls of every kind, refused ones among them, with secrets wherever there can be some.
func everything(r *rig) (tokens [][]byte) {
	ctx := metadata.AppendToOutgoingContext(r.ctx, "authorization", "Bearer "+secretToken, "cookie", secretToken)
	response := &idemv1.Response{
		Body: []byte(secretBody), ContentType: "text/plain", ResourceId: secretBody,
		Metadata: []*idemv1.MetadataEntry{{Key: "vary", Value: []byte(secretMetadata)}, {Key: "authorization", Value: []byte(secretToken)}},
	}
	failed := &statuspb.Status{Code: 3, Message: secretMessage, Details: []*anypb.Any{{TypeUrl: "x/y", Value: []byte(secretDetail)}}}
	_, _ = r.admin.PutPolicy(ctx, &idemv1.PutPolicyRequest{
		Policy: &idemv1.Policy{Tenant: "*", Operation: "*", ResponseMetadataAllow: []string{"vary"}},
	})
	for _, key := range []string{secretKey, secretKey + " 2", secretKey + " 3", secretKey + "\n"} {
		first := beginRequest(key)
		granted, _ := r.Begin(ctx, first)
		_, _ = r.Begin(ctx, first)
		_, _ = r.Begin(ctx, beginRequest(key))
		_, _ = r.Begin(ctx, beginRequest(key, func(b *idemv1.BeginRequest) { b.AttemptId = key }))
		_, _ = r.Begin(ctx, beginRequest(key, func(b *idemv1.BeginRequest) { b.Fingerprints[0].Hash = []byte(secretBody) }))
		c := granted.GetGranted()
		tokens = append(tokens, c.GetClaimToken())
		_, _ = r.Extend(ctx, &idemv1.ExtendRequest{Ref: refTo(key), ClaimToken: c.GetClaimToken()})
		_, _ = r.Extend(ctx, &idemv1.ExtendRequest{Ref: refTo(key), ClaimToken: []byte(secretToken)})
		if strings.HasSuffix(key, "2") {
			_, _ = r.Fail(ctx, failRequest(key, c, idemv1.Disposition_DISPOSITION_FINAL, failed))
		} else {
			_, _ = r.Complete(ctx, completeRequest(key, c, response))
		}
		_, _ = r.Complete(ctx, completeRequest(key, c, &idemv1.Response{Body: []byte(secretBody + "!")}))
		_, _ = r.Begin(ctx, beginRequest(key))
		_, _ = r.Lookup(ctx, &idemv1.LookupRequest{Ref: refTo(key)})
		_, _ = r.admin.ResolveEntry(ctx, &idemv1.ResolveEntryRequest{
			Ref: refTo(key), Attempt: 1, Reason: "asked the provider", Force: true,
			Resolution: &idemv1.ResolveEntryRequest_Complete{Complete: response},
		})
	}
	_, _ = r.admin.ListEntries(ctx, &idemv1.ListEntriesRequest{})
	_, _ = r.admin.GetStats(ctx, &idemv1.GetStatsRequest{})
	_ = sweep(r, &idemv1.SweepRequest{})
	if stream, err := r.admin.DeleteEntries(ctx, &idemv1.DeleteEntriesRequest{Tenant: server.DefaultTenant, CreateTimeBefore: timestamppb.New(time.Now().Add(time.Hour))}); err == nil {
		_, _ = last(stream)
	}
	r.daemon.Down()
	_, _ = r.Begin(ctx, beginRequest(secretKey))
	_, _ = r.Complete(ctx, completeRequest(secretKey, nil, response))
	r.daemon.Up()
	return tokens
}

// A run with secrets everywhere leaves none in the log, whatever its level, nor in metrics, nor in spans.
func TestSecretsStayOutOfLogsMetricsAndSpans(t *testing.T) {
	t.Parallel()
	var log logBuffer
	spans := &spanRecorder{}
	r := newRig(t, servertest.Options{Logger: log.logger(slog.LevelDebug - 4), TracerProvider: spans})
	tokens := everything(r)
	r.advance(48 * time.Hour)
	_ = sweep(r, &idemv1.SweepRequest{})
	metrics := get(t, r.daemon.Server().HTTP(), "/metrics", "").body
	if err := r.daemon.Close(); err != nil {
		t.Error(err)
	}
	places := map[string]string{"log": log.String(), "metrics": metrics, "spans": spans.String()}
	for place, text := range places {
		if len(text) < 1000 {
			t.Errorf("there is next to nothing in the %s:\n%s", place, text)
		}
		for _, secret := range []string{secretKey, secretBody, secretMetadata, secretDetail, secretToken, secretMessage, "secret"} {
			if strings.Contains(text, secret) {
				t.Errorf("the %s hold %q:\n%s", place, secret, around(text, secret))
			}
		}
		for _, token := range tokens {
			for _, form := range []string{string(token), fmt.Sprintf("%x", token), fmt.Sprintf("%q", token)} {
				if len(token) > 0 && strings.Contains(text, form) {
					t.Errorf("the %s hold a claim token:\n%s", place, around(text, form))
				}
			}
		}
	}
	hash := r.daemon.Ledger().LogKey(ledger.Ref{Tenant: server.DefaultTenant, Operation: operation, Key: secretKey})
	if !strings.Contains(places["log"], hash) || !strings.Contains(places["spans"], hash) || strings.Contains(places["metrics"], hash) {
		t.Error("the keyed hash of the key belongs into log and spans, and not into metrics")
	}
}

func around(text, part string) string {
	i := strings.Index(text, part)
	return text[max(i-200, 0):min(i+200, len(text))]
}

// A call is found in the log by the request id that its caller sent, or else by the one that it gets back.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := newRig(t, servertest.Options{Logger: log.logger(slog.LevelDebug)})
	for _, c := range []struct {
		sent []string
		kept bool
	}{
		{[]string{"req-42"}, true},
		{nil, false},
		{[]string{"two", "of them"}, false},
		{[]string{"with space"}, false},
		{[]string{strings.Repeat("x", 129)}, false},
		{[]string{""}, false},
	} {
		ctx := r.ctx
		for _, id := range c.sent {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", id)
		}
		var header metadata.MD
		_, _ = r.Lookup(ctx, &idemv1.LookupRequest{Ref: refTo("k")}, grpc.Header(&header))
		got := header.Get("x-request-id")
		if len(got) != 1 || (got[0] == strings.Join(c.sent, "")) != c.kept {
			t.Errorf("sent %q, got %q", c.sent, got)
			continue
		}
		if _, err := uuid.Parse(got[0]); !c.kept && err != nil {
			t.Errorf("the fresh request id %q is no UUID", got[0])
		}
		calls := log.lines(t, "Lookup")
		if id := calls[len(calls)-1]["request_id"]; id != got[0] {
			t.Errorf("logged as %v, answered as %q", id, got[0])
		}
	}
}

// A call that leaves no line in the log has no id to be found by, unless its caller made one; one that does has.
func TestRequestIDsAreForLinesInTheLog(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := newRig(t, servertest.Options{Logger: log.logger(slog.LevelInfo)})
	begin := func(ctx context.Context, request *idemv1.BeginRequest) []string {
		var header metadata.MD
		_, _ = r.Begin(ctx, request, grpc.Header(&header))
		return header.Get("x-request-id")
	}
	if id := begin(r.ctx, beginRequest("k")); len(id) != 0 {
		t.Errorf("a call that went well, and is not logged, was given the id %q", id)
	}
	if id := begin(metadata.AppendToOutgoingContext(r.ctx, "x-request-id", "mine"), beginRequest("k")); !slices.Equal(id, []string{"mine"}) {
		t.Errorf("the caller's own id came back as %q", id)
	}
	id := begin(r.ctx, &idemv1.BeginRequest{})
	if calls := log.lines(t, "Begin"); len(calls) != 1 || len(id) != 1 || calls[0]["request_id"] != id[0] {
		t.Errorf("a call that was refused was given the id %q, and logged as %v", id, calls)
	}
}

// What an operator changed is logged, with who it was and why; what went well otherwise is not.
func TestOperatorsAreLogged(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := newRig(t, servertest.Options{Logger: log.logger(slog.LevelInfo), Identify: principals{}.identify})
	root, service := principals{}.as("root", "")(r.ctx), principals{}.as("shop", "a")(r.ctx)
	granted, err := r.Begin(service, beginRequest("k"))
	if err != nil {
		t.Fatal(err)
	}
	ref := &idemv1.EntryRef{Tenant: "a", Operation: operation, Key: "k"}
	if _, err := r.admin.ResolveEntry(root, &idemv1.ResolveEntryRequest{
		Ref: ref, Attempt: 1, Reason: "asked the provider", Force: true, Resolution: &idemv1.ResolveEntryRequest_Release{Release: &idemv1.Release{}},
	}); err != nil {
		t.Fatal(err)
	}
	_, err = r.Complete(service, completeRequest("k", granted.GetGranted(), &idemv1.Response{}))
	if err == nil {
		t.Fatal("the claim that was released can still complete")
	}
	if calls := log.lines(t, "Begin"); len(calls) != 0 {
		t.Errorf("a Begin that went well is logged: %v", calls)
	}
	resolved := log.lines(t, "ResolveEntry")
	if len(resolved) != 1 || resolved[0]["principal"] != "root" || resolved[0]["reason_given"] != "asked the provider" ||
		resolved[0]["resolution"] != "release" || resolved[0]["tenant"] != "a" || resolved[0]["force"] != true || resolved[0]["code"] != "OK" {
		t.Errorf("the resolution is logged as %v", resolved)
	}
	refused := log.lines(t, "Complete")
	if len(refused) != 1 || refused[0]["principal"] != "shop" || refused[0]["reason"] != "CLAIM_LOST" || refused[0]["level"] != "INFO" {
		t.Errorf("the refusal is logged as %v", refused)
	}
}

// A store that is away is a warning, with the cause that no caller is told; wrong credentials are logged with theirs.
func TestCausesAreLogged(t *testing.T) {
	t.Parallel()
	var log logBuffer
	r := newRig(t, servertest.Options{Logger: log.logger(slog.LevelInfo)})
	r.daemon.Down()
	_, err := r.Lookup(r.ctx, &idemv1.LookupRequest{Ref: refTo("k")})
	if strings.Contains(err.Error(), "injected") {
		t.Errorf("the caller is told the cause: %v", err)
	}
	calls := log.lines(t, "Lookup")
	if len(calls) != 1 || calls[0]["level"] != "WARN" || !strings.Contains(fmt.Sprint(calls[0]["error"]), "injected") {
		t.Errorf("logged as %v", calls)
	}
	r.daemon.Up()
}

// answered is what an HTTP endpoint answered.
type answered struct {
	code int
	kind string
	body string
}

func get(t *testing.T, h http.Handler, path, accept string) answered {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{w.Code, w.Header().Get("Content-Type"), string(body)}
}

// spanRecorder writes down everything that spans are told.
type spanRecorder struct {
	embedded.TracerProvider
	mu   sync.Mutex
	told strings.Builder
}

type recordingTracer struct {
	embedded.Tracer
	*spanRecorder
}

func (r *spanRecorder) tell(what ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintln(&r.told, what...)
}

func (r *spanRecorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.told.String()
}

func (r *spanRecorder) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return recordingTracer{spanRecorder: r}
}

func (r recordingTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	cfg := trace.NewSpanStartConfig(options...)
	r.tell(name, attributesOf(cfg.Attributes()))
	span := &recordedSpan{recorder: r.spanRecorder}
	return trace.ContextWithSpan(ctx, span), span
}

func attributesOf(attributes []attribute.KeyValue) (out []string) {
	for _, a := range attributes {
		out = append(out, string(a.Key)+"="+a.Value.String())
	}
	return out
}

type recordedSpan struct {
	noop.Span
	recorder *spanRecorder
}

func (s *recordedSpan) IsRecording() bool                       { return true }
func (s *recordedSpan) TracerProvider() trace.TracerProvider    { return s.recorder }
func (s *recordedSpan) SetStatus(c otelcodes.Code, text string) { s.recorder.tell(c, text) }
func (s *recordedSpan) SetName(name string)                     { s.recorder.tell(name) }
func (s *recordedSpan) RecordError(err error, _ ...trace.EventOption) {
	s.recorder.tell(err)
}
func (s *recordedSpan) SetAttributes(a ...attribute.KeyValue) { s.recorder.tell(attributesOf(a)) }
func (s *recordedSpan) AddEvent(name string, o ...trace.EventOption) {
	cfg := trace.NewEventConfig(o...)
	s.recorder.tell(name, attributesOf(cfg.Attributes()))
}
