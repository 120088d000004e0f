package sqlitestore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"

	"modernc.org/sqlite"
)

// connection is one SQLite connection with its prepared statements. It is used by one goroutine at a time: the driver keeps state of
// its own per connection that SQLite's mutex does not guard.
//
// It stands on the driver's interfaces rather than on database/sql: the writer's connection must never be swapped for another under a
// running transaction, and a pool that prepares, converts and scans by reflection costs more here than the statements themselves.
type connection struct {
	raw        driver.Conn
	statements map[string]*statement
}

// statement is a prepared statement and the buffers its next execution uses again.
type statement struct {
	raw  driver.Stmt
	args []driver.NamedValue
	row  []driver.Value
}

// openConnection opens the file at path by the named file system layer (empty: the operating system's), to read (ro), to write (rw) or
// to make it (rwc), and runs the pragmas on it.
func openConnection(ctx context.Context, path, vfs, mode string, pragmas ...string) (*connection, error) {
	query := url.Values{"mode": {mode}, "_error_rc": {"1"}, "_dqs": {"0"}}
	if vfs != "" {
		query.Set("vfs", vfs)
	}
	uri := url.URL{Scheme: "file", Path: path, RawQuery: query.Encode()}
	connector, err := sqlite.NewConnector(uri.String())
	if err != nil {
		return nil, err
	}
	raw, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &connection{raw: raw, statements: map[string]*statement{}}
	for _, pragma := range pragmas {
		if err := c.script(ctx, "PRAGMA "+pragma); err != nil {
			return nil, errors.Join(fmt.Errorf("PRAGMA %s: %w", pragma, err), c.close())
		}
	}
	return c, nil
}

// script runs statements that are not worth preparing.
func (c *connection) script(ctx context.Context, sql string) error {
	_, err := c.raw.(driver.ExecerContext).ExecContext(ctx, sql, nil)
	return err
}

func (c *connection) prepare(sql string) (*statement, error) {
	if s := c.statements[sql]; s != nil {
		return s, nil
	}
	raw, err := c.raw.(driver.ConnPrepareContext).PrepareContext(context.Background(), sql)
	if err != nil {
		return nil, err
	}
	s := &statement{raw: raw}
	c.statements[sql] = s
	return s, nil
}

// bind copies args to the statement's own slice, which the driver reads and does not keep.
func (s *statement) bind(args []driver.Value) []driver.NamedValue {
	s.args = s.args[:0]
	for i, v := range args {
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return s.args
}

// exec runs a statement that returns no rows. It is not interrupted: on the writer's connection the batch decides when to stop.
func (c *connection) exec(sql string, args ...driver.Value) (driver.Result, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return nil, err
	}
	return s.raw.(driver.StmtExecContext).ExecContext(context.Background(), s.bind(args))
}

// query runs a statement and calls each with every row. The values are only good during the call; byte slices and texts among them are
// the callee's to keep.
func (c *connection) query(ctx context.Context, sql string, args []driver.Value, each func(row []driver.Value) error) (err error) {
	s, err := c.prepare(sql)
	if err != nil {
		return err
	}
	rows, err := s.raw.(driver.StmtQueryContext).QueryContext(ctx, s.bind(args))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	if s.row == nil {
		s.row = make([]driver.Value, len(rows.Columns()))
	}
	for {
		switch err := rows.Next(s.row); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := each(s.row); err != nil {
			return err
		}
	}
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
func (c *connection) number(ctx context.Context, sql string, args ...driver.Value) (int64, error) {
	var n int64
	err := c.query(ctx, sql, args, func(row []driver.Value) error {
		n = integer(row[0])
		return nil
	})
	return n, err
}

// text reads one text.
func (c *connection) text(ctx context.Context, sql string, args ...driver.Value) (string, error) {
	var t string
	err := c.query(ctx, sql, args, func(row []driver.Value) error {
		t, _ = row[0].(string)
		return nil
	})
	return t, err
}

func (c *connection) close() error {
	var errs []error
	for _, s := range c.statements {
		errs = append(errs, s.raw.Close())
	}
	c.statements = nil
	return errors.Join(append(errs, c.raw.Close())...)
}
