-- Answers and histories that are too large for the entry's own row. Written and deleted by the statement that writes or deletes the
-- entry. There is no foreign key: it would cost every one of those statements a check of what they do anyway.
CREATE TABLE IF NOT EXISTS idemd_bodies (
    scope_id BYTEA NOT NULL PRIMARY KEY,
    answer   BYTEA,
    history  BYTEA
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05)
