-- What was run in sandboxes: carried here from their journals, and kept when they are gone. A terminal is a command
-- with a screen. What was typed, and the values of variables, are nowhere.
CREATE TABLE commands (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    terminal BIGINT NOT NULL,
    command TEXT NOT NULL,
    args TEXT NOT NULL,
    -- The line was longer than is kept.
    cut BIGINT NOT NULL,
    cwd TEXT,
    user_name TEXT,
    tag TEXT,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    code BIGINT,
    signal BIGINT,
    oom_killed BIGINT NOT NULL,
    timed_out BIGINT NOT NULL,
    output_bytes BIGINT NOT NULL
);
CREATE INDEX commands_of_session ON commands (session, terminal, started_at);
CREATE INDEX commands_by_time ON commands (started_at);
-- What is forgotten is found without reading all.
CREATE INDEX sandboxes_by_end ON sandboxes (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX events_by_time ON events (at);
