//! Tests of journals and of the `commands` table.

use atoll_model::{
    CommandKind, CommandRow, ExecId, ExecStatus, PageRequest, SandboxState, SessionId,
};

use super::{Backend, on_both, org, row};
use crate::Journal;

fn command(started_at: i64) -> CommandRow {
    CommandRow {
        id: ExecId::random(),
        kind: CommandKind::Command,
        command: "echo".into(),
        args: vec!["a b".into(), "\"".into()],
        truncated: false,
        cwd: Some("/tmp".into()),
        user: None,
        tag: Some("t".into()),
        started_at,
        ended: None,
        output_bytes: 0,
    }
}

fn ended(row: &CommandRow, code: i32) -> CommandRow {
    let status = ExecStatus {
        code: Some(code),
        ..ExecStatus::default()
    };
    CommandRow {
        ended: Some((row.started_at + 5, status)),
        output_bytes: 7,
        ..row.clone()
    }
}

const ALL: PageRequest = PageRequest {
    limit: 100,
    cursor: None,
};

#[tokio::test]
async fn journal_returns_unsynced_rows_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.db");
    let mut journal = Journal::open(&path).await.unwrap();
    let (one, two) = (command(1), command(2));
    journal.write(&[one.clone(), two.clone()]).await.unwrap();
    journal.close().await.unwrap();
    let mut journal = Journal::open(&path).await.unwrap();
    let unsynced = journal.unsynced(100).await.unwrap();
    assert_eq!(unsynced, [one.clone(), two.clone()]);
    // The command ends after it was read and before it is marked as synced.
    journal.write(&[ended(&one, 3)]).await.unwrap();
    journal.mark_synced(&unsynced).await.unwrap();
    let unsynced = journal.unsynced(100).await.unwrap();
    assert_eq!(unsynced, [ended(&one, 3)]);
    // A recorded end is not overwritten.
    journal.write(&[one.clone(), ended(&one, 9)]).await.unwrap();
    assert_eq!(journal.unsynced(100).await.unwrap(), [ended(&one, 3)]);
    journal.mark_synced(&unsynced).await.unwrap();
    assert_eq!(journal.unsynced(100).await.unwrap(), []);
    journal.close().await.unwrap();
}

/// More rows than fit in one statement, with all kinds of values.
fn unusual_rows() -> Vec<CommandRow> {
    let texts = [
        "",
        "a\0b",
        "\0",
        "it's \"quoted\" -- ;?$1",
        "\u{1f3dd}\u{fffd}\u{feff}\n\r\u{7f}",
        "{\"a\": [null, true]}",
        &"\u{1f3dd}".repeat(2 << 10),
    ];
    let some = |at: usize| texts.get(at % 8).map(ToString::to_string);
    (0..450_usize)
        .map(|at| CommandRow {
            id: ExecId::random(),
            kind: [CommandKind::Command, CommandKind::Terminal][at % 2],
            command: some(at).unwrap_or_default(),
            args: (0..at % 4).filter_map(|word| some(at + word)).collect(),
            truncated: at % 3 == 0,
            cwd: some(at + 1),
            user: some(at / 8),
            tag: some(at / 3),
            started_at: [i64::MIN, 0, i64::MAX][at / 150] / 2 + i64::try_from(at).unwrap(),
            ended: (at % 5 != 0).then_some((
                i64::MAX,
                ExecStatus {
                    code: (at % 2 == 0).then_some(i32::MIN),
                    signal: (at % 3 == 0).then_some(i32::MAX),
                    oom_killed: at % 7 == 0,
                    timed_out: at % 11 == 0,
                },
            )),
            output_bytes: i64::MAX,
        })
        .collect()
}

/// The row as PostgreSQL stores it: its texts have no NUL characters. Arguments are JSON, which escapes them.
fn storable(row: CommandRow) -> CommandRow {
    let text = |text: String| text.replace('\0', "\u{fffd}");
    CommandRow {
        command: text(row.command),
        cwd: row.cwd.map(text),
        user: row.user.map(text),
        tag: row.tag.map(text),
        ..row
    }
}

async fn batch_of_rows_round_trips(backend: Backend) {
    let rows = unusual_rows();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.db");
    let mut journal = Journal::open(&path).await.unwrap();
    journal.write(&rows).await.unwrap();
    assert_eq!(journal.unsynced(1000).await.unwrap(), rows);
    journal.mark_synced(&rows[..300]).await.unwrap();
    assert_eq!(journal.unsynced(1000).await.unwrap(), rows[300..]);
    // A command that was synced while it ran becomes unsynced by its end; other rows do not.
    let (all, one) = (&rows[..300], ended(&rows[5], 3));
    journal
        .write(&[all, std::slice::from_ref(&one)].concat())
        .await
        .unwrap();
    assert_eq!(journal.unsynced(1).await.unwrap(), [one]);
    assert_eq!(journal.unsynced(1000).await.unwrap().len(), 151);
    journal.close().await.unwrap();

    let store = backend.open().await;
    let session = SessionId::random();
    store.upsert_commands(&session, &rows).await.unwrap();
    store.upsert_commands(&session, &[]).await.unwrap();
    let rows: Vec<CommandRow> = match backend {
        Backend::Sqlite(_) => rows,
        Backend::Postgres(_) => rows.into_iter().map(storable).collect(),
    };
    for kind in [CommandKind::Command, CommandKind::Terminal] {
        let page = PageRequest {
            limit: 1000,
            cursor: None,
        };
        let mut found = store.commands(&session, kind, &page).await.unwrap();
        found.reverse();
        let these = rows.iter().filter(|row| row.kind == kind);
        assert_eq!(found, these.cloned().collect::<Vec<_>>());
    }
}
on_both!(batch_of_rows_round_trips);

