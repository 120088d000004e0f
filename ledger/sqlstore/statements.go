package sqlstore

import (
	"fmt"
	"strings"
)

// statements are the texts of everything the store sends, made once for an engine and a clock. Each begins with its name in a comment,
// which is what operators see in pg_stat_statements, and what the tests' proxy goes by.
type statements struct {
	engine engine
	clock  string

	putAbsent, putAbsentApart   string
	putOver, putOverApart       string
	settle, settleApart, giveUp string
	extend                      string
	lockWait                    string
	// Those of a whole batch: a parameter is an array, with an element for each write.
	firstGrants, settleMany, extendMany manyStatement

	get, getMany, ready, now, forget                      string
	settings, settingInsert, settingUpdate, settingDelete string
	pageColumns, leanColumns, pageFrom, leanFrom          string
}

const (
	never      = "9223372036854775807" // ledger.Never
	claimGuard = `e.incarnation = $2::INT8 AND e.is_current AND e.attempt = $3::INT4 AND e.state = 1 AND NOT e.closed` +
		` AND (e.bound IS NULL OR e.bound = $4::BYTEA) AND NOT ($5::BOOL AND e.doubt)`
	claimSets     = "revision = e.revision + 1, written_at = t.now, "
	revisionGuard = `e.incarnation = $2::INT8 AND e.revision = $3::INT8`
	// notLapsed is the part of a claim's guard that looks at the clock.
	notLapsed = `(e.hold_from <= e.due_at OR t.now < e.due_at)`
)

func newStatements(e engine, clock string) *statements {
	if clock == "" {
		clock = e.clockSQL()
	}
	s := &statements{engine: e, clock: clock}
	s.putAbsent, s.putAbsentApart = s.insertEntry(false), s.insertEntry(true)
	s.putOver, s.putOverApart = s.replaceEntry(false), s.replaceEntry(true)
	s.settle, s.settleApart = s.settleEntry(e, false), s.settleEntry(e, true)
	s.giveUp, s.extend = s.giveUpEntry(e), s.extendEntry(e)
	s.firstGrants, s.settleMany, s.extendMany = s.insertFirstGrants(), s.settleEntries(), s.extendEntries()
	// Until the end of the transaction, so that it leaves nothing behind on a connection that a pooler lends.
	s.lockWait = "/* idemd:lock-wait */ SELECT set_config('lock_timeout', '" + milliseconds(lockWait) + "', true)"
	s.buildReads(e)
	s.buildForget()
	s.buildSettings()
	return s
}

// value is the expression for a column's new value from parameter p. t.now is the one reading of the clock.
func (c column) value(p, minIncarnation int) string {
	given := fmt.Sprintf("$%d::%s", p, c.sqlType)
	switch {
	case c.name == "incarnation":
		return fmt.Sprintf("CASE WHEN %s < 0 THEN GREATEST(t.now, $%d::INT8) ELSE %s END", given, minIncarnation, given)
	case c.stamped:
		return fmt.Sprintf("CASE WHEN %s < 0 THEN t.now - %s - 1 ELSE %s END", given, given, given)
	default:
		return given
	}
}

func names(prefix string) string {
	out := make([]string, len(columns))
	for i, c := range columns {
		out[i] = prefix + c.name
	}
	return strings.Join(out, ", ")
}

func stamps(prefix string) string { return prefix + strings.Join(stampColumns, ", "+prefix) }

