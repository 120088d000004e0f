package server

import (
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	channelzpb "google.golang.org/grpc/channelz/grpc_channelz_v1"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
)

// Roles is a set of things that a principal may do. The zero set is nothing.
type Roles uint8

// The roles. None contains another.
const (
	// Reader may look entries up.
	Reader Roles = 1 << iota
	// Writer may begin, report, extend and look up: what a guarded service needs.
	Writer
	// Operator may call the admin service and look up, also what is bound to another principal.
	Operator
)

// Principal is who makes a call, as credentials say.
type Principal struct {
	// Name is stable across its credentials: entries can be bound to it, and histories show it. "" is anonymous. At most 1024 characters, none of
	// them a control character.
	Name string
	// Tenant is the principal's own: what it means where it names none.
	Tenant string
	// AnyTenant lets it name every tenant. Otherwise another than its own is PERMISSION_DENIED.
	AnyTenant bool
	Roles     Roles
}

// DefaultTenant is whose entries they are where authentication is off and a call names no tenant.
const DefaultTenant = "default"

// Anonymous is the principal of every call where authentication is off: it may do everything.
func Anonymous() Principal {
	return Principal{Tenant: DefaultTenant, AnyTenant: true, Roles: Reader | Writer | Operator}
}

// permission is what a call needs.
type permission struct {
	// open: everybody may, without credentials.
	open bool
	// roles: any of these.
	roles Roles
	// everyTenant: it concerns all tenants, so only a principal that may name every one.
	everyTenant bool
}

// permissions is the table of every RPC that this server serves; what is not in it is denied. A test walks the services and compares.
var permissions = map[string]permission{
	idemv1.LedgerService_Begin_FullMethodName:    {roles: Writer},
	idemv1.LedgerService_Complete_FullMethodName: {roles: Writer},
	idemv1.LedgerService_Fail_FullMethodName:     {roles: Writer},
	idemv1.LedgerService_Extend_FullMethodName:   {roles: Writer},
	idemv1.LedgerService_Lookup_FullMethodName:   {roles: Reader | Writer | Operator},
	// A session by itself does nothing: each call on it needs what it needs by itself.
	idemv1.LedgerService_Session_FullMethodName: {roles: Reader | Writer | Operator},

	idemv1.AdminService_PutPolicy_FullMethodName:     {roles: Operator},
	idemv1.AdminService_GetPolicy_FullMethodName:     {roles: Operator},
	idemv1.AdminService_ListPolicies_FullMethodName:  {roles: Operator},
	idemv1.AdminService_DeletePolicy_FullMethodName:  {roles: Operator},
	idemv1.AdminService_ApplyPolicy_FullMethodName:   {roles: Operator},
	idemv1.AdminService_Sweep_FullMethodName:         {roles: Operator, everyTenant: true},
	idemv1.AdminService_ListEntries_FullMethodName:   {roles: Operator},
	idemv1.AdminService_ResolveEntry_FullMethodName:  {roles: Operator},
	idemv1.AdminService_DeleteEntries_FullMethodName: {roles: Operator},
	idemv1.AdminService_GetStats_FullMethodName:      {roles: Operator},

	// Load balancers have no credentials, and learn nothing but whether to send calls here.
	healthpb.Health_Check_FullMethodName: {open: true},
	healthpb.Health_Watch_FullMethodName: {open: true},
	healthpb.Health_List_FullMethodName:  {open: true},

	// The schema is public, but only for those who may call at all.
	reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName:      {roles: Reader | Writer | Operator},
	reflectionalphapb.ServerReflection_ServerReflectionInfo_FullMethodName: {roles: Reader | Writer | Operator},

	// Channelz shows everybody's connections.
	channelzpb.Channelz_GetTopChannels_FullMethodName:   {roles: Operator, everyTenant: true},
	channelzpb.Channelz_GetServers_FullMethodName:       {roles: Operator, everyTenant: true},
	channelzpb.Channelz_GetServer_FullMethodName:        {roles: Operator, everyTenant: true},
	channelzpb.Channelz_GetServerSockets_FullMethodName: {roles: Operator, everyTenant: true},
	channelzpb.Channelz_GetChannel_FullMethodName:       {roles: Operator, everyTenant: true},
	channelzpb.Channelz_GetSubchannel_FullMethodName:    {roles: Operator, everyTenant: true},
	channelzpb.Channelz_GetSocket_FullMethodName:        {roles: Operator, everyTenant: true},
}

