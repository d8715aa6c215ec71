//! Errors for bodies, queries and paths that cannot be deserialized: field, expected value,
//! received value and remedy. This is the only module that translates serde messages.

use std::borrow::Cow;

use atoll_model::{Code, Error};
use axum::extract::path::ErrorKind;
use axum::extract::rejection::PathRejection;
use axum::http::Uri;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;

/// Maximum length of a received value in a message, in characters.
const MAX_SHOWN: usize = 60;
/// Minimum similarity (Jaro) at which a known name is suggested for an unknown one.
const MIN_SIMILARITY: f64 = 0.7;

/// Part of the request that contains a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Body,
    Query,
}

/// Deserializes JSON of any type.
pub(crate) fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().clone();
        refused(bytes, &path, &error.into_inner())
    })?;
    reader.end().map_err(|error| not_json(&error))?;
    Ok(read)
}

/// Deserializes a JSON object. An array is rejected: serde would accept its elements as fields.
pub(crate) fn read_object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    if bytes.trim_ascii_start().starts_with(b"{") {
        return read_json(bytes);
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| not_json(&error))?;
    Err(mismatch(
        Place::Body,
        "body",
        "an object",
        &format_value(&value),
    ))
}

/// Deserializes a query.
pub(crate) fn read_query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Error> {
    let query = uri.query().unwrap_or_default().as_bytes();
    let reader = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query));
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        let mut pairs = form_urlencoded::parse(query);
        let got = pairs.find_map(|(name, value)| (name == path).then_some(value));
        let got = got.map(|got| format_value(&Value::from(got)));
        explain(Place::Query, &path, &error.into_inner().to_string(), got)
    })
}

/// Error for an invalid path parameter.
pub(crate) fn path(rejection: &PathRejection) -> Error {
    let kind = match rejection {
        PathRejection::FailedToDeserializePathParams(failed) => Some(failed.kind()),
        _ => None,
    };
    match kind {
        Some(ErrorKind::ParseErrorAtKey {
            key,
            value,
            expected_type,
        }) => mismatch(
            Place::Query,
            key,
            &kind_of(expected_type),
            &format_value(&Value::from(value.as_str())),
        )
        .remedy(format!(
            "write {key} in the path as {}",
            kind_of(expected_type)
        )),
        Some(ErrorKind::InvalidUtf8InPathParam { key }) => Error::invalid(
            key,
            format!("{key}: expected UTF-8 in the path, got other bytes"),
            "encode the text as UTF-8, then percent-encode it",
        ),
        _ => Error::invalid(
            "path",
            "path: expected UTF-8, with %XX for bytes that are no letters or digits",
            "encode each part of the path as UTF-8, then percent-encode it",
        ),
    }
}

/// Error for a body that serde rejected.
fn refused(bytes: &[u8], path: &serde_path_to_error::Path, error: &serde_json::Error) -> Error {
    // serde_json reports some type mismatches as syntax errors.
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(error) => return not_json(&error),
    };
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = error.to_string();
    let message = message.strip_suffix(&place).unwrap_or(&message);
    let got = find(&value, path).map(format_value);
    explain(Place::Body, &path.to_string(), message, got)
}

/// The value at a path, or as deep as the path exists.
fn find<'a>(value: &'a Value, path: &serde_path_to_error::Path) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Map { key } => value.get(key),
        Segment::Seq { index } => value.get(index),
        Segment::Enum { .. } | Segment::Unknown => Some(value),
    })
}

fn not_json(error: &serde_json::Error) -> Error {
    let (line, column) = (error.line(), error.column());
    let place = format!(" at line {line} column {column}");
    let message = error.to_string();
    let cause = message.strip_suffix(&place).unwrap_or(&message);
    let error = Error::invalid(
        "body",
        format!(
            "body: expected a JSON object, got invalid JSON at line {line}, column {column}: {cause}"
        ),
        "send one JSON object, with names and strings in double quotes, such as {\"timeout\": 300}",
    );
    error
        .detail("expected", "a JSON object")
        .detail("got", "invalid JSON")
}

/// Translates a serde message about the value at a path.
fn explain(place: Place, path: &str, message: &str, got: Option<String>) -> Error {
    let path = if path == "." { "" } else { path };
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let (first, known) = names.split_first().unwrap_or((&"", &[]));
    if message.starts_with("unknown field `") {
        return unknown(place, &below(path, first), first, known);
    }
    if message.starts_with("missing field `") {
        let field = below(path, first);
        let remedy = match place {
            Place::Body => format!("add \"{first}\" to the JSON body"),
            Place::Query => format!("add {first}=… to the query"),
        };
        return Error::invalid(
            &field,
            format!("{field}: expected a value, got none"),
            remedy,
        )
        .detail("got", "nothing");
    }
    if message.starts_with("duplicate field `") {
        let field = below(path, first);
        let message = format!("{field}: expected one value, got several");
        return Error::invalid(&field, message, format!("send {field} once"))
            .detail("expected", "one value");
    }
    let field = if path.is_empty() { "body" } else { path };
    let got = got.unwrap_or_else(|| "nothing".to_owned());
    if message.starts_with("unknown variant `") {
        let expected = listed(known, "or");
        let error = mismatch(place, field, &expected, &got);
        return error.remedy(format!("use one of {}", listed(known, "and")));
    }
    if let Some(expected) = expected(message) {
        return mismatch(place, field, &expected, &got);
    }
    // Message of a custom type; it names the accepted values.
    Error::invalid(
        field,
        format!("{field}: {message}"),
        "GET /docs on the server describes the field",
    )
}