// insertEntry writes a row where there is none. Parameters: scope, shard, least incarnation, columns, and the blobs that stand apart.
//
// Where another transaction has inserted the same scope and is about to commit, PostgreSQL waits for it; then there is a row and nothing
// is written. Only if that one is rolled back after all does this insert go on, with the clock as read before the wait: the lease is
// then shorter by the wait, never longer.
func (s *statements) insertEntry(apart bool) string {
	const first = 4
	values := make([]string, len(columns))
	for i, c := range columns {
		values[i] = c.value(first+i, 3)
	}
	ctes, from := s.clockOnce()
	insert := fmt.Sprintf(`INSERT INTO idemd_entries (scope_id, shard, written_at, %s)
SELECT $1::BYTEA, $2::INT2, t.now, %s FROM %s
ON CONFLICT (scope_id) DO NOTHING`, names(""), strings.Join(values, ", "), from)
	if !apart {
		return "/* idemd:put-absent */ " + with(ctes) + insert + "\nRETURNING " + stamps("")
	}
	return "/* idemd:put-absent */ " + withBodies(ctes, insert+"\nRETURNING scope_id, "+stamps(""), upsertBodies(first+len(columns), true))
}

// upsertBodies writes the blobs that stand apart, in the same statement as their row w. Whoever replaces an entry replaces both blobs;
// whoever settles one sets the answer and leaves the history.
func upsertBodies(first int, both bool) string {
	history, update := "NULL::BYTEA", "answer = excluded.answer"
	if both {
		history, update = fmt.Sprintf("$%d::BYTEA", first+1), "answer = excluded.answer, history = excluded.history"
	}
	return fmt.Sprintf(`b AS (INSERT INTO idemd_bodies (scope_id, answer, history) SELECT w.scope_id, $%d::BYTEA, %s FROM w
ON CONFLICT (scope_id) DO UPDATE SET %s RETURNING 1)`, first, history, update)
}

// clockOnce is a source t of one row with the clock in it, read once: what a statement selects from or joins, and the common table
// expressions before that. PostgreSQL is held to one reading by MATERIALIZED. CockroachDB never repeats what is volatile, and commits a
// statement with its write, in one round trip less, only if there are no common table expressions in it.
func (s *statements) clockOnce() (ctes []string, from string) {
	const t = "t"
	read := "SELECT " + s.clock + " AS now"
	if s.engine == cockroachDB {
		return nil, "(" + read + ") AS " + t
	}
	return []string{t + " AS MATERIALIZED (" + read + ")"}, t
}

// clockOnceLocked is clockOnce for the row that satisfies guard, none if it does not. It locks the row, and only then reads the clock: l
// waits for the lock, t reads the clock for the row that l gave. An UPDATE alone would have read it before it waited, and the lease
// that it grants could be over by the time it is written.
func (s *statements) clockOnceLocked(guard string) (ctes []string, from string) {
	lock := "SELECT e.scope_id FROM idemd_entries AS e WHERE e.scope_id = $1::BYTEA AND " + guard + " FOR UPDATE"
	read := "SELECT " + s.clock + " AS now FROM "
	if s.engine == cockroachDB {
		return nil, "(" + read + "(" + lock + ") AS l) AS t"
	}
	return []string{"l AS MATERIALIZED (" + lock + ")", "t AS MATERIALIZED (" + read + "l)"}, "t"
}

func with(ctes []string) string {
	if len(ctes) == 0 {
		return ""
	}
	return "WITH " + strings.Join(ctes, ",\n") + "\n"
}

// withBodies is a statement that writes an entry (w, which returns its scope and stamps) and its part of idemd_bodies.
func withBodies(ctes []string, w, bodies string) string {
	return with(append(ctes, "w AS ("+w+")", bodies)) + "SELECT " + stamps("w.") + " FROM w"
}

// replaceEntry writes a whole entry over the row at a revision. Parameters: scope, incarnation, revision, least incarnation, columns, and
// the blobs that stand apart. What the row before had apart goes.
func (s *statements) replaceEntry(apart bool) string {
	const first = 5
	sets := make([]string, len(columns))
	for i, c := range columns {
		sets[i] = c.name + " = " + c.value(first+i, 4)
	}
	bodies := `b AS (DELETE FROM idemd_bodies WHERE scope_id = $1::BYTEA AND EXISTS (SELECT 1 FROM w) RETURNING 1)`
	if apart {
		bodies = upsertBodies(first+len(columns), true)
	}
	ctes, from := s.clockOnceLocked(revisionGuard)
	return "/* idemd:put-over */ " + withBodies(ctes, "UPDATE idemd_entries AS e SET written_at = t.now, "+strings.Join(sets, ", ")+
		"\nFROM "+from+" WHERE e.scope_id = $1::BYTEA AND "+revisionGuard+"\nRETURNING e.scope_id, "+stamps("e."), bodies)
}

