package sqlstore

import "github.com/idemd/idemd/ledger"

// StatementFor is the statement that a store sends for a write.
func StatementFor(s *Store, w ledger.Write) (string, []any) {
	text, args, err := s.sql.forWrite(w)
	if err != nil {
		panic(err)
	}
	return text, args
}
