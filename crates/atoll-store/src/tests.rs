#![allow(clippy::unwrap_used, reason = "tests")]

mod faults;
mod history;
mod instance;
mod orgs;
mod postgres;
mod sync;
mod transfer;

use std::collections::BTreeMap;

use atoll_model::{
    Key, KeyId, Lifetime, Limits, Network, NetworkPolicy, Org, OrgId, PageRequest, PortAccess,
    SandboxId, SandboxState, Scope, SessionId,
};

use atoll_testkit::PostgresDatabase;

use crate::{DatabaseUrl, Error, NewKey, QuotaClaim, SandboxRow, Store};

/// A database of one of the two kinds, removed when dropped.
enum Backend {
    Sqlite(tempfile::TempDir),
    Postgres(PostgresDatabase),
}

impl Backend {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn postgres() -> Self {
        Self::Postgres(PostgresDatabase::new())
    }

    fn url(&self) -> DatabaseUrl {
        match self {
            Self::Sqlite(directory) => DatabaseUrl::Sqlite(directory.path().join("atoll.db")),
            Self::Postgres(database) => database.url.parse().unwrap(),
        }
    }

    async fn open(&self) -> Store {
        Store::open_url(&self.url()).await.unwrap()
    }
}

/// Runs a test on both databases.
macro_rules! on_both {
    ($name:ident) => {
        mod $name {
            use crate::tests::Backend;

            #[tokio::test]
            async fn sqlite() {
                super::$name(Backend::sqlite()).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$name(Backend::postgres()).await;
            }
        }
    };
}
pub(crate) use on_both;

fn org(name: &str) -> Org {
    Org {
        id: OrgId::random(),
        name: name.into(),
        max_sandboxes: Some(5),
        max_timeout: None,
        created_at: 7,
    }
}

fn row(org: &Org, created_at: i64) -> SandboxRow {
    SandboxRow {
        id: SandboxId::random(),
        session: SessionId::random(),
        org: org.id.clone(),
        alias: None,
        template: "base".into(),
        state: SandboxState::Creating,
        reason: None,
        error: None,
        metadata: BTreeMap::from([("a".into(), "b".into())]),
        limits: Limits::default(),
        network: Network::Internet,
        policy: NetworkPolicy::default(),
        port_access: PortAccess::Public,
        durable: false,
        lifetime: Lifetime::default(),
        created_at,
        started_at: None,
        end_at: None,
        time_left: None,
        stopped_at: None,
        deleted_at: None,
    }
}

async fn rows_survive_a_restart(backend: Backend) {
    let store = backend.open().await;
    let org = org("first");
    store.insert_org(&org).await.unwrap();
    let mut sandbox = row(&org, 10);
    assert_eq!(
        store.insert_sandbox(&sandbox, Some(1), None).await.unwrap(),
        QuotaClaim::Granted
    );
    sandbox.state = SandboxState::Running;
    sandbox.end_at = Some(99);
    sandbox.alias = Some("web".into());
    store.update_sandbox(&sandbox, "changed", 1).await.unwrap();
    store.close().await;
    let store = backend.open().await;
    assert_eq!(store.orgs().await.unwrap(), std::slice::from_ref(&org));
    for name in [sandbox.id.as_str(), "web"] {
        assert_eq!(
            store.sandbox(&org.id, name).await.unwrap().as_ref(),
            Some(&sandbox)
        );
    }
    assert_eq!(store.active_sandboxes().await.unwrap(), [sandbox]);
}
on_both!(rows_survive_a_restart);

async fn sandbox_of_another_org_is_not_found(backend: Backend) {
    let store = backend.open().await;
    let (one, other) = (org("one"), org("other"));
    store.insert_org(&one).await.unwrap();
    store.insert_org(&other).await.unwrap();
    let sandbox = row(&one, 1);
    store.insert_sandbox(&sandbox, None, None).await.unwrap();
    assert_eq!(
        store.sandbox(&other.id, sandbox.id.as_str()).await.unwrap(),
        None
    );
    let page = PageRequest {
        limit: 100,
        cursor: None,
    };
    let found = store.sandboxes(&other.id, true, None, &page).await;
    assert_eq!(found.unwrap(), []);
    let name = sandbox.session.as_str();
    assert_eq!(store.session(&other.id, name).await.unwrap(), None);
}
on_both!(sandbox_of_another_org_is_not_found);

async fn concurrent_creates_never_exceed_the_quota(backend: Backend) {
    let store = backend.open().await;
    let org = org("small");
    store.insert_org(&org).await.unwrap();
    let claims = (0..200).map(|number| {
        let (store, row) = (store.clone(), row(&org, number));
        tokio::spawn(async move { store.insert_sandbox(&row, Some(10), None).await.unwrap() })
    });
    let mut granted = 0;
    for claim in claims.collect::<Vec<_>>() {
        granted += usize::from(claim.await.unwrap() == QuotaClaim::Granted);
    }
    assert_eq!(granted, 10);
    // A failed or deleted sandbox does not count.
    let mut first = store.active_sandboxes().await.unwrap().remove(0);
    first.state = SandboxState::Failed;
    store.update_sandbox(&first, "changed", 1).await.unwrap();
    assert_eq!(
        store
            .insert_sandbox(&row(&org, 1), Some(10), None)
            .await
            .unwrap(),
        QuotaClaim::Granted
    );
    assert_eq!(
        store
            .insert_sandbox(&row(&org, 1), Some(10), None)
            .await
            .unwrap(),
        QuotaClaim::Exceeded
    );
}
on_both!(concurrent_creates_never_exceed_the_quota);

