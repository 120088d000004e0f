package sqlidem

import (
	"reflect"
	"strings"
	"testing"

	"github.com/idemd/idemd/tools/cockroachsql"
)

// The statements as they are sent to CockroachDB, put together: tools/cockroachsql only sees their parts.
func TestCockroachDBTakesEveryStatement(t *testing.T) {
	t.Parallel()
	d := newDialect(CockroachDB, Config{TablePrefix: "idem_"})
	texts := []string{d.forget(2), d.closeEntries(2)}
	for _, field := range reflect.ValueOf(*d).Fields() {
		if field.Kind() == reflect.String && strings.HasPrefix(field.String(), "/*") {
			texts = append(texts, field.String())
		}
	}
	if len(texts) < 12 {
		t.Errorf("only %d statements were found", len(texts))
	}
	for _, text := range texts {
		if why := cockroachsql.Refuses(text); why != "" {
			t.Errorf("CockroachDB refuses this: %s:\n%s", why, text)
		}
	}
}
