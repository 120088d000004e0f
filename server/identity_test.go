package server

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
	"github.com/idemd/idemd/ledger"
	"github.com/idemd/idemd/ledger/storetest"
)

// newTestServer is a server on an empty ledger that nobody serves.
func newTestServer(t *testing.T, change func(*Config)) *Server {
	t.Helper()
	l, err := ledger.New(t.Context(), ledger.Config{Store: storetest.NewModel(storetest.NewClock(1_800_000_000_000_000), 0), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Ledger: l}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.grpc.Stop)
	return s
}

// ourMethods are the methods of the services in this repository's .proto files.
func ourMethods(t *testing.T) []protoreflect.MethodDescriptor {
	t.Helper()
	var out []protoreflect.MethodDescriptor
	for _, file := range []protoreflect.FileDescriptor{idemv1.File_idem_v1_ledger_proto, idemv1.File_idem_v1_admin_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				out = append(out, methods.Get(j))
			}
		}
	}
	if len(out) != 16 {
		t.Fatalf("the .proto has %d methods, this test knows of 16", len(out))
	}
	return out
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// No RPC that is served is missing in the permission table, and the table names none that is not.
func TestEveryRPCHasItsPermission(t *testing.T) {
	t.Parallel()
	served := map[string]bool{}
	for service, info := range newTestServer(t, nil).grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			served["/"+service+"/"+m.Name] = true
		}
	}
	for _, m := range ourMethods(t) {
		if !served[fullMethod(m)] {
			t.Errorf("%s is not served", fullMethod(m))
		}
	}
	for method := range served {
		need, ok := permissions[method]
		if !ok {
			t.Errorf("%s is served and not in the permission table", method)
		}
		if need.open != (need.roles == 0) || need.open && !strings.HasPrefix(method, "/grpc.health.") {
			t.Errorf("%s needs %+v: only health is open to everybody", method, need)
		}
	}
	for method := range permissions {
		if !served[method] {
			t.Errorf("%s is in the permission table and not served", method)
		}
	}
}

// What is not in the table is denied, whoever asks.
func TestUnknownRPCIsDenied(t *testing.T) {
	t.Parallel()
	_, err := newTestServer(t, nil).identify(t.Context(), "/idem.v1.LedgerService/Forget")
	if !errors.Is(err, &ledger.Refusal{Reason: ledger.ReasonPermissionDenied}) {
		t.Errorf("got %v, want PERMISSION_DENIED", err)
	}
}

// Each role may call what it is for, and nothing else.
func TestRolesAllow(t *testing.T) {
	t.Parallel()
	for _, m := range ourMethods(t) {
		method := fullMethod(m)
		admin := strings.Contains(method, "AdminService")
		lookup := method == idemv1.LedgerService_Lookup_FullMethodName
		if method == idemv1.LedgerService_Session_FullMethodName {
			lookup = true // what is called on it is judged by itself
		}
		for role, want := range map[Roles]bool{0: false, Reader: lookup, Writer: !admin, Operator: admin || lookup} {
			s := newTestServer(t, func(c *Config) {
				c.Identify = func(context.Context, string) (Principal, error) {
					return Principal{Name: "p", AnyTenant: true, Roles: role}, nil
				}
			})
			if _, err := s.identify(t.Context(), method); (err == nil) != want {
				t.Errorf("role %d calls %s: %v, want it allowed: %t", role, method, err, want)
			}
		}
	}
}

// Credentials that are not right for anything are refused, and why is told only where it is a status.
func TestIdentifyRefuses(t *testing.T) {
	t.Parallel()
	everything := Reader | Writer | Operator
	for name, c := range map[string]struct {
		principal Principal
		err       error
		method    string
		code      codes.Code
		text      string
	}{
		"the zero principal":                   {method: idemv1.LedgerService_Begin_FullMethodName, code: codes.PermissionDenied},
		"tied to no tenant":                    {principal: Principal{Roles: everything}, method: idemv1.LedgerService_Begin_FullMethodName, code: codes.PermissionDenied},
		"tied to every tenant's name":          {principal: Principal{Tenant: "*", Roles: everything}, method: idemv1.LedgerService_Begin_FullMethodName, code: codes.PermissionDenied},
		"a sweep by one tenant's operator":     {principal: Principal{Tenant: "a", Roles: everything}, method: idemv1.AdminService_Sweep_FullMethodName, code: codes.PermissionDenied},
		"a name that is no text":               {principal: Principal{Name: "\xff", AnyTenant: true, Roles: everything}, method: idemv1.LedgerService_Begin_FullMethodName, code: codes.Unauthenticated},
		"a name with a NUL":                    {principal: Principal{Name: "a\x00b", AnyTenant: true, Roles: everything}, method: idemv1.LedgerService_Begin_FullMethodName, code: codes.Unauthenticated},
		"a name without end":                   {principal: Principal{Name: strings.Repeat("n", 1025), AnyTenant: true, Roles: everything}, method: idemv1.LedgerService_Begin_FullMethodName, code: codes.Unauthenticated},
		"an error":                             {err: errors.New("token k-secret is unknown"), method: idemv1.LedgerService_Begin_FullMethodName, code: codes.Unauthenticated, text: "the call has no valid credentials"},
		"a status that says unauthenticated":   {err: status.Error(codes.Unauthenticated, "the token is over"), method: idemv1.LedgerService_Begin_FullMethodName, code: codes.Unauthenticated, text: "the token is over"},
		"a status that says permission denied": {err: status.Error(codes.PermissionDenied, "not from there"), method: idemv1.LedgerService_Begin_FullMethodName, code: codes.PermissionDenied, text: "not from there"},
		"an issuer that is away":               {err: status.Error(codes.Unavailable, "no keys yet"), method: idemv1.LedgerService_Begin_FullMethodName, code: codes.Unavailable, text: "no keys yet"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestServer(t, func(cfg *Config) {
				cfg.Identify = func(context.Context, string) (Principal, error) { return c.principal, c.err }
			})
			_, err := s.identify(t.Context(), c.method)
			st := status.Convert(onWire(err))
			if st.Code() != c.code || c.text != "" && st.Message() != c.text {
				t.Errorf("got %v, want code %s and text %q", st.Err(), c.code, c.text)
			}
		})
	}
}

