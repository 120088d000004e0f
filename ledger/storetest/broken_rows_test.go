package storetest

import (
	"slices"
	"strings"
	"time"

	"github.com/idemd/idemd/ledger"
)

// keeping breaks the row as it is kept.
func keeping(change func(before, row *ledger.Entry, w ledger.Write, now ledger.Time)) func(*brokenStore) {
	return func(s *brokenStore) {
		s.row = func(_ *brokenStore, before, row *ledger.Entry, w ledger.Write, now ledger.Time) {
			change(before, row, w, now)
		}
	}
}

// writeDefects: times, settlements and extensions.
func writeDefects() []defect {
	return append(stampDefects(), append(settleDefects(), extendDefects()...)...)
}

func stampDefects() []defect {
	return []defect{
		{"stamps by another clock", keeping(func(_, row *ledger.Entry, w ledger.Write, now ledger.Time) {
			if row.Last.BeganAt == now {
				row.Last.BeganAt += 1000
			}
		}), []string{"a first grant is stamped by the store's clock at the write", "a takeover is stamped by the store's clock at the write"}},
		{"reads the clock before it waits for the row", func(s *brokenStore) { s.before = true },
			[]string{"stamps of a write that waited for the row are of when it was written"}},
		{"tells other stamps than it wrote", func(s *brokenStore) { s.told = func(w *ledger.Written) { w.Stamps.HoldFrom = 0 } },
			[]string{"a first grant is stamped by the store's clock at the write"}},
		{"ignores the lowest incarnation", func(s *brokenStore) { s.given = func(w *ledger.Write) { w.MinIncarnation = 0 } },
			[]string{"an incarnation is raised above the fences that the scope had"}},
		{"keeps the incarnation of the row that is put over", keeping(func(before, row *ledger.Entry, w ledger.Write, _ ledger.Time) {
			if before != nil && w.Put != nil {
				row.Incarnation = before.Incarnation
			}
		}), []string{"a row put over a revision can start a new incarnation"}},
		{"keeps never as a number", keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if row.DueAt == ledger.Never {
				row.DueAt--
			}
		}), []string{"absolute times are kept as they are, also past, unset and never"}},
		{"does not stamp when an entry was abandoned", func(s *brokenStore) {
			s.given = func(w *ledger.Write) {
				if w.Put != nil && w.Put.AbandonedAt.Relative() {
					w.Put.AbandonedAt = 0
				}
			}
		}, []string{"every mix of relative and absolute times is stamped field by field"}},
		{"takes the revision of the entry", keeping(func(_, row *ledger.Entry, w ledger.Write, _ ledger.Time) {
			if w.Put != nil && w.Put.Revision != 0 {
				row.Revision = w.Put.Revision
			}
		}), []string{"the revision of a put is the guard's and one, whatever the entry says"}},
	}
}

func settleDefects() []defect {
	settling := func(change func(before, row *ledger.Entry, s *ledger.Settle, now ledger.Time)) func(*brokenStore) {
		return keeping(func(before, row *ledger.Entry, w ledger.Write, now ledger.Time) {
			if w.Settle != nil {
				change(before, row, w.Settle, now)
			}
		})
	}
	return []defect{
		{"forgets who settled", settling(func(_, row *ledger.Entry, _ *ledger.Settle, _ ledger.Time) { row.SettledBy = 0 }), []string{
			"a completion settles the row at the store's clock and starts its retention",
			"a final failure settles the row at the store's clock and starts its retention",
			"a retryable failure settles the row at the store's clock and starts its retention",
		}},
		{"lets the last retention win", settling(func(_, row *ledger.Entry, s *ledger.Settle, now ledger.Time) {
			if s.State != ledger.Pending {
				row.Terms.Retention, row.DueAt = s.Retention, now.Add(s.Retention)
			}
		}), []string{
			"of two retentions and of two tombstones the longer wins",
			"any sequence of operations leaves the store and the reference model in agreement, step by step",
		}},
		{"leaves a claim current that was given up", settling(func(_, row *ledger.Entry, _ *ledger.Settle, _ ledger.Time) { row.Current = true }),
			[]string{"a claim given up leaves the row pending, in doubt and without a current attempt"}},
		{"lapses what is held once it is given up", settling(func(_, row *ledger.Entry, s *ledger.Settle, now ledger.Time) {
			if s.State == ledger.Pending {
				row.DueAt = now.Add(row.Terms.Retention)
			}
		}), []string{"a claim given up within reach of its hold is never due"}},
		{"takes the terms of a report that settles nothing", settling(func(_, row *ledger.Entry, s *ledger.Settle, _ ledger.Time) {
			row.Terms.Tombstone = max(row.Terms.Tombstone, s.Tombstone)
		}), []string{"a claim given up keeps the retention it had"}},
	}
}

