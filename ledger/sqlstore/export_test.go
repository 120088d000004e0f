package sqlstore

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// StatementFor is the statement that a store sends for a write.
func StatementFor(s *Store, w ledger.Write) (string, []any) {
	text, args, err := s.sql.forWrite(w)
	if err != nil {
		panic(err)
	}
	return text, args
}

// TrialForMany is the statement that goes before a batch of writes of one kind, if one does.
func TrialForMany(s *Store, writes ...ledger.Write) (text string, args []any) {
	_, args = StatementForMany(s, writes...)
	first, firstArgs := StatementFor(s, writes[0])
	return s.gather.laneOf(first, firstArgs).many.unlocked, args[:1]
}

// StatementForMany is the statement that a store sends for a batch of writes of one kind, which are in the order of their scopes.
func StatementForMany(s *Store, writes ...ledger.Write) (string, []any) {
	calls := make([]*call, len(writes))
	for i, w := range writes {
		text, args := StatementFor(s, w)
		calls[i] = &call{scope: w.Scope, text: text, args: args}
	}
	many := s.gather.laneOf(calls[0].text, calls[0].args).many
	return many.text, many.arguments(calls)
}

// Conn is a connection of a store's pool, given back when the test ends.
func Conn(t testing.TB, s *Store) *pgx.Conn {
	conn, err := s.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn.Conn()
}

// Texts are all statements that look for rows, by name.
func Texts(s *Store) map[string]string {
	out := map[string]string{
		"put-absent": s.sql.putAbsent, "put-absent-apart": s.sql.putAbsentApart, "put-over": s.sql.putOver, "put-over-apart": s.sql.putOverApart,
		"settle": s.sql.settle, "settle-apart": s.sql.settleApart, "give-up": s.sql.giveUp, "extend": s.sql.extend, "get": s.sql.get, "get-many": s.sql.getMany,
		"first-grants": s.sql.firstGrants.text, "settle-many": s.sql.settleMany.text, "extend-many": s.sql.extendMany.text,
		"forget": s.sql.forget, "setting-insert": s.sql.settingInsert, "setting-update": s.sql.settingUpdate, "setting-delete": s.sql.settingDelete,
	}
	for _, lean := range []bool{false, true} {
		for name, q := range map[string]ledger.PageQuery{
			"page-due": {Order: ledger.ByDue}, "page-all": {Order: ledger.ByName}, "page-tenant": {Order: ledger.ByName, Tenant: "t"},
			"page-operation": {Order: ledger.ByName, Tenant: "t", Operation: "o"},
			"page-filtered":  {Order: ledger.ByName, States: []ledger.State{ledger.Pending}, CreatedUntil: ledger.Never},
		} {
			q.Lean = lean
			if lean {
				name += "-lean"
			}
			out[name], _ = s.sql.page(q, 1, ledger.Cursor{}, 1)
		}
	}
	return out
}

// HoldConn takes a connection of the pool until release is called.
func HoldConn(t testing.TB, s *Store) (release func()) {
	conn, err := s.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return conn.Release
}

// WaitingReads is how many reads wait to be gathered.
func WaitingReads(s *Store) int { return len(s.reads.places) }

// InLine is how many writes stand in a lane, in the order in which they will go.
func InLine(s *Store) (n int) {
	s.gather.mu.Lock()
	defer s.gather.mu.Unlock()
	for _, l := range s.gather.lanes() {
		n += len(l.calls)
	}
	return n
}
