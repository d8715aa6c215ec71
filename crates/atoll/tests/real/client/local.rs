//! Local and remote commands: a command never acts on a server instead of this machine, or the reverse, without a
//! message.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;

use atoll_testkit::{Scratch, static_layer, wait_for};
use serde_json::json;

use super::{at, atoll, done, json as json_of, operator, plain, stdout_of, with_web};
use crate::api::Server;
use crate::cli::output_text;
use crate::harness::{self, DEADLINE};

/// A key of the server's own org.
async fn key(server: &Server, scope: &str) -> String {
    let request = json!({ "name": "test", "scope": scope });
    let made = server.client().post("/keys", &request).await.json();
    made["key"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_without_a_url_is_used_on_the_operators_socket() {
    let server = with_web().await;
    let with = |key: &str, args: &[&str]| {
        let mut command = operator(&server, args);
        command.env("ATOLL_API_KEY", key);
        let output = done(command, b"");
        (output.status.code(), output_text(&output))
    };
    let wrong = format!("atl_{}", "0".repeat(64));
    let (code, text) = with(&wrong, &["sandbox", "ls"]);
    assert_eq!(code, Some(3), "{text}");
    let reader = key(&server, "sandbox:read").await;
    let (code, text) = with(&reader, &["sandbox", "ls", "-q"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = with(&reader, &["sandbox", "create"]);
    assert_eq!(code, Some(3), "{text}");
    let (code, text) = with(&reader, &["run", "--", "true"]);
    assert_eq!(code, Some(125), "{text}");
    // Without a key the socket is the operator's.
    let created = done(operator(&server, &["sandbox", "create"]), b"");
    assert!(created.status.success(), "{}", output_text(&created));
    server.close().await;
}

#[test]
fn local_only_commands_fail_while_a_server_is_configured() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    harness::private(&data);
    let profiles = scratch.join("atoll");
    std::fs::create_dir(&profiles).unwrap();
    let here = |args: &[&str], variable: (&str, &str)| {
        let mut command = plain(args);
        command
            .env("ATOLL_DATA_DIR", &data)
            .env(variable.0, variable.1);
        let output = done(command, b"");
        (output.status.code(), output_text(&output))
    };
    let profile = "default = \"x\"\n[profiles.x]\nurl = \"http://127.0.0.1:1\"\n";
    std::fs::write(profiles.join("config.toml"), profile).unwrap();
    let home = scratch.path().to_str().unwrap();
    for args in [
        &["df"][..],
        &["gc"],
        &["backup", "copy"],
        &["backup", "restore", "copy"],
        &["template", "rebuild", "base"],
    ] {
        for (variable, source, remedy) in [
            (
                ("ATOLL_URL", "http://127.0.0.1:1"),
                "ATOLL_URL",
                "unset ATOLL_URL, or pass --local",
            ),
            (
                ("ATOLL_API_KEY", "atl_0"),
                "ATOLL_API_KEY",
                "unset ATOLL_API_KEY, or pass --local",
            ),
            (("XDG_CONFIG_HOME", home), "`atoll login`", "pass --local"),
        ] {
            let (code, text) = here(args, variable);
            assert_eq!(code, Some(2), "{args:?}: {text}");
            let message = format!("`atoll {}", args[0]);
            for words in [&message, "acts on this machine only", source, remedy] {
                assert!(text.contains(words), "{args:?}: {text}");
            }
        }
    }
    for args in [&["df", "--local"][..], &["gc", "--local"]] {
        let (code, text) = here(args, ("ATOLL_URL", "http://127.0.0.1:1"));
        assert_eq!(code, Some(0), "{text}");
    }
    let data = data.to_str().unwrap();
    let (code, text) = here(
        &["backup", "copy", "--data-dir", data],
        ("ATOLL_URL", "http://x"),
    );
    assert!(
        code == Some(4) && text.contains("no records of a server"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_commands_use_the_configured_server() {
    let server = Server::start().await;
    let scratch = Scratch::new();
    let layer = scratch.join("layer");
    static_layer(&layer);
    let special = layer.join("special");
    std::fs::write(&special, "x").unwrap();
    std::os::unix::fs::chown(&special, Some(1000), Some(1000)).unwrap();
    std::fs::set_permissions(&special, std::fs::Permissions::from_mode(0o4750)).unwrap();
    let archive = scratch.join("layer.tar.gz");
    let mut tar = Command::new("tar");
    atoll_testkit::run(tar.arg("-czf").arg(&archive).arg("-C").arg(&layer).arg("."));
    // The data directory cannot be created, so commands that act on this machine fail.
    for source in [&layer, &archive] {
        let name = format!("remote-{}", std::process::id());
        let add = ["template", "add", &name, source.to_str().unwrap()];
        let added = stdout_of(&server, &add);
        assert!(added.starts_with(&format!("template {name}: ")), "{added}");
        // Owner and mode bits are those of the source.
        let copy = harness::data().join(format!("templates/{name}/layer/special"));
        let copy = std::fs::metadata(copy).unwrap();
        assert_eq!((copy.uid(), copy.mode() & 0o7777), (1000, 0o4750));
        let again = done(atoll(&server, &add), b"");
        assert_eq!(again.status.code(), Some(5), "{}", output_text(&again));
        stdout_of(&server, &[&add[..], &["--replace"]].concat());
        assert!(stdout_of(&server, &["template", "ls"]).contains(&name));
        let all = json_of(&server, &["template", "ls", "--json"]);
        let names = all.as_array().unwrap().iter().map(|one| &one["templateID"]);
        assert!(names.into_iter().any(|one| *one == json!(name)), "{all}");
        let run = ["run", "--template", &name, "/probe", "echo", "hi"];
        assert_eq!(stdout_of(&server, &run), "hi\n");
        let removed = format!("removed template {name}\n");
        assert_eq!(stdout_of(&server, &["template", "rm", &name]), removed);
    }
    let source = layer.to_str().unwrap();
    let env = done(
        atoll(&server, &["template", "add", "x", source, "-e", "A=b"]),
        b"",
    );
    assert_eq!(env.status.code(), Some(2), "{}", output_text(&env));
    assert!(
        output_text(&env).contains("add --local"),
        "{}",
        output_text(&env)
    );
    // A team's key has the rights of that key.
    let mut command = at(&server, server.address(), &["template", "add", "x", source]);
    command.env("ATOLL_API_KEY", key(&server, "sandbox:*").await);
    let refused = done(command, b"");
    assert_eq!(refused.status.code(), Some(3), "{}", output_text(&refused));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn df_sums_the_prepared_sandboxes() {
    let server = with_web().await;
    let df = |args: &[&str]| {
        let output = done(operator(&server, &[&["df"], args].concat()), b"");
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    wait_for("the pool", DEADLINE, || df(&[]).contains("pool ("));
    let rows = |text: &str| text.lines().filter(|line| line.contains(" plain ")).count();
    let sums = df(&[]);
    assert_eq!(rows(&sums), 2, "{sums}");
    assert!(sums.contains("used by 1 sandbox and "), "{sums}");
    wait_for("several prepared ones", DEADLINE, || {
        rows(&df(&["--all"])) > 2
    });
    server.close().await;
}
