//! Commands and terminals of sandboxes, as history: what was run, when, and how it ended.

use atoll_model::{ExecId, ExecStatus, SessionId};
use sqlx::{FromRow, QueryBuilder, Sqlite};

use crate::{Error, Page, Result, Store, parse, text, word};

const TABLE: &str = "commands";
const COLUMNS: &str = "id, terminal, command, args, cut, cwd, user_name, tag, started_at, ended_at, code, signal, oom_killed, \
     timed_out, output_bytes";
/// One that is there already stays as it is, but that it may end.
const ENDS: &str = "ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, code = excluded.code, \
     signal = excluded.signal, oom_killed = excluded.oom_killed, timed_out = excluded.timed_out, \
     output_bytes = excluded.output_bytes";
const ONCE: &str = "WHERE commands.ended_at IS NULL AND excluded.ended_at IS NOT NULL";
/// How many rows are written with one statement. Each statement is a trip to the database's thread and back, whatever
/// is in it; those of more rows would hold up whoever else wants to write.
pub(crate) const AT_ONCE: usize = 200;
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

/// A statement that writes commands: of a session, where there are many; `also` is what else becomes of one that ends.
pub(crate) fn insert(
    session: Option<&SessionId>,
    rows: &[CommandRow],
    also: &'static str,
) -> QueryBuilder<Sqlite> {
    let first = session.map_or("", |_| "session, ");
    let mut statement = QueryBuilder::new(format!("INSERT INTO commands ({first}{COLUMNS}) "));
    statement.push_values(rows, |mut values, row| {
        if let Some(session) = session {
            values.push_bind(session.as_str());
        }
        let (ended_at, status) = row.ended.unzip();
        let status = status.unwrap_or_default();
        values
            .push_bind(row.id.as_str())
            .push_bind(row.kind.column())
            .push_bind(row.command.as_str())
            .push_bind(text(&row.args))
            .push_bind(i64::from(row.cut))
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
    statement.push(format_args!(" {ENDS}{also} {ONCE}"));
    statement
}

impl Store {
    /// Keeps commands of a session, none of them twice in `rows`. One that is there already stays as it is, but that
    /// it may end. If it fails, some of them may be there: all can be said again.
    pub async fn add_commands(&self, session: &SessionId, rows: &[CommandRow]) -> Result<()> {
        let _time = self.time("add_commands");
        for rows in rows.chunks(AT_ONCE) {
            // Its text depends on the number of rows: not one to remember.
            let mut statement = insert(Some(session), rows, "");
            let query = statement.build().persistent(false);
            query.execute(&*self.writer()).await?;
        }
        Ok(())
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
        Ok(query.execute(&*self.writer()).await?.rows_affected())
    }
}
