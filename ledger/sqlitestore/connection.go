package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// connection is one SQLite connection with its prepared statements. It is used by one goroutine at a time.
//
// It stands on SQLite's own functions and not on modernc.org/sqlite's driver for database/sql. The driver locks a mutex for each of a statement's parameters and
// columns, asks for their names each time, and makes memory for each text: a fifth of what a write costs here. And a pool may swap a connection
// for another, which the writer's must never be under a running transaction.
type connection struct {
	tls        *libc.TLS
	db         uintptr
	statements map[string]*statement
}

// statement is a prepared statement.
type statement struct {
	handle     uintptr
	parameters int
	running    bool
	texts      arena // what its parameters are bound to, while it runs
	row        []any // the next row's values
}

// result is what a statement did.
type result struct {
	id   int64 // the row that it inserted last
	rows int64 // how many it inserted, changed or deleted
}

// sqliteError is an error of SQLite's.
type sqliteError struct {
	code int // the extended result code
	text string
}

func (e *sqliteError) Error() string { return e.text }

// How a connection opens its file.
const (
	toRead  = sqlite3.SQLITE_OPEN_READONLY
	toWrite = sqlite3.SQLITE_OPEN_READWRITE
	toMake  = sqlite3.SQLITE_OPEN_READWRITE | sqlite3.SQLITE_OPEN_CREATE
)

// openConnection opens the file at path by the named file system layer (empty: the operating system's), and runs the pragmas on it.
func openConnection(ctx context.Context, path, vfs string, mode int32, pragmas ...string) (*connection, error) {
	c := &connection{tls: libc.NewTLS(), statements: map[string]*statement{}}
	if err := c.open(path, vfs, mode); err != nil {
		return nil, errors.Join(err, c.close())
	}
	for _, pragma := range pragmas {
		if err := c.script(ctx, "PRAGMA "+pragma); err != nil {
			return nil, errors.Join(fmt.Errorf("PRAGMA %s: %w", pragma, err), c.close())
		}
	}
	return c, nil
}

func (c *connection) open(path, vfs string, mode int32) error {
	out := libc.Xcalloc(c.tls, 1, sizeOf[uintptr]())
	defer libc.Xfree(c.tls, out)
	name, err := libc.CString(path)
	if err != nil {
		return err
	}
	defer libc.Xfree(c.tls, name)
	var layer uintptr
	if vfs != "" {
		if layer, err = libc.CString(vfs); err != nil {
			return err
		}
		defer libc.Xfree(c.tls, layer)
	}
	rc := sqlite3.Xsqlite3_open_v2(c.tls, name, out, mode|sqlite3.SQLITE_OPEN_NOMUTEX|sqlite3.SQLITE_OPEN_EXRESCODE, layer)
	if c.db = *at[uintptr](out); rc != sqlite3.SQLITE_OK {
		return c.failure(rc)
	}
	// A text in double quotes is a mistake in a statement, not a text.
	for _, quotes := range []int32{sqlite3.SQLITE_DBCONFIG_DQS_DDL, sqlite3.SQLITE_DBCONFIG_DQS_DML} {
		off := libc.NewVaList(int32(0), uintptr(0))
		rc := sqlite3.Xsqlite3_db_config(c.tls, c.db, quotes, off)
		libc.Xfree(c.tls, off)
		if rc != sqlite3.SQLITE_OK {
			return c.failure(rc)
		}
	}
	return nil
}

// failure is the error of a result code. What the connection says about it is added if it is about this one.
func (c *connection) failure(rc int32) error {
	text := libc.GoString(sqlite3.Xsqlite3_errstr(c.tls, rc))
	if c.db != 0 && sqlite3.Xsqlite3_extended_errcode(c.tls, c.db)&0xff == rc&0xff {
		if more := libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db)); more != text {
			text += ": " + more
		}
	}
	return &sqliteError{code: int(rc), text: fmt.Sprintf("%s (%d)", text, rc)}
}

// script runs statements that are not worth preparing.
func (c *connection) script(ctx context.Context, sql string) error {
	text, err := libc.CString(sql)
	if err != nil {
		return err
	}
	defer libc.Xfree(c.tls, text)
	return c.interruptible(ctx, func() error {
		if rc := sqlite3.Xsqlite3_exec(c.tls, c.db, text, 0, 0, 0); rc != sqlite3.SQLITE_OK {
			return c.failure(rc)
		}
		return nil
	})
}