// claimUpdate is an update of the row whose claim is proved. Parameters: scope, incarnation, attempt, principal, undoubted, then
// whatever sets needs.
func (s *statements) claimUpdate(sets string) (ctes []string, update string) {
	ctes, from := s.clockOnceLocked(claimGuard)
	return ctes, "UPDATE idemd_entries AS e SET " + claimSets + sets +
		"\nFROM " + from + " WHERE e.scope_id = $1::BYTEA AND " + claimGuard + " AND " + notLapsed
}

// settleEntry is [ledger.Entry.Settled] for a report that settles. Parameters after the claim's: state, ended, report, retention,
// tombstone, answer, whether the answer stands apart, and that answer.
func (s *statements) settleEntry(e engine, apart bool) string {
	ctes, update := s.claimUpdate(settleSets(e))
	if !apart {
		return "/* idemd:settle */ " + with(ctes) + update + "\nRETURNING " + stamps("e.")
	}
	return "/* idemd:settle */ " + withBodies(ctes, update+"\nRETURNING e.scope_id, "+stamps("e."), upsertBodies(13, false))
}

func settleSets(e engine) string {
	return fmt.Sprintf(`state = $6::INT2, ended = $7::INT2, ended_at = t.now, report = $8::BYTEA, settlement = $8::BYTEA, settled_at = t.now,
settled_by = e.attempt, retention_ns = GREATEST(e.retention_ns, $9::INT8), tombstone_ns = GREATEST(e.tombstone_ns, $10::INT8),
due_at = t.now + GREATEST(e.retention_ns, $9::INT8) %s 1000, answer = $11::BYTEA, apart = e.apart OR $12::BOOL`, e.divide())
}

// giveUpEntry is [ledger.Entry.Settled] for a claim that is given up. Parameters after the claim's: ended, report.
func (s *statements) giveUpEntry(e engine) string {
	lapse := "t.now + e.retention_ns " + e.divide() + " 1000"
	sets := "ended = $6::INT2, ended_at = t.now, report = $7::BYTEA, is_current = false, doubt = true, abandoned_at = t.now,\n" +
		"due_at = " + lapseAfter(lapse)
	ctes, update := s.claimUpdate(sets)
	return "/* idemd:give-up */ " + with(ctes) + update + "\nRETURNING " + stamps("e.")
}

// extendEntry is [ledger.Entry.Extended]. Parameters after the claim's: lease, margin.
func (s *statements) extendEntry(e engine) string {
	ctes, update := s.claimUpdate(extendSets(e))
	return "/* idemd:extend */ " + with(ctes) + update + "\nRETURNING " + stamps("e.")
}

func extendSets(e engine) string {
	fromNow := func(lease string) string { return "t.now + (" + lease + " + $7::INT8) " + e.divide() + " 1000" }
	asked := "CASE WHEN $6::INT8 > 0 THEN $6::INT8 ELSE e.lease_ns END"
	standing := "LEAST(e.lease_until, " + fromNow("e.lease_ns") + ")"
	until := "GREATEST(" + standing + ", " + fromNow(asked) + ")"
	lapse := until + " + e.retention_ns " + e.divide() + " 1000"
	return "lease_ns = CASE WHEN " + fromNow(asked) + " >= " + standing + " THEN " + asked + " ELSE e.lease_ns END,\nlease_until = " + until +
		",\ndue_at = " + lapseAfter(lapse)
}

// lapseAfter is the due time of a pending entry that nobody comes for until at.
func lapseAfter(at string) string {
	return "CASE WHEN e.hold_from <= " + at + " THEN " + never + " ELSE " + at + " END"
}

