-- What happened to sandboxes, in the order it was written down. The number is where a reader goes on.
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    org TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    kind TEXT NOT NULL,
    payload TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX events_of_org ON events (org, number);

-- Which sandbox a create made that said by which key it may be said again.
CREATE TABLE idempotency (
    org TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (org, key)
);
