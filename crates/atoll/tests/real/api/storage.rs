//! Storage backends: which one a server selects, how it reports it to operator and clients, and that image limits
//! hold.

use std::path::Path;

use atoll_testkit::{Scratch, run_within};
use serde_json::{Value, json};

use super::Server;
use crate::cli::{atoll, output_text};
use crate::harness::{DEADLINE, World, binary, data, private};

const WARNING: &str = "disk limits of sandboxes (diskMB) are not enforced";

/// Runs a command in a mount namespace where `mkfs.btrfs` is absent; `$0` is an empty directory.
const WITHOUT_MKFS: &str = "cd \"$0\" && mkdir upper work && mount -t overlay none \
    -o \"lowerdir=/usr/sbin,upperdir=$0/upper,workdir=$0/work\" /usr/sbin && rm -f /usr/sbin/mkfs.btrfs && \
    cd / && exec \"$@\"";

/// A server without any setting of its storage, unless `flags` has one.
async fn unset(flags: &[&str]) -> Server {
    start(Scratch::new(), &[], flags).await
}

/// The same, started by a command.
async fn start(scratch: Scratch, command: &[&str], flags: &[&str]) -> Server {
    World::open().await.close().await;
    let place = scratch.join("data");
    private(&place);
    let words = ["env", "-u", "ATOLL_STORAGE"].iter().chain(command);
    let words = words.map(ToString::to_string).collect();
    let flags = flags.iter().map(ToString::to_string).collect();
    Server::at(scratch, place, words, flags)
}

fn kind(data: &Path) -> String {
    std::fs::read_to_string(data.join("storage.kind")).unwrap()
}

fn warnings(server: &Server) -> usize {
    server.log().matches(WARNING).count()
}

/// Output and exit code of the command as a client of a server.
fn command(server: &Server, args: &[&str]) -> (String, Option<i32>) {
    let client = server.client();
    let mut command = atoll(args);
    command
        .env("ATOLL_URL", format!("http://{}", client.address))
        .env("ATOLL_API_KEY", client.key.unwrap());
    let output = run_within(&mut command, DEADLINE, b"");
    (output_text(&output), output.status.code())
}

fn lines(server: &Server, args: &[&str]) -> String {
    let (text, code) = command(server, args);
    assert_eq!(code, Some(0), "{args:?}: {text}");
    text
}

