//! Observability: metrics and the log, and the data that neither may contain.

use serde_json::{Value, json};

use super::Server;

/// The value of a metric with all of these words in its labels; 0 if there is none.
#[track_caller]
fn value(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let fits = |line: &&str| {
        let (head, _) = line.rsplit_once(' ').unwrap_or_default();
        let (found, rest) = head.split_once('{').unwrap_or((head, ""));
        found == name && labels.iter().all(|label| rest.contains(label))
    };
    let values = metrics.lines().filter(fits).map(|line| {
        let (_, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap()
    });
    values.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_reflect_server_activity() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "true").await;
    let path = format!("/sandboxes/{id}");
    client.post(&format!("{path}/pty"), &json!({})).await;
    client.post(&format!("{path}/pause"), &json!({})).await;
    client.post(&format!("{path}/resume"), &json!({})).await;
    let wrong = client.with_key(Some(&format!("atl_{}", "0".repeat(64))));
    assert_eq!(wrong.get(&path).await.status, 401);
    assert_eq!(client.with_key(None).get(&path).await.status, 401);
    for made_up in ["/no/such/1", "/no/such/2", "/api/no-such"] {
        assert_eq!(client.get(made_up).await.status, 404);
    }
    let refused = json!({ "template": "made-up-by-me" });
    assert_eq!(client.post("/sandboxes", &refused).await.status, 400);

    let shown = server.metrics().await;
    for (name, labels, expected) in [
        ("sandboxes_active", &["template=\"base\""][..], 1.0),
        ("sandboxes", &["state=\"running\""], 1.0),
        (
            "sandbox_creates_total",
            &["template=\"base\"", "status=\"success\""],
            1.0,
        ),
        (
            "sandbox_creates_total",
            &["template=\"unknown\"", "status=\"refused\""],
            1.0,
        ),
        (
            "sandbox_create_duration_seconds_count",
            &["template=\"base\""],
            1.0,
        ),
        ("exec_duration_seconds_count", &[], 1.0),
        ("pty_sessions_active", &[], 1.0),
        ("execs_active", &[], 0.0),
        ("adopted_sandboxes", &[], 0.0),
        (
            "http_requests_total",
            &[
                "method=\"POST\"",
                "path=\"/sandboxes/{id}/commands\"",
                "status=\"200\"",
            ],
            1.0,
        ),
        (
            "http_requests_total",
            &["path=\"unknown\"", "status=\"404\""],
            3.0,
        ),
        (
            "http_request_duration_seconds_count",
            &["path=\"/sandboxes/{id}/pause\""],
            1.0,
        ),
        (
            "auth_attempts_total",
            &["type=\"key\"", "result=\"failure\""],
            1.0,
        ),
        (
            "auth_attempts_total",
            &["type=\"none\"", "result=\"failure\""],
            1.0,
        ),
        (
            "engine_op_duration_seconds_count",
            &["operation=\"pause\""],
            1.0,
        ),
        (
            "engine_op_duration_seconds_count",
            &["operation=\"exec\""],
            2.0,
        ),
        (
            "store_op_duration_seconds_count",
            &["operation=\"add_sandbox\""],
            1.0,
        ),
    ] {
        let found = value(&shown, &format!("atoll_{name}"), labels);
        assert!(
            (found - expected).abs() < 1e-9,
            "{name} {labels:?}: {found}\n{shown}"
        );
    }
    for name in [
        "sandbox_create_queue_seconds_count",
        "worker_utilization",
        "process_resident_memory_bytes",
        "process_open_fds",
    ] {
        assert!(
            value(&shown, &format!("atoll_{name}"), &[]) > 0.0,
            "{name}\n{shown}"
        );
    }
    // The pool has a warm sandbox, or one is being created.
    assert!(shown.contains("atoll_pool_warm "), "{shown}");
    // The histogram distinguishes milliseconds.
    let fast = value(
        &shown,
        "atoll_store_op_duration_seconds_bucket",
        &["le=\"0.001\""],
    );
    assert!(fast > 0.0, "{shown}");
    for word in [&id, "made-up-by-me", "such", "atl_"] {
        assert!(!shown.contains(word), "{word} is shown: {shown}");
    }
    assert!(shown.ends_with("# EOF\n"));
    let documented = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md"),
    )
    .unwrap();
    for line in shown.lines().filter(|line| line.starts_with("# TYPE ")) {
        let name = line.split(' ').nth(2).unwrap();
        let name = name.strip_prefix("atoll_").unwrap();
        assert!(
            documented.contains(&format!("`{name}`")),
            "{name} is missing in docs/reference/metrics.md"
        );
    }

    // The next server logs how it takes over existing sandboxes.
    server.kill_and_start();
    let shown = server.metrics().await;
    let found = value(&shown, "atoll_adopted_sandboxes", &[]);
    assert!((found - 1.0).abs() < 1e-9, "{shown}");
    assert!(value(&shown, "atoll_adoption_seconds", &[]) > 0.0);
    assert!((value(&shown, "atoll_pty_sessions_active", &[]) - 1.0).abs() < 1e-9);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_logged_without_secrets() {
    let server = Server::start().await;
    let client = server.client();
    let key = client.key.clone().unwrap();
    let id = client
        .sandbox(&json!({ "envs": { "TOKEN": "s3cret-env" }, "metadata": { "m": "s3cret-meta" } }))
        .await;
    let path = format!("/sandboxes/{id}");
    let run = json!({ "cmd": "echo s3cret-line", "envs": { "T": "s3cret-envs" }, "stdin": "s3cret-stdin" });
    let ran = client.post(&format!("{path}/commands"), &run).await;
    assert_eq!(ran.status, 200, "{ran:?}");
    // Error details are returned to the caller only, and not logged.
    let failing = json!({ "cmd": "s3cret-program", "args": [], "s3cret-field": 1 });
    assert_eq!(client.post("/sandboxes", &failing).await.status, 400);
    let failing = json!({ "cmd": "s3cret-program", "args": ["s3cret-word"] });
    let failed = client.post(&format!("{path}/commands"), &failing).await;
    assert_eq!(failed.status, 400, "{failed:?}");
    // A key in the query, an invalid key, and a key in the wrong header.
    let pty = format!("{path}/pty?api_key={key}");
    client.get(&pty).await;
    let wrong = format!("atl_{}", "5".repeat(64));
    client.with_key(Some(&wrong)).get("/sandboxes").await;
    client
        .send(
            "GET",
            &path,
            &[("authorization", &format!("Bearer {key}"))],
            "",
        )
        .await;
    client.get(&format!("/nowhere/{key}")).await;
    client
        .get(&format!(
            "{path}/files?path=/s3cret-path&ticket=s3cret-ticket"
        ))
        .await;
    let last = client.get(&path).await;
    let request = last.headers["x-request-id"].to_str().unwrap().to_owned();

    let log = server.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    let line = lines
        .iter()
        .find(|line| line["span"]["request"] == request.as_str());
    let line = line.unwrap_or_else(|| panic!("{request}: {log}"));
    assert_eq!(line["message"], "request finished");
    assert_eq!(line["span"]["method"], "GET");
    assert_eq!(line["span"]["route"], "/sandboxes/{id}");
    assert_eq!(line["status"], 200);
    assert!(line["ms"].as_f64().unwrap() > 0.0);
    assert!(line["span"]["org"].as_str().unwrap().starts_with("org_"));
    assert!(line["span"]["key"].as_str().unwrap().starts_with("key_"));
    let answered = lines
        .iter()
        .filter(|line| line["message"] == "request finished");
    assert_eq!(answered.clone().count(), 10, "{log}");
    assert!(
        answered
            .clone()
            .any(|line| line["code"] == "PROGRAM_NOT_FOUND")
    );
    let digits = key.trim_start_matches("atl_");
    for secret in ["s3cret", digits, &digits[..8], "55555555"] {
        assert!(!log.contains(secret), "{secret} is in the log: {log}");
    }
    server.close().await;
}

