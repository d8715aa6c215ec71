//! Exhausted file descriptors: an operation that gets none fails with an error that names the cause, and the server
//! continues.

use std::collections::HashSet;

use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;

use super::Server;
use crate::harness::DEADLINE;

/// Limits a server to `more` descriptors above its current number, or removes the limit.
pub fn spare(server: &Server, more: Option<usize>) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let open: HashSet<u64> = open
        .map(|one| one.unwrap().file_name().into_string().unwrap())
        .map(|name| name.parse().unwrap())
        .collect();
    let mut free = (0..).filter(|number| !open.contains(number));
    let all = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: more.map_or(all, |more| free.nth(more)),
        maximum: all,
    };
    prlimit(Some(server.pid()), Resource::Nofile, limit).unwrap();
}

/// Every kind of request with zero to fifteen free descriptors: each number makes another step fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g04_descriptor_shortage_yields_success_or_an_error_heavy() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo text > file").await;
    let mut known = client.connect().await.unwrap();
    // The connection is accepted before the limit applies.
    known.ask("GET", "/sandboxes", "").await.unwrap();
    let line = json!({ "cmd": "echo hello" }).to_string();
    let fed = json!({ "cmd": "cat", "stdin": "x" }).to_string();
    let here = format!("/sandboxes/{id}");
    for (method, path, body) in [
        ("GET", here.clone(), ""),
        ("POST", format!("{here}/commands"), line.as_str()),
        ("POST", format!("{here}/commands"), fed.as_str()),
        ("POST", format!("{here}/pty"), "{}"),
        ("GET", format!("{here}/files?path=file"), ""),
        ("PUT", format!("{here}/files?path=file"), "text"),
        ("GET", format!("{here}/files/list?path=."), ""),
        ("GET", format!("{here}/commands"), ""),
        ("GET", format!("{here}/events"), ""),
        ("POST", format!("{here}/pause"), "{}"),
        ("POST", format!("{here}/resume"), "{}"),
        ("POST", format!("{here}/stop"), "{}"),
        ("POST", format!("{here}/start"), "{}"),
        ("POST", "/sandboxes".to_owned(), "{}"),
        ("GET", "/sessions".to_owned(), ""),
    ] {
        for left in 0..16 {
            spare(&server, Some(left));
            let request = known.ask(method, &path, body.to_owned());
            let answer = tokio::time::timeout(DEADLINE, request).await;
            // Background work after a response fails without descriptors too.
            let other = known.ask("GET", &here, "").await.unwrap();
            spare(&server, None);
            let answer = answer.unwrap().unwrap();
            assert!(
                answer.status < 300 || answer.refusal().1 == "NO_CAPACITY",
                "{method} {path} with {left}: {answer:?}"
            );
            assert_eq!(other.status, 200, "{method} {path} with {left}: {other:?}");
        }
        let answer = known.ask(method, &path, body.to_owned()).await.unwrap();
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
    }
    assert_eq!(client.line(&id, "cat file").await, "text");
    // No incomplete operation delays the shutdown.
    server.close().await;
}
