-- The data directory that these rows belong to. One row; none until a server with this migration has started.
CREATE TABLE instance (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL
);

-- The last recorded time. One row; none until a server with this migration has started.
CREATE TABLE clock (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    -- Server time, and CLOCK_BOOTTIME of the host and its boot id at that moment.
    at BIGINT NOT NULL,
    boottime BIGINT NOT NULL,
    boot TEXT NOT NULL,
    -- System clock minus server time.
    difference BIGINT NOT NULL,
    -- Server time until which nothing is ended or deleted, because the system clock was changed.
    held_until BIGINT
);
