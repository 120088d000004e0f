package fingerprint

import (
	"bytes"
	"fmt"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/context/attribute_context"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// attributeContext is a generated message of the size and shape that requests have: some thirty fields in
// nested messages, with a map and a Struct.
func attributeContext() *attribute_context.AttributeContext {
	claims, err := structpb.NewStruct(map[string]any{"iss": "https://issuer.example", "admin": true, "level": 3})
	if err != nil {
		panic(err)
	}
	return &attribute_context.AttributeContext{
		Source:      &attribute_context.AttributeContext_Peer{Ip: "10.0.0.1", Port: 4711, Principal: "spiffe://example/checkout", RegionCode: "DE"},
		Destination: &attribute_context.AttributeContext_Peer{Ip: "10.0.0.2", Port: 443, Labels: map[string]string{"app": "payments", "zone": "b"}},
		Request: &attribute_context.AttributeContext_Request{
			Id: "9a1c", Method: "POST", Path: "/shop.v1.Payments/Charge", Host: "payments.example", Scheme: "https", Size: 512,
			Headers: map[string]string{"content-type": "application/grpc", "user-agent": "grpc-go/1.85", "accept": "*/*", "x-shard": "7"},
			Time:    timestamppb.New(timestamppb.Now().AsTime()),
			Auth:    &attribute_context.AttributeContext_Auth{Principal: "p", Audiences: []string{"a", "b"}, Claims: claims},
		},
		Api: &attribute_context.AttributeContext_Api{Service: "shop.v1.Payments", Operation: "Charge", Protocol: "grpc", Version: "1"},
	}
}

func BenchmarkProto(b *testing.B) {
	message := attributeContext()
	hasher := mustHasher(b, message.ProtoReflect().Descriptor(), ProtoConfig{Exclude: []string{"request.time", "request.id"}})
	b.SetBytes(int64(proto.Size(message)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hasher.Sum(message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProtoSmall(b *testing.B) {
	message := &attribute_context.AttributeContext_Api{Service: "shop.v1.Payments", Operation: "Charge", Protocol: "grpc", Version: "1"}
	hasher := mustHasher(b, message.ProtoReflect().Descriptor(), ProtoConfig{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hasher.Sum(message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProtoMap(b *testing.B) {
	message := &attribute_context.AttributeContext_Peer{Labels: map[string]string{}}
	for i := range 50 {
		message.Labels[fmt.Sprintf("key-%d", i)] = fmt.Sprintf("value %d", i*i)
	}
	hasher := mustHasher(b, message.ProtoReflect().Descriptor(), ProtoConfig{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := hasher.Sum(message); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewProtoHasher(b *testing.B) {
	descriptor := attributeContext().ProtoReflect().Descriptor()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := NewProtoHasher(descriptor, ProtoConfig{Exclude: []string{"request.time", "request.id"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	text := []byte(`{"amount":{"currency":"EUR","value":1999.00},"customer":{"id":"c_123","name":"Zo\u00eb","email":"zoe@example.com"},
		"items":[{"sku":"a-1","count":2,"price":500},{"sku":"b-2","count":1,"price":999}],"metadata":{"z":"1","a":"2","m":"3"},"capture":true,"note":null}`)
	b.Run("small", func(b *testing.B) { benchmarkJSON(b, text) })
	large := append([]byte("["), bytes.Repeat(append(text, ','), 1000)...)
	b.Run("large", func(b *testing.B) { benchmarkJSON(b, append(large, "{}]"...)) })
}

func benchmarkJSON(b *testing.B, text []byte) {
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := JSON(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBytes(b *testing.B) {
	for _, size := range []int{64, 4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			data := pattern(size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Bytes(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
