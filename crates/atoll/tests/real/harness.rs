//! A runtime for one test, on templates that all tests share. It makes no assertions of its own: a setup step that
//! fails panics with its error.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::plan::Plan;
use atoll_model::runtime::ExecResult;
use atoll_model::{Authority, ExecSpec, RunAs, SandboxId, SandboxSpec, WriteOptions};
use atoll_testkit::{fnv64, probe, static_layer};
use atoll_worker::template::{BASE, TemplateInfo, TemplateStore};
use atoll_worker::{Config, LocalRuntime, PlanOverride};

/// Template of a test's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The host's system, with the probe at `/probe`.
    Base,
    /// Only `/probe`: no shell, no `/etc/passwd`, no directories.
    Static,
}

/// Both kinds, for tests that are independent of the template.
pub const KINDS: [Kind; 2] = [Kind::Base, Kind::Static];

/// Longer than anything a test runs on a busy machine.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// A runtime for one test.
#[derive(Debug)]
pub struct World {
    pub runtime: LocalRuntime,
}

impl World {
    /// The runtime as users have it.
    pub async fn open() -> Self {
        Self::with(None).await
    }

    /// A runtime with modified plans.
    pub async fn open_with(amend: impl Fn(&mut Plan) + Send + Sync + 'static) -> Self {
        Self::with(Some(Arc::new(amend))).await
    }

    async fn with(amend: Option<PlanOverride>) -> Self {
        tokio::task::spawn_blocking(templates).await.unwrap();
        Self::start(data(), |config| config.plan_override = amend).await
    }

    /// A runtime that is set up otherwise than by default.
    pub async fn open_as(change: impl FnOnce(&mut Config)) -> Self {
        tokio::task::spawn_blocking(templates).await.unwrap();
        Self::start(data(), change).await
    }

    /// A runtime on a data directory of the test's own, with the templates that are in it.
    pub async fn open_in(data: &Path) -> Self {
        Self::start(data.to_owned(), |_| {}).await
    }

    /// A runtime on a data directory of the test's own, with the templates that all tests share.
    pub async fn open_stored(data: &Path, change: impl FnOnce(&mut Config)) -> Self {
        tokio::task::spawn_blocking(templates).await.unwrap();
        let mut config = Config {
            binary: binary(),
            templates: self::data().join("templates"),
            ..Config::new(data)
        };
        change(&mut config);
        let runtime = LocalRuntime::open(config).await.unwrap();
        Self { runtime }
    }

    async fn start(data: PathBuf, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            binary: binary(),
            ..Config::new(data)
        };
        change(&mut config);
        let runtime = LocalRuntime::open(config).await.unwrap();
        Self { runtime }
    }

    /// A default sandbox of `base`, without the probe.
    pub async fn create(&self) -> SandboxId {
        let made = self.runtime.create(SandboxSpec::default()).await;
        made.unwrap().id
    }

    /// A sandbox with everything by default.
    pub async fn sandbox(&self, kind: Kind) -> SandboxId {
        self.sandbox_spec(kind, |_| {}).await
    }

    /// A sandbox with something changed.
    pub async fn sandbox_spec(
        &self,
        kind: Kind,
        change: impl FnOnce(&mut SandboxSpec),
    ) -> SandboxId {
        let mut spec = SandboxSpec {
            template: template(kind),
            ..SandboxSpec::default()
        };
        change(&mut spec);
        let id = self.runtime.create(spec).await.unwrap().id;
        if kind == Kind::Base {
            let options = WriteOptions {
                mode: Some(0o755),
                ..WriteOptions::default()
            };
            let root = RunAs::root();
            let write = self.runtime.write_file(&id, &root, b"/probe", options);
            let mut writer = write.await.unwrap();
            writer
                .splice_from(fs::File::open(probe()).unwrap())
                .await
                .unwrap();
            writer.commit().await.unwrap();
        }
        id
    }

    /// Runs the probe as a user and waits for its end.
    pub async fn probe(&self, id: &SandboxId, user: &str, args: &[&str]) -> ExecResult {
        self.exec(id, probe_spec(args).user(user)).await
    }

    /// Runs a command without input to its end, at most a minute.
    pub async fn exec(&self, id: &SandboxId, spec: ExecSpec) -> ExecResult {
        self.exec_with(id, spec, b"").await
    }

    /// Runs a command with this input to its end, at most a minute.
    pub async fn exec_with(&self, id: &SandboxId, mut spec: ExecSpec, input: &[u8]) -> ExecResult {
        spec.deadline.get_or_insert(DEADLINE);
        let exec = self.runtime.exec(id, spec).await.unwrap();
        exec.finish(input, 64 << 20).await.unwrap()
    }

    /// Takes everything away, which must work.
    pub async fn close(self) {
        self.runtime.close().await.unwrap();
    }
}

