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
	for _, field := range reflect.ValueOf(*s).Fields() {
		if field.Kind() != reflect.String || !strings.HasPrefix(field.String(), "/*") {
			continue
		}
		looked++
		if why := cockroachsql.Refuses(field.String()); why != "" {
			t.Errorf("CockroachDB refuses this: %s:\n%s", why, field.String())
		}
	}
	if looked < 12 {
		t.Errorf("only %d statements were found", looked)
	}
	for name, text := range Texts(&Store{sql: s}) {
		if why := cockroachsql.Refuses(text); why != "" {
			t.Errorf("CockroachDB refuses %s: %s:\n%s", name, why, text)
		}
	}
}
