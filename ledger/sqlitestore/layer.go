package sqlitestore

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// The layer between SQLite and the file system. SQLite believes what it reads: a bit that turned on the disk can hide a row from it, and a
// hidden row is a duplicate that runs again. So every page that it reads from the database is held against the page's seal (see seals), and every
// page that it reads from the write-ahead log against the checksum that the log has of it, which SQLite itself looks at only after a crash. What does
// not match is answered SQLITE_IOERR_DATA, and never reaches a statement.

const (
	pageBytes        = 4096 // of every database of ours
	logHeaderBytes   = 32
	frameHeaderBytes = 24
	frameBytes       = frameHeaderBytes + pageBytes
)

// layered is an open file under the layer. SQLite uses one for one connection, and so from one goroutine at a time.
type layered struct {
	real  *sqlite3.Tsqlite3_io_methods // the methods that SQLite would call without the layer
	seals *seals
	log   *logBuffers // of a log only
}

// layerKind is which of SQLite's files a table of methods is for.
type layerKind int

const (
	layerDatabase layerKind = iota
	layerLog
)

type layerTable struct {
	kind layerKind
	real uintptr
}

// layer is the process's: SQLite keeps its file systems by name, and the tables of methods in memory of its own for good.
var layer struct {
	mu     sync.Mutex
	names  map[string]string      // guarded by mu; by the name of the file system underneath
	tables map[layerTable]uintptr // guarded by mu; our methods
	under  sync.Map               // our file system (uintptr) → the one underneath
	files  sync.Map               // SQLite's file (uintptr) → *layered
}

// layerOn returns the name of the layer on SQLite's file system of that name; empty: the operating system's.
func layerOn(under string) (string, error) {
	layer.mu.Lock()
	defer layer.mu.Unlock()
	if name, ok := layer.names[under]; ok {
		return name, nil
	}
	tls := libc.NewTLS()
	defer tls.Close()
	sqlite3.Xsqlite3_initialize(tls)
	var wanted uintptr
	if under != "" {
		name, err := libc.CString(under)
		if err != nil {
			return "", err
		}
		defer libc.Xfree(tls, name)
		wanted = name
	}
	found := sqlite3.Xsqlite3_vfs_find(tls, wanted)
	if found == 0 {
		return "", fmt.Errorf("sqlitestore: SQLite knows no file system %q", under)
	}
	name := "idemd-on-" + under
	cName, err := libc.CString(name)
	if err != nil {
		return "", err
	}
	ours := libc.Xmalloc(tls, sizeOf[sqlite3.Tsqlite3_vfs]())
	*at[sqlite3.Tsqlite3_vfs](ours) = *at[sqlite3.Tsqlite3_vfs](found)
	at[sqlite3.Tsqlite3_vfs](ours).FzName = cName
	at[sqlite3.Tsqlite3_vfs](ours).FxOpen = pointerTo(openLayered)
	layer.under.Store(ours, found)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, ours, 0); rc != sqlite3.SQLITE_OK {
		return "", fmt.Errorf("sqlitestore: SQLite does not take a file system (%d)", rc)
	}
	if layer.names == nil {
		layer.names, layer.tables = map[string]string{}, map[layerTable]uintptr{}
	}
	layer.names[under] = name
	return name, nil
}

