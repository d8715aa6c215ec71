//! A04, A05: templates with symlinks at paths where a sandbox has mount points and its own files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use atoll_model::{SandboxId, SandboxSpec};
use atoll_testkit::{Attempt, Scratch, attempts, static_layer};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};
use atoll_worker::{Config, LocalRuntime};

use super::USERS;
use super::canary::Canary;
use crate::harness::{binary, probe_spec};

/// Expected result for a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The sandbox is not created, and the error names this mount point.
    Refused(&'static str),
    /// The sandbox is created with its own `/dev`.
    Harmless,
}
use Fate::{Harmless, Refused};

/// Path of the link, and the expected result for the template. The link points to the canary's
/// directory.
const DIRECTORIES: &[(&str, Fate)] = &[
    ("dev", Refused("/dev")),
    ("proc", Refused("/proc")),
    ("sys", Refused("/sys")),
    ("run", Refused("/run")),
    ("dev/pts", Harmless),
    ("dev/shm", Harmless),
    ("tmp", Harmless),
    ("etc", Harmless),
    ("home", Harmless),
    ("root", Harmless),
    ("var", Harmless),
];
/// The same for links that point to the canary's file.
const FILES: &[(&str, Fate)] = &[
    ("dev", Refused("/dev")),
    ("proc", Refused("/proc")),
    ("dev/null", Harmless),
    ("dev/console", Harmless),
    ("dev/pts/0", Harmless),
    ("dev/tty", Harmless),
    ("etc/resolv.conf", Harmless),
    ("etc/hosts", Harmless),
    ("etc/passwd", Harmless),
    ("etc/group", Harmless),
    ("etc/shadow", Harmless),
];

/// Adds a template with the probe and one symlink. Returns its layer.
fn hostile(
    store: &TemplateStore,
    scratch: &Scratch,
    name: &str,
    link: &str,
    target: &Path,
) -> PathBuf {
    let tree = scratch.join(format!("tree-{name}"));
    static_layer(&tree);
    let link = tree.join(link);
    fs::create_dir_all(link.parent().expect("it is below the tree")).expect("it can be made");
    symlink(target, &link).expect("it can be made");
    // The control: plain path resolution on the host reaches the canary.
    let reached = fs::canonicalize(&link).expect("it leads somewhere");
    assert!(target.ends_with(reached.strip_prefix("/").expect("absolute")));
    store
        .add(
            name,
            &Source::Directory(tree),
            &TemplateOptions::default(),
            &mut |_| {},
        )
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    store.get(name).expect("it was just made").layer
}

async fn try_out(runtime: &LocalRuntime, id: &SandboxId) {
    for user in USERS {
        let spec = probe_spec(&["a04-dev"]).user(*user);
        let exec = runtime.exec(id, spec).await.expect("it starts");
        let finished = exec.finish(b"", 1 << 20).await.expect("it can be read");
        assert!(finished.status.success(), "{finished:?}");
        let found = attempts(&String::from_utf8_lossy(&finished.stdout));
        let detail = |what: &str| {
            found
                .iter()
                .find(|it| it.what == what)
                .map(|it| it.detail.clone())
        };
        assert!(
            detail("/dev/null").is_some_and(|it| it.starts_with("char 1:3")),
            "{found:#?}"
        );
        assert!(
            detail("/dev/tty").is_some_and(|it| it.starts_with("char 5:0")),
            "{found:#?}"
        );
        assert!(
            found
                .iter()
                .any(|it| it.what == "write:/dev/null" && Attempt::worked(it)),
            "{found:#?}"
        );
        assert_eq!(
            detail("/dev/console"),
            None,
            "the template's /dev is hidden"
        );
        assert!(
            detail("/dev/pts").is_some_and(|it| it.starts_with("directory")),
            "{found:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_links_do_not_lead_to_the_host() {
    let scratch = Scratch::new();
    let canary = Canary::new();
    let config = Config {
        binary: binary(),
        ..Config::new(scratch.join("data"))
    };
    let runtime = LocalRuntime::open(config).await.expect("it opens");
    let store = TemplateStore::open(scratch.join("data/templates")).expect("it opens");
    let mut number = 0;
    for (links, target) in [
        (DIRECTORIES, &PathBuf::from(canary.directory())),
        (FILES, &PathBuf::from(canary.file())),
    ] {
        // Each link uses the host's absolute path, then a relative path with `..`.
        let climbing = Path::new("../../../../../../../../..")
            .join(target.strip_prefix("/").expect("absolute"));
        for (link, fate) in links {
            for target in [target, &climbing] {
                number += 1;
                let name = format!("hostile-{number}");
                let layer = hostile(&store, &scratch, &name, link, target);
                let kept =
                    fs::symlink_metadata(layer.join(link)).expect("the link is in the layer");
                assert!(kept.is_symlink(), "{link}");
                let spec = SandboxSpec {
                    template: name.clone(),
                    ..SandboxSpec::default()
                };
                match (runtime.create(spec).await, fate) {
                    (Ok(info), Harmless) => {
                        try_out(&runtime, &info.id).await;
                        runtime.delete(&info.id).await.expect("it can be deleted");
                    }
                    (Err(error), Refused(named)) => {
                        assert!(
                            error.message.contains(&format!("mount point {named} ")),
                            "{link}: {error}"
                        );
                    }
                    (found, _) => panic!("{link} -> {}: {found:?}, not {fate:?}", target.display()),
                }
                canary.assert_untouched(&format!("{link} -> {}", target.display()));
            }
        }
    }
    assert_eq!(runtime.list(), []);
    let group = |root: &PathBuf| root.join(format!("atoll-{}", runtime.tag()));
    let cgroups = &runtime.facts().cgroups;
    for root in cgroups.v1.values().chain(&cgroups.v2) {
        let left: Vec<PathBuf> = fs::read_dir(group(root))
            .expect("the instance has a group")
            .map(|entry| entry.expect("it can be listed").path())
            .filter(|path| path.is_dir() && !path.ends_with("keeper"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    let sandboxes = scratch
        .join("data/runs")
        .join(runtime.tag())
        .join("sandboxes");
    assert_eq!(fs::read_dir(sandboxes).expect("it is there").count(), 0);
    runtime.close().await.expect("it closes");
}
