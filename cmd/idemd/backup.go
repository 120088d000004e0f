package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // the driver of the embedded store's file
)

// ledgerFile is the name of the embedded store's database in its directory, as docs/operations.md tells it to operators.
const ledgerFile = "ledger.db"

func (w *world) backupCommand() *cobra.Command {
	cmd, s, out := w.storeCommand("backup DESTINATION", "Copy the embedded store's ledger to a file, while a daemon serves it or not", exactArgs("DESTINATION"))
	cmd.GroupID = groupDaemon
	cmd.Long = "Copy the embedded store's ledger, as it stands at one moment, to a new file. A daemon that serves it goes on. What exists is never overwritten, and " +
		"the file has its name only once it is whole and on disk. Run it as the user who owns the directory.\n\n" +
		"To restore: stop the daemon, put the file into an empty directory as " + ledgerFile + ", and start on that. What was settled after the backup is unknown " +
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
		size, err := backup(cmd.Context(), choice.directory, args[0])
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

// backup copies by a connection of its own, from outside the daemon. In WAL mode SQLite keeps readers in other processes and the writer out of
// each other's way, and the directory's lock is the writer's: so there is no need to ask the daemon, and a backup can be made of a ledger whose
// daemon does not start.
func backup(ctx context.Context, dir, destination string) (size int64, err error) {
	source := filepath.Join(dir, ledgerFile)
	if _, err := os.Stat(source); err != nil {
		return 0, fmt.Errorf("there is no ledger: %w", err)
	}
	if destination, err = filepath.Abs(destination); err != nil {
		return 0, err
	}
	if _, err := os.Lstat(destination); !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s is there already: name a new file", destination)
	}
	// SQLite writes into an empty file that is there, and so with our mode: a ledger is full of other people's answers.
	file, err := os.CreateTemp(filepath.Dir(destination), filepath.Base(destination)+".partial-*")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	defer func() { _ = os.Remove(file.Name()) }() // linked under its own name by then, or of no use
	if err := copyDatabase(ctx, source, file.Name()); err != nil {
		return 0, err
	}
	if err := file.Sync(); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	// A link, not a rename: a rename would overwrite what came to be there meanwhile.
	if err := os.Link(file.Name(), destination); err != nil {
		return 0, err
	}
	return info.Size(), syncDirectory(filepath.Dir(destination))
}

func copyDatabase(ctx context.Context, source, destination string) error {
	uri := url.URL{Scheme: "file", Path: source, RawQuery: "mode=ro&_pragma=busy_timeout(5000)&_pragma=trusted_schema(off)"}
	db, err := sql.Open("sqlite", uri.String())
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", destination)
	return errors.Join(err, db.Close())
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
