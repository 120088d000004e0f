-- The order that lists and erasure go by.
CREATE INDEX IF NOT EXISTS idemd_entries_by_scope ON idemd_entries (tenant, operation, scope_id)
