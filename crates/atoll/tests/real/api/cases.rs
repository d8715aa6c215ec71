use bytes::Bytes;
use serde_json::json;

use super::Server;
use super::document::Document;

/// One case of the file.
#[derive(Debug, Default)]
struct Case {
    name: String,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
    /// Status, and for failures the code and the field.
    expected: Vec<String>,
    parts: Vec<String>,
}

fn parse(text: &str) -> Vec<Case> {
    let paragraphs = text.split("\n\n").skip(1);
    paragraphs
        .map(|paragraph| {
            let mut case = Case::default();
            for line in paragraph.lines() {
                if let Some(name) = line.strip_prefix("# ") {
                    name.clone_into(&mut case.name);
                } else if case.method.is_empty() {
                    let (method, path) = line.split_once(' ').unwrap();
                    (case.method, case.path) = (method.into(), path.into());
                } else if let Some(expected) = line.strip_prefix("=> ") {
                    case.expected = expected.split(' ').map(ToOwned::to_owned).collect();
                } else if !case.expected.is_empty() {
                    case.parts.push(line.to_owned());
                } else if let Some((name, value)) = header(line) {
                    case.headers.push((name.into(), value.into()));
                } else {
                    line.clone_into(&mut case.body);
                }
            }
            case
        })
        .collect()
}

fn header(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(": ")?;
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    plain.then_some((name, value))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_gets_its_expected_response() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let cases = parse(include_str!("cases.txt"));
    assert!(cases.len() >= 50, "{}", cases.len());
    let document = Document::committed();
    for case in cases {
        let mut headers: Vec<(&str, &str)> = case
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            headers.push(("content-type", "application/json"));
        }
        let path = case.path.replace("ID", &id);
        let answer = client
            .send(
                &case.method,
                &path,
                &headers,
                Bytes::from(case.body.clone()),
            )
            .await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let context = format!("{}: {} {text}", case.name, answer.status);
        document.check(&case.method, &path, &answer);
        assert_eq!(answer.status.to_string(), case.expected[0], "{context}");
        assert!(answer.headers.contains_key("x-request-id"), "{context}");
        if answer.status >= 400 {
            let body = answer.json();
            assert!(
                body["request_id"].as_str().unwrap().starts_with("req_"),
                "{context}"
            );
            assert!(!body["error"].as_str().unwrap().is_empty(), "{context}");
            // Remedies name HTTP requests: a caller may have neither the command line nor a shell.
            let remedy = body["remedy"].as_str().unwrap_or_default();
            for word in ["atoll ", "curl", "--"] {
                assert!(!remedy.contains(word), "{context}");
            }
            let (_, code, field) = answer.refusal();
            assert_eq!(Some(&code), case.expected.get(1), "{context}");
            if let Some(expected) = case.expected.get(2) {
                assert_eq!(&field, expected, "{context}");
            }
        }
        for part in &case.parts {
            assert!(text.contains(part), "{context}\nlacks {part}");
        }
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_round_trip_unchanged() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let bytes: Bytes = (0..3_u32 << 20)
        .map(|number| (number % 251) as u8)
        .collect();
    let path = format!("/sandboxes/{id}/files?path=/home/user/big");
    let written = client.send("PUT", &path, &[], bytes.clone()).await;
    assert_eq!(written.status, 200, "{written:?}");
    let read = client.get(&path).await;
    assert!(read.body == bytes);
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("content-disposition", "attachment"),
        ("content-security-policy", "sandbox"),
    ] {
        assert_eq!(read.headers[name], value);
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_stdin_is_refused_in_the_standard_error_format() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let path = format!("/sandboxes/{id}/commands");
    let begun = json!({ "cmd": "wc -c", "background": true, "openStdin": true });
    let begun = client.post(&path, &begun).await.json();
    let path = format!("{path}/{}/stdin", begun["execID"].as_str().unwrap());
    let refused = client
        .send("POST", &path, &[], vec![b'x'; (2 << 20) + 1])
        .await;
    assert_eq!(refused.refusal().1, "PAYLOAD_TOO_LARGE", "{refused:?}");
    Document::committed().check("POST", &path, &refused);
    let taken = client.send("POST", &path, &[], vec![b'x'; 10]).await;
    assert_eq!(taken.json()["taken"], 10);
    server.close().await;
}
