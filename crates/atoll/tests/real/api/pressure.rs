//! Overload: one client sends too many or too large requests while others use the server.

use std::time::Duration;

use atoll_testkit::{Cage, Scratch};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::fd_exhaustion::spare;
use super::{Answer, Client, Server};
use crate::harness::{DEADLINE, World, private};

/// Sends many concurrent requests. Returns their statuses, and whether each has `Retry-After`.
async fn at_once(client: &Client, path: &str, body: &Value, times: usize) -> Vec<(u16, bool)> {
    let answers = client.post_at_once(path, body, times).await;
    let summary = |answer: &Answer| (answer.status, answer.headers.contains_key("retry-after"));
    answers.iter().map(summary).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_commands_and_terminals_above_the_limit_fail_heavy() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/pty");
    let answers = at_once(&client, &path, &json!({}), 40).await;
    let made = answers.iter().filter(|(status, _)| *status == 201).count();
    assert_eq!(made, 20, "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|(status, wait)| *status == 201 || (*status, *wait) == (429, true))
    );
    let path = format!("/sandboxes/{id}/commands");
    let runs = json!({ "cmd": "sleep", "args": ["600"], "background": true });
    let answers = at_once(&client, &path, &runs, 400).await;
    let begun = answers.iter().filter(|(status, _)| *status == 202).count();
    // Terminals are commands too.
    assert_eq!(begun, 236, "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|(status, wait)| *status == 202 || (*status, *wait) == (429, true))
    );
    // Other sandboxes are not affected.
    let other = client.sandbox(&json!({})).await;
    client.line(&other, "true").await;
    server.close().await;
}

/// The server's memory, in MiB.
pub fn memory(server: &Server) -> u64 {
    resident(server) >> 10
}

/// The same in KiB.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// C07: the records of finished commands are bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c07_long_arguments_cost_bounded_memory_heavy() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "true").await;
    let path = format!("/sandboxes/{id}/commands");
    let before = memory(&server);
    let long = json!({ "cmd": "true", "args": vec!["x".repeat(100_000); 9] });
    let short = json!({ "cmd": "true", "args": vec!["x"; 20_000] });
    for _ in 0..80 {
        for body in [&long, &short] {
            let done = client.post(&path, body).await;
            assert_eq!(done.status, 200, "{done:?}");
        }
    }
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 192, "{grown} MiB more");
    // Records of running commands are kept: their number is limited.
    let mut runs = json!({ "cmd": "sleep", "args": ["600"], "background": true });
    runs["envs"] = (0..9)
        .map(|number| (format!("V{number}"), json!("x".repeat(100_000))))
        .collect();
    let all = at_once(&client, &path, &runs, 40).await;
    let begun = all.iter().filter(|(status, _)| *status == 202).count();
    assert!((10..20).contains(&begun), "{all:?}");
    assert!(all.iter().all(|(status, _)| [202, 429].contains(status)));
    client.line(&id, "true").await;
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 256, "{grown} MiB more");
    server.close().await;
}

