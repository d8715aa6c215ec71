//! Copy of a SQLite database to PostgreSQL.

use atoll_model::{CommandKind, CommandRow, ExecId, ExecStatus, InstanceId, SessionId};
use atoll_testkit::PostgresDatabase;

use super::{Backend, org, row};
use crate::{ClockRecord, DatabaseUrl, Error, PostgresUrl, Store, TableCopy, transfer};

fn command(number: i64) -> CommandRow {
    let ended = ExecStatus {
        code: Some(0),
        ..ExecStatus::default()
    };
    CommandRow {
        id: ExecId::random(),
        kind: CommandKind::Command,
        command: format!("echo \0 {number} \u{1f3dd}"),
        args: vec!["a b".into(); 3],
        truncated: false,
        cwd: Some("/tmp".into()),
        user: None,
        tag: None,
        started_at: number,
        ended: (number % 3 != 0).then_some((number + 5, ended)),
        output_bytes: number,
    }
}

async fn copy(from: &DatabaseUrl, to: &PostgresUrl) -> crate::Result<Vec<TableCopy>> {
    let DatabaseUrl::Sqlite(from) = from else {
        unreachable!()
    };
    let (mut done, mut total) = (0, 0);
    let copied = transfer(from, to, |progress| {
        assert!(progress.done >= done);
        (done, total) = (progress.done, progress.total);
    })
    .await?;
    assert_eq!(done, total);
    Ok(copied)
}

#[tokio::test]
async fn copy_is_complete_and_repeatable() {
    let source = Backend::sqlite();
    let store = source.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let session = SessionId::random();
    let commands: Vec<CommandRow> = (0..9001).map(command).collect();
    store.upsert_commands(&session, &commands).await.unwrap();
    let mut sandboxes = Vec::new();
    for number in 0..20 {
        let mut sandbox = row(&org, number);
        store.insert_sandbox(&sandbox, None, None).await.unwrap();
        sandbox.alias = Some(format!("alias {number}"));
        store.update_sandbox(&sandbox, "changed", 5).await.unwrap();
        sandboxes.push(sandbox);
    }
    assert_eq!(store.prune_events(5, 3).await.unwrap(), 3);
    let instance = InstanceId::random();
    store.claim_instance(&instance).await.unwrap();
    let mut clock = ClockRecord {
        at: 1,
        boottime: 1,
        boot: "boot".into(),
        difference: 0,
        held_until: None,
    };
    store.record_clock(&clock).await.unwrap();
    let events = store.events(&org.id, None, 0, 1000).await.unwrap();
    store.close().await;

    let database = PostgresDatabase::new();
    let to: PostgresUrl = database.url.parse().unwrap();
    let first = copy(&source.url(), &to).await.unwrap();
    let rows = |copied: &[TableCopy], name: &str| {
        let table = copied.iter().find(|table| table.table == name).unwrap();
        (table.rows, table.changed)
    };
    assert_eq!(rows(&first, "commands"), (9001, 9001));
    assert_eq!(rows(&first, "sandboxes"), (20, 20));
    assert_eq!(rows(&first, "events"), (37, 37));
    let second = copy(&source.url(), &to).await.unwrap();
    assert_eq!(rows(&second, "commands"), (9001, 0));
    assert!(second.iter().all(|table| table.changed == 0));

    let target = Store::connect(&to).await.unwrap();
    assert_eq!(target.events(&org.id, None, 0, 1000).await.unwrap(), events);
    let mut found = target.active_sandboxes().await.unwrap();
    found.sort_by_key(|row| row.created_at);
    assert_eq!(found, sandboxes);
    // New events follow those that were copied.
    let last = target.last_event().await.unwrap();
    target
        .insert_sandbox(&row(&org, 99), None, None)
        .await
        .unwrap();
    assert_eq!(target.last_event().await.unwrap(), last + 1);
    // A server worked with the target: a copy would undo that.
    clock.at = 2;
    target.record_clock(&clock).await.unwrap();
    let refused = copy(&source.url(), &to).await.unwrap_err();
    assert!(matches!(refused, Error::TargetUsed), "{refused:?}");
}

#[tokio::test]
async fn target_of_another_instance_is_refused() {
    let source = Backend::sqlite();
    let store = source.open().await;
    store.claim_instance(&InstanceId::random()).await.unwrap();
    store.close().await;
    let database = PostgresDatabase::new();
    let to: PostgresUrl = database.url.parse().unwrap();
    let target = Store::connect(&to).await.unwrap();
    target.claim_instance(&InstanceId::random()).await.unwrap();
    let refused = copy(&source.url(), &to).await.unwrap_err();
    assert!(matches!(refused, Error::OtherInstance), "{refused:?}");
}
