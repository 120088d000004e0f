package fingerprint

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// pathStep is one level of the excluded paths, put together as a tree. It goes by field number, so that it
// holds for every descriptor of the message.
type pathStep struct {
	excluded bool
	next     map[protoreflect.FieldNumber]*pathStep
}

// at gives the step below, or nil where no path leads.
func (s *pathStep) at(number protoreflect.FieldNumber) *pathStep {
	if s == nil {
		return nil
	}
	return s.next[number]
}

func (s *pathStep) excludes() bool { return s != nil && s.excluded }

// add adds a path that starts at message, or says where it leads nowhere. A path that excludes nothing is a
// mistake that would only show as false mismatches, in production, so it is found here.
func (s *pathStep) add(message protoreflect.MessageDescriptor, path string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("fingerprint: excluded path %q: %s", path, fmt.Sprintf(format, args...))
	}
	step := s
	names := strings.Split(path, ".")
	for i, name := range names {
		if message.FullName() == "google.protobuf.Any" {
			return refuse("a path cannot go into a google.protobuf.Any, whose type it does not know; mark the field itself")
		}
		field := message.Fields().ByName(protoreflect.Name(name))
		if field == nil {
			return refuse("%s", whyNoField(message, name))
		}
		if step.next == nil {
			step.next = map[protoreflect.FieldNumber]*pathStep{}
		}
		if step.next[field.Number()] == nil {
			step.next[field.Number()] = &pathStep{}
		}
		step = step.next[field.Number()]
		if i == len(names)-1 {
			break
		}
		if field.IsMap() {
			field = field.MapValue()
		}
		if message = field.Message(); message == nil {
			return refuse("%s has no fields to go into", name)
		}
	}
	step.excluded = true
	return nil
}

// whyNoField says what is wrong with a name, where it is one of the usual mistakes.
func whyNoField(message protoreflect.MessageDescriptor, name string) string {
	if field := message.Fields().ByJSONName(name); field != nil {
		return fmt.Sprintf("%s has no field %s; by its name in the .proto it is %s", message.FullName(), name, field.Name())
	}
	if oneof := message.Oneofs().ByName(protoreflect.Name(name)); oneof != nil {
		return fmt.Sprintf("%s is a oneof of %s; name its fields", name, message.FullName())
	}
	return fmt.Sprintf("%s has no field %q", message.FullName(), name)
}