func extendDefects() []defect {
	extending := func(change func(before, row *ledger.Entry, x *ledger.Extend, now ledger.Time)) func(*brokenStore) {
		return keeping(func(before, row *ledger.Entry, w ledger.Write, now ledger.Time) {
			if w.Extend != nil {
				change(before, row, w.Extend, now)
			}
		})
	}
	return []defect{
		{"keeps the old lease", extending(func(before, row *ledger.Entry, _ *ledger.Extend, _ ledger.Time) { row.Last.Lease = before.Last.Lease }),
			[]string{"an extension renews the lease from the write, by the attempt's own length or a new one"}},
		{"adds the margin to the lease", extending(func(_, row *ledger.Entry, x *ledger.Extend, _ ledger.Time) { row.Last.Lease += x.Margin }),
			[]string{"an extension adds the margin to when others may take over, not to the lease"}},
		{"lapses what is held once it is extended", extending(func(_, row *ledger.Entry, _ *ledger.Extend, _ ledger.Time) {
			row.DueAt = row.Last.LeaseUntil.Add(row.Terms.Retention)
		}), []string{"an extension within reach of the hold is never due"}},
		{"extends from the end of the lease", extending(func(before, row *ledger.Entry, _ *ledger.Extend, _ ledger.Time) {
			row.Last.LeaseUntil = before.Last.LeaseUntil.Add(row.Last.Lease)
		}), []string{"an extension of a claim whose lease is over starts from the write"}},
		{"lets the last extension win", extending(func(_, row *ledger.Entry, x *ledger.Extend, now ledger.Time) {
			if x.Lease > 0 {
				row.Last.Lease = x.Lease
			}
			row.Last.LeaseUntil = now.Add(row.Last.Lease + x.Margin)
		}), []string{
			"an extension never shortens a lease, and one that would leaves the row as it is",
			"extensions at once all go through, each with a revision of its own, and the longest stands",
		}},
		{"keeps the lease and takes the length", extending(func(_, row *ledger.Entry, x *ledger.Extend, _ ledger.Time) {
			if x.Lease > 0 {
				row.Last.Lease = x.Lease
			}
		}), []string{"an extension never shortens a lease, and one that would leaves the row as it is"}},
		{"keeps a lease from a time that never was", extending(func(before, row *ledger.Entry, _ *ledger.Extend, _ ledger.Time) {
			row.Last.LeaseUntil = max(before.Last.LeaseUntil, row.Last.LeaseUntil)
		}), []string{"a lease that no clock since can have given is cut to its own length"}},
		{"leaves the due time where it was", extending(func(before, row *ledger.Entry, _ *ledger.Extend, _ ledger.Time) {
			row.DueAt = before.DueAt
		}), []string{"pages by due time follow a row whose due time was moved"}},
		{"loses the history with an extension", extending(func(_, row *ledger.Entry, _ *ledger.Extend, _ ledger.Time) { row.Earlier = nil }),
			[]string{"an extension leaves body, history and evidence of the row alone"}},
	}
}

// bodies changes every body of an entry.
func bodies(change func([]byte) []byte) func(*brokenStore) {
	return keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
		if row.Response != nil {
			row.Response.Body = change(row.Response.Body)
		}
	})
}

func contentDefects() []defect {
	return []defect{
		{"trims texts", keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			row.Last.Holder = strings.TrimSpace(row.Last.Holder)
			row.Ref.Key = strings.TrimSpace(row.Ref.Key)
		}), []string{"an entry comes back whole, whatever its texts and bytes hold"}},
		{"cuts texts at a zero byte", keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if row.Failure != nil {
				row.Failure.Message, _, _ = strings.Cut(row.Failure.Message, "\x00")
			}
		}), []string{"an entry comes back whole, whatever its texts and bytes hold"}},
		{"keeps old evidence", keeping(func(before, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if before != nil && row.Evidence == nil {
				row.Evidence = before.Evidence
			}
		}), []string{"an entry put over another leaves nothing of the other"}},
		{"keeps metadata as a map", keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if row.Response != nil {
				row.Response.Metadata = slices.CompactFunc(row.Response.Metadata,
					func(a, b ledger.MetadataPair) bool { return a.Name == b.Name })
			}
		}), []string{"a settlement keeps the answer whole, whatever it holds"}},
		{"keeps fifty attempts", keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			row.Earlier = row.Earlier[max(0, len(row.Earlier)-50):]
		}), []string{"an entry that is at every limit at once comes back whole"}},
		{"takes an empty answer for none", keeping(func(_, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if row.Response != nil && len(row.Response.Body) == 0 {
				row.Response = nil
			}
		}), []string{"a body of 0 bytes comes back whole by put, by settlement and as evidence"}},
		{"loses the last byte of a body", bodies(func(body []byte) []byte { return body[:max(0, len(body)-1)] }), []string{
			"a body of 1 bytes comes back whole by put, by settlement and as evidence",
			"a body of 255 bytes comes back whole by put, by settlement and as evidence",
			"a body of 8388608 bytes comes back whole by put, by settlement and as evidence",
		}},
		{"keeps lengths in one byte", bodies(func(body []byte) []byte { return body[:len(body)%256] }), []string{
			"a body of 256 bytes comes back whole by put, by settlement and as evidence",
			"a body of 65535 bytes comes back whole by put, by settlement and as evidence",
		}},
		{"keeps lengths in two bytes", bodies(func(body []byte) []byte { return body[:len(body)%65536] }),
			[]string{"a body of 65536 bytes comes back whole by put, by settlement and as evidence"}},
		{"keeps the large body beside the small one", keeping(func(before, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if before != nil && before.Response != nil && len(before.Response.Body) > 65536 && row.Response != nil && len(row.Response.Body) < 100 {
				row.Response.Body = before.Response.Body
			}
		}), []string{"a large body is replaced by a small one, by none, and back"}},
		{"strips no answer", keeping(func(before, row *ledger.Entry, _ ledger.Write, _ ledger.Time) {
			if before != nil && row.Closed {
				row.Response, row.Failure = before.Response, before.Failure
			}
		}), []string{"an answer that is stripped leaves nothing behind"}},
		{"shares memory with its callers", func(s *brokenStore) { s.shares = true },
			[]string{"the store keeps no hold on what it was given or gave"}},
		{"tells another lease than it wrote", func(s *brokenStore) {
			s.told = func(w *ledger.Written) { w.Stamps.Lease += time.Microsecond }
		}, []string{"an extension renews the lease from the write, by the attempt's own length or a new one"}},
	}
}
