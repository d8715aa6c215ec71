//! Settings that only the operator has: limits per sandbox, and network addresses open to all sandboxes.

use std::os::fd::AsFd;

use atoll_testkit::run_within;
use serde_json::{Value, json};

use super::{Answer, Client, Server};
use crate::cli::{atoll, output_text};
use crate::harness::DEADLINE;

async fn changed(client: &Client, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    let body = body.to_string();
    client.send("PATCH", path, &headers, body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_ceilings_apply_to_every_caller() {
    let words = [
        "--max-cpus",
        "6",
        "--max-memory",
        "2560M",
        "--max-disk",
        "12G",
    ];
    let server = Server::start_with(&words).await;
    let client = server.client();
    let made = client.post("/sandboxes", &json!({ "cpuCount": 6 })).await;
    assert_eq!(made.status, 201, "{made:?}");
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    for (field, given, ceiling) in [
        ("cpuCount", 7, "from 0.05 to 6, the ceiling of this host"),
        ("memoryMB", 2561, "to 2.5 GiB, the ceiling of this host"),
        ("diskMB", 12289, "to 12 GiB, the ceiling of this host"),
    ] {
        let request = json!({ field: given });
        let path = format!("/sandboxes/{id}");
        for answer in [
            client.post("/sandboxes", &request).await,
            changed(&client, &path, &request).await,
        ] {
            assert_eq!(answer.status, 400, "{answer:?}");
            let error = answer.json();
            assert_eq!(error["details"]["field"], field, "{error}");
            assert!(error.to_string().contains(ceiling), "{error}");
        }
    }
    let url = format!("http://{}", server.address());
    let key = client.key.clone().unwrap();
    for words in [
        &["sandbox", "create", "--cpus", "7"][..],
        &["run", "--cpus", "7", "--", "true"],
    ] {
        let mut command = atoll(words);
        command.env("ATOLL_URL", &url).env("ATOLL_API_KEY", &key);
        let done = run_within(&mut command, DEADLINE, b"");
        let text = output_text(&done);
        assert!(!done.status.success(), "{text}");
        assert!(text.contains("to 6, the ceiling of this host"), "{text}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_and_doctor_name_operator_allowed_addresses() {
    let words = [
        "--egress-allow",
        "10.1.2.3:443",
        "--egress-allow",
        "192.168.0.0/16",
    ];
    let mut server = Server::start_with(&words).await;
    let log = server.log();
    assert!(log.contains("10.1.2.3:443 192.168.0.0/16"), "{log}");
    // Otherwise the server would enable IP forwarding on this machine.
    let host = atoll_jail::netns::create().unwrap();
    let checks = |server: &Server| {
        let mut doctor = atoll(&["doctor", "--json"]);
        doctor.env("ATOLL_DATA_DIR", server.data());
        let run = || run_within(&mut doctor, DEADLINE, b"");
        let output = atoll_jail::netns::within(host.as_fd(), run).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().iter();
        let found = checks.filter(|check| check["feature"] == "egress exceptions");
        let found = found.map(|check| check["found"].to_string());
        found.collect::<Vec<_>>()
    };
    let found = checks(&server);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].contains("10.1.2.3:443, 192.168.0.0/16"),
        "{found:?}"
    );
    server.kill_and_start_with(&[]);
    assert_eq!(checks(&server), [""; 0]);
    server.close().await;
}

#[test]
fn forbidden_egress_exception_refuses_the_start() {
    for never in ["127.0.0.1", "198.18.0.0/16", "0.0.0.0/0", "fd00::/8"] {
        let mut serve = atoll(&["serve", "--egress-allow", never]);
        let done = run_within(&mut serve, DEADLINE, b"");
        let text = output_text(&done);
        assert!(!done.status.success(), "{never}: {text}");
        assert!(text.contains(never), "{text}");
    }
}
