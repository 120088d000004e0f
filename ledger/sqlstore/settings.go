package sqlstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/idemd/idemd/ledger"
)

// Settings lists the settings of one kind, by name.
func (s *Store) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	return read(ctx, s, "settings", func(ctx context.Context, conn *pgx.Conn) (out ledger.Settings, err error) {
		rows, err := conn.Query(ctx, s.sql.settings, kind)
		if err != nil {
			return out, err
		}
		defer rows.Close()
		for rows.Next() {
			var now int64
			var name *string
			var revision, updatedAt *int64
			var body []byte
			if err := rows.Scan(&now, &name, &revision, &body, &updatedAt); err != nil {
				return out, err
			}
			out.Now = ledger.Time(now)
			if name != nil { // no name: the one row that carries the clock where there are no settings
				out.List = append(out.List, ledger.Setting{
					Kind: kind, Name: *name, Revision: *revision, Body: body, UpdatedAt: ledger.Time(*updatedAt),
				})
			}
		}
		return out, rows.Err()
	})
}

// PutSetting writes or deletes one setting if its revision still is expect (0: it must not exist) and reports whether it did.
func (s *Store) PutSetting(ctx context.Context, set ledger.Setting, expect int64) (bool, error) {
	body := append([]byte{}, set.Body...)
	text, args := s.sql.settingUpdate, []any{set.Kind, set.Name, expect, body}
	switch {
	case set.Body == nil && expect == 0:
		return s.settingAbsent(ctx, set)
	case set.Body == nil:
		text, args = s.sql.settingDelete, []any{set.Kind, set.Name, expect}
	case expect == 0:
		text, args = s.sql.settingInsert, []any{set.Kind, set.Name, body}
	}
	return write(ctx, s, "put setting", func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		var revision int64
		err := conn.QueryRow(ctx, text, args...).Scan(&revision)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
}

// settingAbsent deletes a setting that must not exist: there is nothing to do, if so.
func (s *Store) settingAbsent(ctx context.Context, set ledger.Setting) (bool, error) {
	list, err := s.Settings(ctx, set.Kind)
	for _, other := range list.List {
		if other.Name == set.Name {
			return false, err
		}
	}
	return err == nil, err
}
