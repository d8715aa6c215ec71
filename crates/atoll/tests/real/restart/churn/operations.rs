//! A log of the server's operations on sandboxes, one line before and one after each change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_model::{ExecId, SandboxId, SandboxState};
use atoll_worker::LocalRuntime;

/// Path of the log.
#[derive(Clone)]
pub(super) struct Book {
    path: PathBuf,
    file: Arc<File>,
}

impl Book {
    pub(super) fn new(path: &Path) -> Self {
        let file = OpenOptions::new().append(true).create(true).open(path);
        Self {
            path: path.to_owned(),
            file: Arc::new(file.unwrap()),
        }
    }

    pub(super) fn tell(&self, line: &str) {
        let line = format!("{line}\n");
        (&*self.file).write_all(line.as_bytes()).unwrap();
    }

    /// Logs the state of a sandbox.
    pub(super) fn is(&self, runtime: &LocalRuntime, id: &SandboxId) {
        let state = runtime.get(id).unwrap().state.name();
        let pid = runtime.host_pid(id).unwrap_or(0);
        self.tell(&format!("is {id} {state} {pid}"));
    }

    pub(super) fn read(&self) -> Log {
        let text = std::fs::read_to_string(&self.path).unwrap();
        let mut log = Log::default();
        // A line without an end was cut off.
        for line in text.split_inclusive('\n') {
            if let Some(line) = line.strip_suffix('\n') {
                log.apply(line);
            }
        }
        log
    }
}

/// A sandbox, or a create in progress.
#[derive(Debug, Default)]
struct Known {
    /// Its state, with its PID 1.
    is: Option<(SandboxState, i32)>,
    /// The state that a pending operation leads to.
    trying: Option<String>,
    /// Commands that run in it, with their pids inside.
    execs: Vec<(ExecId, i32)>,
}

/// The complete log.
#[derive(Debug, Default)]
pub(super) struct Log {
    all: BTreeMap<String, Known>,
    /// Number of creates that claimed a warm sandbox.
    pub(super) warm: usize,
}

impl Log {
    fn apply(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let known = self.all.entry(words[1].to_owned()).or_default();
        match words[..] {
            ["is", _, now, pid] => {
                let state = SandboxState::ALL
                    .into_iter()
                    .find(|state| state.name() == now);
                let is = (state.unwrap(), pid.parse().unwrap());
                if known.is.is_none_or(|before| before.1 != is.1) {
                    known.execs.clear();
                }
                known.is = Some(is);
                known.trying = None;
            }
            ["try", _, what] => known.trying = Some(what.to_owned()),
            ["runs", _, exec, pid] => {
                let exec = (exec.parse().unwrap(), pid.parse().unwrap());
                known.execs.push(exec);
            }
            ["deleted", _] => *known = Known::default(),
            ["warm", _] => self.warm += 1,
            _ => panic!("{line}"),
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// Operations that were started and not completed.
    pub(super) fn cut_off(&self) -> impl Iterator<Item = String> {
        let all = self.all.values();
        all.filter_map(|known| known.trying.clone())
    }

    /// Compares the log with the actual state.
    pub(super) fn check(&self, runtime: &LocalRuntime) {
        let processes = Processes::read();
        let mut now: BTreeMap<String, (SandboxState, i32)> = BTreeMap::new();
        for info in runtime.list() {
            let pid = runtime.host_pid(&info.id).unwrap_or(0);
            let lives = pid != 0 && processes.has(pid, 1);
            let should = matches!(info.state, SandboxState::Running | SandboxState::Paused);
            assert_eq!(lives, should, "{} {:?} {pid}", info.id, info.state);
            now.insert(info.id.to_string(), (info.state, pid));
        }
        for (id, known) in &self.all {
            let is = now.get(id).copied();
            assert!(known.may_be(is), "{id}: logged {known:?}, found {is:?}");
            let Some((_, pid)) = is.filter(|is| known.is.is_some_and(|was| was.1 == is.1)) else {
                continue;
            };
            for (exec, inner) in &known.execs {
                let info = runtime.find_exec(&id.parse().unwrap(), exec).unwrap();
                let info = info.info();
                assert_eq!((info.pid, info.status), (*inner, None), "{id} {exec}");
                assert!(processes.has(pid, *inner), "{id} {exec} {inner}");
            }
        }
    }
}

impl Known {
    /// Whether it may be so: not yet, or just done.
    fn may_be(&self, is: Option<(SandboxState, i32)>) -> bool {
        let Some(what) = &self.trying else {
            return is == self.is;
        };
        if is == self.is {
            return true;
        }
        let same = is.is_some_and(|is| self.is.is_some_and(|was| was.1 == is.1));
        let state = is.map(|is| is.0);
        match what.as_str() {
            "pause" => same && state == Some(SandboxState::Paused),
            "resume" => same && state == Some(SandboxState::Running),
            "stop" => state == Some(SandboxState::Stopped),
            "start" => state == Some(SandboxState::Running),
            "delete" => matches!(state, None | Some(SandboxState::Stopped)),
            _ => false,
        }
    }
}

/// The processes of the host, by their pid namespaces and their pids there.
struct Processes(BTreeSet<(PathBuf, i32)>);

impl Processes {
    fn read() -> Self {
        let one = |pid: i32| {
            let namespace = namespace(pid)?;
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let pids = status
                .lines()
                .find_map(|line| line.strip_prefix("NSpid:"))?;
            Some((namespace, pids.split_whitespace().last()?.parse().ok()?))
        };
        Self(super::super::pids().filter_map(one).collect())
    }

    /// Whether there is a process with this pid where that one is PID 1.
    fn has(&self, first: i32, pid: i32) -> bool {
        namespace(first).is_some_and(|namespace| self.0.contains(&(namespace, pid)))
    }
}

fn namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}
