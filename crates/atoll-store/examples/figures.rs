//! Figures of PostgreSQL: history rows per second, creates per second, and the duration of a copy.
//!
//! `deploy/with-postgres cargo run --release -p atoll-store --example figures -- 1000000`

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use std::collections::BTreeMap;
use std::time::Instant;

use atoll_model::{
    CommandKind, CommandRow, ExecId, ExecStatus, Lifetime, Limits, Network, NetworkPolicy, Org,
    OrgId, PortAccess, SandboxId, SandboxState, SessionId,
};
use atoll_store::{PostgresUrl, SandboxRow, Store, transfer};
use atoll_testkit::PostgresDatabase;

fn command(number: i64) -> CommandRow {
    CommandRow {
        id: ExecId::random(),
        kind: CommandKind::Command,
        command: "python3".into(),
        args: vec!["-c".into(), "print(6*7)".into()],
        truncated: false,
        cwd: Some("/home/user".into()),
        user: Some("user".into()),
        tag: None,
        started_at: number,
        ended: Some((number + 5, ExecStatus::default())),
        output_bytes: 3,
    }
}

fn sandbox(org: &Org, number: i64) -> SandboxRow {
    SandboxRow {
        id: SandboxId::random(),
        session: SessionId::random(),
        org: org.id.clone(),
        alias: None,
        template: "base".into(),
        state: SandboxState::Creating,
        reason: None,
        error: None,
        metadata: BTreeMap::new(),
        limits: Limits::default(),
        network: Network::Internet,
        policy: NetworkPolicy::default(),
        port_access: PortAccess::Private,
        durable: false,
        lifetime: Lifetime::default(),
        created_at: number,
        started_at: None,
        end_at: None,
        time_left: None,
        stopped_at: None,
        deleted_at: None,
    }
}

#[tokio::main]
async fn main() {
    let rows = std::env::args().nth(1);
    let rows = rows.map_or(100_000, |rows| rows.parse::<i64>().unwrap());
    let database = PostgresDatabase::new();
    let url: PostgresUrl = database.url.parse().unwrap();
    let store = Store::connect(&url).await.unwrap();

    let org = Org {
        id: OrgId::random(),
        name: "figures".into(),
        max_sandboxes: None,
        max_timeout: None,
        created_at: 1,
    };
    store.insert_org(&org).await.unwrap();
    for max in [None, Some(1_000_000)] {
        let mut times = Vec::new();
        for number in 0..2000 {
            let row = sandbox(&org, number);
            let begin = Instant::now();
            store.insert_sandbox(&row, max, None).await.unwrap();
            times.push(begin.elapsed());
        }
        times.sort();
        println!(
            "insert_sandbox, quota {max:?}: p50 {:?}, p99 {:?}",
            times[1000], times[1980]
        );
    }

    let session = SessionId::random();
    let commands: Vec<CommandRow> = (0..200_000).map(command).collect();
    let begin = Instant::now();
    for commands in commands.chunks(1000) {
        store.upsert_commands(&session, commands).await.unwrap();
    }
    let rate = 200_000.0 / begin.elapsed().as_secs_f64();
    println!("upsert_commands: {rate:.0} rows a second, 1000 in a call");
    store.close().await;

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("atoll.db");
    let source = Store::open(&file).await.unwrap();
    for start in (0..rows).step_by(100_000) {
        let commands: Vec<CommandRow> = (start..rows.min(start + 100_000)).map(command).collect();
        source.upsert_commands(&session, &commands).await.unwrap();
    }
    source.close().await;
    let url: PostgresUrl = database.sibling().parse().unwrap();
    for name in ["transfer", "transfer again"] {
        let begin = Instant::now();
        let copied = transfer(&file, &url, |_| {}).await.unwrap();
        let commands = copied.iter().find(|table| table.table == "commands");
        println!("{name}: {commands:?} in {:?}", begin.elapsed());
    }
}
