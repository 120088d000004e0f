package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/idemd/idemd/ledger/sqlitestore"
)

func (w *world) backupCommand() *cobra.Command {
	cmd, s, out := w.storeCommand("backup DESTINATION", "Copy the embedded store's ledger to a file, while a daemon serves it or not", exactArgs("DESTINATION"))
	cmd.GroupID = groupDaemon
	cmd.Long = "Copy the embedded store's ledger, as it stands at one moment, to a new file. A daemon that serves it goes on. What exists is never overwritten, and " +
		"the file has its name only once it is whole and on disk. Run it as the user who owns the directory.\n\n" +
		"To restore: stop the daemon, put the file into an empty directory as ledger.db, and start on that. What was settled after the backup is unknown " +
		"again: see docs/operations.md first. Back a database up with its own tools."
	cmd.Example = "  idemd backup --data-dir /var/lib/idemd /backup/idemd-$(date +%F).db"
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		choice, err := s.chooseStore()
		if err != nil {
			return asUsage(err)
		}
		if choice.url != "" {
			return usage("the store is a database: back it up with its own tools (pg_dump, BACKUP)")
		}
		size, err := sqlitestore.Backup(cmd.Context(), choice.directory, args[0])
		if err != nil {
			return fmt.Errorf("backup of %s: %w", choice.directory, err)
		}
		if out.value == formJSON {
			return printJSON(w.stdout, struct {
				Source      string `json:"source"`
				Destination string `json:"destination"`
				Size        int64  `json:"sizeBytes"`
			}{choice.directory, args[0], size})
		}
		w.stdout.printf("%s: %d bytes\n", args[0], size)
		return nil
	}
	return cmd
}
