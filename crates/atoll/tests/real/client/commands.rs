//! What each command does, and that programs can read it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use atoll_testkit::{Scratch, wait_for};
use serde_json::Value;

use super::{atoll, done, json, operator, plain, said, tried};
use crate::api::Server;
use crate::cli::told;
use crate::world::DEADLINE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_are_made_listed_changed_and_removed() {
    let server = Server::start().await;
    let id = said(
        &server,
        &["sandbox", "create", "--name", "web", "--timeout", "1h"],
    );
    let id = id.trim();
    assert_eq!(id.len(), 21, "{id}");
    let made = json(
        &server,
        &[
            "sandbox", "create", "--json", "--memory", "512M", "--cpus", "0.5", "-e", "A=b",
        ],
    );
    assert_eq!(
        (&made["memoryMB"], &made["cpuCount"]),
        (&512.into(), &0.5.into())
    );
    let other = made["sandboxID"].as_str().unwrap();
    let listed = json(&server, &["sandbox", "ls", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(said(&server, &["sandbox", "ls", "-q"]).lines().count(), 2);
    let table = said(&server, &["sandbox", "ls"]);
    assert!(
        table.contains(id) && table.contains("web") && table.contains("512 MiB"),
        "{table}"
    );
    // Its variables are there.
    assert_eq!(
        said(&server, &["exec", other, "sh", "-c", "echo $A"]),
        "b\n"
    );
    // By id, by name, and by a beginning of either that only it has.
    let beginning = (1..id.len()).map(|length| &id[..length]);
    let beginning = beginning
        .into_iter()
        .find(|begin| !other.starts_with(begin))
        .unwrap();
    for name in [id, "web", "we", beginning] {
        assert_eq!(
            json(&server, &["sandbox", "get", name, "--json"])["sandboxID"],
            id,
            "{name}"
        );
    }
    let (text, code) = tried(&server, &["sandbox", "get", "i"]);
    assert!(
        code == Some(2) && text.contains("2 sandboxes begin with"),
        "{text}"
    );
    for (verb, state) in [
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "stopped"),
        ("start", "running"),
    ] {
        assert_eq!(said(&server, &["sandbox", verb, "web"]), format!("{id}\n"));
        assert_eq!(
            json(&server, &["sandbox", "get", "web", "--json"])["state"],
            state
        );
    }
    assert_eq!(
        said(&server, &["sandbox", "timeout", "web", "0"]),
        "without end\n"
    );
    assert!(said(&server, &["sandbox", "timeout", "web", "10m"]).starts_with("20"));
    assert!(
        json(&server, &["top", "--json"])["sandboxes"]
            .as_array()
            .unwrap()
            .len()
            == 2
    );
    assert!(said(&server, &["top"]).contains("pool"));
    assert_eq!(
        said(&server, &["sandbox", "rm", "web", other])
            .lines()
            .count(),
        2
    );
    assert_eq!(tried(&server, &["sandbox", "rm", "web"]).1, Some(4));
    assert_eq!(
        json(&server, &["sandbox", "ls", "--json"]),
        Value::Array(Vec::new())
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_our_input_output_and_code() {
    let server = Server::start().await;
    let id = server
        .client()
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    assert_eq!(said(&server, &["exec", &id, "echo", "hi"]), "hi\n");
    let output = done(
        atoll(&server, &["exec", "web", "tr", "a-z", "A-Z"]),
        b"hello",
    );
    assert_eq!(told(&output), "HELLOexit 0");
    let output = done(
        atoll(
            &server,
            &[
                "exec",
                "web",
                "--",
                "sh",
                "-c",
                "echo a; echo b >&2; exit 3",
            ],
        ),
        b"",
    );
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"a\n"[..], &b"b\n"[..])
    );
    assert_eq!(output.status.code(), Some(3));
    let there = said(
        &server,
        &[
            "exec",
            "--cwd",
            "/etc",
            "-e",
            "A=b c",
            "--user",
            "root",
            "web",
            "sh",
            "-c",
            "pwd; id -u; echo $A",
        ],
    );
    assert_eq!(there, "/etc\n0\nb c\n");
    assert_eq!(
        tried(&server, &["exec", "--timeout", "1s", "web", "sleep", "60"]).1,
        Some(124)
    );
    assert_eq!(
        tried(&server, &["exec", "web", "no-such-program"]).1,
        Some(127)
    );
    assert_eq!(
        tried(&server, &["exec", "web", "/etc/hostname"]).1,
        Some(126)
    );
    assert_eq!(tried(&server, &["exec", "nobody", "true"]).1, Some(125));
    assert_eq!(tried(&server, &["exec", "web"]).1, Some(125));
    // Without a URL, root's own socket.
    assert_eq!(
        told(&done(
            operator(&server, &["exec", "web", "echo", "root"]),
            b""
        )),
        "root\nexit 0"
    );
    // In the background: its id, and what it wrote.
    let exec = said(&server, &["exec", "-d", "web", "sh", "-c", "echo late"]);
    let exec = exec.trim();
    assert_eq!(
        said(&server, &["logs", "web", "--exec", exec, "-f"]),
        "late\n"
    );
    let all = said(&server, &["logs", "web"]);
    assert!(
        all.starts_with("hi\nHELLO") && all.ends_with("late\n"),
        "{all}"
    );
    for line in said(&server, &["logs", "web", "--json"]).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["execID"].is_string(), "{line}");
    }
    let happened = said(&server, &["events", "web", "--json"]);
    let first: Value = serde_json::from_str(happened.lines().next().unwrap()).unwrap();
    assert_eq!(first["type"], "sandbox.created");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_listed_read_made_watched_and_removed() {
    let server = Server::start().await;
    server
        .client()
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    assert_eq!(said(&server, &["files", "mkdir", "web", "a/b"]), "");
    let mut watch = atoll(&server, &["files", "watch", "web", "a", "-r", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    // It may begin a moment after it was started: something happens until it is heard.
    let heard = std::thread::spawn(move || lines.next().unwrap().unwrap());
    wait_for("an event", DEADLINE, || {
        said(&server, &["exec", "web", "sh", "-c", "echo x > a/b/c"]);
        heard.is_finished()
    });
    let event: Value = serde_json::from_str(&heard.join().unwrap()).unwrap();
    assert_eq!(event["path"], "b/c", "{event}");
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(said(&server, &["files", "cat", "web", "a/b/c"]), "x\n");
    let listed = json(
        &server,
        &["files", "ls", "web", "a", "--depth", "2", "--json"],
    );
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(said(&server, &["files", "ls", "web", "a"]).contains("b/"));
    let (text, code) = tried(&server, &["files", "rm", "web", "a"]);
    assert_ne!(code, Some(0), "{text}");
    assert_eq!(said(&server, &["files", "rm", "-r", "web", "a"]), "");
    assert_eq!(tried(&server, &["files", "ls", "web", "a"]).1, Some(4));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_of_a_sandbox_is_a_port_of_ours() {
    let server = Server::start().await;
    server
        .client()
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    said(
        &server,
        &[
            "exec",
            "-d",
            "web",
            "python3",
            "-m",
            "http.server",
            "--bind",
            "127.0.0.1",
            "8000",
        ],
    );
    wait_for("the port", DEADLINE, || {
        json(&server, &["ports", "web", "--json"])[0]["port"] == 8000
    });
    assert!(said(&server, &["ports", "web"]).contains("8000"));
    let mut forward = atoll(&server, &["forward", "web", "0:8000", "--json"]);
    let mut forward = forward.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(forward.stdout.take().unwrap()).lines();
    let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    for _ in 0..3 {
        let mut stream = std::net::TcpStream::connect(line["local"].as_str().unwrap()).unwrap();
        stream.write_all(b"GET /etc/ HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.contains("200 OK") || answer.contains("404"),
            "{answer}"
        );
    }
    forward.kill().unwrap();
    forward.wait().unwrap();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_tried_and_remembered_for_its_owner_alone() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let (url, key) = (
        format!("http://{}", server.address()),
        server.client().key.unwrap(),
    );
    let here = |args: &[&str], input: &str| {
        let mut command = plain(args);
        command.env("XDG_CONFIG_HOME", scratch.path());
        done(command, input.as_bytes())
    };
    let wrong = here(&["login", &url], "atl_0000\n");
    assert_eq!(wrong.status.code(), Some(3), "{}", told(&wrong));
    let file = scratch.join("atoll/config.toml");
    assert!(!file.exists());
    let right = here(&["login", &url, "--profile", "here"], &format!("{key}\n"));
    assert_eq!(right.status.code(), Some(0), "{}", told(&right));
    assert_eq!(String::from_utf8_lossy(&right.stdout), "");
    assert!(!told(&right).contains(&key));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("default = \"here\"") && text.contains("[profiles.here]"),
        "{text}"
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(told(&here(&["sandbox", "ls", "-q"], "")), "exit 0");
    let unknown = here(&["sandbox", "ls", "--profile", "there"], "");
    assert_eq!(unknown.status.code(), Some(4), "{}", told(&unknown));
    assert!(
        told(&unknown).contains("there are: here"),
        "{}",
        told(&unknown)
    );
    std::fs::write(&file, "default = 7").unwrap();
    let broken = here(&["sandbox", "ls"], "");
    assert_eq!(broken.status.code(), Some(2), "{}", told(&broken));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_trusted_when_somebody_vouches_for_it() {
    let scratch = Scratch::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (scratch.join("cert.pem"), scratch.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = [
        "--tls-cert",
        certificate.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let server = Server::start_with(&flags).await;
    let made = done(
        operator(&server, &["sandbox", "create", "--name", "web"]),
        b"",
    );
    assert!(made.status.success(), "{}", told(&made));
    let (_, port) = server.address().split_once(':').unwrap();
    let mut command = atoll(&server, &["exec", "web", "cat"]);
    command.env("ATOLL_URL", format!("https://localhost:{port}"));
    let unknown = done(command, b"");
    assert_eq!(unknown.status.code(), Some(125), "{}", told(&unknown));
    assert!(
        told(&unknown).contains("ATOLL_CA_FILE"),
        "{}",
        told(&unknown)
    );
    let mut command = atoll(&server, &["exec", "web", "cat"]);
    command.env("ATOLL_URL", format!("https://localhost:{port}"));
    command.env("ATOLL_CA_FILE", &certificate);
    assert_eq!(told(&done(command, b"hidden")), "hiddenexit 0");
    let gone = done(operator(&server, &["sandbox", "rm", "web"]), b"");
    assert!(gone.status.success(), "{}", told(&gone));
    server.end_and_clear();
}
