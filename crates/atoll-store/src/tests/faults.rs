//! Faults of a PostgreSQL server: kills, lost connections, full disks. Each test has a server of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_model::{CommandKind, CommandRow, ExecId, SessionId};
use atoll_testkit::{Cage, Durability, Postgres, Scratch};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::Mutex;

use super::{org, row};
use crate::{ConnectProblem, Error, PostgresUrl, SandboxRow, Store};

const TIMEOUT: Duration = Duration::from_mins(1);

async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = attempt().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn command(number: i64) -> CommandRow {
    CommandRow {
        id: ExecId::random(),
        kind: CommandKind::Command,
        command: "echo".into(),
        args: vec!["x".repeat(200)],
        truncated: false,
        cwd: None,
        user: None,
        tag: None,
        started_at: number,
        ended: None,
        output_bytes: 0,
    }
}

async fn start(settings: &[&str]) -> (Postgres, PostgresUrl, Store) {
    let server = Postgres::start(Durability::Synced, settings);
    let url: PostgresUrl = server.database().parse().unwrap();
    let store = Store::connect(&url).await.unwrap();
    (server, url, store)
}

/// Inserts a row and, as after the create in the runtime, updates it. Only then is the create acknowledged.
async fn create(store: &Store, row: &SandboxRow) -> crate::Result<()> {
    store.insert_sandbox(row, Some(1_000_000), None).await?;
    store.update_sandbox(row, "running", 1).await
}

