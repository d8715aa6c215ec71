//! Upload and download of directories as tar archives; D07: archives with entries that point outside the target.

use std::process::Command;

use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::client::Answer;
use super::{Client, Server};

/// Lists a directory tree: kind, mode, owner, target and contents, without times.
const LISTING: &str = "find . -mindepth 1 ! -type p -printf '%p %y %m %u %l ' \\( -type f -exec sha1sum {} \\; -o -printf '\\n' \\) \
                       | sed 's| \\./.*||' | sort";

async fn listing(client: &Client, id: &str, directory: &str) -> String {
    client
        .line(id, &format!("cd {directory} && {LISTING}"))
        .await
}

async fn unpack(client: &Client, id: &str, rest: &str, archive: Vec<u8>) -> Answer {
    let path = format!("/sandboxes/{id}/files/archive?path={rest}");
    client.send("PUT", &path, &[], archive).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archived_directory_round_trips() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let long = "n".repeat(120);
    let make = format!(
        "mkdir -p from/sub/{long} from/empty && cd from && echo one > a && chmod 751 a && ln a sub/again && \
         ln -s ../a sub/link && ln -s /no/where dangling && ln -s {long} {long}-link && echo two > sub/{long}/{long} && \
         head -c 3000000 /dev/urandom > big && : > none && mkfifo pipe && chmod 555 sub && chmod 1777 empty"
    );
    client.line(&id, &make).await;
    let read = client
        .get(&format!("/sandboxes/{id}/files/archive?path=from"))
        .await;
    assert_eq!(read.status, 200);
    for (name, value) in [
        ("content-type", "application/x-tar"),
        ("x-content-type-options", "nosniff"),
        ("content-disposition", "attachment"),
        ("content-security-policy", "sandbox"),
    ] {
        assert_eq!(read.headers[name], value);
    }
    let written = unpack(&client, &id, "to", read.body.to_vec()).await;
    assert_eq!(written.status, 200, "{written:?}");
    assert_eq!(written.json()["skipped"], 0, "{written:?}");
    let (from, to) = (
        listing(&client, &id, "from").await,
        listing(&client, &id, "to").await,
    );
    assert!(from.lines().count() > 9, "{from}");
    assert_eq!(from, to);
    // Two hard links of one file stay hard links.
    let inodes = client.line(&id, "stat -c %i to/a to/sub/again").await;
    let inodes: Vec<&str> = inodes.lines().collect();
    assert_eq!(inodes[0], inodes[1]);
    // A single file under its own name, also over an existing file.
    let read = client
        .get(&format!("/sandboxes/{id}/files/archive?path=from/big"))
        .await;
    let written = unpack(&client, &id, "to", read.body.to_vec()).await;
    assert_eq!(written.json()["bytes"], 3_000_000, "{written:?}");
    assert_eq!(listing(&client, &id, "to").await, from);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn curl_uploads_the_output_of_tar() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let scratch = atoll_testkit::Scratch::new();
    std::fs::create_dir(scratch.join("d")).unwrap();
    std::fs::write(scratch.join("d/f"), "from the host").unwrap();
    let url = format!(
        "http://{}/sandboxes/{id}/files/archive?path=work",
        client.address
    );
    let key = format!("X-API-Key: {}", client.key.clone().unwrap());
    let mut send = Command::new("sh");
    send.args([
        "-c",
        "tar -c -C \"$1\" . | curl -sSf -T - -H \"$2\" \"$3\"",
        "-",
    ])
    .arg(scratch.join("d"))
    .args([&key, &url]);
    let output = atoll_testkit::run(&mut send);
    let response: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(response["skipped"], 0, "{response}");
    assert_eq!(client.line(&id, "cat work/f").await, "from the host");
    let mut get = Command::new("sh");
    get.args(["-c", "curl -sSf -H \"$1\" \"$2\" | tar -xO ./f", "-"])
        .args([&key, &url]);
    assert_eq!(atoll_testkit::run(&mut get).stdout, b"from the host");
    server.close().await;
}

fn header(name: &[u8], kind: EntryType, link: &[u8], size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(size);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.name[..name.len()].copy_from_slice(name);
    gnu.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    header
}

