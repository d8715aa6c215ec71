//! Calls of a sandbox's services without an SDK: the messages on the wire, envelope by envelope.

use bytes::{Buf as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::api::{Answer, Client};
use crate::harness::DEADLINE;

/// A client with a sandbox's token.
pub(super) struct Agent {
    client: Client,
    pub(super) id: String,
    token: String,
}

impl Agent {
    pub(super) fn new(client: &Client, made: &Value) -> Self {
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self {
            client: client.with_key(None),
            id: text("sandboxID"),
            token: text("envdAccessToken"),
        }
    }

    /// A new sandbox.
    pub(super) async fn make(client: &Client) -> Self {
        Self::make_with(client, json!({})).await
    }

    /// A new sandbox with further fields of its create.
    pub(super) async fn make_with(client: &Client, fields: Value) -> Self {
        let mut request = json!({ "templateID": "base", "timeout": 100 });
        request
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let made = client.post("/e2b/v2/sandboxes", &request).await;
        assert_eq!(made.status, 201, "{made:?}");
        Self::new(client, &made.json())
    }

    fn headers<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let own = [
            ("e2b-sandbox-id", &*self.id),
            ("x-access-token", &self.token),
        ];
        own.into_iter().chain(more.iter().copied()).collect()
    }

    /// Sends a request to a route.
    pub(super) async fn ask(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let headers = self.headers(more);
        self.client.send(method, path, &headers, body).await
    }

    /// Sends a GET request; the caller reads the body later.
    pub(super) async fn get(&self, path: &str) -> Response<Incoming> {
        let headers = self.headers(&[]);
        let response = self.client.open("GET", path, &headers, Bytes::new());
        let response = response.await;
        assert_eq!(response.status(), 200);
        response
    }

    /// Sends a unary call.
    pub(super) async fn call(&self, method: &str, message: &Value) -> Answer {
        let kind = [("content-type", "application/json")];
        let path = format!("/{method}");
        self.ask("POST", &path, &kind, message.to_string()).await
    }

    /// Sends a call with a streamed response.
    pub(super) async fn open(
        &self,
        method: &str,
        message: &Value,
        more: &[(&str, &str)],
    ) -> Stream {
        let kind = [("content-type", "application/connect+json")];
        let headers = [&kind, more].concat();
        let headers = self.headers(&headers);
        let text = message.to_string();
        let mut body = BytesMut::from(&[0][..]);
        body.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        body.extend(text.as_bytes());
        let path = format!("/{method}");
        let response = self.client.open("POST", &path, &headers, body.freeze());
        let response = response.await;
        Stream {
            status: response.status().as_u16(),
            body: response.into_body(),
            buffer: BytesMut::new(),
        }
    }

    /// Starts a shell line and waits for its pid.
    pub(super) async fn start(&self, line: &str, more: &[(&str, &str)]) -> (Stream, u64) {
        let process = json!({ "cmd": "/bin/sh", "args": ["-c", line] });
        let request = json!({ "process": process, "stdin": false });
        let mut stream = self.open("process.Process/Start", &request, more).await;
        let (_, first) = stream.next().await.unwrap();
        let pid = first["event"]["start"]["pid"].as_u64();
        (stream, pid.unwrap_or_else(|| panic!("{first}")))
    }
}

/// A response that is being received.
pub(super) struct Stream {
    pub(super) status: u16,
    body: Incoming,
    buffer: BytesMut,
}

impl Stream {
    /// The next envelope, and whether it is the last; `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Option<(bool, Value)> {
        tokio::time::timeout(DEADLINE, self.wait()).await.unwrap()
    }

    async fn wait(&mut self) -> Option<(bool, Value)> {
        loop {
            if let Some(envelope) = self.take() {
                return Some(envelope);
            }
            let frame = self.body.frame().await?;
            let frame = frame.unwrap_or_else(|error| panic!("the stream broke off: {error}"));
            if let Ok(bytes) = frame.into_data() {
                self.buffer.extend(bytes);
            }
        }
    }

    fn take(&mut self) -> Option<(bool, Value)> {
        let (head, _) = self.buffer.split_first_chunk::<5>()?;
        let [flags, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if self.buffer.len() < 5 + length {
            return None;
        }
        self.buffer.advance(5);
        let message = self.buffer.split_to(length);
        Some((flags == 2, serde_json::from_slice(&message).unwrap()))
    }

    /// Everything until the connection breaks off; fails if the stream ends in another way.
    pub(super) async fn until_broken_off(&mut self) -> Vec<(bool, Value)> {
        let read = async {
            loop {
                match self.body.frame().await {
                    Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap_or_default()),
                    Some(Err(_)) => return,
                    None => panic!("the stream ended: {:?}", self.buffer),
                }
            }
        };
        tokio::time::timeout(DEADLINE, read).await.unwrap();
        std::iter::from_fn(|| self.take()).collect()
    }

    /// Everything that is left, without data and signs of life.
    pub(super) async fn rest(&mut self) -> Vec<(bool, Value)> {
        let mut all = Vec::new();
        while let Some((last, message)) = self.next().await {
            let event = &message["event"];
            if event.get("data").is_none() && event.get("keepalive").is_none() {
                all.push((last, message));
            }
        }
        all
    }
}
