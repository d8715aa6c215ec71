-- Machines that run sandboxes.
CREATE TABLE workers (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    address TEXT NOT NULL,
    state TEXT NOT NULL,
    capacity TEXT NOT NULL,
    version TEXT NOT NULL,
    registered_at BIGINT NOT NULL,
    last_seen_at BIGINT NOT NULL
);

-- Templates of an org, or public ones, which have no org. The digest identifies the layer.
CREATE TABLE templates (
    id TEXT PRIMARY KEY,
    org TEXT REFERENCES orgs (id),
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    size BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX templates_by_name ON templates (COALESCE(org, ''), name);
