//! Commands and terminals of sandboxes, as history: what was run, when, and how it ended.

use atoll_model::{ExecId, ExecStatus, SessionId};
use sqlx::sqlite::SqliteArguments;
use sqlx::{FromRow, Sqlite};

use crate::{Error, Page, Result, Store, parse, text, word};

const TABLE: &str = "commands";
const INSERT: &str = "INSERT INTO commands (session, id, terminal, command, args, cut, cwd, user_name, tag, started_at, \
     ended_at, code, signal, oom_killed, timed_out, output_bytes) \
     VALUES ($16, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
     ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, code = excluded.code, signal = excluded.signal, \
     oom_killed = excluded.oom_killed, timed_out = excluded.timed_out, output_bytes = excluded.output_bytes \
     WHERE commands.ended_at IS NULL AND excluded.ended_at IS NOT NULL";
const OF_SESSION: &str = "SELECT id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, \
     oom_killed, timed_out, output_bytes FROM commands WHERE session = $1 AND terminal = $2 \
     AND (started_at < $3 OR (started_at = $3 AND id < $4)) ORDER BY started_at DESC, id DESC LIMIT $5";
const COUNT: &str = "SELECT COUNT(*) FROM commands WHERE session = $1 AND terminal = $2";
const FORGET: &str = "DELETE FROM commands WHERE id IN (SELECT id FROM commands WHERE started_at < $1 \
     AND (ended_at < $1 OR session NOT IN (SELECT session FROM sandboxes)) LIMIT $2)";

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandKind {
    /// A command without a screen.
    Plain,
    /// A terminal.
    Terminal,
}

/// A command as history has it. Variables and input are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRow {
    /// Its id.
    pub id: ExecId,
    /// Whether it had a screen.
    pub kind: CommandKind,
    /// The program, or the line for the shell.
    pub command: String,
    /// The program's arguments; nothing of a line.
    pub args: Vec<String>,
    /// It was longer than is kept.
    pub cut: bool,
    /// Where it was to run.
    pub cwd: Option<String>,
    /// As whom.
    pub user: Option<String>,
    /// What its caller called it.
    pub tag: Option<String>,
    /// When it began.
    pub started_at: i64,
    /// When and how it ended, once it has.
    pub ended: Option<(i64, ExecStatus)>,
    /// How much it had written by then.
    pub output_bytes: i64,
}

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
            id: word(TABLE, row.id)?,
            kind: if row.terminal == 0 {
                CommandKind::Plain
            } else {
                CommandKind::Terminal
            },
            command: row.command,
            args: parse(TABLE, &row.args)?,
            cut: row.cut != 0,
            cwd: row.cwd,
            user: row.user_name,
            tag: row.tag,
            started_at: row.started_at,
            ended: row.ended_at.map(|at| (at, status)),
            output_bytes: row.output_bytes,
        })
    }
}

impl CommandKind {
    fn column(self) -> i64 {
        i64::from(self == Self::Terminal)
    }
}

/// A statement whose first fifteen values are a command's.
pub(crate) fn bound(
    statement: &'static str,
    row: &CommandRow,
) -> sqlx::query::Query<'static, Sqlite, SqliteArguments> {
    let (ended_at, status) = row.ended.unzip();
    let status = status.unwrap_or_default();
    sqlx::query(statement)
        .bind(row.id.as_str().to_owned())
        .bind(row.kind.column())
        .bind(row.command.clone())
        .bind(text(&row.args))
        .bind(i64::from(row.cut))
        .bind(row.cwd.clone())
        .bind(row.user.clone())
        .bind(row.tag.clone())
        .bind(row.started_at)
        .bind(ended_at)
        .bind(status.code.map(i64::from))
        .bind(status.signal.map(i64::from))
        .bind(i64::from(status.oom_killed))
        .bind(i64::from(status.timed_out))
        .bind(row.output_bytes)
}

impl Store {
    /// Keeps commands of a session. One that is there already stays as it is, but that it may end; all of them or
    /// none.
    pub async fn add_commands(&self, session: &SessionId, rows: &[CommandRow]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut transaction = self.write.begin().await?;
        for row in rows {
            let query = bound(INSERT, row).bind(session.as_str().to_owned());
            query.execute(&mut *transaction).await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Commands or terminals of a session, newest first.
    pub async fn commands(
        &self,
        session: &SessionId,
        kind: CommandKind,
        page: &Page,
    ) -> Result<Vec<CommandRow>> {
        let (at, id) = page.start();
        let query = sqlx::query_as::<_, Row>(OF_SESSION)
            .bind(session.as_str())
            .bind(kind.column())
            .bind(at)
            .bind(id)
            .bind(i64::from(page.limit));
        let rows = query.fetch_all(&self.read).await?;
        rows.into_iter().map(CommandRow::try_from).collect()
    }

    /// How many commands or terminals a session has.
    pub async fn count_commands(&self, session: &SessionId, kind: CommandKind) -> Result<i64> {
        let query = sqlx::query_scalar::<_, i64>(COUNT)
            .bind(session.as_str())
            .bind(kind.column());
        Ok(query.fetch_one(&self.read).await?)
    }

    /// Forgets some commands that ended before a time, or began before it in a session that is forgotten; how many.
    pub async fn forget_commands(&self, before: i64, most: u32) -> Result<u64> {
        let query = sqlx::query(FORGET).bind(before).bind(i64::from(most));
        Ok(query.execute(&self.write).await?.rows_affected())
    }
}
