//! Selection of the server, the key and the sandbox for a command.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use atoll_testkit::Scratch;
use serde_json::Value;

use super::{Bad, Line as _, atoll, done, operator, plain};
use crate::api::Server;
use crate::cli::output_text;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_is_verified_and_saved_for_its_owner_only() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let (url, key) = (
        format!("http://{}", server.address()),
        server.client().key.unwrap(),
    );
    let here = |args: &[&str], input: &str| {
        let mut command = plain(args);
        command.env("XDG_CONFIG_HOME", scratch.path());
        done(command, input.as_bytes())
    };
    let wrong = here(&["login", &url], "atl_0000\n");
    assert_eq!(wrong.status.code(), Some(3), "{}", output_text(&wrong));
    for words in ["check that the key", "`atoll key create NAME`"] {
        assert!(
            output_text(&wrong).contains(words),
            "{}",
            output_text(&wrong)
        );
    }
    let keyless = here(&["login", &url, "--no-key"], "");
    assert_eq!(keyless.status.code(), Some(3), "{}", output_text(&keyless));
    assert!(
        output_text(&keyless).contains("leave out --no-key"),
        "{}",
        output_text(&keyless)
    );
    let file = scratch.join("atoll/config.toml");
    assert!(!file.exists());
    let right = here(&["login", &url, "--profile", "here"], &format!("{key}\n"));
    assert_eq!(right.status.code(), Some(0), "{}", output_text(&right));
    assert_eq!(String::from_utf8_lossy(&right.stdout), "");
    assert!(!output_text(&right).contains(&key));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("default = \"here\"") && text.contains("[profiles.here]"),
        "{text}"
    );
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(output_text(&here(&["sandbox", "ls", "-q"], "")), "exit 0");
    let unknown = here(&["sandbox", "ls", "--profile", "there"], "");
    assert_eq!(unknown.status.code(), Some(4), "{}", output_text(&unknown));
    assert!(
        output_text(&unknown).contains("there are: here"),
        "{}",
        output_text(&unknown)
    );
    // The profile is removed, and the others remain.
    let login = here(&["login", &url, "--profile", "next"], &format!("{key}\n"));
    assert_eq!(login.status.code(), Some(0), "{}", output_text(&login));
    let logout = here(&["logout"], "");
    assert_eq!(logout.status.code(), Some(0), "{}", output_text(&logout));
    assert!(output_text(&logout).contains("--profile still finds: here"));
    assert!(!std::fs::read_to_string(&file).unwrap().contains("next"));
    let lost = here(&["sandbox", "ls", "--profile", "next"], "");
    assert_eq!(lost.status.code(), Some(4), "{}", output_text(&lost));
    let again = here(&["logout"], "");
    assert_eq!(again.status.code(), Some(4), "{}", output_text(&again));
    let named = here(&["logout", "--profile", "here"], "");
    assert_eq!(named.status.code(), Some(0), "{}", output_text(&named));
    assert!(!std::fs::read_to_string(&file).unwrap().contains(&key));
    // The same over a connection that breaks.
    let line = Bad::new(&server, 23);
    let away = format!("http://{}", line.address());
    for _ in 0..8 {
        let login = here(&["login", &away, "--profile", "away"], &format!("{key}\n"));
        assert_eq!(login.status.code(), Some(0), "{}", output_text(&login));
    }
    assert!(line.cutter.cuts() > 1, "{} cuts", line.cutter.cuts());
    drop(line);
    std::fs::write(&file, "default = 7").unwrap();
    let broken = here(&["sandbox", "ls"], "");
    assert_eq!(broken.status.code(), Some(2), "{}", output_text(&broken));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_certificate_requires_a_trusted_ca() {
    let scratch = Scratch::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (scratch.join("cert.pem"), scratch.join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let flags = [
        "--tls-cert",
        certificate.to_str().unwrap(),
        "--tls-key",
        key.to_str().unwrap(),
    ];
    let server = Server::start_with(&flags).await;
    let made = done(
        operator(&server, &["sandbox", "create", "--name", "web"]),
        b"",
    );
    assert!(made.status.success(), "{}", output_text(&made));
    let (_, port) = server.address().split_once(':').unwrap();
    let mut command = atoll(&server, &["exec", "web", "cat"]);
    command.env("ATOLL_URL", format!("https://localhost:{port}"));
    let unknown = done(command, b"");
    assert_eq!(
        unknown.status.code(),
        Some(125),
        "{}",
        output_text(&unknown)
    );
    assert!(
        output_text(&unknown).contains("ATOLL_CA_FILE"),
        "{}",
        output_text(&unknown)
    );
    let mut command = atoll(&server, &["exec", "web", "cat"]);
    command.env("ATOLL_URL", format!("https://localhost:{port}"));
    command.env("ATOLL_CA_FILE", &certificate);
    assert_eq!(output_text(&done(command, b"hidden")), "hiddenexit 0");
    // The SDK for Python trusts the same.
    let python = |authorities: Option<&Path>| {
        let mut command = Command::new(crate::sdk::python::tools("sdk-python").join("bin/python"));
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdks/python/src");
        let program =
            "import atoll; print(atoll.Sandbox.connect('web').commands.run('echo hidden').stdout)";
        command.args(["-B", "-c", program]).env("PYTHONPATH", sdk);
        command.env("ATOLL_URL", format!("https://localhost:{port}"));
        command.env("ATOLL_API_KEY", server.client().key.unwrap());
        command.envs(authorities.map(|file| ("ATOLL_CA_FILE", file)));
        output_text(&done(command, b""))
    };
    let unknown = python(None);
    assert!(unknown.contains("trusted with ATOLL_CA_FILE"), "{unknown}");
    assert!(python(Some(&certificate)).starts_with("hidden\n"));
    let none = python(Some(&scratch.join("nothing")));
    assert!(none.contains("look at ATOLL_CA_FILE"), "{none}");
    let gone = done(operator(&server, &["sandbox", "rm", "web"]), b"");
    assert!(gone.status.success(), "{}", output_text(&gone));
    server.end_and_clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_override_the_environment_and_saved_profiles() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let url = format!("http://{}", server.address());
    let key = server.client().key.unwrap();
    let wrong = format!("atl_{}", "0".repeat(64));
    let nowhere = "http://127.0.0.1:1";
    let here = |args: &[&str], around: &[(&str, &str)]| {
        let mut command = plain(args);
        command.env("XDG_CONFIG_HOME", scratch.path());
        command.env("ATOLL_DATA_DIR", crate::harness::data());
        command.envs(around.iter().copied());
        done(command, b"")
    };
    std::fs::create_dir(scratch.join("atoll")).unwrap();
    let profiles = format!(
        "default = \"dead\"\n[profiles.dead]\nurl = \"{nowhere}\"\n\
         [profiles.here]\nurl = \"{url}\"\napi_key = \"{key}\"\n"
    );
    std::fs::write(scratch.join("atoll/config.toml"), profiles).unwrap();
    let ls = ["sandbox", "ls", "-q"];
    let named = ["sandbox", "ls", "-q", "--profile", "here"];
    let at_url = ["sandbox", "ls", "-q", "--url", &url];
    let (around, odd) = (("ATOLL_URL", url.as_str()), ("ATOLL_URL", nowhere));
    let (right, other) = (
        ("ATOLL_API_KEY", key.as_str()),
        ("ATOLL_API_KEY", wrong.as_str()),
    );
    for (args, around, code) in [
        (&ls[..], &[][..], 7),
        (&ls, &[around, right], 0),
        (&ls, &[around], 3),
        (&ls, &[odd, right], 7),
        (&named, &[], 0),
        (&named, &[odd, other], 0),
        (&at_url, &[odd, right], 0),
        (&at_url, &[odd, other], 3),
    ] {
        let output = here(args, around);
        let text = output_text(&output);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?} {around:?}: {text}"
        );
    }
    // `run` uses the configured server, unless `--local` is given.
    let hi = ["--", "echo", "hi"];
    assert!(
        output_text(&here(&[&["run"][..], &hi].concat(), &[])).contains("no server can be reached")
    );
    let local = here(&[&["run", "--local"][..], &hi].concat(), &[]);
    assert_eq!(output_text(&local), "hi\nexit 0");
    let sessions = async || server.client().get("/sessions").await.array().len();
    assert_eq!(sessions().await, 0);
    let served = here(&[&["run", "--profile", "here"][..], &hi].concat(), &[]);
    assert_eq!(output_text(&served), "hi\nexit 0");
    assert_eq!(sessions().await, 1);
    let both = here(
        &[&["run", "--local", "--profile", "here"][..], &hi].concat(),
        &[],
    );
    assert_eq!(both.status.code(), Some(125), "{}", output_text(&both));
    // The key of the environment also applies to a profile without a key.
    let bare = format!("default = \"bare\"\n[profiles.bare]\nurl = \"{url}\"\n");
    std::fs::write(scratch.join("atoll/config.toml"), bare).unwrap();
    assert_eq!(here(&ls, &[]).status.code(), Some(3));
    assert_eq!(here(&ls, &[right]).status.code(), Some(0));
    server.close().await;
}