/// The check of `atoll doctor` on the data directory of a server.
fn doctor(server: &Server) -> Value {
    let mut command = atoll(&["doctor", "--json"]);
    command.env("ATOLL_DATA_DIR", server.data());
    let output = run_within(&mut command, DEADLINE, b"");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks
        .iter()
        .find(|check| check["feature"] == "disk limits");
    check.unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unenforceable_limit_is_refused_with_exit_code_6() {
    let server = Server::start_with(&["--storage", "plain"]).await;
    let client = server.client();
    let made = client.post("/sandboxes", &json!({ "alias": "web" })).await;
    assert_eq!(made.json()["diskEnforced"], false, "{made:?}");
    for path in ["/sandboxes/web", "/sandboxes", "/sessions"] {
        let found = client.get(path).await.json();
        let found = found.get(0).unwrap_or(&found);
        assert_eq!(
            (&found["diskMB"], &found["diskEnforced"]),
            (&json!(10240), &json!(false)),
            "{path}"
        );
    }
    for args in [
        &["sandbox", "create", "--disk", "64M"][..],
        &["sandbox", "patch", "web", "--disk", "64M"],
    ] {
        let (text, code) = command(&server, args);
        assert_eq!(code, Some(6), "{args:?}: {text}");
        for words in ["64 MiB cannot be enforced", "--storage image"] {
            assert!(text.contains(words), "{args:?}: {text}");
        }
    }
    let refused = client.post("/sandboxes", &json!({ "diskMB": 64 })).await;
    assert_eq!(
        refused.refusal(),
        (501, "UNSUPPORTED_BY_HOST".into(), "diskMB".into())
    );
    // The default can be named.
    lines(&server, &["sandbox", "patch", "web", "--disk", "10G"]);
    // The operator chose `plain`, so there is no warning.
    assert_eq!(warnings(&server), 0, "{}", server.log());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_storage_enforces_the_limits_of_the_api() {
    let mut server = unset(&["--storage", "image"]).await;
    assert_eq!((warnings(&server), &*kind(&server.data())), (0, "image\n"));
    let client = server.client();
    let request = json!({ "alias": "web", "diskMB": 64, "timeout": 0 });
    let made = client.post("/sandboxes", &request).await;
    assert_eq!(made.json()["diskEnforced"], true, "{made:?}");
    let listed = client.get("/sandboxes").await.array();
    assert_eq!(listed[0]["diskEnforced"], true, "{listed:?}");
    let fill = json!({ "cmd": "head -c 100M /dev/zero > ~/big" });
    let full = client.post("/sandboxes/web/commands", &fill).await.json();
    let complaint = full["stderr"].as_str().unwrap();
    assert!(complaint.contains("quota exceeded"), "{full}");
    lines(&server, &["sandbox", "patch", "web", "--disk", "128M"]);
    client.line("web", "head -c 100M /dev/zero > ~/big").await;
    // A data directory keeps its storage when the setting goes.
    server.kill_and_start_with(&[]);
    let client = server.client();
    let found = client.get("/sandboxes/web").await.json();
    assert_eq!(found["diskEnforced"], true, "{found}");
    client
        .line("web", "test $(stat -c %s ~/big) = 104857600")
        .await;
    assert_eq!(warnings(&server), 0, "{}", server.log());
    let check = doctor(&server);
    let text = check["found"].as_str().unwrap();
    assert!(text.contains("storage image"), "{check}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_the_setting_uses_directories_and_warns_once() {
    let mut server = unset(&[]).await;
    assert_eq!((warnings(&server), &*kind(&server.data())), (1, "plain\n"));
    let log = server.log();
    assert!(log.contains("--storage image enforces them"), "{log}");
    let client = server.client();
    let made = client.post("/sandboxes", &json!({ "alias": "web" })).await;
    assert_eq!(made.json()["diskEnforced"], false, "{made:?}");
    let check = doctor(&server);
    let text = check["found"].as_str().unwrap();
    assert!(
        text.contains("advisory") && text.contains("storage plain"),
        "{check}"
    );
    // A data directory of an earlier version has no `storage.kind`.
    client.line("web", "echo here > ~/f").await;
    server.kill();
    std::fs::remove_file(server.data().join("storage.kind")).unwrap();
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.line("web", "cat ~/f").await, "here\n");
    assert_eq!((warnings(&server), &*kind(&server.data())), (2, "plain\n"));
    let log = server.log();
    assert!(log.contains("a data directory without sandboxes"), "{log}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_without_mkfs_warns_once_and_refuses_an_image() {
    let scratch = Scratch::new();
    let hidden = scratch.join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    let hidden = hidden.to_str().unwrap().to_owned();
    let without = ["unshare", "--mount", "sh", "-c", WITHOUT_MKFS, &hidden];
    let server = start(scratch, &without, &[]).await;
    let log = server.log();
    assert_eq!((warnings(&server), &*kind(&server.data())), (1, "plain\n"));
    assert!(log.contains("apt-get install btrfs-progs"), "{log}");
    let client = server.client();
    let made = client.post("/sandboxes", &json!({ "alias": "web" })).await;
    assert_eq!(made.json()["diskEnforced"], false, "{made:?}");
    server.close().await;
    let scratch = Scratch::new();
    let hidden = scratch.join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    let mut serve = std::process::Command::new("unshare");
    serve
        .args(["--mount", "sh", "-c", WITHOUT_MKFS])
        .arg(&hidden);
    serve.arg(binary()).args(["serve", "--storage", "image"]);
    serve.args(["--listen", "127.0.0.1:0", "--metrics-listen", "off"]);
    serve.arg("--data-dir").arg(scratch.join("data"));
    serve.env("ATOLL_TEMPLATES_DIR", data().join("templates"));
    let output = run_within(&mut serve, DEADLINE, b"");
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains("mkfs.btrfs is not installed"), "{text}");
}
