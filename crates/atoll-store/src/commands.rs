//! The `commands` table: history of commands and terminals.

use atoll_model::{CommandKind, CommandRow, ExecStatus, PageRequest, SessionId};
use sqlx::{FromRow, QueryBuilder, Sqlite};

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
const OF_SESSION: &str = "SELECT id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, \
     oom_killed, timed_out, output_bytes FROM commands WHERE session = $1 AND terminal = $2 \
     AND (started_at < $3 OR (started_at = $3 AND id < $4)) ORDER BY started_at DESC, id DESC LIMIT $5";
const COUNT: &str = "SELECT COUNT(*) FROM commands WHERE session = $1 AND terminal = $2";
const PRUNE: &str = "DELETE FROM commands WHERE id IN (SELECT id FROM commands WHERE started_at < $1 \
     AND (ended_at < $1 OR session NOT IN (SELECT session FROM sandboxes)) LIMIT $2)";

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

impl Store {
    /// Inserts commands of a session, and updates the end of existing ones. `rows` has no id twice. The call is
    /// idempotent: after a failure, which may leave some rows written, it can be repeated.
    pub async fn upsert_commands(&self, session: &SessionId, rows: &[CommandRow]) -> Result<()> {
        let _time = self.time("add_commands");
        for rows in rows.chunks(ROWS_PER_STATEMENT) {
            // The text depends on the number of rows, so it is not cached as a prepared statement.
            let mut statement = insert(Some(session), rows, "");
            let query = statement.build().persistent(false);
            query.execute(&*self.writer()).await?;
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
        let query = sqlx::query_as::<_, Row>(OF_SESSION)
            .bind(session.as_str())
            .bind(kind_column(kind))
            .bind(at)
            .bind(id)
            .bind(i64::from(page.limit));
        let rows = query.fetch_all(&self.read).await?;
        rows.into_iter().map(CommandRow::try_from).collect()
    }

    /// Counts the commands or terminals of a session.
    pub async fn count_commands(&self, session: &SessionId, kind: CommandKind) -> Result<i64> {
        let query = sqlx::query_scalar::<_, i64>(COUNT)
            .bind(session.as_str())
            .bind(kind_column(kind));
        Ok(query.fetch_one(&self.read).await?)
    }

    /// Deletes up to `limit` commands that ended before a time, or that started before it in a session that was deleted.
    /// Returns their number.
    pub async fn prune_commands(&self, before: i64, limit: u32) -> Result<u64> {
        let query = sqlx::query(PRUNE).bind(before).bind(i64::from(limit));
        Ok(query.execute(&*self.writer()).await?.rows_affected())
    }
}
