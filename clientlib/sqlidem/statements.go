package sqlidem

import (
	"strconv"
	"strings"
	"time"

	"github.com/idemd/idemd/clientlib/internal/sqldb"
)

// dialect is what is said to one kind of database: the texts of all statements, made once. Each begins with its name in a comment,
// which is what shows in the database's statistics, and what tests go by.
type dialect struct {
	engine Engine

	entries, receipts string
	clock             string

	tell                               string
	claim, read, replace, settle, due  string
	fence, answer, receipt             string
	dueReceipts, putOff, forgetReceipt string
}

const never = "9223372036854775807" // ledger.Never

// entryColumns are what a reading of an entry returns, in the order of entryRow.targets.
const entryColumns = "e.incarnation, e.revision, e.state, e.closed, e.attempt_id, e.settled_at, e.due_at, e.retention_ns, e.tombstone_ns, e.fingerprints, e.report, e.answer"

const (
	thisScope = "tenant = $1::TEXT AND operation = $2::TEXT AND key = $3::TEXT"
	pending   = "1"
)

func newDialect(e Engine, config Config) *dialect {
	d := &dialect{engine: e, entries: config.TablePrefix + "entries", receipts: config.TablePrefix + "receipts", clock: config.ClockSQL}
	if d.clock == "" {
		// The clock that moves within a transaction: the time of the answer is not that of the claim.
		d.clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::INT8"
	}
	d.buildEntries()
	d.buildReceipts()
	return d
}

// now is a common table expression c with the clock in it, read once.
func (d *dialect) now() string { return "WITH c AS MATERIALIZED (SELECT " + d.clock + " AS now) " }

func (d *dialect) buildEntries() {
	const claimColumns = "tenant, operation, key, shard, incarnation, revision, state, closed, attempt_id, settled_at, due_at, retention_ns, tombstone_ns, fingerprints"
	// Where another transaction has claimed the same intent and not ended, this waits for it. Where that one commits nothing is written.
	d.claim = "/* idem:claim */ " + d.now() + "INSERT INTO " + d.entries + " (" + claimColumns + ")\n" +
		"SELECT $1::TEXT, $2::TEXT, $3::TEXT, $4::INT2, c.now, 1, " + pending + ", false, $5::BYTEA, 0, " + never + ", $6::INT8, $7::INT8, $8::BYTEA FROM c\n" +
		"ON CONFLICT (tenant, operation, key) DO NOTHING RETURNING incarnation, revision"
	d.tell = "/* idem:clock */ SELECT " + d.clock
	d.read = "/* idem:read */ SELECT " + d.clock + ", " + entryColumns + " FROM (VALUES (1)) AS one (n)\n" +
		"LEFT JOIN " + d.entries + " AS e ON e.tenant = $1::TEXT AND e.operation = $2::TEXT AND e.key = $3::TEXT"
	// Over a row that is forgotten and not yet swept.
	d.replace = "/* idem:replace */ " + d.now() + "UPDATE " + d.entries + " AS e SET incarnation = GREATEST(c.now, $6::INT8), revision = e.revision + 1, state = " + pending +
		", closed = false, attempt_id = $7::BYTEA, settled_at = 0, due_at = " + never + ",\n" +
		"retention_ns = $8::INT8, tombstone_ns = $9::INT8, fingerprints = $10::BYTEA, report = NULL, answer = NULL\n" +
		"FROM c WHERE " + thisScope + " AND e.incarnation = $4::INT8 AND e.revision = $5::INT8 RETURNING e.incarnation, e.revision"
	d.settle = "/* idem:settle */ " + d.now() + "UPDATE " + d.entries + " AS e SET revision = e.revision + 1, state = $6::INT2, settled_at = c.now, due_at = c.now + $7::INT8, " +
		"report = $8::BYTEA, answer = $9::BYTEA\n" +
		"FROM c WHERE " + thisScope + " AND e.incarnation = $4::INT8 AND e.revision = $5::INT8 AND e.state = " + pending + " RETURNING c.now"
	// A row that somebody is replacing is left to the next sweep. CockroachDB learnt to skip such rows in a later version.
	skip := ""
	if d.engine == PostgreSQL {
		skip = " FOR UPDATE SKIP LOCKED"
	}
	lean := strings.TrimSuffix(entryColumns, "e.answer") + "NULL::BYTEA"
	d.due = "/* idem:due */ SELECT " + lean + ", e.tenant, e.operation, e.key FROM " + d.entries + " AS e\n" +
		"WHERE e.shard = $1::INT2 AND e.due_at <= $2::INT8 ORDER BY e.due_at LIMIT $3::INT8" + skip
}

