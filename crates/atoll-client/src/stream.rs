//! Server-sent events. After a broken connection the stream resumes after the last received event.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_model::{Code, Error};
use futures_util::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _};
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use crate::error::{RequestError, RetryPolicy, refused};
use crate::{Client, Request};

/// Timeout between two reads. Servers send a ping every 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);
/// Maximum length of a line.
const LONGEST: usize = 64 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Type of the event.
    pub name: String,
    /// Data of the event.
    pub data: Value,
}

/// Stream of events.
#[derive(Debug)]
pub struct Events<'a> {
    client: &'a Client,
    request: Request,
    /// Id of the last received event.
    last: Option<String>,
    /// Whether the stream can be resumed. If not, it ends when the connection breaks.
    resumes: bool,
    body: Option<BodyDataStream<Incoming>>,
    parser: Parser,
    retry: RetryPolicy,
}

impl<'a> Events<'a> {
    pub(crate) fn new(client: &'a Client, request: Request) -> Self {
        Self {
            client,
            request: request.header("accept", "text/event-stream"),
            last: None,
            resumes: true,
            body: None,
            parser: Parser::default(),
            retry: RetryPolicy::new(true),
        }
    }

    /// Declares that events have no ids: events may be lost when the connection breaks, which is
    /// reported as an event `break`.
    #[must_use]
    pub fn without_resume(mut self) -> Self {
        self.resumes = false;
        self
    }

    /// Next event; `None` when the server has ended the stream.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some((id, event)) = self.parser.take() {
                self.last = id.or(self.last.take());
                self.retry.reset();
                match event.name.as_str() {
                    "ping" => continue,
                    "error" => {
                        let text = event.data.to_string();
                        return Err(refused(500, text.as_bytes()).into());
                    }
                    _ => return Ok(Some(event)),
                }
            }
            let Some(body) = &mut self.body else {
                if let Some(missed) = self.connect().await? {
                    return Ok(Some(missed));
                }
                continue;
            };
            let failure = match timeout(SILENCE, body.next()).await {
                Ok(Some(Ok(bytes))) => {
                    self.parser.feed(&bytes)?;
                    continue;
                }
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => self.client.broken(&error),
                Err(_) => self.client.silent("in a stream", SILENCE),
            };
            (self.body, self.parser) = (None, Parser::default());
            self.retry.after(self.client, failure).await?;
        }
    }

    /// Opens or resumes the stream. Without event ids, events may be missing after a reconnect.
    async fn connect(&mut self) -> Result<Option<Event>, Error> {
        let again = self.retry.is_retry() || self.last.is_some();
        loop {
            let mut request = self.request.clone();
            if let Some(last) = &self.last {
                request = request.header("last-event-id", last.clone());
            }
            match self.client.send_once(&request).await {
                Ok(response) => {
                    self.body = Some(response.into_body().into_data_stream());
                    let missed = (again && !self.resumes).then(|| Event {
                        name: "break".into(),
                        data: Value::Object(serde_json::Map::new()),
                    });
                    return Ok(missed);
                }
                Err(failure @ RequestError::Rejected(_)) => return Err(failure.into()),
                Err(failure) => self.retry.after(self.client, failure).await?,
            }
        }
    }
}

/// Parses bytes into events.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    id: Option<String>,
    name: String,
    data: String,
    ready: VecDeque<(Option<String>, Event)>,
}

impl Parser {
    fn take(&mut self) -> Option<(Option<String>, Event)> {
        self.ready.pop_front()
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if self.line.len() > LONGEST {
                return Err(Error::new(
                    Code::TooLarge,
                    "the server sent an event without end",
                ));
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            let (id, name) = (self.id.take(), std::mem::take(&mut self.name));
            let data = std::mem::take(&mut self.data);
            if !name.is_empty() {
                let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
                self.ready.push_back((id, Event { name, data }));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.id = Some(value.to_owned()),
            "event" => value.clone_into(&mut self.name),
            "data" => self.data.push_str(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use super::*;

    #[test]
    fn events_do_not_depend_on_chunk_boundaries() {
        let text =
            b"id: 6\nevent: stdout\ndata: {\"text\":\"h\xc3\xa4\"}\n\nevent: ping\ndata: {}\n\n";
        let mut whole = Parser::default();
        whole.feed(text).unwrap();
        assert_eq!(whole.ready.len(), 2);
        assert_eq!(whole.ready[0].0.as_deref(), Some("6"));
        assert_eq!(whole.ready[0].1.data["text"], "hä");
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            parser.feed(&text[..cut]).unwrap();
            parser.feed(&text[cut..]).unwrap();
            assert_eq!(parser.ready, whole.ready, "cut at {cut}");
        }
    }
}
