package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"buf.build/go/protovalidate"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// The interceptors stand in this order, and each has both its forms.
func TestLayersInOrder(t *testing.T) {
	t.Parallel()
	var names []string
	for _, l := range newTestServer(t, nil).layers() {
		if names = append(names, l.name); l.unary == nil || l.stream == nil {
			t.Errorf("%s has a form missing", l.name)
		}
	}
	if got, want := strings.Join(names, " "), "calls log outcomes refusals recovery identity admission limits"; got != want {
		t.Errorf("the layers are %s, want %s", got, want)
	}
}

// chain runs a call through all layers, as gRPC does.
func (s *Server) chain(ctx context.Context, req any, method string, handler grpc.UnaryHandler) (any, error) {
	return s.interceptUnary(ctx, req, &grpc.UnaryServerInfo{FullMethod: method}, handler)
}

// What each layer stands inside of, told by what a call is answered that several of them would refuse.
func TestLayersStandInsideEachOther(t *testing.T) {
	t.Parallel()
	const method = idemv1.LedgerService_Lookup_FullMethodName
	malformed := &idemv1.LookupRequest{}
	foreign := &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Tenant: "theirs", Operation: "o", Key: "k"}}
	mine := func() *idemv1.LookupRequest {
		return &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Operation: "o", Key: "k"}}
	}
	tied := func(context.Context, string) (Principal, error) {
		return Principal{Name: "me", Tenant: "mine", Roles: Reader}, nil
	}
	stranger := func(context.Context, string) (Principal, error) {
		return Principal{}, status.Error(codes.Unauthenticated, "who?")
	}
	panics := func(context.Context, string) (Principal, error) { panic("in Identify") }
	full := func(s *Server) { s.limiter = newLimiter(0, 0) }
	for name, c := range map[string]struct {
		identify func(context.Context, string) (Principal, error)
		req      *idemv1.LookupRequest
		sabotage func(*Server)
		want     ledger.Reason
	}{
		"identity before validation":  {identify: stranger, req: malformed, want: ReasonUnauthenticated},
		"identity before limits":      {identify: stranger, req: mine(), sabotage: full, want: ReasonUnauthenticated},
		"validation before tenancy":   {identify: tied, req: &idemv1.LookupRequest{Ref: &idemv1.EntryRef{Tenant: "theirs", Operation: "o"}}, want: ledger.ReasonInvalidKey},
		"tenancy before limits":       {identify: tied, req: foreign, sabotage: full, want: ledger.ReasonPermissionDenied},
		"limits before the handler":   {identify: tied, req: mine(), sabotage: full, want: ledger.ReasonQuota},
		"recovery around identity":    {identify: panics, req: mine(), want: ledger.ReasonInternal},
		"recovery around the handler": {identify: tied, req: mine(), want: ledger.ReasonInternal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := newTestServer(t, func(cfg *Config) {
				cfg.Identify = c.identify
				cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			})
			if c.sabotage != nil {
				c.sabotage(s)
			}
			_, err := s.chain(metadata.NewIncomingContext(t.Context(), metadata.Pairs(RequestIDHeader, "id-1")), proto.Clone(c.req), method,
				func(context.Context, any) (any, error) { panic("in the handler") })
			if got := reasonIn(status.Convert(err)); got != c.want {
				t.Errorf("refused %s, want %s", got, c.want)
			}
			// The log saw the call, with the status that its caller got.
			if want := "code=" + status.Code(err).String(); !strings.Contains(log.String(), want) || !strings.Contains(log.String(), "request_id=id-1") {
				t.Errorf("the log has no call with %s and its request id:\n%s", want, log.String())
			}
			if strings.Contains(log.String(), "in the handler") || strings.Contains(log.String(), "in Identify") {
				t.Errorf("the log tells what a panic said:\n%s", log.String())
			}
			if got := counted(t, s.metrics, "Lookup", string(c.want)); got != 1 {
				t.Errorf("counted %v times as %s", got, c.want)
			}
		})
	}
}

// counted is how often an outcome of a method was counted, under whatever operation.
func counted(t *testing.T, m *Metrics, rpc, outcome string) float64 {
	t.Helper()
	total := 0.0
	for _, c := range collected(t, m.outcomes) {
		if c.labels["rpc"] == rpc && c.labels["outcome"] == outcome {
			total += c.value
		}
	}
	return total
}

// Every request that is served is validated by compiled rules.
func TestEveryRequestIsValidated(t *testing.T) {
	t.Parallel()
	compiled := map[protoreflect.FullName]bool{}
	for _, m := range requests() {
		compiled[m.ProtoReflect().Descriptor().FullName()] = true
	}
	for _, m := range ourMethods(t) {
		if !compiled[m.Input().FullName()] {
			t.Errorf("%s is not among the requests to validate", m.Input().FullName())
		}
		delete(compiled, m.Input().FullName())
	}
	for name := range compiled {
		t.Errorf("%s is no request", name)
	}
}