func (d *dialect) buildReceipts() {
	t := d.receipts
	// A fence goes up over every lower one, and over every earlier life of the entry. It does not go up over an answer of this life.
	allowed := "r.incarnation < excluded.incarnation OR r.incarnation = excluded.incarnation AND r.fence <= excluded.fence AND r.answer IS NULL"
	put := "INSERT INTO " + t + " AS r (tenant, operation, key, shard, incarnation, fence, fingerprints, written_at, due_at, answer)\n" +
		"SELECT $1::TEXT, $2::TEXT, $3::TEXT, $4::INT2, $5::INT8, $6::INT8, $7::BYTEA, c.now, c.now + $8::INT8, $9::BYTEA FROM c\n" +
		"ON CONFLICT (tenant, operation, key) DO UPDATE SET incarnation = excluded.incarnation, fence = excluded.fence, fingerprints = excluded.fingerprints, " +
		"written_at = excluded.written_at, due_at = excluded.due_at, answer = excluded.answer\n" +
		"WHERE " + allowed + " RETURNING r.written_at"
	d.fence = "/* idem:fence */ " + d.now() + put
	d.answer = "/* idem:receipt */ " + d.now() + put
	d.receipt = "/* idem:read-receipt */ SELECT r.incarnation, r.fence, r.fingerprints, r.written_at, r.answer FROM " + t + " AS r WHERE " + thisScope
	d.dueReceipts = "/* idem:due-receipts */ SELECT r.tenant, r.operation, r.key, r.incarnation, r.fence FROM " + t + " AS r\n" +
		"WHERE r.shard = $1::INT2 AND r.due_at <= $2::INT8 ORDER BY r.due_at LIMIT $3::INT8"
	// A receipt that nobody has touched since it was read.
	d.forgetReceipt = "/* idem:forget-receipt */ DELETE FROM " + t + " WHERE " + thisScope + " AND incarnation = $4::INT8 AND fence = $5::INT8"
	d.putOff = "/* idem:put-off */ UPDATE " + t + " AS r SET due_at = " + d.clock + " + $6::INT8 WHERE " + thisScope +
		" AND r.incarnation = $4::INT8 AND r.fence = $5::INT8"
}

// forget deletes rows of entries whose revision is unchanged.
func (d *dialect) forget(rows int) string {
	return "/* idem:forget */ DELETE FROM " + d.entries + " WHERE (tenant, operation, key, incarnation, revision) IN (VALUES " +
		sqldb.Tuples(1, rows, "TEXT", "TEXT", "TEXT", "INT8", "INT8") + ")"
}

// closeEntries leaves tombstones of rows whose revision is unchanged.
func (d *dialect) closeEntries(rows int) string {
	return "/* idem:close */ UPDATE " + d.entries + " AS e SET closed = true, answer = NULL, due_at = v.due_at, revision = e.revision + 1\n" +
		"FROM (VALUES " + sqldb.Tuples(1, rows, "TEXT", "TEXT", "TEXT", "INT8", "INT8", "INT8") + ") AS v (tenant, operation, key, incarnation, revision, due_at)\n" +
		"WHERE e.tenant = v.tenant AND e.operation = v.operation AND e.key = v.key AND e.incarnation = v.incarnation AND e.revision = v.revision"
}

// Savepoints of ours. The names keep out of the work's way.
const (
	savepointWork     = "SAVEPOINT idem_work"
	rollbackToWork    = "ROLLBACK TO SAVEPOINT idem_work"
	limitPostgreSQL   = "SELECT current_setting('lock_timeout'), set_config('lock_timeout', $1::TEXT, true)"
	currentStatements = "SELECT current_setting('statement_timeout')"
)

// milliseconds is d as a setting, rounded up: what is left of a wait is rarely a whole number of them, and whoever waits is not told before its
// time that it waited in vain. Zero would mean "for ever".
func milliseconds(d time.Duration) string {
	return strconv.FormatInt(max((d+time.Millisecond-1).Milliseconds(), 1), 10)
}

// literal is text as an SQL string.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
