//! Watching directories: every kind of event, trees that grow and move, and the event that reports lost events.

mod million;
mod storms;

use std::collections::BTreeMap;

use atoll_model::{
    Authority, Code, ExecSpec, RunAs, SandboxId, WatchEvent, WatchOptions, WriteOptions,
};
use atoll_worker::Watch;

use crate::harness::{DEADLINE, Kind, World, in_both, stdout_text};

const USUAL: WatchOptions = WatchOptions {
    recursive: false,
    directories: 1000,
};

/// An event as one line.
fn line(event: &WatchEvent) -> String {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    match event {
        WatchEvent::Create { path, directory } => {
            format!("create {}{}", text(path), if *directory { "/" } else { "" })
        }
        WatchEvent::Write { path } => format!("write {}", text(path)),
        WatchEvent::Remove { path, .. } => format!("remove {}", text(path)),
        WatchEvent::Rename { from, to } => format!("rename {} {}", text(from), text(to)),
        WatchEvent::Chmod { path } => format!("chmod {}", text(path)),
        WatchEvent::Overflow => "overflow".into(),
        WatchEvent::Limit => "limit".into(),
        WatchEvent::End => "end".into(),
    }
}

async fn drained(watch: &mut Watch) -> Vec<String> {
    watch.drain().await.unwrap().iter().map(line).collect()
}

/// State of a directory, reconstructed from events.
#[derive(Debug, Default)]
struct Mirror {
    paths: BTreeMap<Vec<u8>, bool>,
    overflow: bool,
}

impl Mirror {
    fn apply(&mut self, events: Vec<WatchEvent>) {
        for event in events {
            match event {
                WatchEvent::Create { path, directory } => {
                    self.paths.insert(path, directory);
                }
                WatchEvent::Remove { path, .. } => self.remove(&path),
                WatchEvent::Rename { from, to } => {
                    self.remove(&to);
                    let below = [&from[..], b"/"].concat();
                    let moving = |path: &Vec<u8>| *path == from || path.starts_with(&below);
                    let moved: Vec<_> = self.paths.extract_if(.., |path, _| moving(path)).collect();
                    if moved.is_empty() {
                        self.paths.insert(to.clone(), false);
                    }
                    for (path, directory) in moved {
                        self.paths
                            .insert([&to[..], &path[from.len()..]].concat(), directory);
                    }
                }
                WatchEvent::Overflow => self.overflow = true,
                _ => {}
            }
        }
    }

    /// The first paths that only one of the two has.
    fn differs(&self, real: &BTreeMap<Vec<u8>, bool>) -> Vec<String> {
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let only = |one: &BTreeMap<Vec<u8>, bool>, other: &BTreeMap<Vec<u8>, bool>, what| {
            let lacks = one
                .iter()
                .filter(|(path, kind)| other.get(*path) != Some(*kind));
            lacks
                .map(|(path, _)| format!("{what} {}", text(path)))
                .take(5)
                .collect::<Vec<_>>()
        };
        let reported = only(&self.paths, real, "not present:");
        reported
            .into_iter()
            .chain(only(real, &self.paths, "not reported:"))
            .collect()
    }

    fn remove(&mut self, path: &[u8]) {
        let below = [path, b"/"].concat();
        self.paths
            .retain(|other, _| other != path && !other.starts_with(&below));
    }
}

/// Actual entries below a directory.
async fn real(world: &World, id: &SandboxId, path: &str) -> BTreeMap<Vec<u8>, bool> {
    let root = RunAs::root();
    let listed = world
        .runtime
        .list_files(id, &root, path.as_bytes(), 99, 1_000_000);
    let (entries, truncated) = listed.await.unwrap();
    assert!(!truncated);
    let of = |entry: atoll_model::FileEntry| {
        let directory = entry.kind == atoll_model::FileKind::Directory;
        (entry.path, directory)
    };
    entries.into_iter().map(of).collect()
}

