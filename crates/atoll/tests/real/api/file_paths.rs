//! Path resolution of file calls (D01, D03, D05, D12), watches and searches.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Client, Server};
use crate::harness::DEADLINE;

/// Every way that reads or changes one path.
const CALLS: &[(&str, &str)] = &[
    ("GET", "files?path=PATH"),
    ("GET", "files/list?path=PATH"),
    ("GET", "files/archive?path=PATH"),
    ("GET", "files/search?path=PATH&query=*"),
    ("PUT", "files?path=PATH"),
    ("PUT", "files/archive?path=PATH"),
    ("POST", "files/chmod"),
    ("POST", "files/copy"),
];

/// Sends all requests; none may take long or fail with an internal error.
async fn ask_all(client: &Client, id: &str, path: &str) -> Vec<(String, u16, Bytes)> {
    let mut answers = Vec::new();
    for (method, call) in CALLS {
        let url = format!("/sandboxes/{id}/{}", call.replace("PATH", path));
        let body = match *call {
            "files/chmod" => json!({ "path": path, "mode": "600" }).to_string(),
            "files/copy" => json!({ "from": path, "to": "copied", "replace": true }).to_string(),
            _ => String::new(),
        };
        let headers = [("content-type", "application/json")];
        let request = client.send(method, &url, &headers, body);
        let answer = tokio::time::timeout(Duration::from_secs(45), request).await;
        let answer = answer.unwrap_or_else(|_| panic!("{method} {url} has no end"));
        answers.push((format!("{method} {url}"), answer.status, answer.body));
    }
    answers
}

