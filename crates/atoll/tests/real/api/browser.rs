//! Requests from web pages in the operator's browser. A page of another origin tries every kind of request against
//! a server without authentication on this machine, and all are refused; the same requests work from a listed
//! origin.

use serde_json::{Value, json};

use super::chromium::{Chromium, pages};
use super::{Client, Server};

/// Requests of a page. `HERE` is the server, `ID` a sandbox. Each returns `done …` on success.
const ATTEMPTS: &[(&str, &str)] = &[
    ("read by fetch", "fetch('HERE/sandboxes').then(got => got.text()).then(text => 'done ' + text)"),
    (
        "read without asking",
        "fetch('HERE/sandboxes', { mode: 'no-cors' }).then(got => got.text()).then(text => text ? 'done ' + text : 'nothing')",
    ),
    (
        "create with no body",
        "fetch('HERE/sandboxes', { method: 'POST', mode: 'no-cors' }).then(got => got.ok ? 'done' : 'nothing')",
    ),
    (
        "create with JSON called text",
        "fetch('HERE/sandboxes', { method: 'POST', mode: 'no-cors', headers: { 'content-type': 'text/plain' }, body: '{}' }).then(got => got.ok ? 'done' : 'nothing')",
    ),
    (
        "create with JSON",
        "fetch('HERE/sandboxes', { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{}' }).then(got => 'done ' + got.status)",
    ),
    (
        "run a command",
        "fetch('HERE/sandboxes/ID/commands', { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{\"cmd\":\"touch /home/user/was-here\"}' }).then(got => 'done ' + got.status)",
    ),
    (
        "write a file",
        "fetch('HERE/sandboxes/ID/files?path=was-here', { method: 'PUT', body: 'x' }).then(got => 'done ' + got.status)",
    ),
    ("delete", "fetch('HERE/sandboxes/ID', { method: 'DELETE' }).then(got => 'done ' + got.status)"),
    (
        "create by a form",
        "new Promise(done => { const frame = document.createElement('iframe'); frame.name = 'hidden'; document.body.append(frame);
           const form = document.createElement('form'); Object.assign(form, { method: 'POST', action: 'HERE/sandboxes', target: 'hidden', enctype: 'text/plain' });
           const field = document.createElement('input'); Object.assign(field, { name: '{\"metadata\":{\"a\":\"', value: '\"}}' }); form.append(field); document.body.append(form);
           frame.onload = () => { try { done(frame.contentDocument.body.innerText ? 'done' : 'nothing'); } catch { done('nothing'); } }; form.submit(); })",
    ),
    (
        "create by an empty form",
        "new Promise(done => { const frame = document.createElement('iframe'); frame.name = 'empty'; document.body.append(frame);
           const form = document.createElement('form'); Object.assign(form, { method: 'POST', action: 'HERE/sandboxes', target: 'empty' }); document.body.append(form);
           frame.onload = () => done('nothing'); form.submit(); })",
    ),
    ("create by a beacon", "(navigator.sendBeacon('HERE/sandboxes', new Blob(['{}'], { type: 'text/plain' })), 'nothing')"),
    (
        "a terminal by WebSocket",
        "new Promise(done => { const socket = new WebSocket('HERE/sandboxes/ID/pty'.replace('http', 'ws')); socket.onopen = () => done('done'); socket.onerror = () => done('nothing'); })",
    ),
    (
        "events",
        "new Promise(done => { const source = new EventSource('HERE/events?after=0'); source.onopen = () => { source.close(); done('done'); }; source.onerror = () => { source.close(); done('nothing'); }; })",
    ),
    (
        "a picture",
        "new Promise(done => { const image = new Image(); image.onload = () => done('done'); image.onerror = () => done('nothing'); image.src = 'HERE/sandboxes/ID/files?path=picture.svg'; })",
    ),
    (
        "wake a sandbox by a picture",
        "new Promise(done => { const image = new Image(); image.onload = () => done('done'); image.onerror = () => done('nothing'); image.src = 'HERE/sandboxes/asleep/files?path=/etc/hostname'; })",
    ),
    (
        "a list as a script",
        "new Promise(done => { const script = document.createElement('script'); script.onload = () => done('done'); script.onerror = () => done('nothing'); script.src = 'HERE/sandboxes'; document.body.append(script); })",
    ),
    (
        "a file as a script",
        "new Promise(done => { const script = document.createElement('script'); script.onload = script.onerror = () => done(window.ran ? 'done' : 'nothing'); script.src = 'HERE/sandboxes/ID/files?path=script.js'; document.body.append(script); })",
    ),
    (
        "a file as a style",
        "new Promise(done => { const link = document.createElement('link'); link.rel = 'stylesheet'; link.onload = () => done('done'); link.onerror = () => done('nothing'); link.href = 'HERE/sandboxes/ID/files?path=script.js'; document.head.append(link); })",
    ),
    (
        "the reference in a frame",
        "new Promise(done => { const frame = document.createElement('iframe'); frame.onload = () => { let text; try { text = frame.contentDocument.title; } catch {} done(text ? 'done' : 'nothing'); }; frame.src = 'HERE/docs'; document.body.append(frame); })",
    ),
];

