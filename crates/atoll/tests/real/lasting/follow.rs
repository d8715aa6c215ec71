//! Nothing a command writes is lost or told twice, however often its server is killed (G02).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_model::{Chunk, Stream};
use atoll_worker::LocalRuntime;

use super::{Place, kill, serve as start, slow, word};
use crate::world::probe_spec;

const KILLS: u32 = 200;
/// Together not more changes of stream than a log keeps.
const LINES: usize = 450_000;

/// Copies the command's output to a file, from where the file ends.
pub(super) async fn serve(runtime: &LocalRuntime) {
    let path = PathBuf::from(word("FILE"));
    let mut heard = Heard::read(&path);
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&path)
        .unwrap();
    let exec = runtime.find_exec_by_tag(&word("ID").parse().unwrap(), "writer");
    let mut reader = exec.unwrap().output(heard.position());
    while let Some(chunk) = reader.next().await.unwrap() {
        if let Chunk::Data {
            stream,
            position,
            bytes,
        } = chunk
        {
            assert_eq!(position, heard.position());
            heard.add(stream, &bytes);
            file.write_all(&entry(stream, &bytes)).unwrap();
        } else {
            assert!(matches!(chunk, Chunk::Exit(_)), "{chunk:?}");
            break;
        }
    }
}

fn entry(stream: Stream, bytes: &[u8]) -> Vec<u8> {
    let mut entry = vec![u8::from(stream == Stream::Stderr)];
    entry.extend((bytes.len() as u32).to_le_bytes());
    entry.extend(bytes);
    entry
}

/// What was heard of each stream.
#[derive(Default)]
struct Heard {
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Heard {
    /// Reads a file back; what was cut off at its end is removed.
    fn read(path: &Path) -> Self {
        let mut heard = Self::default();
        let mut bytes = Vec::new();
        if let Ok(mut file) = File::open(path) {
            file.read_to_end(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while let Some(([stream, length @ ..], after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_le_bytes(*length) as usize;
            let Some((data, after)) = after.split_at_checked(length) else {
                break;
            };
            let stream = if *stream == 0 {
                Stream::Stdout
            } else {
                Stream::Stderr
            };
            heard.add(stream, data);
            rest = after;
        }
        let whole = bytes.len() - rest.len();
        if whole < bytes.len() {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(whole as u64).unwrap();
        }
        heard
    }

    fn add(&mut self, stream: Stream, bytes: &[u8]) {
        match stream {
            Stream::Stdout => self.out.extend(bytes),
            Stream::Stderr => self.err.extend(bytes),
        }
    }

    fn position(&self) -> u64 {
        (self.out.len() + self.err.len()) as u64
    }
}

fn numbered(name: &str) -> Vec<u8> {
    let lines = (1..=LINES).map(|number| format!("{name} {number}\n"));
    lines.collect::<String>().into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_kills_lose_no_byte() {
    let place = Place::new();
    let runtime = place.open().await;
    let id = runtime.create(slow()).await.unwrap().id;
    let writer = probe_spec(&["both", &LINES.to_string()]).tag("writer");
    let exec = runtime
        .exec(&id, writer)
        .await
        .unwrap()
        .control
        .id()
        .clone();
    runtime.close().await.unwrap();
    let file = place.file("heard");
    let words = [("ID", id.as_str()), ("FILE", &*file.to_string_lossy())];
    let length = || std::fs::metadata(&file).map_or(0, |found| found.len());
    let mut while_writing = 0;
    for round in 0..KILLS {
        let before = length();
        let mut server = start("follow", &place, &words);
        // Some are killed while they take over, most while they read.
        if round % 4 == 0 {
            std::thread::sleep(Duration::from_millis(u64::from(round % 40)));
        } else {
            while length() == before && server.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 4000)));
        }
        while_writing += u32::from(length() > before);
        kill(&mut server);
    }
    assert!(
        while_writing > KILLS / 4,
        "only {while_writing} met the writer"
    );
    let runtime = place.open().await;
    let control = runtime.find_exec(&id, &exec).unwrap();
    let mut heard = Heard::read(&file);
    let mut reader = control.output(heard.position());
    loop {
        match reader.next().await.unwrap().unwrap() {
            Chunk::Data {
                stream,
                position,
                bytes,
            } => {
                assert_eq!(position, heard.position());
                heard.add(stream, &bytes);
            }
            Chunk::Exit(status) => {
                assert!(status.success(), "{status:?}");
                break;
            }
            Chunk::Gap { .. } => panic!("a gap"),
        }
    }
    assert!(heard.out == numbered("out"), "{} bytes", heard.out.len());
    assert!(heard.err == numbered("err"), "{} bytes", heard.err.len());
    place.close(runtime).await;
}
