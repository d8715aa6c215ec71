//! Starts a server for a test, and an HTTP client for it.

use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_model::{Key, KeyId, Org, OrgId, Scope};
use atoll_testkit::{PostgresDatabase, Scratch, wait_for};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::harness::{DEADLINE, World, binary, private};
use crate::restart::keeper;

/// The process, with its own data directory and the templates that all tests share.
#[derive(Debug)]
pub struct Server {
    /// Removed with it.
    _scratch: Scratch,
    data: PathBuf,
    /// Wrapper command that starts the server, if any.
    words: Vec<String>,
    child: Child,
    /// Addresses of the API and of the metrics.
    places: [String; 2],
    /// Additional command-line flags.
    flags: Vec<String>,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With other flags than the usual.
    pub async fn start_with(words: &[&str]) -> Self {
        let scratch = Scratch::new();
        private(&scratch.join("data"));
        Self::start_in(scratch, words).await
    }

    /// The first one in a control group, as a service manager would; those after it are not.
    pub async fn start_in_group(group: &Path) -> Self {
        World::open().await.close().await;
        let scratch = Scratch::new();
        private(&scratch.join("data"));
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
        shell.arg(group).arg(binary());
        let data = scratch.join("data");
        let (child, places) = spawn(shell, &data, &[]);
        Self {
            _scratch: scratch,
            data,
            words: Vec::new(),
            child,
            places,
            flags: Vec::new(),
        }
    }

    /// With a data directory below a place of the test's, words before the command itself, and flags.
    pub fn at(scratch: Scratch, data: PathBuf, words: Vec<String>, flags: Vec<String>) -> Self {
        let (child, places) = spawn(before(&words), &data, &flags);
        Self {
            _scratch: scratch,
            data,
            words,
            child,
            places,
            flags,
        }
    }

    /// Starts a server on the existing data directory `data` in `scratch`.
    pub async fn start_in(scratch: Scratch, words: &[&str]) -> Self {
        // Creates the templates.
        World::open().await.close().await;
        let flags: Vec<String> = words.iter().map(ToString::to_string).collect();
        let data = scratch.join("data");
        let (child, places) = spawn(Command::new(binary()), &data, &flags);
        Self {
            _scratch: scratch,
            data,
            words: Vec::new(),
            child,
            places,
            flags,
        }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Address of the API.
    pub fn address(&self) -> &str {
        &self.places[0]
    }

    /// Address of the metrics.
    pub fn metrics_address(&self) -> &str {
        &self.places[1]
    }

    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }

    /// A client with the admin key.
    pub fn client(&self) -> Client {
        let key = std::fs::read_to_string(self.data().join("admin.key")).unwrap();
        Client {
            address: self.places[0].clone(),
            key: Some(key.trim().to_owned()),
        }
    }

    /// The server's metrics.
    pub async fn metrics(&self) -> String {
        let watcher = Client {
            address: self.places[1].clone(),
            key: None,
        };
        let answer = watcher.get("/metrics").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        String::from_utf8(answer.body.to_vec()).unwrap()
    }

