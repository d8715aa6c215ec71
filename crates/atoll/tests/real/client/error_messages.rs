//! Errors are reported in one or two lines, with a remedy and the right exit code.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use serde_json::json;

use super::{atoll, done, plain};
use crate::api::Server;
use crate::cli::output_text;

/// Two lines on standard error, the second a hint, and nothing on standard output.
#[track_caller]
fn refused(command: Command, code: i32, words: &str) {
    let name = format!("{command:?}");
    let output = done(command, b"");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{name}: {}",
        output_text(&output)
    );
    assert!(
        text.starts_with("atoll: ") && text.contains(words),
        "{name}: {text}"
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{name}: {text}");
    assert!(lines[1].starts_with("  hint: "), "{name}: {text}");
    // Messages for people contain no routes.
    assert!(!text.contains("GET /"), "{name}: {text}");
    assert_eq!(output.stdout, b"", "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_keys_urls_and_servers_are_reported() {
    let server = Server::start().await;
    let mut command = atoll(&server, &["sandbox", "ls"]);
    command.env("ATOLL_API_KEY", format!("atl_{}", "0".repeat(64)));
    refused(command, 3, "key");
    let mut command = atoll(&server, &["sandbox", "ls"]);
    command.env_remove("ATOLL_API_KEY");
    refused(command, 3, "key");
    let mut command = atoll(&server, &["exec", "web", "true"]);
    command.env_remove("ATOLL_API_KEY");
    refused(command, 125, "key");
    for url in ["localhost:8080", "ftp://host", "http://", "unix://relative"] {
        let mut command = plain(&["sandbox", "ls"]);
        command.env("ATOLL_URL", url);
        refused(command, 2, "is not where a server is");
    }
    refused(
        plain(&["sandbox", "ls", "--url", "nonsense"]),
        2,
        "is not where a server is",
    );
    // A port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (args, code) in [
        (&["sandbox", "ls"][..], 7),
        (&["exec", "web", "true"], 125),
        (&["cp", "/etc/hostname", "web:"], 7),
        (&["run", "--", "true"], 125),
        (&["login", "--no-key"], 7),
    ] {
        let mut command = plain(args);
        command.env("ATOLL_URL", format!("http://{free}"));
        if args[0] == "login" {
            command.arg(format!("http://{free}"));
        }
        refused(command, code, "no server can be reached");
    }
    // No server is configured, and none runs on this machine.
    refused(plain(&["sandbox", "ls"]), 7, "no server can be reached");
    // A server of Atoll, but an unknown path.
    let mut command = atoll(&server, &["sandbox", "ls"]);
    command.env("ATOLL_URL", format!("http://{}/below", server.address()));
    refused(command, 4, "hint: check the URL");
    // Not a server of Atoll: its response has another format.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello");
    });
    let mut command = plain(&["sandbox", "ls"]);
    command.env("ATOLL_URL", format!("http://{at}"));
    refused(command, 4, "not one of an Atoll server");
    answering.join().unwrap();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_sandboxes_and_files_are_reported() {
    let server = Server::start().await;
    let client = server.client();
    client
        .sandbox(&json!({ "timeout": 0, "alias": "web" }))
        .await;
    let gone = client.sandbox(&json!({})).await;
    assert_eq!(
        client.delete(&format!("/sandboxes/{gone}")).await.status,
        204
    );
    let full = json!({ "path": "full/of" });
    let made = client.post("/sandboxes/web/files/mkdir", &full).await;
    assert_eq!(made.status, 204);
    let ls = "hint: `atoll ls`";
    let path = "hint: check the path";
    for (args, code, words) in [
        (vec!["sandbox", "get", &gone], 4, ls),
        (vec!["sandbox", "get", "missing"], 4, ls),
        (vec!["sandbox", "rm", "missing"], 4, ls),
        (vec!["sandbox", "timeout", &gone, "1h"], 4, ls),
        (vec!["exec", &gone, "true"], 125, ls),
        (vec!["files", "ls", &gone], 4, ls),
        (vec!["logs", &gone], 4, ls),
        (vec!["logs", &gone, "-f"], 4, ls),
        (vec!["ports", &gone], 4, ls),
        (vec!["forward", &gone, "0:80"], 4, ls),
        (vec!["events", "missing"], 4, ls),
        (vec!["cp", "/etc/hostname", "missing:x"], 4, ls),
        (
            vec!["files", "cat", "web", "/etc"],
            2,
            "name a regular file",
        ),
        (vec!["files", "cat", "web", "nothing"], 4, path),
        (vec!["files", "ls", "web", "nothing"], 4, path),
        (
            vec!["files", "ls", "web", "/etc/hostname"],
            2,
            "use a directory",
        ),
        (
            vec!["files", "mkdir", "web", "/etc/hostname/x"],
            2,
            "use a directory",
        ),
        (vec!["files", "rm", "web", "nothing"], 4, path),
        (
            vec!["files", "rm", "web", "full"],
            5,
            "remove it recursively",
        ),
        (vec!["files", "watch", "web", "nothing"], 4, path),
        (
            vec!["files", "cat", "web", "/etc/shadow"],
            3,
            "such as root",
        ),
        (vec!["files", "mkdir", "web", "/proc/x"], 4, path),
        (vec!["cp", "web:nothing", "."], 4, path),
        (vec!["cp", "/nothing", "web:"], 4, "/nothing cannot be read"),
        (
            vec!["cp", "web:/etc/hostname", "/nowhere/at/all"],
            4,
            "/nowhere/at/all cannot be written",
        ),
        (vec!["cp", "one", "two"], 2, "SANDBOX:PATH"),
        (vec!["cp", "web:one", "web:two"], 2, "SANDBOX:PATH"),
        (
            vec!["sandbox", "create", "--template", "nothing"],
            2,
            "\"nothing\"",
        ),
        (
            vec!["sandbox", "create", "--name", "web"],
            5,
            "the alias is taken",
        ),
        (
            vec!["sandbox", "create", "--memory", "much"],
            2,
            "hint: write it like 512M",
        ),
        (
            vec!["sandbox", "create", "--net", "lan"],
            2,
            "--net <none|internet>: \"lan\" is not a network",
        ),
        (
            vec!["sandbox", "timeout", "web", "long"],
            2,
            "hint: write it like 30s",
        ),
        (
            vec!["exec", "--timeout", "long", "web", "true"],
            125,
            "hint: write it like 30s",
        ),
        (
            vec!["forward", "web", "70000:80"],
            2,
            "hint: write them as LOCAL:REMOTE",
        ),
        (
            vec!["sandbox", "create", "--memory", "1000000"],
            2,
            "whole mebibytes",
        ),
        (
            vec!["logs", "web", "--exec", "exec_aaaaabbbbbcccccddddd"],
            4,
            "atoll commands ls",
        ),
        (vec!["logs", "web", "--exec", "odd"], 4, "atoll commands ls"),
        (
            vec!["exec", "--cwd", "/nothing", "web", "true"],
            125,
            "\"/nothing\" cannot be entered",
        ),
        (
            vec!["exec", "--user", "no-such-user", "web", "true"],
            125,
            "\"no-such-user\" is not known",
        ),
        (
            vec!["exec", "-e", "odd", "web", "true"],
            125,
            "write --env NAME=VALUE",
        ),
        (vec!["shell", "web"], 125, "`atoll exec` runs commands"),
        (
            vec!["run", "--mount", "/etc:/x", "--", "true"],
            125,
            "add --local",
        ),
        (
            vec!["run", "--name", "build", "--", "true"],
            125,
            "add --local",
        ),
        (
            vec!["run", "--cwd", "/nothing", "--", "true"],
            125,
            "\"/nothing\" cannot be entered",
        ),
        (
            vec!["run", "--user", "no-such-user", "--", "true"],
            125,
            "\"no-such-user\" is not known",
        ),
    ] {
        refused(atoll(&server, &args), code, words);
    }
    // None of the refused requests had an effect.
    assert_eq!(client.get("/sandboxes").await.array().len(), 1);
    assert_eq!(
        client.post("/sandboxes/web/stop", &json!({})).await.status,
        200
    );
    let start = "stopped cannot be used\n  hint: start it first: `atoll start`";
    refused(atoll(&server, &["exec", "web", "true"]), 125, start);
    refused(atoll(&server, &["files", "ls", "web"]), 5, start);
    server.close().await;
}
