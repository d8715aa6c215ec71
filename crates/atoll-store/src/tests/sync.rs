//! Every write is followed by a sync.

use std::time::Duration;

use atoll_model::InstanceId;

use super::{Backend, org, row};
use crate::{ClockRecord, Store};

async fn synced(store: &Store) {
    while !store.oldest_unsynced().is_zero() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn record(at: i64) -> ClockRecord {
    ClockRecord {
        at,
        boottime: 1,
        boot: "boot".into(),
        difference: 0,
        held_until: None,
    }
}

/// The syncing task shares the only thread of the test: it cannot run between a write and the assertion.
#[tokio::test]
async fn every_kind_of_write_starts_a_sync() {
    let backend = Backend::sqlite();
    let store = backend.open().await;
    let org = org("first");
    store.insert_org(&org).await.unwrap();
    let sandbox = row(&org, 1);
    store.insert_sandbox(&sandbox, None, None).await.unwrap();
    for write in [
        "record_clock",
        "hold_deadlines",
        "shift_deadlines",
        "claim_instance",
        "adopt_sandbox",
    ] {
        synced(&store).await;
        let rows = [sandbox.clone()];
        match write {
            "record_clock" => store.record_clock(&record(1)).await.unwrap(),
            "hold_deadlines" => store.hold_deadlines(&record(2), &rows).await.unwrap(),
            "shift_deadlines" => store.shift_deadlines(5, &record(3), &rows).await.unwrap(),
            "claim_instance" => drop(store.claim_instance(&InstanceId::random()).await.unwrap()),
            _ => store.adopt_sandbox(&row(&org, 2), 2).await.unwrap(),
        }
        assert!(!store.oldest_unsynced().is_zero(), "{write}");
    }
}
