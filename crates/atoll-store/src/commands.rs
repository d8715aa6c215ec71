//! The `commands` table: history of commands and terminals.

use atoll_model::{CommandKind, CommandRow, ExecStatus, PageRequest, SessionId};
use sqlx::{FromRow, PgPool, QueryBuilder, Sqlite};

use crate::database::postgres::within_limit;
use crate::database::{Database, execute, fetch_all, fetch_one};
use crate::dialect::without_nul;
use crate::sandboxes::upper_bound;
use crate::{Error, Result, Store, decode_json, decode_text, encode};

const TABLE: &str = "commands";
const COLUMNS: &str = "id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, oom_killed, \
     timed_out, output_bytes";
/// Of an existing row, only the end of a command that ran is updated.
const UPSERT_END: &str = "ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, code = excluded.code, \
     signal = excluded.signal, oom_killed = excluded.oom_killed, timed_out = excluded.timed_out, \
     output_bytes = excluded.output_bytes";
const UPSERT_GUARD: &str = "WHERE commands.ended_at IS NULL AND excluded.ended_at IS NOT NULL";
/// Rows in one statement. Each statement is a round trip to the database's thread; larger ones would delay other
/// writers.
pub(crate) const ROWS_PER_STATEMENT: usize = 200;
/// Rows in one statement of PostgreSQL.
const ROWS_PER_ARRAY: usize = 2000;
const UPSERT_ARRAYS: &str = "INSERT INTO commands (id, session, terminal, command, args, cut, cwd, user_name, tag, started_at, \
     ended_at, code, signal, oom_killed, timed_out, output_bytes) \
     SELECT * FROM UNNEST($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[], \
     $9::text[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[]) \
     ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, code = excluded.code, \
     signal = excluded.signal, oom_killed = excluded.oom_killed, timed_out = excluded.timed_out, \
     output_bytes = excluded.output_bytes WHERE commands.ended_at IS NULL AND excluded.ended_at IS NOT NULL";
const OF_SESSION: &str = "SELECT id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, \
     oom_killed, timed_out, output_bytes FROM commands WHERE session = $1 AND terminal = $2 \
     AND (started_at < $3 OR (started_at = $3 AND id < $4)) ORDER BY started_at DESC, id DESC LIMIT $5";
const COUNT: &str = "SELECT COUNT(*) FROM commands WHERE session = $1 AND terminal = $2";
const PRUNE: &str = "DELETE FROM commands WHERE id IN (SELECT id FROM commands WHERE started_at < $1 \
     AND (ended_at < $1 OR NOT EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.session = commands.session)) LIMIT $2)";

#[derive(FromRow)]
pub(crate) struct Row {
    id: String,
    terminal: i64,
    command: String,
    args: String,
    cut: i64,
    cwd: Option<String>,
    user_name: Option<String>,
    tag: Option<String>,
    started_at: i64,
    ended_at: Option<i64>,
    code: Option<i64>,
    signal: Option<i64>,
    oom_killed: i64,
    timed_out: i64,
    output_bytes: i64,
}

impl TryFrom<Row> for CommandRow {
    type Error = Error;

    fn try_from(row: Row) -> Result<Self> {
        let number = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
        let status = ExecStatus {
            code: row.code.map(number),
            signal: row.signal.map(number),
            oom_killed: row.oom_killed != 0,
            timed_out: row.timed_out != 0,
        };
        Ok(Self {
            id: decode_text(TABLE, row.id)?,
            kind: if row.terminal == 0 {
                CommandKind::Command
            } else {
                CommandKind::Terminal
            },
            command: row.command,
            args: decode_json(TABLE, &row.args)?,
            truncated: row.cut != 0,
            cwd: row.cwd,
            user: row.user_name,
            tag: row.tag,
            started_at: row.started_at,
            ended: row.ended_at.map(|at| (at, status)),
            output_bytes: row.output_bytes,
        })
    }
}

/// The `terminal` column.
fn kind_column(kind: CommandKind) -> i64 {
    i64::from(kind == CommandKind::Terminal)
}

