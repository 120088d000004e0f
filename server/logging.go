package server

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// RequestIDHeader carries the id by which a call is found in the log: the caller's if it sent one, else a fresh one. It goes back with the answer; a call that left nothing to be
// found, as one that went well does unless the log is of level debug, is given none.
const RequestIDHeader = "x-request-id"

// call is the context of a call under way, with what is known of it. The interceptors fill it in as they learn it; one goroutine at a time.
type call struct {
	context.Context        //nolint:containedctx // it is one itself
	requestID       string // "" until somebody asks for it, see id
	principal       Principal
	// request is set once it was read.
	request any
	// handle is what stands inside all interceptors of a unary call.
	handle grpc.UnaryHandler
}

type callKey struct{}

// Value implements [context.Context].
func (c *call) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// callOf is the call under way; an empty one outside of any.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{Context: ctx}
}

// withCall is the call whose context ctx is. Where it is not its call's yet, as in a stream and in a call on a session, one is put around it; own is true where it is.
func withCall(ctx context.Context) (c *call, own bool) {
	if c, own = ctx.(*call); own {
		return c, own
	}
	return &call{Context: ctx}, false
}

// id names the call in the log, and to its caller.
func (c *call) id() string {
	if c.requestID != "" {
		return c.requestID
	}
	if id, ok := c.Value(callIDKey{}).(callID); ok {
		c.requestID = id.String()
	} else if c.requestID = sentRequestID(c); c.requestID == "" {
		c.requestID = newRequestID()
	}
	return c.requestID
}

// sentRequestID is the id that the caller sent, "" for none.
func sentRequestID(ctx context.Context) string {
	if sent := metadata.ValueFromIncomingContext(ctx, RequestIDHeader); len(sent) == 1 && isRequestID(sent[0]) {
		return sent[0]
	}
	return ""
}

// newRequestID is a random UUID. It names a line in a log, so it need not be hard to guess.
func newRequestID() string {
	var id uuid.UUID
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4, RFC 9562's variant
	return id.String()
}

// isRequestID keeps what callers put into the log down to one short printable word.
func isRequestID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

func (s *Server) logUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	c, own := withCall(ctx)
	if own {
		c.requestID = sentRequestID(c)
	}
	began := time.Now()
	resp, err := handler(c, req)
	s.logCall(c, info.FullMethod, time.Since(began), err)
	if own && c.requestID != "" { // a session's header went when it was opened
		// An error means that the header has gone already, which costs nothing but the echo.
		_ = grpc.SetHeader(c, metadata.MD{RequestIDHeader: {c.requestID}})
	}
	return resp, err
}

func (s *Server) logStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c, _ := withCall(stream.Context())
	_ = stream.SetHeader(metadata.MD{RequestIDHeader: {c.id()}})
	began := time.Now()
	err := handler(srv, &streamWith{ServerStream: stream, ctx: c})
	s.logCall(c, info.FullMethod, time.Since(began), err)
	return err
}

// changes are the operators' calls that change something: they are logged whatever came of them.
var changes = map[string]bool{
	idemv1.AdminService_PutPolicy_FullMethodName:     true,
	idemv1.AdminService_DeletePolicy_FullMethodName:  true,
	idemv1.AdminService_ApplyPolicy_FullMethodName:   true,
	idemv1.AdminService_Sweep_FullMethodName:         true,
	idemv1.AdminService_ResolveEntry_FullMethodName:  true,
	idemv1.AdminService_DeleteEntries_FullMethodName: true,
}

// levelOf: a bug is an error, a store that is away a warning; what a caller did wrong is worth a line, what went well only to those who
// debug.
func levelOf(method string, code codes.Code) slog.Level {
	switch {
	case code == codes.Internal || code == codes.Unknown || code == codes.DataLoss:
		return slog.LevelError
	case code == codes.Unavailable:
		return slog.LevelWarn
	case code == codes.OK && !changes[method]:
		return slog.LevelDebug
	default:
		return slog.LevelInfo
	}
}

