//! A program that writes all the time is paused a thousand times at random moments, sometimes with a kill of its
//! server (G07): its output is the same as without any interruption.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{RunAs, SandboxId, SandboxState};
use atoll_testkit::{SCRIBBLED, Scribbles, fnv64, wait_for};
use atoll_worker::LocalRuntime;

use super::{Place, kill, serve as start, spec, word};
use crate::harness::{DEADLINE, Kind, World, probe_spec};

const PAUSES: usize = 1000;
/// Number of pauses by a server before it is killed.
const EACH: usize = 50;
/// A program that is not paused writes hundreds of times meanwhile.
const MOMENT: Duration = Duration::from_millis(10);
const SEED: u64 = 7;
const DIRECTORY: &str = "/work";

/// The program's two files on the host: contents of one, length of the other.
struct Files(PathBuf);

impl Files {
    fn of(runtime: &LocalRuntime, id: &SandboxId) -> Self {
        let pid = runtime.host_pid(id).unwrap();
        Self(format!("/proc/{pid}/root{DIRECTORY}").into())
    }

    fn length(&self) -> u64 {
        std::fs::metadata(self.0.join("end")).map_or(0, |found| found.len())
    }

    fn look(&self) -> (u64, u64) {
        let there = std::fs::read(self.0.join("there")).unwrap();
        (fnv64(&there), self.length())
    }

    /// Asserts that no output appears for a time in which a running program writes much.
    fn stand_still(&self, when: &str) {
        let before = self.look();
        std::thread::sleep(MOMENT);
        assert_eq!(before, self.look(), "it wrote while it was paused, {when}");
    }

    fn move_on(&self) {
        let before = self.length();
        wait_for("the program to go on", DEADLINE, || self.length() > before);
    }
}

/// Pauses and resumes endlessly. Writes a byte for the initial state and for each pause.
pub(super) async fn serve(runtime: &LocalRuntime) {
    let id: SandboxId = word("ID").parse().unwrap();
    let files = Files::of(runtime, &id);
    let path = word("FILE");
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    let mut tell = |what: &str| file.write_all(what.as_bytes()).unwrap();
    if runtime.get(&id).unwrap().state == SandboxState::Paused {
        files.stand_still("and taken over");
        runtime.resume(&id).await.unwrap();
        tell("P");
    } else {
        tell("R");
    }
    files.move_on();
    let mut random: u64 = word("SEED").parse().unwrap();
    for number in 1.. {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        tokio::time::sleep(Duration::from_micros(random % 1500)).await;
        runtime.pause(&id).await.unwrap();
        let length = files.length();
        // A write still in progress would arrive within this time.
        std::thread::sleep(Duration::from_micros(300));
        assert_eq!(length, files.length(), "it was not yet paused");
        if number % 25 == 0 {
            files.stand_still("in this server");
        }
        tell(".");
        if number == EACH && word("STAY") == "paused" {
            std::future::pending::<()>().await;
        }
        runtime.resume(&id).await.unwrap();
    }
}

fn count_bytes(path: &Path, what: u8) -> usize {
    let bytes = std::fs::read(path).unwrap();
    bytes.into_iter().filter(|byte| *byte == what).count()
}

async fn read(runtime: &LocalRuntime, id: &SandboxId, name: &str) -> Vec<u8> {
    let (root, path) = (RunAs::root(), format!("{DIRECTORY}/{name}"));
    let reader = runtime.read_file(id, &root, path.as_bytes());
    reader.await.unwrap().read_to_end(1 << 30).await.unwrap()
}

/// Expected contents of both files after `steps` writes.
fn expected(steps: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut there, mut end) = (vec![0; SCRIBBLED as usize], Vec::new());
    let (mut scribbles, mut bytes) = (Scribbles::new(SEED), Vec::new());
    for _ in 0..steps {
        let at = scribbles.step(&mut bytes) as usize;
        there[at..at + bytes.len()].copy_from_slice(&bytes);
        end.extend_from_slice(Scribbles::appended(&bytes));
    }
    (there, end)
}

