//! A server is killed at 200 points of create, exec, pause, resume, stop, start and delete (G01, G09): what it
//! had told anybody holds afterwards, with the same processes, and nothing else is left.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use atoll_model::{SandboxId, SandboxState};
use atoll_worker::LocalRuntime;

use super::{Place, kill, serve as start, spec, word};
use crate::world::probe_spec;

const KILLS: u32 = 200;
const MOST: usize = 5;

/// What a server told of a sandbox last.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    /// It is so, with this PID 1.
    Is(SandboxState, i32),
    /// It was to change; from what.
    Trying(SandboxState, i32, String),
    Deleted,
}

fn read(path: &Path) -> BTreeMap<String, Told> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut all = BTreeMap::new();
    // A line without an end was cut off.
    for line in text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n'))
    {
        let words: Vec<&str> = line.split(' ').collect();
        let state = |word: &str| {
            SandboxState::ALL
                .into_iter()
                .find(|state| state.name() == word)
                .unwrap()
        };
        match words[..] {
            ["is", id, now, pid] => {
                all.insert(id.to_owned(), Told::Is(state(now), pid.parse().unwrap()));
            }
            ["try", id, what] => {
                if let Some(Told::Is(now, pid)) = all.get(id).cloned() {
                    all.insert(id.to_owned(), Told::Trying(now, pid, what.to_owned()));
                }
            }
            ["deleted", id] => {
                all.insert(id.to_owned(), Told::Deleted);
            }
            _ => panic!("{line}"),
        }
    }
    all
}

/// Changes sandboxes without end, telling before and after.
pub(super) async fn serve(runtime: &LocalRuntime) {
    let path = word("FILE");
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    let mut tell = |line: String| file.write_all(format!("{line}\n").as_bytes()).unwrap();
    // What the last one told must hold; from here on it is our word.
    check(runtime, &read(Path::new(&path)));
    for info in runtime.list() {
        let pid = runtime.host_pid(&info.id).unwrap_or(0);
        tell(format!("is {} {} {pid}", info.id, info.state.name()));
    }
    let mut random: u64 = word("SEED").parse().unwrap();
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    loop {
        let all = runtime.list();
        if all.len() < MOST {
            let made = runtime.create(spec()).await.unwrap();
            let pid = runtime.host_pid(&made.id).unwrap();
            tell(format!("is {} running {pid}", made.id));
            continue;
        }
        let info = &all[next(all.len() as u64) as usize];
        let choices: &[&str] = match info.state {
            SandboxState::Running => &["pause", "stop", "exec", "exec", "delete"],
            SandboxState::Paused => &["resume", "stop", "delete"],
            _ => &["start", "delete"],
        };
        let what = choices[next(choices.len() as u64) as usize];
        let id = &info.id;
        tell(format!("try {id} {what}"));
        match what {
            "pause" => drop(runtime.pause(id).await.unwrap()),
            "resume" => drop(runtime.resume(id).await.unwrap()),
            "stop" => drop(runtime.stop(id).await.unwrap()),
            "start" => drop(runtime.start(id).await.unwrap()),
            "delete" => {
                runtime.delete(id).await.unwrap();
                tell(format!("deleted {id}"));
                continue;
            }
            _ => {
                let exec = runtime.exec(id, probe_spec(&["echo", "x"])).await.unwrap();
                assert_eq!(exec.finish(b"", 10).await.unwrap().stdout, b"x\n");
            }
        }
        let state = runtime.get(id).unwrap().state;
        let pid = runtime.host_pid(id).unwrap_or(0);
        tell(format!("is {id} {} {pid}", state.name()));
    }
}

/// Compares what was told with what is.
fn check(runtime: &LocalRuntime, told: &BTreeMap<String, Told>) {
    let now: BTreeMap<String, (SandboxState, i32)> = runtime
        .list()
        .into_iter()
        .map(|info| {
            let pid = runtime.host_pid(&info.id).unwrap_or(0);
            (info.id.to_string(), (info.state, pid))
        })
        .collect();
    for (id, told) in told {
        let is = now.get(id).copied();
        let fine = match told {
            Told::Is(state, pid) => is == Some((*state, *pid)),
            Told::Deleted => is.is_none(),
            Told::Trying(_, _, what) if what == "delete" => true,
            Told::Trying(state, pid, what) => match is {
                None => false,
                // Not yet, or just done.
                Some((now, same)) => {
                    (now, same) == (*state, *pid)
                        || match what.as_str() {
                            "pause" => (now, same) == (SandboxState::Paused, *pid),
                            "resume" => (now, same) == (SandboxState::Running, *pid),
                            "stop" => now == SandboxState::Stopped,
                            "start" => now == SandboxState::Running,
                            _ => false,
                        }
                }
            },
        };
        assert!(fine, "{id} was told {told:?} and is {is:?}");
    }
    for (id, (state, pid)) in &now {
        if matches!(state, SandboxState::Running | SandboxState::Paused) {
            let alive = Path::new("/proc").join(pid.to_string()).exists();
            assert!(alive, "{id}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_told_holds_after_two_hundred_kills() {
    let place = Place::new();
    let file = place.file("told");
    for round in 0..KILLS {
        let seed = (round + 1).to_string();
        let words = [("FILE", &*file.to_string_lossy()), ("SEED", &seed)];
        let mut server = start("churn", &place, &words);
        std::thread::sleep(Duration::from_millis(25 + u64::from(round * 7919 % 60)));
        if let Some(ended) = server.try_wait().unwrap() {
            panic!("round {round}: the server gave up by itself: {ended}");
        }
        kill(&mut server);
    }
    let runtime = place.open().await;
    check(&runtime, &read(&file));
    let tag = runtime.tag().to_owned();
    let known: Vec<SandboxId> = runtime.list().into_iter().map(|info| info.id).collect();
    // Nothing is left of anybody else.
    let cgroups = &runtime.facts().cgroups;
    for root in cgroups.v1.values().chain(&cgroups.v2) {
        let group = root.join(format!("atoll-{tag}"));
        for entry in std::fs::read_dir(group).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if let Ok(id) = name.parse::<SandboxId>() {
                assert!(known.contains(&id), "{name}");
            }
        }
    }
    place.close(runtime).await;
}
