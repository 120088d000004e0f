// Package cockroachsql keeps the project's SQL to what CockroachDB takes, from 21.1 on, also where no CockroachDB is at hand: a lint over the text of
// every statement and every migration.
package cockroachsql

import (
	"regexp"
	"strings"
)

// Refuses says why CockroachDB refuses a text, "" where nothing here speaks against it. The text is one statement, or several with semicolons
// between them; what a program fills in later may stand in it under any name.
func Refuses(text string) (why string) {
	text = plain(text)
	for _, r := range refused {
		if r.text.MatchString(text) {
			return r.why
		}
	}
	parts := strings.Split(text, ";")
	statements, ddl := 0, false
	for _, part := range parts {
		if table := mutatedTwice(part); table != "" {
			return "it changes " + table + " twice in one statement (0A000), unless both are INSERT without ON CONFLICT"
		}
		if strings.TrimSpace(part) != "" {
			statements++
			ddl = ddl || changesSchema.MatchString(part)
		}
	}
	if ddl && statements > 1 {
		return "it changes the schema together with other statements, which run as one transaction"
	}
	return ""
}

var refused = []struct {
	text *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`\bPG_(TRY_)?ADVISORY_`), "advisory locks do nothing there"},
	{regexp.MustCompile(`\bSKIP LOCKED\b`), "it has SKIP LOCKED from 22.2 on only"},
	{regexp.MustCompile(`\bLOCK TABLE\b`), "it has no LOCK TABLE"},
	{regexp.MustCompile(`\b(UN)?LISTEN [A-Z"]|\bNOTIFY [A-Z"]|\bPG_NOTIFY\b`), "it has no LISTEN and NOTIFY"},
	{regexp.MustCompile(`\bMERGE INTO\b`), "it has no MERGE"},
	{regexp.MustCompile(`\bUNLOGGED\b`), "it has no unlogged tables"},
}

var (
	changesSchema = regexp.MustCompile(`\b(CREATE|ALTER|DROP) (UNIQUE )?(TABLE|INDEX|SCHEMA|TYPE|VIEW|SEQUENCE)\b`)
	mutation      = regexp.MustCompile(`\b(INSERT INTO|UPSERT INTO|UPDATE|DELETE FROM) (?:ONLY )?([^\s(),]+)`)
	// notMutations are phrases that hold the word and change nothing.
	notMutations = regexp.MustCompile(`\b(DO|ON|FOR|FOR NO KEY) UPDATE\b`)
	comments     = regexp.MustCompile(`(?s)/\*.*?\*/|--[^\n]*`)
	texts        = regexp.MustCompile(`'[^']*'`)
	space        = regexp.MustCompile(`\s+`)
)

// plain is a statement in capitals, without comments, texts and line breaks.
func plain(text string) string {
	text = texts.ReplaceAllString(comments.ReplaceAllString(text, " "), "''")
	return strings.ToUpper(space.ReplaceAllString(text, " "))
}

func mutatedTwice(statement string) (table string) {
	inserts := !strings.Contains(statement, "ON CONFLICT")
	times := map[string]int{}
	found := mutation.FindAllStringSubmatch(notMutations.ReplaceAllString(statement, " "), -1)
	for _, m := range found {
		times[m[2]]++
		inserts = inserts && m[1] == "INSERT INTO"
	}
	for _, m := range found {
		if times[m[2]] > 1 && !inserts {
			return strings.ToLower(m[2])
		}
	}
	return ""
}