/// The kernel reports a cgroup with both processes and child cgroups as frozen too early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_is_frozen_when_a_pause_returns() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    // More processes than processors: most wait for a processor before they can be frozen.
    for _ in 0..6 {
        let spin = world.runtime.exec(&id, probe_spec(&["spin", "600"]));
        spin.await.unwrap();
    }
    let root = world.runtime.facts().cgroups.v2.clone().unwrap();
    let group = root
        .join(format!("atoll-{}", world.runtime.tag()))
        .join(id.as_str());
    let frozen = |path: &Path| {
        let events = std::fs::read_to_string(path.join("cgroup.events")).unwrap();
        events.contains("frozen 1")
    };
    let all = || -> Vec<PathBuf> {
        let below = std::fs::read_dir(&group).unwrap().flatten();
        let below = below.map(|entry| entry.path()).filter(|path| path.is_dir());
        below.chain([group.clone()]).collect()
    };
    for _ in 0..200 {
        world.runtime.pause(&id).await.unwrap();
        let all = all();
        let moving: Vec<_> = all.iter().filter(|path| !frozen(path)).collect();
        assert!(all.len() > 6 && moving.is_empty(), "{moving:?}");
        world.runtime.resume(&id).await.unwrap();
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_pauses_corrupt_no_output() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    let root = RunAs::root();
    let made = runtime.make_directory(&id, &root, DIRECTORY.as_bytes(), 0o777, true);
    made.await.unwrap();
    let writer = probe_spec(&["scribble", DIRECTORY, &SEED.to_string()]).tag("writer");
    let writer = runtime.exec(&id, writer).await.unwrap();
    let writer = writer.handle.id().clone();
    // The control: the process writes while it is not paused.
    Files::of(&runtime, &id).move_on();
    runtime.close().await.unwrap();

    let file = place.file("progress");
    std::fs::write(&file, "").unwrap();
    let mut round = 0_u32;
    while count_bytes(&file, b'.') < PAUSES {
        round += 1;
        let goal = count_bytes(&file, b'.') + EACH;
        let seed = round.to_string();
        let stay = if round.is_multiple_of(2) {
            "paused"
        } else {
            "whatever"
        };
        let words = [
            ("ID", id.as_str()),
            ("FILE", &*file.to_string_lossy()),
            ("SEED", &seed),
            ("STAY", stay),
        ];
        let mut server = start("pauses", &place, &words);
        wait_for("a server's pauses", DEADLINE, || {
            if let Some(ended) = server.try_wait().unwrap() {
                panic!("round {round}: the server gave up by itself: {ended}");
            }
            count_bytes(&file, b'.') >= goal
        });
        kill(&mut server);
    }
    assert!(count_bytes(&file, b'P') >= 8, "{round} rounds");

    let runtime = place.open().await;
    runtime.resume(&id).await.unwrap();
    Files::of(&runtime, &id).move_on();
    let stop = format!("{DIRECTORY}/stop");
    let stop = runtime.exec(&id, probe_spec(&["touch", &stop])).await;
    assert!(stop.unwrap().wait().await.success());
    let control = runtime.find_exec(&id, &writer).unwrap();
    let status = control.wait().await;
    let mut text = Vec::new();
    let mut output = control.output(0);
    while let Some(chunk) = output.next().await.unwrap() {
        if let atoll_model::OutputChunk::Data { bytes, .. } = chunk {
            text.extend(bytes);
        }
    }
    let text = String::from_utf8(text).unwrap();
    assert!(status.success(), "{status:?} {text}");
    let steps: u64 = text.trim().strip_prefix("steps ").unwrap().parse().unwrap();
    assert!(steps > PAUSES as u64, "{steps} writes");
    let (there, end) = expected(steps);
    assert!(read(&runtime, &id, "there").await == there);
    assert!(read(&runtime, &id, "end").await == end);
    place.close(runtime).await;
}
