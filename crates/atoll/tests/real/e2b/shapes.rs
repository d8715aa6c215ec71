//! Every response has exactly the fields that E2B's clients parse, with the types they expect.

use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Agent;
use crate::api::Server;
use crate::harness::DEADLINE;

/// Type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// A time as RFC 3339 has it.
    Time,
    /// Digits in text, as 64 bits are written.
    Digits,
    Whole,
    Number,
    Bool,
    Texts,
    /// Names with texts.
    Map,
    Object,
}

use Kind::{Bool, Digits, Map, Number, Object, Text, Texts, Time, Whole};

impl Kind {
    fn fits(self, value: &Value) -> bool {
        let text = value.as_str();
        match self {
            Text => text.is_some(),
            Time => text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()),
            Digits => text.is_some_and(|text| text.parse::<i64>().is_ok()),
            Whole => value.is_i64(),
            Number => value.is_number(),
            Bool => value.is_boolean(),
            Texts => value
                .as_array()
                .is_some_and(|all| all.iter().all(Value::is_string)),
            Map => value
                .as_object()
                .is_some_and(|all| all.values().all(Value::is_string)),
            Object => value.is_object(),
        }
    }
}

/// The fields of an object, each always there.
#[track_caller]
fn shaped(what: &str, value: &Value, fields: &[&[(&str, Kind)]]) {
    let fields = fields.concat();
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("{what}: {value}"));
    for (name, kind) in &fields {
        let found = object.get(*name);
        let fits = found.is_some_and(|found| kind.fits(found));
        assert!(fits, "{what}.{name} is no {kind:?}: {value}");
    }
    for name in object.keys() {
        let known = fields.iter().any(|(field, _)| field == name);
        assert!(known, "{what}.{name} is not documented: {value}");
    }
}

