//! The OpenAPI description: the committed file, the served document and the routes' responses agree.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use super::Server;
use super::access::ROUTES;
use super::client::Answer;
use crate::harness::binary;

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../openapi/v1.json")
}

/// The description that is committed.
#[derive(Debug)]
pub struct Document(Value);

impl Document {
    pub fn committed() -> Self {
        let text = std::fs::read_to_string(file()).unwrap();
        Self(serde_json::from_str(&text).unwrap())
    }

    fn deref<'a>(&'a self, node: &'a Value) -> &'a Value {
        match node["$ref"].as_str() {
            Some(at) => self.0.pointer(at.trim_start_matches('#')).unwrap(),
            None => node,
        }
    }

    /// The path template that matches a request, and its description.
    fn route(&self, path: &str) -> Option<(&str, &Value)> {
        let path = path.split('?').next().unwrap();
        let path = path.strip_prefix("/api").unwrap_or(path);
        let words: Vec<&str> = path.split('/').collect();
        let fits = |known: &str| {
            let parts: Vec<&str> = known.split('/').collect();
            let pairs = || parts.iter().zip(&words);
            parts.len() == words.len()
                && pairs().all(|(part, word)| part.starts_with('{') || part == word)
        };
        let paths = self.0["paths"].as_object().unwrap();
        let found = paths.iter().find(|(known, _)| fits(known));
        found.map(|(known, item)| (known.as_str(), item))
    }

    /// Panics unless the description contains this response.
    #[track_caller]
    pub fn check(&self, method: &str, path: &str, answer: &Answer) {
        let item = self.route(path).map(|(_, item)| item);
        let Some(operation) = item.and_then(|item| item.get(method.to_lowercase())) else {
            return;
        };
        let context = format!("{method} {path} answers {}", answer.status);
        let response = &operation["responses"][answer.status.to_string()];
        assert!(response.is_object(), "{context}, which is not described");
        let response = self.deref(response);
        if answer.status < 400 || path.starts_with("/readyz") {
            return;
        }
        let codes = &response["content"]["application/json"]["schema"]["allOf"][1];
        let codes = codes["properties"]["code"]["enum"].as_array().unwrap();
        let (_, code, _) = answer.refusal();
        assert!(
            codes.iter().any(|known| *known == *code),
            "{context} {code}, and only {codes:?} are described"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openapi_document_is_as_committed_and_needs_no_key() {
    let made = atoll_testkit::run(std::process::Command::new(binary()).arg("openapi"));
    let committed = std::fs::read(file()).unwrap_or_default();
    assert!(
        made.stdout == committed,
        "routes have changed: renew their description with `atoll openapi > openapi/v1.json` and look at what is new"
    );
    let server = Server::start().await;
    let keyless = server.client().with_key(None);
    let served = keyless.get("/openapi.json").await;
    assert_eq!(served.headers["content-type"], "application/json");
    assert!(served.body == committed);
    // `/sessions` has no alias below `/api`.
    assert_eq!(keyless.get("/api/sessions").await.refusal().1, "NOT_FOUND");
    let page = keyless.get("/docs").await;
    assert_eq!(page.status, 200);
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
    server.close().await;
}

#[test]
fn every_route_is_described_and_checked_for_access() {
    let document = Document::committed();
    let described = document.0["paths"].as_object().unwrap().iter();
    let described = described.flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().keys();
        let methods = methods.filter(|method| *method != "parameters");
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    let checked = ROUTES.iter().map(|(method, path, _)| {
        let known = document.route(path).map_or(*path, |(known, _)| known);
        format!("{method} {known}")
    });
    let (described, checked): (BTreeSet<_>, BTreeSet<_>) = (described.collect(), checked.collect());
    assert_eq!(described, checked);
}

#[test]
fn every_operation_is_documented() {
    let document = Document::committed();
    let mut names = BTreeSet::new();
    for (path, item) in document.0["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" {
                for part in operation.as_array().unwrap() {
                    assert_ne!(part["schema"]["pattern"], "", "{path}: {part}");
                }
                continue;
            }
            let route = format!("{method} {path}");
            assert!(operation["summary"].is_string(), "{route}");
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{route}: {name} is taken");
            for (status, response) in operation["responses"].as_object().unwrap() {
                let response = document.deref(response);
                assert_ne!(response["description"], "", "{route} {status}");
            }
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            if body.is_object() {
                let strict = &document.deref(body)["additionalProperties"];
                assert_eq!(*strict, false, "{route} accepts unknown fields");
            }
        }
    }
}
