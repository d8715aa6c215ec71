//! Files of the server are readable by root alone; variables and input stay on the disk no longer than needed.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use atoll_testkit::wait_for;
use serde_json::json;

use super::Server;
use crate::harness::DEADLINE;

/// All files of the server below a directory, without contents of sandboxes and of template layers.
fn ours(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if ["upper", "work", "layer"]
            .iter()
            .any(|other| name == *other)
        {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            all.extend(ours(&path));
        } else {
            all.push(path);
        }
    }
    all
}

/// Files of a sandbox that contain `secret`.
fn with(server: &Server, id: &str, secret: &str) -> Vec<PathBuf> {
    let mut all = ours(&server.data().join("sandboxes").join(id));
    all.retain(|path| {
        let text = std::fs::read(path).unwrap_or_default();
        text.windows(secret.len())
            .any(|part| part == secret.as_bytes())
    });
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_files_are_private_and_sandbox_modes_are_kept() {
    let mut server = Server::start().await;
    let client = server.client();
    let envs = json!({ "SECRET": "sesame" });
    let id = client.sandbox(&json!({ "timeout": 0, "envs": envs })).await;
    let stopped = client
        .sandbox(&json!({ "timeout": 0, "durable": true }))
        .await;
    let path = format!("/sandboxes/{stopped}/stop");
    assert_eq!(client.post(&path, &json!({})).await.status, 200);
    let open = json!({ "cmd": "cat", "openStdin": true, "background": true });
    let commands = format!("/sandboxes/{id}/commands");
    let exec = client.post(&commands, &open).await.json()["execID"].clone();
    let input = format!("{commands}/{}/stdin", exec.as_str().unwrap());
    let given = client
        .send("POST", &format!("{input}?offset=0"), &[], "x")
        .await;
    assert_eq!(given.status, 200, "{given:?}");
    let session = format!("/sessions/{id}/commands");
    assert_eq!(client.get(&session).await.array().len(), 1);
    assert_eq!(
        client
            .post(&format!("{input}/close"), &json!({}))
            .await
            .status,
        204
    );
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.get(&session).await.array().len(), 1);
    for path in ours(&server.data()) {
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        let kind = found.file_type();
        let checked = kind.is_file() || kind.is_dir() || kind.is_socket();
        let mode = found.permissions().mode() & 0o777;
        let others = mode & 0o077;
        assert!(!checked || others == 0, "{} {mode:o}", path.display());
    }
    let modes = "stat -c %a / /home/user && cd && touch made && mkdir dir && stat -c %a made dir";
    assert_eq!(client.line(&id, modes).await, "755\n755\n644\n755\n");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_command_leaves_no_variables_or_input_on_disk() {
    let mut server = Server::start().await;
    let mut client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    let commands = format!("/sandboxes/{id}/commands");
    for ending in [
        "closed",
        "killed with the server",
        "stopped with the sandbox",
    ] {
        let request = json!({
            "cmd": "cat > /dev/null",
            "openStdin": true,
            "background": true,
            "envs": { "TOKEN": "sesame-of-the-command" },
        });
        let exec = client.post(&commands, &request).await.json()["execID"].clone();
        // Another command has its input in the request, and a terminal has variables.
        let line = "cat > got; touch has-read; until [ -e go ]; do sleep 0.05; done";
        let request = json!({ "cmd": line, "cwd": "/home/user", "stdin": "sesame-of-the-request" });
        let waiting = tokio::spawn({
            let (client, commands) = (client.clone(), commands.clone());
            async move { client.attempt("POST", &commands, request.to_string()).await }
        });
        client
            .line(&id, "until [ -e ~/has-read ]; do sleep 0.01; done")
            .await;
        let request = json!({ "envs": { "TOKEN": "sesame-of-the-terminal" } });
        let made = client.post(&format!("/sandboxes/{id}/pty"), &request).await;
        assert_eq!(made.status, 201, "{made:?}");
        assert!(
            with(&server, &id, "sesame-of-the-request").len() <= 1,
            "{ending}"
        );
        let terminals = with(&server, &id, "sesame-of-the-terminal");
        assert_eq!(terminals, Vec::<PathBuf>::new(), "{ending}");
        let path = format!("{commands}/{}", exec.as_str().unwrap());
        let secret = "sesame-of-the-input";
        let given = client
            .send("POST", &format!("{path}/stdin?offset=0"), &[], secret)
            .await;
        assert_eq!(given.status, 200, "{given:?}");
        // After a kill the next server needs the accepted input, but not the variables.
        assert_eq!(with(&server, &id, secret).len(), 1, "{ending}");
        assert_eq!(
            with(&server, &id, "sesame-of-the-command"),
            Vec::<PathBuf>::new()
        );
        match ending {
            "closed" => {
                let close = format!("{path}/stdin/close");
                assert_eq!(client.post(&close, &json!({})).await.status, 204);
            }
            "killed with the server" => {
                server.kill();
                server.kill_and_start();
                client = server.client();
                let signal = json!({ "signal": 9 });
                let killed = client.post(&format!("{path}/signal"), &signal).await;
                assert_eq!(killed.status, 204, "{killed:?}");
            }
            _ => {
                let stop = format!("/sandboxes/{id}/stop");
                assert_eq!(client.post(&stop, &json!({})).await.status, 200);
            }
        }
        if ending != "stopped with the sandbox" {
            client.line(&id, "touch ~/go").await;
        }
        waiting.await.unwrap();
        wait_for(
            &format!("the input of the command that was {ending} to be gone"),
            DEADLINE,
            || {
                let left = ours(&server.data().join("sandboxes").join(&id));
                let kept = |path: &PathBuf| {
                    path.extension()
                        .is_some_and(|kind| kind == "in" || kind == "closed")
                };
                !left.iter().any(kept)
            },
        );
        assert_eq!(with(&server, &id, "sesame-of-the"), Vec::<PathBuf>::new());
        if ending != "stopped with the sandbox" {
            client.line(&id, "rm ~/go ~/has-read").await;
        }
    }
    server.close().await;
}
