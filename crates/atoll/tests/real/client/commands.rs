//! The effect of each command, and its machine-readable output.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use atoll_testkit::{Scratch, wait_for};
use serde_json::Value;

use super::{Bad, Line, atoll, done, json, operator, stdout_of, tried};
use crate::api::Server;
use crate::cli::output_text;
use crate::harness::DEADLINE;

/// Runs each test over a stable connection, and over one that breaks repeatedly.
macro_rules! over_both {
    ($( $fact:ident, $bad:ident => $work:ident; )*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $fact() {
            let server = Server::start().await;
            $work(&server, &server).await;
            server.close().await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $bad() {
            let server = Server::start().await;
            let line = Bad::new(&server, 17);
            $work(&server, &line).await;
            assert!(line.cutter.cuts() > 3, "{} cuts", line.cutter.cuts());
            drop(line);
            server.close().await;
        }
    )*};
}

over_both! {
    sandboxes_are_created_listed_changed_and_removed, sandboxes_work_over_a_bad_line => sandboxes;
    command_forwards_input_output_and_exit_code, commands_work_over_a_bad_line => commands;
    files_are_listed_read_written_watched_and_removed, files_work_over_a_bad_line => files;
    sandbox_port_is_forwarded_to_a_local_port, ports_work_over_a_bad_line => ports;
    events_are_printed_as_they_occur, events_are_printed_over_a_bad_line => events;
    run_works_over_a_stable_line, run_works_over_a_bad_line => runs;
}

