package clientlib

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemd/idemd/clientlib/fingerprint"
	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// GuardedMethod says how one method is guarded.
type GuardedMethod struct {
	// Method is its name, as "/shop.v1.PaymentService/Charge".
	Method string
	// Operation is where its entries are kept by a server's guard. A client's guard puts "call:" before it.
	Operation string
	// Keyed says that a server refuses it without a key. False: it is marked IDEMPOTENT, and passes without one.
	Keyed bool
	// KeyField and TenantField are the paths of the fields that hold key and tenant. Empty: none.
	KeyField, TenantField string
	// HashExclude are the paths that are left out of the fingerprint, beside marked fields.
	HashExclude []string
	// FailOpen says that it runs without a guard while the ledger is out of reach.
	FailOpen bool
}

// GuardedMethods are the methods that a guard watches over, by name.
type GuardedMethods []GuardedMethod

// String gives a table for people, a method a line.
func (g GuardedMethods) String() string {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "METHOD\tOPERATION\tKEY\tTENANT\tLEDGER AWAY")
	for _, m := range g {
		key, tenant, away := "optional", "credentials", "refuse"
		if m.Keyed {
			key = "required"
		}
		if m.KeyField != "" {
			key += " (or " + m.KeyField + ")"
		}
		if m.TenantField != "" {
			tenant = m.TenantField
		}
		if m.FailOpen {
			away = "run"
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", m.Method, m.Operation, key, tenant, away)
	}
	_ = table.Flush()
	return text.String()
}

// method is a guarded method with what is needed at each call.
type method struct {
	GuardedMethod
	key, tenant fieldPath
	hasher      *fingerprint.ProtoHasher
	answer      protoreflect.MessageType
	own         MethodGuard
}

// fieldPath leads to a singular string field. Nil: there is none.
type fieldPath []protoreflect.FieldDescriptor

// in reads the field of a message; where a message on the way is not set it is empty.
func (p fieldPath) in(message protoreflect.Message) string {
	if len(p) == 0 {
		return ""
	}
	for i, field := range p {
		// Looked up anew: the message may come with another descriptor of the same type.
		here := message.Descriptor().Fields().ByNumber(field.Number())
		if here == nil {
			return ""
		}
		if i == len(p)-1 {
			return message.Get(here).String()
		}
		message = message.Get(here).Message()
	}
	return ""
}

func pathTo(message protoreflect.MessageDescriptor, path string) (fieldPath, error) {
	if path == "" {
		return nil, nil
	}
	var steps fieldPath
	names := strings.Split(path, ".")
	for i, name := range names {
		field := message.Fields().ByName(protoreflect.Name(name))
		switch {
		case field == nil:
			return nil, fmt.Errorf("%q: %s has no field %q", path, message.FullName(), name)
		case field.IsList() || field.IsMap():
			return nil, fmt.Errorf("%q: %s is repeated", path, name)
		case i == len(names)-1 && field.Kind() != protoreflect.StringKind:
			return nil, fmt.Errorf("%q: %s is not a string", path, name)
		case i < len(names)-1 && field.Message() == nil:
			return nil, fmt.Errorf("%q: %s has no fields", path, name)
		}
		steps = append(steps, field)
		message = field.Message()
	}
	return steps, nil
}