#[test]
fn prefix_is_resolved_across_all_pages() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let row =
        |name: &str| serde_json::json!({ "sandboxID": format!("i{name:0>20}"), "alias": name });
    let pages: Vec<Vec<Value>> = (0..3)
        .map(|page| {
            (0..100)
                .map(|number| row(&format!("p{page}-{number}")))
                .collect()
        })
        .collect();
    let answering = std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request_line = String::new();
            let mut head = BufReader::new(stream.try_clone().unwrap());
            head.read_line(&mut request_line).unwrap();
            let path = request_line.split(' ').nth(1).unwrap();
            let cursor = path.strip_prefix("/sandboxes?cursor=").unwrap_or("0");
            let (status, next, body) = match cursor
                .parse::<usize>()
                .ok()
                .and_then(|at| pages.get(at))
            {
                Some(page)
                    if path.starts_with("/sandboxes") && !path.starts_with("/sandboxes/") =>
                {
                    let at: usize = cursor.parse().unwrap();
                    let next = (at < 2).then(|| format!("x-next-cursor: {}\r\n", at + 1));
                    ("200 OK", next, Value::Array(page.clone()))
                }
                _ if path == "/end" => return,
                _ => (
                    "404 Not Found",
                    None,
                    serde_json::json!({ "error": "there is no such sandbox", "code": "SANDBOX_NOT_FOUND" }),
                ),
            };
            let (next, body) = (next.unwrap_or_default(), body.to_string());
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\nconnection: close\r\n{next}content-length: {length}\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let at = |args: &[&str]| {
        let mut command = plain(args);
        command.env("ATOLL_URL", &url);
        done(command, b"")
    };
    let all = at(&["sandbox", "ls", "-q"]);
    assert_eq!(String::from_utf8_lossy(&all.stdout).lines().count(), 300);
    // On the last page, and by a unique prefix.
    let one = at(&["ports", "p2-9"]);
    for words in ["11 sandboxes begin with", "p2-9 (i", ", and 6 more"] {
        assert!(output_text(&one).contains(words), "{}", output_text(&one));
    }
    let one = at(&["ports", "p2-98"]);
    assert!(
        output_text(&one).contains("there is no such sandbox"),
        "{}",
        output_text(&one)
    );
    let none = at(&["ports", "p3"]);
    assert!(
        output_text(&none).contains("there is no sandbox \"p3\""),
        "{}",
        output_text(&none)
    );
    let mut end = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    end.write_all(b"GET /end HTTP/1.1\r\n\r\n").unwrap();
    answering.join().unwrap();
}
