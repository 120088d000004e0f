-- The order that the sweeper goes by. Due times rise with the clock, so that without the shard before them every write would go to one
-- range at the end.
CREATE INDEX IF NOT EXISTS idemd_entries_by_due ON idemd_entries (shard, due_at, scope_id)
