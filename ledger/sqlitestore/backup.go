package sqlitestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
)

// Backup writes a consistent copy of the ledger in dir, as it stands when Backup begins, to the file at path, and returns its size in bytes.
// It works from outside: in WAL mode SQLite keeps readers in other processes and the writer out of each other's way, and the directory's
// lock is the writer's. So a daemon that serves the ledger goes on, and one that does not start is no hindrance.
//
// It refuses to overwrite (fs.ErrExist) and to make a ledger up where there is none (fs.ErrNotExist). The copy is one file (0600), compact and
// synced, and appears under its name only when it is whole; a backup that is given up, by its context too, leaves nothing. While it runs, the
// write-ahead log can not be emptied and grows. To restore, put the copy as ledger.db into an empty directory.
func Backup(ctx context.Context, dir, path string) (size int64, err error) {
	source := filepath.Join(dir, databaseName)
	if _, err := os.Stat(source); err != nil {
		return 0, fmt.Errorf("there is no ledger: %w", err)
	}
	// Absolute paths, so that SQLite can not take one for a URI.
	if source, err = filepath.Abs(source); err != nil {
		return 0, err
	}
	if source, err = filepath.EvalSymlinks(source); err != nil {
		return 0, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return 0, err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%s is there already: name a new file: %w", path, fs.ErrExist)
	}
	partial := fmt.Sprintf("%s.partial-%s", path, rand.Text())
	if size, err = copyTo(ctx, source, partial, path); err != nil {
		_ = os.Remove(partial)
		return 0, errors.Join(err, context.Cause(ctx))
	}
	return size, nil
}

func copyTo(ctx context.Context, source, partial, path string) (size int64, err error) {
	vfs, err := layerOn("")
	if err != nil {
		return 0, err
	}
	seals, err := useSeals(source, slog.New(slog.DiscardHandler)) // damage ends the backup with an error
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, seals.release()) }()
	// SQLite writes into an empty file that is there, and so with our mode: a ledger is full of other people's answers.
	file, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	c, err := openConnection(ctx, source, vfs, toRead, slices.Concat(commonPragmas, []string{Config{}.withDefaults().cachePragma(1)})...)
	if err != nil {
		return 0, err
	}
	err = c.query(ctx, "VACUUM INTO ?", []any{partial}, func([]any) error { return nil })
	if err := errors.Join(err, c.close()); err != nil {
		return 0, unreadable(source, err)
	}
	if err := file.Sync(); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	// A link, not a rename: a rename would overwrite what came to be there meanwhile.
	if err := os.Link(partial, path); err != nil {
		return 0, err
	}
	if err := os.Remove(partial); err != nil {
		return 0, err
	}
	return info.Size(), syncDirectory(filepath.Dir(path))
}