    /// Contents of the log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.data.with_file_name("log")).unwrap()
    }

    /// A client of another org. Its key is inserted into the database as the server would.
    pub async fn stranger(&self) -> Client {
        let file = self.data.join("atoll.db");
        let url = postgres(&self.data).map_or_else(
            || format!("sqlite:{}", file.display()),
            |database| database.url,
        );
        let url = url.parse().unwrap();
        let store = atoll_store::Store::open_url(&url).await.unwrap();
        let org = Org {
            id: OrgId::random(),
            name: "strangers".into(),
            max_sandboxes: None,
            max_timeout: None,
            created_at: 1,
        };
        store.insert_org(&org).await.unwrap();
        let digits = "ab".repeat(32);
        let new = atoll_store::NewKey {
            key: Key {
                id: KeyId::random(),
                org: org.id,
                name: "stranger".into(),
                prefix: digits[..8].to_owned(),
                scope: Scope::Admin,
                created_at: 1,
                expires_at: None,
                last_used_at: None,
                revoked_at: None,
            },
            // The SHA-256 of the digits.
            hash: "271a413bd339c5709fdceaec41f14f11e9fbfb5042d72d331c65f32b284cd09a".into(),
        };
        assert!(store.insert_key(&new, 1).await.unwrap());
        store.close().await;
        self.client().with_key(Some(&format!("atl_{digits}")))
    }

    /// Executes SQL on the server's database from outside.
    pub fn sql(&self, statements: &str) {
        if let Some(database) = postgres(&self.data) {
            return database.execute(statements);
        }
        let mut python = Command::new("python3");
        python.args([
            "-c",
            "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=30).executescript(sys.argv[2])",
        ]);
        atoll_testkit::run(python.arg(self.data.join("atoll.db")).arg(statements));
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it, and starts another on the same data.
    pub fn kill_and_start(&mut self) {
        self.kill();
        (self.child, self.places) = spawn(before(&self.words), &self.data, &self.flags);
    }

    /// Asserts that a sandbox runs, and that its file `~/f` still contains `kept`.
    pub async fn assert_continues(&self, id: &str) {
        let client = self.client();
        let info = client.get(&format!("/sandboxes/{id}")).await.json();
        assert_eq!(info["state"], "running", "{info}");
        assert_eq!(client.line(id, "cat ~/f").await, "kept\n");
    }

    /// Kills the server and starts another build of the binary.
    pub fn kill_and_start_build(&mut self, build: &Path) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.places) = spawn(Command::new(build), &self.data, &self.flags);
    }

    /// Kills the server and starts it with other flags.
    pub fn kill_and_start_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(ToString::to_string).collect();
        self.kill_and_start();
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn end(&mut self) {
        rustix::process::kill_process(self.pid(), rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends it with everything that lasts.
    pub async fn close(self) {
        let client = self.client();
        for sandbox in client.get("/sandboxes").await.array() {
            let path = format!("/sandboxes/{}", sandbox["sandboxID"].as_str().unwrap());
            assert_eq!(client.delete(&path).await.status, 204);
        }
        self.end_and_clear();
    }

    /// Ends a server without sandboxes, and removes its persistent objects.
    pub fn end_and_clear(mut self) {
        self.end();
        clear(&self.data());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(
                std::io::stderr(),
                "the server's log:\n{}",
                excerpt(&self.log())
            );
            // Otherwise the sandboxes would outlive the test.
            let tag = std::fs::read_to_string(self.data().join("tag")).unwrap_or_default();
            if let Some(keeper) = keeper(&tag).and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(keeper, rustix::process::Signal::KILL);
            }
        }
    }
}

