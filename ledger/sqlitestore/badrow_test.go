package sqlitestore

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/idemd/idemd/ledger"
)

// TestARowWhoseDetailsMakeNoSense: the writer reads details too, so nothing can be written to the row. What is in a batch with it is done all the same, pages and
// Forget go past it, and it is no damage: the store goes on writing.
func TestARowWhoseDetailsMakeNoSense(t *testing.T) {
	t.Parallel()
	s := openForTest(t, Config{Dir: t.TempDir()})
	const n, bad = 20, 7
	rows := make([]ledger.Row, n)
	for i := range rows {
		e := claimed(int64(i))
		w, err := s.Write(t.Context(), e)
		if err != nil || !w.Applied {
			t.Fatal(w, err)
		}
		rows[i] = ledger.Row{Scope: e.Scope, Incarnation: w.Stamps.Incarnation, Revision: 1}
	}
	spoil(t, s, rows[bad].Scope, "details", sealed(&rows[bad].Scope, []byte{detailsVersion, 0xff}))

	if _, err := s.Get(t.Context(), rows[bad].Scope); !errors.Is(err, ledger.ErrBadRow) || errors.Is(err, ledger.FaultDamaged) {
		t.Errorf("Get: %v", err)
	}
	page, err := s.Page(t.Context(), ledger.PageQuery{Order: ledger.ByName, Limit: n, Lean: true})
	if err != nil || len(page.Entries) != n-1 || len(page.Bad) != 1 || page.Bad[0].Scope != rows[bad].Scope || page.More {
		t.Errorf("a lean page has %d entries and names %+v: %v", len(page.Entries), page.Bad, err)
	}
	together(n, func() {
		for i, row := range rows {
			w, err := s.Write(t.Context(), ledger.Write{
				Scope: row.Scope, Guard: ledger.Guard{Kind: ledger.GuardClaim, Incarnation: row.Incarnation, Attempt: 1}, Extend: &ledger.Extend{Lease: time.Hour},
			})
			if i == bad && !errors.Is(err, ledger.ErrBadRow) || i != bad && (err != nil || !w.Applied) {
				t.Errorf("a write to row %d: applied %t, %v", i, w.Applied, err)
			}
		}
	})
	for i := range rows {
		rows[i].Revision += n
	}
	if gone, err := s.Forget(t.Context(), rows); err != nil || gone != n-1 {
		t.Errorf("forgot %d of %d: %v", gone, n, err)
	}
	if err := s.seals.soundness(); err != nil {
		t.Errorf("the bad row counts as damage: %v", err)
	}
}

// TestARowThatIsNotAsItWasWritten is damage, whatever its page's checksum says: nobody knows what else is gone, and nothing is written any more.
func TestARowThatIsNotAsItWasWritten(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := openForTest(t, Config{Dir: t.TempDir(), Logger: textLogger(&log)})
	e := claimed(1)
	if w, err := s.Write(t.Context(), e); err != nil || !w.Applied {
		t.Fatal(w, err)
	}
	spoil(t, s, e.Scope, "details", []byte{detailsVersion, 0, 0, 0, 0, 0, 0})
	if _, err := s.Get(t.Context(), e.Scope); !errors.Is(err, ledger.FaultDamaged) || !errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrBadRow) {
		t.Errorf("Get: %v", err)
	}
	if w, err := s.Write(t.Context(), claimed(2)); !errors.Is(err, ledger.FaultDamaged) || w.Applied {
		t.Errorf("a write after it: %+v, %v", w, err)
	}
}