func isOpen(method string) bool { return permissions[method].open }

// identify says who makes the call and whether that principal may make it at all. For which tenant is judged once the request is read.
func (s *Server) identify(ctx context.Context, method string) (Principal, error) {
	need, known := permissions[method]
	if need.open {
		return Principal{}, nil
	}
	p := Anonymous()
	if s.cfg.Identify != nil {
		var err error
		if p, err = s.cfg.Identify(ctx, method); err != nil {
			return Principal{}, unidentified(ctx, err)
		}
	}
	switch {
	case !utf8.ValidString(p.Name) || utf8.RuneCountInString(p.Name) > maxPrincipalChars || strings.ContainsFunc(p.Name, unicode.IsControl):
		// A NUL is refused by PostgreSQL, which would look like a store that is away, to everybody.
		return Principal{}, unidentified(ctx, errors.New("the principal's name is no valid text of at most 1024 characters"))
	case !known || p.Roles&need.roles == 0:
		return Principal{}, denied("the principal's roles do not allow this call")
	case !p.AnyTenant && (p.Tenant == "" || p.Tenant == "*"):
		return Principal{}, denied("the principal is tied to no tenant")
	case need.everyTenant && !p.AnyTenant:
		return Principal{}, denied("this call concerns every tenant, and the principal is tied to one")
	}
	return p, nil
}

const maxPrincipalChars = 1024

// unidentified is the refusal of a call whose principal could not be told. A status keeps its code: whoever checks credentials may be
// unreachable, which is another thing than wrong credentials.
func unidentified(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r := &ledger.Refusal{Reason: ReasonUnauthenticated, Message: "the call has no valid credentials", Cause: err}
	st, ok := status.FromError(err)
	if !ok {
		return r
	}
	switch st.Code() {
	case codes.Unauthenticated:
		r.Message = st.Message()
	case codes.PermissionDenied:
		r.Reason, r.Message = ledger.ReasonPermissionDenied, st.Message()
	default:
		return &wireError{status: st, refusal: r}
	}
	return r
}

func denied(message string) error {
	return &ledger.Refusal{Reason: ledger.ReasonPermissionDenied, Message: message}
}

// principalOf is who makes the call; the zero principal where identity was not asked for.
func principalOf(ctx context.Context) Principal { return callOf(ctx).principal }

// callerOf is the same as the ledger sees it. operator: the call came through an operator's RPC, or is a look by somebody who could use one.
func callerOf(ctx context.Context, operator bool) ledger.Caller {
	return ledger.Caller{Principal: principalOf(ctx).Name, Operator: operator}
}

// tenantOf fills in the tenant that a request leaves to the caller's credentials, and returns the one it is about. named is false for a
// request that is about no tenant.
func tenantOf(req any, p Principal) (tenant string, named bool) {
	switch r := req.(type) {
	case interface{ GetRef() *idemv1.EntryRef }:
		ref := r.GetRef()
		if ref == nil {
			return p.Tenant, true // refused by validation
		}
		return fillIn(&ref.Tenant, p.Tenant), true
	case *idemv1.ListEntriesRequest:
		return fillIn(&r.Tenant, p.Tenant), true
	case *idemv1.GetStatsRequest:
		return fillIn(&r.Tenant, p.Tenant), true
	case *idemv1.ListPoliciesRequest:
		if p.AnyTenant && r.Tenant == "" {
			return "", false // all that the caller may see
		}
		return fillIn(&r.Tenant, p.Tenant), true
	case *idemv1.PutPolicyRequest:
		return r.GetPolicy().GetTenant(), true
	case interface{ GetTenant() string }:
		return r.GetTenant(), true
	default:
		return "", false
	}
}

func fillIn(tenant *string, own string) string {
	if *tenant == "" {
		*tenant = own
	}
	return *tenant
}

// mayName refuses another tenant than the principal's own, "*" included.
func (p Principal) mayName(tenant string) error {
	if p.AnyTenant || tenant == p.Tenant {
		return nil
	}
	return denied("the credentials are another tenant's")
}

func (s *Server) identifyUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	p, err := s.identify(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	callOf(ctx).principal = p
	return handler(ctx, req)
}

func (s *Server) identifyStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	p, err := s.identify(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	callOf(stream.Context()).principal = p
	return handler(srv, stream)
}
