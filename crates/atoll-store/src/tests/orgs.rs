use atoll_model::{
    CommandKind, CommandRow, ExecId, Idempotency, Key, KeyId, Org, OrgId, SandboxState, Scope,
};

use super::{Backend, on_both, org, row};
use crate::{Error, NewKey, OrgRemoval, Store};

fn key(org: &Org, digits: &str) -> NewKey {
    let key = Key {
        id: KeyId::random(),
        org: org.id.clone(),
        name: "k".into(),
        prefix: "00000000".into(),
        scope: Scope::Sandboxes,
        created_at: 1,
        expires_at: None,
        last_used_at: None,
        revoked_at: None,
    };
    let hash = digits.repeat(32);
    NewKey { key, hash }
}

fn command() -> CommandRow {
    CommandRow {
        id: ExecId::random(),
        kind: CommandKind::Command,
        command: "true".into(),
        args: Vec::new(),
        truncated: false,
        cwd: None,
        user: None,
        tag: None,
        started_at: 1,
        ended: None,
        output_bytes: 0,
    }
}

async fn events(store: &Store, org: &OrgId) -> usize {
    store.events(org, None, 0, 100).await.unwrap().len()
}

async fn removed_org_leaves_no_rows(backend: Backend) {
    let store = backend.open().await;
    let (mut one, other) = (org("one"), org("other"));
    let idempotency = Idempotency {
        key: "k".into(),
        fingerprint: "f".into(),
    };
    let mut sandboxes = Vec::new();
    for (org, digits) in [(&one, "aa"), (&other, "bb")] {
        store.insert_org(org).await.unwrap();
        assert!(store.insert_key(&key(org, digits), 9).await.unwrap());
        let sandbox = row(org, 1);
        let made = store
            .insert_sandbox(&sandbox, None, Some(&idempotency))
            .await;
        made.unwrap();
        let rows = [command()];
        store
            .upsert_commands(&sandbox.session, &rows)
            .await
            .unwrap();
        sandboxes.push(sandbox);
    }
    let refused = store.remove_org(&one.id).await.unwrap();
    assert_eq!(refused, OrgRemoval::HasSandboxes(1));
    let mut sandbox = sandboxes.remove(0);
    sandbox.state = SandboxState::Stopped;
    sandbox.deleted_at = Some(2);
    store.update_sandbox(&sandbox, "deleted", 2).await.unwrap();
    let OrgRemoval::Removed { keys, sessions } = store.remove_org(&one.id).await.unwrap() else {
        panic!("it has no sandboxes");
    };
    assert_eq!(keys.len(), 1);
    assert_eq!(sessions, [sandbox.session.to_string()]);
    store.remove_history(&one.id, &sessions).await.unwrap();
    assert_eq!(store.org(&one.id).await.unwrap(), None);
    assert_eq!(store.key_by_hash(&"aa".repeat(32)).await.unwrap(), None);
    assert_eq!(store.find_idempotent(&one.id, "k").await.unwrap(), None);
    let name = sandbox.id.as_str();
    assert_eq!(store.session(&one.id, name).await.unwrap(), None);
    let kept = async |row: &crate::SandboxRow| {
        let count = store.count_commands(&row.session, CommandKind::Command);
        (count.await.unwrap(), events(&store, &row.org).await)
    };
    assert_eq!(kept(&sandbox).await, (0, 0));
    assert_eq!(kept(&sandboxes[0]).await, (1, 1));
    assert!(store.key_by_hash(&"bb".repeat(32)).await.unwrap().is_some());

    // Later inserts for the org fail, and its name is free.
    let late = store.insert_sandbox(&row(&one, 3), None, None).await;
    assert!(matches!(late, Err(Error::OrgNotFound)), "{late:?}");
    let late = store.insert_key(&key(&one, "cc"), 9).await;
    assert!(matches!(late, Err(Error::OrgNotFound)), "{late:?}");
    let second = store.remove_org(&one.id).await.unwrap();
    assert_eq!(second, OrgRemoval::NotFound);
    one.id = OrgId::random();
    store.insert_org(&one).await.unwrap();
}
on_both!(removed_org_leaves_no_rows);

async fn create_and_removal_of_its_org_exclude_each_other(backend: Backend) {
    let store = backend.open().await;
    for number in 0..50 {
        let org = org(&format!("org {number}"));
        store.insert_org(&org).await.unwrap();
        let sandbox = row(&org, 1);
        let (adding, removing) = (store.clone(), store.clone());
        let id = org.id.clone();
        let adding = tokio::spawn(async move { adding.insert_sandbox(&sandbox, None, None).await });
        let removing = tokio::spawn(async move { removing.remove_org(&id).await.unwrap() });
        match (adding.await.unwrap(), removing.await.unwrap()) {
            (Ok(_), OrgRemoval::HasSandboxes(1)) => {
                assert!(store.org(&org.id).await.unwrap().is_some());
            }
            (Err(Error::OrgNotFound), OrgRemoval::Removed { .. }) => {
                assert_eq!(store.org(&org.id).await.unwrap(), None);
            }
            both => panic!("{both:?}"),
        }
    }
}
on_both!(create_and_removal_of_its_org_exclude_each_other);