/// Every route that moves, removes or watches a path, as root of the sandbox.
async fn change_all(client: &Client, id: &str, path: &str) -> Vec<(String, u16, Bytes)> {
    let body = |more: Value| {
        let mut body = json!({ "path": path, "user": "root", "authority": "root" });
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        if fields.contains_key("from") {
            fields.remove("path");
        }
        body.to_string()
    };
    let query = format!("path={path}&user=root&authority=root");
    let mut answers = Vec::new();
    for (method, call, body) in [
        ("GET", format!("files/stat?{query}"), String::new()),
        (
            "POST",
            "files/chown".into(),
            body(json!({ "owner": "user", "group": "user" })),
        ),
        (
            "POST",
            "files/rename".into(),
            body(json!({ "from": path, "to": "moved" })),
        ),
        ("POST", "files/mkdir".into(), body(json!({}))),
        ("DELETE", format!("files?{query}"), String::new()),
    ] {
        let headers = [("content-type", "application/json")];
        let url = format!("/sandboxes/{id}/{call}");
        let answer = client.send(method, &url, &headers, body).await;
        answers.push((format!("{method} {url}"), answer.status, answer.body));
    }
    let url = format!("/sandboxes/{id}/files/watch?{query}");
    let watched = client.open("GET", &url, &[], Bytes::new()).await;
    answers.push((url, watched.status().as_u16(), Bytes::new()));
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d01_d03_paths_never_leave_the_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    // A host file that must be neither visible nor writable inside.
    let scratch = atoll_testkit::Scratch::new();
    let canary = scratch.join("canary");
    std::fs::write(&canary, "the host's").unwrap();
    let canary = canary.to_str().unwrap();
    let links = format!(
        "mkdir -p w && ln -s ../../../../../../../..{canary} w/up && ln -s {canary} w/straight && ln -s /etc/shadow w/shadow && \
         ln -s / w/root"
    );
    client.line(&id, &links).await;
    let server_pid = std::process::id();
    for path in [
        canary.to_owned(),
        format!("/../../../..{canary}"),
        "w/up".into(),
        "w/straight".into(),
        format!("w/root{canary}"),
        format!("/proc/self/root{canary}"),
        format!("/proc/1/root{canary}"),
        format!("/proc/1/cwd{canary}"),
        format!("/proc/{server_pid}/root{canary}"),
        "/dev/fd/3".into(),
        "/proc/self/fd/4".into(),
    ] {
        let mut answers = ask_all(&client, &id, &path).await;
        answers.extend(change_all(&client, &id, &path).await);
        for (request, status, body) in answers {
            let text = String::from_utf8_lossy(&body).into_owned();
            assert!(!text.contains("the host's"), "{request}: {text}");
            assert!(status < 500, "{request}: {status} {text}");
        }
        // Removes the files of this round for the next.
        let clear = json!({ "cmd": "rm -rf copied moved w", "cwd": "/home/user", "user": "root" });
        let commands = format!("/sandboxes/{id}/commands");
        let cleared = client.post(&commands, &clear).await;
        assert_eq!(cleared.json()["exitCode"], 0, "{cleared:?}");
        client.line(&id, &links).await;
    }
    assert_eq!(std::fs::read_to_string(canary).unwrap(), "the host's");
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(canary).unwrap());
    assert_eq!(owner, 0);
    // The sandbox's own `/etc/shadow` belongs to its root.
    let shadow = format!("/sandboxes/{id}/files?path=/home/user/w/shadow");
    assert_eq!(client.get(&shadow).await.refusal().1, "PERMISSION_DENIED");
    let own = client.get(&format!("{shadow}&user=root")).await;
    assert_eq!(own.status, 200, "{own:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d05_devices_and_fifos_are_refused() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client
        .line(
            &id,
            "mkdir odd && mkfifo odd/fifo && ln -s /dev/zero odd/zero",
        )
        .await;
    for path in [
        "odd/fifo",
        "odd/zero",
        "/dev/zero",
        "/dev/random",
        "/dev/tty",
        "/dev/full",
        "/proc/kmsg",
        "/dev/ptmx",
    ] {
        for (request, status, body) in ask_all(&client, &id, path).await {
            let text = String::from_utf8_lossy(&body).into_owned();
            let text: String = text.chars().take(300).collect();
            // A user may change permissions of own files, and a link is copied as a link.
            let link = ["odd/zero", "/dev/ptmx"].contains(&path);
            let own = request.contains("chmod") || request.contains("copy") && link;
            assert!(
                (400..500).contains(&status) || own,
                "{request}: {status} {text}"
            );
        }
    }
    // Archives and searches skip them.
    let packed = client
        .get(&format!("/sandboxes/{id}/files/archive?path=odd"))
        .await;
    assert_eq!(packed.status, 200);
    assert!(packed.body.len() < 100_000);
    let found = client
        .get(&format!("/sandboxes/{id}/files/search?path=odd&content=x"))
        .await;
    assert_eq!(found.json()["results"], json!([]));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_reader_sees_the_old_or_the_new_file() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let path = format!("/sandboxes/{id}/files?path=file");
    let whole = |letter: u8| Bytes::from(vec![letter; 1 << 20]);
    assert_eq!(
        client.send("PUT", &path, &[], whole(b'a')).await.status,
        200
    );
    let writer = {
        let (client, path) = (client.clone(), path.clone());
        tokio::spawn(async move {
            for letter in b'b'..=b'z' {
                let written = client.send("PUT", &path, &[], whole(letter)).await;
                assert_eq!(written.status, 200);
            }
        })
    };
    let mut reads = 0;
    while !writer.is_finished() {
        let read = client.get(&path).await;
        assert_eq!((read.status, read.body.len()), (200, 1 << 20));
        let first = read.body[0];
        assert!(read.body.iter().all(|letter| *letter == first));
        reads += 1;
    }
    writer.await.unwrap();
    assert!(reads > 3, "{reads}");
    server.close().await;
}

/// Server-sent events as they come.
struct Events {
    body: Incoming,
    text: String,
}

