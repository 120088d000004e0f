package clientlib_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/idemd/idemd/clientlib"
	"github.com/idemd/idemd/clientlib/idemtest"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// The service under test, made from descriptors so that contradictory ones can be made the same way. Its answers are of
// generated types, its requests of dynamic ones.
const (
	shop   = "/shop.v1.Payments/"
	charge = shop + "Charge"      // keyed
	byID   = shop + "ChargeByID"  // keyed, key_field request_id, tenant_field tenant
	ensure = shop + "Ensure"      // IDEMPOTENT
	get    = shop + "Get"         // NO_SIDE_EFFECTS
	plain  = shop + "Plain"       // not marked
	open   = shop + "ChargeOpen"  // keyed, fail_open
	empty  = shop + "ChargeEmpty" // keyed, answers google.protobuf.Empty
)

// patient gives nothing up that a busy machine is slow about.
var patient = clientlib.Config{LedgerTimeout: time.Minute, TryTimeout: time.Minute, SettleTimeout: time.Minute}

// spec is a method of a service.
type spec struct {
	name      string
	output    string
	keyed     *idemv1.KeyedOptions
	level     descriptorpb.MethodOptions_IdempotencyLevel
	streaming bool
}

func shopSpecs() []spec {
	keyed := &idemv1.KeyedOptions{HashExclude: []string{"meta.sent_at"}}
	return []spec{
		{name: "Charge", keyed: keyed},
		{name: "ChargeByID", keyed: &idemv1.KeyedOptions{KeyField: "request_id", TenantField: "tenant", Operation: "charge-by-id"}},
		{name: "Ensure", level: descriptorpb.MethodOptions_IDEMPOTENT},
		{name: "Get", level: descriptorpb.MethodOptions_NO_SIDE_EFFECTS},
		{name: "Plain"},
		{name: "ChargeOpen", keyed: &idemv1.KeyedOptions{FailOpen: true}},
		{name: "ChargeEmpty", keyed: &idemv1.KeyedOptions{}, output: ".google.protobuf.Empty"},
		{name: "Watch", streaming: true, level: descriptorpb.MethodOptions_IDEMPOTENT},
	}
}

// makeFiles describes a service of these methods.
func makeFiles(t testing.TB, specs []spec) *protoregistry.Files {
	t.Helper()
	text := func(name string, number int32) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{
			Name: &name, Number: &number, Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
	}
	message := text("meta", 3)
	message.Type, message.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String(".shop.v1.Meta")
	list := text("tags", 6)
	list.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	service := &descriptorpb.ServiceDescriptorProto{Name: proto.String("Payments")}
	for _, s := range specs {
		options := &descriptorpb.MethodOptions{}
		if s.level != 0 {
			options.IdempotencyLevel = s.level.Enum()
		}
		if s.keyed != nil {
			proto.SetExtension(options, idemv1.E_Keyed, s.keyed)
		}
		output := s.output
		if output == "" {
			output = ".google.protobuf.StringValue"
		}
		service.Method = append(service.Method, &descriptorpb.MethodDescriptorProto{
			Name: &s.name, InputType: proto.String(".shop.v1.Request"), OutputType: &output, Options: options,
			ServerStreaming: &s.streaming,
		})
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("shop/v1/shop.proto"), Package: proto.String("shop.v1"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/wrappers.proto", "google/protobuf/empty.proto"},
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Request"), Field: []*descriptorpb.FieldDescriptorProto{
				text("request_id", 1), text("amount", 2), message, text("tenant", 4), list,
			}},
			{Name: proto.String("Meta"), Field: []*descriptorpb.FieldDescriptorProto{text("sent_at", 1), text("id", 2)}},
		},
		Service: []*descriptorpb.ServiceDescriptorProto{service},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	files := &protoregistry.Files{}
	if err := files.RegisterFile(file); err != nil {
		t.Fatal(err)
	}
	return files
}

