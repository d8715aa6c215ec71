//! The command history of a sandbox, before and after it is deleted.

use super::{json, stdout_of, tried, with_web};
use crate::api::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_are_listed_signalled_and_waited_for() {
    let server = with_web().await;
    let line = "trap 'exit 3' INT; echo ready; while :; do sleep 0.1; done";
    let id = stdout_of(&server, &["exec", "-d", "web", "--", "sh", "-c", line]);
    let id = id.trim_end();
    stdout_of(&server, &["exec", "web", "true"]);
    let running = ["commands", "ls", "web", "--running", "-q"];
    assert_eq!(stdout_of(&server, &running), format!("{id}\n"));
    let all = json(&server, &["commands", "ls", "web", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
    let table = stdout_of(&server, &["commands", "ps", "web"]);
    for word in ["COMMAND", id, "running", "exited (0)", "sh -c 'trap "] {
        assert!(table.contains(word), "{table}");
    }
    let one = json(&server, &["commands", "get", "web", id, "--json"]);
    assert_eq!(one["args"][1], line);
    let shown = stdout_of(&server, &["commands", "show", "web", id]);
    assert!(shown.contains("running"), "{shown}");
    // The trap is set when the line was printed.
    let ready = || stdout_of(&server, &["logs", "web"]).contains("ready");
    atoll_testkit::wait_for("the trap", crate::harness::DEADLINE, ready);
    let signal = ["commands", "signal", "web", id, "--signal", "SIGINT"];
    assert_eq!(stdout_of(&server, &signal), format!("{id}\n"));
    assert_eq!(stdout_of(&server, &["commands", "wait", "web", id]), "3\n");
    assert_eq!(stdout_of(&server, &running), "");

    let id = stdout_of(&server, &["exec", "-d", "web", "sleep", "1000"]);
    let id = id.trim_end();
    stdout_of(&server, &["commands", "kill", "web", "-s", "9", id]);
    let ended = json(&server, &["commands", "wait", "web", id, "--json"]);
    assert_eq!(ended["signal"], 9, "{ended}");
    assert!(stdout_of(&server, &["commands", "ls", "web"]).contains("killed (KILL)"));

    let none = "exec_aaaaabbbbbcccccddddd";
    for (args, code, words) in [
        (
            &["commands", "get", "web", none][..],
            4,
            "atoll commands ls",
        ),
        (&["commands", "signal", "web", none], 4, "atoll commands ls"),
        (
            &["commands", "signal", "web", none, "-s", "X"],
            2,
            "like TERM",
        ),
        (&["commands", "ls", "missing"], 4, "atoll ls"),
    ] {
        let (text, got) = tried(&server, args);
        assert_eq!(got, Some(code), "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_outlives_a_sandbox() {
    let server = Server::start().await;
    let create = ["create", "--json", "--name", "old", "--timeout", "1h"];
    let made = json(&server, &create);
    let id = made["sandboxID"].as_str().unwrap();
    let (_, code) = tried(&server, &["exec", "old", "--", "sh", "-c", "exit 4"]);
    assert_eq!(code, Some(4));
    stdout_of(&server, &["rm", id]);
    assert_eq!(stdout_of(&server, &["history", "-q"]), format!("{id}\n"));
    let table = stdout_of(&server, &["history"]);
    for word in [id, "old", "deleted", " ago"] {
        assert!(table.contains(word), "{table}");
    }
    let session = made["sessionID"].as_str().unwrap();
    for name in [id, "old", session, &id[..12]] {
        let run = json(&server, &["history", name, "--json"]);
        assert_eq!(run.as_array().unwrap().len(), 1, "{name}: {run}");
        assert_eq!(run[0]["exitCode"], 4, "{name}: {run}");
    }
    assert!(stdout_of(&server, &["history", "old"]).contains("exited (4)"));
    let events = stdout_of(&server, &["history", "old", "--events"]);
    for word in ["sandbox.created", "sandbox.deleted"] {
        assert!(events.contains(word), "{events}");
    }
    assert_eq!(
        stdout_of(&server, &["history", "-q", "-n", "1"])
            .lines()
            .count(),
        1
    );
    // If a name was used again, the newest sandbox is shown.
    let made = json(&server, &create);
    stdout_of(&server, &["exec", "old", "true"]);
    let run = json(&server, &["history", "old", "--json"]);
    assert_eq!(run[0]["exitCode"], 0, "{run}");
    let (text, code) = tried(&server, &["history", "missing"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("`atoll history` lists"), "{text}");
    stdout_of(&server, &["rm", made["sandboxID"].as_str().unwrap()]);
    server.close().await;
}
