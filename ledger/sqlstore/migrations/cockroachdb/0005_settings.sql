-- Small named values that all daemons share: policies, the sweep's turn, the secret.
CREATE TABLE IF NOT EXISTS idemd_settings (
    kind       STRING NOT NULL,
    name       STRING NOT NULL,
    revision   INT8 NOT NULL CHECK (revision >= 1),
    body       BYTES NOT NULL,
    updated_at INT8 NOT NULL,
    PRIMARY KEY (kind, name)
)
