package sqlitestore

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	sqlite3 "modernc.org/sqlite/lib"
	"pgregory.net/rapid"
)

func connectionForTest(t testing.TB) *connection {
	t.Helper()
	c, err := openConnection(t.Context(), filepath.Join(t.TempDir(), "some.db"), "", toMake)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestValuesComeBackAsTheyWere: also texts with zero bytes, and what is empty and not NULL.
func TestValuesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	c := connectionForTest(t)
	if err := c.script(t.Context(), "CREATE TABLE t (id INTEGER PRIMARY KEY, a ANY, b ANY, c ANY) STRICT"); err != nil {
		t.Fatal(err)
	}
	value := rapid.OneOf(
		rapid.Just[any](nil), rapid.Int64().AsAny(), rapid.String().AsAny(), rapid.SliceOfN(rapid.Byte(), 0, 9000).AsAny(),
		rapid.SampledFrom([]any{"", []byte{}, "a\x00b", "\x00", int64(0)}),
	)
	rapid.Check(t, func(t *rapid.T) {
		want := []any{value.Draw(t, "a"), value.Draw(t, "b"), value.Draw(t, "c")}
		inserted, err := c.exec("INSERT INTO t (a, b, c) VALUES (?, ?, ?)", want...)
		if err != nil || inserted.rows != 1 {
			t.Fatal(inserted, err)
		}
		var got []any
		err = c.query(context.Background(), "SELECT a, b, c FROM t WHERE id = ?", []any{inserted.id}, func(row []any) error {
			got = append(got, row...)
			return nil
		})
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%#v came back as %#v, %v", want, got, err)
		}
	})
}

// TestALargeTextLeavesNoMemoryBehind: a connection that once had a large answer would keep as much.
func TestALargeTextLeavesNoMemoryBehind(t *testing.T) {
	t.Parallel()
	c := connectionForTest(t)
	for _, length := range []int{0, 1, arenaKeep, 1, 4 * arenaKeep, 1, arenaKeep + 1, 0} {
		const sql = "SELECT coalesce(?, 'NULL') || ''"
		got, err := c.text(t.Context(), sql, strings.Repeat("x", length))
		if err != nil || len(got) != length {
			t.Fatalf("%d of %d bytes, %v", len(got), length, err)
		}
		if size := c.statements[sql].texts.size; size > arenaKeep {
			t.Errorf("%d bytes are kept after a text of %d", size, length)
		}
	}
}

// TestAStatementEndsWithItsCaller: and the next one is not hit.
func TestAStatementEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	c := connectionForTest(t)
	const endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < ?"
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		rows := 0
		err := c.query(ctx, endless, []any{int64(1000)}, func([]any) error {
			if rows++; rows == 500 {
				cancel() // from row 1000 on there is none, and no end
			}
			return nil
		})
		cancel()
		if !errors.Is(err, context.Canceled) || rows < 500 {
			t.Fatalf("%d rows, %v", rows, err)
		}
		if n, err := c.number(t.Context(), "SELECT 7"); n != 7 || err != nil {
			t.Fatalf("the statement behind it: %d, %v", n, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.script(ctx, "CREATE TABLE t (x)"); !errors.Is(err, context.Canceled) {
		t.Errorf("a script whose caller had left: %v", err)
	}
}

// TestAStatementIsNotRunInItsOwnCallback: and goes on undisturbed.
func TestAStatementIsNotRunInItsOwnCallback(t *testing.T) {
	t.Parallel()
	c := connectionForTest(t)
	const sql = "SELECT value || ?1 FROM json_each('[1, 2, 3]')"
	var got []any
	err := c.query(t.Context(), sql, []any{"a"}, func(row []any) error {
		got = append(got, row...)
		if _, err := c.exec(sql, "b"); err == nil {
			t.Error("it was run")
		}
		return nil
	})
	if want := []any{"1a", "2a", "3a"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v, %v", got, want, err)
	}
}

// TestErrorsHaveTheCodeOfTheirCause: and a statement that failed can be run again.
func TestErrorsHaveTheCodeOfTheirCause(t *testing.T) {
	t.Parallel()
	c := connectionForTest(t)
	if err := c.script(t.Context(), "CREATE TABLE t (x INTEGER UNIQUE CHECK (x > 0)) STRICT; INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	const insert = "INSERT INTO t VALUES (?)"
	for _, step := range []struct {
		x    any
		code int
		says string
	}{
		{int64(1), sqlite3.SQLITE_CONSTRAINT_UNIQUE, "t.x"},
		{int64(2), 0, ""},
		{int64(-1), sqlite3.SQLITE_CONSTRAINT_CHECK, "x > 0"},
		{"one", sqlite3.SQLITE_CONSTRAINT_DATATYPE, "TEXT"},
		{int64(3), 0, ""},
	} {
		_, err := c.exec(insert, step.x)
		var failure *sqliteError
		switch failed := errors.As(err, &failure); {
		case step.code == 0 && err == nil:
		case !failed || failure.code != step.code || !strings.Contains(err.Error(), step.says):
			t.Errorf("%v: %v, want code %d and %q", step.x, err, step.code, step.says)
		}
	}
	for sql, args := range map[string][]any{
		"":                  nil,
		"-- nothing":        nil,
		"SELECT no":         nil,
		`SELECT "no"`:       nil, // in double quotes it is a name
		"SELECT ?":          nil,
		"SELECT ?, 1":       {int64(1), int64(2)},
		"SELECT ?, 'other'": {3},
	} {
		if _, err := c.exec(sql, args...); err == nil {
			t.Errorf("%s with %v was run", sql, args)
		}
	}
}
