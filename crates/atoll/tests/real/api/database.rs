//! A server with a missing or damaged database, or that of another server, refuses to start and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use atoll_testkit::{Scratch, run_within};
use serde_json::{Value, json};

use super::Server;
use crate::cli::{atoll, output_text};
use crate::harness::DEADLINE;

/// The output of a start that is refused.
pub fn refused(data: &Path) -> String {
    let mut serve = atoll(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
    serve.arg(data).args(["--metrics-listen", "off"]).env(
        "ATOLL_TEMPLATES_DIR",
        crate::harness::data().join("templates"),
    );
    let output = tokio::task::block_in_place(|| run_within(&mut serve, DEADLINE, b""));
    assert!(!output.status.success(), "{}", output_text(&output));
    output_text(&output)
}

/// Result of one check of `atoll doctor`.
pub fn doctor(data: &Path, feature: &str) -> Value {
    let mut doctor = atoll(&["doctor", "--json"]);
    doctor.env("ATOLL_DATA_DIR", data).env(
        "ATOLL_TEMPLATES_DIR",
        crate::harness::data().join("templates"),
    );
    let output = tokio::task::block_in_place(|| run_within(&mut doctor, DEADLINE, b""));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["feature"] == feature);
    found.cloned().unwrap_or_default()
}

/// Every file below a directory, but for what sandboxes wrote and the lock, with when it changed and how long it is.
fn files(directory: &Path) -> BTreeMap<PathBuf, (i64, i64, u64)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let (path, about) = (entry.path(), entry.metadata().unwrap());
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if ["lock", "upper", "work"].contains(&name.as_str()) {
            continue;
        }
        if about.is_dir() {
            all.extend(files(&path));
        }
        all.insert(path, (about.ctime(), about.ctime_nsec(), about.len()));
    }
    all
}

fn remove_database(data: &Path) {
    for name in ["atoll.db", "atoll.db-wal", "atoll.db-shm"] {
        let _ = fs::remove_file(data.join(name));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_database_stops_the_start_without_changes() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo kept > ~/f").await;
    server.end();
    let data = server.data();
    let database = data.join("atoll.db");
    let good = fs::read(&database).unwrap();
    let (put_back, sql) = (
        || fs::write(&database, &good).unwrap(),
        |text| server.sql(text),
    );
    type Damage<'a> = (&'a str, &'a dyn Fn());
    let newer = "INSERT INTO _sqlx_migrations VALUES (9999, 'x', CURRENT_TIMESTAMP, 1, x'00', 0)";
    let damages: [Damage<'_>; 6] = [
        ("is missing", &|| remove_database(&data)),
        ("is empty", &|| fs::write(&database, "").unwrap()),
        ("not a regular file", &|| {
            fs::remove_file(&database).unwrap();
            fs::create_dir(&database).unwrap();
        }),
        ("file is not a database", &|| {
            fs::write(&database, vec![b'x'; good.len()]).unwrap();
        }),
        ("written by a newer version", &|| sql(newer)),
        ("belongs to instance inst_aaaaabbbbbcccccddddd", &|| {
            sql("UPDATE instance SET id = 'inst_aaaaabbbbbcccccddddd'");
        }),
    ];
    for (words, damage) in damages {
        damage();
        let before = files(&data);
        let output = refused(&data);
        for words in [words, "atoll backup restore", "Nothing was changed"] {
            assert!(output.contains(words), "{words}: {output}");
        }
        assert_eq!(files(&data), before, "{words}");
        let found = doctor(&data, "database");
        assert_eq!(found["ok"], false, "{found}");
        assert!(found["found"].as_str().unwrap().contains(words), "{found}");
        if database.is_dir() {
            fs::remove_dir(&database).unwrap();
        }
        put_back();
    }
    assert_eq!(doctor(&data, "database")["ok"], true);
    server.kill_and_start();
    server.assert_continues(&id).await;
    server.close().await;
}

/// Overwrites the first page of a table with invalid data.
fn overwrite_table(database: &Path, table: &str) {
    const DAMAGE: &str = "
import sqlite3, sys
path, table = sys.argv[1:]
known = sqlite3.connect(path)
[page] = known.execute('SELECT rootpage FROM sqlite_master WHERE name = ?', [table]).fetchone()
[size] = known.execute('PRAGMA page_size').fetchone()
known.close()
with open(path, 'r+b') as file:
    file.seek((page - 1) * size)
    file.write(b'x' * size)
";
    let mut python = std::process::Command::new("python3");
    atoll_testkit::run(python.args(["-c", DAMAGE]).arg(database).arg(table));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_database_stops_the_start_and_spares_sandboxes() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&id, "echo kept > ~/f").await;
    server.end();
    let data = server.data();
    let database = data.join("atoll.db");
    let good = fs::read(&database).unwrap();
    for table in ["sandboxes", "keys", "events"] {
        overwrite_table(&database, table);
        let before = files(&data);
        let output = refused(&data);
        for words in [
            "damaged",
            table,
            "atoll backup restore",
            "Nothing was changed",
        ] {
            assert!(output.contains(words), "{words}: {output}");
        }
        assert_eq!(files(&data), before, "{table}");
        assert_eq!(doctor(&data, "database")["ok"], false);
        fs::write(&database, &good).unwrap();
    }
    server.kill_and_start();
    server.assert_continues(&id).await;
    server.close().await;
}

