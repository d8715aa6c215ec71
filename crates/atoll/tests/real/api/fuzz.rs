//! Requests that the description allows succeed, requests that it forbids are refused, and every response is
//! documented. schemathesis (installed by `deploy/setup test`) generates the requests from the description.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::Server;

/// Path where `deploy/setup test` installs it.
fn schemathesis() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    cache
        .unwrap_or_else(home)
        .join("atoll/schemathesis/bin/schemathesis")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fuzzed_requests_match_the_openapi_document() {
    let server = Server::start().await;
    let admin = server.client();
    // Resources that most requests refer to; their ids and aliases are in the settings.
    let sandbox = admin
        .sandbox(&json!({ "alias": "fuzzed", "timeout": 0 }))
        .await;
    // Runs until its standard input is closed, or ends at once without one: schemathesis sends ids from responses.
    let begun = json!({ "cmd": "cat", "background": true, "openStdin": true, "tag": "fuzzed" });
    let begun = admin.post("/sandboxes/fuzzed/commands", &begun).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let org = admin
        .post("/orgs", &json!({ "name": "fuzzed" }))
        .await
        .json();
    let key = admin
        .post("/keys", &json!({ "name": "fuzzed" }))
        .await
        .json();
    let settings = include_str!("fuzz.toml")
        .replace("SANDBOX", &sandbox)
        .replace("ORG", org["orgID"].as_str().unwrap())
        .replace("KEY", key["keyID"].as_str().unwrap());
    let file = server.data().join("fuzz.toml");
    std::fs::write(&file, settings).unwrap();

    let mut command = Command::new(schemathesis());
    // The cache of schemathesis is removed with the server's directory.
    command.current_dir(server.data());
    command.arg("--config-file").arg(&file);
    let seed = std::env::var("ATOLL_FUZZ_SEED").unwrap_or_else(|_| "4".to_owned());
    command.args(["run", "--no-color", "--seed", &seed]);
    command.arg(format!("http://{}/openapi.json", admin.address));
    command.arg("--header");
    command.arg(format!("X-API-Key: {}", admin.key.as_ref().unwrap()));
    let run = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap();
    let run = run.expect("schemathesis is there: deploy/setup test installs it");
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success(),
        "{stdout}{}",
        String::from_utf8_lossy(&run.stderr)
    );
    server.close().await;
}