/// Whether the row was lost before the update: the insert alone does not wait for the disk.
fn is_undone(error: &Error) -> bool {
    matches!(error, Error::Database(sqlx::Error::RowNotFound))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kill_during_creates_loses_nothing_acknowledged() {
    let (mut server, _, store) = start(&[]).await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let acknowledged = Arc::new(Mutex::new(HashSet::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..6)
        .map(|number| {
            let (store, org) = (store.clone(), org.clone());
            let (acknowledged, stop) = (Arc::clone(&acknowledged), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let row = row(&org, number);
                    match create(&store, &row).await {
                        Ok(()) => drop(acknowledged.lock().await.insert(row.id)),
                        Err(error) => {
                            assert!(error.is_unavailable() || is_undone(&error), "{error:?}");
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
            })
        })
        .collect();
    for round in 1..=2 {
        let wanted = acknowledged.lock().await.len() + 50;
        eventually("creates succeed", async || {
            (acknowledged.lock().await.len() >= wanted).then_some(())
        })
        .await;
        if round == 1 {
            server.kill();
            server.run();
        }
    }
    // A shutdown in good order, which other connections see as an error of the server.
    server.restart();
    let wanted = acknowledged.lock().await.len() + 50;
    eventually("creates succeed again", async || {
        (acknowledged.lock().await.len() >= wanted).then_some(())
    })
    .await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let found = store.active_sandboxes().await.unwrap();
    let found: HashSet<_> = found.into_iter().map(|row| row.id).collect();
    let acknowledged = acknowledged.lock().await;
    assert!(acknowledged.is_subset(&found));
    // Each row has its event, with a number.
    let events = store.events(&org.id, None, 0, 1_000_000).await.unwrap();
    let created = events.iter().filter(|event| event.kind == "created");
    assert_eq!(created.count(), found.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn history_is_complete_although_the_server_was_killed() {
    let (mut server, _, store) = start(&[]).await;
    let session = SessionId::random();
    let (writing, of) = (store.clone(), session.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    // Each batch is repeated until it succeeds.
    let writer = tokio::spawn(async move {
        let mut written = 0;
        while !stopped.load(Ordering::Relaxed) {
            let rows: Vec<CommandRow> = (0..4000).map(command).collect();
            while let Err(error) = writing.upsert_commands(&of, &rows).await {
                assert!(error.is_unavailable(), "{error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            written += 4000;
        }
        written
    });
    eventually("rows arrive", async || {
        let count = store.count_commands(&session, CommandKind::Command).await;
        (count.unwrap() > 8000).then_some(())
    })
    .await;
    server.kill();
    server.run();
    stop.store(true, Ordering::Relaxed);
    let written: i64 = writer.await.unwrap();
    let count = store.count_commands(&session, CommandKind::Command).await;
    assert_eq!(count.unwrap(), written);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn second_start_completes_a_migration_that_was_killed() {
    let mut server = Postgres::start(Durability::Synced, &[]);
    for wait in [5, 15, 30] {
        let url: PostgresUrl = server.database().parse().unwrap();
        let target = url.clone();
        let opening = tokio::spawn(async move { Store::connect(&target).await });
        tokio::time::sleep(Duration::from_millis(wait)).await;
        server.kill();
        let _ = opening.await.unwrap();
        server.run();
        let store = Store::connect(&url).await.unwrap();
        store.insert_org(&org("one")).await.unwrap();
        store.close().await;
    }
}

#[tokio::test]
async fn exhausted_connections_are_reported_as_unavailable() {
    let settings = ["max_connections=12", "superuser_reserved_connections=0"];
    let (_server, url, store) = start(&settings).await;
    // The store keeps the connections that it has: take them too.
    let mut held = Vec::new();
    while let Ok(connection) = PgConnection::connect_with(&url.options()).await {
        held.push(connection);
    }
    let error = Store::connect(&url).await.unwrap_err();
    assert!(
        matches!(error, Error::Connect(ConnectProblem::TooManyConnections, _)),
        "{error:?}"
    );
    assert!(error.is_unavailable());
    let calls: Vec<_> = (0..30)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.ping().await })
        })
        .collect();
    for call in calls {
        if let Err(error) = call.await.unwrap() {
            assert!(error.is_unavailable(), "{error:?}");
        }
    }
    held.clear();
    eventually("it works again", async || store.ping().await.ok()).await;
}

#[tokio::test]
async fn stopped_server_and_long_lock_are_reported_as_unavailable() {
    let (server, url, store) = start(&[]).await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let mut other = PgConnection::connect_with(&url.options()).await.unwrap();
    let mut lock = other.begin().await.unwrap();
    sqlx::query("SELECT id FROM orgs FOR UPDATE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let begin = Instant::now();
    let error = store.insert_sandbox(&row(&org, 1), Some(9), None).await;
    let error = error.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    lock.rollback().await.unwrap();
    store
        .insert_sandbox(&row(&org, 1), Some(9), None)
        .await
        .unwrap();

    server.signal("STOP");
    let error = store.ping().await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(begin.elapsed() < Duration::from_secs(40));
    server.signal("CONT");
    eventually("it works again", async || store.ping().await.ok()).await;
    assert_eq!(store.active_sandboxes().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_loses_nothing_acknowledged() {
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 220 << 20);
    std::fs::set_permissions(
        scratch.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let place = disk.path().join("postgres");
    std::fs::create_dir(&place).unwrap();
    let settings = ["max_wal_size=32MB", "min_wal_size=32MB"];
    let mut server = Postgres::start_in(&place, &settings);
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1; 40 << 20]).unwrap();
    let url: PostgresUrl = server.database().parse().unwrap();
    let store = Store::connect(&url).await.unwrap();
    let session = SessionId::random();
    let mut acknowledged = 0;
    let error = loop {
        let rows: Vec<CommandRow> = (0..2000).map(command).collect();
        match store.upsert_commands(&session, &rows).await {
            Ok(()) => acknowledged += 2000,
            Err(error) => break error,
        }
    };
    // If the log of PostgreSQL cannot grow, the server ends.
    assert!(error.is_disk_full() || error.is_unavailable(), "{error:?}");
    std::fs::remove_file(&ballast).unwrap();
    server.ensure_running();
    eventually("it works again", async || {
        let written = store.upsert_commands(&session, &[command(1)]).await;
        written.ok()
    })
    .await;
    let count = store.count_commands(&session, CommandKind::Command).await;
    assert!(count.unwrap() > acknowledged);
    store.close().await;
    server.stop();
    drop(disk);
}
