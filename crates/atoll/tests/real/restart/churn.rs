//! A server is killed at 200 points of opening, create, claim, exec, pause, resume, stop, start and delete (G01,
//! G09): what it had confirmed holds afterwards, with the same processes, and nothing else is left.
//!
//! The server kills itself a moment after it began the chosen step, so that the kill hits that step. Other
//! operations run at the same time.

mod operations;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_model::{ExecSpec, SandboxId, SandboxSpec, SandboxState};
use atoll_testkit::{mounts, wait_for};
use atoll_worker::{Config, LocalRuntime};

use super::{Place, Random, children, keeper, prepared, serve as start, word};
use crate::harness::{DEADLINE, templates};
use operations::Book;

const KILLS: u64 = 200;
/// Operations that are interrupted, with equal frequency, and the minimum number of interruptions of each.
const KINDS: [&str; 9] = [
    "open", "create", "claim", "exec", "pause", "resume", "stop", "start", "delete",
];
const LEAST: usize = 8;
/// Number of concurrent tasks that change sandboxes, and of sandboxes of each.
const HANDS: usize = 3;
const MOST: usize = 2;

/// When the server dies: a delay after the start of a chosen step of a kind.
struct Fate {
    kind: String,
    steps: AtomicU64,
    delay: Duration,
}

impl Fate {
    fn read(random: &mut Random) -> Self {
        // Kill times from the start to after the end, uniform on a logarithmic scale.
        let most = 60 << random.below(10);
        Self {
            kind: word("KIND"),
            steps: AtomicU64::new(1 + random.below(3)),
            delay: Duration::from_micros(random.below(most)),
        }
    }

    fn begins(&self, kind: &str) {
        if kind != self.kind || self.steps.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        let delay = self.delay;
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        });
    }
}

