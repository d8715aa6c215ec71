//! What README.md shows of a server and its clients is run, against a real one.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_testkit::{Scratch, run_within, wait_for};

use super::root;
use crate::api::Server;
use crate::cli::told;
use crate::client::screen::Screen;
use crate::sdk::python::tools;
use crate::sdk::typescript::Package;
use crate::world::{self, DEADLINE};

/// The one block of this kind that has these words.
fn block(kind: &str, words: &str) -> String {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let begin = format!("```{kind}\n");
    let blocks = text.split(&begin).skip(1);
    let mut found = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .filter(|block| block.contains(words));
    let block = found.next().unwrap().to_owned();
    assert_eq!(found.next(), None, "{words} is twice in README.md");
    block
}

/// A line of a shell, as a user of the server has it who is where the examples are read.
fn shell(server: &Server, place: &Path, line: &str) -> Command {
    let binaries = world::binary().parent().unwrap().display().to_string();
    let mut shell = Command::new("bash");
    shell.args(["-c", line]).current_dir(place);
    shell
        .env("PATH", format!("{binaries}:/usr/sbin:/usr/bin:/sbin:/bin"))
        .env("ATOLL_DATA_DIR", server.data())
        .env("XDG_CONFIG_HOME", place)
        .env_remove("ATOLL_URL")
        .env_remove("ATOLL_API_KEY")
        .stdin(Stdio::null());
    shell
}

/// What it says, when it works.
#[track_caller]
fn says(mut command: Command) -> String {
    let output = run_within(&mut command, Duration::from_mins(2), b"");
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_asked_as_the_readme_shows() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let block = block("sh", "admin.key")
        .replace("/var/lib/atoll", server.data().to_str().unwrap())
        .replace("127.0.0.1:8080", server.address());
    let lines: Vec<&str> = block.lines().collect();
    let [key, create, run] = lines.as_slice() else {
        panic!("three lines: {block}");
    };
    let made = says(shell(
        &server,
        scratch.path(),
        &format!("{key}\n{create} -sS"),
    ));
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let run = run.replace(
        "/ID/",
        &format!("/{}/", made["sandboxID"].as_str().unwrap()),
    );
    let ran = says(shell(&server, scratch.path(), &format!("{key}\n{run} -sS")));
    let ran: serde_json::Value = serde_json::from_str(&ran).unwrap();
    assert_eq!(ran["stdout"], "hello\n", "{ran}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_is_a_client_as_the_readme_shows() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.join("project")).unwrap();
    std::fs::write(
        scratch.join("project/Makefile"),
        "test:\n\t@echo all is well\n",
    )
    .unwrap();
    let block = block("sh", "atoll forward");
    let lines: Vec<&str> = block.lines().collect();
    let [create, cp, exec, open, forward] = lines.as_slice() else {
        panic!("five lines: {block}");
    };
    let here = |line: &str| shell(&server, scratch.path(), line);
    says(here(create));
    says(here(cp));
    assert_eq!(says(here(exec)), "all is well\n");
    let mut screen = Screen::start(here(open));
    screen.kind("cat work/Makefile; exit 7\n");
    screen.until("all is well");
    assert_eq!(screen.end(), Some(7));
    let serve = "atoll exec -d --user root web -- python3 -m http.server --bind 127.0.0.1 80";
    says(here(serve));
    wait_for("the port", DEADLINE, || {
        says(here("atoll ports web")).contains("80")
    });
    // A port that is free here.
    let forward = forward.replace("8080:", "0:");
    let mut forward = here(&format!("exec {forward}"));
    let mut forward = forward.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(forward.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let mut stream = TcpStream::connect(line.split(' ').next().unwrap()).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
    forward.kill().unwrap();
    forward.wait().unwrap();
    server.close().await;
}

/// What an example runs, in a sandbox that has no project.
const COMMAND: (&str, &str) = ("make test", "echo all is well");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdks_are_used_as_the_readme_shows() {
    let server = Server::start().await;
    let (url, key) = (
        format!("http://{}", server.address()),
        server.client().key.unwrap(),
    );
    let python = block("python", "Sandbox.create").replace(COMMAND.0, COMMAND.1);
    let python = format!("from atoll import Sandbox\n{python}    assert done.exit_code == 0\n");
    let mut command = Command::new(tools("sdk-python").join("bin/python"));
    command.args(["-B", "-c", &python]).stdin(Stdio::null());
    command.env("PYTHONPATH", root().join("sdks/python/src"));
    command.env("ATOLL_URL", &url).env("ATOLL_API_KEY", &key);
    assert_eq!(says(command).trim_end(), "all is well");
    let typescript = block("ts", "Sandbox.create").replace(COMMAND.0, COMMAND.1);
    let typescript = format!(
        "import {{ Sandbox }} from \"../src/node.js\";\n{typescript}process.exitCode = done.exitCode;\n"
    );
    let package = Package::build_with(&["--noCheck"], ("tests/project.ts", &typescript));
    let mut command = package.node(&["build/tests/project.js"]);
    command.env("ATOLL_URL", &url).env("ATOLL_API_KEY", &key);
    assert_eq!(says(command), "all is well\n");
    // Each took its sandbox away.
    assert_eq!(server.client().get("/sandboxes").await.array().len(), 0);
    server.close().await;
}
