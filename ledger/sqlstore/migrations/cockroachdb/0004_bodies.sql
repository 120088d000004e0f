-- Answers and histories that are too large for the entry's own row. Written and deleted by the statement that writes or deletes the
-- entry. There is no foreign key: it would cost every one of those statements a check of what they do anyway.
CREATE TABLE IF NOT EXISTS idemd_bodies (
    scope_id BYTES NOT NULL PRIMARY KEY,
    answer   BYTES,
    history  BYTES
)
