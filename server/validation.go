package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// validator judges requests by the rules in the .proto.
type validator struct{ rules protovalidate.Validator }

// compiledRules compiles the rules of the package's own messages once for the process: they are constants, and take a while.
var compiledRules = sync.OnceValues(func() (protovalidate.Validator, error) {
	return protovalidate.New(protovalidate.WithMessages(requests()...))
})

func newValidator() (*validator, error) {
	rules, err := compiledRules()
	if err != nil {
		return nil, fmt.Errorf("server: the validation rules do not compile: %w", err)
	}
	return &validator{rules: rules}, nil
}

// requests are all that there is to validate. A test compares them with the services.
func requests() []proto.Message {
	return []proto.Message{
		&idemv1.BeginRequest{}, &idemv1.CompleteRequest{}, &idemv1.FailRequest{}, &idemv1.ExtendRequest{}, &idemv1.LookupRequest{},
		&idemv1.SessionRequest{},
		&idemv1.PutPolicyRequest{}, &idemv1.GetPolicyRequest{}, &idemv1.ListPoliciesRequest{}, &idemv1.DeletePolicyRequest{},
		&idemv1.ApplyPolicyRequest{}, &idemv1.SweepRequest{}, &idemv1.ListEntriesRequest{}, &idemv1.ResolveEntryRequest{},
		&idemv1.DeleteEntriesRequest{}, &idemv1.GetStatsRequest{},
	}
}

// validate refuses a request that is not well formed. The names of an entry are judged by the ledger first: it says which character
// is wrong, where the .proto can only say which pattern is.
func (v *validator) validate(req any) error {
	if r, ok := req.(interface{ GetRef() *idemv1.EntryRef }); ok && r.GetRef() != nil {
		if refusal := refOf(r.GetRef()).Validate(); refusal != nil {
			return refusal
		}
	}
	if plainlyValid(req) {
		return nil
	}
	message, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	// One broken rule refuses the request. The others are looked for only in a request so small that their number is bounded: a list of a million
	// bad members must not cost a million violations.
	err := v.rules.Validate(message, protovalidate.WithFailFast())
	if err != nil && proto.Size(message) <= tellAllBytes {
		err = v.rules.Validate(message)
	}
	var broken *protovalidate.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &broken) && len(broken.Violations) > 0:
		return brokenRules(broken.Violations)
	default:
		return internal(err)
	}
}

const (
	// tellAllBytes is up to which size all that is wrong with a request is looked for.
	tellAllBytes = 4096
	// maxViolations is how many of them are told: they travel in the call's trailer.
	maxViolations = 16
)

func brokenRules(violations []*protovalidate.Violation) error {
	out := &badRequest{}
	for _, v := range violations[:min(len(violations), maxViolations)] {
		field, rule := protovalidate.FieldPathString(v.Proto.GetField()), ruleText(v)
		reason := reasonOf(field)
		if out.Refusal == nil {
			out.Refusal = &ledger.Refusal{
				Reason: reason, Message: strings.TrimSpace(field + " " + rule), Field: field, Rule: rule,
			}
		}
		out.violations = append(out.violations, violation(reason, field, rule))
	}
	return out
}

// controlPattern is how the .proto forbids control characters.
const controlPattern = `^[^\x00-\x1f\x7f-\x9f]*$`

// ruleText says in words what protovalidate says as a pattern.
func ruleText(v *protovalidate.Violation) string {
	if v.Proto.GetRuleId() == "string.pattern" {
		switch pattern := v.RuleValue.String(); pattern {
		case controlPattern:
			return "must not contain control characters (U+0000 to U+001F, U+007F to U+009F)"
		default:
			return "must match " + strings.TrimSuffix(strings.TrimPrefix(pattern, "^"), "$")
		}
	}
	text := v.Proto.GetMessage()
	if text == "" {
		text = "breaks the rule " + v.Proto.GetRuleId()
	}
	return text
}

// fieldReasons map the first parts of a field's path to the reason that it is refused with. The longest match counts.
var fieldReasons = map[string]ledger.Reason{
	"ref.tenant":    ledger.ReasonInvalidTenant,
	"ref.operation": ledger.ReasonInvalidOperation,
	"ref.key":       ledger.ReasonInvalidKey,
	"tenant":        ledger.ReasonInvalidTenant,
	"operation":     ledger.ReasonInvalidOperation,
	"fingerprints":  ledger.ReasonInvalidFingerprint,
	"attempt_id":    ledger.ReasonInvalidAttemptID,
	"holder":        ledger.ReasonInvalidHolder,
	"lease":         ledger.ReasonInvalidLease,
	"wait":          ledger.ReasonInvalidWait,
	"response":      ledger.ReasonInvalidReport,
	"status":        ledger.ReasonInvalidReport,
	"disposition":   ledger.ReasonInvalidReport,
	"complete":      ledger.ReasonInvalidReport,
	"fail":          ledger.ReasonInvalidReport,
	"reason":        ledger.ReasonInvalidReason,
	"policy":        ledger.ReasonInvalidPolicy,
	"page_size":     ledger.ReasonInvalidPage,
	"page_token":    ledger.ReasonInvalidPage,
}

// reasonOf is the reason that a broken rule about a field is refused with. A field of none in particular is INVALID_REQUEST.
func reasonOf(field string) ledger.Reason {
	path := strings.ReplaceAll(field, "[", ".")
	for path != "" {
		if reason, ok := fieldReasons[path]; ok {
			return reason
		}
		cut := strings.LastIndexByte(path, '.')
		path = path[:max(cut, 0)]
	}
	return ledger.ReasonInvalidRequest
}

// admit judges a request that has been read: whose it is, whether it is well formed, and whether its caller may name that tenant.
func (s *Server) admit(ctx context.Context, req any) error {
	callOf(ctx).request = req
	if err := unreadable(req); err != nil {
		return err
	}
	p := principalOf(ctx)
	tenant, named := tenantOf(req, p)
	if err := s.validator.validate(req); err != nil {
		return err
	}
	if !named {
		return nil
	}
	if tenant == "" {
		return &ledger.Refusal{
			Reason: ledger.ReasonInvalidTenant, Message: "tenant must be named: the credentials are no tenant's own", Field: "tenant",
			Rule: "must be named: the credentials are no tenant's own",
		}
	}
	return p.mayName(tenant)
}

func (s *Server) admitUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !isOurs(info.FullMethod) {
		return handler(ctx, req)
	}
	if err := s.admit(ctx, req); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (s *Server) admitStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	// The calls on a session are admitted one by one.
	if !isOurs(info.FullMethod) || info.FullMethod == idemv1.LedgerService_Session_FullMethodName {
		return handler(srv, stream)
	}
	return handler(srv, &admittedStream{ServerStream: stream, admit: s.admit})
}

func isOurs(method string) bool { return strings.HasPrefix(method, "/"+ErrorDomain+".") }

// admittedStream judges the request of a streaming call when it is read.
type admittedStream struct {
	grpc.ServerStream
	admit func(context.Context, any) error
}

func (s *admittedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.admit(s.Context(), m)
}

// badField is the refusal of a field's own conversion, where the .proto's rules let something through.
func badField(reason ledger.Reason, field, rule string) error {
	return &ledger.Refusal{Reason: reason, Message: field + " " + rule, Field: field, Rule: rule}
}
