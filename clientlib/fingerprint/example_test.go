package fingerprint_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/apipb"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

func ExampleJSON() {
	first, _ := fingerprint.JSON([]byte(`{"amount": 10.00, "currency": "EUR"}`))
	retry, _ := fingerprint.JSON([]byte(`{"currency":"EUR","amount":10}`))
	other, _ := fingerprint.JSON([]byte(`{"currency":"EUR","amount":11}`))
	fmt.Println(first.Algorithm, first.Equal(retry), first.Equal(other))
	// Output: json-sha256-v1 true false
}

func ExampleNewProtoHasher() {
	// Once, for the request type of a method.
	hasher, err := fingerprint.NewProtoHasher((*apipb.Method)(nil).ProtoReflect().Descriptor(), fingerprint.ProtoConfig{
		Exclude: []string{"request_type_url"},
	})
	if err != nil {
		panic(err)
	}
	// For every request.
	first, _ := hasher.Sum(&apipb.Method{Name: "Charge", RequestTypeUrl: "one"})
	retry, _ := hasher.Sum(&apipb.Method{Name: "Charge", RequestTypeUrl: "two"})
	fmt.Println(first.Algorithm, first.Equal(retry.Fingerprint), first.UnknownFields)
	// Output: proto-sha256-v1 true 0
}

func ExampleBytesHasher() {
	var hasher fingerprint.BytesHasher
	_, _ = hasher.Write([]byte("hel"))
	_, _ = hasher.Write([]byte("lo"))
	streamed, _ := hasher.Sum()
	whole, _ := fingerprint.Bytes([]byte("hello"))
	fmt.Println(streamed.Equal(whole))
	// Output: true
}

// TestMarkIsTheOption: this package knows (idem.v1.hash_exclude) by its number, so as not to need the API.
func TestMarkIsTheOption(t *testing.T) {
	option := idemv1.E_HashExclude.TypeDescriptor()
	if option.Number() != 51731 || option.FullName() != "idem.v1.hash_exclude" || option.Kind() != protoreflect.BoolKind ||
		option.ContainingMessage().FullName() != (*descriptorpb.FieldOptions)(nil).ProtoReflect().Descriptor().FullName() {
		t.Errorf("the option is %v, number %d: change fingerprint.hashExcludeNumber, docs/fingerprint.md and the verifiers with it", option.FullName(), option.Number())
	}
}