// Every top-level field of every request has a reason of its own, or is one that INVALID_REQUEST was chosen for.
func TestEveryFieldHasItsReason(t *testing.T) {
	t.Parallel()
	plain := map[string]bool{
		"ref": true, "mode": true, "claim_token": true, "details_omitted": true, "effective": true, "etag": true, "dry_run": true, "limit": true,
		"conditions": true, "older_than": true, "doubt_only": true, "attempt": true, "force": true, "release": true, "create_time_before": true,
		"calls": true, "cancel_ids": true,
	}
	for _, m := range ourMethods(t) {
		fields := m.Input().Fields()
		for i := range fields.Len() {
			name := string(fields.Get(i).Name())
			if got := reasonOf(name); (got == ledger.ReasonInvalidRequest) != plain[name] {
				t.Errorf("%s.%s is refused with %s", m.Input().Name(), name, got)
			}
		}
	}
	for path, want := range map[string]ledger.Reason{
		"ref.key": ledger.ReasonInvalidKey, "fingerprints[1].hash": ledger.ReasonInvalidFingerprint, "policy.horizons.settlement": ledger.ReasonInvalidPolicy,
		"response.metadata[0].key": ledger.ReasonInvalidReport, "conditions[3]": ledger.ReasonInvalidRequest, "": ledger.ReasonInvalidRequest,
	} {
		if got := reasonOf(path); got != want {
			t.Errorf("%q is refused with %s, want %s", path, got, want)
		}
	}
}

// A request that breaks several rules is told all of them; patterns are told in words.
func TestBrokenRulesAreToldInWords(t *testing.T) {
	t.Parallel()
	v, err := newValidator()
	if err != nil {
		t.Fatal(err)
	}
	bad := v.validate(&idemv1.BeginRequest{
		Ref: &idemv1.EntryRef{Tenant: "t", Operation: "o", Key: "k"}, AttemptId: "x", Holder: "a\nb",
		Fingerprints: []*idemv1.Fingerprint{{Algorithm: "A B", Hash: make([]byte, 16)}},
	})
	var several *badRequest
	if !errors.As(bad, &several) {
		t.Fatalf("got %v", bad)
	}
	rules := map[string]string{}
	for _, violation := range several.violations {
		rules[violation.GetField()] = violation.GetDescription()
	}
	for field, want := range map[string]string{
		"attempt_id": "UUID", "holder": "control characters", "fingerprints[0].algorithm": "must match [a-z0-9._-]+",
	} {
		if !strings.Contains(rules[field], want) {
			t.Errorf("%s: %q, want something with %q", field, rules[field], want)
		}
	}
	for field, rule := range rules {
		if strings.Contains(rule, `\x`) || rule == "" {
			t.Errorf("%s: %q is no rule for people", field, rule)
		}
	}
}

// However much is wrong with a request, what is told of it stays short; and of a large request one thing is enough.
func TestBrokenRulesAreBounded(t *testing.T) {
	t.Parallel()
	v, err := newValidator()
	if err != nil {
		t.Fatal(err)
	}
	for members, want := range map[int]int{20: maxViolations, 100_000: 1} {
		req := &idemv1.BeginRequest{Ref: &idemv1.EntryRef{Tenant: "t", Operation: "o", Key: "k"}, AttemptId: "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"}
		for range members {
			req.Fingerprints = append(req.Fingerprints, &idemv1.Fingerprint{})
		}
		var several *badRequest
		if bad := v.validate(req); !errors.As(bad, &several) || len(several.violations) != want {
			t.Errorf("%d bad members: %v, want %d violations", members, bad, want)
		}
	}
}

// The rules in the .proto and those of the ledger agree on the parts of an entry's name, at every limit.
func TestProtoAndLedgerAgreeOnNames(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "a", "\u00a0", "\u0085", "\u009f", "\u00a0x", "\x7f", "\x00", "\n", "\u2028", "\ufeff", strings.Repeat("é", 128), strings.Repeat("é", 129),
		strings.Repeat("\U0001f642", 255), strings.Repeat("\U0001f642", 256), strings.Repeat("a", 255), strings.Repeat("a", 256),
	} {
		for _, ref := range []*idemv1.EntryRef{
			{Tenant: "t", Operation: "o", Key: text}, {Tenant: "t", Operation: text, Key: "k"}, {Tenant: text, Operation: "o", Key: "k"},
		} {
			if ref.GetTenant() == "" {
				continue // filled in before the ledger sees it
			}
			byProto, byLedger := protovalidate.Validate(ref), refOf(ref).Validate()
			if (byProto == nil) != (byLedger == nil) {
				t.Errorf("%.60v: the .proto says %v, the ledger %v", ref, byProto, byLedger)
			}
		}
	}
}
