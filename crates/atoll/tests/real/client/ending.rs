//! Lifetimes on the command line: the options at creation, and the message of a command whose sandbox ended first.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use atoll_testkit::wait_for;
use serde_json::{Value, json};

use super::screen::Screen;
use super::{atoll, done, json as json_of, stdout_of};
use crate::api::{Client, Server};
use crate::cli::output_text;
use crate::harness::DEADLINE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn create_prints_the_end_and_named_sandboxes_keep_files() {
    let server = Server::start().await;
    let create = |args: &[&str]| {
        let output = done(
            atoll(&server, &[&["sandbox", "create"], args].concat()),
            b"",
        );
        assert!(output.status.success(), "{}", output_text(&output));
        let id = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let described = json_of(&server, &["sandbox", "get", &id, "--json"]);
        (id, described, String::from_utf8(output.stderr).unwrap())
    };
    let (_, named, notice) = create(&["--name", "web"]);
    assert_eq!(
        (&named["onTimeout"], &named["timeout"]),
        (&json!("stop"), &json!(300))
    );
    let kept =
        "  web stops in 5m00s and keeps its files; `atoll sandbox timeout web 1h` changes that\n";
    assert_eq!(notice, kept);
    let (id, unnamed, notice) = create(&["--timeout", "1h"]);
    assert_eq!(unnamed["onTimeout"], "destroy");
    let deleted = format!(
        "  {id} is deleted in 1h00m, with its files; `atoll sandbox timeout {id} 1h` changes that\n"
    );
    assert_eq!(notice, deleted);
    let (_, chosen, _) = create(&["--name", "other", "--on-timeout", "pause"]);
    assert_eq!(chosen["onTimeout"], "pause");
    let (_, _, silent) = create(&["--name", "endless", "--timeout", "0"]);
    assert_eq!(silent, "");
    // Programs read the field of the object.
    let object = stdout_of(
        &server,
        &["sandbox", "create", "--name", "object", "--json"],
    );
    assert!(object.contains("\"endAt\": \"20"), "{object}");
    let table = stdout_of(&server, &["sandbox", "ls"]);
    let row = |name: &str| {
        let row = table.lines().find(|line| line.contains(name)).unwrap();
        row.trim_end().to_owned()
    };
    assert!(
        row(" web ").ends_with(", stop") && row(" web ").contains("  in "),
        "{table}"
    );
    assert!(row(&id).ends_with(", destroy"), "{table}");
    assert!(row(" other ").ends_with(", pause"), "{table}");
    assert!(row(" endless ").ends_with(" -"), "{table}");
    // The API has its own default, with a name too.
    let api = server.client().sandbox(&json!({ "alias": "api" })).await;
    let api = json_of(&server, &["sandbox", "get", &api, "--json"]);
    assert_eq!(api["onTimeout"], "destroy");
    server.close().await;
}

/// Starts `atoll exec` of an endless command in a new sandbox, and waits until the command runs.
async fn running(server: &Server, request: Value) -> (String, Child) {
    let client = server.client();
    let id = client.sandbox(&request).await;
    let mut command: Command = atoll(server, &["exec", &id, "sleep", "1000"]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let path = format!("/sandboxes/{id}/commands");
    let begun = async || !client.get(&path).await.array().is_empty();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !begun().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the command does not begin"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    (id, child)
}

fn end(child: Child) -> String {
    output_text(&child.wait_with_output().unwrap())
}

async fn set_timeout(client: &Client, id: &str) {
    let path = format!("/sandboxes/{id}/timeout");
    let answer = client.post(&path, &json!({ "timeout": 1 })).await;
    assert!(answer.status < 300, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_reports_that_the_sandbox_lifetime_ended() {
    let server = Server::start().await;
    let client = server.client();
    let stopping = json!({ "timeout": 0, "alias": "web", "onTimeout": "stop" });
    let (stopped, child) = running(&server, stopping).await;
    set_timeout(&client, &stopped).await;
    let text = end(child);
    let (message, hint) = (
        "atoll: the lifetime of sandbox web ended: it was stopped and keeps its files\n",
        "`atoll start web` runs it again",
    );
    assert!(text.starts_with(message) && text.contains(hint), "{text}");
    assert!(text.ends_with("exit 124"), "{text}");
    wait_for("the sandbox to be stopped", DEADLINE, || {
        let now = json_of(&server, &["sandbox", "get", "web", "--json"]);
        assert_eq!(now["reason"], "timeout", "{now}");
        now["state"] == "stopped"
    });
    let table = stdout_of(&server, &["sandbox", "ls"]);
    assert!(table.contains("stopped (timeout)"), "{table}");
    // The reason belongs to that stop, not to a later one.
    assert_eq!(
        stdout_of(&server, &["sandbox", "start", "web"]),
        format!("{stopped}\n")
    );
    let started = json_of(&server, &["sandbox", "get", "web", "--json"]);
    assert_eq!(started["reason"], Value::Null);

    let destroyed = json!({ "timeout": 0, "alias": "brief" });
    let (destroyed, child) = running(&server, destroyed).await;
    set_timeout(&client, &destroyed).await;
    let text = end(child);
    let message = "atoll: the lifetime of sandbox brief ended: it was deleted with its files\n";
    assert!(text.starts_with(message), "{text}");
    assert!(text.ends_with("exit 124"), "{text}");
    let session = client.get(&format!("/sessions/{destroyed}")).await.json();
    assert_eq!(session["reason"], "timeout", "{session}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_reports_that_a_caller_ended_the_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let (id, child) = running(&server, json!({ "timeout": 0, "alias": "web" })).await;
    assert_eq!(
        stdout_of(&server, &["sandbox", "stop", "web"]),
        format!("{id}\n")
    );
    let text = end(child);
    let message =
        "atoll: sandbox web ended while the command ran: it was stopped and keeps its files\n";
    assert!(text.starts_with(message), "{text}");
    assert!(text.ends_with("exit 125"), "{text}");
    // A killed command does not end its sandbox.
    let (id, child) = running(&server, json!({ "timeout": 0 })).await;
    let all = client
        .get(&format!("/sandboxes/{id}/commands"))
        .await
        .array();
    let exec = all[0]["execID"].as_str().unwrap();
    let path = format!("/sandboxes/{id}/commands/{exec}/signal");
    assert!(client.post(&path, &json!({ "signal": 9 })).await.status < 300);
    assert_eq!(end(child), "exit 137");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shell_reports_that_the_sandbox_lifetime_ended() {
    let server = Server::start().await;
    let client = server.client();
    for (on_timeout, outcome) in [
        ("stop", "it was stopped and keeps its files"),
        ("destroy", "it was deleted with its files"),
    ] {
        let request = json!({ "timeout": 0, "alias": "web", "onTimeout": on_timeout });
        let id = client.sandbox(&request).await;
        let mut screen = Screen::start(atoll(&server, &["shell", "web"]));
        screen.kind("echo be''gun\n");
        screen.until("begun");
        set_timeout(&client, &id).await;
        assert_eq!(screen.end(), Some(124), "{on_timeout}");
        screen.until(&format!("the lifetime of sandbox web ended: {outcome}"));
        assert!(screen.is_usual(), "{on_timeout}");
        let _ = client.delete("/sandboxes/web").await;
    }
    // A stop by a caller is not reported as the end of the lifetime.
    client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let mut screen = Screen::start(atoll(&server, &["shell", "web"]));
    screen.kind("echo be''gun\n");
    screen.until("begun");
    stdout_of(&server, &["stop", "web"]);
    assert_eq!(screen.end(), Some(125));
    screen.until("sandbox web ended while the terminal was open");
    server.close().await;
}
