package clientlib

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Guard says which gRPC methods are run once, and how. It makes interceptors; a server's and a client's may be made of the
// same. Ledger and Abandoned are required, and Principal for a server.
//
// Without more, every method that is linked into the program and marked with (idem.v1.keyed) or idempotency_level = IDEMPOTENT
// is guarded. See [Guard.Guarded] for the list.
type Guard struct {
	// Ledger is whom to ask.
	Ledger *Client
	// Abandoned says what becomes of a call of which an earlier attempt was abandoned. There is no default.
	Abandoned Abandoned
	// Principal says who a server's caller is, so that nobody gets another's answer. The guard has to stand inside
	// authentication. There is no default; see [PrincipalFrom] and [Anonymous]. A client's guard does not use it.
	Principal Principal

	// Services limits the guard to these, as "shop.v1.PaymentService". Default: every service that is linked in.
	Services []string
	// Methods says more about single methods, by names like "/shop.v1.PaymentService/Charge".
	Methods map[string]MethodGuard
	// Files is where services are described. Default: protoregistry.GlobalFiles, everything linked in.
	Files *protoregistry.Files

	// KeyNames are the names of the metadata in which keys come, in lower case; keys are sent under the first.
	// Default: idempotency-key.
	KeyNames []string
	// Tenant names the tenant of a call where the method has no tenant_field or it is empty. Empty: that of the client's
	// credentials. An error refuses the call. Default: always empty.
	Tenant func(ctx context.Context, method string) (string, error)
	// Pointer says what an answer made, as ("charge", "ch_42"), for retries whose answer was not kept. Default: nothing.
	Pointer func(method string, answer proto.Message) (resourceType, resourceID string)
	// ReplayMetadata are the names of response metadata that replays carry too, in lower case. A policy must allow them as
	// well. What belongs to one exchange only, such as cookies, credentials and rate limits, is refused. Default: none.
	ReplayMetadata []string

	// Lease, Wait and Classes are as in [Options]. Default for Classes: ServerClasses or ClientClasses.
	Lease, Wait time.Duration
	Classes     Classes

	// SelfTest proves, when the interceptor is made, that the ledger answers and replays; see [Client.SelfTest].
	SelfTest bool
	// DryRun records outcomes and marks what would have been, in the trailer idem-would-be, but never refuses or replays.
	DryRun bool
	// Off makes interceptors that do nothing.
	Off bool
}

// MethodGuard says more about one method. Its zero value says nothing.
type MethodGuard struct {
	// Unguarded leaves the method out, whatever its marks say.
	Unguarded bool
	// Keyed stands in place of the method's mark (idem.v1.keyed). Nil: the mark counts, if there is one.
	Keyed *idemv1.KeyedOptions
	// Abandoned, Lease, Wait and Classes stand in place of the guard's, where they are set.
	Abandoned   Abandoned
	Lease, Wait time.Duration
	Classes     Classes
}

// Principal says who the caller of a guarded server is. Make one with [PrincipalFrom], or take [Anonymous]. The zero value
// is refused.
type Principal struct {
	name      func(ctx context.Context) (string, error)
	anonymous bool
}

// PrincipalFrom asks name who the caller is: a stable name, the same on every retry, from what authentication left in the
// context. An error, or an empty name, refuses the call. A key that was used by one principal is refused [ErrKeyReused] to all
// others.
func PrincipalFrom(name func(ctx context.Context) (string, error)) Principal {
	return Principal{name: name}
}

// Anonymous says outright that callers are not told apart: whoever knows a key gets its answer.
var Anonymous = Principal{anonymous: true}

// neverReplayed are names that belong to one exchange, or are somebody's secret. Prefixes end in "*".
var neverReplayed = []string{
	"authorization", "proxy-authorization", "www-authenticate", "proxy-authenticate", "authentication-info", "cookie", "cookie2",
	"set-cookie", "set-cookie2", "x-api-key", "x-csrf-token", "x-xsrf-token", "date", "age", "server", "via", "retry-after",
	"connection", "content-*", "transfer-encoding", "te", "trailer", "ratelimit*", "x-ratelimit*", "x-rate-limit*",
	"request-id", "x-request-id", "x-correlation-id", "correlation-id", "traceparent", "tracestate", "baggage", "x-b3-*",
	"x-amzn-trace-id", "x-cloud-trace-context", "grpc-*", ":*", "idem-*",
}

func isNeverReplayed(name string) bool {
	for _, pattern := range neverReplayed {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, prefix) || name == pattern {
			return true
		}
	}
	return false
}

// Validate says what is wrong with the guard for a client, or nil; for a server Principal is required too. It reads the
// registry.
func (g Guard) Validate() error {
	_, err := g.validate(false)
	return err
}

func (g Guard) validate(server bool) (map[string]*method, error) {
	if g.Off {
		return nil, nil
	}
	switch {
	case g.Ledger == nil:
		return nil, invalidConfig("Guard needs a Ledger")
	case server && g.Principal.name == nil && !g.Principal.anonymous:
		return nil, invalidConfig("a server's Guard needs a Principal: PrincipalFrom(who is the caller?), or Anonymous outright; there is no default")
	}
	if err := g.Abandoned.validate(); err != nil {
		return nil, err
	}
	if err := g.Classes.validate(); err != nil {
		return nil, err
	}
	if err := validateTimes(g.Lease, g.Wait); err != nil {
		return nil, err
	}
	for _, name := range g.KeyNames {
		if name == "" || name != strings.ToLower(name) || strings.HasSuffix(name, "-bin") || strings.HasPrefix(name, "grpc-") {
			return nil, invalidConfig("Guard.KeyNames has %q; a name is in lower case, and not of gRPC's own or binary", name)
		}
	}
	for _, name := range g.ReplayMetadata {
		if name == "" || name != strings.ToLower(name) {
			return nil, invalidConfig("Guard.ReplayMetadata has %q; a name is in lower case", name)
		}
		if isNeverReplayed(name) {
			return nil, invalidConfig("Guard.ReplayMetadata has %q, which belongs to one exchange only and is never replayed", name)
		}
	}
	for name, own := range g.Methods {
		if err := own.validate(); err != nil {
			return nil, fmt.Errorf("%w (Guard.Methods, %s)", err, name)
		}
	}
	return g.resolve()
}

