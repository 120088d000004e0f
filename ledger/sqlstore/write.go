package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// Write applies w in one statement, if its guard holds. On its way it may share a transaction or a statement with other writes; see [gatherer].
func (s *Store) Write(ctx context.Context, w ledger.Write) (ledger.Written, error) {
	text, args, err := s.sql.forWrite(w)
	if err != nil {
		return ledger.Written{}, err
	}
	if l := s.gather.laneOf(text, args); l != nil {
		return s.gather.write(ctx, l, &call{scope: w.Scope, text: text, args: args, size: sizeOf(args)})
	}
	return write(ctx, s, "write", func(ctx context.Context, conn *pgx.Conn) (ledger.Written, error) {
		return written(conn.QueryRow(ctx, text, args...))
	})
}

func sizeOf(args []any) (bytes int) {
	for _, a := range args {
		if blob, ok := a.([]byte); ok {
			bytes += len(blob)
		}
	}
	return bytes
}

// written reads what a write's statement returned: the stamps, or no row where the guard did not hold.
func written(r pgx.Row) (ledger.Written, error) {
	var stamps stampsRow
	err := r.Scan(stamps.targets()...)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ledger.Written{}, nil
	case err != nil:
		return ledger.Written{}, err
	}
	return ledger.Written{Applied: true, Stamps: stamps.stamps()}, nil
}

// forWrite is the statement for w and its arguments. It keeps no reference into w: a statement can outlive the call.
func (s *statements) forWrite(w ledger.Write) (string, []any, error) {
	g := w.Guard
	scope := scopeArg(w.Scope)
	switch {
	case w.Put != nil && g.Kind == ledger.GuardAbsent:
		text, tail := s.put(w, 1, s.putAbsent, s.putAbsentApart)
		return text, append([]any{scope, int16(w.Scope.Shard()), int64(w.MinIncarnation)}, tail...), nil
	case w.Put != nil && g.Kind == ledger.GuardRevision:
		text, tail := s.put(w, g.Revision+1, s.putOver, s.putOverApart)
		return text, append([]any{scope, int64(g.Incarnation), g.Revision, int64(w.MinIncarnation)}, tail...), nil
	case w.Settle != nil && g.Kind == ledger.GuardClaim:
		text, tail := s.forSettle(w.Settle)
		return text, append(claimArgs(scope, g), tail...), nil
	case w.Extend != nil && g.Kind == ledger.GuardClaim:
		return s.extend, append(claimArgs(scope, g), int64(w.Extend.Lease), int64(w.Extend.Margin)), nil
	default:
		return "", nil, fmt.Errorf("sqlstore: a write of no known shape: guard %d", g.Kind)
	}
}

func (s *statements) put(w ledger.Write, revision int64, inRow, apart string) (string, []any) {
	b := blobsOf(w.Put)
	args := putArgs(w.Put, revision, &b)
	if !b.apart() {
		return inRow, args
	}
	return apart, append(args, b.answerApart, b.historyApart)
}

func (s *statements) forSettle(settle *ledger.Settle) (string, []any) {
	report := orNull(settle.Report[:])
	if settle.State == ledger.Pending {
		return s.giveUp, []any{int16(settle.Ended), report}
	}
	inline, apart := place(ledger.EncodeAnswer(settle.Response, settle.Failure))
	args := []any{
		int16(settle.State), int16(settle.Ended), report, int64(settle.Retention), int64(settle.Tombstone), inline, apart != nil,
	}
	if apart == nil {
		return s.settle, args
	}
	return s.settleApart, append(args, apart)
}

func claimArgs(scope []byte, g ledger.Guard) []any {
	principal := append([]byte(nil), g.Principal[:]...)
	return []any{scope, int64(g.Incarnation), g.Attempt, principal, g.Undoubted}
}

func scopeArg(id ledger.ScopeID) []byte { return append([]byte(nil), id[:]...) }
