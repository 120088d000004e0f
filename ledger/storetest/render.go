package storetest

import (
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
)

// maxShownBytes is how much of a body is shown; what is longer is told by length and checksum.
const maxShownBytes = 24

// render shows a value, so that values which do not differ are the same text and values which do differ are another: pointers by what they
// point at, a nil slice like an empty one, unset fields not at all.
func render(v any) string {
	var out strings.Builder
	renderTo(&out, reflect.ValueOf(v))
	return out.String()
}

func renderTo(out *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Invalid:
		out.WriteString("nothing")
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			out.WriteString("nothing")
			return
		}
		renderTo(out, v.Elem())
	case reflect.Struct:
		renderStruct(out, v)
	case reflect.Slice, reflect.Array:
		renderList(out, v)
	case reflect.Map:
		renderMap(out, v)
	case reflect.String:
		fmt.Fprintf(out, "%q", v.String())
	default:
		fmt.Fprint(out, v)
	}
}

func renderStruct(out *strings.Builder, v reflect.Value) {
	out.WriteByte('{')
	separator := ""
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if !field.IsExported() || unset(v.Field(i)) {
			continue
		}
		out.WriteString(separator)
		out.WriteString(field.Name)
		out.WriteByte(':')
		renderTo(out, v.Field(i))
		separator = " "
	}
	out.WriteByte('}')
}

// unset reports whether a field holds what it holds when nobody sets it.
func unset(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Slice && v.Len() == 0 || v.Kind() == reflect.Map && v.Len() == 0
}

func renderList(out *strings.Builder, v reflect.Value) {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		renderBytes(out, v)
		return
	}
	out.WriteByte('[')
	for i := range v.Len() {
		if i > 0 {
			out.WriteByte(' ')
		}
		renderTo(out, v.Index(i))
	}
	out.WriteByte(']')
}

func renderBytes(out *strings.Builder, v reflect.Value) {
	b := make([]byte, v.Len())
	reflect.Copy(reflect.ValueOf(b), v)
	fmt.Fprintf(out, "%x", b[:min(len(b), maxShownBytes)])
	if len(b) > maxShownBytes {
		fmt.Fprintf(out, "…(%d bytes, sum %08x)", len(b), crc32.ChecksumIEEE(b))
	}
}

func renderMap(out *strings.Builder, v reflect.Value) {
	var pairs []string
	for _, key := range v.MapKeys() {
		pairs = append(pairs, render(key.Interface())+":"+render(v.MapIndex(key).Interface()))
	}
	slices.Sort(pairs)
	out.WriteString("map[" + strings.Join(pairs, " ") + "]")
}
