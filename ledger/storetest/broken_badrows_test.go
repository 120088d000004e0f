package storetest

import (
	"fmt"
	"strings"

	"github.com/idemd/idemd/ledger"
)

func badRowDefects() []defect {
	const (
		senseless = "a row that makes no sense is told as its own fault, by each reading, and the store is there"
		refused   = "a write that the schema refuses is told as the row's fault, and does nothing"
		among     = "writes that are on their way with one that the schema refuses are done"
		text      = "a text that the store cannot hold is refused as the row's fault, or kept whole"
		page      = "a page goes past a row that makes no sense, and names it"
	)
	return []defect{
		{"takes a bad row for its own absence", func(s *brokenStore) {
			s.blames = func(error) error { return ledger.ErrUnavailable }
		}, []string{senseless, refused, among}},
		{"tells a bad row as two things", func(s *brokenStore) {
			s.blames = func(err error) error { return fmt.Errorf("%w: %w", ledger.ErrContended, err) }
		}, []string{senseless}},
		{"takes any row", func(s *brokenStore) { s.lax = true }, []string{refused, among}},
		{"leaves bad rows out without a word", paging(func(_ *brokenStore, _ ledger.PageQuery, p *ledger.Page) { p.Bad = nil }), []string{page}},
		{"stops before a bad row", paging(func(_ *brokenStore, q ledger.PageQuery, p *ledger.Page) {
			if len(p.Bad) > 0 {
				*p = ledger.Page{Next: q.After, Now: p.Now}
			}
		}), []string{page}},
		{"does not see that a row was written anew", func(s *brokenStore) { s.sticky = true }, []string{"a row that makes no sense is put right by writing it anew"}},
		{"cuts texts short", func(s *brokenStore) {
			s.given = func(w *ledger.Write) {
				if w.Put != nil {
					w.Put.Last.Principal, _, _ = strings.Cut(w.Put.Last.Principal, "\x00")
				}
			}
		}, []string{text}},
	}
}
