-- Small named values that all daemons share: policies, the sweep's turn, the secret.
CREATE TABLE IF NOT EXISTS idemd_settings (
    kind       TEXT COLLATE "C" NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    revision   INT8 NOT NULL CHECK (revision >= 1),
    body       BYTEA NOT NULL,
    updated_at INT8 NOT NULL,
    PRIMARY KEY (kind, name)
)