/// Writes as long as the server reads. Returns its response.
async fn pour(client: &Client, head: &str, piece: &[u8], most: usize) -> String {
    let mut stream = TcpStream::connect(&client.address).await.unwrap();
    let head = head.replace("KEY", client.key.as_deref().unwrap());
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let mut response = Vec::new();
    let write = async {
        for _ in 0..most {
            if writing.write_all(piece).await.is_err() {
                break;
            }
        }
        // The server responds although no command ends.
        std::future::pending::<()>().await;
    };
    let read = async {
        let mut buffer = [0; 4096];
        // Reads to the end of the response head.
        while !response.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            match reading.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(count) => response.extend_from_slice(&buffer[..count]),
            }
        }
    };
    let answered = async {
        tokio::select! {
            () = write => {}
            () = read => {}
        }
    };
    tokio::time::timeout(DEADLINE, answered).await.unwrap();
    String::from_utf8_lossy(&response).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_unbounded_requests_end_and_cost_no_memory_heavy() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "true").await;
    let before = memory(&server);
    let headers = [("content-type", "application/json")];
    for deep in ["[".repeat(10_000), "{\"a\":".repeat(10_000)] {
        let refused = client.send("POST", "/sandboxes", &headers, deep).await;
        assert_eq!(refused.refusal().0, 400);
    }
    let head = "POST /sandboxes HTTP/1.1\r\nhost: localhost\r\nx-api-key: KEY\r\ncontent-type: application/json\r\n";
    // A million headers.
    let response = pour(&client, head, &b"x-a: 1\r\n".repeat(100), 10_000).await;
    assert!(
        response.is_empty() || response.starts_with("HTTP/1.1 4"),
        "{response}"
    );
    // A body that never ends, as one piece and in chunks.
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
    let spaces = b" ".repeat(0x10000);
    let chunk = [b"10000\r\n".as_slice(), &spaces, b"\r\n"].concat();
    let response = pour(&client, &chunked, &chunk, 10_000).await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
    let long = format!("{head}content-length: 99999999999\r\n\r\n");
    let response = pour(&client, &long, &spaces, 10_000).await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
    // A frame of 64 MiB.
    super::sockets::send_frame(&client, &format!("/sandboxes/{id}/pty"), 64 << 20).await;
    // Five hundred clients that send only a request line.
    let mut slow = Vec::new();
    for _ in 0..500 {
        let mut stream = TcpStream::connect(&client.address).await.unwrap();
        stream
            .write_all(b"GET /sandboxes HTTP/1.1\r\nhost: l")
            .await
            .unwrap();
        slow.push(stream);
    }
    client.line(&id, "true").await;
    let grown = memory(&server).saturating_sub(before);
    assert!(grown < 64, "{grown} MiB more");
    server.close().await;
}

/// C10: server memory that a WebSocket on a terminal uses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_a_websocket_takes_less_than_30_kib_of_memory_heavy() {
    const SOCKETS: u64 = 1000;
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let path = format!("/sandboxes/{id}/pty");
    let request = json!({ "shell": "/bin/cat" });
    let made = client.post(&path, &request).await.json();
    let path = format!("{path}/{}", made["ptyID"].as_str().unwrap());
    let first = super::frames::open(&client, &path).await;
    let before = resident(&server);
    let mut sockets = Vec::new();
    for _ in 0..SOCKETS {
        sockets.push(super::frames::open(&client, &path).await);
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 30 * SOCKETS, "{} KiB each", grown / SOCKETS);
    drop(first);
    drop(sockets);
    server.close().await;
}

/// A server whose data is on a disk that the test fills.
async fn on_a_disk() -> (Scratch, atoll_testkit::Disk, Server) {
    World::open().await.close().await;
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 4 << 30);
    let data = disk.path().join("data");
    private(&data);
    let server = Server::at(Scratch::new(), data, Vec::new(), Vec::new());
    (scratch, disk, server)
}

