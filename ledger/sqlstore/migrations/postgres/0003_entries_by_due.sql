-- The order that the sweeper goes by.
CREATE INDEX IF NOT EXISTS idemd_entries_by_due ON idemd_entries (shard, due_at, scope_id)