fn unknown(place: Place, path: &str, name: &str, known: &[&str]) -> Error {
    let similar = |other: &&&str| strsim::jaro(name, other);
    let best = known
        .iter()
        .filter(|other| similar(other) >= MIN_SIMILARITY)
        .max_by(|one, two| similar(one).total_cmp(&similar(two)));
    let what = match place {
        Place::Body => "field",
        Place::Query => "query parameter",
    };
    let remedy = match (best, known) {
        (_, []) => "leave it out: this request has none".to_owned(),
        (Some(best), _) => format!("did you mean {best}? Known: {}", known.join(", ")),
        (None, _) => format!("leave it out, or use one of {}", known.join(", ")),
    };
    let expected = if known.is_empty() {
        format!("no {what}")
    } else {
        format!("a known {what}")
    };
    let path = cut(path);
    let message = format!("{path}: this request has no such {what}");
    Error::invalid(&path, message, remedy)
        .detail("expected", expected)
        .detail("got", cut(name))
}

/// Appends a field to a path unless serde has done so.
fn below(path: &str, field: &str) -> String {
    if path.is_empty() || path == field {
        return field.to_owned();
    }
    if path.ends_with(&format!(".{field}")) {
        return path.to_owned();
    }
    format!("{path}.{field}")
}

fn mismatch(place: Place, field: &str, expected: &str, got: &str) -> Error {
    let message = format!("{field}: expected {expected}, got {got}");
    Error::new(Code::InvalidRequest, message)
        .remedy(remedy(place, field, expected, got))
        .detail("field", field)
        .detail("expected", expected)
        .detail("got", got)
}

/// Remedy for a value of the wrong type.
fn remedy(place: Place, field: &str, expected: &str, got: &str) -> String {
    let name = field.rsplit('.').next().unwrap_or(field);
    let (unit, sample) = match name {
        _ if name.to_ascii_lowercase().ends_with("timeout") || name == "expiresIn" => {
            (" of seconds", "300")
        }
        _ if name.ends_with("MB") => (" of MiB", "512"),
        _ => ("", "1"),
    };
    if name.ends_with(']') {
        return format!("send {expected} as this element of the array");
    }
    let number = expected.starts_with("an integer") || expected == "a number";
    let digits = got.trim_matches('"').parse::<i64>().ok();
    match (place, expected) {
        (Place::Query, _) if number => {
            format!("send a whole number{unit}, such as {name}={sample}")
        }
        (Place::Query, "true or false") => format!("send {name}=true or {name}=false"),
        (Place::Query, _) => "GET /docs on the server describes the parameter".to_owned(),
        (Place::Body, _) if number => match digits.filter(|_| got.starts_with('"')) {
            Some(digits) => format!("remove the quotes: \"{name}\": {digits}"),
            None => format!("send a JSON number{unit}, such as \"{name}\": {sample}"),
        },
        (Place::Body, "true or false") => format!("send \"{name}\": true or \"{name}\": false"),
        (Place::Body, "a string") => format!("send a JSON string, such as \"{name}\": \"text\""),
        (Place::Body, "an array") => format!("send a JSON array, such as \"{name}\": [\"text\"]"),
        (Place::Body, "an object") if field == "body" => {
            "send one JSON object, such as {\"timeout\": 300}".to_owned()
        }
        (Place::Body, "an object") => {
            format!("send a JSON object, such as \"{name}\": {{\"key\": \"value\"}}")
        }
        (Place::Body, _) => "GET /docs on the server describes the field".to_owned(),
    }
}

/// The expected type in a message of serde or a parser; `None` for other messages.
fn expected(message: &str) -> Option<Cow<'static, str>> {
    Some(match message {
        "invalid digit found in string"
        | "cannot parse integer from empty string"
        | "number too large to fit in target type"
        | "number too small to fit in target type" => "an integer in range".into(),
        "provided string was not `true` or `false`" => "true or false".into(),
        "invalid float literal" | "cannot parse float from empty string" => "a number".into(),
        // For an enum, serde_json expects a string.
        "expected value" => "a string".into(),
        _ => {
            let prefixes = ["invalid type: ", "invalid value: ", "invalid length "];
            if !prefixes.iter().any(|begin| message.starts_with(begin)) {
                return None;
            }
            kind_of(message.rsplit_once(", expected ")?.1)
        }
    })
}

/// Translates a Rust type name into JSON terms.
fn kind_of(name: &str) -> Cow<'static, str> {
    match name {
        "u8" => "an integer from 0 to 255".into(),
        "u16" => "an integer from 0 to 65535".into(),
        "u32" => "an integer from 0 to 4294967295".into(),
        "u64" | "usize" => "an integer of at least 0".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer".into(),
        "f32" | "f64" => "a number".into(),
        "bool" | "a boolean" => "true or false".into(),
        "a string" | "a borrowed string" | "a string key" | "variant identifier" => {
            "a string".into()
        }
        "a sequence" => "an array".into(),
        "a map" => "an object".into(),
        _ if name.starts_with("struct ") => "an object".into(),
        _ => name.to_owned().into(),
    }
}

/// Formats a value for a message.
fn format_value(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        value => cut(&value.to_string()),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Formats a list such as `a, b or c`.
fn listed(names: &[&str], last: &str) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests;