async fn alias_is_free_after_its_sandbox_is_deleted(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let named = || SandboxRow {
        alias: Some("web".into()),
        ..row(&org, 1)
    };
    let mut first = named();
    store.insert_sandbox(&first, None, None).await.unwrap();
    let refused = store
        .insert_sandbox(&named(), None, None)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::AlreadyExists("the alias")),
        "{refused:?}"
    );
    first.deleted_at = Some(5);
    store.update_sandbox(&first, "changed", 1).await.unwrap();
    store.insert_sandbox(&named(), None, None).await.unwrap();
}
on_both!(alias_is_free_after_its_sandbox_is_deleted);

async fn pages_are_complete_and_disjoint(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    for number in 0..25 {
        store
            .insert_sandbox(&row(&org, number / 4), None, None)
            .await
            .unwrap();
    }
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = PageRequest { limit: 7, cursor };
        let rows = store.sandboxes(&org.id, false, None, &page).await.unwrap();
        let Some(last) = rows.last() else { break };
        cursor = Some((last.created_at, last.id.to_string()));
        seen.extend(rows);
    }
    assert_eq!(seen.len(), 25);
    assert!(seen.is_sorted_by(
        |one, two| (one.created_at, one.id.as_str()) > (two.created_at, two.id.as_str())
    ));
}
on_both!(pages_are_complete_and_disjoint);

async fn key_is_found_by_hash_and_revoked_once(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let key = Key {
        id: KeyId::random(),
        org: org.id.clone(),
        name: "laptop".into(),
        prefix: "0123abcd".into(),
        scope: Scope::Sandboxes,
        created_at: 3,
        expires_at: Some(50),
        last_used_at: None,
        revoked_at: None,
    };
    let hash = "aa".repeat(32);
    let new = NewKey {
        key: key.clone(),
        hash: hash.clone(),
    };
    assert!(store.insert_key(&new, 1).await.unwrap());
    let mut other = NewKey {
        hash: "cc".repeat(32),
        ..new
    };
    other.key.id = KeyId::random();
    assert!(!store.insert_key(&other, 1).await.unwrap());
    assert!(store.insert_key(&other, 2).await.unwrap());
    assert_eq!(store.prune_keys(51, 9).await.unwrap(), 2);
    other.key.scope = Scope::Admin;
    assert!(store.insert_key(&other, 1).await.unwrap());
    assert_eq!(store.prune_keys(51, 9).await.unwrap(), 0);
    let new = NewKey {
        key: key.clone(),
        hash: hash.clone(),
    };
    assert!(store.insert_key(&new, 2).await.unwrap());
    assert_eq!(store.key_by_hash(&hash).await.unwrap(), Some(key.clone()));
    assert_eq!(store.key_by_hash("bb").await.unwrap(), None);
    store.touch_key(&key.id, 9).await.unwrap();
    assert!(store.revoke_key(&org.id, &key.id, 11).await.unwrap());
    assert!(!store.revoke_key(&org.id, &key.id, 12).await.unwrap());
    let found = store.keys(&org.id).await.unwrap();
    let found = found.iter().find(|found| found.id == key.id).unwrap();
    assert_eq!((found.last_used_at, found.revoked_at), (Some(9), Some(11)));
    assert_eq!(store.prune_keys(11, 9).await.unwrap(), 0);
    assert_eq!(store.prune_keys(12, 9).await.unwrap(), 1);
}
on_both!(key_is_found_by_hash_and_revoked_once);

async fn events_are_ordered_and_visible_only_to_their_org(backend: Backend) {
    let store = backend.open().await;
    let (one, other) = (org("one"), org("other"));
    store.insert_org(&one).await.unwrap();
    store.insert_org(&other).await.unwrap();
    let mut sandbox = row(&one, 1);
    store.insert_sandbox(&sandbox, None, None).await.unwrap();
    store
        .insert_sandbox(&row(&other, 2), None, None)
        .await
        .unwrap();
    sandbox.state = SandboxState::Running;
    store.update_sandbox(&sandbox, "running", 3).await.unwrap();
    let events = store.events(&one.id, None, 0, 10).await.unwrap();
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["created", "running"]);
    assert_eq!(events[1].payload["state"], "running");
    let rest = store
        .events(&one.id, Some(&sandbox.id), events[0].sequence, 10)
        .await
        .unwrap();
    assert_eq!(rest, events[1..]);
    assert_eq!(store.last_event().await.unwrap(), events[1].sequence);
    assert_eq!(store.prune_events(3, 1).await.unwrap(), 1);
    assert_eq!(store.prune_events(3, 9).await.unwrap(), 1);
}
on_both!(events_are_ordered_and_visible_only_to_their_org);

