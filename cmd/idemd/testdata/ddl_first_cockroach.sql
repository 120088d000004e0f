-- What the first version made, and a row of each kind, as it was. Never to be changed. For CockroachDB.
CREATE TABLE IF NOT EXISTS idem_schema (
    step       INT8 NOT NULL PRIMARY KEY,
    name       VARCHAR(64) NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS idem_entries (
    tenant       STRING NOT NULL,
    operation    STRING NOT NULL,
    key          STRING NOT NULL,
    shard        INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    incarnation  INT8 NOT NULL,     -- when the intent was first begun. Times are microseconds since the Unix epoch, by the database's clock
    revision     INT8 NOT NULL,
    state        INT2 NOT NULL,     -- 1 pending, never seen from outside its transaction, 2 completed, 3 failed for good
    closed       BOOL NOT NULL,     -- only a tombstone is left: the answer is gone, and a late retry is refused
    attempt_id   BYTES NOT NULL,
    settled_at   INT8 NOT NULL,
    due_at       INT8 NOT NULL,     -- when the sweep has something to do here: the end of retention, then of the tombstone
    retention_ns INT8 NOT NULL,
    tombstone_ns INT8 NOT NULL,
    fingerprints BYTES NOT NULL,
    report       BYTES,
    answer       BYTES,
    PRIMARY KEY (tenant, operation, key),
    CONSTRAINT state_is_known CHECK (state BETWEEN 1 AND 3)
);
INSERT INTO idem_schema (step, name) VALUES (1, 'entries') ON CONFLICT (step) DO NOTHING;

CREATE INDEX IF NOT EXISTS idem_entries_by_due ON idem_entries (shard, due_at);
INSERT INTO idem_schema (step, name) VALUES (2, 'entries_by_due') ON CONFLICT (step) DO NOTHING;

CREATE TABLE IF NOT EXISTS idem_receipts (
    tenant       STRING NOT NULL,
    operation    STRING NOT NULL,
    key          STRING NOT NULL,
    shard        INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    incarnation  INT8 NOT NULL,     -- which life of the daemon's entry it belongs to
    fence        INT8 NOT NULL,     -- transactions of attempts with a lower one fail
    fingerprints BYTES NOT NULL,
    written_at   INT8 NOT NULL,     -- microseconds since the Unix epoch, by the database's clock
    due_at       INT8 NOT NULL,     -- from when the sweep asks the daemon whether the receipt is still needed
    answer       BYTES,         -- none: only a fence
    PRIMARY KEY (tenant, operation, key)
);
INSERT INTO idem_schema (step, name) VALUES (3, 'receipts') ON CONFLICT (step) DO NOTHING;

CREATE INDEX IF NOT EXISTS idem_receipts_by_due ON idem_receipts (shard, due_at);
INSERT INTO idem_schema (step, name) VALUES (4, 'receipts_by_due') ON CONFLICT (step) DO NOTHING;

CREATE TABLE IF NOT EXISTS idem_inbox (
    subscriber  STRING NOT NULL,
    message_id  STRING NOT NULL,
    shard       INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    algorithm   STRING NOT NULL, -- of the fingerprint; empty: there is none
    fingerprint BYTES,
    received_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (subscriber, message_id)
);

CREATE INDEX IF NOT EXISTS idem_inbox_by_age ON idem_inbox (shard, received_at);

CREATE TABLE IF NOT EXISTS idem_outbox (
    id            UUID NOT NULL,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    type          VARCHAR(255) NOT NULL,
    payload       BYTES NOT NULL,
    version       INT8 NOT NULL,
    headers       JSONB NOT NULL,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    shard         INT2 NOT NULL CHECK (shard BETWEEN 0 AND 15),
    PRIMARY KEY (aggregatetype, aggregateid, version)
);

CREATE INDEX IF NOT EXISTS idem_outbox_by_age ON idem_outbox (shard, created_at);

CREATE TABLE IF NOT EXISTS idem_outbox_versions (
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    last_version  INT8 NOT NULL,
    PRIMARY KEY (aggregatetype, aggregateid)
);

CREATE TABLE IF NOT EXISTS idem_outbox_pending (
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid   VARCHAR(255) NOT NULL,
    version       INT8 NOT NULL,
    written_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (aggregatetype, aggregateid, version)
);

CREATE TABLE IF NOT EXISTS idem_outbox_deliveries (
    aggregatetype     VARCHAR(255) NOT NULL,
    aggregateid       VARCHAR(255) NOT NULL,
    published_version INT8 NOT NULL,               -- everything up to here was acknowledged by the broker
    owner             VARCHAR(255) NOT NULL DEFAULT '',  -- who is at work, or was last
    fence             INT8 NOT NULL DEFAULT 0,     -- rises with every claim; what a holder says is believed only under its own
    lease_until       TIMESTAMPTZ NOT NULL DEFAULT '1970-01-01 00:00:00+00',
    attempts          INT4 NOT NULL DEFAULT 0,     -- failed ones, of the event after published_version
    next_at           TIMESTAMPTZ NOT NULL DEFAULT '1970-01-01 00:00:00+00',
    settled_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), -- when a holder last had something to say
    failed_at         TIMESTAMPTZ,
    last_error        STRING NOT NULL DEFAULT '',
    parked_at         TIMESTAMPTZ,
    PRIMARY KEY (aggregatetype, aggregateid)
);

