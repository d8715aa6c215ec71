//! Servers in a sandbox on 127.0.0.1, as E2B's users reach them: by headers, and by host name.

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::api::{Answer, Client, Server};
use crate::harness::DEADLINE;

pub(super) const PORT: u16 = 8000;
pub(super) const DOMAIN: &str = "sandboxes.example.com";

/// Returns the request's headers and path, and echoes each message of a WebSocket.
const PROGRAM: &str = r#"
import base64, hashlib, http.server, json, struct

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo()
        names = [name.lower() for name in self.headers]
        body = json.dumps({"path": self.path, "host": self.headers["Host"], "headers": names}).encode()
        self.send_response(502 if self.path == "/broken" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        while True:
            kind, length = self.rfile.read(2)
            length &= 127
            if length == 126:
                length, = struct.unpack("!H", self.rfile.read(2))
            mask = self.rfile.read(4)
            data = bytes(byte ^ mask[n % 4] for n, byte in enumerate(self.rfile.read(length)))
            size = bytes([length]) if length < 126 else b"\x7e" + struct.pack("!H", length)
            self.wfile.write(bytes([kind]) + size + data)
            self.wfile.flush()
            if kind & 15 == 8:
                self.close_connection = True
                return

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"#;

/// A sandbox with a server, and the response of its create.
pub(super) async fn serving(client: &Client, request: Value) -> (String, Value) {
    let made = client.post("/e2b/v2/sandboxes", &request).await;
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.json();
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    serve(client, &id).await;
    (id, made)
}

/// Starts the program in a sandbox, and waits until it listens.
pub(super) async fn serve(client: &Client, id: &str) {
    let line = format!(
        "cat > /tmp/serve.py <<'END'\n{PROGRAM}\nEND\nnohup python3 /tmp/serve.py > /tmp/log 2>&1 &\n\
         for n in $(seq 1000); do bash -c '</dev/tcp/127.0.0.1/{PORT}' 2>/dev/null && exit; sleep 0.01; done; exit 1"
    );
    client.line(id, &line).await;
}

/// Sends a request to a port by headers, without a key.
pub(super) async fn ask(client: &Client, id: &str, port: u16, more: &[(&str, &str)]) -> Answer {
    let port = port.to_string();
    let mut headers = vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", &port)];
    headers.extend(more);
    let anonymous = client.with_key(None);
    anonymous
        .send("GET", "/page?a=1", &headers, Bytes::new())
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_is_reached_by_headers_and_by_host() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let (id, made) = serving(&client, json!({ "templateID": "base", "timeout": 100 })).await;
    assert_eq!(made["domain"], DOMAIN);

    let secrets = [("x-api-key", "e2b_00"), ("e2b-traffic-access-token", "x")];
    let page = ask(&client, &id, PORT, &secrets).await;
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(page.json()["path"], "/page?a=1");
    let seen = page.json()["headers"].to_string();
    assert!(
        !seen.contains("e2b-") && !seen.contains("x-api-key"),
        "{seen}"
    );

    let host = format!("{PORT}-{id}.{DOMAIN}");
    let anonymous = client.with_key(None);
    let headers = [("host", host.as_str())];
    let page = anonymous.send("GET", "/", &headers, Bytes::new()).await;
    assert_eq!((page.status, &page.json()["host"]), (200, &json!(host)));
    let posted = anonymous.send("POST", "/", &headers, "body").await;
    assert_eq!((posted.status, &posted.body[..]), (201, &b"body"[..]));

    // After an upgrade both directions work too.
    for named in [true, false] {
        let mut request = format!("ws://{}/socket", client.address)
            .into_client_request()
            .unwrap();
        if named {
            request.headers_mut().insert("host", host.parse().unwrap());
        } else {
            let headers = request.headers_mut();
            headers.insert("e2b-sandbox-id", id.parse().unwrap());
            headers.insert("e2b-sandbox-port", PORT.into());
        }
        let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        for text in ["hello".to_owned(), "long ".repeat(1000)] {
            socket.send(Message::text(text.clone())).await.unwrap();
            let back = socket.next().await.unwrap().unwrap();
            assert_eq!(back.into_text().unwrap().as_str(), text);
        }
        socket.close(None).await.unwrap();
    }

    let closed = ask(&client, &id, 8001, &[]).await;
    let expected = json!({
        "sandboxId": id, "message": "The sandbox is running but port is not open", "port": 8001, "code": 502,
    });
    assert_eq!((closed.status, closed.json()), (502, expected));
    client.delete(&format!("/e2b/sandboxes/{id}")).await;
    let gone = ask(&client, &id, PORT, &[]).await;
    let expected = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
    assert_eq!((gone.status, gone.json()), (502, expected.clone()));
    let gone = anonymous.send("GET", "/", &headers, Bytes::new()).await;
    assert_eq!((gone.status, gone.json()), (502, expected));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn browser_gets_an_error_page_only_when_no_program_responds() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let (id, _) = serving(&client, json!({ "templateID": "base", "timeout": 100 })).await;
    let anonymous = client.with_key(None);
    let open = async |port: u16, path: &str, more: &[(&str, &str)]| {
        let host = format!("{port}-{id}.{DOMAIN}");
        let own = [("host", host.as_str()), ("accept", "text/html,*/*;q=0.8")];
        let headers = [&own, more].concat();
        anonymous.send("GET", path, &headers, Bytes::new()).await
    };
    let shown = |answer: &Answer, words: &str| {
        let kind = answer.headers["content-type"].to_str().unwrap();
        assert_eq!((answer.status, kind), (502, "text/html; charset=utf-8"));
        let length = answer.headers["content-length"].to_str().unwrap();
        assert_eq!(length, answer.body.len().to_string());
        let page = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(page.contains(words) && page.contains(&id), "{page}");
    };
    shown(&open(8001, "/", &[]).await, "port is not open");
    let script = open(8001, "/", &[("sec-fetch-mode", "cors")]).await;
    assert_eq!(script.json()["port"], 8001);
    let own = open(PORT, "/broken", &[]).await;
    assert_eq!((own.status, &own.json()["path"]), (502, &json!("/broken")));
    client.delete(&format!("/e2b/sandboxes/{id}")).await;
    shown(&open(PORT, "/", &[]).await, "The sandbox was not found");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn non_public_port_requires_the_traffic_token() {
    let server = Server::start().await;
    let client = server.client();
    let network = json!({ "allowPublicTraffic": false });
    let request = json!({ "templateID": "base", "timeout": 100, "network": network });
    let (id, made) = serving(&client, request).await;
    let token = made["trafficAccessToken"].as_str().unwrap();
    let envd = made["envdAccessToken"].as_str().unwrap();
    for wrong in [None, Some(envd), Some("")] {
        let shown = wrong.map(|token| ("e2b-traffic-access-token", token));
        let refused = ask(&client, &id, PORT, shown.as_slice()).await;
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (403, &json!(403))
        );
    }
    let shown = [("e2b-traffic-access-token", token)];
    let page = ask(&client, &id, PORT, &shown).await;
    assert_eq!(page.status, 200, "{page:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_request_resumes_only_sandboxes_with_auto_resume() {
    let server = Server::start().await;
    let client = server.client();
    for wakes in [true, false] {
        let request = json!({
            "templateID": "base", "timeout": 100, "autoPause": true, "autoResume": { "enabled": wakes },
        });
        let (id, _) = serving(&client, request).await;
        let paused = client
            .post(&format!("/e2b/sandboxes/{id}/pause"), &json!({}))
            .await;
        assert_eq!(paused.status, 204, "{paused:?}");
        let page = ask(&client, &id, PORT, &[]).await;
        assert_eq!(page.status, if wakes { 200 } else { 502 }, "{page:?}");
        let state = client.get(&format!("/e2b/sandboxes/{id}")).await;
        let expected = if wakes { "running" } else { "paused" };
        assert_eq!(state.json()["state"], expected);
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_visitors_leave_half_of_the_connections_free() {
    const PLACES: usize = 8;
    let server = Server::start_with(&["--max-connections", &PLACES.to_string()]).await;
    let client = server.client();
    let (id, _) = serving(&client, json!({ "templateID": "base", "timeout": 100 })).await;
    let mut visitors = Vec::new();
    for _ in 0..PLACES / 2 {
        let request = format!("ws://{}/socket", client.address);
        let mut request = request.into_client_request().unwrap();
        let headers = request.headers_mut();
        headers.insert("e2b-sandbox-id", id.parse().unwrap());
        headers.insert("e2b-sandbox-port", PORT.into());
        let (socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        visitors.push(socket);
    }
    let refused = ask(&client, &id, PORT, &[]).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.headers["retry-after"], "5");
    // Requests with a credential are served, by the API and by the same port.
    let path = format!("/sandboxes/{id}/ports/{PORT}/url");
    let link = client.post(&path, &json!({})).await.json();
    let token = link["token"].as_str().unwrap();
    let admitted = ask(&client, &id, PORT, &[("e2b-traffic-access-token", token)]).await;
    assert_eq!(admitted.status, 200, "{admitted:?}");
    assert_eq!(client.get("/sandboxes").await.status, 200);
    // Open connections stay, and a closed one frees its place.
    for visitor in &mut visitors {
        visitor.send(Message::text("hello")).await.unwrap();
        let back = visitor.next().await.unwrap().unwrap();
        assert_eq!(back.into_text().unwrap().as_str(), "hello");
    }
    drop(visitors.pop());
    let admitted = async { while ask(&client, &id, PORT, &[]).await.status != 200 {} };
    tokio::time::timeout(DEADLINE, admitted).await.unwrap();
    server.close().await;
}
