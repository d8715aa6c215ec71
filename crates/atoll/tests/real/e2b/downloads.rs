//! Conditional requests, range requests and content encodings of downloads.

use serde_json::json;

use super::calls::Agent;
use crate::api::{Answer, Server};

fn header(answer: &Answer, name: &str) -> String {
    answer.headers[name].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_file_is_not_sent_again() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let path = "/files?path=/tmp/kept";
    let octets = [("content-type", "application/octet-stream")];
    let put = async |text: &'static str| {
        let put = agent.ask("POST", path, &octets, text).await;
        assert_eq!(put.status, 200, "{put:?}");
    };
    let get = async |more: &[(&str, &str)]| agent.ask("GET", path, more, "").await;
    put("0123456789").await;
    let first = get(&[]).await;
    assert_eq!((first.status, &first.body[..]), (200, &b"0123456789"[..]));
    let (mark, time) = (header(&first, "etag"), header(&first, "last-modified"));
    for had in [
        ("if-none-match", mark.as_str()),
        ("if-modified-since", &time),
    ] {
        let again = get(&[had]).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{had:?}");
        assert_eq!(header(&again, "etag"), mark);
    }
    let rest = ("range", "bytes=4-");
    for had in [mark.as_str(), &time] {
        let part = get(&[rest, ("if-range", had)]).await;
        assert_eq!(
            (part.status, &part.body[..]),
            (206, &b"456789"[..]),
            "{had}"
        );
        assert_eq!(header(&part, "etag"), mark);
    }

    put("abcdefghij").await;
    // Its modification time may be in the same second.
    let changed = get(&[("if-none-match", &mark), ("if-modified-since", &time)]).await;
    assert_eq!(
        (changed.status, &changed.body[..]),
        (200, &b"abcdefghij"[..])
    );
    let whole = get(&[rest, ("if-range", &mark)]).await;
    assert_eq!((whole.status, &whole.body[..]), (200, &b"abcdefghij"[..]));
    let old = [("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")];
    assert_eq!(get(&old).await.status, 200);

    // A missing path or a directory never matches a conditional request.
    for (path, status) in [("/tmp", 400), ("/tmp/none", 404)] {
        let path = format!("/files?path={path}");
        let refused = agent.ask("GET", &path, &[("if-none-match", "*")], "");
        assert_eq!(refused.await.status, status, "{path}");
    }
    let made_up = "/files?path=/proc/self/stat";
    let made_up = agent.ask("GET", made_up, &[("if-none-match", "*")], "");
    let made_up = made_up.await;
    assert!(
        made_up.status == 200 && !made_up.body.is_empty(),
        "{made_up:?}"
    );
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_without_acceptable_encoding_returns_406() {
    let server = Server::start().await;
    let agent = Agent::make(&server.client()).await;
    let path = "/files?path=/etc/passwd";
    for (codings, status) in [("gzip, deflate", 200), ("gzip, identity;q=0", 406)] {
        let answer = agent
            .ask("GET", path, &[("accept-encoding", codings)], "")
            .await;
        assert_eq!(answer.status, status, "{codings}");
        if status == 406 {
            assert_eq!(answer.json()["code"], json!(406));
        }
    }
    server.close().await;
}
