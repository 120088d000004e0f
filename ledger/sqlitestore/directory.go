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
	databaseName   = "ledger.db"
	lockName       = "LOCK"
	logSuffix      = "-wal"
	sealsSuffix    = "-seals"
	unprovenSuffix = "-seals.new" // seals of a database whose structure was not found sound yet
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
		return resolved(dir)
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("sqlitestore: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("sqlitestore: %w", err)
	}
	if err := syncDirectory(filepath.Dir(dir)); err != nil {
		return "", err
	}
	return resolved(dir)
}

// resolved is a directory's path without links: the one name by which SQLite knows what is in it.
func resolved(dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("sqlitestore: %w", err)
	}
	return dir, nil
}

// directoryLock is the directory taken for this process. Its file says on its first line who has it, and on the second what a start that finds the other
// files should know of the last run. A lock from before anything was kept has no second line.
type directoryLock struct {
	file *os.File
	last string // the second line
}

// What the second line says.
const (
	lastMaking = "making" // a new ledger was begun, and may be half there
	lastInUse  = "in use" // a ledger is here, and a log with it until it was closed
	lastClosed = "closed" // a ledger is here, and all of it in the database
)

// lockDirectory takes the directory for this process. The lock goes with the process, however it ends.
func lockDirectory(dir string) (*directoryLock, error) {
	path := filepath.Join(dir, lockName)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return nil, onDisk("cannot write in", dir, err)
		}
		return nil, fmt.Errorf("sqlitestore: cannot write in %s: %w; the ledger needs a directory that it can write in", dir, err)
	}
	content, readErr := io.ReadAll(io.LimitReader(file, 64))
	holder, rest, _ := strings.Cut(string(content), "\n")
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("sqlitestore: %s is in use by %s; one process at a time can use a ledger's directory", dir, process(holder))
		}
		return nil, fmt.Errorf("sqlitestore: lock %s: %w", path, err)
	}
	l := &directoryLock{file: file, last: strings.TrimSpace(rest)}
	if err := errors.Join(readErr, l.write(l.last)); err != nil {
		return nil, errors.Join(onDisk("cannot write in", dir, err), file.Close())
	}
	return l, nil
}

// release gives the directory back. Closing the file is not enough: a child that this process is just starting has a copy of the
// descriptor until it runs its program, and the lock goes with the last copy.
func (l *directoryLock) release() error {
	return errors.Join(unix.Flock(int(l.file.Fd()), unix.LOCK_UN), l.file.Close())
}

// write says who has the lock, and last. What is there is written over and then cut, since a full disk has no room for a new block.
func (l *directoryLock) write(last string) error {
	content := strconv.Itoa(os.Getpid()) + "\n"
	if last != "" {
		content += last + "\n"
	}
	if _, err := l.file.WriteAt([]byte(content), 0); err != nil {
		return err
	}
	if err := l.file.Truncate(int64(len(content))); err != nil || last == l.last {
		return err // who has the lock need not outlive the machine
	}
	l.last = last
	return l.file.Sync()
}

// process names the holder of the lock by what it wrote into the file.
func process(holder string) string {
	pid, err := strconv.Atoi(strings.TrimSpace(holder))
	if err != nil || pid <= 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d", pid)
}

// startAnew is how to have an empty ledger where there was one. It is something to be done by hand: in an empty ledger every key is new, and everything
// that is retried runs again.
const startAnew = "put the file back, or restore a backup to an empty directory. For a new, empty ledger, in which everything that is retried runs again, " +
	"name another directory"

// prepareDatabase makes an empty database file, or looks at the one that is there before SQLite does: SQLite throws a write-ahead log
// away whose database is missing or empty, and begins a new database in its place. It must run before the first connection: closing any descriptor of
// the file drops the locks that SQLite's connections in this process hold on it.
func prepareDatabase(dir string, lock *directoryLock) (path string, size int64, err error) {
	path = filepath.Join(dir, databaseName)
	info, err := os.Stat(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", 0, fmt.Errorf("sqlitestore: %w", err)
	case err == nil && info.Size() > 0:
		if err := checkHeader(path, info); err != nil {
			return "", 0, err
		}
		return path, info.Size(), checkLogIsThere(path, lock.last)
	}
	if wal, err := os.Stat(path + logSuffix); err == nil && wal.Size() > 0 {
		return "", 0, fmt.Errorf("sqlitestore: %s is missing or empty, but its write-ahead log is there and holds data: %s", path, startAnew)
	}
	if trace := traceOfLedger(dir, lock.last); trace != "" {
		return "", 0, fmt.Errorf("sqlitestore: %s is missing or empty, but %s: %s", path, trace, startAnew)
	}
	if err == nil && lock.last != lastMaking {
		return "", 0, fmt.Errorf("sqlitestore: %s is empty, and no start of a ledger left it so: %s, or delete the empty file", path, startAnew)
	}
	if err := lock.write(lastMaking); err != nil {
		return "", 0, onDisk("cannot write in", dir, err)
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

// traceOfLedger says by what a directory without a database shows that there was one; "" where nothing does.
func traceOfLedger(dir, last string) string {
	switch last {
	case lastMaking:
		return ""
	case lastInUse, lastClosed:
		return "a ledger was kept here (" + lockName + " says so)"
	}
	for _, suffix := range []string{logSuffix, "-shm", sealsSuffix} {
		if _, err := os.Lstat(filepath.Join(dir, databaseName+suffix)); err == nil {
			return databaseName + suffix + " is left of one"
		}
	}
	return ""
}

// checkLogIsThere refuses a database whose log somebody took away after a crash.
func checkLogIsThere(path, last string) error {
	if last != lastInUse {
		return nil
	}
	if _, err := os.Stat(path + logSuffix); !errors.Is(err, fs.ErrNotExist) {
		return nil // whatever else is wrong with it, SQLite says
	}
	return fmt.Errorf("sqlitestore: %s is there without its write-ahead log, and was not closed in order: acknowledged writes are missing. Put %s back, or restore "+
		"a backup to an empty directory. If you know that another program (sqlite3) has emptied the log into the database, delete %s and %s%s: the "+
		"database is then checked whole before it is used", path, databaseName+logSuffix, lockName, databaseName, sealsSuffix)
}

const sqliteMagic = "SQLite format 3\x00"

func checkHeader(path string, info fs.FileInfo) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0) // SQLite would make do with reading, until the first write
	if err != nil {
		return fmt.Errorf("sqlitestore: %w; the ledger needs a file that it can write to", err)
	}
	header := make([]byte, 18)
	_, readErr := io.ReadFull(file, header)
	if err := errors.Join(readErr, file.Close()); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	if string(header[:len(sqliteMagic)]) != sqliteMagic {
		return fmt.Errorf("sqlitestore: %s is not an SQLite database. Move it away, or name another directory", path)
	}
	if size := int(header[16])<<8 | int(header[17]); size != pageBytes {
		return fmt.Errorf("sqlitestore: %s has pages of %d bytes, a ledger's have %d: it is another application's or damaged. Restore a backup, or name "+
			"another directory", path, size, pageBytes)
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
