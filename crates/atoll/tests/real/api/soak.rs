//! Creates and deletes sandboxes for a long time while the server is killed now and then: no resource leaks. The
//! server itself does not grow between two kills. A minute and a half in the ordinary suite; `make soak` takes
//! longer.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Client, Server};
use crate::harness::DEADLINE;
use crate::restart::keeper;

/// Five lives begin every second.
const PACE: Duration = Duration::from_millis(200);
/// The server is killed so often.
const KILLS: Duration = Duration::from_secs(7);

/// Resource counts that must be the same whenever the server is idle.
#[derive(Debug, PartialEq, Eq)]
struct Stock {
    sandboxes: usize,
    control_groups: usize,
    files: usize,
    keepers_mounts: usize,
    processes: usize,
}

/// Duration of the test, unless the environment sets a longer one.
fn length() -> Duration {
    let configured = std::env::var("ATOLL_SOAK_SECONDS").ok();
    let seconds = configured.map_or(60, |configured| configured.parse().expect("seconds"));
    Duration::from_secs(seconds)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_sandbox_lifecycles_and_kills_leak_nothing() {
    let mut server = Server::start().await;
    // Warm-up: permanent allocations exist before the count.
    live(&mut server, length() / 4, 0).await;
    let before = settled(&server).await;
    let keeper = Grown::of(keeper(&tag(&server)).expect("a keeper"));
    let lives = live(&mut server, length() * 3 / 4, 1).await;
    let after = settled(&server).await;
    assert_eq!(before, after, "after {lives} lives");
    // The numbers of open streams and child processes vary a little.
    keeper.at_most(4 << 10, 64, lives);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_server_memory_does_not_grow() {
    let server = Server::start().await;
    // Warm-up: permanent allocations exist before the measurement: threads, caches, pages of the database.
    let lives = calm(&server, length() / 8, 0).await;
    let before = settled(&server).await;
    let itself = Grown::of(server.pid().as_raw_nonzero().get());
    let lives = lives + calm(&server, length() / 4, 1).await;
    assert_eq!(before, settled(&server).await, "after {lives} lives");
    // In a minute, with hundreds of sandboxes, this permits some 10 kB for each; in an hour less than 1 kB.
    itself.at_most(8 << 10, 8, lives);
    server.close().await;
}

/// Lives as fast as it goes, two at a time, all of them whole; how many.
async fn calm(server: &Server, length: Duration, round: u32) -> u32 {
    let begin = Instant::now();
    let lane = async |lane: u32| {
        let (client, mut number) = (server.client(), 0);
        while begin.elapsed() < length {
            number += 1;
            lived(&client, &format!("calm-{round}-{lane}-{number}"))
                .await
                .unwrap();
        }
        number
    };
    let (one, two) = tokio::join!(lane(0), lane(1));
    one + two
}

/// Lives for a while; how many.
async fn live(server: &mut Server, length: Duration, round: u32) -> u32 {
    let begin = Instant::now();
    let (mut number, mut whole, mut killed) = (0, 0, Instant::now());
    let mut under_way = tokio::task::JoinSet::new();
    while begin.elapsed() < length {
        number += 1;
        under_way.spawn(life(server.client(), format!("life-{round}-{number}")));
        tokio::time::sleep(PACE).await;
        if killed.elapsed() > KILLS {
            // Requests in flight fail, and cannot continue at another port: their sandboxes are deleted at the end.
            server.kill_and_start();
            killed = Instant::now();
        }
        while let Some(done) = under_way.try_join_next() {
            whole += u32::from(done.unwrap());
        }
    }
    while let Some(done) = under_way.join_next().await {
        whole += u32::from(done.unwrap());
    }
    assert!(2 * whole > number, "{whole} of {number} lives were whole");
    number
}

/// Runs one sandbox from creation to deletion. Returns whether it completed.
async fn life(client: Client, key: String) -> bool {
    lived(&client, &key).await.is_ok()
}

/// Each differs from the next.
async fn lived(client: &Client, key: &str) -> hyper::Result<()> {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
    ];
    let network = if key.ends_with('3') {
        "internet"
    } else {
        "none"
    };
    let body = json!({ "timeout": 0, "network": network }).to_string();
    let made = client
        .try_send("POST", "/sandboxes", &headers, body.into())
        .await?;
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    let path = format!("/sandboxes/{id}");
    let post = async |what: &str, body: Value| {
        let headers = [("content-type", "application/json")];
        let (path, body) = (format!("{path}/{what}"), Bytes::from(body.to_string()));
        let answer = client.try_send("POST", &path, &headers, body).await?;
        assert!(answer.status < 300, "{what}: {answer:?}");
        hyper::Result::Ok(())
    };
    post("commands", json!({ "cmd": "echo $RANDOM > ~/f; seq 1000" })).await?;
    let background = json!({ "cmd": "sleep 600", "background": true, "tag": "sleeps" });
    post("commands", background).await?;
    match key.as_bytes().last() {
        Some(b'0' | b'5') => {
            post("stop", json!({})).await?;
            post("start", json!({})).await?;
        }
        Some(b'1' | b'6') => {
            post("pause", json!({})).await?;
            post("resume", json!({})).await?;
        }
        Some(b'2') => post("pty", json!({ "cols": 80, "rows": 24 })).await?,
        // A client follows the output and disconnects.
        Some(b'4') => {
            for what in ["commands/tag:sleeps/output", "logs?follow=true"] {
                let path = format!("{path}/{what}");
                client.try_open("GET", &path, &[], Bytes::new()).await?;
            }
        }
        _ => {}
    }
    let gone = client.try_send("DELETE", &path, &[], Bytes::new()).await?;
    assert_eq!(gone.status, 204, "{gone:?}");
    Ok(())
}

/// Resource counts when all sandboxes are deleted and the pool is full.
async fn settled(server: &Server) -> Stock {
    let client = server.client();
    loop {
        let all = client.get("/sandboxes").await.array();
        if all.is_empty() {
            break;
        }
        for sandbox in all {
            let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
            let gone = client.delete(&path).await.status;
            assert!(gone == 204 || gone == 404, "{gone}");
        }
    }
    // Background work takes some time.
    let begin = Instant::now();
    let mut last = None;
    loop {
        let pool = client.get("/readyz").await.json()["pool"].clone();
        let now = (pool, stock(server));
        if last.as_ref() == Some(&now) && begin.elapsed() > Duration::from_secs(3) {
            return now.1;
        }
        assert!(begin.elapsed() < 2 * DEADLINE, "{last:?}, now {now:?}");
        last = Some(now);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn tag(server: &Server) -> String {
    std::fs::read_to_string(server.data().join("tag")).unwrap()
}

fn stock(server: &Server) -> Stock {
    let (tag, data) = (tag(server), server.data());
    let keeper = keeper(&tag).expect("a keeper");
    let mounts = std::fs::read_to_string(format!("/proc/{keeper}/mountinfo")).unwrap();
    let groups = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let groups = groups.map(|root| count(&Path::new(root).join(format!("atoll-{tag}"))));
    let children = format!("/proc/{keeper}/task/{keeper}/children");
    let children = std::fs::read_to_string(children).unwrap();
    Stock {
        sandboxes: entries(&data.join("sandboxes")).len(),
        control_groups: groups.into_iter().sum(),
        files: count(&data.join("sandboxes")),
        keepers_mounts: mounts.lines().count(),
        processes: children.split_whitespace().count(),
    }
}

/// A process, and its memory in kB and number of descriptors at the start.
struct Grown {
    process: i32,
    memory: u64,
    descriptors: usize,
}

impl Grown {
    fn of(process: i32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.unwrap().trim().split(' ').next().unwrap().parse();
        Self {
            process,
            memory: memory.unwrap(),
            descriptors: entries(Path::new(&format!("/proc/{process}/fd"))).len(),
        }
    }

    /// Asserts that growth is within these limits.
    fn at_most(&self, memory: u64, descriptors: usize, lives: u32) {
        let now = Self::of(self.process);
        assert!(
            now.memory <= self.memory + memory,
            "{} → {} kB after {lives} lives",
            self.memory,
            now.memory
        );
        assert!(
            now.descriptors <= self.descriptors + descriptors,
            "{} → {} descriptors after {lives} lives",
            self.descriptors,
            now.descriptors
        );
    }
}

fn entries(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Number of directories in the tree.
fn count(directory: &Path) -> usize {
    let below = entries(directory).into_iter();
    let below = below.filter(|path| path.symlink_metadata().is_ok_and(|about| about.is_dir()));
    below.map(|path| 1 + count(&path)).sum()
}
