//! Output of a command is neither lost nor duplicated, however often its server is killed (G02).
//!
//! The command writes with backpressure: it blocks while its pipes have no reader, and a slow reader slows it down.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::{OutputChunk, Stream};
use atoll_worker::{ExecHandle, LocalRuntime};

use super::{Place, Random, kill, serve as start, spec, word};
use crate::harness::{DEADLINE, probe_spec};

const KILLS: u32 = 200;

/// The received output, a file for each stream. Their lengths are the offsets to resume from, also if a kill
/// interrupted the last write.
struct Heard {
    files: [File; 2],
    position: u64,
}

impl Heard {
    fn open(at: &Path) -> Self {
        let files = Self::paths(at).map(|path| {
            let mut file = OpenOptions::new();
            file.append(true).create(true).open(path).unwrap()
        });
        let position = Self::length(at);
        Self { files, position }
    }

    fn paths(at: &Path) -> [PathBuf; 2] {
        ["out", "err"].map(|kind| at.with_extension(kind))
    }

    /// Number of bytes received so far.
    fn length(at: &Path) -> u64 {
        let lengths = Self::paths(at).map(|path| path.metadata().map_or(0, |found| found.len()));
        lengths.iter().sum()
    }

    /// Listens until the command ends.
    async fn listen(&mut self, exec: &ExecHandle) {
        let mut reader = exec.output(self.position);
        loop {
            match reader.next().await.unwrap().unwrap() {
                OutputChunk::Data {
                    stream,
                    position,
                    bytes,
                } => {
                    assert_eq!(position, self.position);
                    let file = &mut self.files[usize::from(stream == Stream::Stderr)];
                    file.write_all(&bytes).unwrap();
                    self.position += bytes.len() as u64;
                }
                OutputChunk::Exit(status) => {
                    assert!(status.success(), "{status:?}");
                    return;
                }
                gap @ OutputChunk::Gap { .. } => panic!("{gap:?}"),
            }
        }
    }
}

/// Copies the command's output to files, from where they end.
pub(super) async fn serve(runtime: &LocalRuntime) {
    let exec = runtime.find_exec_by_tag(&word("ID").parse().unwrap(), "writer");
    let mut heard = Heard::open(Path::new(&word("FILE")));
    heard.listen(&exec.unwrap()).await;
}

/// Checks the lines of a stream. Returns their number and the incomplete rest.
fn lines(path: &Path, name: &str) -> (u64, Option<String>) {
    let mut number = 0;
    for line in BufReader::new(File::open(path).unwrap()).lines() {
        let line = line.unwrap();
        if line != format!("{name} {}", number + 1) {
            return (number, Some(line));
        }
        number += 1;
    }
    (number, None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_kills_lose_no_byte() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    let writer = probe_spec(&["count"]).piped_stdin().tag("writer");
    let exec = runtime.exec(&id, writer).await.unwrap();
    let exec = exec.handle.id().clone();
    runtime.close().await.unwrap();
    let file = place.file("heard");
    let words = [("ID", id.as_str()), ("FILE", &*file.to_string_lossy())];
    let mut random = Random::new(1);
    let mut while_writing = 0;
    for round in 0..KILLS {
        let before = Heard::length(&file);
        let mut server = start("follow", &place, &words);
        // Some servers are killed during adoption, most during reads.
        if round % 8 == 0 {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
        } else {
            let begin = Instant::now();
            while Heard::length(&file) == before {
                assert!(begin.elapsed() < DEADLINE, "round {round}: nothing comes");
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(Duration::from_micros(random.below(8000)));
        }
        if let Some(ended) = server.try_wait().unwrap() {
            panic!("round {round}: the server gave up by itself: {ended}");
        }
        kill(&mut server);
        while_writing += u32::from(Heard::length(&file) > before);
    }
    assert!(while_writing >= 150, "only {while_writing} met the writer");
    let runtime = place.open().await;
    let control = runtime.find_exec(&id, &exec).unwrap();
    assert_eq!(control.info().status, None, "it writes on");
    control.close_stdin().unwrap();
    Heard::open(&file).listen(&control).await;
    let [out, err] = Heard::paths(&file);
    let (count, last) = lines(&out, "out");
    assert_eq!(last, Some(format!("end {count}")));
    assert!(count > 100_000, "{count} lines are not all it could");
    assert_eq!(lines(&err, "err"), (count, None));
    place.close(runtime).await;
}