/// Files of a sandbox that would do something in a browser that showed them.
const FILES: &[(&str, &str)] = &[
    ("script.js", "window.ran = true"),
    (
        "page.html",
        "<!doctype html><title>ran</title><script>document.title = 'ran'</script>",
    ),
    (
        "picture.svg",
        "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><rect width='9' height='9'/></svg>",
    ),
];

/// State that the attempts could have changed.
async fn state(client: &Client, id: &str) -> Value {
    let sandboxes = client.get("/sandboxes").await.array();
    let names = sandboxes.iter().map(|one| one["sandboxID"].clone());
    let files = client
        .get(&format!("/sandboxes/{id}/files/list?path=/home/user"))
        .await;
    let files = files.array().into_iter().map(|file| file["path"].clone());
    json!({
        "sandboxes": names.collect::<Vec<_>>(),
        "asleep": client.get("/sandboxes/asleep").await.json()["state"],
        "files": files.collect::<Vec<_>>(),
        "commands": client.get(&format!("/sandboxes/{id}/commands")).await.json(),
        "terminals": client.get(&format!("/sandboxes/{id}/pty")).await.json(),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cross_origin_pages_are_blocked_unless_listed() {
    let port = pages().await;
    let friend = format!("http://friend.example:{port}");
    let server = Server::start_with(&["--dev", "--cors-origin", &friend]).await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    for (name, text) in FILES {
        let path = format!("/sandboxes/{id}/files?path={name}");
        assert_eq!(client.send("PUT", &path, &[], *text).await.status, 200);
    }
    // Any activity resumes this sandbox.
    client
        .sandbox(&json!({ "alias": "asleep", "timeout": 0 }))
        .await;
    let paused = client.post("/sandboxes/asleep/pause", &json!({})).await;
    assert_eq!(paused.json()["state"], "paused");
    let before = state(&client, &id).await;
    let url = format!("http://{}", client.address);
    let spell = |attempt: &str| attempt.replace("HERE", &url).replace("ID", &id);

    let mut browser = Chromium::start().await;
    // Another site, another port of this machine, and a host name that resembles this machine's.
    for place in ["evil.example", "localhost", "127.0.0.1"] {
        let page = browser.open(&format!("http://{place}:{port}/")).await;
        for (name, attempt) in ATTEMPTS {
            let attempt = format!("({}).catch(() => 'nothing')", promise(&spell(attempt)));
            let result = browser.run(&page, &attempt).await;
            assert_eq!(result, "nothing", "{name}, from {place}");
            assert_eq!(state(&client, &id).await, before, "{name}, from {place}");
        }
    }
    // DNS rebinding: a foreign host name that resolves to this server.
    let rebound = format!(
        "http://rebound.example:{}",
        client.address.split(':').nth(1).unwrap()
    );
    let page = browser.open(&format!("{rebound}/sandboxes")).await;
    let result = browser.run(&page, "document.body.innerText").await;
    assert!(
        result.as_str().unwrap().contains("MISDIRECTED_REQUEST"),
        "{result}"
    );
    let result = browser
        .run(
            &page,
            "fetch('/sandboxes', { method: 'POST' }).then(got => got.status)",
        )
        .await;
    assert_eq!(result, 421);
    assert_eq!(state(&client, &id).await, before);

    // Files are sent as attachments.
    let result = browser
        .go(&page, &format!("{url}/sandboxes/{id}/files?path=page.html"))
        .await;
    assert!(
        result["isDownload"] == true || result["errorText"] == "net::ERR_ABORTED",
        "{result}"
    );
    assert_ne!(browser.run(&page, "document.title").await, "ran");

    listed(&mut browser, &friend, &url, &id).await;
    browser.close().await;
    server.close().await;
}

/// Every attempt is a promise.
fn promise(attempt: &str) -> String {
    format!("Promise.resolve().then(() => {attempt})")
}

/// A page of a listed origin can use the whole API.
async fn listed(browser: &mut Chromium, friend: &str, url: &str, id: &str) {
    let page = browser.open(friend).await;
    let mut ask = async |expression: &str| {
        let expression = expression.replace("HERE", url).replace("ID", id);
        browser.run(&page, &expression).await
    };
    let made = "fetch('HERE/sandboxes', { method: 'POST', headers: { 'content-type': 'application/json', 'idempotency-key': 'a' }, body: '{}' })
        .then(async got => [got.status, (await got.json()).state, !!got.headers.get('x-request-id')])";
    assert_eq!(ask(made).await, json!([201, "running", true]));
    let listed = "fetch('HERE/sandboxes?limit=1').then(async got => [got.status, (await got.json()).length, !!got.headers.get('x-next-cursor')])";
    assert_eq!(ask(listed).await, json!([200, 1, true]));
    let written = "fetch('HERE/sandboxes/ID/files?path=from-a-page', { method: 'PUT', body: 'x' }).then(got => got.status)";
    assert_eq!(ask(written).await, 200);
    let read = "fetch('HERE/sandboxes/ID/files?path=from-a-page').then(async got => [await got.text(), got.headers.get('x-file-size')])";
    assert_eq!(ask(read).await, json!(["x", "1"]));
    // Error responses have CORS headers too.
    let refused =
        "fetch('HERE/sandboxes/no-such').then(async got => [got.status, (await got.json()).code])";
    assert_eq!(ask(refused).await, json!([404, "SANDBOX_NOT_FOUND"]));
    let events = "new Promise(done => { const source = new EventSource('HERE/events?after=0'); source.onopen = () => { source.close(); done('open'); }; source.onerror = () => done('refused'); })";
    assert_eq!(ask(events).await, "open");
    let socket = "new Promise(done => { const socket = new WebSocket('HERE/sandboxes/ID/pty'.replace('http', 'ws')); socket.onopen = () => { socket.close(); done('open'); }; socket.onerror = () => done('refused'); })";
    assert_eq!(ask(socket).await, "open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_reference_shows_every_route_and_fits_a_phone() {
    let server = Server::start().await;
    let client = server.client();
    let document = client.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|item| item.as_object().unwrap().keys());
    let operations = operations.filter(|key| *key != "parameters").count();

    let mut browser = Chromium::start().await;
    let page = browser
        .open(&format!("http://{}/docs", client.address))
        .await;
    browser.narrow(&page, 380).await;
    let shown = "new Promise(done => { const look = () => document.querySelector('article') ? done(document.querySelectorAll('article').length) : requestAnimationFrame(look); look(); })";
    assert_eq!(browser.run(&page, shown).await, operations);
    let wide = "(document.querySelectorAll('details').forEach(one => one.open = true), document.documentElement.scrollWidth)";
    assert_eq!(browser.run(&page, wide).await, 380);
    let found = "(document.getElementById('search').value = 'stdin close', document.getElementById('search').dispatchEvent(new Event('input')), [...document.querySelectorAll('article')].filter(one => !one.hidden).map(one => one.id))";
    let found = browser.run(&page, found).await;
    assert!(
        found.as_array().unwrap().contains(&json!("commands_close")),
        "{found}"
    );
    assert!(found.as_array().unwrap().len() < 9, "{found}");
    let text = browser.run(&page, "document.body.innerText").await;
    assert!(!text.as_str().unwrap().contains("undefined"), "{text}");
    browser.close().await;
    server.close().await;
}
