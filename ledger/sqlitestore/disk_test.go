package sqlitestore

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// A disk in the hands of a test: SQLite's own layer for this operating system, with the syncs and writes of the write-ahead log passed
// through the test's hands first.
type disk struct {
	sync  atomic.Pointer[func() int32] // what a sync of the log answers; 0: what the real one does
	write atomic.Pointer[func() int32]
	syncs atomic.Int64
}

const diskName = "disk-of-a-test"

var (
	disks       sync.Map // path of the database → *disk
	logs        sync.Map // SQLite's file → *disk
	installDisk = sync.OnceFunc(install)
	realDisk    *sqlite3.Tsqlite3_vfs
	realLog     uintptr // the real methods of a log
	ourLog      uintptr
)

// testDisk puts a disk under the database that will be opened at path.
func testDisk(tb testing.TB, path string) *disk {
	tb.Helper()
	installDisk()
	d := &disk{}
	disks.Store(path, d)
	tb.Cleanup(func() { disks.Delete(path) })
	return d
}

// failing makes every sync or write answer with an SQLite error until it is set to nil.
func failing(code int32) *func() int32 {
	answer := func() int32 { return code }
	return &answer
}

func install() {
	tls := libc.NewTLS()
	sqlite3.Xsqlite3_initialize(tls)
	found := sqlite3.Xsqlite3_vfs_find(tls, 0)
	realDisk = at[sqlite3.Tsqlite3_vfs](found)
	name, err := libc.CString(diskName)
	if err != nil {
		panic(err)
	}
	ours := libc.Xmalloc(tls, sizeOf[sqlite3.Tsqlite3_vfs]())
	*at[sqlite3.Tsqlite3_vfs](ours) = *realDisk
	at[sqlite3.Tsqlite3_vfs](ours).FzName = name
	at[sqlite3.Tsqlite3_vfs](ours).FxOpen = pointerTo(openOnDisk)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, ours, 0); rc != sqlite3.SQLITE_OK {
		panic(rc)
	}
	ourLog = libc.Xmalloc(tls, sizeOf[sqlite3.Tsqlite3_io_methods]())
}

var wrapLog sync.Once

func openOnDisk(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32 {
	open := function[func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32](realDisk.FxOpen)
	rc := open(tls, vfs, name, file, flags, out)
	if rc != sqlite3.SQLITE_OK || flags&sqlite3.SQLITE_OPEN_WAL == 0 {
		return rc
	}
	d, ok := disks.Load(strings.TrimSuffix(libc.GoString(name), "-wal"))
	if !ok {
		return rc
	}
	methods := &at[sqlite3.Tsqlite3_file](file).FpMethods
	wrapLog.Do(func() {
		realLog = *methods
		wrapped := at[sqlite3.Tsqlite3_io_methods](ourLog)
		*wrapped = *at[sqlite3.Tsqlite3_io_methods](realLog)
		wrapped.FxSync = pointerTo(syncLog)
		wrapped.FxWrite = pointerTo(writeLog)
	})
	logs.Store(file, d)
	*methods = ourLog
	return rc
}

func syncLog(tls *libc.TLS, file uintptr, flags int32) int32 {
	if d, ok := logs.Load(file); ok {
		d.(*disk).syncs.Add(1)
		if rc := ask(&d.(*disk).sync); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	real := at[sqlite3.Tsqlite3_io_methods](realLog).FxSync
	return function[func(*libc.TLS, uintptr, int32) int32](real)(tls, file, flags)
}

func writeLog(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	if d, ok := logs.Load(file); ok {
		if rc := ask(&d.(*disk).write); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	real := at[sqlite3.Tsqlite3_io_methods](realLog).FxWrite
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](real)(tls, file, buffer, amount, offset)
}

func ask(hook *atomic.Pointer[func() int32]) int32 {
	if answer := hook.Load(); answer != nil {
		return (*answer)()
	}
	return sqlite3.SQLITE_OK
}