async fn python(world: &World, id: &SandboxId, script: &str) {
    let spec = ExecSpec::argv(["python3", "-c", script]).user("root");
    stdout_text(&world.exec(id, spec).await);
}

/// Runs a script and collects its events; returns the directory that results from them.
async fn follow(world: &World, id: &SandboxId, script: &str, events: &mut Watch) -> Mirror {
    let mut mirror = Mirror::default();
    {
        let running = python(world, id, script);
        tokio::pin!(running);
        loop {
            tokio::select! {
                () = &mut running => break,
                event = events.next() => mirror.apply(event.unwrap().into_iter().collect()),
            }
        }
    }
    mirror.apply(events.drain().await.unwrap());
    mirror
}

async fn mkdir(world: &World, id: &SandboxId, path: &str) {
    let root = RunAs::root();
    let made = world
        .runtime
        .make_directory(id, &root, path.as_bytes(), 0o777, true);
    made.await.unwrap();
}

async fn watch(world: &World, id: &SandboxId, path: &str, options: WatchOptions) -> Watch {
    let root = RunAs::root();
    let watch = world.runtime.watch(id, &root, path.as_bytes(), options);
    watch.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_event_is_reported() {
    in_both(async |world, id| {
        mkdir(world, id, "/w/below").await;
        let mut events = watch(world, id, "/w", USUAL).await;
        let probe = async |args: &[&str]| {
            stdout_text(&world.probe(id, "root", args).await);
        };
        assert_eq!(drained(&mut events).await, [""; 0]);
        probe(&["touch", "/w/a"]).await;
        let mut seen = drained(&mut events).await;
        seen.retain(|line| line != "chmod a");
        assert_eq!(seen, ["create a"]);
        probe(&["write", "/w/a", "text"]).await;
        assert!(drained(&mut events).await.contains(&"write a".into()));
        probe(&["chmod", "/w/a", "600"]).await;
        assert_eq!(drained(&mut events).await, ["chmod a"]);
        probe(&["move", "/w/a", "/w/b"]).await;
        assert_eq!(drained(&mut events).await, ["rename a b"]);
        probe(&["move", "/w/b", "/w/below/b"]).await;
        assert_eq!(drained(&mut events).await, ["remove b"]);
        probe(&["move", "/w/below/b", "/w/c"]).await;
        assert_eq!(drained(&mut events).await, ["create c"]);
        probe(&["mkdir", "/w/d"]).await;
        assert_eq!(drained(&mut events).await, ["create d/"]);
        probe(&["chmod", "/w", "700"]).await;
        assert_eq!(drained(&mut events).await, ["chmod "]);
        let root = RunAs::root();
        for path in ["/w/c", "/w/d"] {
            let gone = world.runtime.remove(id, &root, path.as_bytes(), true);
            gone.await.unwrap();
        }
        assert_eq!(drained(&mut events).await, ["remove c", "remove d"]);
        // Not recursive: events below are not reported.
        probe(&["touch", "/w/below/x"]).await;
        assert_eq!(drained(&mut events).await, [""; 0]);
        // Events are also delivered without a drain.
        probe(&["touch", "/w/last"]).await;
        let next = tokio::time::timeout(DEADLINE, events.next()).await;
        let event = next.unwrap().unwrap().unwrap();
        assert_eq!(line(&event), "create last");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_of_a_new_file_is_a_create_and_a_write() {
    in_both(async |world, id| {
        mkdir(world, id, "/w").await;
        let mut events = watch(world, id, "/w", WatchOptions::recursive()).await;
        let owner = RunAs {
            authority: Authority::Root,
            ..RunAs::default()
        };
        let options = WriteOptions {
            in_place: true,
            parents: true,
            ..WriteOptions::default()
        };
        let writer = world
            .runtime
            .write_file(id, &owner, b"/w/new/file", options);
        let mut writer = writer.await.unwrap();
        writer.write(b"text").await.unwrap();
        writer.commit().await.unwrap();
        let seen = drained(&mut events).await;
        assert_eq!(seen[0], "create new/");
        for wanted in ["create new/file", "write new/file"] {
            assert!(seen.iter().any(|line| line == wanted), "{seen:?}");
        }
        let created = seen.iter().filter(|line| *line == "create new/file");
        assert_eq!(created.count(), 1, "{seen:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwatchable_paths_are_refused() {
    in_both(async |world, id| {
        mkdir(world, id, "/w/closed").await;
        let (runtime, root) = (&world.runtime, RunAs::root());
        runtime.chmod(id, &root, b"/w/closed", 0o700).await.unwrap();
        stdout_text(&world.probe(id, "root", &["touch", "/w/file"]).await);
        let user = RunAs::default();
        let code = async |path: &str| {
            let watch = runtime.watch(id, &user, path.as_bytes(), USUAL).await;
            watch.unwrap_err().code
        };
        assert_eq!(code("/missing").await, Code::FileNotFound);
        assert_eq!(code("/w/file").await, Code::NotADirectory);
        assert_eq!(code("/w/closed").await, Code::PermissionDenied);
        assert_eq!(code("").await, Code::InvalidRequest);
        // A directory below the top that the user cannot read is skipped.
        let watch = runtime.watch(id, &user, b"/w", WatchOptions::recursive());
        let mut events = watch.await.unwrap();
        stdout_text(&world.probe(id, "root", &["touch", "/w/closed/x"]).await);
        stdout_text(&world.probe(id, "root", &["touch", "/w/y"]).await);
        let mut seen = drained(&mut events).await;
        seen.retain(|line| !line.starts_with("chmod"));
        assert_eq!(seen, ["create y"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_directory_ends_its_watch() {
    in_both(async |world, id| {
        let root = RunAs::root();
        for moved in [false, true] {
            mkdir(world, id, "/w/below").await;
            let mut events = watch(world, id, "/w", WatchOptions::recursive()).await;
            if moved {
                stdout_text(&world.probe(id, "root", &["move", "/w", "/elsewhere"]).await);
            } else {
                world.runtime.remove(id, &root, b"/w", true).await.unwrap();
            }
            let mut seen = drained(&mut events).await;
            assert_eq!(seen.pop().as_deref(), Some("end"), "{seen:?}");
            assert_eq!(seen.is_empty(), moved);
            assert_eq!(events.next().await.unwrap(), None);
            assert_eq!(drained(&mut events).await, [""; 0]);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_returns_events_of_an_ended_command() {
    in_both(async |world, id| {
        mkdir(world, id, "/w/a/b/c").await;
        let mut events = watch(world, id, "/w", WatchOptions::recursive()).await;
        for number in 0..40 {
            let path = format!("a/b/c/{number}");
            stdout_text(
                &world
                    .probe(id, "root", &["touch", &format!("/w/{path}")])
                    .await,
            );
            let seen = drained(&mut events).await;
            assert!(seen.contains(&format!("create {path}")), "{seen:?}");
        }
    })
    .await;
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_watch_leaves_nothing() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    mkdir(&world, &id, "/w").await;
    let pids = || world.runtime.usage(&id).unwrap().pids;
    let (before, open) = (1, descriptors());
    atoll_testkit::wait_for("the helper that made it to end", DEADLINE, || {
        pids() == before
    });
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(watch(&world, &id, "/w", USUAL).await);
    }
    assert_eq!(pids(), before + 20);
    drop(watches);
    atoll_testkit::wait_for("the helpers to end", DEADLINE, || pids() == before);
    assert!(descriptors() <= open, "{} {open}", descriptors());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandbox_has_sixty_four_watches_and_reuses_freed_ones() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let caller = RunAs::default();
    let watch = || world.runtime.watch(&id, &caller, b"/tmp", USUAL);
    let mut all = Vec::new();
    for _ in 0..64 {
        all.push(watch().await.unwrap());
    }
    let refused = watch().await.unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert!(refused.remedy.is_some());
    all.pop();
    watch().await.unwrap();
    drop(all);
    world.close().await;
}
