package cockroachsql

import "testing"

func TestWhatCockroachDBRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"WITH d AS (DELETE FROM entries WHERE due RETURNING 1) INSERT INTO entries SELECT 1",
		"WITH a AS (UPDATE entries SET x = 1 RETURNING 1)\nUPDATE entries SET y = 2 FROM a",
		"WITH a AS (INSERT INTO entries VALUES (1) ON CONFLICT DO NOTHING RETURNING 1) INSERT INTO entries VALUES (2)",
		"SELECT pg_advisory_xact_lock(1)",
		"select pg_try_advisory_lock($1)",
		"SELECT 1 FROM entries FOR UPDATE\nSKIP LOCKED",
		"LOCK TABLE entries IN EXCLUSIVE MODE",
		"NOTIFY settled",
		"CREATE TABLE a (x INT8); CREATE INDEX b ON a (x)",
		"INSERT INTO a VALUES (1); ALTER TABLE a ADD COLUMN y INT8;",
		"MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE",
	} {
		if Refuses(text) == "" {
			t.Errorf("nothing is said against:\n%s", text)
		}
	}
}

func TestWhatCockroachDBTakes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"INSERT INTO a AS r VALUES ($1) ON CONFLICT (x) DO UPDATE SET y = excluded.y WHERE r.y < excluded.y RETURNING r.y",
		"WITH l AS (SELECT 1 FROM a FOR UPDATE) UPDATE a SET y = 2 FROM l",
		"WITH w AS (INSERT INTO a VALUES (1) RETURNING x) INSERT INTO b SELECT x FROM w ON CONFLICT (x) DO UPDATE SET x = 1",
		"WITH w AS (INSERT INTO a VALUES (1) RETURNING x) INSERT INTO a VALUES (2)",
		"-- UPDATE a; the order of a\nCREATE INDEX IF NOT EXISTS b ON a (x);\n",
		"UPDATE a SET note = 'UPDATE a; SKIP LOCKED' WHERE x = 1",
		"SAVEPOINT work",
	} {
		if why := Refuses(text); why != "" {
			t.Errorf("%s:\n%s", why, text)
		}
	}
}
