//! A headless browser, controlled over its `DevTools` WebSocket, and a server of test pages.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use atoll_testkit::Scratch;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::harness::DEADLINE;

/// The process. Every name ending in `.example` leads to this machine.
pub struct Chromium {
    child: Child,
    _profile: Scratch,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    last: u64,
    /// Ids of the completed page loads.
    loaded: HashSet<String>,
}

/// A page of it.
#[derive(Debug, Clone)]
pub struct Tab(String);

impl Chromium {
    pub async fn start() -> Self {
        let profile = Scratch::new();
        let filter = profile.join("filter");
        std::fs::write(&filter, without_netlink()).unwrap();
        let mut child = Command::new("sh")
            .arg("-c")
            .arg("exec bwrap --dev-bind / / --die-with-parent --seccomp 9 \"$@\" 9<\"$0\"")
            .arg(&filter)
            .arg("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-extensions",
                "--disable-background-networking",
            ])
            .args([
                "--remote-debugging-port=0",
                "--host-resolver-rules=MAP *.example 127.0.0.1",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a shell is there");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| Some(line.strip_prefix("DevTools listening on ")?.to_owned()));
        // The browser would block on a full pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let url = url.expect("bwrap and chromium are there: deploy/setup test installs them");
        let (socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        Self {
            child,
            _profile: profile,
            socket,
            last: 0,
            loaded: HashSet::new(),
        }
    }

    /// The next message: a response or an event.
    async fn hear(&mut self) -> Value {
        loop {
            let message = self.socket.next().await.unwrap().unwrap();
            let Message::Text(text) = message else {
                continue;
            };
            let value: Value = serde_json::from_str(&text).unwrap();
            let about = &value["params"];
            if value["method"] == "Page.lifecycleEvent" && about["name"] == "load" {
                let load = about["loaderId"].as_str().unwrap();
                self.loaded.insert(load.to_owned());
            }
            return value;
        }
    }

    /// Sends a command and waits for its response.
    async fn tell(&mut self, tab: Option<&Tab>, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(Tab(session)) = tab {
            message["sessionId"] = session.as_str().into();
        }
        let message = Message::Text(message.to_string().into());
        self.socket.send(message).await.unwrap();
        let answered = async {
            loop {
                let received = self.hear().await;
                if received["id"] == self.last {
                    assert!(received["error"].is_null(), "{method}: {received}");
                    return received["result"].clone();
                }
            }
        };
        let answered = tokio::time::timeout(DEADLINE, answered).await;
        answered.unwrap_or_else(|_| panic!("{method} is not answered"))
    }

    /// Opens a page in a new tab and waits until it has loaded.
    pub async fn open(&mut self, url: &str) -> Tab {
        let blank = json!({ "url": "about:blank" });
        let target = self.tell(None, "Target.createTarget", blank).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.tell(None, "Target.attachToTarget", attach).await;
        let tab = Tab(session["sessionId"].as_str().unwrap().to_owned());
        self.tell(Some(&tab), "Page.enable", json!({})).await;
        let all = json!({ "enabled": true });
        self.tell(Some(&tab), "Page.setLifecycleEventsEnabled", all)
            .await;
        let gone = self.go(&tab, url).await;
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
        tab
    }

    /// Navigates to a URL. Returns the browser's response.
    pub async fn go(&mut self, tab: &Tab, url: &str) -> Value {
        let gone = self
            .tell(Some(tab), "Page.navigate", json!({ "url": url }))
            .await;
        let shown = gone["errorText"].is_null() && gone["isDownload"] != true;
        // The previous page exists for some time, and would respond instead.
        if let (true, Some(load)) = (shown, gone["loaderId"].as_str()) {
            let loaded = async {
                while !self.loaded.remove(load) {
                    self.hear().await;
                }
            };
            let loaded = tokio::time::timeout(DEADLINE, loaded).await;
            loaded.unwrap_or_else(|_| panic!("{url} is not loaded"));
        }
        gone
    }

    /// The value of an expression in a page, waited for.
    pub async fn run(&mut self, tab: &Tab, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let response = self.tell(Some(tab), "Runtime.evaluate", parameters).await;
        assert!(
            response["exceptionDetails"].is_null(),
            "{expression}: {response}"
        );
        response["result"]["value"].clone()
    }

    /// Sets the width of the page to that of a phone.
    pub async fn narrow(&mut self, tab: &Tab, width: u32) {
        let size = json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": true });
        self.tell(Some(tab), "Emulation.setDeviceMetricsOverride", size)
            .await;
    }

    pub async fn close(mut self) {
        self.tell(None, "Browser.close", json!({})).await;
        self.child.wait().unwrap();
    }
}

/// A seccomp filter that denies netlink sockets: the browser aborts its requests when a network address appears or
/// disappears, and tests that create sandboxes cause that.
fn without_netlink() -> Vec<u8> {
    const SOCKET: u32 = if cfg!(target_arch = "aarch64") {
        198
    } else {
        41
    };
    const NETLINK: u32 = 16;
    const UNSUPPORTED: u32 = 97;
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // BPF instructions: code, jump if true, jump if false, operand.
    let instructions: [(u16, u8, u8, u32); 6] = [
        (LOAD, 0, 0, 0),
        (EQUAL, 0, 3, SOCKET),
        (LOAD, 0, 0, 16),
        (EQUAL, 0, 1, NETLINK),
        (RETURN, 0, 0, 0x0005_0000 | UNSUPPORTED),
        (RETURN, 0, 0, 0x7fff_0000),
    ];
    let bytes = instructions.iter().flat_map(|&(code, so, not, number)| {
        let [low, high] = code.to_ne_bytes();
        let [a, b, c, d] = number.to_ne_bytes();
        [low, high, so, not, a, b, c, d]
    });
    bytes.collect()
}

impl Drop for Chromium {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves the same small page for any path and host name. Returns the port.
pub async fn pages() -> u16 {
    serve(None).await
}

/// Serves scripts of a directory, and that page for everything else; its port.
pub async fn serve(scripts: Option<PathBuf>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let scripts = scripts.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    // A browser may open connections that it does not use.
                    let Ok(1..) = stream.read_buf(&mut request).await else {
                        return;
                    };
                }
                let request = String::from_utf8_lossy(&request);
                let path = request.split(' ').nth(1).unwrap_or_default();
                let path = std::path::Path::new(path.trim_start_matches('/'));
                let script = scripts
                    .filter(|_| path.extension().is_some_and(|it| it == "js" || it == "mjs"));
                let script = script.and_then(|root| std::fs::read(root.join(path)).ok());
                let (kind, body) = match script {
                    Some(script) => ("text/javascript", script),
                    None => (
                        "text/html",
                        b"<!doctype html><title>a page</title><body>".to_vec(),
                    ),
                };
                let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close");
                let head = format!("{head}\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
                // A close with unread input would reset the connection and discard the response.
                let _ = stream.shutdown().await;
                while let Ok(1..) = stream.read_buf(&mut Vec::new()).await {}
            });
        }
    });
    port
}
