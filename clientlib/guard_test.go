package clientlib_test

import (
	"context"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func TestWhatIsWrongWithAGuardIsAnErrorAtOnce(t *testing.T) {
	ledger := idemtest.New(t)
	client := ledger.Client(patient)
	one := func(s spec) func(*clientlib.Guard) {
		return func(g *clientlib.Guard) { g.Files = makeFiles(t, append(shopSpecs(), s)) }
	}
	keyed := func(options *idemv1.KeyedOptions) spec { return spec{name: "Odd", keyed: options} }
	for want, change := range map[string]func(*clientlib.Guard){
		"needs a Ledger":          func(g *clientlib.Guard) { g.Ledger = nil },
		"there is no default":     func(g *clientlib.Guard) { g.Abandoned = clientlib.Abandoned{} },
		"Principal":               func(g *clientlib.Guard) { g.Principal = clientlib.Principal{} },
		"needs a hook":            func(g *clientlib.Guard) { g.Abandoned = clientlib.Recover(nil) },
		"what OK means":           func(g *clientlib.Guard) { g.Classes = clientlib.Classes{codes.OK: clientlib.FinalFailure} },
		"from 1 s to 24 h":        func(g *clientlib.Guard) { g.Lease = 1 },
		"keyed and streams":       one(spec{name: "Odd", keyed: &idemv1.KeyedOptions{}, streaming: true}),
		"NO_SIDE_EFFECTS":         one(spec{name: "Odd", keyed: &idemv1.KeyedOptions{}, level: descriptorpb.MethodOptions_NO_SIDE_EFFECTS}),
		`no field "nope"`:         one(keyed(&idemv1.KeyedOptions{KeyField: "nope"})),
		"tags is repeated":        one(keyed(&idemv1.KeyedOptions{KeyField: "tags"})),
		"meta is not a string":    one(keyed(&idemv1.KeyedOptions{TenantField: "meta"})),
		"amount has no fields":    one(keyed(&idemv1.KeyedOptions{TenantField: "amount.x"})),
		`"meta.nope"`:             one(keyed(&idemv1.KeyedOptions{HashExclude: []string{"meta.nope"}})),
		"does not have (or which": func(g *clientlib.Guard) { g.Methods = map[string]clientlib.MethodGuard{"/shop.v1.Payments/Chrage": {}} },
		"/idem.v1.LedgerService/Begin": func(g *clientlib.Guard) {
			g.Files = nil
			g.Methods = map[string]clientlib.MethodGuard{"/idem.v1.LedgerService/Begin": {Keyed: &idemv1.KeyedOptions{}}}
		},
		"shop.v1.Nope":       func(g *clientlib.Guard) { g.Services = []string{"shop.v1.Nope"} },
		"no method to guard": func(g *clientlib.Guard) { g.Files = makeFiles(t, []spec{{name: "Get"}}) },
		"never replayed":     func(g *clientlib.Guard) { g.ReplayMetadata = []string{"x-ratelimit-limit"} },
		"in lower case":      func(g *clientlib.Guard) { g.KeyNames = []string{"Idempotency-Key"} },
	} {
		guard := clientlib.Guard{
			Ledger: client, Abandoned: clientlib.Rerun(), Principal: clientlib.Anonymous, Files: makeFiles(t, shopSpecs()),
		}
		change(&guard)
		if _, err := clientlib.UnaryServerInterceptor(guard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	guard := clientlib.Guard{Ledger: client, Abandoned: clientlib.Rerun(), Files: makeFiles(t, shopSpecs())}
	if _, err := clientlib.UnaryClientInterceptor(guard); err != nil {
		t.Errorf("a client needs no Principal: %v", err)
	}
	guard.SelfTest, guard.Principal = true, clientlib.Anonymous
	if _, err := clientlib.UnaryServerInterceptor(guard); err != nil || ledger.Calls("Complete") != 1 {
		t.Errorf("self-test: %v", err)
	}
}

func TestGuarded(t *testing.T) {
	client := idemtest.New(t).Client(patient)
	guard := clientlib.Guard{
		Ledger: client, Abandoned: clientlib.Rerun(), Files: makeFiles(t, shopSpecs()), Services: []string{"shop.v1.Payments"},
		Methods: map[string]clientlib.MethodGuard{plain: {Keyed: &idemv1.KeyedOptions{}}, ensure: {Unguarded: true}},
	}
	list, err := guard.Guarded()
	if err != nil {
		t.Fatal(err)
	}
	const want = `METHOD                         OPERATION                    KEY                       TENANT       LEDGER AWAY
/shop.v1.Payments/Charge       shop.v1.Payments/Charge      required                  credentials  refuse
/shop.v1.Payments/ChargeByID   charge-by-id                 required (or request_id)  tenant       refuse
/shop.v1.Payments/ChargeEmpty  shop.v1.Payments/ChargeEmpty required                  credentials  refuse
/shop.v1.Payments/ChargeOpen   shop.v1.Payments/ChargeOpen  required                  credentials  run
/shop.v1.Payments/Plain        shop.v1.Payments/Plain       required                  credentials  refuse
`
	if got := squeeze(list.String()); got != squeeze(want) {
		t.Errorf("%s", list)
	}
}

func squeeze(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestDeriveKey(t *testing.T) {
	a := clientlib.DeriveKey("k", "refund")
	if a != clientlib.DeriveKey("k", "refund") || len(a) != 36 || a[14] != '8' {
		t.Error(a)
	}
	if clientlib.DeriveKey("ab", "c") == clientlib.DeriveKey("a", "bc") || a == clientlib.DeriveKey("k", "charge") {
		t.Error("two steps have one key")
	}
	// The value is a promise: keys in flight must survive an upgrade.
	if want := "77c6d4f4-e166-8cea-ad0b-3b831dab7420"; a != want {
		t.Errorf("DeriveKey is %s", a)
	}
}

func TestConfig(t *testing.T) {
	for want, config := range map[string]clientlib.Config{
		"a Conn or a Target":   {},
		"TransportCredentials": {Target: "dns:///x"},
		"must not be negative": {Target: "dns:///x", TransportCredentials: insecureCredentials(), TryTimeout: -1},
		"from 0 to 64":         {Target: "dns:///x", TransportCredentials: insecureCredentials(), Sessions: 65},
		"MaxMessageBytes":      {Target: "dns:///x", TransportCredentials: insecureCredentials(), MaxMessageBytes: 10},
		"255 characters":       {Target: "dns:///x", TransportCredentials: insecureCredentials(), Holder: strings.Repeat("x", 256)},
	} {
		if _, err := clientlib.New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	client, err := clientlib.New(clientlib.Config{Target: "dns:///127.0.0.1:1", TransportCredentials: insecureCredentials(), LedgerTimeout: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if err := client.Close(); err != nil {
		t.Error("a second Close:", err)
	}
	effects := 0
	_, err = client.Do(context.Background(), ref, bytesOf("a"), counted(&effects, ""), clientlib.Options{Abandoned: clientlib.Rerun()})
	if e, ok := clientlib.AsError(err); !ok || e.FromServer || e.Code != codes.Unavailable || effects != 0 {
		t.Errorf("after Close: %v", err)
	}
}

// ownCredentials go with every call, as a bearer token does.
type ownCredentials struct{}

func (ownCredentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer of-this-service"}, nil
}
func (ownCredentials) RequireTransportSecurity() bool { return false }

func TestAConnectionOfTheClientsOwn(t *testing.T) {
	listener := bufconn.Listen(1 << 16)
	seen := make(chan []string, 1)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		seen <- append(md.Get("authorization"), md.Get("x-option")...)
		return status.Error(codes.Unimplemented, "it was here")
	}))
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(listener)
	}()
	client := must(clientlib.New(clientlib.Config{
		Target: "passthrough:///ledger", TransportCredentials: insecureCredentials(), PerRPCCredentials: ownCredentials{},
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
			grpc.WithUnaryInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, o ...grpc.CallOption) error {
				return invoker(metadata.AppendToOutgoingContext(ctx, "x-option", "taken"), method, request, reply, conn, o...)
			}),
		},
	}))
	if _, err := client.Lookup(t.Context(), ref); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if got := <-seen; !slices.Equal(got, []string{"Bearer of-this-service", "taken"}) {
		t.Errorf("%q", got)
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	server.Stop()
	<-stopped
}

// A guard in front of the ledger itself would ask it for ever, so idemd's own methods are never guarded.
func TestTheLedgersOwnMethodsAreNotGuarded(t *testing.T) {
	client := idemtest.New(t).Client(patient)
	guard := clientlib.Guard{Ledger: client, Abandoned: clientlib.Rerun(), Files: protoregistry.GlobalFiles}
	if list, err := guard.Guarded(); err == nil {
		t.Errorf("it guards\n%s", list)
	}
}

// What Guard.Methods says of one method stands in place of what the guard says of all.
func TestAMethodHasRulesOfItsOwn(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) {
		g.Abandoned, g.Lease = clientlib.Refuse(), time.Hour
		g.Methods = map[string]clientlib.MethodGuard{charge: {
			Abandoned: clientlib.Rerun(), Lease: 20 * time.Second, Wait: time.Minute, Classes: clientlib.Classes{codes.DataLoss: clientlib.FinalFailure},
		}}
	})
	entry := func(method, key string) *idemv1.Entry {
		return ledger.Entry(clientlib.Ref{Operation: strings.TrimPrefix(method, "/"), Key: key})
	}
	for method, want := range map[string]struct {
		lease     time.Duration
		condition idemv1.EntryCondition
		effects   int64
	}{
		charge: {20 * time.Second, idemv1.EntryCondition_ENTRY_CONDITION_FAILED_FINAL, 2},
		open:   {time.Hour, idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED, 1},
	} {
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
			if got := entry(method, "k").GetAttempts()[0].GetLease().AsDuration(); got != want.lease {
				t.Errorf("%s: the lease is %v", method, got)
			}
			return nil, status.Error(codes.DataLoss, "")
		})
		call(keyed(t, "k"), s.conn, method, s.request())
		if got := entry(method, "k").GetCondition(); got != want.condition {
			t.Errorf("%s: %v", method, got)
		}
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
			return nil, status.Error(codes.Unavailable, "")
		})
		before := s.effects.Load()
		for range 2 {
			call(keyed(t, "in doubt"), s.conn, method, s.request())
		}
		if ran := s.effects.Load() - before; ran != want.effects {
			t.Errorf("%s: in doubt it ran %d times", method, ran)
		}
	}
	// One waits for another's answer, and the other is told to come back.
	for method, outcome := range map[string]string{charge: "replayed", open: "in-progress"} {
		var waiting sync.WaitGroup
		begun, finish := make(chan struct{}), make(chan struct{})
		s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
			close(begun)
			<-finish
			return wrapperspb.String("done"), nil
		})
		waiting.Go(func() { call(keyed(t, "busy"), s.conn, method, s.request()) })
		<-begun
		begins := ledger.Calls("Begin")
		var second called
		answered := make(chan struct{})
		waiting.Go(func() {
			defer close(answered)
			second = call(keyed(t, "busy"), s.conn, method, s.request())
		})
		if method == open {
			<-answered // at once
		}
		for ledger.Calls("Begin") == begins {
			runtime.Gosched() // until it has asked
		}
		close(finish)
		waiting.Wait()
		if second.outcome() != outcome {
			t.Errorf("%s: %+v", method, second)
		}
	}
}