func (c *connection) prepare(sql string) (*statement, error) {
	if s := c.statements[sql]; s != nil {
		if s.running { // it would begin anew, and the one that called back would go on with what is left
			return nil, errors.New("a statement cannot be run in its own callback")
		}
		return s, nil
	}
	text, err := libc.CString(sql)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, text)
	out := libc.Xcalloc(c.tls, 1, sizeOf[uintptr]())
	defer libc.Xfree(c.tls, out)
	if rc := sqlite3.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, sqlite3.SQLITE_PREPARE_PERSISTENT, out, 0); rc != sqlite3.SQLITE_OK {
		return nil, c.failure(rc)
	}
	s := &statement{handle: *at[uintptr](out)}
	if s.handle == 0 {
		return nil, errors.New("no statement")
	}
	s.parameters = int(sqlite3.Xsqlite3_bind_parameter_count(c.tls, s.handle))
	s.row = make([]any, sqlite3.Xsqlite3_column_count(c.tls, s.handle))
	c.statements[sql] = s
	return s, nil
}

// arena is memory on the C side for the texts and bytes that a statement is given, in one piece that is used again.
type arena struct {
	start      uintptr
	size, used int
}

// Sizes of an arena.
const (
	arenaLeast = 512
	arenaKeep  = 16 << 10 // at most so much stays between two runs. A large answer needs more, and is rare
)

// clear makes room for more than size bytes. What was in the arena is gone.
func (a *arena) clear(tls *libc.TLS, size int) error {
	a.used = 0
	if size < a.size {
		return nil
	}
	a.free(tls)
	size = max(2*size, arenaLeast)
	if a.start = libc.Xmalloc(tls, libc.Tsize_t(size)); a.start == 0 { //nolint:gosec // not negative
		return errors.New("no memory")
	}
	a.size = size
	return nil
}

func (a *arena) free(tls *libc.TLS) {
	libc.Xfree(tls, a.start)
	*a = arena{}
}

// put copies content into the arena, which has room for it, and returns where it is. That is never 0, which would be NULL.
func (a *arena) put(content string) uintptr {
	to := a.start + uintptr(a.used)
	a.used += copy(unsafe.Slice(at[byte](to), len(content)), content)
	return to
}

// bind gives a statement its parameters: int64, string, []byte, and nil or a nil []byte for NULL. Until unbind, SQLite reads texts and bytes in the arena.
func (c *connection) bind(s *statement, args []any) error {
	if len(args) != s.parameters {
		return fmt.Errorf("%d arguments for %d parameters", len(args), s.parameters)
	}
	s.running = true
	size := 0
	for _, arg := range args {
		switch v := arg.(type) {
		case string:
			size += len(v)
		case []byte:
			size += len(v)
		}
	}
	if err := s.texts.clear(c.tls, size); err != nil {
		return err
	}
	for i, arg := range args {
		if rc := c.bindOne(s, int32(i+1), arg); rc != sqlite3.SQLITE_OK { //nolint:gosec // a few
			return c.failure(rc)
		}
	}
	return nil
}

func (c *connection) bindOne(s *statement, n int32, arg any) int32 {
	switch v := arg.(type) {
	case int64:
		return sqlite3.Xsqlite3_bind_int64(c.tls, s.handle, n, v)
	case string:
		return sqlite3.Xsqlite3_bind_text64(c.tls, s.handle, n, s.texts.put(v), uint64(len(v)), 0, sqlite3.SQLITE_UTF8)
	case []byte:
		if v != nil {
			return sqlite3.Xsqlite3_bind_blob64(c.tls, s.handle, n, s.texts.put(unsafe.String(unsafe.SliceData(v), len(v))), uint64(len(v)), 0)
		}
	case nil:
	default:
		return sqlite3.SQLITE_MISUSE
	}
	return sqlite3.Xsqlite3_bind_null(c.tls, s.handle, n)
}

// unbind ends a statement's run. What it failed with, step has said.
func (c *connection) unbind(s *statement) {
	sqlite3.Xsqlite3_reset(c.tls, s.handle)
	sqlite3.Xsqlite3_clear_bindings(c.tls, s.handle)
	clear(s.row)
	s.running = false
	if s.texts.size > arenaKeep {
		s.texts.free(c.tls)
	}
}

// step runs a statement up to its next row, and reports whether there is one.
func (c *connection) step(s *statement) (bool, error) {
	switch rc := sqlite3.Xsqlite3_step(c.tls, s.handle); rc {
	case sqlite3.SQLITE_ROW:
		return true, nil
	case sqlite3.SQLITE_DONE:
		return false, nil
	default:
		return false, c.failure(rc)
	}
}

