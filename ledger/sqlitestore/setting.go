package sqlitestore

import (
	"context"

	"github.com/idemd/idemd/ledger"
)

const (
	selectSettings = `SELECT name, revision, body, updated_at FROM setting WHERE kind = ? ORDER BY name`
	insertSetting  = `INSERT INTO setting (kind, name, revision, body, updated_at) VALUES (?, ?, 1, ?, ?) ON CONFLICT DO NOTHING`
	updateSetting  = `UPDATE setting SET revision = revision + 1, body = ?, updated_at = ? WHERE kind = ? AND name = ? AND revision = ?`
	deleteSetting  = `DELETE FROM setting WHERE kind = ? AND name = ? AND revision = ?`
	countSetting   = `SELECT count(*) FROM setting WHERE kind = ? AND name = ?`
)

// Settings implements [ledger.Store].
func (s *Store) Settings(ctx context.Context, kind string) (ledger.Settings, error) {
	out := ledger.Settings{}
	err := s.read(ctx, "settings", func(c *connection) error {
		out = ledger.Settings{}
		return c.query(context.Background(), selectSettings, []any{kind}, func(row []any) error {
			r := reader{row: row}
			out.List = append(out.List, ledger.Setting{Kind: kind, Name: r.text(), Revision: r.integer(), Body: r.bytes(), UpdatedAt: r.time()})
			return nil
		})
	})
	out.Now = s.clock.now()
	return out, err
}

// PutSetting implements [ledger.Store].
func (s *Store) PutSetting(ctx context.Context, setting ledger.Setting, expect int64) (bool, error) {
	if setting.Body != nil {
		setting.Body = append([]byte{}, setting.Body...) // the caller may leave before the writer does
	}
	var did bool
	err := s.queue.submit(ctx, s.queue.sooner, &job{weight: 1, do: func(wr *writer, now ledger.Time) (changed bool, err error) {
		did, changed, err = wr.putSetting(setting, expect, now)
		return changed, err
	}})
	if err != nil {
		return false, err // and not did: the writer may be at it still
	}
	return did, nil
}

// putSetting reports whether the guard held, and whether anything was written: deleting what is not there holds with expect 0.
func (w *writer) putSetting(s ledger.Setting, expect int64, now ledger.Time) (did, changed bool, err error) {
	var done result
	switch {
	case s.Body == nil && expect == 0:
		n, err := w.conn.number(context.Background(), countSetting, s.Kind, s.Name)
		return n == 0, false, err
	case s.Body == nil:
		done, err = w.conn.exec(deleteSetting, s.Kind, s.Name, expect)
	case expect == 0:
		done, err = w.conn.exec(insertSetting, s.Kind, s.Name, s.Body, int64(now))
	default:
		done, err = w.conn.exec(updateSetting, s.Body, int64(now), s.Kind, s.Name, expect)
	}
	if err != nil {
		return false, false, err
	}
	return done.rows > 0, done.rows > 0, nil
}
