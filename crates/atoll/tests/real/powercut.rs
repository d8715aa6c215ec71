//! Durability across power cuts. A server works on a disk that records every write; then the disk is restored to
//! two hundred possible states after a cut, and everything the server had confirmed must be there.

use std::fs;
use std::path::Path;
use std::time::Duration;

use atoll_model::{CommandKind, OrgId, PageRequest};
use atoll_store::Store;
use atoll_testkit::{Recorder, Scratch};
use serde_json::{Value, json};

use crate::api::{Client, Server};
use crate::harness::{DEADLINE, World, private};
use crate::restart::{Random, reboot};

/// Of each of two servers.
const CUTS: usize = 100;
/// Number of cuts that are followed by a start of the real server.
const BOOTS: usize = 6;
const ROUNDS: u64 = 6;
const DISK: usize = 192 << 20;
const LINES: usize = 40_000;
/// After so long everything acknowledged is on the disk.
const PROMISED: Duration = Duration::from_secs(1);

/// Something that must be there after a cut.
#[derive(Debug)]
enum Promise {
    Org(String),
    Key(String),
    /// A sandbox that ran, with the settings it had then, or later ones.
    Sandbox(String, u64),
    /// A command of it, as its history has it.
    History(String, String),
    /// A command of it that was acknowledged to a caller.
    Command(String, String),
    /// A sandbox with an acknowledged stop, and a file in it.
    Stopped(String, String),
    /// A file that a program in a durable sandbox synced.
    Synced(String, String),
}

/// The work of a server, and the position in the disk's log from which each result must survive.
struct Work<'a> {
    recorder: &'a Recorder,
    server: &'a Server,
    client: Client,
    promises: Vec<(usize, Promise)>,
    waiting: Vec<Promise>,
    /// Time until acknowledged changes were on the disk, for each wait.
    settled: Vec<Duration>,
}

impl Work<'_> {
    /// Records a change that is acknowledged now and durable some time later.
    fn soon(&mut self, promise: Promise) {
        self.waiting.push(promise);
    }

    /// Records a change that is durable from its acknowledgement on.
    fn now(&mut self, promise: Promise) {
        self.promises.push((self.recorder.position(), promise));
    }

    /// Waits until the server reports that all acknowledged changes are on the disk.
    async fn settle(&mut self) {
        let begin = tokio::time::Instant::now();
        let until = tokio::time::Instant::now() + DEADLINE;
        while !is_synced(&self.server.metrics().await) {
            assert!(tokio::time::Instant::now() < until, "it is not synced");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.settled.push(begin.elapsed());
        let position = self.recorder.position();
        let waiting = self.waiting.drain(..);
        self.promises
            .extend(waiting.map(|promise| (position, promise)));
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self.client.post(path, &body).await;
        assert!(answer.status < 300, "{path}: {answer:?}");
        answer.json()
    }

    async fn round(&mut self, round: u64, ran: &[String; 2]) {
        let org = format!("org-{round}");
        self.post("/orgs", json!({ "name": org })).await;
        self.soon(Promise::Org(org));
        let key = self.post("/keys", json!({ "name": "one" })).await;
        self.soon(Promise::Key(text(&key["keyID"])));
        for id in ran {
            let path = format!("/sandboxes/{id}");
            let settings = json!({ "pids": 500 + round }).to_string();
            let headers = [("content-type", "application/json")];
            let changed = self.client.send("PATCH", &path, &headers, settings).await;
            assert_eq!(changed.status, 200, "{changed:?}");
            // Each of these calls writes the record again.
            self.post(&format!("{path}/pause"), json!({})).await;
            self.post(&format!("{path}/resume"), json!({})).await;
            self.soon(Promise::Sandbox(id.clone(), round));
            let line = format!("echo answered-{round}");
            self.client.line(id, &line).await;
            self.soon(Promise::Command(id.clone(), line));
        }
        if round.is_multiple_of(2) {
            self.settle().await;
        }
        let [plain, durable] = ran;
        let line = format!("echo recorded-{round}");
        self.client.line(plain, &line).await;
        let path = format!("/sessions/{plain}/commands");
        let history = self.client.get(&path).await.array();
        assert_eq!(history[0]["cmd"], line);
        self.soon(Promise::History(plain.clone(), line));
        let file = format!("synced-{round}");
        let write = format!("seq {LINES} > /var/tmp/{file} && sync /var/tmp/{file}");
        self.client.line(durable, &write).await;
        self.now(Promise::Synced(durable.clone(), file));
        // A sandbox that is stopped, started again, and stopped with more files.
        let envs = json!({ "SECRET": "sesame" });
        let id = self
            .client
            .sandbox(&json!({ "timeout": 0, "envs": envs }))
            .await;
        for part in ["first", "second"] {
            let file = format!("stopped-{part}");
            let write = format!("seq {LINES} > /var/tmp/{file}");
            self.client.line(&id, &write).await;
            self.post(&format!("/sandboxes/{id}/stop"), json!({})).await;
            self.now(Promise::Stopped(id.clone(), file));
            if part == "first" {
                self.post(&format!("/sandboxes/{id}/start"), json!({}))
                    .await;
            }
        }
        self.settle().await;
    }
}

