package sqlitestore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/idemd/idemd/ledger"
)

// applicationID marks a file as a ledger's ("idmd").
const applicationID = 0x69646d64

// The migrations, numbered from 1 without a gap. A published one is never changed. Both the version before and after a migration must be
// able to run on its result wherever that is possible: operators go back.
//
//go:embed schema/*.sql
var schemaFiles embed.FS

func migrations() ([]string, error) {
	entries, err := fs.ReadDir(schemaFiles, "schema")
	if err != nil {
		return nil, err
	}
	list := make([]string, 0, len(entries))
	for i, entry := range entries {
		var number int
		if _, err := fmt.Sscanf(entry.Name(), "%04d_", &number); err != nil || number != i+1 {
			return nil, fmt.Errorf("sqlitestore: migration %s out of turn", entry.Name())
		}
		text, err := fs.ReadFile(schemaFiles, "schema/"+entry.Name())
		if err != nil {
			return nil, err
		}
		list = append(list, string(text))
	}
	return list, nil
}

// migrate brings the file to the newest schema, and refuses a file that is none of ours before anything in it is changed.
func migrate(ctx context.Context, c *connection, path string) error {
	list, err := migrations()
	if err != nil {
		return err
	}
	version, err := identify(ctx, c, path)
	if err != nil {
		return err
	}
	for ; version < len(list); version++ {
		if err := step(ctx, c, list[version], version+1); err != nil {
			_ = c.script(ctx, "ROLLBACK")
			return onDisk(fmt.Sprintf("cannot bring from schema %d to %d:", version, version+1), path, err)
		}
	}
	return nil
}

// step does one migration in one transaction.
func step(ctx context.Context, c *connection, script string, to int) error {
	if err := c.script(ctx, "BEGIN IMMEDIATE; "+script); err != nil {
		return err
	}
	if convert := conversions[to]; convert != nil {
		if err := convert(ctx, c); err != nil {
			return err
		}
	}
	return c.script(ctx, fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT", applicationID, to))
}

// identify returns the schema version of the file, 0 for an empty one.
func identify(ctx context.Context, c *connection, path string) (int, error) {
	list, err := migrations()
	if err != nil {
		return 0, err
	}
	newest := len(list)
	id, err := c.number(ctx, "PRAGMA application_id")
	if err != nil {
		return 0, unreadable(path, err)
	}
	version, err := c.number(ctx, "PRAGMA user_version")
	if err != nil {
		return 0, unreadable(path, err)
	}
	tables, err := c.number(ctx, "SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return 0, unreadable(path, err)
	}
	switch {
	case id == 0 && version == 0 && tables == 0:
		return 0, nil
	case id != applicationID:
		return 0, fmt.Errorf("sqlitestore: %s is the database of another application (application_id %#x). Move it away, or name another directory",
			path, id)
	case version > int64(newest):
		return 0, fmt.Errorf("sqlitestore: %s has schema %d, and this version knows none after %d: a newer idemd wrote it. Run that one, or restore a "+
			"backup from before the upgrade", path, version, newest)
	case version < 1:
		return 0, fmt.Errorf("sqlitestore: %s has no schema version: it is damaged. Restore a backup", path)
	}
	return int(version), nil
}

// The checks of a file's structure: quickly, where seals vouch for the pages, and whole, indexes against tables, where they have yet to.
const (
	quickCheck = "PRAGMA quick_check(1)"
	wholeCheck = "PRAGMA integrity_check(1)"
)

// check looks for damage in the file's structure before anything is served from it.
func check(ctx context.Context, c *connection, path, how string) error {
	verdict, err := c.text(ctx, how)
	if err != nil {
		return unreadable(path, err)
	}
	if verdict != "ok" {
		return damagedFile(path, errors.New(verdict))
	}
	return nil
}

// unreadable says why a file can not be read, and what to do if it is for damage.
func unreadable(path string, err error) error {
	if isDamage(err) {
		return damagedFile(path, err)
	}
	return onDisk("cannot read", path, err)
}

// onDisk says what could not be done with a file, and what helps where the disk is full.
func onDisk(doing, path string, err error) error {
	if err = withFault(err); errors.Is(err, ledger.FaultFull) {
		return fmt.Errorf("sqlitestore: %s %s: %w. Make room on that disk and start again; nothing acknowledged is lost. Do not delete %s: it holds "+
			"acknowledged answers", doing, path, err, databaseName+logSuffix)
	}
	return fmt.Errorf("sqlitestore: %s %s: %w", doing, path, err)
}

func damagedFile(path string, err error) error {
	return fmt.Errorf("sqlitestore: %s is damaged (%w). Keep the file and those beside it as they are, and restore a backup to an empty directory; "+
		"sqlite3's .recover can read what is left. If you know that another program (sqlite3, Litestream) has written to the database, delete %s: it is then "+
		"checked whole before it is used", path, err, filepath.Base(path)+sealsSuffix)
}
