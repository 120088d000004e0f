package examples_test

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	paymentsv1 "github.com/idemd/idemd/examples/payments/gen/payments/v1"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

var rewrite = flag.Bool("rewrite", false, "write the descriptor sets in examples/descriptors")

// TestDescriptorSets: the sets that programs without generated code load are what the .proto files say. They are whole, imports first, and
// without buf.validate: its rules are for the daemon, and a client need not know them. "make generate" writes them.
func TestDescriptorSets(t *testing.T) {
	t.Parallel()
	refusals := errdetails.File_google_rpc_error_details_proto
	for name, files := range map[string][]protoreflect.FileDescriptor{
		"descriptors/idem.binpb": {idemv1.File_idem_v1_ledger_proto, idemv1.File_idem_v1_admin_proto, idemv1.File_idem_v1_options_proto, refusals},
		"descriptors/payments.binpb": {paymentsv1.File_payments_v1_payments_proto, refusals,
			idemv1.File_idem_v1_ledger_proto.Messages().ByName("FailRequest").Fields().ByName("status").Message().ParentFile()},
	} {
		set := &setBuilder{added: map[string]bool{}}
		for _, file := range files {
			set.add(file)
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&set.out)
		if err != nil {
			t.Fatal(err)
		}
		if *rewrite {
			if err := os.WriteFile(name, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is out of date (%v): make generate writes it", name, err)
		}
	}
}

type setBuilder struct {
	out   descriptorpb.FileDescriptorSet
	added map[string]bool
}

const validation = "buf.validate"

func (b *setBuilder) add(file protoreflect.FileDescriptor) {
	if b.added[file.Path()] {
		return
	}
	b.added[file.Path()] = true
	described := protodesc.ToFileDescriptorProto(file)
	described.Dependency = nil
	for i := range file.Imports().Len() {
		if imported := file.Imports().Get(i); imported.Package() != validation {
			b.add(imported.FileDescriptor)
			described.Dependency = append(described.Dependency, imported.Path())
		}
	}
	withoutValidation(described.ProtoReflect())
	b.out.File = append(b.out.File, described)
}

// withoutValidation removes the options of buf.validate wherever they stand.
func withoutValidation(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsExtension() && field.ParentFile().Package() == validation:
			m.Clear(field)
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				withoutValidation(value.List().Get(i).Message())
			}
		case field.Message() != nil && !field.IsMap():
			withoutValidation(value.Message())
		}
		return true
	})
}
