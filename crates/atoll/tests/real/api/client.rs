//! A server of the test's own, and somebody who asks it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_testkit::{Scratch, wait_for};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::lasting::keeper;
use crate::world::{DEADLINE, World, binary, private};

/// The process, with a data directory of its own and the templates that all tests share.
#[derive(Debug)]
pub struct Server {
    scratch: Scratch,
    child: Child,
    address: String,
    /// What it is told besides where it is.
    words: Vec<String>,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With other flags than the usual.
    pub async fn start_with(words: &[&str]) -> Self {
        // Makes the templates.
        World::open().await.close().await;
        let scratch = Scratch::new();
        private(&scratch.join("data"));
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let (child, address) = spawn(&scratch.join("data"), &words);
        Self {
            scratch,
            child,
            address,
            words,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.scratch.join("data")
    }

    /// As its admin.
    pub fn client(&self) -> Client {
        let key = std::fs::read_to_string(self.data().join("admin.key")).unwrap();
        Client {
            address: self.address.clone(),
            key: Some(key.trim().to_owned()),
        }
    }

    /// Kills it, and starts another on the same data.
    pub fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.address) = spawn(&self.data(), &self.words);
    }

    /// Asks it to end, and waits.
    pub fn end(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends it with everything that lasts.
    pub async fn close(mut self) {
        let client = self.client();
        for sandbox in client.get("/sandboxes").await.array() {
            let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
            assert_eq!(client.delete(&path).await.status, 204);
        }
        self.end();
        let tag = std::fs::read_to_string(self.data().join("tag")).unwrap();
        let facts = atoll_jail::facts::Facts::read();
        let scope = atoll_worker::instance::Scope::Below(&self.data());
        wait_for("the instance to be dead", DEADLINE, || {
            let collected = atoll_worker::instance::collect(scope, &facts).unwrap();
            collected.instances.contains(&tag)
        });
        assert_eq!(keeper(&tag), None);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server on a free port; where it is.
fn spawn(data: &Path, words: &[String]) -> (Child, String) {
    let mut child = Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .args(words)
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::world::data().join("templates"),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.map_while(Result::ok).find_map(|line| {
        let url = line.strip_prefix("serving")?.trim();
        Some(url.strip_prefix("http://")?.to_owned())
    });
    (child, address.expect("it says where it serves"))
}

/// Somebody who asks.
#[derive(Debug, Clone)]
pub struct Client {
    pub address: String,
    pub key: Option<String>,
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub body: Bytes,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    #[track_caller]
    pub fn array(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        self.json().as_array().unwrap().clone()
    }

    /// Status, code and the field that is named.
    pub fn refusal(&self) -> (u16, String, String) {
        let body = self.json();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            self.status,
            text(&body["code"]),
            text(&body["details"]["field"]),
        )
    }
}

impl Client {
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self {
            address: self.address.clone(),
            key: key.map(ToOwned::to_owned),
        }
    }

    /// Sends a request; the answer's body is still to come.
    pub async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Response<Incoming> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", &self.address);
        }
        if let Some(key) = &self.key {
            request = request.header("x-api-key", key);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).unwrap();
        sender.send_request(request).await.unwrap()
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let response = self.open(method, path, headers, body.into()).await;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            headers,
            body,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Bytes::new()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send("POST", path, &headers, body.to_string()).await
    }

    /// Makes a sandbox; its id.
    pub async fn sandbox(&self, body: &Value) -> String {
        let answer = self.post("/sandboxes", body).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["sandboxID"].as_str().unwrap().to_owned()
    }

    /// Runs a line; its standard output.
    pub async fn line(&self, sandbox: &str, line: &str) -> String {
        let path = format!("/sandboxes/{sandbox}/commands");
        let answer = self.post(&path, &serde_json::json!({ "cmd": line })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let body = answer.json();
        assert_eq!(body["exitCode"], 0, "{body}");
        body["stdout"].as_str().unwrap().to_owned()
    }
}
