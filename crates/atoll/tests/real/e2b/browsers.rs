//! Cross-origin requests to the E2B interface: pages of listed origins may send them, and no others, whatever their
//! token.

use std::path::Path;

use serde_json::{Value, json};

use super::calls::Agent;
use super::installed;
use super::ports::{DOMAIN, PORT, serving};
use crate::api::{Answer, Chromium, Client, Server, serve};

const FRIEND: &str = "https://friend.example";
const STRANGER: &str = "https://stranger.example";

/// Sends a preflight request, as a browser does before a call with custom headers.
async fn preflight(client: &Client, path: &str, more: &[(&str, &str)]) -> Answer {
    let required = [
        ("access-control-request-method", "POST"),
        (
            "access-control-request-headers",
            "content-type,e2b-sandbox-id,x-access-token,x-metadata-any",
        ),
    ];
    let headers = [&required, more].concat();
    client
        .with_key(None)
        .send("OPTIONS", path, &headers, "")
        .await
}

/// The allowed origin of a response.
fn shown(answer: &Answer) -> Option<&str> {
    let origin = answer.headers.get("access-control-allow-origin")?;
    origin.to_str().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_listed_origins_may_call_and_read_responses() {
    let server = Server::start_with(&["--cors-origin", FRIEND, "--domain", DOMAIN]).await;
    let client = server.client();
    let agent = Agent::make(&client).await;
    let host = format!("49983-{}.{DOMAIN}", agent.id);
    for path in [
        "/filesystem.Filesystem/Stat",
        "/files?path=x",
        "/e2b/v2/sandboxes",
    ] {
        let allowed = preflight(&client, path, &[("origin", FRIEND)]).await;
        assert_eq!(
            (allowed.status, shown(&allowed)),
            (200, Some(FRIEND)),
            "{path}"
        );
        let headers = allowed.headers["access-control-allow-headers"].to_str();
        assert!(headers.unwrap().contains("x-metadata-any"), "{allowed:?}");
        let refused = preflight(&client, path, &[("origin", STRANGER)]).await;
        assert_eq!(shown(&refused), None, "{path} {refused:?}");
    }
    for (origin, allowed_origin) in [(FRIEND, Some(FRIEND)), (STRANGER, None)] {
        let by_host = [("host", host.as_str()), ("origin", origin)];
        let answer = preflight(&client, "/files", &by_host).await;
        assert_eq!(shown(&answer), allowed_origin, "{answer:?}");
    }
    let found = agent
        .ask(
            "GET",
            "/files?path=/etc/hostname",
            &[("origin", FRIEND)],
            "",
        )
        .await;
    assert_eq!(
        (found.status, shown(&found)),
        (200, Some(FRIEND)),
        "{found:?}"
    );
    client.delete(&format!("/e2b/sandboxes/{}", agent.id)).await;
    // Error responses have CORS headers too: the clients read them.
    let gone = agent
        .ask("GET", "/files?path=x", &[("origin", FRIEND)], "")
        .await;
    assert_eq!((gone.status, shown(&gone)), (502, Some(FRIEND)), "{gone:?}");
    let page = [("origin", FRIEND)];
    let list = client.send("GET", "/e2b/v2/sandboxes", &page, "").await;
    let seen = list.headers["access-control-expose-headers"]
        .to_str()
        .unwrap();
    assert!(seen.contains("x-next-token"), "{seen}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unlisted_origins_and_foreign_hosts_are_refused() {
    for flags in [&[][..], &["--cors-origin", FRIEND]] {
        let server = Server::start_with(flags).await;
        let client = server.client();
        let agent = Agent::make(&client).await;
        let octets = ("content-type", "application/octet-stream");
        for (header, value, status) in [
            ("origin", STRANGER, 403),
            ("origin", "null", 403),
            ("host", "rebound.example", 421),
        ] {
            let headers = [octets, (header, value)];
            let refused = agent.ask("POST", "/files?path=made", &headers, "x").await;
            assert_eq!(refused.status, status, "{value} {refused:?}");
            assert_eq!(refused.json()["code"], status);
            assert_eq!(shown(&refused), None);
        }
        let made = json!({ "path": "/home/user/made" });
        let found = agent.call("filesystem.Filesystem/Stat", &made).await;
        assert_eq!(found.status, 404, "{found:?}");
        // Pages of the server itself are not cross-origin.
        let own = format!("http://{}", server.address());
        let headers = [octets, ("origin", own.as_str())];
        let written = agent.ask("POST", "/files?path=made", &headers, "x").await;
        assert_eq!(written.status, 200, "{written:?}");
        server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_program_decides_cors_for_its_port() {
    let server = Server::start_with(&["--domain", DOMAIN, "--cors-origin", FRIEND]).await;
    let client = server.client();
    let (id, _) = serving(&client, json!({ "templateID": "base", "timeout": 100 })).await;
    let host = format!("{PORT}-{id}.{DOMAIN}");
    let headers = [("host", host.as_str()), ("origin", STRANGER)];
    let page = client.send("GET", "/", &headers, "").await;
    assert_eq!((page.status, shown(&page)), (200, None), "{page:?}");
    assert!(
        page.json()["headers"]
            .as_array()
            .unwrap()
            .contains(&json!("origin"))
    );
    // The program in the sandbox does not support that method, and responds itself.
    let response = preflight(&client, "/", &headers).await;
    assert_eq!(response.status, 501, "{response:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contradictory_request_is_refused_with_the_reason() {
    let server = Server::start_with(&["--domain", DOMAIN]).await;
    let client = server.client();
    let agent = Agent::make(&client).await;
    let id = agent.id.as_str();
    let (other, named) = (
        format!("49983-{}.{DOMAIN}", id.replace('i', "j")),
        format!("8000-{id}.{DOMAIN}"),
    );
    let edge = format!("sandbox.{DOMAIN}");
    for (headers, words) in [
        (
            vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", "http")],
            "not a port",
        ),
        (
            vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", "65536")],
            "not a port",
        ),
        (vec![("e2b-sandbox-id", "../etc")], "Invalid sandbox ID"),
        (
            vec![("e2b-sandbox-id", id), ("host", &other)],
            "another sandbox or port",
        ),
        (
            vec![
                ("e2b-sandbox-id", id),
                ("e2b-sandbox-port", "8001"),
                ("host", &named),
            ],
            "another sandbox or port",
        ),
        (vec![("host", &edge)], "E2b-Sandbox-Id"),
    ] {
        let refused = client
            .with_key(None)
            .send("GET", "/health", &headers, "")
            .await;
        assert_eq!(
            (refused.status, &refused.json()["code"]),
            (400, &json!(400)),
            "{headers:?}"
        );
        let message = refused.json()["message"].to_string();
        assert!(message.contains(words), "{message}");
        assert!(refused.headers.contains_key("x-request-id"));
    }
    // A well-formed id without a sandbox.
    let unknown = [("e2b-sandbox-id", "i00000000000000000000")];
    let gone = client.send("GET", "/health", &unknown, "").await;
    assert_eq!(
        (gone.status, &gone.json()["message"]),
        (502, &json!("The sandbox was not found"))
    );
    for headers in [
        vec![("e2b-sandbox-id", id), ("host", &edge)],
        vec![("e2b-sandbox-id", id), ("e2b-sandbox-port", "49983")],
    ] {
        let there = client.send("GET", "/health", &headers, "").await;
        assert_eq!(there.status, 204, "{headers:?} {there:?}");
    }
    server.close().await;
}

/// Import map of E2B's JavaScript client for a page, without the modules that only template builds need.
fn imports() -> Value {
    let nothing = |names: &str| format!("data:text/javascript,{names}");
    let mut imports = json!({
        "e2b": "/e2b/dist/index.mjs",
        "openapi-fetch": "/openapi-fetch/dist/index.mjs",
        "compare-versions": "/compare-versions/lib/esm/index.js",
        "@bufbuild/protobuf": "/@bufbuild/protobuf/dist/esm/index.js",
        "@connectrpc/connect": "/@connectrpc/connect/dist/esm/index.js",
        "@connectrpc/connect-web": "/@connectrpc/connect-web/dist/esm/index.js",
        "platform": nothing("export default {}"),
        "dockerfile-ast": nothing("export const DockerfileParser = {}"),
        "chalk": nothing("const same = text => text; export default new Proxy(same, { get: () => () => same })"),
    });
    for part in ["codegenv2", "wire", "wkt"] {
        imports[format!("@bufbuild/protobuf/{part}")] =
            format!("/@bufbuild/protobuf/dist/esm/{part}/index.js").into();
    }
    for part in ["protocol", "protocol-connect", "protocol-grpc-web"] {
        imports[format!("@connectrpc/connect/{part}")] =
            format!("/@connectrpc/connect/dist/esm/{part}/index.js").into();
    }
    for part in ["fs", "stream", "crypto", "os", "path", "url"] {
        imports[format!("node:{part}")] = nothing("export default {}").into();
    }
    json!({ "imports": imports })
}

/// Program of the page.
const PROGRAM: &str = "async ({ Sandbox }, at) => {
    const sandbox = await Sandbox.create({ ...at, timeoutMs: 100000 });
    const ran = await sandbox.commands.run('echo on; echo off >&2');
    await sandbox.files.write('note', 'text', { metadata: { from: 'a page' } });
    const { metadata } = await sandbox.files.getInfo('note');
    const text = await sandbox.files.read('note');
    const missing = await sandbox.files.read('missing').catch(error => error.name);
    await sandbox.pause();
    const away = await sandbox.files.read('note').catch(error => error.name);
    await sandbox.connect({ timeoutMs: 100000 });
    const pages = Sandbox.list({ ...at, limit: 1 });
    const first = await pages.nextItems();
    const killed = await sandbox.kill();
    return [ran.stdout, ran.stderr, metadata.from, text, missing, away, first.length, pages.hasNext, killed];
}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javascript_client_works_in_a_page_of_a_listed_origin() {
    let releases = include_str!("releases").lines();
    let release = releases
        .into_iter()
        .find_map(|line| line.strip_prefix("node "));
    let modules = installed("node", release.unwrap()).join("node_modules");
    assert!(Path::new(&modules).is_dir());
    let port = serve(Some(modules)).await;
    let page = format!("http://friend.example:{port}");
    let server = Server::start_with(&["--cors-origin", &page]).await;
    let client = server.client();
    // Another, so that a list has two pages.
    Agent::make(&client).await;
    let url = format!("http://{}", server.address());
    let key = client.key.clone().unwrap().replace("atl_", "e2b_");
    let at = json!({ "apiKey": key, "apiUrl": format!("{url}/e2b"), "sandboxUrl": url });
    let map = format!(
        "document.head.append(Object.assign(document.createElement('script'), {{ type: 'importmap', textContent: {} }}))",
        json!(imports().to_string())
    );
    let program = format!("import('e2b').then(e2b => ({PROGRAM})(e2b, {at}))");
    let mut browser = Chromium::start().await;
    let tab = browser.open(&page).await;
    browser.run(&tab, &map).await;
    let did = browser.run(&tab, &program).await;
    let expected = json!([
        "on\n",
        "off\n",
        "a page",
        "text",
        "FileNotFoundError",
        "TimeoutError",
        1,
        true,
        true
    ]);
    assert_eq!(did, expected);
    // The same page on another origin is rejected.
    let before = client.get("/sandboxes").await.array().len();
    let tab = browser
        .open(&format!("http://stranger.example:{port}"))
        .await;
    browser.run(&tab, &map).await;
    let did = browser
        .run(&tab, &format!("{program}.catch(() => 'nothing')"))
        .await;
    assert_eq!(did, "nothing");
    assert_eq!(client.get("/sandboxes").await.array().len(), before);
    browser.close().await;
    server.close().await;
}