const SANDBOX: &[(&str, Kind)] = &[
    ("templateID", Text),
    ("sandboxID", Text),
    ("clientID", Text),
    ("alias", Text),
    ("envdVersion", Text),
    ("envdAccessToken", Text),
    ("domain", Text),
];
const LISTED: &[(&str, Kind)] = &[
    ("templateID", Text),
    ("sandboxID", Text),
    ("clientID", Text),
    ("alias", Text),
    ("startedAt", Time),
    ("endAt", Time),
    ("cpuCount", Whole),
    ("memoryMB", Whole),
    ("diskSizeMB", Whole),
    ("metadata", Map),
    ("state", Text),
    ("envdVersion", Text),
];
const DETAIL: &[(&str, Kind)] = &[
    ("envdAccessToken", Text),
    ("allowInternetAccess", Bool),
    ("domain", Text),
    ("lifecycle", Object),
    ("network", Object),
];
const LIFECYCLE: &[(&str, Kind)] = &[("autoResume", Bool), ("onTimeout", Text)];
const NETWORK: &[(&str, Kind)] = &[
    ("allowOut", Texts),
    ("denyOut", Texts),
    ("allowPublicTraffic", Bool),
];
const METRIC: &[(&str, Kind)] = &[
    ("timestamp", Time),
    ("timestampUnix", Whole),
    ("cpuCount", Whole),
    ("cpuUsedPct", Number),
    ("memUsed", Whole),
    ("memTotal", Whole),
    ("memCache", Whole),
    ("diskUsed", Whole),
    ("diskTotal", Whole),
];
const ENTRY: &[(&str, Kind)] = &[
    ("name", Text),
    ("type", Text),
    ("path", Text),
    ("size", Digits),
    ("mode", Whole),
    ("permissions", Text),
    ("owner", Text),
    ("group", Text),
    ("modifiedTime", Time),
];
const SYSTEM: &[(&str, Kind)] = &[
    ("ts", Whole),
    ("cpu_count", Whole),
    ("cpu_used_pct", Number),
    ("mem_total", Whole),
    ("mem_used", Whole),
    ("mem_cache", Whole),
    ("mem_total_mib", Whole),
    ("mem_used_mib", Whole),
    ("disk_used", Whole),
    ("disk_total", Whole),
];
const END: &[(&str, Kind)] = &[
    ("exitCode", Whole),
    ("exited", Bool),
    ("status", Text),
    ("error", Text),
];
const WRITTEN: &[(&str, Kind)] = &[("name", Text), ("path", Text), ("type", Text)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_have_the_fields_that_clients_parse() {
    let server = Server::start_with(&["--domain", "box.test"]).await;
    let client = server.client();
    let open = json!({ "templateID": "base", "timeout": 100, "metadata": { "a": "b" } });
    for version in ["", "/v2"] {
        let made = client
            .post(&format!("/e2b{version}/sandboxes"), &open)
            .await;
        assert_eq!(made.status, 201, "{made:?}");
        shaped("Sandbox", &made.json(), &[SANDBOX]);
    }
    let mut closed = open.clone();
    closed["network"] = json!({ "allowPublicTraffic": false, "denyOut": ["1.1.1.1"] });
    let made = client.post("/e2b/v2/sandboxes", &closed).await.json();
    shaped(
        "Sandbox",
        &made,
        &[SANDBOX, &[("trafficAccessToken", Text)]],
    );
    assert_eq!(
        (&made["templateID"], &made["alias"]),
        (&json!("base"), &json!("base"))
    );
    let path = format!("/e2b/sandboxes/{}", made["sandboxID"].as_str().unwrap());
    for version in ["", "/v2"] {
        let path = path.replace("/e2b", &format!("/e2b{version}"));
        let connected = client
            .post(&format!("{path}/connect"), &json!({ "timeout": 100 }))
            .await;
        assert_eq!(connected.status, 200, "{connected:?}");
        shaped(
            "Sandbox",
            &connected.json(),
            &[SANDBOX, &[("trafficAccessToken", Text)]],
        );
    }
    for path in ["/e2b/sandboxes", "/e2b/v2/sandboxes"] {
        let listed = client.get(path).await.array();
        assert_eq!(listed.len(), 3);
        for one in &listed {
            shaped("ListedSandbox", one, &[LISTED]);
            assert_eq!(
                (&one["state"], &one["alias"]),
                (&json!("running"), &json!("base"))
            );
        }
    }
    let detail = client.get(&path).await.json();
    shaped("SandboxDetail", &detail, &[LISTED, DETAIL]);
    shaped("lifecycle", &detail["lifecycle"], &[LIFECYCLE]);
    shaped("network", &detail["network"], &[NETWORK]);
    // Start times have microseconds, because lists are ordered by them.
    let started = detail["startedAt"].as_str().unwrap();
    assert_eq!(
        started.split_once('.').unwrap().1.len(),
        "123456Z".len(),
        "{started}"
    );
    for metric in client.get(&format!("{path}/metrics")).await.array() {
        shaped("SandboxMetric", &metric, &[METRIC]);
    }
    client.post(&format!("{path}/pause"), &json!({})).await;
    let detail = client.get(&path).await.json();
    shaped(
        "SandboxDetail",
        &detail,
        &[LISTED, DETAIL, &[("pauseMode", Text)]],
    );
    assert_eq!(detail["state"], "paused");
    shaped(
        "Error",
        &client.get("/e2b/sandboxes/i0").await.json(),
        &[&[("code", Whole), ("message", Text)]],
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_processes_have_the_fields_that_clients_parse() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let octets = [("content-type", "application/octet-stream")];
    let written = agent.ask("POST", "/files?path=a", &octets, "12345").await;
    shaped("written", &written.array()[0], &[WRITTEN]);
    let headers = [octets[0], ("x-metadata-key", "value")];
    let written = agent.ask("POST", "/files?path=b", &headers, "12345").await;
    shaped(
        "written",
        &written.array()[0],
        &[WRITTEN, &[("metadata", Map)]],
    );
    agent
        .start("ln -s a /home/user/link", &[])
        .await
        .0
        .rest()
        .await;
    let service = |name: &str| format!("filesystem.Filesystem/{name}");
    for (name, request) in [
        ("Stat", json!({ "path": "a" })),
        ("MakeDir", json!({ "path": "directory" })),
        ("Move", json!({ "source": "a", "destination": "c" })),
    ] {
        let answer = agent.call(&service(name), &request).await.json();
        shaped(name, &answer, &[&[("entry", Object)]]);
        shaped("EntryInfo", &answer["entry"], &[ENTRY]);
    }
    agent
        .call(
            &service("Move"),
            &json!({ "source": "c", "destination": "a" }),
        )
        .await;
    let listed = agent
        .call(&service("ListDir"), &json!({ "path": "." }))
        .await
        .json();
    assert_eq!(listed.as_object().unwrap().len(), 1);
    for entry in listed["entries"].as_array().unwrap() {
        match entry["name"].as_str().unwrap() {
            "b" => shaped("EntryInfo", entry, &[ENTRY, &[("metadata", Map)]]),
            "link" => shaped("EntryInfo", entry, &[ENTRY, &[("symlinkTarget", Text)]]),
            _ => shaped("EntryInfo", entry, &[ENTRY]),
        }
    }
    let empty = agent
        .call(&service("Remove"), &json!({ "path": "b" }))
        .await;
    assert_eq!(empty.json(), json!({}));
    let watched = json!({ "path": ".", "includeEntry": true });
    let kept = agent.call(&service("CreateWatcher"), &watched).await.json();
    shaped("CreateWatcher", &kept, &[&[("watcherId", Text)]]);
    let mut watch = agent.open(&service("WatchDir"), &watched, &[]).await;
    assert_eq!(watch.next().await.unwrap().1, json!({ "start": {} }));
    agent
        .call(&service("MakeDir"), &json!({ "path": "new" }))
        .await;
    let event: &[(&str, Kind)] = &[("name", Text), ("type", Text), ("entry", Object)];
    let change = watch.next().await.unwrap().1;
    shaped("WatchDir", &change, &[&[("filesystem", Object)]]);
    shaped("event", &change["filesystem"], &[event]);
    shaped("EntryInfo", &change["filesystem"]["entry"], &[ENTRY]);
    let change = async {
        loop {
            let drained = agent.call(&service("GetWatcherEvents"), &kept).await.json();
            if let Some(first) = drained["events"].get(0) {
                return first.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let change = tokio::time::timeout(DEADLINE, change).await.unwrap();
    shaped("event", &change, &[event]);
    let removed = agent.call(&service("RemoveWatcher"), &kept).await;
    assert_eq!(removed.json(), json!({}));

    let (mut stream, pid) = agent.start("echo out; echo err >&2; read line", &[]).await;
    let mut seen = Vec::new();
    while let Some((last, message)) = stream.next().await {
        if last {
            assert_eq!(message, json!({}));
            continue;
        }
        shaped("StartResponse", &message, &[&[("event", Object)]]);
        let (name, value) = message["event"].as_object().unwrap().iter().next().unwrap();
        if name == "data" {
            let stream = value.as_object().unwrap().keys().next().unwrap();
            shaped("data", value, &[&[(stream, Text)]]);
            seen.push(stream.clone());
        } else {
            shaped(name, value, &[END]);
            seen.push(name.clone());
        }
    }
    seen.sort();
    assert_eq!(seen, ["end", "stderr", "stdout"], "{pid}");
    let (_running, pid) = agent.start("exec sleep 600", &[]).await;
    let listed = agent.call("process.Process/List", &json!({})).await.json();
    assert_eq!(listed.as_object().unwrap().len(), 1, "{listed}");
    let process = &listed["processes"][0];
    assert_eq!(process["pid"], pid);
    let config: &[(&str, Kind)] = &[("cmd", Text), ("args", Texts), ("envs", Map)];
    shaped("ProcessConfig", &process["config"], &[config]);
    for (name, request) in [
        (
            "SendSignal",
            json!({ "process": { "pid": pid }, "signal": "SIGNAL_SIGKILL" }),
        ),
        ("Update", json!({ "process": { "pid": pid } })),
    ] {
        let answer = agent
            .call(&format!("process.Process/{name}"), &request)
            .await;
        assert_eq!((answer.status, answer.json()), (200, json!({})), "{name}");
    }
    let missing = agent
        .call(&service("Stat"), &json!({ "path": "/nowhere" }))
        .await;
    let fault: &[(&str, Kind)] = &[("code", Text), ("message", Text)];
    assert_eq!(missing.status, 404);
    shaped("fault", &missing.json(), &[fault]);
    shaped(
        "metrics",
        &agent.ask("GET", "/metrics", &[], "").await.json(),
        &[SYSTEM],
    );
    let variables = agent.ask("GET", "/envs", &[], "").await.json();
    assert!(Map.fits(&variables), "{variables}");
    assert_eq!(variables["E2B_SANDBOX"], "true");
    server.close().await;
}