func (s *statements) buildReads(e engine) {
	s.pageColumns = "e.scope_id, " + names("e.") + ", b.answer, b.history"
	lean := names("e.")
	for _, blob := range []string{"answer", "history"} {
		lean = strings.Replace(lean, "e."+blob, "NULL::BYTEA", 1)
	}
	s.leanColumns = "e.scope_id, " + lean + ", NULL::BYTEA, NULL::BYTEA"
	const joinBodies = " LEFT JOIN idemd_bodies AS b ON b.scope_id = e.scope_id AND e.apart"
	s.pageFrom, s.leanFrom = "idemd_entries AS e"+joinBodies, "idemd_entries AS e"
	// The clock is read for the row that comes out, not before the row is looked for.
	s.get = "/* idemd:get */ SELECT " + s.clock + ", " + s.pageColumns +
		" FROM (VALUES (1)) AS one (n) LEFT JOIN idemd_entries AS e ON e.scope_id = $1::BYTEA" + joinBodies
	s.getMany = "/* idemd:get */ SELECT " + s.clock + ", e.scope_id, " + names("e.") + ", NULL::BYTEA, NULL::BYTEA" +
		" FROM (VALUES (1)) AS one (n) LEFT JOIN idemd_entries AS e ON e.scope_id = ANY ($1::BYTEA[])"
	s.now = "/* idemd:now */ SELECT " + s.clock
	health := "pg_is_in_recovery(), current_setting('fsync'), current_setting('synchronous_commit')"
	if e == cockroachDB {
		health = "false, 'on', 'on'"
	}
	s.ready = "/* idemd:ready */ SELECT " + s.clock + ", (SELECT coalesce(max(step), 0)::INT8 FROM idemd_schema)," +
		" (SELECT coalesce(max(needs), 0)::INT8 FROM idemd_schema), " + health
}

// buildForget deletes rows by (scope, incarnation, revision), given as three arrays. The rows are found by = ANY, which goes by the
// primary key whatever the planner knows of the table; a join with unnest alone can end in a plan that reads all of it.
func (s *statements) buildForget() {
	s.forget = `/* idemd:forget */ WITH d AS (DELETE FROM idemd_entries WHERE scope_id = ANY ($1::BYTEA[])
AND (scope_id, incarnation, revision) IN (SELECT u.s, u.i, u.r FROM unnest($1::BYTEA[], $2::INT8[], $3::INT8[]) AS u (s, i, r))
RETURNING scope_id),
b AS (DELETE FROM idemd_bodies WHERE scope_id = ANY ($1::BYTEA[]) AND scope_id IN (SELECT scope_id FROM d) RETURNING 1)
SELECT count(*)::INT8 FROM d`
}

func (s *statements) buildSettings() {
	s.settings = "/* idemd:settings */ SELECT " + s.clock + `, m.name, m.revision, m.body, m.updated_at
FROM (VALUES (1)) AS one (n) LEFT JOIN idemd_settings AS m ON m.kind = $1::TEXT ORDER BY m.name`
	s.settingInsert = "/* idemd:setting */ INSERT INTO idemd_settings (kind, name, revision, body, updated_at) SELECT $1::TEXT, $2::TEXT, 1, $3::BYTEA, " +
		s.clock + "\nON CONFLICT (kind, name) DO NOTHING RETURNING revision"
	guard := "kind = $1::TEXT AND name = $2::TEXT AND revision = $3::INT8"
	s.settingUpdate = "/* idemd:setting */ WITH l AS MATERIALIZED (SELECT kind FROM idemd_settings WHERE " + guard + " FOR UPDATE),\n" +
		"t AS MATERIALIZED (SELECT " + s.clock + " AS now FROM l)\n" +
		"UPDATE idemd_settings SET revision = revision + 1, body = $4::BYTEA, updated_at = t.now FROM t WHERE " + guard + " RETURNING revision"
	s.settingDelete = "/* idemd:setting */ DELETE FROM idemd_settings WHERE " + guard + " RETURNING revision"
}
