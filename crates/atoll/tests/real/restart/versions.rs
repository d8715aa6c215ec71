//! A server that finds a keeper of another version: it takes over compatible sandboxes, leaves the others
//! unchanged, and serves new sandboxes either way.
//!
//! Two builds that replace each other are in `api::upgrades`. Here is how a server decides.
//!
//! A keeper sends its protocol versions first. A proxy between server and keeper forwards everything and changes
//! only these numbers: so the sandboxes, and all descriptors, are real.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::thread::JoinHandle;

use atoll_jail::keeper as jail;
use atoll_jail::wire::{Channel, FromKeeper, OLDEST, Packet, ToKeeper, VERSION, VersionRange};
use atoll_model::{Code, SandboxId, SandboxState};
use atoll_testkit::wait_for;
use atoll_worker::{Config, LocalRuntime};
use rustix::event::{PollFd, PollFlags};

use super::{Place, after_a_kill, keeper, spec};
use crate::harness::{DEADLINE, binary, probe_spec};

const SOCKET: &str = "keeper.sock";
const BEHIND: &str = "behind.sock";

/// Stands in front of a keeper until it is dropped.
struct Between {
    run: PathBuf,
    spoken: VersionRange,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Between {
    fn new(place: &Place, spoken: VersionRange) -> Self {
        let run = place.data().join("run");
        std::fs::rename(run.join(SOCKET), run.join(BEHIND)).unwrap();
        let directory = File::open(&run).unwrap();
        let listener = jail::listen(directory.as_fd(), SOCKET).unwrap();
        let (stopped, stop) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let pass = move || {
            while ready(&stopped, &[listener.as_fd()]) {
                let server = rustix::net::accept(&listener).unwrap();
                // A keeper that has exited does not accept connections.
                if let Some(behind) = jail::connect(directory.as_fd(), BEHIND).unwrap() {
                    pass_on(&stopped, &Channel::new(server), &behind, spoken).unwrap();
                }
            }
        };
        Self {
            run,
            spoken,
            stop: Some(stop),
            thread: Some(std::thread::spawn(pass)),
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stop = None;
        let passed = self.thread.take().unwrap().join();
        // The path that the server assigned to this socket; for another version the server has its own keeper.
        let at = match self.spoken.version {
            VERSION => SOCKET.to_owned(),
            other => format!("keeper-{other}.sock"),
        };
        std::fs::rename(self.run.join(BEHIND), self.run.join(at)).unwrap();
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

/// Forwards messages in both directions until the server disconnects.
fn pass_on(
    stopped: &OwnedFd,
    server: &Channel<FromKeeper, ToKeeper>,
    keeper: &Channel<ToKeeper, FromKeeper>,
    spoken: VersionRange,
) -> io::Result<()> {
    for socket in [server.as_fd(), keeper.as_fd()] {
        rustix::io::ioctl_fionbio(socket, true)?;
    }
    while ready(stopped, &[server.as_fd(), keeper.as_fd()]) {
        match server.receive() {
            // The connection began with a Hello.
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
            Ok(None) => return hang_up(keeper),
            Err(_) => return Ok(()),
        }
        match keeper.receive() {
            Ok(Some(Packet {
                mut message,
                descriptors,
            })) => {
                if let FromKeeper::Hello(version) = &mut message {
                    *version = spoken;
                }
                let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                // A server that refuses does not read the whole message.
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

/// Closes the connection as the server did, after the last message is delivered.
fn hang_up(keeper: &Channel<ToKeeper, FromKeeper>) -> io::Result<()> {
    rustix::io::ioctl_fionbio(keeper, false)?;
    rustix::net::shutdown(keeper, rustix::net::Shutdown::Write)?;
    while matches!(keeper.receive(), Ok(Some(_))) {}
    Ok(())
}

async fn try_open(place: &Place) -> Result<LocalRuntime, atoll_model::Error> {
    let config = Config {
        binary: binary(),
        persistent: true,
        ..Config::new(place.data())
    };
    LocalRuntime::open(config).await
}

/// Process ids that must not change.
fn pids(runtime: &LocalRuntime) -> Vec<i32> {
    let all = runtime.list().into_iter();
    all.map(|info| runtime.host_pid(&info.id).unwrap())
        .collect()
}

/// Number of keepers of an instance.
pub fn keepers(tag: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let of = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        let ours =
            line.starts_with("atoll-keeper\0") && line.split(['\0', ' ']).nth(1) == Some(tag);
        ours.then_some(())
    };
    all.filter_map(of).count()
}

async fn echoes(runtime: &LocalRuntime, id: &SandboxId) {
    let exec = runtime.exec(id, probe_spec(&["echo", "on"])).await;
    let done = exec.unwrap().finish(b"", 10).await.unwrap();
    assert_eq!(done.stdout, b"on\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_a_compatible_version_are_taken_over() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let before = pids(&runtime);
    runtime.close().await.unwrap();
    let spoken = |version, oldest| VersionRange { version, oldest };
    // The same version, an older one, and newer ones that still support ours.
    for spoken in [
        VersionRange::ours(),
        spoken(OLDEST, OLDEST),
        spoken(VERSION + 1, VERSION),
        spoken(u32::MAX, OLDEST),
    ] {
        let between = Between::new(&place, spoken);
        let runtime = place.open().await;
        assert_eq!(pids(&runtime), before, "{spoken:?}");
        for info in runtime.list() {
            assert_eq!(info.state, SandboxState::Running);
            let long = runtime.find_exec_by_tag(&info.id, "long").unwrap();
            assert_eq!(long.info().status, None);
            echoes(&runtime, &info.id).await;
        }
        // New sandboxes come from a keeper of our version.
        let made = runtime.create(spec()).await.unwrap().id;
        echoes(&runtime, &made).await;
        let own = usize::from(spoken.version != VERSION);
        assert_eq!(keepers(runtime.tag()), 1 + own, "{spoken:?}");
        runtime.delete(&made).await.unwrap();
        runtime.close().await.unwrap();
        drop(between);
        let runtime = place.open().await;
        assert_eq!(pids(&runtime), before, "{spoken:?}");
        runtime.close().await.unwrap();
    }
    let runtime = place.open().await;
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_an_incompatible_version_run_beside_new_ones() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let before = pids(&runtime);
    let ids: Vec<_> = runtime.list().into_iter().map(|info| info.id).collect();
    runtime.close().await.unwrap();
    for version in [OLDEST - 1, VERSION + 1, u32::MAX] {
        let spoken = VersionRange {
            version,
            oldest: version,
        };
        let between = Between::new(&place, spoken);
        let mut new = None;
        for _ in 0..2 {
            let runtime = place.open().await;
            for id in &ids {
                assert_eq!(runtime.get(id).unwrap().state, SandboxState::Running);
                let error = runtime.exec(id, probe_spec(&["true"])).await.unwrap_err();
                assert_eq!(error.code, Code::Conflict, "{error:?}");
                assert!(
                    error.message.contains(&format!("protocol {version}")),
                    "{error:?}"
                );
                assert!(error.remedy.unwrap().contains("stop"));
                for refused in [runtime.pause(id).await, runtime.resume(id).await] {
                    assert_eq!(refused.unwrap_err().code, Code::Conflict);
                }
                assert!(runtime.find_exec_by_tag(id, "long").is_err());
            }
            // The next server takes over the keeper that this one starts.
            let made = match new.take() {
                Some(made) => made,
                None => runtime.create(spec()).await.unwrap().id,
            };
            echoes(&runtime, &made).await;
            assert_eq!(runtime.list().len(), 3);
            assert_eq!(keepers(runtime.tag()), 2);
            new = Some(made);
            runtime.close().await.unwrap();
        }
        drop(between);
        // A server that supports both versions takes over all sandboxes.
        let runtime = place.open().await;
        let new = new.unwrap();
        echoes(&runtime, &new).await;
        runtime.delete(&new).await.unwrap();
        assert_eq!(pids(&runtime), before, "version {version}");
        for id in &ids {
            let long = runtime.find_exec_by_tag(id, "long").unwrap();
            assert_eq!(long.info().status, None, "version {version}");
            echoes(&runtime, id).await;
        }
        runtime.close().await.unwrap();
        // The second keeper has no sandboxes left: the old one is the only one again.
        place.open().await.close().await.unwrap();
    }
    let runtime = place.open().await;
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sandboxes_of_an_incompatible_version_can_be_deleted() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let before = pids(&runtime);
    let ids: Vec<_> = runtime.list().into_iter().map(|info| info.id).collect();
    let old = keeper(runtime.tag()).unwrap();
    runtime.close().await.unwrap();
    let spoken = VersionRange {
        version: VERSION + 1,
        oldest: VERSION + 1,
    };
    let between = Between::new(&place, spoken);
    let runtime = place.open().await;
    runtime.delete(&ids[0]).await.unwrap();
    assert!(runtime.get(&ids[0]).is_err());
    let lives = |pid: i32| PathBuf::from(format!("/proc/{pid}")).exists();
    assert!(lives(old), "it has one left");
    assert_eq!(
        runtime.stop(&ids[1]).await.unwrap().state,
        SandboxState::Stopped
    );
    wait_for("both to be reaped", DEADLINE, || {
        before.iter().all(|pid| !lives(*pid))
    });
    // A stopped sandbox works like any other.
    runtime.start(&ids[1]).await.unwrap();
    echoes(&runtime, &ids[1]).await;
    wait_for("the old keeper to go", DEADLINE, || !lives(old));
    assert_eq!(keepers(runtime.tag()), 1);
    drop(between);
    place.close(runtime).await;
}

/// The end of a sandbox is reported to the server that takes it over, not to an incompatible one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_of_a_sandbox_is_known_without_its_keeper() {
    let place = Place::new();
    let runtime = after_a_kill(&place, 2).await;
    let ids: Vec<_> = runtime.list().into_iter().map(|info| info.id).collect();
    let pid = runtime.host_pid(&ids[0]).unwrap();
    runtime.close().await.unwrap();
    let signal = rustix::process::Signal::KILL;
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
    let gone = PathBuf::from(format!("/proc/{pid}"));
    wait_for("PID 1 to be reaped", DEADLINE, || !gone.exists());
    let spoken = VersionRange {
        version: VERSION + 1,
        oldest: VERSION + 1,
    };
    let states = |runtime: &LocalRuntime| {
        let all = ids.iter();
        all.map(|id| runtime.get(id).unwrap().state)
            .collect::<Vec<_>>()
    };
    let between = Between::new(&place, spoken);
    let runtime = place.open().await;
    let expected = [SandboxState::Stopped, SandboxState::Running];
    assert_eq!(states(&runtime), expected);
    runtime.close().await.unwrap();
    drop(between);
    let runtime = place.open().await;
    assert_eq!(states(&runtime), expected);
    runtime.start(&ids[0]).await.unwrap();
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_keeper_is_reported_and_left_running() {
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
