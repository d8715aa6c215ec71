//! Lists the terminals of a sandbox; `shell --attach` selects the one to join.

use atoll_testkit::wait_for;

use super::screen::Screen;
use super::{atoll, json, stdout_of, tried, with_web};
use crate::api::Server;
use crate::harness::DEADLINE;

/// The ids of the running terminals, newest first.
fn ids(server: &Server) -> Vec<String> {
    let listed = stdout_of(server, &["shell", "ls", "web", "-q"]);
    listed.lines().map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_are_listed_joined_and_ended() {
    let server = with_web().await;
    assert_eq!(ids(&server), Vec::<String>::new());
    let (text, code) = tried(&server, &["shell", "web", "--attach"]);
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("`atoll shell web` opens one"), "{text}");

    let mut first = Screen::start(atoll(&server, &["shell", "web"]));
    first.kind("x=first; echo be''gun\n");
    first.until("begun");
    let listed = json(&server, &["shell", "ls", "web", "--json"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(
        (&listed[0]["state"], &listed[0]["cols"], &listed[0]["rows"]),
        (&"running".into(), &90.into(), &20.into())
    );
    assert!(listed[0]["startedAt"].is_string(), "{listed}");
    let table = stdout_of(&server, &["shell", "list", "web"]);
    for word in ["ID", "PROGRAM", "login shell", "90x20", "running"] {
        assert!(table.contains(word), "{table}");
    }
    // A single terminal needs no name, before or after the sandbox.
    for args in [["shell", "web", "--attach"], ["shell", "--attach", "web"]] {
        let mut again = Screen::start(atoll(&server, &args));
        again.kind("echo $x a''gain\n");
        again.until("first again");
        again.child.kill().unwrap();
    }
    first.child.kill().unwrap();

    let program = ["shell", "web", "--", "sh", "-c", "echo se''cond; exec cat"];
    let mut second = Screen::start(atoll(&server, &program));
    second.until("second");
    second.child.kill().unwrap();
    let both = ids(&server);
    assert_eq!(both.len(), 2);
    assert!(stdout_of(&server, &["shell", "ls", "web"]).contains("exec cat'"));
    // Without a terminal for the prompt, the error lists the terminals.
    let (text, code) = tried(&server, &["shell", "web", "--attach"]);
    assert_eq!(code, Some(125), "{text}");
    let remedy = format!("name one with --attach: {}, {}", both[0], both[1]);
    assert!(text.contains(&remedy), "{text}");
    // On a terminal, the newest has the first number.
    let mut wrong = Screen::start(atoll(&server, &["shell", "web", "--attach"]));
    wrong.until("join which (1 to 2)? ");
    wrong.kind("3\n");
    assert_eq!(wrong.end(), Some(125));
    wrong.until("type one of the numbers");
    let mut chosen = Screen::start(atoll(&server, &["shell", "web", "--attach"]));
    chosen.until("join which (1 to 2)? ");
    chosen.kind("2\n");
    chosen.kind("echo $x ch''osen\n");
    chosen.until("first chosen");
    chosen.kind("exit 5\n");
    assert_eq!(chosen.end(), Some(5));

    assert_eq!(
        stdout_of(&server, &["shell", "rm", "web", &both[0]]),
        format!("{}\n", both[0])
    );
    wait_for("the end of the terminals", DEADLINE, || {
        ids(&server).is_empty()
    });
    let (text, code) = tried(&server, &["shell", "rm", "web", &both[0]]);
    assert_eq!(code, Some(4), "{text}");
    // Without a sandbox, the command does not guess one.
    let (text, code) = tried(&server, &["shell", "--attach", &both[0]]);
    assert_eq!(code, Some(125), "{text}");
    assert!(
        text.contains("the sandbox of the terminal is missing"),
        "{text}"
    );
    server.close().await;
}
