package sqlitestore

import (
	"encoding/binary"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// The layer's part for the write-ahead log: what SQLite does in many small calls, in few. A commit writes two pieces for each page, and all of them are wanted
// on the disk at its sync and not before; they are kept until then and written as they lie, in one piece. And a page that is read is read together with the
// two checksums around it.

const (
	sumBytes = 8 // the checksum at the end of a frame's header
	// logRunBytes is how much is kept at the most before it is written. SQLite's own layer takes less than 128 KiB at once.
	logRunBytes = 31 * frameBytes
	// chainBytes is a frame, and before it as much of the frame in front as its checksum goes on from.
	chainBytes = sumBytes + pageBytes + frameBytes
)

// logBuffers are the memory of an open log, on the C side, made when it is first used.
type logBuffers struct {
	run   uintptr // what was written and is not with the operating system yet
	at    int64   // where in the log it belongs
	bytes int64
	chain uintptr // a frame as it is read
	// unsure: behind the last commit may lie what is left of one that failed, or that a crash cut off.
	unsure bool
}

func (b *logBuffers) free(tls *libc.TLS) {
	libc.Xfree(tls, b.run)
	libc.Xfree(tls, b.chain)
	*b = logBuffers{}
}

// overLog puts our methods for a log over those underneath. Whoever asks for anything of the file finds what was written to it.
func overLog(methods *sqlite3.Tsqlite3_io_methods) {
	methods.FxClose = pointerTo(closeFrames)
	methods.FxRead = pointerTo(readFrame)
	methods.FxWrite = pointerTo(writeFrames)
	methods.FxTruncate = pointerTo(truncateFrames)
	methods.FxSync = pointerTo(syncFrames)
	methods.FxFileSize = pointerTo(sizeOfFrames)
}

func writeFrames(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	f := layeredFile(file)
	b, size := f.log, int64(amount)
	f.seals.logEnd.Store(offset + size)
	if b.unsure {
		if rc := f.cutOff(tls, file, offset); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	if b.bytes > 0 && (offset != b.at+b.bytes || b.bytes+size > logRunBytes) {
		if rc := f.flush(tls, file); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	if b.run == 0 {
		if b.run = libc.Xmalloc(tls, logRunBytes); b.run == 0 {
			return sqlite3.SQLITE_IOERR_NOMEM
		}
	}
	if size > logRunBytes {
		return f.write(tls, file, buffer, amount, offset)
	}
	if b.bytes == 0 {
		b.at = offset
	}
	libc.Xmemcpy(tls, b.run+uintptr(b.bytes), buffer, libc.Tsize_t(size)) //nolint:gosec // neither is negative
	b.bytes += size
	return sqlite3.SQLITE_OK
}

func (f *layered) write(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	return function[func(*libc.TLS, uintptr, uintptr, int32, int64) int32](f.real.FxWrite)(tls, file, buffer, amount, offset)
}

// flush writes what is kept. What then fails is gone: SQLite is told, and rolls the transaction back that it was part of.
func (f *layered) flush(tls *libc.TLS, file uintptr) int32 {
	b := f.log
	if b.bytes == 0 {
		return sqlite3.SQLITE_OK
	}
	amount := int32(b.bytes) //nolint:gosec // at most logRunBytes
	b.bytes = 0
	rc := f.write(tls, file, b.run, amount, b.at)
	b.unsure = b.unsure || rc != sqlite3.SQLITE_OK
	return rc
}

// cutOff takes away what lies in the log from offset on, where the next commit begins, and makes sure of that before anything is written there. Commits that
// failed one after the other would else leave their ends behind one another, and the next start would take that for damage (see checkLog): no power
// failure spoils more than one.
func (f *layered) cutOff(tls *libc.TLS, file uintptr, offset int64) int32 {
	if rc := function[func(*libc.TLS, uintptr, int64) int32](f.real.FxTruncate)(tls, file, offset); rc != sqlite3.SQLITE_OK {
		return rc
	}
	rc := f.sync(tls, file, sqlite3.SQLITE_SYNC_NORMAL)
	f.log.unsure = rc != sqlite3.SQLITE_OK
	return rc
}

func (f *layered) sync(tls *libc.TLS, file uintptr, flags int32) int32 {
	return function[func(*libc.TLS, uintptr, int32) int32](f.real.FxSync)(tls, file, flags)
}

func syncFrames(tls *libc.TLS, file uintptr, flags int32) int32 {
	f := layeredFile(file)
	if rc := f.flush(tls, file); rc != sqlite3.SQLITE_OK {
		return rc
	}
	rc := f.sync(tls, file, flags)
	f.log.unsure = f.log.unsure || rc != sqlite3.SQLITE_OK
	return rc
}

func truncateFrames(tls *libc.TLS, file uintptr, size int64) int32 {
	f := layeredFile(file)
	if rc := f.flush(tls, file); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return function[func(*libc.TLS, uintptr, int64) int32](f.real.FxTruncate)(tls, file, size)
}

func sizeOfFrames(tls *libc.TLS, file, size uintptr) int32 {
	f := layeredFile(file)
	if rc := f.flush(tls, file); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return function[func(*libc.TLS, uintptr, uintptr) int32](f.real.FxFileSize)(tls, file, size)
}

// closeFrames writes nothing: what a sync did not ask for belongs to no commit.
func closeFrames(tls *libc.TLS, file uintptr) int32 {
	layeredFile(file).log.free(tls)
	return closeLayered(tls, file)
}

// readFrame holds a page of the log against the checksum in its frame's header, which goes on from that of the frame before. No frame that is read
// was written over since: the writer's connection keeps a transaction in memory until it commits (cache_spill).
func readFrame(tls *libc.TLS, file, buffer uintptr, amount int32, offset int64) int32 {
	f := layeredFile(file)
	if rc := f.flush(tls, file); rc != sqlite3.SQLITE_OK {
		return rc
	}
	start := offset - frameHeaderBytes
	if amount != pageBytes || start < logHeaderBytes || (start-logHeaderBytes)%frameBytes != 0 {
		return f.read(tls, file, buffer, amount, offset)
	}
	if f.log.chain == 0 {
		if f.log.chain = libc.Xmalloc(tls, chainBytes); f.log.chain == 0 {
			return sqlite3.SQLITE_IOERR_NOMEM
		}
	}
	length := int64(chainBytes)
	if start == logHeaderBytes {
		length = sumBytes + frameBytes // the log's own header ends in a checksum, too
	}
	rc := f.read(tls, file, f.log.chain, int32(length), start+frameBytes-length)
	if rc != sqlite3.SQLITE_OK {
		libc.Xmemset(tls, buffer, 0, pageBytes)
		return rc
	}
	chain := at[[chainBytes]byte](f.log.chain)[:length]
	frame := chain[length-frameBytes:]
	if !frameHolds(logSumAt(chain), frame[:frameHeaderBytes], frame[frameHeaderBytes:]) {
		return f.seals.damaged("a page of the write-ahead log")
	}
	copy(at[[pageBytes]byte](buffer)[:], frame[frameHeaderBytes:])
	return sqlite3.SQLITE_OK
}

// logSum is the running checksum of a write-ahead log, as SQLite defines it, on a machine of the byte order that wrote the log.
type logSum [2]uint32

func logSumAt(b []byte) logSum {
	return logSum{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

func (s logSum) over(content []byte) logSum {
	for ; len(content) >= 8; content = content[8:] {
		s[0] += binary.NativeEndian.Uint32(content) + s[1]
		s[1] += binary.NativeEndian.Uint32(content[4:]) + s[0]
	}
	return s
}

// frameHolds reports whether a frame is as it was written, given the checksum of all before it.
func frameHolds(before logSum, header, page []byte) bool {
	return before.over(header[:8]).over(page) == logSumAt(header[16:])
}