fn is_synced(metrics: &str) -> bool {
    let ages = metrics
        .lines()
        .filter(|line| line.starts_with("atoll_unsynced_seconds{"));
    let ages: Vec<&str> = ages.filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(ages.len(), 2, "{metrics}");
    ages.iter().all(|age| age.parse() == Ok(0.0))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn lines() -> String {
    let lines: Vec<String> = (1..=LINES).map(|line| line.to_string()).collect();
    lines.join("\n") + "\n"
}

/// The record of a sandbox, from the file that can be read.
fn record(data: &Path, id: &str) -> Option<Value> {
    let directory = data.join("sandboxes").join(id);
    ["record.json", "record.synced"].iter().find_map(|name| {
        let text = fs::read(directory.join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    })
}

/// Checks the promises in the data directory, without a server.
async fn check(data: &Path, org: &OrgId, promises: &[(usize, Promise)], position: usize) {
    let store = Store::open(&data.join("atoll.db")).await.unwrap();
    for (since, promise) in promises.iter().filter(|(since, _)| *since <= position) {
        let kept = is_kept(data, &store, org, promise).await;
        assert!(
            kept,
            "{promise:?} since {since}, and the cut was at {position}"
        );
    }
    store.close().await;
}

async fn is_kept(data: &Path, store: &Store, org: &OrgId, promise: &Promise) -> bool {
    let file = |id: &str, name: &str| {
        let path = format!("sandboxes/{id}/upper/var/tmp/{name}");
        fs::read_to_string(data.join(path)).is_ok_and(|text| text == lines())
    };
    match promise {
        Promise::Org(name) => {
            let orgs = store.orgs().await.unwrap();
            orgs.iter().any(|org| org.name == *name)
        }
        Promise::Key(id) => {
            let keys = store.keys(org).await.unwrap();
            keys.iter().any(|key| key.id.as_str() == id)
        }
        Promise::Sandbox(id, round) => {
            let pids = u64::from(store.sandbox(org, id).await.unwrap().unwrap().limits.pids);
            let written = record(data, id).unwrap();
            assert_eq!(written["spec"]["environment"]["SECRET"], "sesame");
            pids >= 500 + round && written["limits"]["pids"].as_u64() >= Some(500 + round)
        }
        Promise::History(id, line) => is_in_history(store, org, id, line).await,
        Promise::Command(id, line) => {
            let records = data.join(format!("sandboxes/{id}/execs/records"));
            let records = fs::read_to_string(records).unwrap_or_default();
            records.contains(line) || is_in_history(store, org, id, line).await
        }
        Promise::Stopped(id, name) => {
            let row = store.sandbox(org, id).await.unwrap();
            // Row and settings are synced within a second; files are synced before the stop is acknowledged.
            assert!(row.is_none_or(|row| row.error.is_none()));
            record(data, id).is_some() && file(id, name)
        }
        Promise::Synced(id, name) => file(id, name),
    }
}

async fn is_in_history(store: &Store, org: &OrgId, id: &str, line: &str) -> bool {
    let row = store.sandbox(org, id).await.unwrap().unwrap();
    let page = PageRequest {
        limit: 1000,
        cursor: None,
    };
    let all = store.commands(&row.session, CommandKind::Command, &page);
    all.await.unwrap().iter().any(|row| row.command == line)
}

/// Starts the server on the remaining data, and checks it through the API.
async fn boot(recorder: &Recorder, promises: &[(usize, Promise)], position: usize) {
    let data = recorder.path().join("data");
    reboot::forget_boot(&data);
    let mut server = Server::at(Scratch::new(), data.clone(), Vec::new(), Vec::new());
    let client = server.client();
    for (_, promise) in promises.iter().filter(|(since, _)| *since <= position) {
        match promise {
            Promise::Sandbox(id, _) => {
                let found = client.get(&format!("/sandboxes/{id}")).await.json();
                assert_eq!(found["state"], "stopped", "{found}");
                assert_eq!(found["reason"], "host_restart", "{found}");
            }
            Promise::History(id, line) | Promise::Command(id, line) => {
                let path = format!("/sessions/{id}/commands?limit=100");
                let all = client.get(&path).await.array();
                assert!(all.iter().any(|one| one["cmd"] == *line), "{line}");
            }
            _ => {}
        }
    }
    let last = |kind: fn(&Promise) -> Option<(&String, &String)>| {
        let mut kept = promises
            .iter()
            .rev()
            .filter(|(since, _)| *since <= position);
        kept.find_map(|(_, promise)| kind(promise))
    };
    let listed = client.get("/sandboxes").await.array();
    for found in [
        last(|promise| match promise {
            Promise::Stopped(id, name) => Some((id, name)),
            _ => None,
        }),
        last(|promise| match promise {
            Promise::Synced(id, name) => Some((id, name)),
            _ => None,
        }),
    ] {
        // The row may be younger than a second, and not yet synced.
        let Some((id, name)) =
            found.filter(|(id, _)| listed.iter().any(|one| one["sandboxID"] == **id))
        else {
            continue;
        };
        let started = client
            .post(&format!("/sandboxes/{id}/start"), &json!({}))
            .await;
        assert_eq!(started.status, 200, "{started:?}");
        let same = format!("seq {LINES} | cmp - /var/tmp/{name} && echo same $SECRET");
        assert_eq!(client.line(id, &same).await, "same sesame\n");
    }
    server.kill();
    let tag = fs::read_to_string(data.join("tag")).unwrap();
    reboot::restart(&data, &tag);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_changes_survive_every_power_cut() {
    power_cuts(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_changes_survive_power_cuts_of_a_second_seed() {
    power_cuts(2).await;
}

async fn power_cuts(seed: u64) {
    World::open().await.close().await;
    let scratch = Scratch::new();
    let recorder = Recorder::new(scratch.path(), DISK);
    let data = recorder.path().join("data");
    private(&data);
    let mut server = Server::at(Scratch::new(), data.clone(), Vec::new(), Vec::new());
    let client = server.client();
    let settings = json!({ "timeout": 0, "envs": { "SECRET": "sesame" } });
    let plain = client.sandbox(&settings).await;
    let mut settings = settings;
    settings["durable"] = true.into();
    let made = client.post("/sandboxes", &settings).await.json();
    assert_eq!(made["durable"], true);
    let ran = [plain, text(&made["sandboxID"])];
    let mut work = Work {
        recorder: &recorder,
        server: &server,
        client,
        promises: Vec::new(),
        waiting: Vec::new(),
        settled: Vec::new(),
    };
    work.settle().await;
    let begin = recorder.position();
    for round in 1..=ROUNDS {
        work.round(round, &ran).await;
    }
    // Other programs may use the disk of the host, but not all the time.
    let quickest = work.settled.iter().min();
    assert!(
        quickest.is_some_and(|time| *time < PROMISED),
        "{:?}",
        work.settled
    );
    let (promises, end) = (work.promises, recorder.position());
    server.kill();
    let tag = fs::read_to_string(data.join("tag")).unwrap();
    reboot::restart(&data, &tag);
    let org = first_org(&data).await;
    recorder.finish();

    let mut random = Random::new(seed);
    // Power cuts directly after an acknowledgement, and at random points.
    let mut cuts: Vec<usize> = promises.iter().map(|(since, _)| *since).collect();
    cuts.dedup();
    let anywhere = CUTS.checked_sub(cuts.len()).unwrap();
    cuts.extend((0..anywhere).map(|_| begin + random.below((end - begin) as u64) as usize));
    cuts.sort_unstable();
    for (number, position) in cuts.iter().enumerate() {
        // All, none or some of the writes that were not flushed.
        let share = random.below(3);
        recorder.cut(*position, || random.below(2) < share);
        check(&data, &org, &promises, *position).await;
        if number % (CUTS / BOOTS) == CUTS / BOOTS / 2 {
            boot(&recorder, &promises, *position).await;
        }
        recorder.unmount();
    }
}

async fn first_org(data: &Path) -> OrgId {
    let store = Store::open(&data.join("atoll.db")).await.unwrap();
    let orgs = store.orgs().await.unwrap();
    store.close().await;
    let first = orgs.iter().min_by_key(|org| org.created_at);
    first.unwrap().id.clone()
}