// exec runs a statement, whose rows, if any, nobody wants. It is not interrupted: on the writer's connection the batch decides when to stop.
func (c *connection) exec(sql string, args ...any) (result, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return result{}, err
	}
	defer c.unbind(s)
	if err := c.bind(s, args); err != nil {
		return result{}, err
	}
	for more := true; more; {
		if more, err = c.step(s); err != nil {
			return result{}, err
		}
	}
	return result{id: sqlite3.Xsqlite3_last_insert_rowid(c.tls, c.db), rows: sqlite3.Xsqlite3_changes64(c.tls, c.db)}, nil
}

// query runs a statement and calls each with every row: int64, float64, string, []byte, and nil for NULL. The row is only good during the call; byte slices and
// texts in it are the callee's to keep.
func (c *connection) query(ctx context.Context, sql string, args []any, each func(row []any) error) error {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	return c.interruptible(ctx, func() error {
		defer c.unbind(s)
		if err := c.bind(s, args); err != nil {
			return err
		}
		for {
			if more, err := c.step(s); err != nil || !more {
				return err
			}
			for i := range s.row {
				s.row[i] = c.column(s, int32(i)) //nolint:gosec // a few
			}
			if err := each(s.row); err != nil {
				return err
			}
		}
	})
}

// column is a value of the row that the statement stands at.
func (c *connection) column(s *statement, i int32) any {
	switch sqlite3.Xsqlite3_column_type(c.tls, s.handle, i) {
	case sqlite3.SQLITE_INTEGER:
		return sqlite3.Xsqlite3_column_int64(c.tls, s.handle, i)
	case sqlite3.SQLITE_FLOAT:
		return sqlite3.Xsqlite3_column_double(c.tls, s.handle, i)
	case sqlite3.SQLITE_TEXT:
		return string(c.content(s, i))
	case sqlite3.SQLITE_BLOB:
		return append([]byte{}, c.content(s, i)...)
	default:
		return nil
	}
}

// content is a text's or a blob's bytes, where SQLite has them until its next step.
func (c *connection) content(s *statement, i int32) []byte {
	first := sqlite3.Xsqlite3_column_blob(c.tls, s.handle, i)
	length := sqlite3.Xsqlite3_column_bytes(c.tls, s.handle, i)
	if first == 0 || length <= 0 {
		return nil
	}
	return unsafe.Slice(at[byte](first), length)
}

// interruptAgain is how often a statement is told that its caller has left: once may be before it has begun.
const interruptAgain = 10 * time.Millisecond

// interruptible runs do, whose statements end early once ctx is over, with its error.
func (c *connection) interruptible(ctx context.Context, do func() error) error {
	if ctx.Done() == nil {
		return do()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	over, told := make(chan struct{}), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(told)
		tls := libc.NewTLS() // the connection's is in use
		defer tls.Close()
		again := time.NewTicker(interruptAgain)
		defer again.Stop()
		for {
			sqlite3.Xsqlite3_interrupt(tls, c.db)
			select {
			case <-over:
				return
			case <-again.C:
			}
		}
	})
	err := do()
	close(over)
	if !stop() {
		<-told // else it might hit whatever runs next
	}
	if resultCode(err) == sqlite3.SQLITE_INTERRUPT && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// snapshot runs do so that all its statements read the database as it stands at the first of them.
func (c *connection) snapshot(do func() error) error {
	if _, err := c.exec("BEGIN"); err != nil {
		return err
	}
	err := do()
	_, end := c.exec("ROLLBACK")
	return errors.Join(err, end)
}

// number reads one integer.
func (c *connection) number(ctx context.Context, sql string, args ...any) (int64, error) {
	var n int64
	err := c.query(ctx, sql, args, func(row []any) error {
		n = integer(row[0])
		return nil
	})
	return n, err
}

// text reads one text.
func (c *connection) text(ctx context.Context, sql string, args ...any) (string, error) {
	var t string
	err := c.query(ctx, sql, args, func(row []any) error {
		t, _ = row[0].(string)
		return nil
	})
	return t, err
}

func (c *connection) close() error {
	for _, s := range c.statements {
		sqlite3.Xsqlite3_finalize(c.tls, s.handle) // returns what its last run failed with
		s.texts.free(c.tls)
	}
	c.statements = nil
	rc := sqlite3.Xsqlite3_close(c.tls, c.db)
	if rc == sqlite3.SQLITE_OK {
		c.db = 0
		c.tls.Close()
		return nil
	}
	return c.failure(rc)
}
