package sqlitestore

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// write0001 writes a row as stores did under schema 0001, with its answer and history in tables of their own where they are large.
func write0001(t *testing.T, c *connection, id int64, e *ledger.Entry) {
	t.Helper()
	p := prepare(ledger.Write{Scope: e.Scope, Put: e})
	unlessZero := func(hash []byte) any {
		if strings.Trim(string(hash), "\x00") == "" {
			return nil
		}
		return hash
	}
	unless := func(is bool, v int64) any {
		if is {
			return nil
		}
		return v
	}
	report := unlessZero(e.Last.Report[:])
	if report != nil && e.Last.Report == e.Settlement {
		report = []byte{}
	}
	values := []any{
		id, e.Scope[:], e.Ref.Tenant, e.Ref.Operation, e.Ref.Key, int64(e.Incarnation), e.Revision, int64(e.State),
		flag(e.Closed), int64(e.DueAt), unless(e.HoldFrom == ledger.Never, int64(e.HoldFrom)), flag(e.Current), flag(e.Doubt), flag(e.Credit),
		int64(e.RunGrants), p.fingerprints, int64(e.Terms.OnAbandoned), int64(e.Terms.MaxAttempts),
		int64(e.Terms.ReclaimWithin), int64(e.Terms.Retention), unless(e.Terms.Tombstone == e.Terms.Retention, int64(e.Terms.Tombstone)),
		unlessZero(e.Terms.Bound[:]), int64(e.Last.Number), unlessZero(e.Last.IDHash[:]), e.Last.Holder,
		e.Last.Principal, flag(e.Last.RecoverOnly), flag(e.Last.OnCredit), int64(e.Last.Lease), after(e, e.Last.BeganAt),
		after(e, e.Last.LeaseUntil), after(e, e.Last.EndedAt), int64(e.Last.Ended), report, after(e, e.AbandonedAt),
		after(e, e.SettledAt), int64(e.SettledBy), unlessZero(e.Settlement[:]),
		p.answer.inline(), p.history.inline(), int64(e.Scope.Shard()),
	}
	insert := `INSERT INTO entry (` + columns0001 + `, shard) VALUES (` + strings.Repeat("?, ", len(values)-1) + `?)`
	_, err := c.exec(insert, values...)
	for table, b := range map[string]blob{"answer": p.answer, "history": p.history} {
		if b.apart() && err == nil {
			_, err = c.exec("INSERT INTO "+table+" (entry, bytes) VALUES (?, ?)", id, []byte(b))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// entries0001 are entries of every kind, more than a conversion holds at once.
func entries0001() []*ledger.Entry {
	var list []*ledger.Entry
	for n := range int64(2*convertPage + 40) {
		begun := testStart + ledger.Time(n)
		e := claimed(n).Put
		e.Scope, e.Incarnation, e.Revision = scopeOf(n), begun, 1+n
		e.DueAt, e.Last.BeganAt, e.Last.LeaseUntil = begun.Add(time.Hour), begun, begun.Add(time.Minute)
		e.Ref.Tenant = fmt.Sprint("tenant ", n%3)
		switch n % 7 {
		case 1: // completed, some with a large answer
			e.State, e.SettledAt, e.SettledBy, e.Settlement = ledger.Completed, begun+7, 1, ledger.Digest{1, byte(n)}
			e.Last.EndedAt, e.Last.Ended, e.Last.Report = begun+7, ledger.EndedCompleted, e.Settlement
			e.Response = &ledger.Response{Body: make([]byte, n), ContentType: "text/plain"}
		case 2: // settled by an operator over another report, in doubt
			e.State, e.SettledAt, e.Settlement, e.Doubt = ledger.FailedFinal, begun+9, ledger.Digest{2}, true
			e.Last.EndedAt, e.Last.Ended, e.Last.Report = begun+8, ledger.EndedGaveUp, ledger.Digest{3}
			e.Failure = &ledger.Failure{Code: 3, Message: "no", Disposition: ledger.Final}
		case 3: // a tombstone of an erased entry
			e.State, e.Closed, e.Ref, e.Last.Holder, e.Last.Principal = ledger.Completed, true, ledger.Ref{}, "", ""
		case 4: // held, on credit, with a history
			e.HoldFrom, e.Current, e.Credit, e.AbandonedAt, e.DueAt = begun+3, false, true, begun+4, ledger.Never
			for range n%16 + 1 {
				e.Earlier = append(e.Earlier, e.Last)
			}
		case 5: // bound, with lengths of time that are no whole seconds
			e.Terms = ledger.Terms{
				OnAbandoned: ledger.Hold, MaxAttempts: 3, ReclaimWithin: time.Hour + 1, Retention: time.Millisecond, Tombstone: 3,
				Bound: ledger.PrincipalHash{9},
			}
			e.HoldFrom, e.Last.RecoverOnly, e.Last.OnCredit, e.Last.IDHash = 0, true, true, ledger.IDHash{}
		}
		list = append(list, e)
	}
	return list
}

// TestAFileOfSchema0001IsBroughtOver: every entry is there as it was, and operators see in the view what they saw.
func TestAFileOfSchema0001IsBroughtOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, databaseName)
	list, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	c, err := openConnection(t.Context(), path, "", toMake, "page_size = 4096", "journal_mode = wal")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.script(t.Context(), fmt.Sprintf("%s; PRAGMA application_id = %d; PRAGMA user_version = 1; BEGIN", list[0], applicationID)); err != nil {
		t.Fatal(err)
	}
	want := entries0001()
	for i, e := range want {
		write0001(t, c, int64(2*i+1), e)
	}
	if err := c.script(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	view := viewOf(t, c)
	if err := c.close(); err != nil {
		t.Fatal(err)
	}

	s := openForTest(t, Config{Dir: dir, Clock: func() ledger.Time { return testStart }})
	for _, e := range want {
		r, err := s.Get(t.Context(), e.Scope)
		if err != nil || !reflect.DeepEqual(r.Entry, e) {
			t.Fatalf("%+v came over as %+v, %v", e, r.Entry, err)
		}
	}
	if n := residue(t, s); n != len(want)+apart(want) {
		t.Errorf("%d rows in all, want %d", n, len(want)+apart(want))
	}
	if got := viewOf(t, s.writer.conn); !slices.EqualFunc(got, view, slices.Equal) {
		t.Error("the view says something else than it did")
	}
	if left, err := s.writer.conn.number(t.Context(), "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%0001%'"); err != nil || left != 0 {
		t.Errorf("%d tables and indexes of the old schema are left, %v", left, err)
	}
	pair(t, s, int64(len(want)), 10)
}

// TestAFileOfSchema0002ListsByAge: the rows stay as they are, and their index by name becomes another.
func TestAFileOfSchema0002ListsByAge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	list, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	c, err := openConnection(t.Context(), filepath.Join(dir, databaseName), "", toMake, "page_size = 4096", "journal_mode = wal")
	if err != nil {
		t.Fatal(err)
	}
	names := &writer{conn: c, names: map[ledger.Ref]int64{}}
	for version := range 2 {
		if err := step(t.Context(), c, list[version], version+1); err != nil {
			t.Fatal(err)
		}
	}
	want := entries0001()
	for i, e := range want {
		name, err := names.nameID(e.Ref)
		if err == nil {
			p := prepare(ledger.Write{Scope: e.Scope, Put: e})
			_, err = c.exec(insertEntry, entryValues(e, name, p)...)
			err = errors.Join(err, names.keepApart(int64(i+1), p, details{}))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}

	s := openForTest(t, Config{Dir: dir, Clock: func() ledger.Time { return testStart }})
	q := ledger.PageQuery{Order: ledger.ByName, Tenant: "tenant 1", Limit: 7}
	var got []*ledger.Entry
	for more := true; more; {
		page, err := s.Page(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		got, more, q.After = append(got, page.Entries...), page.More, page.Next
	}
	want = slices.DeleteFunc(want, func(e *ledger.Entry) bool { return e.Ref.Tenant != q.Tenant })
	if !reflect.DeepEqual(got, want) { // they were made in the order of their age
		t.Errorf("%d entries are listed, want these %d by age", len(got), len(want))
	}
}

// TestAnUpgradeThatFailsLeavesTheFileAsItWas: the build before can go on with it.
func TestAnUpgradeThatFailsLeavesTheFileAsItWas(t *testing.T) {
	t.Parallel()
	list, err := migrations()
	if err != nil {
		t.Fatal(err)
	}
	c, err := openConnection(t.Context(), filepath.Join(t.TempDir(), databaseName), "", toMake)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	if err := step(t.Context(), c, list[0], 1); err != nil {
		t.Fatal(err)
	}
	for i, e := range entries0001() {
		write0001(t, c, int64(i+1), e)
	}
	// What the new table does not take.
	if err := c.script(t.Context(), "PRAGMA ignore_check_constraints = on; UPDATE entry SET revision = -1 WHERE id = 900; PRAGMA ignore_check_constraints = off"); err != nil {
		t.Fatal(err)
	}
	if err := migrate(t.Context(), c, "the file"); err == nil || !strings.Contains(err.Error(), "row 900") {
		t.Fatalf("got %v", err)
	}
	version, err := c.number(t.Context(), "PRAGMA user_version")
	rows, err2 := c.number(t.Context(), "SELECT count(*) FROM entry WHERE tenant <> 'x'")
	if err := errors.Join(err, err2); err != nil || version != 1 || rows != int64(len(entries0001())) {
		t.Errorf("schema %d with %d rows, %v", version, rows, err)
	}
}

func apart(list []*ledger.Entry) int {
	n := 0
	for _, e := range list {
		p := prepare(ledger.Write{Scope: e.Scope, Put: e})
		for _, b := range []blob{p.answer, p.history} {
			if b.apart() {
				n++
			}
		}
	}
	return n
}

func viewOf(t *testing.T, c *connection) (rows [][]any) {
	t.Helper()
	err := c.query(t.Context(), "SELECT * FROM entries ORDER BY scope", nil, func(row []any) error {
		rows = append(rows, slices.Clone(row))
		return nil
	})
	if err != nil || len(rows) == 0 {
		t.Fatal(len(rows), err)
	}
	return rows
}