/// An archive with the given entries, valid or not.
fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, kind, link) in entries {
        let body: &[u8] = if *kind == EntryType::Regular {
            b"gained"
        } else {
            b""
        };
        let header = header(name.as_bytes(), *kind, link.as_bytes(), body.len() as u64);
        builder.append(&header, body).unwrap();
    }
    builder.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_an_archive_stays_in_its_directory() {
    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client
        .line(
            &id,
            "mkdir -p out; echo kept > out/kept; ln -s /home/user/out was-there",
        )
        .await;
    let hostile = [
        ("/home/user/out/absolute", Regular, ""),
        ("../out/dots", Regular, ""),
        ("a/../../out/dots", Regular, ""),
        ("to-out", Symlink, "/home/user/out"),
        ("to-out/through", Regular, ""),
        ("up", Symlink, ".."),
        ("up/out/through", Regular, ""),
        ("up/out/kept", Regular, ""),
        ("to-kept", Symlink, "/home/user/out/kept"),
        ("to-out/dir/", Directory, ""),
        ("linked", Link, "to-out/kept"),
        ("linked-dots", Link, "../out/kept"),
        ("null", Char, ""),
        ("disk", Block, ""),
        ("pipe", Fifo, ""),
        // Valid entries.
        ("in", Symlink, "deep"),
        ("deep/", Directory, ""),
        ("in/fine", Regular, ""),
        // A file in place of the link, not through it.
        ("to-kept", Regular, ""),
    ];
    for who in ["", "&authority=root", "&user=root"] {
        client
            .line(&id, "sudo -n rm -rf into 2>/dev/null || rm -rf into")
            .await;
        let response = unpack(
            &client,
            &id,
            &format!("/home/user/into{who}"),
            archive(&hostile),
        )
        .await;
        assert_eq!(response.status, 200, "{who} {response:?}");
        let response = response.json();
        assert_eq!(response["skipped"], 12, "{who} {response}");
        let names = response["skippedEntries"].as_array().unwrap();
        assert_eq!(names[0]["name"], "/home/user/out/absolute");
        assert!(
            names
                .iter()
                .all(|entry| !entry["why"].as_str().unwrap().is_empty())
        );
        let out = client.line(&id, "ls -A out && cat out/kept").await;
        assert_eq!(out, "kept\nkept\n", "{who}");
        let inside = client
            .line(
                &id,
                "cat into/deep/fine into/to-kept; find into -type b -o -type c -o -type p",
            )
            .await;
        assert_eq!(inside, "gainedgained", "{who}");
        // Root gets the packed owner and mode; other users get only files of their own.
        let found = client.line(&id, "stat -c '%a %U' into/deep/fine").await;
        let expected = if who == "&user=root" {
            "6755 root\n"
        } else {
            "755 user\n"
        };
        assert_eq!(found, expected, "{who}");
    }
    // An existing link that leads out is not followed either.
    let response = unpack(
        &client,
        &id,
        "/home/user",
        archive(&[("was-there/x", Regular, "")]),
    )
    .await;
    assert_eq!(response.json()["skipped"], 1, "{response:?}");
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_archives_are_refused() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    let whole = archive(&[("f", EntryType::Regular, "")]);
    let huge = header(b"huge", EntryType::Regular, b"", 1 << 50);
    let impossible = header(b"huge", EntryType::Regular, b"", u64::MAX >> 1);
    let mut long = header(b"x", EntryType::GNULongName, b"", 1 << 40)
        .as_bytes()
        .to_vec();
    long.extend_from_slice(&[b'n'; 4096]);
    for (what, body) in [
        ("no archive", vec![b'x'; 2000]),
        ("a cut one", whole[..515].to_vec()),
        (
            "a huge file",
            [huge.as_bytes().as_slice(), &[0; 4096]].concat(),
        ),
        (
            "an impossible file",
            [impossible.as_bytes().as_slice(), &[0; 4096]].concat(),
        ),
        ("a name without end", long),
        ("a gzip", [&[0x1f, 0x8b, 8, 0][..], &[0; 600]].concat()),
    ] {
        let response = unpack(&client, &id, "broken", body).await;
        let expected = (400, "INVALID_REQUEST".to_owned(), "body".to_owned());
        assert_eq!(response.refusal(), expected, "{what}: {response:?}");
        let left = client.line(&id, "ls -A broken").await;
        assert_eq!(left, "", "{what}");
    }
    let path = format!("/sandboxes/{id}/files/archive?path=broken");
    let encoded = client
        .send("PUT", &path, &[("content-encoding", "gzip")], whole)
        .await;
    assert_eq!(encoded.refusal().0, 415);
    // An empty body is an empty archive.
    let empty = unpack(&client, &id, "broken", Vec::new()).await;
    assert_eq!(empty.json()["entries"], 0, "{empty:?}");
    server.close().await;
}

/// D02: a process inside turns a directory into a link and back while root unpacks into it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d02_unpacking_does_not_follow_swapped_links() {
    let server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({})).await;
    client
        .line(&id, "mkdir -p t/d out && ln -s ../out t/link")
        .await;
    let swap = json!({ "background": true, "timeout": 0,
        // A directory `d` that an upload created is removed: it would prevent the rename of the link.
        "cmd": "cd t; while :; do mv -T d e; mv -T link d; mv -T d link; rm -rf d; mv -T e d; done 2>/dev/null" });
    let path = format!("/sandboxes/{id}/commands");
    let begun = client.post(&path, &swap).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    let names: Vec<String> = (0..300).map(|number| format!("d/f{number}")).collect();
    let entries: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), EntryType::Regular, ""))
        .collect();
    let body = archive(&entries);
    let mut refused = 0;
    for _ in 0..10 {
        let response = unpack(&client, &id, "/home/user/t&authority=root", body.clone()).await;
        assert_eq!(response.status, 200, "{response:?}");
        refused += response.json()["skipped"].as_u64().unwrap();
    }
    assert_eq!(
        client.line(&id, "ls -A out").await,
        "",
        "{refused} were refused"
    );
    server.close().await;
}