/// Builds a statement that upserts commands. `session` is `None` in a journal, which has no such column. `set` is
/// appended to the assignments for an existing row.
pub(crate) fn insert(
    session: Option<&SessionId>,
    rows: &[CommandRow],
    set: &'static str,
) -> QueryBuilder<Sqlite> {
    let key = session.map_or("", |_| "session, ");
    let mut statement = QueryBuilder::new(format!("INSERT INTO commands ({key}{COLUMNS}) "));
    statement.push_values(rows, |mut values, row| {
        if let Some(session) = session {
            values.push_bind(session.as_str());
        }
        let (ended_at, status) = row.ended.unzip();
        let status = status.unwrap_or_default();
        values
            .push_bind(row.id.as_str())
            .push_bind(kind_column(row.kind))
            .push_bind(row.command.as_str())
            .push_bind(encode(&row.args))
            .push_bind(i64::from(row.truncated))
            .push_bind(row.cwd.as_deref())
            .push_bind(row.user.as_deref())
            .push_bind(row.tag.as_deref())
            .push_bind(row.started_at)
            .push_bind(ended_at)
            .push_bind(status.code.map(i64::from))
            .push_bind(status.signal.map(i64::from))
            .push_bind(i64::from(status.oom_killed))
            .push_bind(i64::from(status.timed_out))
            .push_bind(row.output_bytes);
    });
    statement.push(format_args!(" {UPSERT_END}{set} {UPSERT_GUARD}"));
    statement
}

/// Upserts commands in one statement of PostgreSQL, with one parameter for each column.
pub(crate) async fn upsert_arrays<'a>(
    pool: &PgPool,
    sessions: impl Iterator<Item = &'a str>,
    rows: &[CommandRow],
) -> Result<()> {
    fn column<T>(rows: &[CommandRow], value: impl Fn(&CommandRow) -> T) -> Vec<T> {
        rows.iter().map(value).collect()
    }
    let sessions: Vec<&str> = sessions.collect();
    let status = |row: &CommandRow| row.ended.map(|(_, status)| status).unwrap_or_default();
    let query = sqlx::query(UPSERT_ARRAYS)
        .bind(column(rows, |row| row.id.as_str().to_owned()))
        .bind(sessions)
        .bind(column(rows, |row| kind_column(row.kind)))
        .bind(column(rows, |row| without_nul(&row.command)))
        .bind(column(rows, |row| encode(&row.args)))
        .bind(column(rows, |row| i64::from(row.truncated)))
        .bind(column(rows, |row| row.cwd.as_deref().map(without_nul)))
        .bind(column(rows, |row| row.user.as_deref().map(without_nul)))
        .bind(column(rows, |row| row.tag.as_deref().map(without_nul)))
        .bind(column(rows, |row| row.started_at))
        .bind(column(rows, |row| row.ended.map(|(at, _)| at)))
        .bind(column(rows, |row| status(row).code.map(i64::from)))
        .bind(column(rows, |row| status(row).signal.map(i64::from)))
        .bind(column(rows, |row| i64::from(status(row).oom_killed)))
        .bind(column(rows, |row| i64::from(status(row).timed_out)))
        .bind(column(rows, |row| row.output_bytes));
    within_limit(query.execute(pool)).await?;
    Ok(())
}

impl Store {
    /// Inserts commands of a session, and updates the end of existing ones. `rows` has no id twice. The call is
    /// idempotent: after a failure, which may leave some rows written, it can be repeated.
    pub async fn upsert_commands(&self, session: &SessionId, rows: &[CommandRow]) -> Result<()> {
        let _time = self.time("add_commands");
        match &self.database {
            Database::Sqlite(database) => {
                for rows in rows.chunks(ROWS_PER_STATEMENT) {
                    let _writer = self.writer();
                    // The text depends on the number of rows, so it is not cached as a prepared statement.
                    let mut statement = insert(Some(session), rows, "");
                    let query = statement.build().persistent(false);
                    query.execute(&database.write).await?;
                }
            }
            Database::Postgres(database) => {
                for rows in rows.chunks(ROWS_PER_ARRAY) {
                    let sessions = std::iter::repeat_n(session.as_str(), rows.len());
                    upsert_arrays(&database.pool, sessions, rows).await?;
                }
            }
        }
        Ok(())
    }

    /// Returns commands or terminals of a session, newest first.
    pub async fn commands(
        &self,
        session: &SessionId,
        kind: CommandKind,
        page: &PageRequest,
    ) -> Result<Vec<CommandRow>> {
        let (at, id) = upper_bound(page);
        let rows = fetch_all!(
            self.reader(),
            Row,
            OF_SESSION,
            session.as_str(),
            kind_column(kind),
            at,
            id,
            i64::from(page.limit)
        )?;
        rows.into_iter().map(CommandRow::try_from).collect()
    }

    /// Counts the commands or terminals of a session.
    pub async fn count_commands(&self, session: &SessionId, kind: CommandKind) -> Result<i64> {
        let (session, kind) = (session.as_str(), kind_column(kind));
        Ok(fetch_one!(self.reader(), (i64,), COUNT, session, kind)?.0)
    }

    /// Deletes up to `limit` commands that ended before a time, or that started before it in a session that was deleted.
    /// Returns their number.
    pub async fn prune_commands(&self, before: i64, limit: u32) -> Result<u64> {
        Ok(execute!(
            self.writer().on(),
            PRUNE,
            before,
            i64::from(limit)
        )?)
    }
}