#[tokio::test]
async fn pruned_journal_does_not_grow() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.db");
    let mut journal = Journal::open(&path).await.unwrap();
    let rows: Vec<CommandRow> = (0..3000).map(|at| ended(&command(at), 0)).collect();
    journal.write(&rows).await.unwrap();
    journal.mark_synced(&rows).await.unwrap();
    journal.prune().await.unwrap();
    journal.close().await.unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    let mut journal = Journal::open(&path).await.unwrap();
    let more: Vec<CommandRow> = (3000..5000).map(|at| ended(&command(at), 0)).collect();
    journal.write(&more).await.unwrap();
    journal.mark_synced(&more).await.unwrap();
    journal.prune().await.unwrap();
    journal.close().await.unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() <= size);
}

#[tokio::test]
async fn invalid_journal_file_is_corrupt() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.db");
    for bytes in [vec![b'x'; 9000], b"SQLite format 3\0".repeat(600)] {
        std::fs::write(&path, bytes).unwrap();
        let error = Journal::open(&path).await.unwrap_err();
        assert!(error.is_corrupt(), "{error:?}");
    }
    // A missing directory is another error.
    let nowhere = directory.path().join("no/journal.db");
    let error = Journal::open(&nowhere).await.unwrap_err();
    assert!(!error.is_corrupt() && !error.is_disk_full(), "{error:?}");
}

async fn upserted_commands_are_unique_and_paged_newest_first(backend: Backend) {
    let store = backend.open().await;
    let session = SessionId::random();
    let mut rows: Vec<CommandRow> = (0..10).map(|at| command(at / 3)).collect();
    store.upsert_commands(&session, &rows).await.unwrap();
    for row in &mut rows {
        *row = ended(row, 1);
    }
    // Written twice, and once in their former state.
    store.upsert_commands(&session, &rows).await.unwrap();
    store.upsert_commands(&session, &rows).await.unwrap();
    let begun = CommandRow {
        ended: None,
        ..rows[0].clone()
    };
    store.upsert_commands(&session, &[begun]).await.unwrap();
    let kind = CommandKind::Command;
    assert_eq!(store.count_commands(&session, kind).await.unwrap(), 10);
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = PageRequest { limit: 3, cursor };
        let found = store.commands(&session, kind, &page).await.unwrap();
        let Some(last) = found.last() else { break };
        cursor = Some((last.started_at, last.id.to_string()));
        seen.extend(found);
    }
    rows.sort_by(|one, two| {
        (two.started_at, two.id.as_str()).cmp(&(one.started_at, one.id.as_str()))
    });
    assert_eq!(seen, rows);
    let terminals = store.commands(&session, CommandKind::Terminal, &ALL).await;
    assert_eq!(terminals.unwrap(), []);
    let other = store.commands(&SessionId::random(), kind, &ALL).await;
    assert_eq!(other.unwrap(), []);
}
on_both!(upserted_commands_are_unique_and_paged_newest_first);

async fn old_history_is_pruned_in_batches(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let (mut gone, living) = (row(&org, 1), row(&org, 1));
    store.insert_sandbox(&gone, None, None).await.unwrap();
    store.insert_sandbox(&living, None, None).await.unwrap();
    gone.deleted_at = Some(50);
    store.update_sandbox(&gone, "deleted", 50).await.unwrap();
    let old: Vec<CommandRow> = (0..5).map(|at| ended(&command(at), 0)).collect();
    store.upsert_commands(&gone.session, &old).await.unwrap();
    let runs = command(7);
    let rows = [ended(&command(7), 0), runs.clone(), ended(&command(99), 0)];
    store.upsert_commands(&living.session, &rows).await.unwrap();
    assert_eq!(store.prune_commands(60, 4).await.unwrap(), 4);
    assert_eq!(store.prune_commands(60, 4).await.unwrap(), 2);
    assert_eq!(store.prune_commands(60, 4).await.unwrap(), 0);
    let left = store.commands(&living.session, CommandKind::Command, &ALL);
    assert_eq!(left.await.unwrap(), [rows[2].clone(), runs]);
    assert_eq!(store.prune_deleted(50, 4).await.unwrap(), 0);
    assert_eq!(store.prune_deleted(51, 4).await.unwrap(), 1);
    let name = gone.session.as_str();
    assert_eq!(store.session(&org.id, name).await.unwrap(), None);
    assert_eq!(store.active_sandboxes().await.unwrap().len(), 1);
}
on_both!(old_history_is_pruned_in_batches);

async fn page_of_one_state_is_full(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    for number in 0..20 {
        let mut sandbox = row(&org, number);
        store.insert_sandbox(&sandbox, None, None).await.unwrap();
        if number % 4 == 0 {
            sandbox.state = SandboxState::Stopped;
            let written = store.update_sandbox(&sandbox, "stopped", 1);
            written.await.unwrap();
        }
    }
    let stopped = Some(SandboxState::Stopped);
    let page = PageRequest {
        limit: 4,
        cursor: None,
    };
    let found = store.sandboxes(&org.id, false, stopped, &page).await;
    let found: Vec<i64> = found.unwrap().iter().map(|row| row.created_at).collect();
    assert_eq!(found, [16, 12, 8, 4]);
}
on_both!(page_of_one_state_is_full);
