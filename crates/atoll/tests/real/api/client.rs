//! A server of the test's own, and somebody who asks it.

use std::io::{BufRead, BufReader, Write as _};
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
    /// Where it serves, and where it shows metrics.
    places: [String; 2],
}

impl Server {
    pub async fn start() -> Self {
        // Makes the templates.
        World::open().await.close().await;
        let scratch = Scratch::new();
        private(&scratch.join("data"));
        let (child, places) = spawn(&scratch.join("data"));
        Self {
            scratch,
            child,
            places,
        }
    }

    pub fn data(&self) -> PathBuf {
        self.scratch.join("data")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// As its admin.
    pub fn client(&self) -> Client {
        let key = std::fs::read_to_string(self.data().join("admin.key")).unwrap();
        Client {
            address: self.places[0].clone(),
            key: Some(key.trim().to_owned()),
        }
    }

    /// What it shows to whoever watches.
    pub async fn metrics(&self) -> String {
        let watcher = Client {
            address: self.places[1].clone(),
            key: None,
        };
        let answer = watcher.get("/metrics").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        String::from_utf8(answer.body.to_vec()).unwrap()
    }

    /// What it logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap()
    }

    /// Kills it, and starts another on the same data.
    pub fn kill_and_start(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.places) = spawn(&self.data());
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
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "the server's log:\n{}", self.log());
        }
    }
}

/// Starts a server on free ports; where it serves, and where it shows metrics. Its log goes to a file.
fn spawn(data: &Path) -> (Child, [String; 2]) {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(data.with_file_name("log"));
    let mut child = Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(["--metrics-listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::world::data().join("templates"),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let mut place = |name| {
        lines.find_map(|line| {
            let url = line.strip_prefix(name)?.trim();
            Some(url.strip_prefix("http://")?.to_owned())
        })
    };
    let metrics = place("metrics").expect("it says where it shows metrics");
    let address = place("serving").expect("it says where it serves");
    (
        child,
        [address, metrics.trim_end_matches("/metrics").to_owned()],
    )
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
        self.try_open(method, path, headers, body).await.unwrap()
    }

    /// The same over a line that may break.
    pub async fn try_open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> hyper::Result<Response<Incoming>> {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
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
        sender.send_request(request).await
    }

    /// The same over a line that may break; the whole answer, if it came.
    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> hyper::Result<Answer> {
        let response = self.try_open(method, path, headers, body).await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer {
            status,
            headers,
            body,
        })
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let answer = self.try_send(method, path, headers, body.into()).await;
        answer.unwrap()
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
