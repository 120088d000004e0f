package main

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/idemd/idemd/ledger/sqlstore"
)

func (w *world) migrateCommand() *cobra.Command {
	return group("migrate", "Show and change the schema of an SQL store",
		"The schema of an SQL store is changed by this command only; a daemon refuses to start on one that is too old or too new. Any number may run at once: "+
			"one works, the others wait. The embedded store changes its own when it is opened.", groupDaemon,
		w.migrateUpCommand(), w.migrateStatusCommand())
}

// migrateConfig is the database that a migration is for.
func (s *settings) migrateConfig() (sqlstore.Config, storeChoice, error) {
	choice, err := s.chooseStore()
	if err != nil {
		return sqlstore.Config{}, choice, asUsage(err)
	}
	if choice.url == "" {
		return sqlstore.Config{}, choice, usage("the store is the embedded one, in %s: it changes its schema itself when the daemon opens it. For a database "+
			"give --store", choice.directory)
	}
	return s.sqlConfig(choice, slog.New(slog.DiscardHandler)), choice, nil
}

// storeCommand makes a command that opens a store and no daemon.
func (w *world) storeCommand(use, short string, args cobra.PositionalArgs) (*cobra.Command, *settings, *choice) {
	s := &settings{env: w.getenv, uid: w.uid}
	cmd := &cobra.Command{Use: use, Short: short, Args: args, Annotations: map[string]string{strictEnvironment: "yes"}}
	s.register(cmd.Flags())
	hideAllBut(cmd.Flags(), storeFlags)
	return cmd, s, addOutput(cmd.Flags())
}

// migrationStep is one step in the output.
type migrationStep struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
}

func (w *world) migrateUpCommand() *cobra.Command {
	cmd, s, out := w.storeCommand("up", "Bring the schema to what this build needs", exactArgs())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, choice, err := s.migrateConfig()
		if err != nil {
			return err
		}
		applied := []migrationStep{}
		err = sqlstore.Migrate(cmd.Context(), cfg, func(p sqlstore.MigrationProgress) {
			if p.Step == nil {
				w.stderr.printf("idemd: another migration is under way; waiting for it\n")
				return
			}
			applied = append(applied, migrationStep{p.Step.Number, p.Step.Name})
			if out.value == formText {
				w.stdout.printf("applied %d %s\n", p.Step.Number, p.Step.Name)
			}
		})
		if err != nil {
			return err
		}
		if out.value == formJSON {
			return printJSON(w.stdout, struct {
				Store   string          `json:"store"`
				Applied []migrationStep `json:"applied"`
			}{choice.String(), applied})
		}
		w.stdout.printf("the schema of %s is what this build needs\n", choice)
		return nil
	}
	return cmd
}

func (w *world) migrateStatusCommand() *cobra.Command {
	cmd, s, out := w.storeCommand("status", "Say how far the schema is, and change nothing", exactArgs())
	cmd.Long = "Say how far the schema is, and change nothing. Exit codes: 0 it is what this build needs; 1 it is not, or it cannot be read."
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, choice, err := s.migrateConfig()
		if err != nil {
			return err
		}
		state, err := sqlstore.MigrationStatus(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		pending := []migrationStep{}
		for _, step := range state.Pending {
			pending = append(pending, migrationStep{step.Number, step.Name})
		}
		if out.value == formJSON {
			err = printJSON(w.stdout, struct {
				Store   string          `json:"store"`
				Engine  string          `json:"engine"`
				Applied int             `json:"applied"`
				Latest  int             `json:"latest"`
				Pending []migrationStep `json:"pending"`
			}{choice.String(), state.Engine, state.Applied, state.Latest, pending})
		} else {
			w.printMigrations(choice, state, pending)
		}
		if err == nil && len(pending) > 0 {
			return fmt.Errorf("%d steps are to be applied: run idemd migrate up", len(pending))
		}
		return err
	}
	return cmd
}

func (w *world) printMigrations(choice storeChoice, state sqlstore.MigrationState, pending []migrationStep) {
	var f facts
	f.add("store", "%s", choice)
	f.add("engine", "%s", state.Engine)
	f.add("schema", "%d of %d", state.Applied, state.Latest)
	f.print(w.stdout)
	if len(pending) == 0 {
		return
	}
	var rows [][]string
	for _, step := range pending {
		rows = append(rows, []string{strconv.Itoa(step.Number), step.Name})
	}
	w.stdout.printf("\n")
	table(w.stdout, []string{"PENDING", "NAME"}, rows)
}
