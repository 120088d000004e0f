package sqlitestore

import (
	"context"
	"strings"

	"github.com/idemd/idemd/ledger"
)

// maxNames is how many names the writer remembers the numbers of. Callers make operations up, so there can be any number of them.
const maxNames = 4096

const (
	selectName = `SELECT id FROM name WHERE tenant = ? AND operation = ?`
	insertName = `INSERT INTO name (tenant, operation) VALUES (?, ?)`
	deleteName = `DELETE FROM name WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM entry WHERE name = ?1)`
)

// nameID is the number of a tenant and operation, which are given one where they have none.
func (w *writer) nameID(ref ledger.Ref) (int64, error) {
	ref.Key = ""
	if id, ok := w.names[ref]; ok {
		return id, nil
	}
	id, err := w.conn.number(context.Background(), selectName, ref.Tenant, ref.Operation)
	if err != nil {
		return 0, err
	}
	if id == 0 {
		inserted, err := w.conn.exec(insertName, ref.Tenant, ref.Operation)
		if err != nil {
			return 0, err
		}
		id = inserted.id
	}
	if len(w.names) >= maxNames {
		clear(w.names)
	}
	w.names[ledger.Ref{Tenant: strings.Clone(ref.Tenant), Operation: strings.Clone(ref.Operation)}] = id
	return id, nil
}

// forgetName deletes a name that no entry has any more: a tenant that was erased is named nowhere, and what callers make up does not pile up.
func (w *writer) forgetName(id int64) error {
	deleted, err := w.conn.exec(deleteName, id)
	if err != nil {
		return err
	}
	if deleted.rows > 0 {
		clear(w.names)
	}
	return nil
}