impl Events {
    async fn open(client: &Client, path: &str) -> Self {
        let response = client.open("GET", path, &[], Bytes::new()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            body: response.into_body(),
            text: String::new(),
        }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        let read = async {
            loop {
                if let Some((event, rest)) = self.text.split_once("\n\n") {
                    let (event, rest) = (event.to_owned(), rest.to_owned());
                    self.text = rest;
                    let (name, data) = event.split_once('\n').unwrap();
                    let name = name.strip_prefix("event: ").unwrap().to_owned();
                    let data = data.strip_prefix("data: ").unwrap();
                    return Some((name, serde_json::from_str(data).unwrap()));
                }
                let frame = self.body.frame().await?.ok()?;
                self.text
                    .push_str(std::str::from_utf8(frame.data_ref()?).unwrap());
            }
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .expect("an event")
    }

    /// Waits for this event.
    async fn wait(&mut self, name: &str, path: &str) -> Value {
        loop {
            let (found, data) = self.next().await.expect("it goes on");
            if found == name && data["path"].as_str().unwrap_or_default() == path {
                return data;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_watch_reports_changes() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client.line(&id, "mkdir -p w/deep; echo x > w/there").await;
    let watch = format!("/sandboxes/{id}/files/watch?path=w");
    let mut all = Events::open(&client, &format!("{watch}&recursive=true")).await;
    let mut here = Events::open(&client, &watch).await;
    client
        .line(&id, "cd w; mkdir new; echo y > deep/f; mv there moved; chmod 600 moved; rm deep/f; rm moved")
        .await;
    assert_eq!(all.wait("create", "new").await["isDir"], true);
    all.wait("create", "deep/f").await;
    all.wait("write", "deep/f").await;
    assert_eq!(all.wait("rename", "moved").await["from"], "there");
    all.wait("chmod", "moved").await;
    all.wait("remove", "deep/f").await;
    here.wait("create", "new").await;
    let data = here.wait("rename", "moved").await;
    assert_eq!(data["from"], "there");
    // The directory is removed: its watch ends with the reason.
    client.line(&id, "mv w gone").await;
    let last = async |events: &mut Events| {
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some(event);
        }
        last.expect("a last word")
    };
    assert_eq!(
        last(&mut here).await,
        ("end".into(), json!({ "reason": "removed" }))
    );
    // A stop of the sandbox ends its watches with an event.
    let mut home = Events::open(&client, &format!("/sandboxes/{id}/files/watch?path=.")).await;
    let stopped = client
        .post(&format!("/sandboxes/{id}/stop"), &json!({}))
        .await;
    assert_eq!(stopped.status, 200);
    assert_eq!(
        last(&mut home).await,
        ("end".into(), json!({ "reason": "stopped" }))
    );
    let refused = client.get(&watch).await;
    assert_eq!(refused.refusal().1, "SANDBOX_STOPPED");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_per_sandbox_are_limited() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let watch = format!("/sandboxes/{id}/files/watch?path=/tmp");
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(Events::open(&client, &watch).await);
    }
    assert_eq!(client.get(&watch).await.refusal().1, "QUOTA_EXCEEDED");
    drop(open.pop());
    // The server notices a disconnected client at its next write.
    let begin = Instant::now();
    loop {
        client.line(&id, "touch /tmp/x").await;
        let again = client.open("GET", &watch, &[], Bytes::new()).await;
        if again.status() == 200 {
            break;
        }
        assert!(begin.elapsed() < DEADLINE);
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_found_by_name_and_content() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client
        .line(
            &id,
            "mkdir -p p/src/deep p/other && cd p && printf 'one\\nneedle here\\nthree needle\\n' > src/lib.rs && \
             echo nothing > src/deep/Main.RS && printf 'needle\\0' > src/binary && ln -s /etc/passwd src/link.rs && \
             seq 1 5000 | sed 's/$/ needle/' > other/many",
        )
        .await;
    let search = async |rest: &str| {
        let found = client
            .get(&format!("/sandboxes/{id}/files/search?path=p&{rest}"))
            .await;
        assert_eq!(found.status, 200, "{found:?}");
        let found = found.json();
        let results = found["results"].as_array().unwrap().clone();
        let places: Vec<String> = results
            .iter()
            .map(|place| {
                let line = place["line"]
                    .as_u64()
                    .map_or(String::new(), |line| format!(":{line}"));
                format!("{}{line}", place["path"].as_str().unwrap())
            })
            .collect();
        (places, found["truncated"].as_bool().unwrap(), results)
    };
    let (places, truncated, _) = search("query=*.rs").await;
    assert_eq!(places, ["src/lib.rs", "src/link.rs", "src/deep/Main.RS"]);
    assert!(!truncated);
    assert_eq!(search("query=LIB").await.0, ["src/lib.rs"]);
    assert_eq!(search("query=src/*/m*").await.0, ["src/deep/Main.RS"]);
    let (places, _, results) = search("query=*.rs&content=needle").await;
    assert_eq!(places, ["src/lib.rs:2", "src/lib.rs:3"]);
    assert_eq!(results[0]["text"], "needle here");
    let (places, truncated, _) = search("content=needle&limit=10").await;
    assert_eq!((places.len(), truncated), (10, true));
    assert_eq!(search("content=no+such+thing").await.0.len(), 0);
    // A search of the whole tree, with kernel files, terminates.
    let all = client
        .get(&format!(
            "/sandboxes/{id}/files/search?path=/&content=needle&limit=1000"
        ))
        .await;
    assert_eq!(all.status, 200, "{all:?}");
    server.close().await;
}
