//! A server that meets the keeper of another version: it takes over what it can speak with, and leaves the rest as
//! it is.
//!
//! What a keeper says first is its version. Here somebody stands between the two who passes everything on and says
//! another number: so the sandboxes, and all descriptors, are real.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;

use atoll_jail::keeper as jail;
use atoll_jail::wire::{Channel, FromKeeper, OLDEST, Packet, ToKeeper, VERSION};
use atoll_model::{Code, SandboxState};
use atoll_testkit::wait_for;
use atoll_worker::{Config, LocalRuntime};
use rustix::event::{PollFd, PollFlags};

use super::{Place, after_a_kill, keeper, spec};
use crate::world::{DEADLINE, binary, probe_spec};

const SOCKET: &str = "keeper.sock";
const BEHIND: &str = "behind.sock";

/// Stands in front of a keeper until it is dropped.
struct Between {
    run: PathBuf,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Between {
    fn new(place: &Place, version: u32) -> Self {
        let run = place.data().join("run");
        std::fs::rename(run.join(SOCKET), run.join(BEHIND)).unwrap();
        let directory = File::open(&run).unwrap();
        let listener = jail::listen(directory.as_fd(), SOCKET).unwrap();
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let pass = move || {
            while ready(&stopped, &[listener.as_fd()]) {
                let server = rustix::net::accept(&listener).unwrap();
                let behind = jail::connect(directory.as_fd(), BEHIND).unwrap().unwrap();
                pass_on(&stopped, &Channel::new(server), &behind, version).unwrap();
            }
        };
        Self {
            run,
            stop: Some(stop),
            thread: Some(std::thread::spawn(pass)),
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stop = None;
        let passed = self.thread.take().unwrap().join();
        std::fs::rename(self.run.join(BEHIND), self.run.join(SOCKET)).unwrap();
        if !std::thread::panicking() {
            passed.unwrap();
        }
    }
}

/// Waits for something on these; false if it is time to stop.
fn ready(stopped: &OwnedFd, others: &[std::os::fd::BorrowedFd<'_>]) -> bool {
    let mut all = vec![PollFd::new(stopped, PollFlags::IN)];
    all.extend(others.iter().map(|other| PollFd::new(other, PollFlags::IN)));
    rustix::event::poll(&mut all, None).unwrap();
    all[0].revents().is_empty()
}

/// Passes on what both say until the server goes.
fn pass_on(
    stopped: &OwnedFd,
    server: &Channel<FromKeeper, ToKeeper>,
    keeper: &Channel<ToKeeper, FromKeeper>,
    version: u32,
) -> io::Result<()> {
    for socket in [server.as_fd(), keeper.as_fd()] {
        rustix::io::ioctl_fionbio(socket, true)?;
    }
    while ready(stopped, &[server.as_fd(), keeper.as_fd()]) {
        match server.receive() {
            // It was greeted as we connected.
            Ok(Some(Packet {
                message: ToKeeper::Hello { version },
                ..
            })) => assert_eq!(version, VERSION),
            Ok(Some(Packet {
                message,
                descriptors,
            })) => {
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                keeper.send(&message, &descriptors)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => return Ok(()),
        }
        match keeper.receive() {
            Ok(Some(Packet {
                mut message,
                descriptors,
            })) => {
                if let FromKeeper::Hello { version: said } = &mut message {
                    *said = version;
                }
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                // A server that refuses does not hear all of it.
                if server.send(&message, &descriptors).is_err() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => panic!("the keeper went: {other:?}"),
        }
    }
    Ok(())
}

async fn try_open(place: &Place) -> Result<LocalRuntime, atoll_model::Error> {
    let config = Config {
        binary: binary(),
        lasting: true,
        ..Config::new(place.data())
    };
    LocalRuntime::open(config).await
}

/// What nothing may change.
fn pids(runtime: &LocalRuntime) -> Vec<i32> {
    let all = runtime.list().into_iter();
    all.map(|info| runtime.host_pid(&info.id).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_a_version_that_is_spoken_are_taken_over() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let before = pids(&runtime);
    runtime.close().await.unwrap();
    for version in OLDEST..=VERSION {
        let between = Between::new(&place, version);
        let runtime = place.open().await;
        assert_eq!(pids(&runtime), before, "version {version}");
        for info in runtime.list() {
            assert_eq!(info.state, SandboxState::Running);
            let long = runtime.find_exec_by_tag(&info.id, "long").unwrap();
            assert_eq!(long.info().status, None);
            let exec = runtime.exec(&info.id, probe_spec(&["echo", "on"])).await;
            let done = exec.unwrap().finish(b"", 10).await.unwrap();
            assert_eq!(done.stdout, b"on\n", "version {version}");
        }
        // And its keeper makes new ones.
        let made = runtime.create(spec()).await.unwrap().id;
        runtime.delete(&made).await.unwrap();
        runtime.close().await.unwrap();
        drop(between);
    }
    let runtime = place.open().await;
    assert_eq!(pids(&runtime), before);
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_a_version_that_is_not_spoken_are_left_alone() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let before = pids(&runtime);
    let ids: Vec<_> = runtime.list().into_iter().map(|info| info.id).collect();
    // One ends while there is no server: what it said last is not lost to who is refused.
    let last = runtime.exec(&ids[0], probe_spec(&["echo", "last"])).await;
    let last = last.unwrap().control;
    last.wait().await;
    runtime.close().await.unwrap();
    for version in [OLDEST - 1, VERSION + 1, u32::MAX] {
        let between = Between::new(&place, version);
        for _ in 0..2 {
            let error = try_open(&place).await.unwrap_err();
            assert_eq!(error.code, Code::Conflict, "{error:?}");
            let ours = format!("{OLDEST} to {VERSION}");
            assert!(
                error.message.contains(&format!("protocol {version},"))
                    && error.message.contains(&ours),
                "{error:?}"
            );
            let remedy = error.remedy.unwrap();
            assert!(
                remedy.contains("start the atoll that made them"),
                "{remedy}"
            );
        }
        drop(between);
        let runtime = place.open().await;
        assert_eq!(pids(&runtime), before, "version {version}");
        for id in &ids {
            let long = runtime.find_exec_by_tag(id, "long").unwrap();
            assert_eq!(long.info().status, None, "version {version}");
        }
        runtime.close().await.unwrap();
    }
    let runtime = place.open().await;
    place.close(runtime).await;
}

/// How one ended is told to the server that goes on, not to one that could not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_meanwhile_is_told_after_a_refusal() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let ids: Vec<_> = runtime.list().into_iter().map(|info| info.id).collect();
    let pid = runtime.host_pid(&ids[0]).unwrap();
    let keeper = keeper(runtime.tag()).unwrap();
    let held = || {
        let all = std::fs::read_dir(format!("/proc/{keeper}/fd"));
        all.unwrap().count()
    };
    runtime.close().await.unwrap();
    let open = held();
    let signal = rustix::process::Signal::KILL;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    let gone = PathBuf::from(format!("/proc/{pid}"));
    wait_for("PID 1 to be reaped", DEADLINE, || !gone.exists());
    let between = Between::new(&place, VERSION + 1);
    try_open(&place).await.unwrap_err();
    drop(between);
    // What it had is still held, for who comes next; a server's own socket comes and goes.
    assert!(held() + 1 >= open, "{} of {open} descriptors", held());
    let runtime = place.open().await;
    let states: Vec<_> = ids
        .iter()
        .map(|id| runtime.get(id).unwrap().state)
        .collect();
    assert_eq!(states, [SandboxState::Stopped, SandboxState::Running]);
    wait_for("the keeper to let go", DEADLINE, || held() + 2 < open);
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_does_not_answer_is_told_and_left_alone() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 1).await;
    let before = pids(&runtime);
    let keeper = keeper(runtime.tag()).unwrap();
    let keeper = rustix::process::Pid::from_raw(keeper).unwrap();
    runtime.close().await.unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::STOP).unwrap();
    let opened = tokio::time::timeout(DEADLINE, try_open(&place)).await;
    rustix::process::kill_process(keeper, rustix::process::Signal::CONT).unwrap();
    let error = opened.expect("it comes back").unwrap_err();
    assert_eq!(error.code, Code::Timeout, "{error:?}");
    assert!(error.remedy.unwrap().contains("atoll-keeper"));
    let runtime = place.open().await;
    assert_eq!(pids(&runtime), before);
    place.close(runtime).await;
}
