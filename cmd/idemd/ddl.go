package main

import (
	"github.com/spf13/cobra"

	"github.com/idemd/idemd/clientlib/sqlidem"
)

func (w *world) ddlCommand() *cobra.Command {
	return group("ddl", "Print the tables of clientlib/sqlidem for a service's own database",
		"Print, as SQL, the tables that clientlib/sqlidem keeps in a service's own database. They are not the daemon's: see \"idemd migrate\" for those. Running "+
			"the script twice does no harm, and sqlidem.Migrate finds nothing to do after it.", groupRules,
		w.ddlEngineCommand("postgres", "For PostgreSQL 14 or later", sqlidem.PostgreSQL),
		w.ddlEngineCommand("cockroach", "For CockroachDB 21.1 or later", sqlidem.CockroachDB))
}

func (w *world) ddlEngineCommand(use, short string, engine sqlidem.Engine) *cobra.Command {
	var config sqlidem.Config
	cmd := &cobra.Command{Use: use, Short: short, Args: exactArgs()}
	cmd.Flags().StringVar(&config.TablePrefix, "table-prefix", sqlidem.DefaultTablePrefix, "what the tables' names begin with, after a schema and a dot or without")
	cmd.RunE = func(*cobra.Command, []string) error {
		script, err := sqlidem.DDL(engine, config)
		if err != nil {
			return usage("--table-prefix: %w", err)
		}
		w.stdout.printf("%s", script)
		return nil
	}
	return cmd
}
