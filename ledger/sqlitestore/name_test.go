package sqlitestore

import (
	"errors"
	"testing"

	"github.com/idemd/idemd/ledger"
)

func namesOf(t *testing.T, s *Store) int64 {
	t.Helper()
	var n int64
	err := s.read(t.Context(), "count", func(c *connection) (err error) {
		n, err = c.number(t.Context(), "SELECT count(*) FROM name")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestANameGoesWithTheLastEntryThatHasIt: operations are callers' to make up, and an erased tenant is named nowhere.
func TestANameGoesWithTheLastEntryThatHasIt(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	var rows []ledger.Row
	for n := range int64(4) {
		w := claimed(n)
		if n >= 2 {
			w.Put.Ref.Operation = "other"
		}
		written, err := s.Write(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, ledger.Row{Scope: w.Scope, Incarnation: written.Stamps.Incarnation, Revision: 1})
	}
	erase := func(n int64, left int64) {
		w := claimed(n)
		w.Put.Ref = ledger.Ref{}
		w.Guard = ledger.Guard{Kind: ledger.GuardRevision, Incarnation: rows[n].Incarnation, Revision: 1}
		if written, err := s.Write(t.Context(), w); err != nil || !written.Applied {
			t.Fatal(written, err)
		}
		if names := namesOf(t, s); names != left {
			t.Errorf("%d names after entry %d was erased, want %d", names, n, left)
		}
	}
	erase(0, 3) // and none
	erase(1, 2)
	if forgotten, err := s.Forget(t.Context(), rows[2:3]); err != nil || forgotten != 1 || namesOf(t, s) != 2 {
		t.Errorf("%d forgotten, %v; %d names, want 2", forgotten, err, namesOf(t, s))
	}
	if forgotten, err := s.Forget(t.Context(), rows[3:]); err != nil || forgotten != 1 || namesOf(t, s) != 1 {
		t.Errorf("%d forgotten, %v; %d names, want none but that of the erased", forgotten, err, namesOf(t, s))
	}
	pair(t, s, 9, 10) // a name that comes back
	if r, err := s.Get(t.Context(), scopeOf(9)); err != nil || r.Entry.Ref != claimed(9).Put.Ref {
		t.Errorf("%+v, %v", r.Entry, err)
	}
}

// TestANameOfAWriteThatFailedIsMadeAgain: what the writer remembers goes when its transaction does.
func TestANameOfAWriteThatFailedIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	bad := claimed(1)
	bad.Put.State, bad.Put.Response = ledger.Pending, &ledger.Response{} // the schema takes no answer of a pending entry
	release := stall(t, s)
	refused, good := submitted(t.Context(), s, bad), submitted(t.Context(), s, claimed(2))
	release()
	if o := <-refused; !errors.Is(o.err, ledger.ErrBadRow) {
		t.Fatalf("got %v, want a bad row", o.err)
	}
	if o := <-good; o.err != nil || !o.written.Applied {
		t.Fatalf("%+v", o)
	}
	if _, err := s.Write(t.Context(), bad); err == nil {
		t.Fatal("taken")
	}
	pair(t, s, 3, 10)
	for _, n := range []int64{2, 3} {
		if r, err := s.Get(t.Context(), scopeOf(n)); err != nil || r.Entry == nil || r.Entry.Ref != claimed(n).Put.Ref {
			t.Errorf("entry %d: %+v, %v", n, r.Entry, err)
		}
	}
}

// TestScopesThatBeginAlikeAreDifferentEntries: the index knows only the first bytes of a scope id.
func TestScopesThatBeginAlikeAreDifferentEntries(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	alike := func(last byte) ledger.Write {
		w := claimed(1)
		w.Scope[31] = last
		w.Put.Ref.Key = string('a' + rune(last))
		return w
	}
	for last := range byte(3) {
		if w, err := s.Write(t.Context(), alike(last)); err != nil || !w.Applied {
			t.Fatal(w, err)
		}
		if w, err := s.Write(t.Context(), alike(last)); err != nil || w.Applied {
			t.Errorf("granted again: %+v, %v", w, err)
		}
	}
	for last := range byte(3) {
		want := alike(last)
		if r, err := s.Get(t.Context(), want.Scope); err != nil || r.Entry.Scope != want.Scope || r.Entry.Ref != want.Put.Ref {
			t.Errorf("%+v, %v", r.Entry, err)
		}
	}
}