#[test]
fn unusable_metrics_address_refuses_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let scratch = atoll_testkit::Scratch::new();
    let mut serve = std::process::Command::new(crate::harness::binary());
    serve
        .args(["serve", "--listen", "127.0.0.1:0", "--metrics-listen", &at])
        .arg("--data-dir")
        .arg(scratch.join("data"))
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::harness::data().join("templates"),
        );
    let output = atoll_testkit::run(&mut serve);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("--metrics-listen"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_usage_is_sampled_and_returned_for_a_range() {
    let server = Server::start().await;
    let client = server.client();
    let id = client
        .sandbox(&json!({ "timeout": 0, "cpuCount": 1 }))
        .await;
    let path = format!("/sandboxes/{id}/metrics");
    // A current sample is available at once.
    let first = client.get(&path).await.array();
    assert!(!first.is_empty());
    let busy =
        json!({ "cmd": "head -c 20m /dev/zero > file; while :; do :; done", "background": true });
    client
        .post(&format!("/sandboxes/{id}/commands"), &busy)
        .await;
    // The kernel sums up a control group's memory with a delay, so a sample may show a little less than was written.
    let is_complete = |sample: &Value| {
        sample["diskUsed"].as_u64() >= Some(20 << 20)
            && sample["memCache"].as_u64() >= Some(19 << 20)
            && sample["cpuSeconds"].as_f64() > Some(0.1)
            && sample["cpuUsedPct"].as_f64() > Some(5.0)
    };
    let waiting = async {
        let mut all = Vec::new();
        while all.len() <= 3 || !all.last().is_some_and(is_complete) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            all = client.get(&path).await.array();
        }
        all
    };
    let all = tokio::time::timeout(crate::harness::DEADLINE, waiting).await;
    let all = all.expect("the sandbox is sampled");
    let last = all.last().unwrap();
    assert_eq!(last["cpuCount"], 1.0);
    assert!(last["cpuUsedPct"].as_f64().unwrap() < 150.0, "{last}");
    assert!(last["memUsed"].as_u64().unwrap() > 0, "{last}");
    assert_eq!(last["memTotal"], 2_u64 << 30);
    assert_eq!(last["diskTotal"], 10_u64 << 30);
    assert!(last["pids"].as_u64().unwrap() >= 2, "{last}");
    // A range in seconds or between two times returns the samples within it.
    let one = all[1]["timestamp"].as_str().unwrap();
    let some = client
        .get(&format!("{path}?start={one}&end={one}"))
        .await
        .array();
    assert_eq!(some, vec![all[1].clone()]);
    assert!(
        client
            .get(&format!("{path}?end=1000"))
            .await
            .array()
            .is_empty()
    );
    // A stopped sandbox returns its past samples.
    client
        .post(&format!("/sandboxes/{id}/stop"), &json!({}))
        .await;
    assert!(client.get(&path).await.array().len() >= 3);
    server.close().await;
}
