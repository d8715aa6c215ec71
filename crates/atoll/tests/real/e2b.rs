//! E2B's own SDKs, unmodified, against our server. Each program in `e2b/` runs with every release of its language in
//! `e2b/releases`; `deploy/setup test` installs those. It finds the server by the variables that users set, and says
//! what is wrong by failing.
//!
//! To add one: write `e2b/NAME.py` or `e2b/NAME.mjs`, and name it in [`programs!`] below.

mod doors;
mod ports;
mod watched;
mod watching;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_testkit::Scratch;

use crate::api::Server;
use crate::network::Scene;
use crate::world::binary;
pub use doors::sandbox;

macro_rules! programs {
    ($( $fact:ident => $program:literal; )*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $fact() {
            check($program).await;
        }
    )*};
}

programs! {
    a_python_program_finds_the_server => "smoke.py";
    a_node_program_finds_the_server => "smoke.mjs";
    sandboxes_work_in_python => "control.py";
    sandboxes_and_commands_work_in_asynchronous_python => "control_async.py";
    sandboxes_work_in_node => "control.mjs";
    commands_and_terminals_work_in_python => "commands.py";
    commands_and_terminals_work_in_node => "commands.mjs";
    files_work_in_python => "files.py";
    files_work_in_asynchronous_python => "files_async.py";
    files_work_in_node => "files.mjs";
    an_answer_that_is_lost_is_asked_for_again_in_python => "retries.py";
}

#[test]
fn packets_are_stopped_as_python_asks_for_it() {
    Scene::with(async |_| check("network.py").await);
}

/// Runs a program with each release of the SDK for its language.
async fn check(program: &str) {
    let server = Server::start().await;
    let variables = variables(&server);
    let language = match program.rsplit_once('.') {
        Some((_, "py")) => "python",
        Some((_, "mjs")) => "node",
        _ => panic!("{program} is neither Python nor JavaScript"),
    };
    let releases = include_str!("e2b/releases").lines();
    let releases = releases.filter_map(|line| line.strip_prefix(language)?.strip_prefix(' '));
    let releases: Vec<&str> = releases.collect();
    assert!(!releases.is_empty());
    for release in releases {
        let installed = installed(language, release);
        let (variables, program) = (variables.clone(), program.to_owned());
        let ran = move || run(&variables, &installed, &program);
        tokio::task::spawn_blocking(ran).await.unwrap();
    }
    server.close().await;
}

/// Where a release is.
fn installed(language: &str, release: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty());
    let cache = cache.map_or_else(home, PathBuf::from);
    let place = cache.join(format!("atoll/e2b/{language}-{release}"));
    assert!(
        place.join("installed").exists(),
        "the SDK is not at {}: run `deploy/setup test`",
        place.display()
    );
    place
}

/// What `atoll e2b env` says to export.
fn variables(server: &Server) -> Vec<(String, String)> {
    let output = Command::new(binary())
        .args([
            "e2b",
            "env",
            "--url",
            &format!("http://{}", server.address()),
        ])
        .arg("--data-dir")
        .arg(server.data())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("admin.key"), "{said}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(|line| {
        let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    lines.collect::<Option<_>>().unwrap()
}

fn run(variables: &[(String, String)], installed: &Path, program: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/e2b");
    let scratch = Scratch::new();
    let mut command = if Path::new(program).extension() == Some("py".as_ref()) {
        let mut python = Command::new(installed.join("bin/python"));
        // Bytecode would be left beside the sources.
        python.arg("-B").arg(sources.join(program));
        python
    } else {
        // Modules are looked for beside the program.
        let modules = scratch.join("node_modules");
        std::os::unix::fs::symlink(installed.join("node_modules"), modules).unwrap();
        for source in std::fs::read_dir(&sources).unwrap().flatten() {
            std::fs::copy(source.path(), scratch.join(source.file_name())).unwrap();
        }
        let mut node = Command::new("node");
        node.arg(scratch.join(program));
        node
    };
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "E2B_DOMAIN"] {
        command.env_remove(name).env_remove(name.to_lowercase());
    }
    let output = command
        .envs(variables.iter().cloned())
        .current_dir(scratch.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} with {}: {}\n{}\n{}",
        installed.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
