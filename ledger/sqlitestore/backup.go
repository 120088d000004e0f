package sqlitestore

import (
	"context"
	"crypto/rand"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Backup writes a consistent copy of the ledger, as it stands when Backup begins, to the file at path, while the store goes on serving.
// It refuses to overwrite. The copy is one file (0600), compact and synced, and appears under its name only when it is whole.
//
// To restore, put it as ledger.db into an empty directory. While a backup runs, the write-ahead log can not be emptied and grows.
func (s *Store) Backup(ctx context.Context, path string) error {
	ctx, done, err := s.beginBackup(ctx)
	if err != nil {
		return err
	}
	defer done()
	// An absolute path, so that SQLite can not take it for a URI.
	path, err = filepath.Abs(path)
	if err != nil {
		return unavailable("backup", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return unavailable("backup", fmt.Errorf("%s: %w", path, fs.ErrExist))
	}
	partial := fmt.Sprintf("%s.partial-%s", path, rand.Text())
	if err := s.copyTo(ctx, partial, path); err != nil {
		_ = os.Remove(partial)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return unavailable("backup", err)
	}
	return nil
}

// beginBackup makes Close wait for the backup, and end it.
func (s *Store) beginBackup(ctx context.Context) (context.Context, func(), error) {
	s.backupsMu.Lock()
	defer s.backupsMu.Unlock()
	if s.backing.Err() != nil {
		return nil, nil, errClosed
	}
	s.backups.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.backing, func() { cancel(errClosed) })
	return ctx, func() { stop(); cancel(nil); s.backups.Done() }, nil
}

func (s *Store) copyTo(ctx context.Context, partial, path string) (err error) {
	// SQLite writes into an empty file that is there, and so with our mode.
	file, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	c, err := openConnection(ctx, s.path, s.vfs, "ro", commonPragmas...)
	if err != nil {
		return err
	}
	err = c.query(ctx, "VACUUM INTO ?", []driver.Value{partial}, func([]driver.Value) error { return nil })
	if err := errors.Join(err, c.close()); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	// A link, not a rename: a rename would overwrite what came to be there meanwhile.
	if err := os.Link(partial, path); err != nil {
		return err
	}
	if err := os.Remove(partial); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(path))
}