// resolve finds the methods to guard, and everything that is wrong with them.
func (g Guard) resolve() (map[string]*method, error) {
	found := map[string]*method{}
	var wrong []error
	matched := map[string]bool{}
	g.eachMethod(func(descriptor protoreflect.MethodDescriptor) {
		name := fullMethod(descriptor)
		own, overridden := g.Methods[name]
		if overridden {
			matched[name] = true
		}
		if own.Unguarded {
			return
		}
		made, err := resolveMethod(descriptor, own)
		if err != nil {
			wrong = append(wrong, invalidConfig("method %s: %w", name, err))
		} else if made != nil {
			found[name] = made
		}
	})
	for name := range g.Methods {
		if !matched[name] {
			wrong = append(wrong, invalidConfig("Guard.Methods names %q, which the registry does not have (or which is idemd's own, or outside "+
				"Guard.Services); names look like /shop.v1.PaymentService/Charge, and the generated package has to be linked in", name))
		}
	}
	files := g.files()
	for _, service := range g.Services {
		if descriptor, err := files.FindDescriptorByName(protoreflect.FullName(service)); err != nil {
			wrong = append(wrong, invalidConfig("Guard.Services names %q, which the registry does not have", service))
		} else if _, ok := descriptor.(protoreflect.ServiceDescriptor); !ok {
			wrong = append(wrong, invalidConfig("Guard.Services names %q, which is no service", service))
		}
	}
	if len(wrong) == 0 && len(found) == 0 && !g.Off {
		wrong = append(wrong, invalidConfig("there is no method to guard: mark one with (idem.v1.keyed) or idempotency_level = IDEMPOTENT, "+
			"or name it in Guard.Methods"))
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return found, errors.Join(wrong...)
}

func (g Guard) files() *protoregistry.Files {
	if g.Files != nil {
		return g.Files
	}
	return protoregistry.GlobalFiles
}

// eachMethod visits every method that the guard may watch over. A guard in front of the ledger itself would ask it for ever.
func (g Guard) eachMethod(visit func(protoreflect.MethodDescriptor)) {
	g.files().RangeFiles(func(file protoreflect.FileDescriptor) bool {
		if file.Package() == "idem.v1" {
			return true
		}
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			if len(g.Services) > 0 && !slices.Contains(g.Services, string(service.FullName())) {
				continue
			}
			for j := range service.Methods().Len() {
				visit(service.Methods().Get(j))
			}
		}
		return true
	})
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
}

// resolveMethod prepares one method. Nil without an error: it is not to be guarded.
func resolveMethod(descriptor protoreflect.MethodDescriptor, own MethodGuard) (*method, error) {
	options, err := methodOptions(descriptor)
	if err != nil {
		return nil, err
	}
	level := options.GetIdempotencyLevel()
	keyed := own.Keyed
	if keyed == nil && proto.HasExtension(options, idemv1.E_Keyed) {
		keyed, _ = proto.GetExtension(options, idemv1.E_Keyed).(*idemv1.KeyedOptions)
	}
	streaming := descriptor.IsStreamingClient() || descriptor.IsStreamingServer()
	switch {
	case keyed != nil && streaming:
		return nil, errors.New("it is keyed and streams; a guard can replay one answer, not a stream")
	case keyed != nil && level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
		return nil, errors.New("it is keyed and has idempotency_level NO_SIDE_EFFECTS; it can only be one of them")
	case keyed == nil && (streaming || level != descriptorpb.MethodOptions_IDEMPOTENT):
		return nil, nil
	}
	name := fullMethod(descriptor)
	m := &method{own: own, GuardedMethod: GuardedMethod{
		Method: name, Operation: strings.TrimPrefix(name, "/"), Keyed: keyed != nil, KeyField: keyed.GetKeyField(),
		TenantField: keyed.GetTenantField(), HashExclude: keyed.GetHashExclude(), FailOpen: keyed.GetFailOpen(),
	}}
	if keyed.GetOperation() != "" {
		m.Operation = keyed.GetOperation()
	}
	if m.key, err = pathTo(descriptor.Input(), m.KeyField); err != nil {
		return nil, fmt.Errorf("key_field %w", err)
	}
	if m.tenant, err = pathTo(descriptor.Input(), m.TenantField); err != nil {
		return nil, fmt.Errorf("tenant_field %w", err)
	}
	if m.hasher, err = fingerprint.NewProtoHasher(descriptor.Input(), fingerprint.ProtoConfig{Exclude: m.HashExclude}); err != nil {
		return nil, fmt.Errorf("hash_exclude: %w", err)
	}
	if m.answer, err = protoregistry.GlobalTypes.FindMessageByName(descriptor.Output().FullName()); err != nil {
		m.answer = dynamicpb.NewMessageType(descriptor.Output())
	}
	return m, nil
}

// methodOptions reads the options so that ours are known, also of descriptors that were read at run time without them.
func methodOptions(descriptor protoreflect.MethodDescriptor) (*descriptorpb.MethodOptions, error) {
	options, _ := descriptor.Options().(*descriptorpb.MethodOptions)
	if options == nil || len(options.ProtoReflect().GetUnknown()) == 0 {
		return options, nil
	}
	raw, err := proto.Marshal(options)
	if err != nil {
		return nil, err
	}
	known := &descriptorpb.MethodOptions{}
	return known, proto.Unmarshal(raw, known)
}