async fn sandboxes(server: &Server, line: &impl Line) {
    let create = ["sandbox", "create", "--name", "web", "--timeout", "1h"];
    let created = done(atoll(line, &create), b"");
    assert!(created.status.success(), "{}", output_text(&created));
    let id = String::from_utf8(created.stdout).unwrap();
    let id = id.trim();
    assert_eq!(id.len(), 21, "{id}");
    let made = json(
        line,
        &[
            "sandbox", "create", "--json", "--memory", "512M", "--cpus", "0.5", "-e", "A=b",
        ],
    );
    assert_eq!(
        (&made["memoryMB"], &made["cpuCount"]),
        (&512.into(), &0.5.into())
    );
    let other = made["sandboxID"].as_str().unwrap();
    let listed = json(line, &["sandbox", "ls", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(stdout_of(line, &["sandbox", "ls", "-q"]).lines().count(), 2);
    let table = stdout_of(line, &["sandbox", "ls"]);
    assert!(
        table.contains(id) && table.contains("web") && table.contains("512 MiB"),
        "{table}"
    );
    // The variables are set.
    assert_eq!(
        stdout_of(line, &["exec", other, "sh", "-c", "echo $A"]),
        "b\n"
    );
    // By id, by name, and by a unique prefix of either.
    let beginning = (1..id.len()).map(|length| &id[..length]);
    let beginning = beginning
        .into_iter()
        .find(|begin| !other.starts_with(begin))
        .unwrap();
    for name in [id, "web", "we", beginning] {
        assert_eq!(
            json(line, &["sandbox", "get", name, "--json"])["sandboxID"],
            id,
            "{name}"
        );
    }
    let (text, code) = tried(line, &["sandbox", "get", "i"]);
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
        assert_eq!(
            stdout_of(line, &["sandbox", verb, "web"]),
            format!("{id}\n")
        );
        assert_eq!(
            json(line, &["sandbox", "get", "web", "--json"])["state"],
            state
        );
    }
    let changed = json(line, &["sandbox", "pause", "web", "--json"]);
    assert_eq!(
        (&changed["sandboxID"], &changed["state"]),
        (&id.into(), &"paused".into())
    );
    assert_eq!(
        json(line, &["sandbox", "resume", "web", "--json"])["state"],
        "running"
    );
    let timed = json(line, &["sandbox", "timeout", "web", "1h", "--json"]);
    assert!(timed["endAt"].is_string(), "{timed}");
    assert_eq!(
        stdout_of(line, &["sandbox", "timeout", "web", "0"]),
        "without end\n"
    );
    assert!(stdout_of(line, &["sandbox", "timeout", "web", "10m"]).starts_with("20"));
    assert!(
        json(line, &["top", "--json"])["sandboxes"]
            .as_array()
            .unwrap()
            .len()
            == 2
    );
    assert!(stdout_of(line, &["top"]).contains("pool"));
    assert_eq!(
        stdout_of(line, &["sandbox", "rm", "web", other])
            .lines()
            .count(),
        2
    );
    assert_eq!(tried(line, &["sandbox", "rm", "web"]).1, Some(4));
    let id = stdout_of(line, &["sandbox", "create", "--timeout", "0"]);
    let removed = json(line, &["sandbox", "rm", id.trim(), "--json"]);
    assert_eq!(removed, serde_json::json!({ "sandboxID": id.trim() }));
    assert_eq!(
        json(line, &["sandbox", "ls", "--json"]),
        Value::Array(Vec::new())
    );
    assert!(server.client().get("/sandboxes").await.array().is_empty());
}

async fn commands(server: &Server, line: &impl Line) {
    let id = server
        .client()
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    assert_eq!(stdout_of(line, &["exec", &id, "echo", "hi"]), "hi\n");
    let output = done(atoll(line, &["exec", "web", "tr", "a-z", "A-Z"]), b"hello");
    assert_eq!(output_text(&output), "HELLOexit 0");
    let output = done(
        atoll(
            line,
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
    let there = stdout_of(
        line,
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
        tried(line, &["exec", "--timeout", "1s", "web", "sleep", "60"]).1,
        Some(124)
    );
    assert_eq!(
        tried(line, &["exec", "web", "no-such-program"]).1,
        Some(127)
    );
    assert_eq!(tried(line, &["exec", "web", "/etc/hostname"]).1, Some(126));
    assert_eq!(tried(line, &["exec", "missing", "true"]).1, Some(125));
    assert_eq!(tried(line, &["exec", "web"]).1, Some(125));
    // Without a URL, root's own socket.
    assert_eq!(
        output_text(&done(
            operator(server, &["exec", "web", "echo", "root"]),
            b""
        )),
        "root\nexit 0"
    );
    // In the background: prints the id; the output is stored.
    let exec = stdout_of(line, &["exec", "-d", "web", "sh", "-c", "echo late"]);
    let exec = exec.trim();
    assert_eq!(
        stdout_of(line, &["logs", "web", "--exec", exec, "-f"]),
        "late\n"
    );
    let exec = json(line, &["exec", "-d", "--json", "web", "true"]);
    assert_eq!(exec["sandboxID"], id);
    let exec = exec["execID"].as_str().unwrap();
    assert_eq!(stdout_of(line, &["logs", "web", "--exec", exec, "-f"]), "");
    let all = stdout_of(line, &["logs", "web"]);
    assert!(
        all.starts_with("hi\nHELLO") && all.ends_with("late\n"),
        "{all}"
    );
    let mut follow = atoll(line, &["logs", "web", "-f"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut followed = vec![0; all.len()];
    let mut stdout = follow.stdout.take().unwrap();
    stdout.read_exact(&mut followed).unwrap();
    assert_eq!(String::from_utf8_lossy(&followed), all);
    follow.kill().unwrap();
    follow.wait().unwrap();
    for line in stdout_of(line, &["logs", "web", "--json"]).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["execID"].is_string(), "{line}");
    }
    let happened = stdout_of(line, &["events", "web", "--json"]);
    let first: Value = serde_json::from_str(happened.lines().next().unwrap()).unwrap();
    assert_eq!(first["type"], "sandbox.created");
}

async fn files(server: &Server, line: &impl Line) {
    server
        .client()
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    assert_eq!(stdout_of(line, &["files", "mkdir", "web", "a/b"]), "");
    let mut watch = atoll(line, &["files", "watch", "web", "a", "-r", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    // The watch may become active after the command's start: create changes until one is reported.
    let heard = std::thread::spawn(move || {
        let mut lines = lines.map(Result::unwrap);
        lines.find(|line| !line.contains("\"break\"")).unwrap()
    });
    wait_for("an event", DEADLINE, || {
        stdout_of(line, &["exec", "web", "sh", "-c", "echo x > a/b/c"]);
        heard.is_finished()
    });
    let event: Value = serde_json::from_str(&heard.join().unwrap()).unwrap();
    assert_eq!(event["path"], "b/c", "{event}");
    // Human-readable: the kind and the path; a notice about lost events goes to standard error.
    let mut people = atoll(line, &["files", "watch", "web", "a", "-r"]);
    let people = people.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut people = people.spawn().unwrap();
    let mut output_lines = BufReader::new(people.stdout.take().unwrap()).lines();
    let heard = std::thread::spawn(move || {
        output_lines.find(|line| line.as_ref().unwrap() == "create b/d")
    });
    wait_for("a line", DEADLINE, || {
        stdout_of(
            line,
            &["exec", "web", "sh", "-c", "rm -f a/b/d; echo x > a/b/d"],
        );
        heard.is_finished()
    });
    assert!(heard.join().unwrap().is_some());
    people.kill().unwrap();
    let stderr = people.wait_with_output().unwrap().stderr;
    for line in String::from_utf8(stderr).unwrap().lines() {
        assert!(line.starts_with("atoll: the connection broke"), "{line}");
    }
    stdout_of(line, &["exec", "web", "rm", "-f", "a/b/d"]);
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(stdout_of(line, &["files", "cat", "web", "a/b/c"]), "x\n");
    let listed = json(line, &["files", "ls", "web", "a", "--depth", "2", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(stdout_of(line, &["files", "ls", "web", "a"]).contains("b/"));
    let (text, code) = tried(line, &["files", "rm", "web", "a"]);
    assert_ne!(code, Some(0), "{text}");
    assert_eq!(stdout_of(line, &["files", "rm", "-r", "web", "a"]), "");
    assert_eq!(tried(line, &["files", "ls", "web", "a"]).1, Some(4));
}

async fn ports(server: &Server, line: &impl Line) {
    server
        .client()
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    stdout_of(
        line,
        &["exec", "web", "sh", "-c", "echo this is known > known"],
    );
    stdout_of(
        line,
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
        json(line, &["ports", "web", "--json"])[0]["port"] == 8000
    });
    assert!(stdout_of(line, &["ports", "web"]).contains("8000"));
    let mut forward = atoll(line, &["forward", "web", "0:8000", "--json"]);
    let mut forward = forward.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(forward.stdout.take().unwrap()).lines();
    let place: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    // A forwarded connection breaks with the connection to the server; the port stays open.
    let mut whole = 0;
    wait_for("whole answers", DEADLINE, || {
        let mut stream = TcpStream::connect(place["local"].as_str().unwrap()).unwrap();
        let _ = stream.write_all(b"GET /known HTTP/1.0\r\n\r\n");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        whole += usize::from(answer.contains("200 OK") && answer.ends_with("this is known\n"));
        whole == 3
    });
    forward.kill().unwrap();
    forward.wait().unwrap();
}

async fn events(server: &Server, line: &impl Line) {
    let client = server.client();
    let mut follow = atoll(line, &["events", "--after", "0"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let follow_lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let id = client
        .sandbox(&serde_json::json!({ "timeout": 0, "alias": "web" }))
        .await;
    let mut one = atoll(line, &["events", "web", "-f", "--json"]);
    let mut one = one.stdout(Stdio::piped()).spawn().unwrap();
    let one_lines = BufReader::new(one.stdout.take().unwrap()).lines();
    let mut kinds = vec!["sandbox.created", "sandbox.running"];
    for number in 0..20 {
        let verb = if number % 2 == 0 { "pause" } else { "resume" };
        stdout_of(line, &["sandbox", verb, "web"]);
        // Events of another sandbox are not shown.
        let other = client.sandbox(&serde_json::json!({})).await;
        client.delete(&format!("/sandboxes/{other}")).await;
        kinds.push(if number % 2 == 0 {
            "sandbox.paused"
        } else {
            "sandbox.running"
        });
    }
    // Every event, once, and in order.
    let own: Vec<Value> = one_lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .filter(|event: &Value| event["type"] != "sandbox.changed")
        .take(kinds.len())
        .collect();
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    assert_eq!(own.iter().map(kind).collect::<Vec<_>>(), kinds);
    let all = follow_lines
        .map(Result::unwrap)
        .filter(|line| line.contains(&id) && !line.contains("sandbox.changed"));
    for (kind, printed) in kinds.iter().zip(all) {
        assert!(
            printed.contains(kind) && printed.ends_with("  web"),
            "{printed}"
        );
    }
    for child in [&mut follow, &mut one] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // With `--after`, only later events.
    let after = own[19]["number"].to_string();
    let last = stdout_of(line, &["events", "web", "--after", &after, "--json"]);
    let last = last.lines().map(|line| serde_json::from_str(line).unwrap());
    let last: Vec<Value> = last
        .filter(|event: &Value| event["type"] != "sandbox.changed")
        .collect();
    assert_eq!(last, own[20..]);
}

async fn runs(server: &Server, line: &impl Line) {
    let scratch = Scratch::new();
    let (there, back) = (scratch.join("there"), scratch.join("back"));
    std::fs::write(&there, atoll_testkit::pattern(100_000).to_vec()).unwrap();
    let upload = format!("{}:there", there.display());
    let download = format!("there:{}", back.display());
    for number in 0..5 {
        let command = format!("cat; exit {number}");
        let args = [
            "run",
            "--upload",
            &upload,
            "--download",
            &download,
            "--",
            "sh",
            "-c",
            &command,
        ];
        let output = done(atoll(line, &args), b"in");
        assert_eq!(output_text(&output), format!("inexit {number}"));
        assert_eq!(
            std::fs::read(&back).unwrap(),
            std::fs::read(&there).unwrap()
        );
        std::fs::remove_file(&back).unwrap();
    }
    let left = server.client().get("/sandboxes").await.array();
    assert!(left.is_empty(), "{left:?}");
}
