//! Commands that change sandboxes and the files in them.

use super::{json, stdout_of, tried, with_web};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_patched() {
    let server = with_web().await;
    let patch = |options: &[&str]| {
        let words = ["sandbox", "patch", "web", "--json"];
        json(&server, &[&words[..], options].concat())
    };
    let changed = patch(&["--memory", "512M", "--cpus", "0.5", "--pids", "100"]);
    assert_eq!(
        (&changed["memoryMB"], &changed["cpuCount"], &changed["pids"]),
        (&512.into(), &0.5.into(), &100.into())
    );
    let changed = patch(&["--timeout", "1h", "--on-timeout", "pause"]);
    assert_eq!(
        (
            &changed["timeout"],
            &changed["onTimeout"],
            &changed["memoryMB"]
        ),
        (&3600.into(), &"pause".into(), &512.into())
    );
    let changed = patch(&[
        "--idle-timeout",
        "10m",
        "--on-idle",
        "stop",
        "--no-auto-resume",
    ]);
    assert_eq!(
        (
            &changed["idleTimeout"],
            &changed["onIdle"],
            &changed["autoResume"]
        ),
        (&600.into(), &"stop".into(), &false.into())
    );
    assert_eq!(patch(&["--auto-resume"])["autoResume"], true);
    assert_eq!(
        patch(&["--metadata", "a=1", "--metadata", "b=2"])["metadata"]["b"],
        "2"
    );
    let changed = patch(&["--no-metadata", "--timeout", "0"]);
    assert_eq!(changed["metadata"], serde_json::json!({}));
    assert!(changed["endAt"].is_null(), "{changed}");
    let id = stdout_of(&server, &["sandbox", "set", "web", "--name", "site"]);
    assert_eq!(
        json(&server, &["get", "site", "--json"])["sandboxID"],
        id.trim_end()
    );
    stdout_of(&server, &["sandbox", "patch", "site", "--no-name"]);
    assert!(json(&server, &["get", id.trim_end(), "--json"])["alias"].is_null());

    let id = id.trim_end();
    assert_eq!(stdout_of(&server, &["sandbox", "network", id]), "none\n");
    let network = ["sandbox", "network", id, "--net", "none", "--json"];
    assert_eq!(json(&server, &network)["network"], "none");
    let set = [
        "sandbox",
        "network",
        id,
        "--net",
        "internet",
        "--allow",
        "1.1.1.1:443",
        "--allow",
        "9.9.9.0/24",
    ];
    let rules = "internet\nallow   1.1.1.1:443 9.9.9.0/24\nothers  denied\n";
    for words in [&set[..], &["sandbox", "network", id]] {
        assert_eq!(stdout_of(&server, words), rules);
    }
    let read = json(&server, &["sandbox", "network", id, "--json"]);
    let allow = serde_json::json!(["1.1.1.1:443", "9.9.9.0/24"]);
    assert_eq!(
        (&read["allow"], &read["deny"], &read["default"]),
        (&allow, &serde_json::json!([]), &"deny".into())
    );
    // The output of `get` is valid input for `set`, also with a default that the lists do not contain.
    let client = server.client();
    let path = format!("/sandboxes/{id}/network");
    let closed =
        serde_json::json!({ "network": "internet", "allow": [], "deny": [], "default": "deny" });
    for rules in [read, closed] {
        let put = client
            .send(
                "PUT",
                &path,
                &[("content-type", "application/json")],
                rules.to_string(),
            )
            .await;
        assert_eq!(put.status, 200, "{put:?}");
        assert_eq!(client.get(&path).await.json(), rules);
    }
    assert_eq!(
        stdout_of(&server, &["sandbox", "network", id]),
        "internet\nothers  denied\n"
    );
    for (options, code, words) in [
        (&[][..], 2, "required"),
        (&["--name", "Not A Name"], 2, "--name"),
        (&["--metadata", "odd"], 2, "write --metadata NAME=VALUE"),
        (&["--memory", "1000000"], 2, "whole mebibytes"),
        (&["--name", "x", "--no-name"], 2, "cannot be used with"),
    ] {
        let (text, got) = tried(&server, &[&["sandbox", "patch", id], options].concat());
        assert_eq!(got, Some(code), "{options:?}: {text}");
        assert!(text.contains(words), "{options:?}: {text}");
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_found_moved_copied_and_chowned() {
    let server = with_web().await;
    let sh = |line: &str| stdout_of(&server, &["exec", "web", "--", "sh", "-c", line]);
    let files = |words: &[&str]| stdout_of(&server, &[&["files"], words].concat());
    sh("mkdir -p src old; echo 'x = 1 # TODO' > src/a.py; echo '# TODO' > src/b.txt; echo c > c");
    assert_eq!(files(&["search", "web", "--name", "*.py"]), "src/a.py\n");
    let found = files(&["grep", "web", "src", "--content", "TODO"]);
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["src/a.py:1: x = 1 # TODO", "src/b.txt:1: # TODO"]);
    let both = [
        "search",
        "web",
        "--name",
        "*.py",
        "--content",
        "TODO",
        "--json",
    ];
    let found = json(&server, &[&["files"], &both[..]].concat());
    assert_eq!(found["results"].as_array().unwrap().len(), 1, "{found}");

    // Into an existing directory, or to a new name.
    files(&["mv", "web", "c", "old"]);
    files(&["mv", "web", "old/c", "d"]);
    files(&["cp", "web", "src", "old/"]);
    files(&["cp", "web", "d", "e"]);
    assert_eq!(sh("cat d e; ls old/src"), "c\nc\na.py\nb.txt\n");
    let (text, code) = tried(&server, &["files", "mv", "web", "d", "e"]);
    assert_eq!(code, Some(5), "{text}");
    files(&["rename", "web", "--force", "d", "e"]);
    assert_eq!(sh("ls"), "e\nold\nsrc\n");

    files(&["chmod", "web", "640", "e", "src/a.py"]);
    assert_eq!(sh("stat -c %a e src/a.py"), "640\n640\n");
    files(&[
        "chown",
        "web",
        "root:root",
        "/home/user/e",
        "--user",
        "root",
    ]);
    let entry = json(&server, &["files", "stat", "web", "e", "--json"]);
    assert_eq!((&entry["uid"], &entry["gid"]), (&0.into(), &0.into()));
    assert!(files(&["stat", "web", "e"]).contains("640"));
    for (words, code, part) in [
        (&["search", "web"][..], 2, "required"),
        (
            &["search", "web", "nothing", "--name", "x"],
            4,
            "check the path",
        ),
        (&["mv", "web", "nothing", "x"], 4, "check the path"),
        (&["mv", "web", "..", "old"], 2, "whole new path"),
        (&["chmod", "web", "u+x", "src"], 2, "write them in octal"),
        (
            &["chmod", "web", "600", "nothing", "src/b.txt"],
            4,
            "check the path",
        ),
        (&["chown", "web", ":", "src"], 2, "OWNER:GROUP"),
        (
            &["chown", "web", "no-such-user", "src", "--user", "root"],
            2,
            "no-such-user",
        ),
    ] {
        let (text, got) = tried(&server, &[&["files"], words].concat());
        assert_eq!(got, Some(code), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
    // A failure does not stop the others.
    assert_eq!(sh("stat -c %a src/b.txt"), "600\n");
    server.close().await;
}