async fn repeated_idempotency_key_finds_the_first_create(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    let sandbox = row(&org, 1);
    let idempotency = atoll_model::Idempotency {
        key: "k".into(),
        fingerprint: "f".into(),
    };
    store
        .insert_sandbox(&sandbox, Some(1), Some(&idempotency))
        .await
        .unwrap();
    let refused = store
        .insert_sandbox(&row(&org, 2), None, Some(&idempotency))
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::IdempotencyKeyTaken), "{refused:?}");
    let (fingerprint, found) = store.find_idempotent(&org.id, "k").await.unwrap().unwrap();
    assert_eq!((fingerprint.as_str(), &found.id), ("f", &sandbox.id));
    // A create that exceeds the quota does not store its key.
    let other = atoll_model::Idempotency {
        key: "other".into(),
        ..idempotency
    };
    assert_eq!(
        store
            .insert_sandbox(&row(&org, 3), Some(1), Some(&other))
            .await
            .unwrap(),
        QuotaClaim::Exceeded
    );
    assert_eq!(store.find_idempotent(&org.id, "other").await.unwrap(), None);
    store.delete_idempotency_key(&sandbox.id).await.unwrap();
    assert_eq!(store.find_idempotent(&org.id, "k").await.unwrap(), None);
}
on_both!(repeated_idempotency_key_finds_the_first_create);

async fn failed_or_cancelled_write_leaves_nothing(backend: Backend) {
    let store = backend.open().await;
    let org = org("one");
    store.insert_org(&org).await.unwrap();
    // A create that exceeds the quota adds no event.
    let full = store.insert_sandbox(&row(&org, 1), Some(0), None).await;
    assert_eq!(full.unwrap(), QuotaClaim::Exceeded);
    assert_eq!(store.last_event().await.unwrap(), 0);
    let mut first = row(&org, 2);
    first.alias = Some("web".into());
    let claim = store.insert_sandbox(&first, None, None).await;
    assert_eq!(claim.unwrap(), QuotaClaim::Granted);
    let mut second = row(&org, 4);
    second.alias.clone_from(&first.alias);
    let taken = store.insert_sandbox(&second, None, None).await;
    assert!(matches!(taken, Err(Error::AlreadyExists(_))), "{taken:?}");
    // Cancel a create at different points.
    for wait in 0..200 {
        let (given_up, wait) = (row(&org, 5), std::time::Duration::from_micros(wait));
        let adding = store.insert_sandbox(&given_up, None, None);
        let _ = tokio::time::timeout(wait, adding).await;
    }
    let last = row(&org, 6);
    let claim = store.insert_sandbox(&last, None, None).await;
    assert_eq!(claim.unwrap(), QuotaClaim::Granted);
    // A server may still commit a create that was cancelled.
    let mut living = store.active_sandboxes().await.unwrap();
    for _ in 0..1000 {
        if i64::try_from(living.len()).unwrap() == store.last_event().await.unwrap() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        living = store.active_sandboxes().await.unwrap();
    }
    let events = store.last_event().await.unwrap();
    assert_eq!(i64::try_from(living.len()).unwrap(), events);
    assert!(living.contains(&first) && living.contains(&last));
}
on_both!(failed_or_cancelled_write_leaves_nothing);

#[tokio::test]
async fn databases_of_all_older_versions_are_migrated() {
    let all = sqlx::migrate!("migrations/sqlite");
    let versions: Vec<i64> = all.iter().map(|one| one.version).collect();
    let (newest, older) = versions.split_last().unwrap();
    for version in older.iter().copied() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("atoll.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true);
        let old = sqlx::SqlitePool::connect_with(options).await.unwrap();
        assert!(version < *newest);
        all.run_to(version, &old).await.unwrap();
        let (org, id) = (OrgId::random(), SandboxId::random());
        sqlx::query("INSERT INTO orgs (id, name, created_at) VALUES ($1, 'old', 1)")
            .bind(org.as_str())
            .execute(&old)
            .await
            .unwrap();
        let insert = "INSERT INTO sandboxes (id, session, org, template, state, metadata, limits, network, lifetime, created_at) \
             VALUES ($1, $2, $3, 'base', 'running', '{}', $4, 'none', $5, 2)";
        sqlx::query(insert)
            .bind(id.as_str())
            .bind(SessionId::random().as_str().to_owned())
            .bind(org.as_str())
            .bind(crate::encode(&Limits::default()))
            .bind(crate::encode(&Lifetime::default()))
            .execute(&old)
            .await
            .unwrap();
        old.close().await;
        let store = Store::open(&path).await.unwrap();
        let found = store.sandbox(&org, id.as_str()).await.unwrap().unwrap();
        assert_eq!(found.state, SandboxState::Running, "from {version}");
        assert_eq!(found.policy, NetworkPolicy::default());
        // Which interface created it is unknown, so its ports are closed.
        assert_eq!(found.port_access, PortAccess::Private);
        assert!(!found.durable);
        store.update_sandbox(&found, "changed", 3).await.unwrap();
        store.close().await;
    }
}
