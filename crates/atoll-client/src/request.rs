//! Requests and their bodies.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use atoll_model::{Code, Error};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::Method;
use serde_json::Value;

use crate::error::RequestError;
use crate::target::Target;

/// Body of a request.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Default timeout for the head of a response.
const USUAL: Duration = Duration::from_mins(1);

/// A request that can be sent several times.
#[derive(Debug, Clone)]
pub struct Request {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    deadline: Duration,
    idempotent: bool,
}

impl Request {
    fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            // These methods are idempotent.
            idempotent: method.is_idempotent(),
            method,
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::new(),
            deadline: USUAL,
        }
    }

    /// Creates a GET request.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Creates a DELETE request.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// Creates a PUT request.
    pub fn put(path: impl Into<String>) -> Self {
        Self::new(Method::PUT, path)
    }

    /// Creates a PUT request with these bytes.
    pub fn put_bytes(path: impl Into<String>, body: Bytes) -> Self {
        let mut request = Self::put(path);
        request.body = body;
        request
    }

    /// Creates a PUT request with this JSON.
    pub fn put_json(path: impl Into<String>, body: &Value) -> Self {
        let request = Self::put_bytes(path, body.to_string().into());
        request.header("content-type", "application/json")
    }

    /// Creates a POST request, which is not retried if the server may have processed it.
    pub fn post(path: impl Into<String>, body: &Value) -> Self {
        let mut request = Self::new(Method::POST, path);
        request.body = body.to_string().into();
        request.header("content-type", "application/json")
    }

    /// Creates a PATCH request.
    pub fn patch(path: impl Into<String>, body: &Value) -> Self {
        let mut request = Self::post(path, body);
        request.method = Method::PATCH;
        request
    }

    /// Sets the body to these bytes.
    pub fn post_bytes(path: impl Into<String>, body: Bytes) -> Self {
        let mut request = Self::new(Method::POST, path);
        request.body = body;
        request.header("content-type", "application/octet-stream")
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets the timeout for the head of the response.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Marks the request as idempotent, so that it is retried.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    pub(crate) fn is_repeatable(&self) -> bool {
        self.idempotent
    }

    pub(crate) fn is_delete(&self) -> bool {
        self.method == Method::DELETE
    }

    pub(crate) fn response_timeout(&self) -> Duration {
        self.deadline
    }

    pub(crate) fn body(&self) -> Body {
        let body = Full::new(self.body.clone());
        UnsyncBoxBody::new(body.map_err(|never| match never {}))
    }

    /// The request of the `http` crate.
    pub(crate) fn build(
        &self,
        target: &Target,
        key: Option<&str>,
        body: Body,
    ) -> Result<hyper::Request<Body>, RequestError> {
        let mut request = hyper::Request::builder()
            .method(self.method.clone())
            .uri(format!("{}{}", target.prefix, self.path))
            .header("host", &target.host);
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(body).map_err(|error| {
            let message = format!("the request cannot be written: {error}");
            let error = Error::new(Code::InvalidRequest, message);
            RequestError::Rejected(error.remedy("a key or a name has letters that it cannot have"))
        })
    }
}

/// Joins segments to a path and percent-encodes them.
pub fn path(parts: &[&str]) -> String {
    let mut path = String::new();
    for part in parts {
        path.push('/');
        encode(part, &mut path);
    }
    path
}

/// Appends query parameters to a path.
pub fn query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut text = path.to_owned();
    for (number, (name, value)) in parameters.iter().enumerate() {
        text.push(if number == 0 { '?' } else { '&' });
        encode(name, &mut text);
        text.push('=');
        encode(value, &mut text);
    }
    text
}

/// Percent-encodes all characters except the unreserved ones of RFC 3986.
fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            into.push(char::from(byte));
        } else {
            let _ = write!(into, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_stays_one_path_segment() {
        assert_eq!(path(&["a/b", "tag:x", "ü?#"]), "/a%2Fb/tag:x/%C3%BC%3F%23");
        let target = query("/x", &[("path", "a b&c=d"), ("user", "root")]);
        assert_eq!(target, "/x?path=a%20b%26c%3Dd&user=root");
    }
}
