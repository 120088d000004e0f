package sqlitestore

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/idemd/idemd/ledger"
)

// seals are the checksums of a database's pages, in a file beside it, so that the database stays one that every tool reads: four bytes for each page, at
// four times its number, the CRC-32C of the number and the content. The first four bytes say what the file is. Zero: never sealed.
//
// A page and its seal are two writes, and a crash can come between them. It does no harm: a page is only ever written by a checkpoint, and until all
// pages and seals of that are synced, SQLite reads them from the log, and writes them all again.
type seals struct {
	path   string
	logger *slog.Logger
	// file is nil where the database has no seals yet: it came from a backup, or from another tool.
	file    atomic.Pointer[os.File]
	covered atomic.Int64 // how many of SQLite's files were opened under the layer
	damage  atomic.Pointer[error]
	logEnd  atomic.Int64 // how far the log was written since it last began from its front, in bytes
	// unkept: a sync of the database failed, so nobody knows which of its pages are on the disk. See syncPages.
	unkept atomic.Bool
	// written are the seals of what was written since the last sync that succeeded. After one that failed they tell what is still as it was written: the system
	// may read such a page, and its seal in the file, as they were before.
	mu      sync.Mutex
	written map[int64][sealBytes]byte // guarded by mu
	// database is for syncs behind SQLite's back; nil until the first. Closing it drops the locks that SQLite has on that file, so it stays open as
	// long as any user's connection.
	database *os.File
	users    int // guarded by underLayer.mu
}

const (
	sealsMagic = "idS1"
	sealBytes  = 4
)

// underLayer are the databases that the layer covers in this process, by path as SQLite sees it.
var underLayer struct {
	mu     sync.Mutex
	byPath map[string]*seals
}

func sealsOf(path string) *seals {
	underLayer.mu.Lock()
	defer underLayer.mu.Unlock()
	return underLayer.byPath[path]
}

// useSeals puts the database at path under the layer until release. It opens the seals that are there.
func useSeals(path string, logger *slog.Logger) (*seals, error) {
	underLayer.mu.Lock()
	defer underLayer.mu.Unlock()
	if s := underLayer.byPath[path]; s != nil {
		s.users++
		return s, nil
	}
	s := &seals{path: path, logger: logger, users: 1}
	switch file, err := os.OpenFile(path+sealsSuffix, os.O_RDWR, 0); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("sqlitestore: %w", err)
	default:
		s.file.Store(file)
		if err := s.checkMagic(file); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	if underLayer.byPath == nil {
		underLayer.byPath = map[string]*seals{}
	}
	underLayer.byPath[path] = s
	return s, nil
}

