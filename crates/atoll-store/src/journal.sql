-- The journal of one sandbox. The columns are those of the store; synced = 1 once the store has the row.
CREATE TABLE commands (
    id TEXT PRIMARY KEY,
    terminal INTEGER NOT NULL,
    command TEXT NOT NULL,
    args TEXT NOT NULL,
    cut INTEGER NOT NULL,
    cwd TEXT,
    user_name TEXT,
    tag TEXT,
    started_at INTEGER NOT NULL,
    ended_at INTEGER,
    code INTEGER,
    signal INTEGER,
    oom_killed INTEGER NOT NULL,
    timed_out INTEGER NOT NULL,
    output_bytes INTEGER NOT NULL,
    synced INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX commands_unsynced ON commands (started_at) WHERE synced = 0;
PRAGMA user_version = 1;
