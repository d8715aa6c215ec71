#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[allow(dead_code, reason = "only deserialization is tested")]
struct Body {
    timeout: Option<i64>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
    limits: Option<Limits>,
    args: Option<Vec<String>>,
    metadata: Option<BTreeMap<String, String>>,
    background: Option<bool>,
    on_idle: Option<Action>,
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only deserialization is tested")]
struct Limits {
    cpus: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Action {
    Destroy,
    Stop,
    Pause,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only deserialization is tested")]
struct ListQuery {
    path: String,
    limit: Option<u32>,
    recursive: Option<bool>,
}

/// Message, remedy and field of an error.
fn parts(error: Error) -> (String, String, String) {
    assert_eq!(error.code, Code::InvalidRequest);
    let remedy = error.remedy.unwrap_or_default();
    let field = error.details.get("field").cloned();
    (error.message, remedy, field.unwrap_or_default())
}

#[test]
fn invalid_body_error_names_field_expected_value_and_remedy() {
    for (body, message, remedy) in [
        (
            r#"{"timeout":"5m"}"#,
            r#"timeout: expected an integer, got "5m""#,
            r#"send a JSON number of seconds, such as "timeout": 300"#,
        ),
        (
            r#"{"timeout":"5"}"#,
            r#"timeout: expected an integer, got "5""#,
            r#"remove the quotes: "timeout": 5"#,
        ),
        (
            r#"{"memoryMB":-1}"#,
            "memoryMB: expected an integer from 0 to 4294967295, got -1",
            r#"send a JSON number of MiB, such as "memoryMB": 512"#,
        ),
        (
            r#"{"limits":{"cpus":"two"}}"#,
            r#"limits.cpus: expected a number, got "two""#,
            r#"send a JSON number, such as "cpus": 1"#,
        ),
        (
            r#"{"limits":{}}"#,
            "limits.cpus: expected a value, got none",
            r#"add "cpus" to the JSON body"#,
        ),
        (
            r#"{"limits":5}"#,
            "limits: expected an object, got 5",
            r#"send a JSON object, such as "limits": {"key": "value"}"#,
        ),
        (
            r#"{"args":["a",["b"]]}"#,
            "args[1]: expected a string, got an array",
            "send a string as this element of the array",
        ),
        (
            r#"{"args":"a b"}"#,
            r#"args: expected an array, got "a b""#,
            r#"send a JSON array, such as "args": ["text"]"#,
        ),
        (
            r#"{"metadata":{"team":1}}"#,
            "metadata.team: expected a string, got 1",
            r#"send a JSON string, such as "team": "text""#,
        ),
        (
            r#"{"background":"yes"}"#,
            r#"background: expected true or false, got "yes""#,
            r#"send "background": true or "background": false"#,
        ),
        (
            r#"{"onIdle":"kill"}"#,
            r#"onIdle: expected destroy, stop or pause, got "kill""#,
            "use one of destroy, stop and pause",
        ),
        (
            r#"{"onIdle":5}"#,
            "onIdle: expected a string, got 5",
            r#"send a JSON string, such as "onIdle": "text""#,
        ),
        (
            r#"{"tiemout":5}"#,
            "tiemout: this request has no such field",
            "did you mean timeout? Known: timeout, memoryMB, limits, args, metadata, background, onIdle, path",
        ),
        (
            r#"{"limits":{"cores":5}}"#,
            "limits.cores: this request has no such field",
            "leave it out, or use one of cpus",
        ),
        (
            r#"{"path":"a","path":"b"}"#,
            "path: expected one value, got several",
            "send path once",
        ),
        (
            "[1]",
            "body: expected an object, got an array",
            r#"send one JSON object, such as {"timeout": 300}"#,
        ),
    ] {
        let (found, what, field) = parts(read_object::<Body>(body.as_bytes()).unwrap_err());
        assert_eq!((found.as_str(), what.as_str()), (message, remedy), "{body}");
        assert_eq!(message.split(':').next(), Some(field.as_str()), "{body}");
    }
}

#[test]
fn invalid_json_error_has_line_and_column() {
    for (body, place) in [
        ("{bad", "line 1, column 2"),
        ("{\"timeout\":", "line 1, column 11"),
        ("{\"timeout\": bad}", "line 1, column 13"),
        ("{}\n{}", "line 2, column 1"),
        ("nothing", "line 1, column 2"),
    ] {
        let (message, remedy, field) = parts(read_object::<Body>(body.as_bytes()).unwrap_err());
        let begin = format!("body: expected a JSON object, got invalid JSON at {place}: ");
        assert!(message.starts_with(&begin), "{body}: {message}");
        assert!(remedy.contains("double quotes"), "{remedy}");
        assert_eq!(field, "body", "{body}");
    }
}

#[test]
fn unknown_field_without_known_ones() {
    let refused = read_object::<Empty>(br#"{"timeout":5}"#).unwrap_err();
    let (message, remedy, _) = parts(refused);
    assert_eq!(message, "timeout: this request has no such field");
    assert_eq!(remedy, "leave it out: this request has none");
}

#[test]
fn long_values_are_truncated_in_messages() {
    let body = format!(r#"{{"timeout":"{}"}}"#, "ä".repeat(10_000));
    let refused = read_object::<Body>(body.as_bytes()).unwrap_err();
    assert!(refused.message.chars().count() < 150, "{refused}");
    let body = format!(r#"{{"{}":1}}"#, "x".repeat(1000));
    let refused = read_object::<Body>(body.as_bytes()).unwrap_err();
    assert!(refused.message.chars().count() < 150, "{refused}");
}

#[test]
fn invalid_query_error_names_parameter_expected_value_and_remedy() {
    for (query, message, remedy) in [
        (
            "path=/&limit=ten",
            r#"limit: expected an integer in range, got "ten""#,
            "send a whole number, such as limit=1",
        ),
        (
            "path=/&limit=-1",
            r#"limit: expected an integer in range, got "-1""#,
            "send a whole number, such as limit=1",
        ),
        (
            "path=/&recursive=yes",
            r#"recursive: expected true or false, got "yes""#,
            "send recursive=true or recursive=false",
        ),
        (
            "limit=1",
            "path: expected a value, got none",
            "add path=… to the query",
        ),
        (
            "path=/&path=/tmp",
            "path: expected one value, got several",
            "send path once",
        ),
        (
            "path=/&limits=1",
            "limits: this request has no such query parameter",
            "did you mean limit? Known: path, limit, recursive",
        ),
    ] {
        let uri: Uri = format!("/files?{query}").parse().unwrap();
        let (found, what, field) = parts(read_query::<ListQuery>(&uri).unwrap_err());
        assert_eq!(
            (found.as_str(), what.as_str()),
            (message, remedy),
            "{query}"
        );
        assert_eq!(message.split(':').next(), Some(field.as_str()), "{query}");
    }
}