// A caller that went away while it was asked who it is, is not told that its credentials are wrong.
func TestIdentifyOfACallerThatWentAway(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, func(c *Config) {
		c.Identify = func(context.Context, string) (Principal, error) {
			return Principal{}, errors.New("the issuer did not answer")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.identify(ctx, idemv1.LedgerService_Begin_FullMethodName); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Health asks for no credentials: Identify is not even called.
func TestHealthNeedsNoCredentials(t *testing.T) {
	t.Parallel()
	s := newTestServer(t, func(c *Config) {
		c.Identify = func(_ context.Context, method string) (Principal, error) { return Principal{}, errors.New(method) }
	})
	if _, err := s.identify(t.Context(), "/grpc.health.v1.Health/Check"); err != nil {
		t.Error(err)
	}
}

// Every request that names a tenant, by itself or by its entry, is judged by it; and one that may leave it out gets the caller's own.
func TestTenantOfEveryRequest(t *testing.T) {
	t.Parallel()
	own := Principal{Tenant: "mine"}
	for _, m := range ourMethods(t) {
		method := m.Name()
		for _, sent := range []string{"", "theirs", "*"} {
			req, path := requestNaming(t, m, sent)
			got, named := tenantOf(req, own)
			switch {
			case path == "":
				if named || method != "Sweep" && method != "Session" {
					t.Errorf("%s names no tenant: got %q, %t", method, got, named)
				}
				continue
			case !named:
				t.Errorf("%s names a tenant in %s, and tenantOf does not see it", method, path)
				continue
			}
			want := sent
			if want == "" && (path == "ref.tenant" || method == "ListEntries" || method == "GetStats" || method == "ListPolicies") {
				want = "mine"
			}
			if got != want {
				t.Errorf("%s with tenant %q: %q, want %q", method, sent, got, want)
			}
			if stands := valueAt(req, path); stands != want {
				t.Errorf("%s with tenant %q goes on with %q, want %q", method, sent, stands, want)
			}
			if err := own.mayName(got); (err == nil) != (got == "mine") {
				t.Errorf("a principal of \"mine\" names %q: %v", got, err)
			}
		}
	}
}

// requestNaming makes a method's request with a tenant, and says where it stands: "" where there is no place for one.
func requestNaming(t *testing.T, m protoreflect.MethodDescriptor, tenant string) (proto.Message, string) {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
	if err != nil {
		t.Fatal(err)
	}
	req := kind.New()
	for _, path := range []string{"tenant", "ref.tenant", "policy.tenant"} {
		inner, field := req, path
		if outer, name, ok := strings.Cut(path, "."); ok {
			f := m.Input().Fields().ByName(protoreflect.Name(outer))
			if f == nil {
				continue
			}
			inner, field = req.Mutable(f).Message(), name
		}
		if f := inner.Descriptor().Fields().ByName(protoreflect.Name(field)); f != nil {
			inner.Set(f, protoreflect.ValueOfString(tenant))
			return req.Interface(), path
		}
	}
	return req.Interface(), ""
}

func valueAt(message proto.Message, path string) string {
	m := message.ProtoReflect()
	for {
		outer, rest, ok := strings.Cut(path, ".")
		f := m.Descriptor().Fields().ByName(protoreflect.Name(outer))
		if !ok {
			return m.Get(f).String()
		}
		m, path = m.Get(f).Message(), rest
	}
}

// A request of a kind that nobody thought of is about no tenant; TestTenantOfEveryRequest sees to it that there is none.
func TestTenantOfAStranger(t *testing.T) {
	t.Parallel()
	if _, named := tenantOf(dynamicpb.NewMessage((&idemv1.SweepRequest{}).ProtoReflect().Descriptor()), Anonymous()); named {
		t.Error("a stranger names a tenant")
	}
}

// An operator of every tenant who names none is told of all policies; everywhere else the own tenant is filled in.
func TestTenantLeftOutByAnOperatorOfAll(t *testing.T) {
	t.Parallel()
	if _, named := tenantOf(&idemv1.ListPoliciesRequest{}, Anonymous()); named {
		t.Error("ListPolicies of all is narrowed to one tenant")
	}
	list := &idemv1.ListEntriesRequest{}
	if tenant, _ := tenantOf(list, Anonymous()); tenant != DefaultTenant || list.GetTenant() != DefaultTenant {
		t.Errorf("ListEntries without a tenant is about %q", tenant)
	}
}
