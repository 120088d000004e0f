package sqlitestore

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names of the files in the directory. SQLite adds ledger.db-wal and ledger.db-shm.
const (
	databaseName = "ledger.db"
	lockName     = "LOCK"
)

// prepareDirectory makes dir and returns it as an absolute path. A directory that is there keeps its mode; the files are 0600 in any case.
func prepareDirectory(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("sqlitestore: %w", err)
	}
	switch info, err := os.Stat(dir); {
	case err == nil && !info.IsDir():
		return "", fmt.Errorf("sqlitestore: %s is not a directory", dir)
	case err == nil:
		return dir, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("sqlitestore: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("sqlitestore: %w", err)
	}
	return dir, syncDirectory(filepath.Dir(dir))
}

// lockDirectory takes the directory for this process. The lock goes with the process, however it ends.
func lockDirectory(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("sqlitestore: cannot write in %s: %w; the ledger needs a directory that it can write in", dir, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(file, 32))
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("sqlitestore: %s is in use by %s; one process at a time can use a ledger's directory", dir, process(holder))
		}
		return nil, fmt.Errorf("sqlitestore: lock %s: %w", path, err)
	}
	if err := writePid(file); err != nil {
		return nil, errors.Join(fmt.Errorf("sqlitestore: cannot write in %s: %w", dir, err), file.Close())
	}
	return file, nil
}

// unlockDirectory gives the directory back. Closing the file is not enough: a child that this process is just starting has a copy of the
// descriptor until it runs its program, and the lock goes with the last copy.
func unlockDirectory(file *os.File) error {
	return errors.Join(unix.Flock(int(file.Fd()), unix.LOCK_UN), file.Close())
}

func writePid(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// process names the holder of the lock by what it wrote into the file.
func process(content []byte) string {
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d", pid)
}

// prepareDatabase makes an empty database file, or looks at the one that is there before SQLite does: SQLite throws a write-ahead log
// away whose database is missing or empty. It must run before the first connection: closing any descriptor of the file drops
// the locks that SQLite's connections in this process hold on it.
func prepareDatabase(dir string) (path string, size int64, err error) {
	path = filepath.Join(dir, databaseName)
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", 0, fmt.Errorf("sqlitestore: %w", err)
	}
	if err == nil && info.Size() > 0 {
		return path, info.Size(), checkHeader(path, info)
	}
	if wal, err := os.Stat(path + "-wal"); err == nil && wal.Size() > 0 {
		return "", 0, fmt.Errorf("sqlitestore: %s is missing or empty, but its write-ahead log is there and holds data. Put the database file back, "+
			"or restore a backup to an empty directory", path)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", 0, fmt.Errorf("sqlitestore: %w", err)
	}
	if err := file.Close(); err != nil {
		return "", 0, fmt.Errorf("sqlitestore: %w", err)
	}
	return path, 0, syncDirectory(dir)
}

const sqliteMagic = "SQLite format 3\x00"

func checkHeader(path string, info fs.FileInfo) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	header := make([]byte, len(sqliteMagic))
	_, readErr := io.ReadFull(file, header)
	if err := errors.Join(readErr, file.Close()); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	if string(header) != sqliteMagic {
		return fmt.Errorf("sqlitestore: %s is not an SQLite database. Move it away, or name another directory", path)
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := os.Chmod(path, 0o600); err != nil {
			return fmt.Errorf("sqlitestore: others can read %s, and it can not be changed: %w", path, err)
		}
	}
	return nil
}

func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sqlitestore: sync %s: %w", dir, err)
	}
	return nil
}
