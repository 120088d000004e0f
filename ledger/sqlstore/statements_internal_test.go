package sqlstore

import (
	"reflect"
	"strings"
	"testing"

	"github.com/idemd/idemd/tools/cockroachsql"
)

// The statements as they are sent to CockroachDB, put together: tools/cockroachsql only sees their parts.
func TestCockroachDBTakesEveryStatement(t *testing.T) {
	t.Parallel()
	s := newStatements(cockroachDB, "")
	looked := 0
	var look func(value reflect.Value)
	look = func(value reflect.Value) {
		for _, field := range value.Fields() {
			switch {
			case field.Type() == reflect.TypeFor[manyStatement]():
				look(field)
			case field.Kind() == reflect.String && strings.HasPrefix(field.String(), "/*"):
				looked++
				if why := cockroachsql.Refuses(field.String()); why != "" {
					t.Errorf("CockroachDB refuses this: %s:\n%s", why, field.String())
				}
			}
		}
	}
	look(reflect.ValueOf(*s))
	if looked < 22 {
		t.Errorf("only %d statements were found", looked)
	}
	for name, text := range Texts(&Store{sql: s}) {
		if why := cockroachsql.Refuses(text); why != "" {
			t.Errorf("CockroachDB refuses %s: %s:\n%s", name, why, text)
		}
	}
}
