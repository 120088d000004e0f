package sqldb

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// DefaultTablePrefix is what the tables' names begin with where nothing else was asked for.
const DefaultTablePrefix = "idem_"

var prefixForm = regexp.MustCompile(`^([a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,31}$`)

// CheckPrefix refuses a table prefix that could not stand in a statement as it is. Empty is the default.
func CheckPrefix(prefix string) error {
	if prefix != "" && !prefixForm.MatchString(prefix) {
		return errors.New("TablePrefix must be lower-case letters, digits and underscores, with a schema and a dot before them or without")
	}
	return nil
}

func orDefault(prefix string) string {
	if prefix == "" {
		return DefaultTablePrefix
	}
	return prefix
}

// Naming replaces {name} by a table's name under the prefix, and {#name} by the name of an index, which takes no schema.
func Naming(prefix string, names ...string) *strings.Replacer {
	prefix = orDefault(prefix)
	_, bare, found := strings.Cut(prefix, ".")
	if !found {
		bare = prefix
	}
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, "{"+name+"}", prefix+name, "{#"+name+"}", bare+name)
	}
	return strings.NewReplacer(pairs...)
}

// Schema is a set of tables that are made, and changed from version to version, by numbered steps, forward only. A step is one DDL
// statement, since CockroachDB has no atomic DDL in transactions. Every step is written so that running it twice does no harm, and is
// recorded after it ran: a crash at any point, or two that migrate at once, do no harm either. A later step leaves the statements of the
// version before it working, so that both may run at once. A new step goes to the end, and no step is ever changed.
type Schema struct {
	// Holds says in a word or two what the tables are for.
	Holds string
	// After is the number before that of the first step. The schemas of this module record their steps in one table, each in a range of its own.
	After int
	// Names are those of the tables and indexes, for [Naming].
	Names []string
	// Types are what the placeholders of column types and storage options stand for, as pairs for a strings.Replacer.
	Types func(Engine) []string
	// Steps are the statements, with placeholders.
	Steps []Step
}

// The numbers after which the steps of each schema are recorded: each has a hundred. They never change.
const (
	StepsOfEntries  = 0
	StepsOfInbox    = 100
	StepsOfOutbox   = 200
	StepsOfWebhooks = 300
)

// Step is one statement of a schema.
type Step struct{ Name, SQL string }

// stepTable is where the steps of all schemas under one prefix are recorded.
func stepTable(prefix string) string { return orDefault(prefix) + "schema" }

func createStepTable(prefix string) string {
	return "CREATE TABLE IF NOT EXISTS " + stepTable(prefix) + ` (
    step       INT8 NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)`
}

// statements are the steps with nothing left to fill in.
func (s Schema) statements(e Engine, prefix string) []string {
	named, typed := Naming(prefix, s.Names...), strings.NewReplacer(s.Types(e)...)
	out := make([]string, len(s.Steps))
	for i, step := range s.Steps {
		out[i] = named.Replace(typed.Replace(step.SQL))
	}
	return out
}

// Script is the whole schema as a script. [Schema.Migrate] finds nothing to do after it.
func (s Schema) Script(e Engine, prefix string) string {
	var script strings.Builder
	fmt.Fprintf(&script, "-- %s, for %s. Running this again does no harm.\n%s;\n", s.Holds, e, createStepTable(prefix))
	for i, text := range s.statements(e, prefix) {
		fmt.Fprintf(&script, "\n%s;\nINSERT INTO %s (step, name) VALUES (%d, '%s') ON CONFLICT (step) DO NOTHING;\n",
			text, stepTable(prefix), s.After+1+i, s.Steps[i].Name)
	}
	return script.String()
}

// Migrate makes the tables, or brings them to what this version needs. Any number may run at once, from any number of processes and of
// several versions, and as often as they like. Its errors keep the database's own words.
func (s Schema) Migrate(ctx context.Context, q Querier, prefix string) error {
	e, err := EngineOf(ctx, q)
	if err != nil {
		return err
	}
	if err := runDDL(ctx, q, createStepTable(prefix)); err != nil {
		return err
	}
	applied := map[int64]bool{}
	err = q.Each(ctx, "SELECT step FROM "+stepTable(prefix), nil, func(scan func(...any) error) error {
		var step int64
		err := scan(&step)
		applied[step] = true
		return err
	})
	if err != nil {
		return err
	}
	for i, text := range s.statements(e, prefix) {
		number := int64(s.After + 1 + i)
		if applied[number] {
			continue
		}
		if err = runDDL(ctx, q, text); err == nil {
			_, err = q.Exec(ctx, "INSERT INTO "+stepTable(prefix)+" (step, name) VALUES ($1::INT8, $2::TEXT) ON CONFLICT (step) DO NOTHING",
				number, s.Steps[i].Name)
		}
		if err != nil {
			return fmt.Errorf("step %d (%s): %w", number, s.Steps[i].Name, err)
		}
	}
	return nil
}

// runDDL runs one idempotent statement, again where another migration does the same at the same time: IF NOT EXISTS is not atomic, and the
// two can meet in the catalogue, over the table, its row type or the index behind either.
func runDDL(ctx context.Context, q Querier, text string) error {
	for n := 1; ; n++ {
		_, err := q.Exec(ctx, text)
		if err == nil || n == MaxTries {
			return err
		}
		switch SQLState(err) {
		case "23505", "42P07", "42701", "42710", "40001", "40P01", "XX000":
			if !BackOff(ctx, n) {
				return errors.Join(err, ctx.Err())
			}
		default:
			return err
		}
	}
}