CREATE INDEX IF NOT EXISTS idem_outbox_parked ON idem_outbox_deliveries (parked_at) WHERE parked_at IS NOT NULL;

CREATE TABLE IF NOT EXISTS idem_webhook_receipts (
    receiver    VARCHAR(128) NOT NULL,
    delivery_id VARCHAR(255) NOT NULL,
    state       INT2 NOT NULL CHECK (state BETWEEN 0 AND 2), -- 0 waiting, 1 done, 2 failed for good
    algorithm   VARCHAR(64) NOT NULL,
    fingerprint BYTEA NOT NULL,
    envelope    BYTEA,       -- gone once it is done
    body        BYTEA,       -- gone once it is done
    failure     TEXT,        -- why it failed for good
    received_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    settled_at  TIMESTAMPTZ,
    PRIMARY KEY (receiver, delivery_id)
);

CREATE INDEX IF NOT EXISTS idem_webhook_receipts_unfinished ON idem_webhook_receipts (receiver, received_at) WHERE state = 0;

CREATE INDEX IF NOT EXISTS idem_webhook_receipts_old ON idem_webhook_receipts (receiver, settled_at) WHERE state > 0;

INSERT INTO idem_entries (tenant, operation, key, shard, incarnation, revision, state, closed, attempt_id, settled_at, due_at, retention_ns, tombstone_ns, fingerprints, report, answer)
VALUES ('default', 'charge', 'k', 12, 4102444799000000, 2, 2, false, '\xe9fc717db446c13d484559461250528d', 4102444800000000, 4417804800000000, 315360000000000000, 3600000000000, '\x01010f62797465732d7368613235362d763120b7e73c3e1f2e6e71aaba3177ed5f05a8c08f0e3aba7802d39dfc47421bcf9efd', '\xb9de646357acf7a2f5111dfc88638f4d70e060ba7244667e5acbea5f3697455b', '\x01010007636861726765640a746578742f706c61696e000000000000');
INSERT INTO idem_inbox (subscriber, message_id, shard, algorithm, fingerprint, received_at)
VALUES ('billing', 'm', 8, 'bytes-sha256-v1', '\xb7e73c3e1f2e6e71aaba3177ed5f05a8c08f0e3aba7802d39dfc47421bcf9efd', '2026-11-30 14:29:17+00');
INSERT INTO idem_outbox_versions (aggregatetype, aggregateid, last_version)
VALUES ('order', '17', 1);
INSERT INTO idem_outbox_pending (aggregatetype, aggregateid, version, written_at)
VALUES ('order', '17', 1, '2026-11-30 14:29:17+00');
INSERT INTO idem_outbox (id, aggregatetype, aggregateid, type, payload, version, headers, created_at, shard)
VALUES ('350ab004-2be8-4008-9483-0ba889b93473', 'order', '17', 'OrderPaid', '\x70616964', 1, '{"a": "b"}', '2026-11-30 14:29:17+00', 4);
INSERT INTO idem_webhook_receipts (receiver, delivery_id, state, algorithm, fingerprint, envelope, body, received_at)
VALUES ('shop', 'd', 0, 'bytes-sha256-v1', '\xb7e73c3e1f2e6e71aaba3177ed5f05a8c08f0e3aba7802d39dfc47421bcf9efd', '\x7b2274797065223a2270616964222c22686561646572223a7b22436f6e74656e742d54797065223a5b22746578742f706c61696e225d7d2c22616c676f726974686d223a2262797465732d7368613235362d7631222c2268617368223a22742b633850683875626e4771756a463337563846714d4350446a713665414c546e667848516876506e76303d222c2272656365697665645f6174223a22323032332d31312d31345432323a31333a32305a227d', '\x7b7d', '2026-11-30 14:29:17+00');
