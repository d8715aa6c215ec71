//! Output of `atoll e2b env`: the variables for the server that other commands would use.

use std::process::Command;

use atoll_testkit::Scratch;

use crate::api::Server;
use crate::harness::binary;

/// Lines that the command prints in an environment.
fn printed_exports(words: &[&str], variables: &[(&str, &str)], home: &Scratch) -> Vec<String> {
    printed_exports_with_notes(words, variables, home).0
}

/// The same, with standard error.
fn printed_exports_with_notes(
    words: &[&str],
    variables: &[(&str, &str)],
    home: &Scratch,
) -> (Vec<String>, String) {
    let mut command = Command::new(binary());
    command.args(["e2b", "env"]).args(words);
    for name in [
        "ATOLL_URL",
        "ATOLL_API_KEY",
        "ATOLL_DATA_DIR",
        "XDG_CONFIG_HOME",
    ] {
        command.env_remove(name);
    }
    command.env("HOME", home.path());
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines = lines.lines().map(ToOwned::to_owned).collect();
    (lines, String::from_utf8(output.stderr).unwrap())
}

fn exports(url: &str, key: &str) -> Vec<String> {
    vec![
        format!("export E2B_API_URL={url}/e2b"),
        format!("export E2B_SANDBOX_URL={url}"),
        format!("export E2B_API_KEY={key}"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_name_the_selected_server() {
    let home = Scratch::new();
    let mut server = Server::start().await;
    let data = server.data();
    let data = data.to_str().unwrap();
    let key = server.client().key.unwrap().replace("atl_", "e2b_");
    let here = [("ATOLL_DATA_DIR", data)];
    for _ in 0..2 {
        let url = format!("http://{}", server.address());
        assert_eq!(
            printed_exports(&["--admin"], &here, &home),
            exports(&url, &key)
        );
        let words = ["--admin", "--data-dir", data];
        assert_eq!(printed_exports(&words, &[], &home), exports(&url, &key));
        // The next server has another port, which the command does not know.
        server.kill_and_start();
    }

    let elsewhere = "https://boxes.example:8443";
    let (mine, theirs) = (
        format!("atl_{}", "1".repeat(64)),
        format!("e2b_{}", "1".repeat(64)),
    );
    let surroundings = [here[0], ("ATOLL_URL", elsewhere), ("ATOLL_API_KEY", &mine)];
    assert_eq!(
        printed_exports(&[], &surroundings, &home),
        exports(elsewhere, &theirs)
    );
    // An explicit server of this machine takes precedence.
    let url = format!("http://{}", server.address());
    let words = ["--admin", "--data-dir", data];
    assert_eq!(
        printed_exports(&words, &surroundings, &home),
        exports(&url, &key)
    );
    let settings = home.join(".config/atoll");
    std::fs::create_dir_all(&settings).unwrap();
    let profile = format!("[profiles.work]\nurl = \"{elsewhere}/\"\napi_key = \"{mine}\"\n");
    std::fs::write(settings.join("config.toml"), profile).unwrap();
    let words = ["--profile", "work"];
    assert_eq!(
        printed_exports(&words, &here, &home),
        exports(elsewhere, &theirs)
    );
    server.end();
    // No server runs: prints the default address.
    assert_eq!(
        printed_exports(&["--admin"], &here, &home),
        exports("http://127.0.0.1:8080", &key)
    );
    server.kill_and_start();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_server_creates_and_prints_a_sandbox_key_once() {
    let home = Scratch::new();
    let server = Server::start().await;
    let url = format!("http://{}", server.address());
    let data = server.data();
    let here = [("ATOLL_DATA_DIR", data.to_str().unwrap())];
    let (lines, note) = printed_exports_with_notes(&[], &here, &home);
    let key = lines[2].strip_prefix("export E2B_API_KEY=").unwrap();
    assert_eq!(lines, exports(&url, key));
    assert_ne!(key, server.client().key.unwrap().replace("atl_", "e2b_"));
    let keys = server.client().get("/keys").await.array();
    let made = keys.iter().find(|made| made["name"] == "e2b").unwrap();
    assert_eq!(made["scope"], "sandbox:*");
    assert!(note.contains(made["keyID"].as_str().unwrap()), "{note}");
    // The key is an ordinary key of the server.
    let client = server.client().with_key(Some(&key.replace("e2b_", "atl_")));
    assert_eq!(client.get("/sandboxes").await.status, 200);
    assert_eq!(client.get("/orgs").await.array().len(), 1);
    let admin = serde_json::json!({ "name": "more", "scope": "admin" });
    assert_eq!(client.post("/keys", &admin).await.status, 403);
    // A given key is printed, and no key is created.
    let given = key.replace("e2b_", "atl_");
    let surroundings = [here[0], ("ATOLL_API_KEY", &given)];
    assert_eq!(
        printed_exports(&[], &surroundings, &home),
        exports(&url, key)
    );
    assert_eq!(
        printed_exports(&["--key", &given], &here, &home),
        exports(&url, key)
    );
    assert_eq!(server.client().get("/keys").await.array().len(), keys.len());
    server.close().await;
}
