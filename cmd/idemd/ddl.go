package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/idemd/idemd/clientlib/sqlidem"
	"github.com/idemd/idemd/clientlib/sqlidem/inbox"
	"github.com/idemd/idemd/clientlib/sqlidem/outbox"
	"github.com/idemd/idemd/clientlib/webhook/sqlreceipts"
)

// The sets of tables that ddl prints. Those of webhooks are of no use without the inbox.
var ddlSets = map[string][]func(sqlidem.Engine, string) (string, error){
	"ledger":  {ledgerDDL},
	"inbox":   {inboxDDL},
	"outbox":  {outboxDDL},
	"webhook": {inboxDDL, webhookDDL},
	"all":     {ledgerDDL, inboxDDL, outboxDDL, webhookDDL},
}

func ledgerDDL(e sqlidem.Engine, prefix string) (string, error) {
	return sqlidem.DDL(e, sqlidem.Config{TablePrefix: prefix})
}

func inboxDDL(e sqlidem.Engine, prefix string) (string, error) {
	return inbox.DDL(e, inbox.Config{TablePrefix: prefix})
}

func outboxDDL(e sqlidem.Engine, prefix string) (string, error) {
	return outbox.DDL(e, outbox.Config{TablePrefix: prefix})
}

func webhookDDL(e sqlidem.Engine, prefix string) (string, error) {
	return sqlreceipts.DDL(e, sqlreceipts.Config{TablePrefix: prefix})
}

func (w *world) ddlCommand() *cobra.Command {
	return group("ddl", "Print the tables of clientlib for a service's own database",
		"Print, as SQL, the tables that clientlib keeps in a service's own database. They are not the daemon's: see \"idemd migrate\" for those. Running "+
			"the script twice does no harm, and the packages' Migrate finds nothing to do after it.", groupRules,
		w.ddlEngineCommand("postgres", "For PostgreSQL 14 or later", sqlidem.PostgreSQL),
		w.ddlEngineCommand("cockroach", "For CockroachDB 21.1 or later", sqlidem.CockroachDB))
}

func (w *world) ddlEngineCommand(name, short string, engine sqlidem.Engine) *cobra.Command {
	prefix := ""
	cmd := &cobra.Command{
		Use: name + " [ledger|inbox|outbox|webhook|all]", Short: short, Args: cobra.ArbitraryArgs, ValidArgs: []string{"ledger", "inbox", "outbox", "webhook", "all"},
		Long: short + ". ledger: what sqlidem.Do and sqlidem.Receipts need. inbox, outbox: those packages. webhook: sqlreceipts, the inbox among it. " +
			"Without a word: all of them.",
	}
	cmd.Flags().StringVar(&prefix, "table-prefix", sqlidem.DefaultTablePrefix, "what the tables' names begin with, after a schema and a dot or without")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		set := "all"
		if len(args) > 0 {
			set = args[0]
		}
		if len(args) > 1 || !slices.Contains(cmd.ValidArgs, set) {
			return usage("%s wants one of %s, or nothing for all", commandName(cmd), strings.Join(cmd.ValidArgs, ", "))
		}
		for _, ddl := range ddlSets[set] {
			script, err := ddl(engine, prefix)
			if err != nil {
				return usage("--table-prefix: %w", err)
			}
			w.stdout.printf("%s\n", script)
		}
		return nil
	}
	return cmd
}