func (s *seals) checkMagic(file *os.File) error {
	var magic [len(sealsMagic)]byte
	if _, err := file.ReadAt(magic[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	if string(magic[:]) != sealsMagic {
		return damagedFile(s.path, errors.New("its seals are none"))
	}
	return nil
}

// release ends what useSeals began.
func (s *seals) release() error {
	underLayer.mu.Lock()
	defer underLayer.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	delete(underLayer.byPath, s.path)
	var errs []error
	for _, file := range []*os.File{s.file.Load(), s.database} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}

// damaged notes that part of the database is not what was written, and is what SQLite is told of it.
func (s *seals) damaged(part string) int32 {
	s.note(fmt.Errorf("%w: %s is not as it was written", ledger.FaultDamaged, part))
	return sqlite3.SQLITE_IOERR_DATA
}

// note takes in what a use of the database came to. After the first damage nothing is written to it any more: what is read is checked by itself, but nobody
// knows what else is gone, and a grant that rests on what is not there runs something again.
func (s *seals) note(err error) {
	if err != nil && isDamage(err) {
		s.noteDamage(err)
	}
}

func (s *seals) noteDamage(err error) {
	if !s.damage.CompareAndSwap(nil, &err) {
		return
	}
	s.logger.Error("the ledger's files are damaged: nothing is written to them from now on. Stop the daemon, keep the files as they are, and restore a backup",
		"file", s.path, "error", err)
}

// soundness is nil until damage is found.
func (s *seals) soundness() error {
	if err := s.damage.Load(); err != nil {
		return *err
	}
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sealOf is the seal of a page. It is never zero.
func sealOf(number int64, page *[pageBytes]byte) (seal [sealBytes]byte) {
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(number)) //nolint:gosec // a page's number is positive
	sum := crc32.Update(crc32.Checksum(prefix[:], castagnoli), castagnoli, page[:])
	binary.LittleEndian.PutUint32(seal[:], max(sum, 1))
	return seal
}

// get reads the seal of a page: zero where it has none.
func (s *seals) get(file *os.File, number int64) (seal [sealBytes]byte, err error) {
	if _, err := file.ReadAt(seal[:], number*sealBytes); err != nil && !errors.Is(err, io.EOF) {
		return seal, err
	}
	return seal, nil
}

// has reports whether the page was ever sealed.
func (s *seals) has(number int64) bool {
	file := s.file.Load()
	if file == nil {
		return false
	}
	seal, err := s.get(file, number)
	return err != nil || seal != [sealBytes]byte{}
}

func (s *seals) check(number int64, page *[pageBytes]byte) int32 {
	file := s.file.Load()
	if file == nil {
		return sqlite3.SQLITE_OK
	}
	if s.unkept.Load() {
		switch turned, known := s.turnedBack(number, page); {
		case turned:
			return sqlite3.SQLITE_IOERR_READ // no damage: the log has the page, and the next start writes it again
		case known:
			return sqlite3.SQLITE_OK
		}
	}
	seal, err := s.get(file, number)
	if err != nil {
		return sqlite3.SQLITE_IOERR_READ
	}
	if seal != sealOf(number, page) {
		return s.damaged(fmt.Sprintf("page %d", number))
	}
	return sqlite3.SQLITE_OK
}

func (s *seals) set(number int64, page *[pageBytes]byte) int32 {
	file := s.file.Load()
	if file == nil {
		return sqlite3.SQLITE_OK
	}
	seal := sealOf(number, page)
	s.mu.Lock()
	if s.written == nil {
		s.written = map[int64][sealBytes]byte{}
	}
	s.written[number] = seal
	s.mu.Unlock()
	switch _, err := file.WriteAt(seal[:], number*sealBytes); {
	case errors.Is(err, unix.ENOSPC):
		return sqlite3.SQLITE_FULL
	case err != nil:
		return sqlite3.SQLITE_IOERR_WRITE
	}
	return sqlite3.SQLITE_OK
}

// kept notes that all that was written is on the disk.
func (s *seals) kept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = nil
}

// turnedBack answers for a page that a failed sync may not have kept: known is false where it was not written since the sync before.
func (s *seals) turnedBack(number int64, page *[pageBytes]byte) (turned, known bool) {
	s.mu.Lock()
	seal, known := s.written[number]
	s.mu.Unlock()
	return known && seal != sealOf(number, page), known
}

func (s *seals) sync() error {
	if file := s.file.Load(); file != nil {
		return dataSync(file)
	}
	return nil
}

// syncDatabase makes durable what was written of pages and seals so far. It may run while SQLite goes on writing to the log; only
// one at a time, and not while SQLite writes pages.
func (s *seals) syncDatabase() error {
	if s.unkept.Load() {
		return errUnkept
	}
	if s.database == nil {
		file, err := os.Open(s.path)
		if err != nil {
			return err
		}
		s.database = file
	}
	err := s.sync()
	if err == nil {
		err = dataSync(s.database)
	}
	if err != nil {
		s.lost(err)
	} else {
		s.kept()
	}
	return err
}

var errUnkept = errors.New("an earlier sync of the database failed")

// lost notes that a sync of the database failed.
func (s *seals) lost(err error) {
	if s.unkept.Swap(true) {
		return
	}
	s.logger.Error("the disk did not keep what was written to the database. Nothing is lost: the write-ahead log has it, and is kept until the next start, which "+
		"writes it again. It grows until then: look at the disk, then start the daemon again", "file", s.path, "error", err)
}

// begin seals every page as it stands, under a name that does not count yet. It must run before SQLite opens the database: closing any other descriptor
// of it drops the locks that SQLite holds. What a crash left half written among the pages is in the log, and is sealed anew when that is emptied.
func (s *seals) begin(ctx context.Context) error {
	database, err := os.Open(s.path)
	if err != nil {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	defer func() { _ = database.Close() }()
	file, err := os.OpenFile(s.path+unprovenSuffix, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	s.file.Store(file)
	if err := sealAll(ctx, database, file); err != nil {
		return fmt.Errorf("sqlitestore: sealing %s: %w", s.path, err)
	}
	return nil
}

// keep makes the seals count from now on: the structure under them was found sound.
func (s *seals) keep() error {
	if err := s.file.Load().Sync(); err != nil {
		return fmt.Errorf("sqlitestore: sealing %s: %w", s.path, err)
	}
	if err := os.Rename(s.path+unprovenSuffix, s.path+sealsSuffix); err != nil {
		return fmt.Errorf("sqlitestore: %w", err)
	}
	return syncDirectory(filepath.Dir(s.path))
}

func sealAll(ctx context.Context, database io.Reader, file io.Writer) error {
	pages, out := bufio.NewReaderSize(database, 1<<20), bufio.NewWriterSize(file, 1<<16)
	_, _ = out.WriteString(sealsMagic) // a bufio.Writer remembers its error
	var page [pageBytes]byte
	for number := int64(1); ; number++ {
		switch _, err := io.ReadFull(pages, page[:]); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return out.Flush() // SQLite says what it thinks of half a page
		case err != nil:
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		seal := sealOf(number, &page)
		_, _ = out.Write(seal[:])
	}
}