func (m MethodGuard) validate() error {
	if err := m.Classes.validate(); err != nil {
		return err
	}
	if m.Abandoned.choice != undecided {
		if err := m.Abandoned.validate(); err != nil {
			return err
		}
	}
	return validateTimes(m.Lease, m.Wait)
}

// Guarded lists the methods that the guard watches over, or says what is wrong with it.
func (g Guard) Guarded() (GuardedMethods, error) {
	methods, err := g.validate(false)
	if err != nil {
		return nil, err
	}
	list := make(GuardedMethods, 0, len(methods))
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		list = append(list, methods[name].GuardedMethod)
	}
	return list, nil
}

// guard is a Guard that was checked, on one side.
type guard struct {
	Guard
	methods map[string]*method
	server  bool
}

func newGuard(g Guard, server bool) (*guard, error) {
	methods, err := g.validate(server)
	if err != nil {
		return nil, err
	}
	if len(g.KeyNames) == 0 {
		g.KeyNames = []string{DefaultKeyName}
	}
	if g.SelfTest && !g.Off {
		ctx, cancel := context.WithTimeout(context.Background(), g.Ledger.config.LedgerTimeout)
		defer cancel()
		if err := g.Ledger.SelfTest(ctx); err != nil {
			return nil, err
		}
	}
	return &guard{Guard: g, methods: methods, server: server}, nil
}

// options are those of one call.
func (g *guard) options(m *method, request proto.Message) Options {
	o := Options{
		Abandoned: g.Abandoned, Lease: g.Lease, Wait: g.Wait, Classes: g.Classes, FailOpen: m.FailOpen, Request: request,
		DryRun: g.DryRun, method: m.Method,
		encode: func(answer proto.Message) (Response, error) {
			if got, want := answer.ProtoReflect().Descriptor().FullName(), m.answer.Descriptor().FullName(); got != want {
				return Response{}, invalidConfig("a recovery hook answers with a %s; %s answers with a %s", got, m.Method, want)
			}
			return g.encode(m, answer, nil, nil)
		},
	}
	if m.own.Abandoned.choice != undecided {
		o.Abandoned = m.own.Abandoned
	}
	if m.own.Lease != 0 {
		o.Lease = m.own.Lease
	}
	if m.own.Wait != 0 {
		o.Wait = m.own.Wait
	}
	if m.own.Classes != nil {
		o.Classes = m.own.Classes
	}
	if o.Classes == nil {
		o.Classes = ClientClasses()
		if g.server {
			o.Classes = ServerClasses()
		}
	}
	return o
}

// ref names the intent of a call. The two sides keep their entries apart, so that guarding both is no collision.
func (g *guard) ref(ctx context.Context, m *method, key string, request proto.Message) (Ref, error) {
	ref := Ref{Operation: m.Operation, Key: key, Tenant: m.tenant.in(request.ProtoReflect())}
	if !g.server {
		ref.Operation = "call:" + m.Operation
	}
	if ref.Tenant == "" && g.Tenant != nil {
		var err error
		if ref.Tenant, err = g.Tenant(ctx, m.Method); err != nil {
			return Ref{}, err
		}
	}
	return ref, nil
}

// fingerprint says what was asked, and on a server also by whom.
func (g *guard) fingerprint(ctx context.Context, m *method, request proto.Message) (fingerprint.Fingerprint, error) {
	sum, err := m.hasher.Sum(request)
	if err != nil {
		return fingerprint.Fingerprint{}, local(codes.InvalidArgument, ReasonInvalidFingerprint, "%v", err).because(err)
	}
	g.Ledger.telemetry.notCovered(ctx, m.Operation, sum.UnknownFields)
	if !g.server || g.Principal.anonymous {
		return sum.Fingerprint, nil
	}
	name, err := g.Principal.name(ctx)
	if err != nil {
		return fingerprint.Fingerprint{}, local(codes.Unauthenticated, ReasonNoPrincipal, "the caller could not be named").because(err)
	}
	if name == "" {
		return fingerprint.Fingerprint{}, local(codes.Unauthenticated, ReasonNoPrincipal,
			"nobody is named as the caller; the guard stands inside authentication")
	}
	return byPrincipal(sum.Fingerprint, name), nil
}

// byPrincipal binds a fingerprint to who asked. It is an algorithm of its own, so that bound and unbound ones never compare.
func byPrincipal(f fingerprint.Fingerprint, principal string) fingerprint.Fingerprint {
	hash := sha256.New()
	hash.Write([]byte("idem.fingerprint:by-principal-v1\x00"))
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(principal)))
	hash.Write(length[:])
	hash.Write([]byte(principal))
	hash.Write(f.Hash)
	return fingerprint.Fingerprint{Algorithm: f.Algorithm + ".by-principal-v1", Hash: hash.Sum(nil)}
}

// messageOf is what was asked or answered as a protobuf message.
func messageOf(v any) (proto.Message, bool) {
	switch m := v.(type) {
	case proto.Message:
		return m, true
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m), true
	default:
		return nil, false
	}
}
