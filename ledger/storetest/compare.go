package storetest

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/idemd/idemd/ledger"
)

// differences says field by field how got differs from want; empty if it does not. A nil and an empty slice are the same: the ledger
// tells an empty body from an omitted one by BodyOmitted, and stores need not keep a distinction that nothing rests on. A nil and a
// zero Response are not the same.
func differences(want, got *ledger.Entry) string {
	switch {
	case want == nil && got == nil:
		return ""
	case want == nil:
		return fmt.Sprintf("want no row, got revision %d of incarnation %d", got.Revision, got.Incarnation)
	case got == nil:
		return fmt.Sprintf("want revision %d of incarnation %d, got no row", want.Revision, want.Incarnation)
	}
	want, got = canonical(want), canonical(got)
	var out []string
	w, g := reflect.ValueOf(*want), reflect.ValueOf(*got)
	for i := range w.NumField() {
		if !reflect.DeepEqual(w.Field(i).Interface(), g.Field(i).Interface()) {
			out = append(out, fmt.Sprintf("%s: want %s, got %s", w.Type().Field(i).Name, show(w.Field(i)), show(g.Field(i))))
		}
	}
	return strings.Join(out, "\n")
}

// same reports whether two entries do not differ.
func same(want, got *ledger.Entry) bool {
	return want != nil && got != nil && reflect.DeepEqual(canonical(want), canonical(got))
}

func canonical(e *ledger.Entry) *ledger.Entry {
	c := copyEntry(e)
	dropEmpty(reflect.ValueOf(c).Elem())
	return c
}

func dropEmpty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			dropEmpty(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			dropEmpty(v.Field(i))
		}
	case reflect.Slice:
		switch {
		case v.Len() == 0:
			v.SetZero()
		case v.Type().Elem().Kind() != reflect.Uint8:
			for i := range v.Len() {
				dropEmpty(v.Index(i))
			}
		}
	default:
	}
}

const maxShown = 600

func show(v reflect.Value) string {
	s := render(v.Interface())
	if len(s) > maxShown {
		s = fmt.Sprintf("%s… (%d characters)", s[:maxShown], len(s))
	}
	return s
}

// outline is an entry in one line, for lists.
func outline(e *ledger.Entry) string {
	if e == nil {
		return "no row"
	}
	return fmt.Sprintf("%x %q/%q state %d closed %t revision %d incarnation %d attempt %d current %t due %d",
		e.Scope[:4], e.Ref.Tenant, e.Ref.Operation, e.State, e.Closed, e.Revision, e.Incarnation, e.Last.Number, e.Current, e.DueAt)
}
