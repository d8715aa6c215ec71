//! Limits: of the machine, and of the size of one response.

use serde_json::json;

use super::calls::Agent;
use super::ports::{PORT, ask};
use crate::api::Server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_on_a_full_machine_fails_and_keeps_the_pause() {
    let mut server = Server::start().await;
    let client = server.client();
    let request = json!({
        "templateID": "base", "timeout": 100, "autoPause": true, "autoResume": { "enabled": true },
    });
    let made = client.post("/e2b/v2/sandboxes", &request).await.json();
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    let path = format!("/e2b/sandboxes/{id}");
    let files_only = json!({ "memory": false });
    let paused = client.post(&format!("{path}/pause"), &files_only).await;
    assert_eq!(paused.status, 204, "{paused:?}");
    server.kill_and_start_with(&["--memory-reserve", "1000T"]);
    let client = server.client();
    let agent = Agent::new(&client, &made);
    let connect = json!({ "timeout": 100 });
    for (what, refused) in [
        ("a port", ask(&client, &id, PORT, &[]).await),
        ("a file", agent.ask("GET", "/files?path=x", &[], "").await),
        (
            "a connect",
            client.post(&format!("{path}/connect"), &connect).await,
        ),
        ("a create", client.post("/e2b/v2/sandboxes", &request).await),
    ] {
        let refusal = refused.json();
        assert_eq!(
            (refused.status, &refusal["code"]),
            (503, &json!(503)),
            "{what}: {refusal}"
        );
        let message = refusal["message"].as_str().unwrap();
        assert!(message.contains("memory"), "{what}: {message}");
    }
    let called = agent
        .call("filesystem.Filesystem/Stat", &json!({ "path": "/" }))
        .await;
    assert_eq!(called.json()["code"], "resource_exhausted", "{called:?}");
    // The sandbox is paused, and the request would resume it.
    assert_eq!(client.get(&path).await.json()["state"], "paused");
    assert_eq!(agent.ask("GET", "/health", &[], "").await.status, 204);
    server.kill_and_start_with(&[]);
    let agent = Agent::new(&server.client(), &made);
    let called = agent
        .call("filesystem.Filesystem/Stat", &json!({ "path": "/" }))
        .await;
    assert_eq!(called.status, 200, "{called:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_listing_is_complete_or_an_error_heavy() {
    const MOST: usize = 100_000;
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let make = format!(
        "import os\nos.mkdir('/tmp/many')\nfor n in range({MOST} + 1): os.close(os.open(f'/tmp/many/{{n}}', os.O_CREAT))"
    );
    let line = format!("python3 -c \"{make}\"");
    let rest = agent.start(&line, &[]).await.0.rest().await;
    assert_eq!(
        rest[0].1["event"]["end"]["status"], "exit status 0",
        "{rest:?}"
    );
    let many = json!({ "path": "/tmp/many" });
    let refused = agent.call("filesystem.Filesystem/ListDir", &many).await;
    assert_eq!(
        (refused.status, &refused.json()["code"]),
        (400, &json!("failed_precondition"))
    );
    let message = refused.json()["message"].to_string();
    assert!(
        message.contains("/tmp/many has more than 100000 entries"),
        "{message}"
    );
    let one = json!({ "path": "/tmp/many/7" });
    assert_eq!(
        agent
            .call("filesystem.Filesystem/Remove", &one)
            .await
            .status,
        200
    );
    let listed = agent.call("filesystem.Filesystem/ListDir", &many).await;
    assert_eq!(listed.status, 200);
    assert_eq!(listed.json()["entries"].as_array().unwrap().len(), MOST);
    server.close().await;
}
