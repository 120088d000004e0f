package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	idemv1 "github.com/idemd/idemd/gen/idem/v1"
)

// Policies are written in YAML (or JSON, which is YAML) with the names of policy.proto, and with two things easier for people: durations as
// 90d or 12h, and enum values without their prefix. What is not known is refused, by line.

// policyFile is one file of policies.
type policyFile struct{ path string }

// readPolicies reads the file of --policies: "policies:" and a list.
func readPolicies(path string) ([]*idemv1.Policy, error) {
	root, err := readYAML(path)
	if err != nil {
		return nil, err
	}
	file := policyFile{path}
	if root == nil || root.Kind != yaml.MappingNode || len(root.Content) != 2 || root.Content[0].Value != "policies" ||
		root.Content[1].Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("%s: want \"policies:\" and a list of policies, and nothing else", path)
	}
	var policies []*idemv1.Policy
	var errs []error
	lines := map[[2]string]int{}
	for _, node := range root.Content[1].Content {
		policy, err := file.policy(node)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name := [2]string{policy.GetTenant(), policy.GetOperation()}
		switch {
		case name[0] == "" || name[1] == "":
			errs = append(errs, file.fault(node, "a policy needs a tenant and an operation; \"*\" is every one"))
		case lines[name] != 0:
			errs = append(errs, file.fault(node, "there is a policy for that tenant and operation in line %d already", lines[name]))
		}
		lines[name] = node.Line
		policies = append(policies, policy)
	}
	return policies, errors.Join(errs...)
}

// readPolicy reads one policy.
func readPolicy(path string, content []byte) (*idemv1.Policy, error) {
	root, err := parseYAML(path, strings.NewReader(string(content)))
	if err != nil {
		return nil, err
	}
	if root == nil {
		return nil, fmt.Errorf("%s: is empty", path)
	}
	return policyFile{path}.policy(root)
}

func (f policyFile) fault(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", f.path, n.Line, fmt.Sprintf(format, args...))
}

func (f policyFile) policy(node *yaml.Node) (*idemv1.Policy, error) {
	policy := &idemv1.Policy{}
	value, err := f.message(node, policy.ProtoReflect().Descriptor())
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, f.fault(node, "%v", err)
	}
	if err := protojson.Unmarshal(raw, policy); err != nil {
		// protojson's positions are those of the JSON in between, which nobody has seen.
		return nil, f.fault(node, "%s", strings.TrimPrefix(err.Error(), "proto: "))
	}
	for _, name := range outputOnly {
		if field := policy.ProtoReflect().Descriptor().Fields().ByName(name); policy.ProtoReflect().Has(field) {
			return nil, f.fault(node, "%s is worked out by the daemon and cannot be set", name)
		}
	}
	return policy, nil
}

// outputOnly are the fields of a policy that only answers have.
var outputOnly = []protoreflect.Name{"retention", "retention_horizon", "update_time"}

// stripOutputOnly takes out of a policy what only answers have, so that what was read can be written back.
func stripOutputOnly(p *idemv1.Policy) *idemv1.Policy {
	p = proto.Clone(p).(*idemv1.Policy)
	for _, name := range outputOnly {
		p.ProtoReflect().Clear(p.ProtoReflect().Descriptor().Fields().ByName(name))
	}
	return p
}

// message turns a YAML mapping into what protojson reads as a message of that kind.
func (f policyFile) message(node *yaml.Node, kind protoreflect.MessageDescriptor) (map[string]any, error) {
	if node.Kind != yaml.MappingNode {
		return nil, f.fault(node, "want a mapping with the fields of %s", kind.Name())
	}
	out := map[string]any{}
	var errs []error
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field := kind.Fields().ByName(protoreflect.Name(key.Value))
		if field == nil {
			field = kind.Fields().ByJSONName(key.Value)
		}
		if field == nil {
			errs = append(errs, f.fault(key, "%s has no field %q%s", kind.Name(), key.Value, didYouMean(key.Value, fieldNames(kind))))
			continue
		}
		if _, twice := out[string(field.Name())]; twice {
			errs = append(errs, f.fault(key, "%s stands there twice", field.Name()))
			continue
		}
		converted, err := f.field(value, field)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out[string(field.Name())] = converted
	}
	return out, errors.Join(errs...)
}

func fieldNames(kind protoreflect.MessageDescriptor) []string {
	var out []string
	for i := range kind.Fields().Len() {
		out = append(out, string(kind.Fields().Get(i).Name()))
	}
	return out
}

func (f policyFile) field(node *yaml.Node, field protoreflect.FieldDescriptor) (any, error) {
	if !field.IsList() {
		return f.single(node, field)
	}
	if node.Kind != yaml.SequenceNode {
		return nil, f.fault(node, "%s: want a list", field.Name())
	}
	list := []any{}
	for _, item := range node.Content {
		value, err := f.single(item, field)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

func (f policyFile) single(node *yaml.Node, field protoreflect.FieldDescriptor) (any, error) {
	isMessage := field.Kind() == protoreflect.MessageKind
	if isMessage && !isWellKnown(field.Message()) {
		return f.message(node, field.Message())
	}
	if node.Kind != yaml.ScalarNode || node.Tag == "!!null" {
		return nil, f.fault(node, "%s: want one value", field.Name())
	}
	switch {
	case isMessage && field.Message().FullName() == "google.protobuf.Duration":
		d, err := parseDuration(node.Value)
		if err != nil {
			return nil, f.fault(node, "%s: %v", field.Name(), err)
		}
		return fmt.Sprintf("%d.%09ds", int64(d/1e9), int64(d%1e9)), nil
	case field.Kind() == protoreflect.EnumKind:
		return f.enum(node, field.Enum())
	case field.Kind() == protoreflect.StringKind:
		return node.Value, nil
	}
	var value any
	if err := node.Decode(&value); err != nil {
		return nil, f.fault(node, "%s: %v", field.Name(), err)
	}
	return value, nil
}

func isWellKnown(kind protoreflect.MessageDescriptor) bool {
	return strings.HasPrefix(string(kind.FullName()), "google.protobuf.")
}

// enum reads an enum value with or without its prefix, in any case.
func (f policyFile) enum(node *yaml.Node, kind protoreflect.EnumDescriptor) (string, error) {
	prefix := strings.TrimSuffix(string(kind.Values().Get(0).Name()), "UNSPECIFIED")
	word := strings.ToUpper(strings.ReplaceAll(node.Value, "-", "_"))
	var names []string
	for i := 1; i < kind.Values().Len(); i++ {
		name := string(kind.Values().Get(i).Name())
		if word == name || prefix+word == name {
			return name, nil
		}
		names = append(names, strings.TrimPrefix(name, prefix))
	}
	return "", f.fault(node, "%q is none of %s", node.Value, strings.Join(names, ", "))
}