/// A data directory of a version that recorded no instance, with the database of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_without_any_sandbox_row_is_refused() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    server.end();
    let data = server.data();
    let (database, instance) = (data.join("atoll.db"), data.join("instance-id"));
    let good = fs::read(&database).unwrap();
    let foreign = "UPDATE instance SET id = 'inst_aaaaabbbbbcccccddddd'";
    for statements in [
        "DELETE FROM instance; DELETE FROM events; DELETE FROM sandboxes",
        "DELETE FROM events; DELETE FROM sandboxes",
        &format!("{foreign}; DELETE FROM events; DELETE FROM sandboxes"),
    ] {
        let _ = fs::remove_file(&instance);
        server.sql(statements);
        let before = files(&data);
        let output = refused(&data);
        for words in ["has no row", "--adopt-orphans", "Nothing was changed"] {
            assert!(output.contains(words), "{words}: {output}");
        }
        assert_eq!(files(&data), before);
        fs::write(&database, &good).unwrap();
    }
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.line(&id, "echo on").await, "on\n");
    server.close().await;
}

/// A power cut, or the end of a start with `--adopt-orphans` at the wrong moment, leaves a key that no row knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_key_missing_from_the_database_is_replaced() {
    let mut server = Server::start().await;
    server.end();
    let data = server.data();
    let lost = fs::read_to_string(data.join("admin.key")).unwrap();
    server.sql("DELETE FROM keys");
    server.kill_and_start();
    let made = fs::read_to_string(data.join("admin.key")).unwrap();
    assert_ne!(made, lost);
    assert_eq!(
        fs::read_to_string(data.join("admin.key.old")).unwrap(),
        lost
    );
    assert_eq!(server.client().get("/sandboxes").await.status, 200);
    // The key file is not replaced later, and not created again after the operator removed it.
    server.kill_and_start();
    assert_eq!(fs::read_to_string(data.join("admin.key")).unwrap(), made);
    fs::remove_file(data.join("admin.key")).unwrap();
    server.kill_and_start();
    assert!(!data.join("admin.key").exists());
    fs::write(data.join("admin.key"), made).unwrap();
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_without_an_instance_id_is_adopted() {
    let mut server = Server::start().await;
    let client = server.client();
    let id = client.sandbox(&json!({ "timeout": 0 })).await;
    server.end();
    let instance = server.data().join("instance-id");
    let before = fs::read_to_string(&instance).unwrap();
    fs::remove_file(&instance).unwrap();
    server.sql("DELETE FROM instance; DELETE FROM clock");
    server.kill_and_start();
    let client = server.client();
    assert_eq!(client.line(&id, "echo on").await, "on\n");
    let after = fs::read_to_string(&instance).unwrap();
    assert_ne!(after, before);
    // A database of an old version has no instance id; the server stores this one.
    server.end();
    server.sql("DELETE FROM instance");
    server.kill_and_start();
    assert_eq!(fs::read_to_string(&instance).unwrap(), after);
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopt_orphans_flag_adopts_orphaned_sandboxes() {
    let mut server = Server::start().await;
    let client = server.client();
    let request = json!({ "timeout": 1000, "alias": "web", "memoryMB": 300 });
    let (runs, stopped) = (
        client.sandbox(&request).await,
        client.sandbox(&json!({})).await,
    );
    client.line(&runs, "echo kept > ~/f").await;
    client.line(&stopped, "echo too > ~/f").await;
    let path = format!("/sandboxes/{stopped}/stop");
    assert_eq!(client.post(&path, &json!({})).await.status, 200);
    server.end();
    let data = server.data();
    let lost = fs::read_to_string(data.join("admin.key")).unwrap();
    remove_database(&data);
    server.kill_and_start_with(&["--adopt-orphans"]);
    let stranger = server.client().with_key(Some(lost.trim()));
    assert_eq!(stranger.get("/sandboxes").await.status, 401);
    // The adopted sandboxes work like others.
    for flags in [["--adopt-orphans"].as_slice(), &[]] {
        server.kill_and_start_with(flags);
        let client = server.client();
        let info = client.get(&format!("/sandboxes/{runs}")).await.json();
        assert_eq!(
            (&info["state"], &info["memoryMB"], &info["endAt"]),
            (&json!("running"), &json!(300), &Value::Null),
            "{info}"
        );
        assert_eq!(client.line(&runs, "cat ~/f").await, "kept\n");
        let info = client.get(&format!("/sandboxes/{stopped}")).await.json();
        assert_eq!(info["state"], "stopped", "{info}");
        assert!(info["deleteAt"].is_string(), "{info}");
    }
    let client = server.client();
    let path = format!("/sandboxes/{stopped}/start");
    assert_eq!(client.post(&path, &json!({})).await.status, 200);
    assert_eq!(client.line(&stopped, "cat ~/f").await, "too\n");
    assert!(!data.join("orphaned").join(&runs).exists());
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_replaces_a_lost_database() {
    let mut server = Server::start().await;
    let client = server.client();
    let old = client.sandbox(&json!({ "timeout": 0 })).await;
    let scratch = Scratch::new();
    let (data, backup) = (server.data(), scratch.join("backup"));
    let run = |words: &[&str]| {
        let mut command = atoll(words);
        command.arg(&backup).arg("--data-dir").arg(&data);
        tokio::task::block_in_place(|| run_within(&mut command, DEADLINE, b""))
    };
    let made = run(&["backup"]);
    assert!(made.status.success(), "{}", output_text(&made));
    // A restore under a running server is refused.
    let busy = run(&["backup", "restore"]);
    assert!(
        output_text(&busy).contains("is served by process"),
        "{}",
        output_text(&busy)
    );
    let young = client.sandbox(&json!({ "timeout": 0 })).await;
    client.line(&young, "echo kept > ~/f").await;
    server.end();
    let former = fs::read(data.join("atoll.db")).unwrap();
    // A leftover write-ahead log that would damage the restored database.
    fs::write(data.join("atoll.db-wal"), "stale").unwrap();
    // So is a restore into the data directory of another instance.
    let instance = data.join("instance-id");
    let ours = fs::read_to_string(&instance).unwrap();
    fs::write(&instance, "inst_aaaaabbbbbcccccddddd").unwrap();
    let foreign = output_text(&run(&["backup", "restore"]));
    assert!(
        foreign.contains("belongs to instance inst_aaaaabbbbbcccccddddd"),
        "{foreign}"
    );
    assert!(fs::read(data.join("atoll.db")).unwrap() == former);
    fs::write(&instance, ours).unwrap();
    let restored = run(&["backup", "restore"]);
    assert!(restored.status.success(), "{}", output_text(&restored));
    assert!(fs::read(data.join("replaced-1/atoll.db")).unwrap() == former);
    assert!(!data.join("atoll.db-wal").exists());
    server.kill_and_start_with(&["--adopt-orphans"]);
    let client = server.client();
    assert_eq!(client.line(&old, "echo on").await, "on\n");
    assert_eq!(client.line(&young, "cat ~/f").await, "kept\n");
    server.close().await;
}