/// Changes sandboxes until it dies, telling before and after.
pub(super) async fn serve(data: &Path) {
    let book = Book::new(Path::new(&word("FILE")));
    let mut random = Random::new(word("SEED").parse().unwrap());
    let fate = Fate::read(&mut random);
    if fate.kind == "open" {
        fate.steps.store(1, Ordering::SeqCst);
    }
    book.tell("try server open");
    fate.begins("open");
    let runtime = LocalRuntime::open(prepared(data)).await.unwrap();
    // Everything the last server confirmed must hold; from here on the log records what this process confirms.
    let log = book.read();
    log.check(&runtime);
    let all = runtime.list();
    for id in log.ids() {
        if !all.iter().any(|info| info.id.as_str() == id) {
            book.tell(&format!("deleted {id}"));
        }
    }
    for info in &all {
        book.is(&runtime, &info.id);
    }
    book.tell("deleted server");
    if fate.kind == "claim" {
        let until = tokio::time::Instant::now() + DEADLINE;
        while runtime.pool_sizes().0 == 0 {
            assert!(tokio::time::Instant::now() < until, "nothing gets warm");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let hands = (0..HANDS).map(|number| {
        let ids = all.iter().skip(number).step_by(HANDS);
        Hand {
            runtime: runtime.clone(),
            ids: ids.map(|info| info.id.clone()).collect(),
            random: Random::new(random.below(u64::MAX)),
            name: format!("hand-{number}"),
            book: book.clone(),
        }
    });
    let fate = &fate;
    futures_util::future::join_all(hands.map(|mut hand| async move {
        loop {
            hand.step(fate).await;
        }
    }))
    .await;
}

/// Changes some sandboxes, one after another.
struct Hand {
    runtime: LocalRuntime,
    ids: Vec<SandboxId>,
    random: Random,
    name: String,
    book: Book,
}

impl Hand {
    async fn step(&mut self, fate: &Fate) {
        let (runtime, book) = (self.runtime.clone(), self.book.clone());
        if self.ids.len() < MOST {
            let warm = runtime.pool_sizes().0 > 0;
            let kind = if warm { "claim" } else { "create" };
            book.tell(&format!("try {} {kind}", self.name));
            fate.begins(kind);
            let made = runtime.create(SandboxSpec::default()).await.unwrap();
            book.is(&runtime, &made.id);
            book.tell(&format!("deleted {}", self.name));
            if made.timings.root.is_zero() {
                book.tell(&format!("warm {}", made.id));
            }
            self.ids.push(made.id);
            return;
        }
        let which = self.random.below(self.ids.len() as u64) as usize;
        let id = self.ids[which].clone();
        let choices: &[&str] = match runtime.get(&id).unwrap().state {
            SandboxState::Running => &["pause", "stop", "exec", "exec", "delete"],
            SandboxState::Paused => &["resume", "resume", "stop", "delete"],
            _ => &["start", "start", "delete"],
        };
        // The step of the kill comes soon.
        let wanted = match fate.kind.as_str() {
            "create" | "claim" => "delete",
            kind => kind,
        };
        let what = match choices.iter().find(|what| **what == wanted) {
            Some(wanted) if self.random.below(2) == 0 => wanted,
            _ => choices[self.random.below(choices.len() as u64) as usize],
        };
        book.tell(&format!("try {id} {what}"));
        fate.begins(what);
        match what {
            "pause" => drop(runtime.pause(&id).await.unwrap()),
            "resume" => drop(runtime.resume(&id).await.unwrap()),
            "stop" => drop(runtime.stop(&id).await.unwrap()),
            "start" => drop(runtime.start(&id).await.unwrap()),
            "exec" => exec(&runtime, &book, &id).await,
            _ => {
                runtime.delete(&id).await.unwrap();
                book.tell(&format!("deleted {id}"));
                self.ids.remove(which);
                return;
            }
        }
        book.is(&runtime, &id);
    }
}

/// Starts a long-running command, if there is none yet, or else a short one.
async fn exec(runtime: &LocalRuntime, book: &Book, id: &SandboxId) {
    if runtime.find_exec_by_tag(id, "long").is_err() {
        let long = ExecSpec::argv(["sleep", "600"]).tag("long");
        let exec = runtime.exec(id, long).await.unwrap();
        let name = exec.handle.id();
        book.tell(&format!("runs {id} {name} {}", exec.pid));
        return;
    }
    let exec = runtime
        .exec(id, ExecSpec::argv(["echo", "x"]))
        .await
        .unwrap();
    assert_eq!(exec.finish(b"", 10).await.unwrap().stdout, b"x\n");
}

fn names(directory: &Path) -> BTreeSet<String> {
    let all = std::fs::read_dir(directory).unwrap().flatten();
    all.map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// Unconfirmed operations leave nothing: no process, no cgroup, no file, no mount.
fn nothing_else(place: &Place, runtime: &LocalRuntime) {
    let data = place.data();
    let known: BTreeSet<String> = runtime.list().iter().map(|it| it.id.to_string()).collect();
    let sandboxes = names(&data.join("sandboxes"));
    let warm: BTreeSet<_> = sandboxes.difference(&known).collect();
    assert_eq!(
        warm.len(),
        runtime.pool_sizes().0,
        "{known:?} {sandboxes:?}"
    );
    assert!(known.is_subset(&sandboxes), "{known:?} {sandboxes:?}");
    assert_eq!(names(&data.join("orphaned")), BTreeSet::new());
    wait_for("the trash to be empty", DEADLINE, || {
        names(&data.join("trash")).is_empty()
    });
    let live: BTreeSet<i32> = runtime
        .list()
        .iter()
        .filter_map(|info| runtime.host_pid(&info.id).ok())
        .collect();
    let keeper = keeper(runtime.tag()).unwrap();
    wait_for(
        "processes of unknown sandboxes to be gone",
        DEADLINE,
        || {
            let all = children(keeper);
            all.is_superset(&live) && all.len() == live.len() + warm.len()
        },
    );
    let cgroups = &runtime.facts().cgroups;
    for root in cgroups.v1.values().chain(&cgroups.v2) {
        let groups = names(&root.join(format!("atoll-{}", runtime.tag())));
        let ids = groups
            .iter()
            .filter(|name| name.parse::<SandboxId>().is_ok());
        let ids: Vec<_> = ids.filter(|name| !sandboxes.contains(*name)).collect();
        assert_eq!(ids, Vec::<&String>::new());
    }
    not_mounted(place);
}

fn not_mounted(place: &Place) {
    let data = place.data();
    let left: Vec<_> = mounts()
        .into_iter()
        .filter(|mount| mount.point.starts_with(&data))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_changes_survive_two_hundred_kills() {
    tokio::task::spawn_blocking(templates).await.unwrap();
    let place = Place::new();
    let file = place.file("operations");
    let book = Book::new(&file);
    let mut cut: BTreeMap<String, usize> = BTreeMap::new();
    let rare = |cut: &BTreeMap<String, usize>| {
        let times = |kind: &&str| cut.get(*kind).copied().unwrap_or(0);
        KINDS.into_iter().find(|kind| times(kind) < LEAST)
    };
    for round in 0.. {
        // How often a kill meets a short step depends on the machine's speed.
        if round >= KILLS && rare(&cut).is_none() {
            break;
        }
        assert!(
            round < 5 * KILLS,
            "{:?} was cut off too rarely: {cut:?}",
            rare(&cut)
        );
        let kind = KINDS[round as usize % KINDS.len()];
        let seed = (round + 1).to_string();
        let words = [
            ("FILE", &*file.to_string_lossy()),
            ("SEED", &seed),
            ("KIND", kind),
        ];
        let mut server = start("churn", &place, &words);
        let mut ended = None;
        wait_for("its end", DEADLINE, || {
            ended = server.try_wait().unwrap();
            ended.is_some()
        });
        let signal = ended.unwrap().signal();
        assert_eq!(signal, Some(9), "round {round}: it gave up by itself");
        for what in book.read().cut_off() {
            *cut.entry(what).or_default() += 1;
        }
    }
    let log = book.read();
    assert!(log.warm >= LEAST, "{} claims", log.warm);
    // No warm sandboxes are created any more.
    let alone = Config {
        warm_count: 0,
        embryo_count: 0,
        ..prepared(&place.data())
    };
    let runtime = LocalRuntime::open(alone).await.unwrap();
    log.check(&runtime);
    nothing_else(&place, &runtime);
    for info in runtime.list() {
        runtime.delete(&info.id).await.unwrap();
    }
    nothing_else(&place, &runtime);
    place.close(runtime).await;
}