// shopServer serves the service over memory. handle may be changed between calls.
type shopServer struct {
	files  *protoregistry.Files
	input  protoreflect.MessageDescriptor
	conn   *grpc.ClientConn
	dialer func(...grpc.DialOption) *grpc.ClientConn

	// effects counts how often a handler was run.
	effects atomic.Int64
	mu      sync.Mutex
	handle  func(ctx context.Context, method string, request proto.Message) (proto.Message, error)
}

func (s *shopServer) set(handle func(context.Context, string, proto.Message) (proto.Message, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = handle
}

func (s *shopServer) run(ctx context.Context, method string, request proto.Message) (proto.Message, error) {
	s.effects.Add(1)
	s.mu.Lock()
	handle := s.handle
	s.mu.Unlock()
	if handle != nil {
		return handle(ctx, method, request)
	}
	if method == empty {
		return &emptypb.Empty{}, nil
	}
	return wrapperspb.String("done"), nil
}

// request makes a request from pairs of field and value; "meta.sent_at" goes one level down.
func (s *shopServer) request(pairs ...string) *dynamicpb.Message {
	m := dynamicpb.NewMessage(s.input)
	for i := 0; i < len(pairs); i += 2 {
		field := s.input.Fields().ByName(protoreflect.Name(pairs[i]))
		if pairs[i] == "meta.sent_at" {
			meta := m.Mutable(s.input.Fields().ByName("meta")).Message()
			meta.Set(meta.Descriptor().Fields().ByName("sent_at"), protoreflect.ValueOfString(pairs[i+1]))
			continue
		}
		m.Set(field, protoreflect.ValueOfString(pairs[i+1]))
	}
	return m
}

// newShop starts a server with these interceptors, first one outermost.
func newShop(t testing.TB, interceptors ...grpc.UnaryServerInterceptor) *shopServer {
	t.Helper()
	s := &shopServer{files: makeFiles(t, shopSpecs())}
	found, err := s.files.FindDescriptorByName("shop.v1.Payments")
	if err != nil {
		t.Fatal(err)
	}
	service, _ := found.(protoreflect.ServiceDescriptor)
	s.input = service.Methods().Get(0).Input()
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(interceptors...))
	description := &grpc.ServiceDesc{ServiceName: "shop.v1.Payments", HandlerType: (*any)(nil)}
	for i := range service.Methods().Len() {
		name := string(service.Methods().Get(i).Name())
		description.Methods = append(description.Methods, grpc.MethodDesc{MethodName: name, Handler: s.handler(shop + name)})
	}
	server.RegisterService(description, s)
	listener := bufconn.Listen(1 << 20)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(listener)
	}()
	s.dialer = func(options ...grpc.DialOption) *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///shop", append([]grpc.DialOption{
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		}, options...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	s.conn = s.dialer()
	t.Cleanup(func() {
		server.Stop()
		<-stopped
	})
	return s
}

func (s *shopServer) handler(method string) func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	return func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		request := dynamicpb.NewMessage(s.input)
		if err := decode(request); err != nil {
			return nil, err
		}
		run := func(ctx context.Context, request any) (any, error) {
			message, _ := request.(proto.Message)
			answer, err := s.run(ctx, method, message)
			if err != nil {
				return nil, err
			}
			return answer, nil
		}
		if interceptor == nil {
			return run(ctx, request)
		}
		return interceptor(ctx, request, &grpc.UnaryServerInfo{Server: s, FullMethod: method}, run)
	}
}

// guardedShop is a server whose marked methods are guarded.
func guardedShop(t testing.TB, change func(*clientlib.Guard)) (*shopServer, *idemtest.Ledger) {
	t.Helper()
	ledger := idemtest.New(t)
	client := ledger.Client(patient)
	guard := clientlib.Guard{
		Ledger: client, Abandoned: clientlib.Rerun(), Principal: clientlib.Anonymous, Files: makeFiles(t, shopSpecs()),
	}
	if change != nil {
		change(&guard)
	}
	return newShop(t, must(clientlib.UnaryServerInterceptor(guard))), ledger
}

func insecureCredentials() credentials.TransportCredentials { return insecure.NewCredentials() }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
