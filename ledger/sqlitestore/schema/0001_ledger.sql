-- Times (incarnation, _at, _from) are microseconds since the Unix epoch on the store's clock; those that no statement looks for (_after) are
-- microseconds after the incarnation, which takes half the room. NULL: not set. Lengths of time are nanoseconds. 9223372036854775807
-- in due_at is "never". The view "entries" shows all of this in words.

CREATE TABLE entry (
    id             INTEGER PRIMARY KEY,
    scope_id       BLOB    NOT NULL CHECK (length(scope_id) = 32),
    scope_head     BLOB    AS (substr(scope_id, 1, 8)), -- not stored but in an index
    shard          INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 15),
    tenant         TEXT    NOT NULL,
    operation      TEXT    NOT NULL,
    key            TEXT    NOT NULL,
    incarnation    INTEGER NOT NULL CHECK (incarnation > 0),
    revision       INTEGER NOT NULL CHECK (revision > 0),
    state          INTEGER NOT NULL CHECK (state BETWEEN 1 AND 4), -- 1 pending, 2 completed, 3 failed final, 4 failed retryable
    closed         INTEGER NOT NULL CHECK (closed IN (0, 1)),      -- 1: only the tombstone is left
    due_at         INTEGER NOT NULL CHECK (due_at >= 0),
    hold_from      INTEGER CHECK (hold_from BETWEEN 0 AND 9223372036854775806), -- NULL: never held
    current        INTEGER NOT NULL CHECK (current IN (0, 1)),
    doubt          INTEGER NOT NULL CHECK (doubt IN (0, 1)),
    credit         INTEGER NOT NULL CHECK (credit IN (0, 1)),
    run_grants     INTEGER NOT NULL CHECK (run_grants >= 0),
    fingerprints   BLOB    NOT NULL,

    on_abandoned   INTEGER NOT NULL, -- 1 reclaim, 2 hold
    max_attempts   INTEGER NOT NULL,
    reclaim_within INTEGER NOT NULL,
    retention      INTEGER NOT NULL,
    tombstone      INTEGER, -- NULL: as long as retention
    bound          BLOB    CHECK (length(bound) = 16), -- NULL: bound to nobody

    attempt        INTEGER NOT NULL CHECK (attempt >= 0),
    attempt_id     BLOB    CHECK (length(attempt_id) = 16),
    holder         TEXT    NOT NULL,
    principal      TEXT    NOT NULL,
    recover_only   INTEGER NOT NULL CHECK (recover_only IN (0, 1)),
    on_credit      INTEGER NOT NULL CHECK (on_credit IN (0, 1)),
    lease          INTEGER NOT NULL,
    began_after    INTEGER,
    leased_after   INTEGER, -- the lease's end
    ended_after    INTEGER,
    ended          INTEGER NOT NULL CHECK (ended BETWEEN 0 AND 7),
    report         BLOB    CHECK (length(report) IN (0, 32)), -- NULL: none; empty: the same as settlement

    abandoned_after INTEGER,
    settled_after  INTEGER,
    settled_by     INTEGER NOT NULL,
    settlement     BLOB    CHECK (length(settlement) = 32), -- NULL: none

    answer         BLOB, -- NULL: none; empty: in table answer
    history        BLOB, -- NULL: none; empty: in table history

    -- A pending entry has no answer, nor has a closed one.
    CHECK (answer IS NULL OR (state <> 1 AND closed = 0)),
    CHECK (report IS NULL OR length(report) = 32 OR settlement IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX entry_by_scope ON entry (scope_id);
-- Two orders end in scope_id. The first bytes of a hash order as well as all of it, and there is nothing to order among the few entries
-- that fall due in one microsecond, so neither index carries the whole of it: statements sort the rest.
CREATE INDEX entry_by_name ON entry (tenant, operation, scope_head);
CREATE INDEX entry_by_due ON entry (shard, due_at);

-- Answers and histories too large to stand in their row (see inlineAnswer and inlineHistory in row.go).
CREATE TABLE answer (
    entry INTEGER PRIMARY KEY,
    bytes BLOB NOT NULL CHECK (length(bytes) > 0)
) STRICT;

CREATE TABLE history (
    entry INTEGER PRIMARY KEY,
    bytes BLOB NOT NULL CHECK (length(bytes) > 0)
) STRICT;

-- What an operator reads with sqlite3.
CREATE VIEW entries AS SELECT
    tenant, operation, key,
    CASE state WHEN 1 THEN 'pending' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed final' ELSE 'failed retryable' END
        || iif(closed, ', closed', '') AS state,
    strftime('%Y-%m-%dT%H:%M:%fZ', incarnation / 1e6, 'unixepoch') AS created,
    strftime('%Y-%m-%dT%H:%M:%fZ', (incarnation + settled_after) / 1e6, 'unixepoch') AS settled,
    iif(due_at < 9223372036854775807, strftime('%Y-%m-%dT%H:%M:%fZ', due_at / 1e6, 'unixepoch'), 'never') AS due,
    attempt, holder, principal,
    strftime('%Y-%m-%dT%H:%M:%fZ', (incarnation + leased_after) / 1e6, 'unixepoch') AS leased_until,
    revision, lower(hex(scope_id)) AS scope
FROM entry;

CREATE TABLE setting (
    kind       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    revision   INTEGER NOT NULL CHECK (revision > 0),
    body       BLOB    NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;

-- The latest time that any write of this store was stamped with: the clock never starts before it.
CREATE TABLE clock (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    high_water INTEGER NOT NULL
) STRICT;

INSERT INTO clock (one, high_water) VALUES (1, 0);