// A hook's answer has to be of the method's type, or a later reader would take it for another.
func TestAHooksAnswerOfAnotherTypeIsRefused(t *testing.T) {
	s, ledger := guardedShop(t, func(g *clientlib.Guard) {
		g.Abandoned = clientlib.Recover(func(context.Context, clientlib.Claim) (clientlib.Finding, error) {
			return clientlib.HappenedWith(wrapperspb.Int64(5)), nil
		})
	})
	s.set(func(context.Context, string, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.Unavailable, "")
	})
	call(keyed(t, "k"), s.conn, charge, s.request())
	if c := call(keyed(t, "k"), s.conn, charge, s.request()); !errorIs(c.err, clientlib.ErrAbandoned) || s.effects.Load() != 1 {
		t.Errorf("%+v", c)
	}
	if got := ledger.Entry(clientlib.Ref{Operation: "shop.v1.Payments/Charge", Key: "k"}).GetCondition(); got != idemv1.EntryCondition_ENTRY_CONDITION_ABANDONED {
		t.Errorf("%v", got)
	}
}

// Descriptors that were read at run time, without our options being known then, are read as they were meant.
func TestMarksInDescriptorsThatWereReadWithoutThem(t *testing.T) {
	found, err := makeFiles(t, shopSpecs()).FindFileByPath("shop/v1/shop.proto")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := proto.Marshal(protodesc.ToFileDescriptorProto(found))
	if err != nil {
		t.Fatal(err)
	}
	described := &descriptorpb.FileDescriptorProto{}
	if err := (proto.UnmarshalOptions{Resolver: (*protoregistry.Types)(nil)}).Unmarshal(raw, described); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(described, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	files := &protoregistry.Files{}
	if err := files.RegisterFile(file); err != nil {
		t.Fatal(err)
	}
	guard := clientlib.Guard{Ledger: idemtest.New(t).Client(patient), Abandoned: clientlib.Rerun()}
	list := func(files *protoregistry.Files) string {
		guard.Files = files
		return must(guard.Guarded()).String()
	}
	if got, want := list(files), list(makeFiles(t, shopSpecs())); got != want {
		t.Errorf("%s instead of\n%s", got, want)
	}
}
