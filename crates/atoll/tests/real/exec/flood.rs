//! Commands that write as fast as they can (C06): the retained output is bounded on disk and in memory, and dropped
//! output is reported.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_model::{OutputChunk, SandboxId};
use atoll_testkit::wait_for;
use atoll_worker::{ExecHandle, OutputReader};

use crate::harness::{DEADLINE, Kind, World, data, probe_spec};

const MIB: u64 = 1 << 20;
/// Retained output of a command, in bytes.
const WINDOW: u64 = 64 * MIB;
/// Additional bytes that may be retained before old output is dropped.
const SLACK: u64 = 4 * MIB;
/// More than the window several times over.
const FLOOD: u64 = 320 * MIB;
/// Memory limit of the server: a few chunks per reader, independent of the amount written.
const MEMORY: u64 = 48 * MIB;

async fn flood(world: &World, id: &SandboxId, bytes: u64) -> ExecHandle {
    let spec = probe_spec(&["spew", &bytes.to_string()]).deadline(DEADLINE * 2);
    let exec = world.runtime.exec(id, spec).await.unwrap();
    exec.handle
}

/// Disk usage of a command's output file.
fn on_disk(world: &World, id: &SandboxId, control: &ExecHandle) -> u64 {
    let path: PathBuf = [
        data().join("runs").join(world.runtime.tag()),
        "sandboxes".into(),
        id.as_str().into(),
        "execs".into(),
        format!("{}.log", control.id().as_str()).into(),
    ]
    .iter()
    .collect();
    std::fs::metadata(path).map_or(0, |found| found.blocks() * 512)
}

/// The memory of this process, which is the server here.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let size = line.unwrap().split_whitespace().nth(1).unwrap();
    size.parse::<u64>().unwrap() * 1024
}

/// Waits for a command's end, and sees that neither disk nor memory are taken meanwhile.
async fn bounded(world: &World, id: &SandboxId, control: &ExecHandle, before: u64) {
    let (mut disk, mut most) = (0, 0);
    wait_for("the flood to end", DEADLINE * 2, || {
        disk = disk.max(on_disk(world, id, control));
        most = most.max(memory());
        control.info().status.is_some()
    });
    assert!(control.wait().await.success());
    assert!(
        disk > 0 && disk <= WINDOW + SLACK,
        "{disk} bytes on the disk"
    );
    assert!(most < before + MEMORY, "{before} bytes became {most}");
}

/// Reads to the end without a gap; how many bytes that were.
async fn rest(reader: &mut OutputReader, mut position: u64) -> u64 {
    let begin = position;
    loop {
        match reader.next().await.unwrap().unwrap() {
            OutputChunk::Data {
                position: at,
                bytes,
                ..
            } => {
                assert_eq!(at, position);
                check(at, &bytes);
                position += bytes.len() as u64;
            }
            OutputChunk::Exit(status) => {
                assert!(status.success(), "{status:?}");
                return position - begin;
            }
            gap @ OutputChunk::Gap { .. } => panic!("{gap:?} at {position}"),
        }
    }
}

/// The probe writes its line numbers; some lines are checked.
fn check(position: u64, bytes: &[u8]) {
    let first = position.div_ceil(16);
    let lines = bytes[(first * 16 - position) as usize..].chunks_exact(16);
    for (number, line) in (first..).zip(lines).step_by(997) {
        assert_eq!(line, format!("{number:015x}\n").as_bytes(), "at {position}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_output_is_limited_to_its_window() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let before = memory();
    let control = flood(&world, &id, FLOOD).await;
    bounded(&world, &id, &control, before).await;
    let (start, end) = control.output_range();
    assert_eq!(end, FLOOD);
    assert!(
        start > 0 && (WINDOW..=WINDOW + SLACK).contains(&(end - start)),
        "{start} {end}"
    );
    // A late reader receives a gap, then the retained output.
    let mut reader = control.output(0);
    let gap = reader.next().await.unwrap().unwrap();
    assert_eq!(gap, OutputChunk::Gap { from: 0, to: start });
    assert_eq!(rest(&mut reader, start).await, end - start);
    // A reader that starts at retained output gets no gap.
    let mut reader = control.output(end - 17);
    assert_eq!(rest(&mut reader, end - 17).await, 17);
    assert!(memory() < before + MEMORY);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_causes_backpressure_and_loses_no_output() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let neighbour = world.sandbox(Kind::Static).await;
    let before = memory();
    let control = flood(&world, &id, FLOOD).await;
    let mut reader = control.output(0);
    let OutputChunk::Data { bytes, .. } = reader.next().await.unwrap().unwrap() else {
        panic!("no data first");
    };
    check(0, &bytes);
    let read = bytes.len() as u64;
    let written = || control.output_range().1;
    wait_for("the window to be full", DEADLINE, || {
        written() > WINDOW - MIB
    });
    // Other commands write meanwhile, many times the remaining space.
    let other = flood(&world, &neighbour, 2 * WINDOW).await;
    assert!(other.wait().await.success());
    assert!(written() <= read + WINDOW, "{} bytes", written());
    assert_eq!((control.output_range().0, control.info().status), (0, None));
    // The command continues at the reader's pace.
    assert_eq!(rest(&mut reader, read).await, FLOOD - read);
    assert!(on_disk(&world, &id, &control) <= WINDOW + SLACK);
    assert!(memory() < before + MEMORY, "{before} became {}", memory());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_reader_is_dropped_and_sees_the_gap() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let world = World::open_as(|config| config.response_timeout = TIMEOUT).await;
    let id = world.sandbox(Kind::Static).await;
    let before = memory();
    let control = flood(&world, &id, FLOOD).await;
    let mut reader = control.output(0);
    reader.next().await.unwrap().unwrap();
    let (from, since) = (reader.position(), Instant::now());
    bounded(&world, &id, &control, before).await;
    assert!(since.elapsed() >= TIMEOUT, "{:?}", since.elapsed());
    let (start, end) = control.output_range();
    assert!(end == FLOOD && start > from, "{start} {end}");
    let gap = reader.next().await.unwrap().unwrap();
    assert_eq!(gap, OutputChunk::Gap { from, to: start });
    assert_eq!(rest(&mut reader, start).await, end - start);
    world.close().await;
}