func (s *Server) logCall(c *call, method string, took time.Duration, err error) {
	code := status.Code(err)
	level := levelOf(method, code)
	span := trace.SpanFromContext(c)
	enabled := s.log.Enabled(c, level)
	if !enabled && !span.IsRecording() {
		return
	}
	ref, hash := s.refOfCall(c)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("idem.request_id", c.id()))
		if hash != "" {
			span.SetAttributes(attribute.String("idem.operation", ref.Operation), attribute.String("idem.ref_hash", hash))
		}
	}
	if !enabled {
		return
	}
	attrs := []slog.Attr{
		slog.String("rpc", path.Base(method)), slog.String("code", code.String()), slog.Duration("took", took),
		slog.String("request_id", c.id()), slog.String("principal", c.principal.Name),
	}
	if hash != "" {
		attrs = append(attrs, slog.String("tenant", ref.Tenant), slog.String("operation", ref.Operation), slog.String("ref", hash))
	}
	if p, ok := peer.FromContext(c); ok {
		attrs = append(attrs, slog.String("peer", p.Addr.String()))
	}
	attrs = append(attrs, asked(c.request)...)
	attrs = append(attrs, refusedWith(err)...)
	s.log.LogAttrs(c, level, "call", attrs...)
}

// refOfCall returns whose entry the call is about and what stands for it in logs, "" where it is about none. A name that is not valid is
// not shown at all.
func (s *Server) refOfCall(c *call) (ledger.Ref, string) {
	r, ok := c.request.(interface{ GetRef() *idemv1.EntryRef })
	if !ok || r.GetRef() == nil {
		return ledger.Ref{}, ""
	}
	ref := refOf(r.GetRef())
	if ref.Validate() != nil {
		return ledger.Ref{}, ""
	}
	return ref, s.ledger.LogKey(ref)
}

// asked says what an operator asked for, as far as it is no secret.
func asked(req any) []slog.Attr {
	switch r := req.(type) {
	case *idemv1.ResolveEntryRequest:
		return []slog.Attr{
			slog.String("resolution", resolutionName(r)), slog.Int("attempt", int(r.GetAttempt())), slog.Bool("force", r.GetForce()),
			slog.String("reason_given", r.GetReason()),
		}
	case *idemv1.PutPolicyRequest:
		return named(r.GetPolicy().GetTenant(), r.GetPolicy().GetOperation())
	case *idemv1.DeletePolicyRequest:
		return named(r.GetTenant(), r.GetOperation())
	case *idemv1.ApplyPolicyRequest:
		return append(named(r.GetTenant(), r.GetOperation()), slog.Bool("dry_run", r.GetDryRun()))
	case *idemv1.SweepRequest:
		return []slog.Attr{slog.Bool("dry_run", r.GetDryRun()), slog.Int64("limit", r.GetLimit())}
	case *idemv1.DeleteEntriesRequest:
		return []slog.Attr{
			slog.String("tenant", r.GetTenant()), slog.Time("create_time_before", r.GetCreateTimeBefore().AsTime()), slog.Bool("force", r.GetForce()),
		}
	default:
		return nil
	}
}

func named(tenant, operation string) []slog.Attr {
	return []slog.Attr{slog.String("tenant", tenant), slog.String("operation", operation)}
}

func resolutionName(r *idemv1.ResolveEntryRequest) string {
	switch r.GetResolution().(type) {
	case *idemv1.ResolveEntryRequest_Complete:
		return "complete"
	case *idemv1.ResolveEntryRequest_Fail:
		return "fail"
	case *idemv1.ResolveEntryRequest_Release:
		return "release"
	default:
		return ""
	}
}

// refusedWith says why, and what was behind it: the log is the only place that a cause goes to.
func refusedWith(err error) []slog.Attr {
	var refusal *ledger.Refusal
	if !errors.As(err, &refusal) {
		return nil
	}
	attrs := []slog.Attr{slog.String("reason", string(refusal.Reason))}
	if refusal.Field != "" {
		attrs = append(attrs, slog.String("field", refusal.Field), slog.String("rule", refusal.Rule))
	}
	if refusal.Cause != nil {
		attrs = append(attrs, slog.String("error", refusal.Cause.Error()))
	}
	return attrs
}
