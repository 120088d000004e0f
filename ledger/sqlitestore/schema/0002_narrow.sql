-- A row of 0001 had 41 columns, repeated its tenant and operation, and stood in three wide indexes: most of what a write cost. Now what no statement
-- looks for is bytes (details.go), names are numbers, and indexes hold numbers only. Rows are brought over by convert0002 (upgrade.go).
--
-- Times (incarnation, due_at) are microseconds since the Unix epoch on the store's clock; those _after are microseconds after the incarnation, NULL where
-- not set. 9223372036854775807 in due_at is "never". The view "entries" shows all of this in words.

DROP VIEW entries;
DROP INDEX entry_by_scope;
DROP INDEX entry_by_name;
DROP INDEX entry_by_due;
ALTER TABLE entry RENAME TO entry_0001;

-- What entries are named by. A row goes with the last entry that has it.
CREATE TABLE name (
    id        INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    operation TEXT NOT NULL,
    UNIQUE (tenant, operation)
) STRICT;

CREATE TABLE entry (
    id            INTEGER PRIMARY KEY,
    scope_head    INTEGER NOT NULL, -- the first 8 bytes of the scope id as a number that orders as they do
    scope_tail    BLOB    NOT NULL CHECK (length(scope_tail) = 24),
    shard         INTEGER AS ((scope_head >> 56) & 15), -- not stored but in an index
    name          INTEGER NOT NULL,
    key           TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL CHECK (incarnation > 0),
    revision      INTEGER NOT NULL CHECK (revision > 0),
    state         INTEGER NOT NULL CHECK (state BETWEEN 1 AND 4), -- 1 pending, 2 completed, 3 failed final, 4 failed retryable
    closed        INTEGER NOT NULL CHECK (closed IN (0, 1)),      -- 1: only the tombstone is left
    due_at        INTEGER NOT NULL CHECK (due_at >= 0),
    attempt       INTEGER NOT NULL CHECK (attempt >= 0),
    holder        TEXT    NOT NULL,
    principal     TEXT    NOT NULL,
    leased_after  INTEGER, -- the lease's end
    settled_after INTEGER,
    details       BLOB    NOT NULL,
    answer        BLOB, -- NULL: none; empty: in table answer
    history       BLOB, -- NULL: none; empty: in table history

    -- A pending entry has no answer, nor has a closed one.
    CHECK (answer IS NULL OR (state <> 1 AND closed = 0))
) STRICT;

-- Two scope ids with the same first 8 bytes are next to impossible, and allowed for: the statements look at the rest as well.
CREATE INDEX entry_by_scope ON entry (scope_head);
CREATE INDEX entry_by_name ON entry (name, scope_head);
-- Due time first, not shard: entries come to be due in the order in which they are written, so one page of the index takes all of a batch.
CREATE INDEX entry_by_due ON entry (due_at, shard);

-- What an operator reads with sqlite3.
CREATE VIEW entries AS SELECT
    n.tenant, n.operation, e.key,
    CASE e.state WHEN 1 THEN 'pending' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed final' ELSE 'failed retryable' END
        || iif(e.closed, ', closed', '') AS state,
    strftime('%Y-%m-%dT%H:%M:%fZ', e.incarnation / 1e6, 'unixepoch') AS created,
    strftime('%Y-%m-%dT%H:%M:%fZ', (e.incarnation + e.settled_after) / 1e6, 'unixepoch') AS settled,
    iif(e.due_at < 9223372036854775807, strftime('%Y-%m-%dT%H:%M:%fZ', e.due_at / 1e6, 'unixepoch'), 'never') AS due,
    e.attempt, e.holder, e.principal,
    strftime('%Y-%m-%dT%H:%M:%fZ', (e.incarnation + e.leased_after) / 1e6, 'unixepoch') AS leased_until,
    e.revision,
    printf('%016x', iif(e.scope_head < 0, e.scope_head & 0x7fffffffffffffff, e.scope_head | 0x8000000000000000)) || lower(hex(e.scope_tail)) AS scope
FROM entry e JOIN name n ON n.id = e.name;