/// Checks a fact in a sandbox of each kind, where the user has a home.
pub async fn in_both(check: impl AsyncFn(&World, &SandboxId)) {
    let world = World::open().await;
    for kind in KINDS {
        let id = world.sandbox(kind).await;
        let owned = RunAs {
            authority: Authority::Root,
            ..RunAs::default()
        };
        let home = world.runtime.make_directory(&id, &owned, b"~", 0o755, true);
        home.await.unwrap();
        let report = ReportKind(kind);
        check(&world, &id).await;
        drop(report);
        world.runtime.delete(&id).await.unwrap();
    }
    world.close().await;
}

/// Prints on a panic for which kind a check failed.
struct ReportKind(Kind);

impl Drop for ReportKind {
    #[allow(clippy::print_stderr, reason = "the test's own output")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was in a sandbox of kind {:?}", self.0);
        }
    }
}

/// The probe with arguments.
pub fn probe_spec(args: &[&str]) -> ExecSpec {
    ExecSpec::argv(["/probe"].iter().chain(args))
}

/// Standard output of a command that must exit with 0 and an empty standard error.
#[track_caller]
pub fn stdout_text(finished: &ExecResult) -> &str {
    let text = std::str::from_utf8(&finished.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&finished.stderr);
    assert!(
        finished.status.success(),
        "{:?} {text} {complaint}",
        finished.status
    );
    assert_eq!(complaint, "");
    text
}

/// The binary that users run.
pub fn binary() -> PathBuf {
    env!("CARGO_BIN_EXE_atoll").into()
}

/// The data directory that all tests share.
pub fn data() -> PathBuf {
    let place = std::env::var_os("ATOLL_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let user = rustix::process::getuid().as_raw();
    place.join(format!("atoll-test-{user}")).join("data")
}

/// The name of a kind's template. The static one is named after its only file, so that another
/// probe is another template.
pub fn template(kind: Kind) -> String {
    match kind {
        Kind::Base => BASE.to_owned(),
        Kind::Static => format!("static-{:016x}", fnv64(&fs::read(probe()).unwrap())),
    }
}

/// Creates a directory that only root may enter.
pub fn private(path: &Path) {
    let mut directory = fs::DirBuilder::new();
    directory.recursive(true).mode(0o700).create(path).unwrap();
}

/// Creates templates that are missing or older than the code that creates them.
pub fn templates() {
    let data = data();
    private(&data);
    let lock = fs::File::create(data.join("making-templates")).unwrap();
    lock.lock().unwrap();
    let store = TemplateStore::open(data.join("templates")).unwrap();
    let known = store.list().unwrap();
    let built = fs::metadata(binary()).unwrap().mtime();
    if known.iter().any(|name| name == BASE) {
        let made = store.get(BASE).unwrap().meta.created_at;
        if made.cast_signed() < built {
            store.rebuild_base(&mut |_| {}).unwrap();
        }
    } else {
        store.ensure_base(&mut |_| {}).unwrap();
    }
    let name = template(Kind::Static);
    if !known.contains(&name) {
        add_static(&data, &name);
    }
}

/// Places a template by hand: the store would add mount points and a home to what it imports.
fn add_static(data: &Path, name: &str) {
    let new = data.join(format!("{name}.new"));
    let _ = fs::remove_dir_all(&new);
    static_layer(&new.join("layer"));
    let meta = TemplateInfo {
        id: None,
        version: 1,
        created_at: 0,
        source: "one static binary".to_owned(),
        user: atoll_model::runtime::TemplateUser::default(),
        env: std::collections::BTreeMap::new(),
        sudo: true,
        nested_user_namespaces: false,
        size: 0,
        files: 1,
    };
    fs::write(
        new.join("template.json"),
        serde_json::to_vec(&meta).unwrap(),
    )
    .unwrap();
    fs::write(new.join("lock"), "").unwrap();
    fs::rename(&new, data.join("templates").join(name)).unwrap();
}
