//! Facts about PostgreSQL alone: concurrency of several processes, order of events, and databases that cannot be used.

use std::time::Duration;

use atoll_model::{EventId, InstanceId, Org, OrgId};
use atoll_testkit::PostgresDatabase;
use sqlx::{Connection as _, PgConnection};

use super::{org, row};
use crate::{
    ConnectProblem, DatabaseFile, DatabaseUrl, Error, PostgresUrl, QuotaClaim, Store,
    inspect_postgres,
};

fn url(database: &PostgresDatabase) -> PostgresUrl {
    database.url.parse().unwrap()
}

async fn open(database: &PostgresDatabase) -> Store {
    Store::connect(&url(database)).await.unwrap()
}

async fn raw(database: &PostgresDatabase) -> PgConnection {
    PgConnection::connect_with(&url(database).options())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn quota_holds_across_processes() {
    let database = PostgresDatabase::new();
    let stores = [open(&database).await, open(&database).await];
    let org = Org {
        max_sandboxes: Some(50),
        ..org("small")
    };
    stores[0].insert_org(&org).await.unwrap();
    let claims = (0..200).map(|number| {
        let store = stores[usize::try_from(number % 2).unwrap()].clone();
        let row = row(&org, number);
        tokio::spawn(async move { store.insert_sandbox(&row, Some(50), None).await.unwrap() })
    });
    let mut granted = 0;
    for claim in claims.collect::<Vec<_>>() {
        granted += usize::from(claim.await.unwrap() == QuotaClaim::Granted);
    }
    assert_eq!(granted, 50);
    assert_eq!(stores[1].active_sandboxes().await.unwrap().len(), 50);
}

#[tokio::test]
async fn concurrent_opens_migrate_once() {
    let database = PostgresDatabase::new();
    let opens = (0..6).map(|_| {
        let url = url(&database);
        tokio::spawn(async move { Store::connect(&url).await })
    });
    for open in opens.collect::<Vec<_>>() {
        open.await.unwrap().unwrap();
    }
}

/// Inserts an event in an open transaction.
async fn insert_event(connection: &mut PgConnection, org: &OrgId, kind: &str) {
    let query = sqlx::query(crate::events::INSERT)
        .bind(EventId::random().as_str().to_owned())
        .bind(org.as_str())
        .bind(atoll_model::SandboxId::random().as_str().to_owned())
        .bind(kind)
        .bind("{}")
        .bind(1_i64);
    query.execute(connection).await.unwrap();
}

#[tokio::test]
async fn reader_misses_no_event_of_transactions_that_commit_out_of_order() {
    let database = PostgresDatabase::new();
    let store = open(&database).await;
    let org = OrgId::random();
    let (mut early, mut late) = (raw(&database).await, raw(&database).await);
    let (mut early, mut late) = (early.begin().await.unwrap(), late.begin().await.unwrap());
    // The event that is inserted first is committed last.
    insert_event(&mut early, &org, "early").await;
    insert_event(&mut late, &org, "late").await;
    late.commit().await.unwrap();
    let mut seen = Vec::new();
    let mut cursor = 0;
    let mut early = Some(early);
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while seen.len() < 2 {
        assert!(std::time::Instant::now() < deadline, "{seen:?}");
        for event in store.events(&org, None, cursor, 10).await.unwrap() {
            assert!(event.sequence > cursor);
            cursor = event.sequence;
            seen.push(event.kind);
        }
        if seen.len() == 1
            && let Some(early) = early.take()
        {
            early.commit().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(seen, ["late", "early"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_of_two_processes_see_all_events_in_the_same_order() {
    let database = PostgresDatabase::new();
    let stores = [open(&database).await, open(&database).await];
    let org = org("busy");
    stores[0].insert_org(&org).await.unwrap();
    let read = |store: Store| {
        let org = org.id.clone();
        tokio::spawn(async move {
            let mut changes = store.subscribe_changes();
            let (mut seen, mut cursor) = (Vec::new(), 0);
            while seen.len() < 300 {
                let events = store.events(&org, None, cursor, 7).await.unwrap();
                if let Some(last) = events.last() {
                    cursor = last.sequence;
                } else {
                    changes.changed().await.unwrap();
                }
                seen.extend(events.into_iter().map(|event| event.sandbox));
            }
            seen
        })
    };
    let readers = [read(stores[0].clone()), read(stores[1].clone())];
    let writers = (0..300).map(|number| {
        let store = stores[usize::try_from(number % 2).unwrap()].clone();
        let row = row(&org, number);
        tokio::spawn(async move { store.insert_sandbox(&row, None, None).await.unwrap() })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let [one, other] = readers;
    assert_eq!(one.await.unwrap(), other.await.unwrap());
}

#[tokio::test]
async fn change_of_another_process_notifies() {
    let database = PostgresDatabase::new();
    let (writer, reader) = (open(&database).await, open(&database).await);
    let org = org("one");
    writer.insert_org(&org).await.unwrap();
    let mut changes = reader.subscribe_changes();
    // The listener connects in the background, and reports that.
    changes.changed().await.unwrap();
    writer
        .insert_sandbox(&row(&org, 1), None, None)
        .await
        .unwrap();
    while reader.events(&org.id, None, 0, 1).await.unwrap().is_empty() {
        let changed = tokio::time::timeout(Duration::from_secs(10), changes.changed());
        changed.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn event_of_a_process_that_ended_is_numbered_by_another() {
    let database = PostgresDatabase::new();
    let store = open(&database).await;
    let org = OrgId::random();
    let mut changes = store.subscribe_changes();
    changes.changed().await.unwrap();
    insert_event(&mut raw(&database).await, &org, "left").await;
    while store.events(&org, None, 0, 1).await.unwrap().is_empty() {
        let changed = tokio::time::timeout(Duration::from_secs(10), changes.changed());
        changed.await.unwrap().unwrap();
    }
}

/// Opening must fail for this reason and change nothing.
async fn refused(url: &str) -> Error {
    let url: PostgresUrl = url.parse().unwrap();
    let inspected = inspect_postgres(&url).await.unwrap_err();
    let opened = Store::connect(&url).await.unwrap_err();
    assert_eq!(inspected.to_string(), opened.to_string());
    opened
}

fn problem(error: &Error) -> ConnectProblem {
    match error {
        Error::Connect(problem, _) => *problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn unusable_database_is_refused_with_the_reason() {
    let database = PostgresDatabase::new();
    let (server, name) = database.url.rsplit_once('/').unwrap();
    let port = server.rsplit_once(':').unwrap().1;
    let missing = refused(&format!("{server}/none_{name}")).await;
    assert_eq!(problem(&missing), ConnectProblem::NoDatabase);
    let closed = refused("postgres://atoll@127.0.0.1:1/db").await;
    assert_eq!(problem(&closed), ConnectProblem::Unreachable);
    assert!(closed.is_unavailable());
    let no_tls = refused(&format!("{}?sslmode=require", database.url)).await;
    assert_eq!(problem(&no_tls), ConnectProblem::Tls);

    let user = format!("user_{name}");
    let create = format!("CREATE ROLE {user} LOGIN PASSWORD 'right'");
    database.execute(&create);
    let login = |password: &str| format!("postgres://{user}:{password}@127.0.0.1:{port}/{name}");
    assert_eq!(
        problem(&refused(&login("wrong")).await),
        ConnectProblem::Credentials
    );
    // Users may not create tables in `public`.
    assert_eq!(
        problem(&refused(&login("right")).await),
        ConnectProblem::Privilege
    );
    let read_only = format!(
        "{}?options=-c%20default_transaction_read_only=on",
        database.url
    );
    assert_eq!(
        problem(&refused(&read_only).await),
        ConnectProblem::ReadOnly
    );
    assert_eq!(
        inspect_postgres(&url(&database)).await.unwrap(),
        DatabaseFile::Empty
    );

    // Another program's tables.
    database.execute("CREATE TABLE orgs (id INT)");
    assert!(matches!(refused(&database.url).await, Error::Foreign));
    database.execute("DROP TABLE orgs");
    open(&database).await.close().await;
    // A user that may read only.
    database.execute(&format!(
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"
    ));
    assert_eq!(
        problem(&refused(&login("right")).await),
        ConnectProblem::Privilege
    );
    database.execute(&format!(
        "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {user}; DROP ROLE {user}"
    ));
    database.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'later', true, '', 0)",
    );
    assert!(matches!(refused(&database.url).await, Error::Newer));
}

#[tokio::test]
async fn inspect_reads_the_identity() {
    let database = PostgresDatabase::new();
    let store = open(&database).await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let sandbox = row(&org, 1);
    store.insert_sandbox(&sandbox, None, None).await.unwrap();
    let (first, second) = (InstanceId::random(), InstanceId::random());
    assert_eq!(store.claim_instance(&first).await.unwrap(), first);
    assert_eq!(store.claim_instance(&second).await.unwrap(), first);
    let found = inspect_postgres(&url(&database)).await.unwrap();
    let DatabaseFile::Database(identity) = found else {
        panic!("{found:?}");
    };
    assert_eq!(identity.instance, Some(first));
    assert!(identity.sandboxes.contains(sandbox.id.as_str()));
}

#[test]
fn wrong_url_is_refused_with_the_reason() {
    for (text, expected) in [
        ("mysql://host/db", "scheme"),
        ("sqlite:", "no path"),
        ("postgres:host", "//"),
        ("postgres://u:secret@host:port/db", "port"),
        ("postgres://u:secret@host", "no database"),
        ("postgres://u:secret@host/db?sslmod=require", "sslmod"),
        ("postgres://u:secret@host/db?sslmode=allow", "sslmode"),
    ] {
        let error = text.parse::<DatabaseUrl>().unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let url: DatabaseUrl = "postgres://u:secret@host:7/db?sslmode=disable"
        .parse()
        .unwrap();
    assert_eq!(url.to_string(), "postgres://u@host:7/db");
    assert!(!format!("{url:?}").contains("secret"));
}
