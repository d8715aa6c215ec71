//! E2B's own SDKs, unmodified, against our server. Each program in `e2b/` runs with every release of its language in
//! `e2b/releases`; `deploy/setup test` installs those. It finds the server by the variables that users set, and says
//! what is wrong by failing.
//!
//! To add one: write `e2b/NAME.py` or `e2b/NAME.mjs`, and name it in [`programs!`] below.

mod access_tokens;
mod browsers;
mod calls;
mod control;
mod downloads;
mod env_command;
mod limits;
mod ports;
mod private;
mod request_log;
mod shapes;
mod streams;
mod uploads;
mod watching;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use atoll_testkit::Scratch;
use tokio::net::UdpSocket;

use crate::api::Server;
use crate::harness::binary;
use crate::network::Scene;
pub use access_tokens::sandbox;

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
    lost_response_is_retried_in_python => "retries.py";
    unsupported_features_are_reported_in_python => "unsupported.py";
    unsupported_features_are_reported_in_node => "unsupported.mjs";
}

#[test]
fn packet_filter_applies_rules_set_by_python() {
    Scene::with(async |_| check("network.py").await);
}

/// The way that is to last: a domain alone, with TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn domain_alone_reaches_the_server_and_its_sandboxes() {
    const DOMAIN: &str = "box.test";
    let files = Scratch::new();
    let names = [DOMAIN.to_owned(), format!("*.{DOMAIN}")];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [cert, key] = [cert, key].map(|path| path.to_str().unwrap().to_owned());
    let flags = ["--domain", DOMAIN, "--tls-cert", &cert, "--tls-key", &key];
    let server = Server::start_with(&flags).await;
    let (_, port) = server.address().rsplit_once(':').unwrap();
    let domain = format!("{DOMAIN}:{port}");
    let mut variables = exports(&server, &["--domain", &domain]);
    assert_eq!(variables[0], ("E2B_DOMAIN".to_owned(), domain));
    for name in ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"] {
        variables.push((name.to_owned(), cert.clone()));
    }
    // The test programs use their own name server.
    // The port is fixed to 53; on its own loopback address it is free.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = format!("127.83.{high}.{low}");
    let names = UdpSocket::bind((address.as_str(), 53)).await.unwrap();
    let resolver = files.join("resolv.conf");
    std::fs::write(&resolver, format!("nameserver {address}\n")).unwrap();
    let names = tokio::spawn(lead_home(names));
    let line = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
    let resolver = resolver.to_str().unwrap();
    let before = ["unshare", "--mount", "sh", "-c", line, resolver];
    for program in ["domain.py", "domain.mjs", "agent.py", "agent.mjs"] {
        with_each_release(&before, &variables, program).await;
    }
    names.abort();
    server.end_and_clear();
}

/// A name server that resolves every name to 127.0.0.1 and has no other records.
async fn lead_home(socket: UdpSocket) {
    const HEADER: usize = 12;
    let mut packet = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut packet).await {
        let Some(question) = packet.get(HEADER..length) else {
            continue;
        };
        // A name ends with an empty label; type and class follow.
        let Some(end) = question.iter().position(|byte| *byte == 0) else {
            continue;
        };
        let Some(question) = question.get(..end + 5) else {
            continue;
        };
        let address = question[end + 1..end + 3] == [0, 1];
        let mut answer = packet[..2].to_vec();
        // Flags: response, recursion available. Counts: one question, and the number of answers.
        answer.extend([0x81, 0x80, 0, 1, 0, address.into(), 0, 0, 0, 0]);
        answer.extend(question);
        if address {
            // A pointer to the name of the question, type, class, a TTL of one second, four bytes of data.
            answer.extend([
                0xc0,
                HEADER as u8,
                0,
                1,
                0,
                1,
                0,
                0,
                0,
                1,
                0,
                4,
                127,
                0,
                0,
                1,
            ]);
        }
        let _ = socket.send_to(&answer, from).await;
    }
}

/// Runs a program with each release of the SDK for its language.
async fn check(program: &str) {
    let server = Server::start().await;
    let variables = exports(&server, &[]);
    with_each_release(&[], &variables, program).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_is_reported_in_python_and_node() {
    let mut server = Server::start_with(&["--rate-limit", "5"]).await;
    let url = format!("http://{}", server.address());
    let variables = exports(&server, &["--url", &url]);
    for program in ["limits.py", "limits.mjs"] {
        with_each_release(&[], &variables, program).await;
    }
    // The rate limit must not reject the cleanup.
    server.kill_and_start_with(&[]);
    server.close().await;
}

/// The same with arguments before the program.
async fn with_each_release(before: &[&str], variables: &[(String, String)], program: &str) {
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
        let (variables, program) = (variables.to_owned(), program.to_owned());
        let before: Vec<String> = before.iter().map(ToString::to_string).collect();
        let ran = move || run(&before, &variables, &installed, &program);
        tokio::task::spawn_blocking(ran).await.unwrap();
    }
}

/// Path of an installed release.
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

/// Variables that `atoll e2b env` exports.
fn exports(server: &Server, place: &[&str]) -> Vec<(String, String)> {
    let output = Command::new(binary())
        .args(["e2b", "env"])
        .args(place)
        .arg("--data-dir")
        .arg(server.data())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("(sandbox:*)"), "{stderr}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(|line| {
        let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    lines.collect::<Option<_>>().unwrap()
}

fn run(before: &[String], variables: &[(String, String)], installed: &Path, program: &str) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/e2b");
    let scratch = Scratch::new();
    let mut command = if Path::new(program).extension() == Some("py".as_ref()) {
        let mut python = command(before, &installed.join("bin/python"));
        // Without this, bytecode would be written beside the sources.
        python.arg("-B");
        python.args([sources.join("program.py"), sources.join(program)]);
        python
    } else {
        // Node searches modules beside the program.
        let modules = scratch.join("node_modules");
        std::os::unix::fs::symlink(installed.join("node_modules"), modules).unwrap();
        for source in std::fs::read_dir(&sources).unwrap().flatten() {
            std::fs::copy(source.path(), scratch.join(source.file_name())).unwrap();
        }
        let mut node = command(before, Path::new("node"));
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

/// A program, with these words before it.
fn command(before: &[String], program: &Path) -> Command {
    let Some((first, others)) = before.split_first() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(others).arg(program);
    command
}