func openLayered(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32 {
	found, _ := layer.under.Load(vfs)
	under, _ := found.(uintptr)
	open := function[func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32](at[sqlite3.Tsqlite3_vfs](under).FxOpen)
	rc := open(tls, under, name, file, flags, out)
	if rc != sqlite3.SQLITE_OK || name == 0 {
		return rc
	}
	var kind layerKind
	path := libc.GoString(name)
	switch {
	case flags&sqlite3.SQLITE_OPEN_MAIN_DB != 0:
		kind = layerDatabase
	case flags&sqlite3.SQLITE_OPEN_WAL != 0:
		kind, path = layerLog, strings.TrimSuffix(path, logSuffix)
	default:
		return rc
	}
	s := sealsOf(path)
	if s == nil {
		return rc // none of ours: what VACUUM INTO makes
	}
	methods := &at[sqlite3.Tsqlite3_file](file).FpMethods
	f := &layered{real: at[sqlite3.Tsqlite3_io_methods](*methods), seals: s}
	if kind == layerLog {
		f.log = &logBuffers{unsure: true}
	}
	layer.files.Store(file, f)
	*methods = methodsOver(tls, kind, *methods)
	s.covered.Add(1)
	return rc
}

// methodsOver returns our methods over those of the file system underneath.
func methodsOver(tls *libc.TLS, kind layerKind, real uintptr) uintptr {
	layer.mu.Lock()
	defer layer.mu.Unlock()
	table := layerTable{kind, real}
	if ours, ok := layer.tables[table]; ok {
		return ours
	}
	ours := libc.Xmalloc(tls, sizeOf[sqlite3.Tsqlite3_io_methods]())
	methods := at[sqlite3.Tsqlite3_io_methods](ours)
	*methods = *at[sqlite3.Tsqlite3_io_methods](real)
	methods.FxClose = pointerTo(closeLayered)
	// Without a memory map there is no way to a page but xRead.
	methods.FiVersion = min(methods.FiVersion, 2)
	if kind == layerLog {
		overLog(methods)
	} else {
		methods.FxRead, methods.FxWrite, methods.FxSync = pointerTo(readPage), pointerTo(writePage), pointerTo(syncPages)
	}
	layer.tables[table] = ours
	return ours
}

func layeredFile(file uintptr) *layered {
	found, _ := layer.files.Load(file)
	return found.(*layered)
}

func closeLayered(tls *libc.TLS, file uintptr) int32 {
	f := layeredFile(file)
	layer.files.Delete(file)
	return function[func(*libc.TLS, uintptr) int32](f.real.FxClose)(tls, file)
}

func (f *layered) read(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](f.real.FxRead)(tls, file, buffer, amount, offset)
}

// isPage tells a page from the few bytes of the header that SQLite looks at by themselves.
func isPage(amount int32, offset int64) bool { return amount == pageBytes && offset%pageBytes == 0 }

func readPage(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	f := layeredFile(file)
	rc := f.read(tls, file, buffer, amount, offset)
	switch number := offset/pageBytes + 1; {
	case !isPage(amount, offset):
		return rc
	case rc == sqlite3.SQLITE_IOERR_SHORT_READ && f.seals.has(number):
		return f.seals.damaged(fmt.Sprintf("page %d, which is cut off,", number)) // SQLite would take it for a new one
	case rc != sqlite3.SQLITE_OK:
		return rc
	default:
		return f.seals.check(number, at[[pageBytes]byte](buffer))
	}
}

// writePage writes the seal first. If the page then does not get there, it is written again with its seal before anybody reads it: until a checkpoint has
// ended in good order, its pages are read from the log.
func writePage(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	f := layeredFile(file)
	if isPage(amount, offset) {
		if rc := f.seals.set(offset/pageBytes+1, at[[pageBytes]byte](buffer)); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](f.real.FxWrite)(tls, file, buffer, amount, offset)
}

// syncPages makes the seals durable with the pages: after it, SQLite lets go of the log. After a sync that failed no other may succeed: what it did not keep is
// not written again, since SQLite counts the pages that it copied as copied, and the system tells of a page that it could not write only once. So the log
// stays, and the next start copies all of it anew.
func syncPages(tls *libc.TLS, file uintptr, flags int32) int32 {
	f := layeredFile(file)
	if f.seals.unkept.Load() {
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	if err := f.seals.sync(); err != nil {
		f.seals.lost(err)
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	rc := f.sync(tls, file, flags)
	if rc != sqlite3.SQLITE_OK {
		f.seals.lost(errors.New("SQLite could not sync it"))
	} else {
		f.seals.kept()
	}
	return rc
}

// at is the C structure at p, which is not of Go's heap.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

func sizeOf[T any]() uint64 { var t T; return uint64(unsafe.Sizeof(t)) }

// function is the Go function that the C function pointer p stands for, and pointerTo the other way round; the driver does the same.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&struct{ p uintptr }{p})) }

func pointerTo[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&struct{ f F }{f})) }