/// The lines of a log that are not of ordinary requests, and its last lines.
fn excerpt(log: &str) -> String {
    const LAST: usize = 20;
    let lines: Vec<&str> = log.lines().collect();
    let rest = lines.len().saturating_sub(LAST);
    let unusual = lines[..rest]
        .iter()
        .filter(|line| !line.contains(r#""level":"INFO""#));
    let shown: Vec<&str> = unusual.chain(&lines[rest..]).copied().collect();
    shown.join("\n")
}

/// Removes persistent objects of a server that has ended and has no sandboxes.
pub fn clear(data: &Path) {
    let tag = std::fs::read_to_string(data.join("tag")).unwrap();
    let facts = atoll_jail::facts::Facts::read();
    let scope = atoll_worker::instance::Scope::Below(data);
    wait_for("the instance to be dead", DEADLINE, || {
        let collected = atoll_worker::instance::collect(scope, &facts).unwrap();
        collected.instances.contains(&tag)
    });
    // A PID 1 that has just been cloned still has the name of its keeper.
    wait_for("the keepers to be gone", DEADLINE, || {
        keeper(&tag).is_none()
    });
}

/// The binary, behind these words.
fn before(words: &[String]) -> Command {
    let Some((first, rest)) = words.split_first() else {
        return Command::new(binary());
    };
    let mut command = Command::new(first);
    command.args(rest).arg(binary());
    command
}

/// The server's database in PostgreSQL, if the tests run on it (`ATOLL_TEST_DATABASE=postgres`): a new one for a new
/// data directory. Its URL is in a file beside the directory.
fn postgres(data: &Path) -> Option<PostgresDatabase> {
    if std::env::var("ATOLL_TEST_DATABASE").as_deref() != Ok("postgres") {
        return None;
    }
    let file = data.with_file_name("database-url");
    if let Ok(url) = std::fs::read_to_string(&file) {
        return Some(PostgresDatabase::existing(url));
    }
    let database = PostgresDatabase::new();
    std::fs::write(&file, &database.url).unwrap();
    Some(database)
}

/// Starts a server on free ports; where it serves, and where it shows metrics. Its log goes to a file.
fn spawn(mut command: Command, data: &Path, flags: &[String]) -> (Child, [String; 2]) {
    if let Some(database) = postgres(data) {
        command.env("ATOLL_DATABASE_URL", &database.url);
    }
    let log = data.with_file_name("log");
    let written = std::fs::File::options()
        .create(true)
        .append(true)
        .open(&log);
    let mut child = command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .args(["--metrics-listen", "127.0.0.1:0", "--data-dir"])
        .arg(data)
        .args(flags)
        .env(
            "ATOLL_TEMPLATES_DIR",
            crate::harness::data().join("templates"),
        )
        // Tests with an image pass a flag; the default storage has its own tests.
        .env("ATOLL_STORAGE", "plain")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(written.unwrap())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let mut place = |name| {
        let place = lines.find_map(|line| {
            let url = line.strip_prefix(name)?.trim();
            let (_, address) = url.split_once("://")?;
            Some(address.trim_end_matches("/metrics").to_owned())
        });
        place.unwrap_or_else(|| panic!("{}", std::fs::read_to_string(&log).unwrap()))
    };
    let metrics = place("metrics");
    (child, [place("serving"), metrics])
}

/// An HTTP client with an API key.
#[derive(Debug, Clone)]
pub struct Client {
    pub address: String,
    pub key: Option<String>,
}

/// An HTTP connection, which the server may close.
#[derive(Debug)]
pub struct Connection {
    client: Client,
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
}

impl Connection {
    /// Returns `None` without a complete response.
    pub async fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Option<Answer> {
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("host", &self.client.address)
            .header("content-type", "application/json")
            .header("x-api-key", self.client.key.as_deref().unwrap_or_default())
            .body(Full::new(body.into()))
            .unwrap();
        self.sender.ready().await.ok()?;
        let response = self.sender.send_request(request).await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some(Answer {
            status,
            headers,
            body,
        })
    }
}

/// A response.
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

    /// Sends a request; returns the response before its body.
    pub async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Response<Incoming> {
        self.try_open(method, path, headers, body).await.unwrap()
    }

    /// The same over a connection that may break.
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

    /// The same over a connection that may break. Fails without a complete response.
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

    /// Sends a POST to a server that may be killed meanwhile; `None` without a complete response.
    pub async fn attempt(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Option<Answer> {
        let mut connection = self.connect().await?;
        connection.ask(method, path, body).await
    }

    /// A connection that is used again.
    pub async fn connect(&self) -> Option<Connection> {
        let stream = TcpStream::connect(&self.address).await.ok()?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .ok()?;
        tokio::spawn(connection);
        Some(Connection {
            client: self.clone(),
            sender,
        })
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

    /// Sends concurrent creates, and returns the number of those that succeed; the others exceed a quota.
    pub async fn count_created(&self, path: &str, body: &Value, times: usize) -> usize {
        let answers = self.post_at_once(path, body, times).await;
        let (created, refused): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == 201);
        for answer in refused {
            let error = (answer.status, answer.refusal().1);
            assert_eq!(error, (429, "QUOTA_EXCEEDED".to_owned()));
        }
        created.len()
    }

    /// Responses to concurrent copies of one request.
    pub async fn post_at_once(&self, path: &str, body: &Value, times: usize) -> Vec<Answer> {
        let asking = (0..times).map(|_| {
            let (client, path, body) = (self.clone(), path.to_owned(), body.clone());
            tokio::spawn(async move { client.post(&path, &body).await })
        });
        let mut answers = Vec::new();
        for answer in asking.collect::<Vec<_>>() {
            answers.push(answer.await.unwrap());
        }
        answers
    }

    /// Creates a sandbox and returns its id.
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