/// Takes all the room there is.
fn fill(path: &std::path::Path) {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = std::fs::File::create(path).unwrap();
    let (mut at, mut size) = (0, 1 << 30);
    while size >= 4096 {
        match fallocate(&file, FallocateFlags::empty(), at, size) {
            Ok(()) => at += size,
            Err(_) => size /= 2,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g04_full_disk_fails_writes_and_the_server_recovers() {
    let (scratch, disk, server) = on_a_disk().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo here > ~/f").await;
    let filler = disk.path().join("filler");
    fill(&filler);
    // A file that does not fit leaves nothing behind, and existing files remain.
    let list = format!("/sandboxes/{id}/files/list?path=.");
    let before = client.get(&list).await.array();
    let path = format!("/sandboxes/{id}/files?path=f");
    let refused = client.send("PUT", &path, &[], vec![b'x'; 8 << 20]).await;
    assert_eq!(refused.refusal().1, "DISK_FULL", "{refused:?}");
    assert_eq!(client.get(&list).await.array(), before);
    // Reads still work.
    for path in ["", "/commands", "/files?path=f", "/events"] {
        let read = client.get(&format!("/sandboxes/{id}{path}")).await;
        assert_eq!(read.status, 200, "{path} {read:?}");
    }
    assert_eq!(client.get("/sessions").await.status, 200);
    let refused = client.post("/sandboxes", &json!({})).await;
    assert_eq!(refused.refusal().1, "DISK_FULL", "{refused:?}");
    // Writes that fit into allocated blocks still succeed; then the error is reported.
    let headers = [("content-type", "application/json")];
    let mut written = 0;
    loop {
        let body = json!({ "metadata": { "a": "x".repeat(16_000) } }).to_string();
        let answer = client
            .send("PATCH", &format!("/sandboxes/{id}"), &headers, body)
            .await;
        if answer.status != 200 {
            assert_eq!(answer.refusal().1, "DISK_FULL", "{answer:?}");
            break;
        }
        written += 1;
        assert!(written < 5000);
    }
    let path = format!("/sandboxes/{id}/commands");
    let mut succeeded = 1;
    for _ in 0..20 {
        let answer = client.post(&path, &json!({ "cmd": "true" })).await;
        if answer.status == 200 {
            succeeded += 1;
        } else {
            assert_eq!(answer.refusal().1, "DISK_FULL", "{answer:?}");
        }
    }
    std::fs::remove_file(&filler).unwrap();
    assert_eq!(client.line(&id, "cat ~/f").await, "here\n");
    let ended = client.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(ended.status, 204, "{ended:?}");
    let history = client
        .get(&format!("/sessions/{id}/commands"))
        .await
        .array();
    assert_eq!(history.len(), succeeded + 1);
    server.close().await;
    drop(disk);
    drop(scratch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g04_server_recovers_from_descriptor_exhaustion_heavy() {
    World::open().await.close().await;
    let scratch = Scratch::new();
    let data = scratch.join("data");
    private(&data);
    let server = Server::at(scratch, data, Vec::new(), Vec::new());
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "true").await;
    let mut known = client.connect().await.unwrap();
    let looked = known.ask("GET", "/sandboxes", "").await.unwrap();
    assert_eq!(looked.status, 200);
    spare(&server, Some(0));
    let path = format!("/sandboxes/{id}");
    let looked = known.ask("GET", &path, "").await.unwrap();
    assert_eq!(looked.status, 200, "{looked:?}");
    let body = json!({ "cmd": "echo hello" }).to_string();
    let path = format!("{path}/commands");
    let mut request = tokio::spawn(async move { known.ask("POST", &path, body).await });
    // A command that started with descriptors freed by others delays its output until more are free.
    let early = tokio::time::timeout(Duration::from_secs(5), &mut request).await;
    // A connection that cannot be accepted, which is logged.
    let waiting = TcpStream::connect(&client.address).await.unwrap();
    let logged = |words: &str| server.log().matches(words).count();
    let refused = async { while logged("cannot accept connections") == 0 {} };
    tokio::time::timeout(DEADLINE, refused).await.unwrap();
    spare(&server, None);
    drop(waiting);
    let answer = match early {
        Ok(answer) => answer,
        Err(_) => tokio::time::timeout(DEADLINE, request).await.unwrap(),
    };
    let answer = answer.unwrap().unwrap();
    assert!(
        answer.status == 200 || answer.refusal().1 == "NO_CAPACITY",
        "{answer:?}"
    );
    let working = async { while client.attempt("GET", "/sandboxes", "").await.is_none() {} };
    tokio::time::timeout(DEADLINE, working).await.unwrap();
    // The log reports it periodically, not at every attempt, and also reports its end.
    let over = async {
        while logged("accepting connections again") == 0 {
            client.attempt("GET", "/sandboxes", "").await;
        }
    };
    tokio::time::timeout(DEADLINE, over).await.unwrap();
    let found = logged("cannot accept connections");
    assert!((1..10).contains(&found), "{found} times");
    assert_eq!(client.line(&id, "echo hello").await, "hello\n");
    let found = client
        .get(&format!("/sessions/{id}/commands"))
        .await
        .array();
    assert!((2..=3).contains(&found.len()), "{found:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g09_deleted_sandbox_is_gone_despite_concurrent_requests() {
    let server = Server::start().await;
    let client = server.client();
    for verb in ["keepalive", "pause", "stop"] {
        let id = client.sandbox(&json!({ "timeout": 0 })).await;
        let path = format!("/sandboxes/{id}");
        let runs = json!({ "cmd": "while :; do echo x; done", "background": true });
        let commands = format!("{path}/commands");
        assert_eq!(client.post(&commands, &runs).await.status, 202);
        let response = client.post(&format!("{path}/{verb}"), &json!({})).await;
        assert_eq!(response.status, 200, "{response:?}");
        // One client waits for a command, one uploads, and eight delete the sandbox.
        let waiting = {
            let (client, commands) = (client.clone(), commands.clone());
            tokio::spawn(
                async move { client.post(&commands, &json!({ "cmd": "sleep 600" })).await },
            )
        };
        let upload = {
            let (client, path) = (client.clone(), format!("{path}/files?path=big"));
            let bytes = vec![0; 64 << 20];
            tokio::spawn(async move { client.attempt("PUT", &path, bytes).await })
        };
        let deletes: Vec<_> = (0..8)
            .map(|_| {
                let (client, path) = (client.clone(), path.clone());
                tokio::spawn(async move { client.delete(&path).await.status })
            })
            .collect();
        let mut answers = Vec::new();
        for delete in deletes {
            answers.push(delete.await.unwrap());
        }
        answers.sort_unstable();
        assert_eq!(answers, [204, 404, 404, 404, 404, 404, 404, 404], "{verb}");
        assert_eq!(client.get(&path).await.status, 404);
        assert!(!server.data().join("sandboxes").join(&id).exists());
        // The waiting client receives the result; the uploading client may be disconnected.
        let waited = waiting.await.unwrap();
        let killed = waited.status == 200 && waited.json()["exitCode"] == 137;
        assert!(killed || !waited.refusal().1.is_empty(), "{waited:?}");
        if let Some(uploaded) = upload.await.unwrap() {
            let done = uploaded.status == 200;
            assert!(done || !uploaded.refusal().1.is_empty(), "{uploaded:?}");
        }
        let history = client.get(&format!("/sessions/{id}")).await.json();
        assert!(history["deletedAt"].is_string(), "{history}");
        let listed = client
            .get(&format!("/sessions/{id}/commands"))
            .await
            .array();
        assert!(
            listed.iter().all(|one| one["state"] == "exited"),
            "{listed:?}"
        );
    }
    // During the create only the alias of the sandbox is known.
    for _ in 0..20 {
        let create = {
            let client = client.clone();
            let body = json!({ "alias": "early" });
            tokio::spawn(async move { client.post("/sandboxes", &body).await.status })
        };
        let delete = client.delete("/sandboxes/early").await.status;
        assert!([204, 404].contains(&delete), "{delete}");
        create.await.unwrap();
        client.delete("/sandboxes/early").await;
        assert_eq!(client.get("/sandboxes/early").await.status, 404);
    }
    assert_eq!(client.get("/sandboxes").await.array(), Vec::<Value>::new());
    server.close().await;
}

/// The CPU weight of a sandbox, in all hierarchies that have weights.
fn weights(id: &str) -> Vec<String> {
    let cgroups = atoll_jail::facts::Facts::read().cgroups;
    let mut found = Vec::new();
    for mount in cgroups.v1.values().chain(&cgroups.v2) {
        let instances = std::fs::read_dir(mount).unwrap().flatten();
        for group in instances.map(|instance| instance.path().join(id)) {
            for file in ["cpu.weight", "cpu.shares"] {
                found.extend(std::fs::read_to_string(group.join(file)).ok());
            }
        }
    }
    found.iter().map(|text| text.trim().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_busy_sandbox_has_the_same_cpu_weight_heavy() {
    let server = Server::start().await;
    let client = server.client();
    let (loud, quiet) = (
        client.sandbox(&json!({ "timeout": 0 })).await,
        client.sandbox(&json!({ "timeout": 0 })).await,
    );
    let spin = "for i in $(seq 64); do while :; do :; done & done; wait";
    let body = json!({ "cmd": spin, "background": true });
    let path = format!("/sandboxes/{loud}/commands");
    let begun = client.post(&path, &body).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    for _ in 0..20 {
        assert_eq!(client.line(&quiet, "echo here").await, "here\n");
    }
    let usual = weights(&quiet);
    assert!(["100", "1024"].contains(&usual[0].as_str()), "{usual:?}");
    assert_eq!(weights(&loud), usual);
    server.close().await;
}
