-- By name and scope, whose ids are hashes, each new entry went to a page of the index of its own. By name and age, those that are written together lie
-- together, so a batch writes one page for each of its names.
DROP INDEX entry_by_name;
CREATE INDEX entry_by_name ON entry (name, incarnation);
