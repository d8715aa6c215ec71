//! Ports of sandboxes that the API created: only for callers with a credential. All others get the response for an
//! unknown sandbox.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::ports::{DOMAIN, PORT, serve, serving};
use crate::api::{Answer, Client, Server};
use crate::harness::DEADLINE;

/// A sandbox of the API's that serves.
async fn private(client: &Client) -> String {
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    serve(client, &id).await;
    id
}

async fn key(client: &Client, scope: &str) -> String {
    let request = json!({ "name": scope, "scope": scope });
    let made = client.post("/keys", &request).await.json();
    made["key"].as_str().unwrap().to_owned()
}

/// Opens a WebSocket to the server in the sandbox, and checks that it echoes a message.
async fn echo_socket(
    client: &Client,
    id: &str,
    query: &str,
) -> WebSocketStream<MaybeTlsStream<TcpStream>> {
    let request = format!("ws://{}/socket?{query}", client.address);
    let mut request = request.into_client_request().unwrap();
    let host = format!("{PORT}-{id}.{DOMAIN}");
    request.headers_mut().insert("host", host.parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    socket.send(Message::text("hello")).await.unwrap();
    let echo = socket.next().await.unwrap().unwrap();
    assert_eq!(echo.into_text().unwrap().as_str(), "hello");
    socket
}

async fn ticket(client: &Client) -> String {
    let made = client.post("/tickets", &json!({})).await.json();
    made["ticket"].as_str().unwrap().to_owned()
}

/// A request to a port, by the headers or by the host.
async fn ask(
    client: &Client,
    id: &str,
    (port, by_host): (u16, bool),
    path: &str,
    more: &[(&str, &str)],
) -> Answer {
    let (number, host) = (port.to_string(), format!("{port}-{id}.{DOMAIN}"));
    let mut headers = if by_host {
        vec![("host", host.as_str())]
    } else {
        vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", &number)]
    };
    headers.extend(more);
    let anonymous = client.with_key(None);
    anonymous.send("GET", path, &headers, Bytes::new()).await
}

/// A response without the parts that always differ, and with `ID` for the id of the sandbox.
fn comparable(answer: &Answer, id: &str) -> (u16, Vec<(String, String)>, String) {
    let headers = answer.headers.iter();
    let headers = headers.filter(|(name, _)| *name != "x-request-id" && *name != "date");
    let headers =
        headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let body = String::from_utf8(answer.body.to_vec()).unwrap();
    (answer.status, headers.collect(), body.replace(id, "ID"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_port_looks_like_an_unknown_sandbox_to_anonymous() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let own = private(&client).await;
    let stranger = server.stranger().await;
    let foreign = stranger.sandbox(&json!({ "timeout": 0 })).await;
    let asleep = client.sandbox(&json!({ "timeout": 0 })).await;
    client
        .post(&format!("/sandboxes/{asleep}/pause"), &json!({}))
        .await;
    let (_, secured) = super::sandbox(&client).await;
    let reader = key(&client, "sandbox:read").await;
    let unknown = "i0123456789abcdefghij";
    let bearer = |key: &str| format!("Bearer {key}");
    let strangers = stranger.key.clone().unwrap();
    let [reading, made_up] = [bearer(&reader), bearer(&format!("atl_{}", "0".repeat(64)))];
    let page = ("accept", "text/html");
    let shown: [&[(&str, &str)]; 7] = [
        &[],
        &[page],
        &[("authorization", &reading)],
        &[("authorization", &made_up)],
        &[("authorization", "Basic dXNlcjo=")],
        &[("e2b-traffic-access-token", &secured)],
        &[("x-access-token", &secured)],
    ];
    for port in [PORT, 8001, 49983] {
        for by_host in [false, true] {
            for path in [
                "/",
                "/health",
                "/files?path=/etc/hostname",
                "/?ticket=tkt_0",
            ] {
                for shown in &shown {
                    let at = (port, by_host);
                    let expected = ask(&client, unknown, at, path, shown).await;
                    let expected = comparable(&expected, unknown);
                    assert_eq!(expected.0, 502, "{expected:?}");
                    assert!(expected.2.contains("The sandbox was not found"));
                    for id in [&own, &asleep, &foreign] {
                        let answer = ask(&client, id, at, path, shown).await;
                        assert_eq!(comparable(&answer, id), expected, "{at:?} {path} {shown:?}");
                    }
                }
                // A key of another org.
                let shown = [("x-api-key", strangers.as_str())];
                let answer = ask(&client, &own, (port, by_host), path, &shown).await;
                let never = ask(&client, unknown, (port, by_host), path, &shown).await;
                assert_eq!(comparable(&answer, &own), comparable(&never, unknown));
            }
        }
    }
    let path = format!("/sandboxes/{asleep}");
    assert_eq!(client.get(&path).await.json()["state"], "paused");
    stranger.delete(&format!("/sandboxes/{foreign}")).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_port_accepts_keys_tickets_and_the_traffic_token() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let id = private(&client).await;
    let all = key(&client, "sandbox:*").await;
    let connect = format!("/e2b/sandboxes/{id}/connect");
    let connected = client.post(&connect, &json!({ "timeout": 100 })).await;
    let connected = connected.json();
    let traffic = connected["trafficAccessToken"].as_str().unwrap();
    let agent = connected["envdAccessToken"].as_str().unwrap();
    let bearer = format!("Bearer {all}");
    for by_host in [false, true] {
        let at = (PORT, by_host);
        for shown in [
            ("x-api-key", all.as_str()),
            ("authorization", &bearer),
            ("e2b-traffic-access-token", traffic),
        ] {
            let page = ask(&client, &id, at, "/page", &[shown]).await;
            assert_eq!((page.status, &page.json()["path"]), (200, &json!("/page")));
            let closed = ask(&client, &id, (8001, by_host), "/", &[shown]).await;
            assert!(
                closed.json()["message"]
                    .as_str()
                    .unwrap()
                    .contains("not open")
            );
        }
        let path = format!("/page?a=1&ticket={}&b=2", ticket(&client).await);
        let page = ask(&client, &id, at, &path, &[]).await;
        assert_eq!(page.json()["path"], "/page?a=1&b=2");
        let again = ask(&client, &id, at, &path, &[]).await;
        assert_eq!(again.status, 502, "{again:?}");
    }
    // The daemon's port is E2B's own, and its token is for it.
    let shown = [("x-access-token", agent)];
    let health = ask(&client, &id, (49983, false), "/health", &shown).await;
    assert_eq!(health.status, 204);

    // The connection ends with the key.
    let mut socket = echo_socket(&client, &id, &format!("api_key={all}")).await;
    let keys = client.get("/keys").await.array();
    let made = keys.iter().find(|key| key["name"] == "sandbox:*").unwrap();
    let path = format!("/keys/{}", made["keyID"].as_str().unwrap());
    assert_eq!(client.delete(&path).await.status, 204);
    let ended = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(DEADLINE, ended).await.unwrap();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthenticated_requests_do_not_prevent_idling() {
    let server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 0, "idleTimeout": 1, "onIdle": "pause" });
    let id = client.sandbox(&request).await;
    let path = format!("/sandboxes/{id}");
    let idle = async {
        while client.get(&path).await.json()["state"] != "paused" {
            let answer = ask(&client, &id, (PORT, false), "/", &[]).await;
            assert_eq!(answer.status, 502);
        }
    };
    tokio::time::timeout(DEADLINE, idle).await.unwrap();
    for _ in 0..10 {
        ask(&client, &id, (PORT, false), "/", &[]).await;
        assert_eq!(client.get(&path).await.json()["state"], "paused");
    }
    // A request with a key resumes it.
    let key = client.key.clone().unwrap();
    let shown = [("x-api-key", key.as_str())];
    let closed = ask(&client, &id, (PORT, false), "/", &shown).await;
    assert!(
        closed.json()["message"]
            .as_str()
            .unwrap()
            .contains("not open")
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_mode_refuses_cross_site_requests_to_private_ports() {
    let server = Server::start_with(&["--dev", "--domain", "localhost"]).await;
    let client = server.client();
    let id = private(&client).await;
    let host = format!("{PORT}-{id}.localhost");
    let ask = async |more: &[(&str, &str)]| {
        let headers = [&[("host", host.as_str())], more].concat();
        let anonymous = client.with_key(None);
        anonymous.send("GET", "/", &headers, Bytes::new()).await
    };
    let own = format!("http://{host}");
    for shown in [
        &[][..],
        &[("origin", own.as_str())],
        &[("sec-fetch-site", "none")],
    ] {
        assert_eq!(ask(shown).await.status, 200, "{shown:?}");
    }
    for shown in [
        ("origin", "http://evil.test"),
        ("sec-fetch-site", "cross-site"),
    ] {
        assert_eq!(ask(&[shown]).await.status, 502, "{shown:?}");
    }
    server.close().await;
}

/// Creates a signed link to a port.
async fn link(client: &Client, id: &str, port: u16, seconds: u32) -> Value {
    let path = format!("/sandboxes/{id}/ports/{port}/url");
    let made = client.post(&path, &json!({ "expiresIn": seconds })).await;
    assert_eq!(made.status, 200, "{made:?}");
    made.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signed_link_opens_one_port_of_one_sandbox_until_a_time() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let id = private(&client).await;
    let made = link(&client, &id, PORT, 60).await;
    let token = made["token"].as_str().unwrap();
    let (_, port) = client.address.rsplit_once(':').unwrap();
    let expected = format!("http://{PORT}-{id}.{DOMAIN}:{port}/?atoll_token={token}");
    assert_eq!(made["url"], expected);
    let cookie = format!("a=1; atoll_token={token}; b=2");
    let query = format!("/page?a=1&atoll_token={token}&b=2");
    // The program does not see the link, in whichever form it is sent.
    for by_host in [false, true] {
        let at = (PORT, by_host);
        let first = ask(&client, &id, at, &query, &[]).await;
        assert_eq!(
            (first.status, &first.json()["path"]),
            (200, &json!("/page?a=1&b=2"))
        );
        let set = first
            .headers
            .get("set-cookie")
            .map(|set| set.to_str().unwrap());
        // A cookie belongs to a host name; with headers all sandboxes have the same one.
        assert_eq!(set.is_some(), by_host, "{set:?}");
        if let Some(set) = set {
            assert!(
                set.starts_with(&format!("atoll_token={token}; Path=/; Max-Age=")),
                "{set}"
            );
            assert!(set.ends_with("; HttpOnly; SameSite=Lax"), "{set}");
        }
        for shown in [
            ("cookie", cookie.as_str()),
            ("e2b-traffic-access-token", token),
        ] {
            let next = ask(&client, &id, at, "/next", &[shown]).await;
            assert_eq!((next.status, &next.json()["path"]), (200, &json!("/next")));
            assert!(!next.headers.contains_key("set-cookie"));
        }
        // The link is invalid for another port, for another sandbox and if it is changed.
        let unknown = ask(&client, "i0123456789abcdefghij", at, &query, &[]).await;
        let unknown = comparable(&unknown, "i0123456789abcdefghij");
        let other = client.sandbox(&json!({ "timeout": 0 })).await;
        let (until, code) = token.rsplit_once('_').unwrap();
        let changed = format!("/page?atoll_token={until}0_{code}");
        for (id, port, path) in [
            (&other, PORT, &query),
            (&id, 8001, &query),
            (&id, PORT, &changed),
        ] {
            let refused = ask(&client, id, (port, by_host), path, &[]).await;
            assert_eq!(comparable(&refused, id), unknown, "{port} {path}");
        }
    }
    // The link also permits a WebSocket.
    echo_socket(&client, &id, &format!("atoll_token={token}")).await;

    let short = link(&client, &id, PORT, 1).await;
    let path = format!("/?atoll_token={}", short["token"].as_str().unwrap());
    let over = async { while ask(&client, &id, (PORT, true), &path, &[]).await.status == 200 {} };
    tokio::time::timeout(DEADLINE, over).await.unwrap();
    // Signing needs the scope to use ports, and a valid port.
    let reader = client.with_key(Some(&key(&client, "sandbox:read").await));
    let here = format!("/sandboxes/{id}/ports");
    for (client, port, body, status) in [
        (&reader, "8000", json!({}), 403),
        (&client, "0", json!({}), 400),
        (&client, "49983", json!({}), 400),
        (&client, "8000", json!({ "expiresIn": 0 }), 400),
        (&client, "8000", json!({ "expiresIn": 86_401 }), 400),
    ] {
        let refused = client.post(&format!("{here}/{port}/url"), &body).await;
        assert_eq!(refused.status, status, "{port} {body}: {refused:?}");
    }
    server.close().await;
}

/// A server that responds with the head of each request.
const ECHO: &str = "
import socket
server = socket.create_server(('127.0.0.1', 8000))
while True:
    one, _ = server.accept()
    head = b''
    while not head.endswith(b'\\r\\n\\r\\n'):
        head += one.recv(65536)
    one.sendall(b'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(head) + head)
    one.close()
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_a_sandbox_never_see_the_static_key() {
    const KEY: &str = "chosen-by.the/operator";
    let scratch = atoll_testkit::Scratch::new();
    let file = scratch.join("static-key");
    std::fs::write(&file, KEY).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    crate::harness::private(&scratch.join("data"));
    let flags = ["--static-key-file", file.to_str().unwrap()];
    let flags = flags.map(str::to_owned);
    let flags = flags.each_ref().map(String::as_str);
    let server = Server::start_in(scratch, &flags).await;
    let client = server.client().with_key(Some(KEY));
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    crate::api::serve_in(&client, &id, PORT, ECHO).await;
    let (bearer, cookie) = (format!("Bearer {KEY}"), format!("a=1; key={KEY}"));
    for shown in [("x-api-key", KEY), ("authorization", bearer.as_str())] {
        let headers = [shown, ("cookie", cookie.as_str()), ("x-other", "kept")];
        let path = format!("/p?a=1&api_key={KEY}");
        let head = ask(&client, &id, (PORT, false), &path, &headers).await;
        assert_eq!(head.status, 200, "{shown:?}: {head:?}");
        let head = String::from_utf8(head.body.to_vec()).unwrap();
        assert!(!head.contains(KEY), "{shown:?}: {head}");
        assert!(head.contains("kept") && head.contains("a=1"), "{head}");
    }
    // Another text is no credential of the server: it reaches no private port.
    let other = ask(
        &client,
        &id,
        (PORT, false),
        "/p",
        &[("x-api-key", "chosen-by")],
    )
    .await;
    assert_ne!(other.status, 200, "{other:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_in_a_sandbox_never_see_credentials_of_the_server() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    crate::api::serve_in(&client, &id, PORT, ECHO).await;
    let made = client
        .post(
            &format!("/e2b/sandboxes/{id}/connect"),
            &json!({ "timeout": 100 }),
        )
        .await
        .json();
    let (traffic, agent) = (
        made["trafficAccessToken"].as_str().unwrap(),
        made["envdAccessToken"].as_str().unwrap(),
    );
    let key = client.key.clone().unwrap();
    let other = key.replace("atl_", "e2b_");
    let link = client
        .post(
            &format!("/sandboxes/{id}/files/download-url"),
            &json!({ "path": "/etc/hostname" }),
        )
        .await
        .json();
    let (_, link) = link["url"].as_str().unwrap().split_once('?').unwrap();
    let (_, signature) = link.rsplit_once("signature=").unwrap();
    let secrets = [&key[4..], traffic, agent, signature, "tkt_"];
    let digest = "0123456789abcdef".repeat(4);
    let ticket = ticket(&client).await;
    let (bearer, basic) = (format!("Bearer {key}"), base64(&format!("{key}:")));
    let basic = format!("Basic {basic}");
    let padded = base64(&format!("{key}:x"));
    let unpadded = padded.trim_end_matches('=');
    assert_ne!(unpadded, padded);
    let unpadded = format!("Basic {unpadded}");
    let signed = self::link(&client, &id, PORT, 60).await;
    let signed = signed["token"].as_str().unwrap();
    let encoded = key.replace('a', "%61").replace("tl_", "%74l_");
    let cookies = format!("a=1; atoll={key};  b=\"two\"; t={ticket}; c={digest}=");
    let referer = format!("http://page.test/x?a=1&api_key={other}&b=%20");
    let protocols = format!("chat, {key}, {traffic}");
    // Query of the request, and query that the program receives.
    let queries = [
        ("a=1&b=%2f&&c=d+e&=".to_owned(), "?a=1&b=%2f&&c=d+e&="),
        (format!("api_key={key}"), ""),
        (format!("a=%41&api_key={encoded}&b"), "?a=%41&b"),
        (format!("ticket={ticket}&ticket=mine"), "?ticket=mine"),
        (format!("x={agent}&y={traffic}&z=1"), "?z=1"),
        (format!("{key}&z"), "?z"),
        (
            format!("{link}&z"),
            link.split("&signature").next().unwrap(),
        ),
        (
            "signature=v1_abc&path=x".to_owned(),
            "?signature=v1_abc&path=x",
        ),
    ];
    for (query, expected) in &queries {
        let shown = [("x-api-key", key.as_str())];
        let path = format!("/p%20q?{query}");
        let head = ask(&client, &id, (PORT, false), &path, &shown).await;
        let head = String::from_utf8(head.body.to_vec()).unwrap();
        let line = head.lines().next().unwrap();
        let expected = match expected.strip_prefix("path") {
            Some(rest) => format!("?path{rest}&z"),
            None => (*expected).to_owned(),
        };
        assert_eq!(line, format!("GET /p%20q{expected} HTTP/1.1"));
    }
    // Header of the request, and header that the program receives.
    let kept = format!("a=1;  b=\"two\"; c={digest}=");
    for (name, sent, expected) in [
        ("authorization", bearer.as_str(), None),
        ("authorization", &basic, None),
        ("authorization", &unpadded, None),
        ("x-anything", signed, None),
        (
            "authorization",
            "Bearer its.own-token",
            Some("Bearer its.own-token"),
        ),
        (
            "authorization",
            "Basic dXNlcjpwYXNz",
            Some("Basic dXNlcjpwYXNz"),
        ),
        ("x-api-key", &other, None),
        ("x-api-key", "its own", Some("its own")),
        ("x-anything", &key, None),
        ("x-access-token", agent, None),
        ("x-access-token", &digest, None),
        ("x-access-token", "its own", Some("its own")),
        ("x-anything", agent, None),
        ("x-anything", &ticket, None),
        ("x-anything", &digest, Some(digest.as_str())),
        ("e2b-traffic-access-token", traffic, None),
        ("cookie", &cookies, Some(&kept)),
        ("cookie", "a=1;b=2;  c", Some("a=1;b=2;  c")),
        ("referer", &referer, Some("http://page.test/x?a=1&b=%20")),
        ("sec-websocket-protocol", &protocols, Some("chat")),
        ("sec-websocket-protocol", &key, None),
    ] {
        let mut headers = vec![(name, sent), ("x-other", "stays")];
        headers.extend([("connection", "upgrade"), ("upgrade", "websocket")]);
        let admitted = format!("/?api_key={key}");
        let head = ask(&client, &id, (PORT, false), &admitted, &headers).await;
        let head = String::from_utf8(head.body.to_vec()).unwrap();
        let lines: Vec<&str> = head.lines().collect();
        let value = lines.iter().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        });
        assert_eq!(value, expected, "{name}: {sent}\n{head}");
        assert!(
            lines.contains(&"GET / HTTP/1.1") && lines.contains(&"x-other: stays"),
            "{head}"
        );
        assert!(lines.contains(&"upgrade: websocket"), "{head}");
        for secret in secrets {
            assert!(!head.contains(secret), "{name}: {sent}\n{head}");
        }
    }
    server.close().await;
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// An E2B-style link without a sandbox's id is resolved among the most recently created sandboxes only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn link_without_an_id_is_resolved_in_bounded_time() {
    let mut server = Server::start().await;
    let client = server.client();
    let (id, token) = super::sandbox(&client).await;
    client.line(&id, "echo here > /home/user/file").await;
    let link = signed("file", &token);
    let anonymous = client.with_key(None);
    assert_eq!(anonymous.get(&link).await.status, 200);
    let wrong = link.replace("path=file", "path=other");
    let mut times = Vec::new();
    for sandboxes in [300, 6_000] {
        server.end();
        server.sql(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {sandboxes}) \
             INSERT OR IGNORE INTO sandboxes (id, session, org, template, state, metadata, limits, network, lifetime, created_at) \
             SELECT printf('i%020d', i), printf('sess_%020d', i), org, template, 'failed', metadata, limits, network, lifetime, 1 \
             FROM n, (SELECT * FROM sandboxes WHERE created_at > 1)"
        ));
        server.kill_and_start();
        let anonymous = server.client().with_key(None);
        // The newest sandbox is found among them.
        assert_eq!(anonymous.get(&link).await.status, 200);
        times.push(searching(&anonymous, &wrong).await);
    }
    // A search through all sandboxes takes 20 times as long.
    assert!(times[1] < times[0] * 5, "{times:?}");
    server.end();
    server.sql("DELETE FROM sandboxes WHERE created_at = 1");
    server.kill_and_start();
    server.close().await;
}

fn signed(path: &str, token: &str) -> String {
    use base64::Engine as _;
    use sha2::Digest as _;
    let hash = sha2::Sha256::digest(format!("{path}:read::{token}"));
    let hash = base64::engine::general_purpose::STANDARD_NO_PAD.encode(hash);
    let hash = hash.replace('+', "%2B").replace('/', "%2F");
    format!("/files?path={path}&signature=v1_{hash}")
}

/// The shortest time of many rejected requests, below the rate limit of one address.
async fn searching(client: &Client, link: &str) -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..30 {
        let begin = std::time::Instant::now();
        let refused = client.get(link).await;
        best = best.min(begin.elapsed());
        assert_eq!(refused.status, 401, "{refused:?}");
    }
    best
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alias_host_resolves_to_its_sandbox() {
    let server = Server::start().await;
    let client = server.client();
    let first = client
        .sandbox(&json!({ "alias": "web", "timeout": 0 }))
        .await;
    let state = async |name: &str| client.get(&format!("/sandboxes/{name}")).await;
    let change = async |name: &str, alias: Value| {
        let path = format!("/sandboxes/{name}");
        let body = json!({ "alias": alias }).to_string();
        let headers = [("content-type", "application/json")];
        client.send("PATCH", &path, &headers, body).await.status
    };
    assert_eq!(change("web", json!("old")).await, 200);
    assert_eq!(state("web").await.status, 404);
    assert_eq!(state("old").await.json()["sandboxID"], first);
    let second = client
        .sandbox(&json!({ "alias": "web", "timeout": 0 }))
        .await;
    assert_eq!(change("old", json!("web")).await, 409);
    assert_eq!(state("web").await.json()["sandboxID"], second);
    assert_eq!(state("old").await.json()["sandboxID"], first);
    assert_eq!(change("old", Value::Null).await, 200);
    assert_eq!(state("old").await.status, 404);
    client.delete("/sandboxes/web").await;
    assert_eq!(change(&first, json!("web")).await, 200);
    assert_eq!(state("web").await.json()["sandboxID"], first);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn port_of_the_e2b_api_is_public_unless_secured() {
    let server = Server::start().await;
    let client = server.client();
    let public = json!({ "templateID": "base", "timeout": 100 });
    let secured =
        json!({ "templateID": "base", "timeout": 100, "network": { "allowPublicTraffic": false } });
    for (request, status) in [(public, 200), (secured, 403)] {
        let (id, _) = serving(&client, request).await;
        let page = ask(&client, &id, (PORT, false), "/", &[]).await;
        assert_eq!(page.status, status, "{page:?}");
        // A key of the org is sufficient for both.
        let key = client.key.clone().unwrap();
        let page = ask(&client, &id, (PORT, false), "/", &[("x-api-key", &key)]).await;
        assert_eq!(page.status, 200, "{page:?}");
    }
    server.close().await;
}
