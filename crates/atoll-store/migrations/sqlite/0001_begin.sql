-- Times are microseconds since 1970, ids are text, booleans are 0 and 1: the same rows fit PostgreSQL.
CREATE TABLE orgs (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    max_sandboxes BIGINT,
    max_timeout BIGINT,
    created_at BIGINT NOT NULL
);

CREATE TABLE keys (
    id TEXT PRIMARY KEY,
    org TEXT NOT NULL REFERENCES orgs (id),
    name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    scope TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    last_used_at BIGINT,
    revoked_at BIGINT
);

-- One row for each life of a sandbox: it stays, as history, when the sandbox is deleted.
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL UNIQUE,
    org TEXT NOT NULL REFERENCES orgs (id),
    alias TEXT,
    template TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT,
    error TEXT,
    metadata TEXT NOT NULL,
    limits TEXT NOT NULL,
    network TEXT NOT NULL,
    lifetime TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    -- When its time is up, while it runs; what was left of it, while it is paused.
    end_at BIGINT,
    time_left BIGINT,
    stopped_at BIGINT,
    deleted_at BIGINT
);
CREATE INDEX sandboxes_of_org ON sandboxes (org, created_at);
CREATE UNIQUE INDEX sandboxes_by_alias ON sandboxes (org, alias) WHERE alias IS NOT NULL AND deleted_at IS NULL;
