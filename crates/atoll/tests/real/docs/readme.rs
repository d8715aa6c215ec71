//! The examples of docs/quickstart.md for a server and its clients are run against a real server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_testkit::{Scratch, run_within, wait_for};
use serde_json::Value;

use super::root;
use crate::api::Server;
use crate::cli::output_text;
use crate::client::screen::Screen;
use crate::harness::{self, DEADLINE};

/// The one block of this kind that has these words.
fn block(kind: &str, words: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs/quickstart.md")).unwrap();
    let begin = format!("```{kind}\n");
    let blocks = text.split(&begin).skip(1);
    let mut found = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .filter(|block| block.contains(words));
    let block = found.next().unwrap().to_owned();
    assert_eq!(
        found.next(),
        None,
        "{words} occurs twice in docs/quickstart.md"
    );
    block
}

/// README.md shows examples of the quick start, which the other tests run.
#[test]
fn readme_examples_match_the_quick_start() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (readme, quick_start) = (read("README.md"), read("docs/quickstart.md"));
    let fence = "\n```";
    let mut compared = 0;
    // Text and code blocks alternate.
    for block in readme.split(fence).skip(1).step_by(2) {
        if !block.starts_with("console\n") {
            assert!(
                quick_start.contains(&format!("{fence}{block}{fence}")),
                "docs/quickstart.md lacks a block of README.md: {block}"
            );
            compared += 1;
        }
    }
    assert!(compared > 3, "{compared}");
}

/// A shell line, run by a user of the server in the examples' directory.
fn shell(server: &Server, place: &Path, line: &str) -> Command {
    let binaries = harness::binary().parent().unwrap().display().to_string();
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

/// Output of a command that must succeed.
#[track_caller]
fn says(mut command: Command) -> String {
    let output = run_within(&mut command, Duration::from_mins(2), b"");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        output_text(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readme_requests_work() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let block = block("sh", "curl ")
        .replace("/var/lib/atoll", server.data().to_str().unwrap())
        .replace("127.0.0.1:8080", server.address())
        .replace("curl ", "curl -sS --fail-with-body ");
    // The whole example, twice: the first run leaves nothing that makes the second fail.
    for _ in 0..2 {
        let answers = says(shell(&server, scratch.path(), &format!("set -e\n{block}")));
        let mut answers = serde_json::Deserializer::from_str(&answers).into_iter::<Value>();
        let made = answers.next().unwrap().unwrap();
        // Documented properties of ids and lifetimes.
        assert_eq!(made["sandboxID"].as_str().unwrap().len(), 21, "{made}");
        assert_eq!(
            (&made["timeout"], &made["onTimeout"]),
            (&300.into(), &"destroy".into())
        );
        let ran = answers.next().unwrap().unwrap();
        assert_eq!(ran["stdout"], "hello\n", "{ran}");
    }
    assert_eq!(server.client().get("/sandboxes").await.array().len(), 0);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readme_client_commands_work() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let block = block("sh", "atoll forward");
    let lines: Vec<&str> = block.lines().collect();
    let [
        project,
        create,
        cp,
        exec,
        open,
        serve,
        forward,
        list,
        remove,
    ] = lines.as_slice()
    else {
        panic!("nine lines: {block}");
    };
    let here = |line: &str| shell(&server, scratch.path(), line);
    says(here(project));
    says(here(create));
    says(here(cp));
    assert_eq!(says(here(exec)), "all is well\n");
    let mut screen = Screen::start(here(open));
    screen.kind("cat work/Makefile; exit 7\n");
    screen.until("all is well");
    assert_eq!(screen.end(), Some(7));
    says(here(serve));
    wait_for("the port", DEADLINE, || {
        says(here("atoll ports web")).contains("8000")
    });
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
    assert!(answer.contains("Makefile"), "{answer}");
    forward.kill().unwrap();
    forward.wait().unwrap();
    let listed = says(here(list));
    // Whole headings, with a space between two words.
    let columns = listed.lines().next().unwrap_or_default().split("  ");
    let columns: Vec<&str> = columns.map(str::trim).collect();
    let (_, named) = list.split_once("the column ").unwrap();
    let named = named.split(' ').next().unwrap();
    assert!(columns.contains(&named), "{named}: {listed}");
    assert!(listed.contains(", stop"), "{listed}");
    says(here(remove));
    server.close().await;
}

/// The file that an example is pasted into.
fn pasted(scratch: &Scratch, name: &str, kind: &str) {
    std::fs::write(scratch.join(name), block(kind, "Sandbox.create")).unwrap();
}

/// The SDKs below a directory, as a clone of the repository has them.
fn clone_sdks(scratch: &Scratch) {
    for (sdk, names) in [
        ("python", &["README.md", "pyproject.toml", "src"][..]),
        (
            "typescript",
            &["README.md", "package.json", "tsconfig.json", "src"],
        ),
    ] {
        let (from, to) = (
            root().join("sdks").join(sdk),
            scratch.join("sdks").join(sdk),
        );
        std::fs::create_dir_all(&to).unwrap();
        for name in names {
            atoll_testkit::run(Command::new("cp").arg("-r").arg(from.join(name)).arg(&to));
        }
    }
}

/// Installs from the registries of this machine's configuration.
fn install(scratch: &Scratch, line: &str) {
    let mut shell = Command::new("bash");
    shell
        .args(["-ec", line])
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    says(shell);
}

/// Runs a line after the documented export of the key.
fn run_example(server: &Server, scratch: &Scratch, line: &str) -> String {
    let install = block("sh", "pip install");
    let export = install.lines().last().unwrap();
    let export = export.replace("/var/lib/atoll", server.data().to_str().unwrap());
    assert!(export.starts_with("export ATOLL_API_KEY="), "{export}");
    let mut command = shell(server, scratch.path(), &format!("{export}\n{line}"));
    command.env("ATOLL_URL", format!("http://{}", server.address()));
    says(command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readme_python_example_works() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    clone_sdks(&scratch);
    let block = block("sh", "pip install");
    let line = block.lines().next().unwrap();
    install(&scratch, line);
    pasted(&scratch, "first.py", "python");
    let printed = run_example(
        &server,
        &scratch,
        ". .venv/bin/activate && exec python first.py",
    );
    assert_eq!(
        printed.split_whitespace().collect::<Vec<_>>(),
        ["Linux", "0"],
        "{printed:?}"
    );
    // The example deleted its sandbox.
    assert_eq!(server.client().get("/sandboxes").await.array().len(), 0);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readme_typescript_example_works() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    clone_sdks(&scratch);
    install(&scratch, &block("sh", "npm pack"));
    pasted(&scratch, "first.mjs", "js");
    let printed = run_example(&server, &scratch, "exec node first.mjs");
    assert_eq!(printed, "Linux\n0\n");
    assert_eq!(server.client().get("/sandboxes").await.array().len(), 0);
    server.close().await;
}
