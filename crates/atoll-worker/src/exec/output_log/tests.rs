use super::super::budget::{self, OutputRetention};
use super::*;
use std::io::Write;
use std::os::fd::AsFd;

const WINDOW: u64 = budget::DEFAULT_WINDOW.0;

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!(
            "atoll-log-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&path).expect("create a directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn feed(log: &OutputLog, stream: Stream, bytes: &[u8]) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    for part in bytes.chunks(60_000) {
        writer.write_all(part).expect("it fits");
        assert_eq!(
            log.splice_from(stream, reader.as_fd(), 1 << 20)
                .expect("taken"),
            SpliceResult::Moved
        );
    }
}

/// All retained segments.
fn segments(log: &OutputLog) -> Vec<(Stream, Vec<u8>)> {
    let (mut position, end) = log.bounds();
    let mut all = Vec::new();
    while position < end {
        let segment = log.segment_at(position).expect("a segment");
        let mut bytes = vec![0; (segment.end - position) as usize];
        assert_eq!(log.read(position, &mut bytes).expect("read"), bytes.len());
        position = segment.end;
        all.push((segment.stream, bytes));
    }
    all
}

#[test]
fn log_keeps_order_and_stream_of_bytes_after_reopening() {
    let scratch = Scratch::new();
    let log = OutputLog::new(scratch.0.join("x"));
    assert!(!scratch.0.join("x.log").exists());
    let written = [
        (Stream::Stderr, b"one".to_vec()),
        (Stream::Stdout, b"two".to_vec()),
        (Stream::Stderr, vec![b'x'; 200_000]),
    ];
    for (stream, bytes) in &written {
        feed(&log, *stream, bytes);
    }
    assert_eq!(segments(&log), written);
    assert_eq!(
        segments(&OutputLog::open(scratch.0.join("x")).expect("it opens")),
        written
    );
}

#[test]
fn log_retains_only_the_window_after_reopening() {
    let scratch = Scratch::new();
    let log = OutputLog::new(scratch.0.join("x"));
    let turn = vec![7; 59_999];
    let turns = (WINDOW + 8 * PUNCH_BYTES) / turn.len() as u64;
    for number in 0..turns {
        let stream = if number % 2 == 0 {
            Stream::Stdout
        } else {
            Stream::Stderr
        };
        feed(&log, stream, &turn);
    }
    let (start, end) = log.bounds();
    assert_eq!(end, turns * turn.len() as u64);
    assert!(start > 0 && end - start >= WINDOW && end - start <= WINDOW + 2 * PUNCH_BYTES);
    use std::os::unix::fs::MetadataExt;
    let blocks = std::fs::metadata(scratch.0.join("x.log"))
        .expect("it is there")
        .blocks();
    assert!(blocks * 512 <= WINDOW + 3 * PUNCH_BYTES, "{blocks} blocks");
    let again = OutputLog::open(scratch.0.join("x")).expect("it opens");
    assert_eq!(again.bounds(), (start, end));
    let all = segments(&again);
    assert_eq!(all, segments(&log));
    assert!(
        all.iter()
            .all(|(_, bytes)| bytes.iter().all(|byte| *byte == 7))
    );
}

#[test]
fn index_entry_without_bytes_is_ignored() {
    let scratch = Scratch::new();
    let log = OutputLog::new(scratch.0.join("x"));
    feed(&log, Stream::Stdout, b"one");
    // As if the server had been killed between the two writes.
    let index = OpenOptions::new()
        .append(true)
        .open(scratch.0.join("x.index"))
        .expect("it is there");
    (&index)
        .write_all(&entry(Stream::Stderr, 3))
        .expect("written");
    let log = OutputLog::open(scratch.0.join("x")).expect("it opens");
    feed(&log, Stream::Stdout, b"two");
    let written = segments(&log);
    assert_eq!(written.concat_bytes(), b"onetwo");
    assert_eq!(written[0].0, Stream::Stdout);
}

trait Concat {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl Concat for Vec<(Stream, Vec<u8>)> {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, bytes)| bytes.clone()).collect()
    }
}

#[test]
fn slow_reader_exerts_backpressure_until_it_reads_or_leaves() {
    let scratch = Scratch::new();
    let log = OutputLog::new(scratch.0.join("x")).with_reader_timeout(Duration::from_mins(1));
    let reader = log.update_reader(None, 0);
    let turn = vec![7; 60_000];
    while matches!(log.backpressure(), Backpressure::None) {
        feed(&log, Stream::Stdout, &turn);
    }
    let (start, end) = log.bounds();
    assert!(start == 0 && end > WINDOW - PUNCH_BYTES && end < WINDOW);
    log.update_reader(Some(reader), PUNCH_BYTES);
    assert!(matches!(log.backpressure(), Backpressure::None));
    feed(&log, Stream::Stdout, &vec![7; PUNCH_BYTES as usize]);
    assert!(matches!(log.backpressure(), Backpressure::Until(_)));
    log.remove_reader(reader);
    assert!(matches!(log.backpressure(), Backpressure::None));
}

/// Output that alternates between streams with every byte reaches the index limit long before the
/// window.
#[test]
fn reader_many_stream_changes_behind_exerts_backpressure() {
    let scratch = Scratch::new();
    let stem = scratch.0.join("x");
    let changes = MAX_INDEX_ENTRIES + MAX_INDEX_ENTRIES / 8;
    let streams = [Stream::Stdout, Stream::Stderr];
    let index = (0..changes).flat_map(|at| entry(streams[(at % 2) as usize], at));
    std::fs::write(stem.with_extension("index"), index.collect::<Vec<u8>>()).expect("written");
    std::fs::write(stem.with_extension("log"), vec![7; changes as usize]).expect("written");
    let log = OutputLog::open(stem).expect("it opens");
    let log = log.with_reader_timeout(Duration::from_mins(1));
    assert!(matches!(log.backpressure(), Backpressure::None));
    let reader = log.update_reader(None, 0);
    assert!(matches!(log.backpressure(), Backpressure::Until(_)));
    // Output that it has not read is not dropped.
    feed(&log, Stream::Stderr, b"x");
    assert_eq!(log.bounds().0, 0);
    log.update_reader(Some(reader), changes / 2);
    assert!(matches!(log.backpressure(), Backpressure::None));
}

/// A killed server had a lagging reader: the next server waits for it before it drops output.
#[test]
fn full_log_waits_for_readers_of_the_previous_server() {
    let scratch = Scratch::new();
    let log = OutputLog::new(scratch.0.join("x")).with_reader_timeout(Duration::from_mins(1));
    let _reader = log.update_reader(None, 0);
    let turn = vec![7; 60_000];
    while matches!(log.backpressure(), Backpressure::None) {
        feed(&log, Stream::Stdout, &turn);
    }
    drop(log);
    let open = || {
        let log = OutputLog::open(scratch.0.join("x")).expect("it opens");
        log.with_reader_timeout(Duration::from_mins(1))
    };
    assert!(matches!(open().backpressure(), Backpressure::None));
    let log = open().with_reader_grace();
    assert!(matches!(log.backpressure(), Backpressure::Until(_)));
    let reader = log.update_reader(None, PUNCH_BYTES);
    assert!(matches!(log.backpressure(), Backpressure::None));
    log.remove_reader(reader);
    // No reader reconnects.
    let log = open().with_reader_grace();
    log.readers().grace_until = Some(Instant::now());
    assert!(matches!(log.backpressure(), Backpressure::None));
}

#[test]
fn closed_pipe_is_distinguished_from_an_empty_one() {
    let scratch = Scratch::new();
    let log = OutputLog::new(scratch.0.join("x"));
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let take = || {
        log.splice_from(Stream::Stdout, reader.as_fd(), 1 << 20)
            .expect("taken")
    };
    assert_eq!(take(), SpliceResult::Empty);
    writer.write_all(b"x").expect("written");
    drop(writer);
    assert_eq!(take(), SpliceResult::Moved);
    assert_eq!(take(), SpliceResult::Closed);
    assert!(scratch.0.join("x.log").exists());
}

#[test]
fn log_does_not_grow_if_only_the_disk_reserve_is_left() {
    let scratch = Scratch::new();
    let feed_all = |reserve: u64| {
        let kept = OutputRetention {
            reserve: Some(atoll_model::Bytes(reserve)),
            ..OutputRetention::default()
        };
        let budget = Arc::new(Budget::new(kept, scratch.0.clone()));
        let log = OutputLog::new(scratch.0.join(reserve.to_string())).with_budget(&budget);
        let turn = vec![7; 60_000];
        while log.bounds().1 < 8 * PUNCH_BYTES {
            feed(&log, Stream::Stdout, &turn);
        }
        let (start, end) = log.bounds();
        end - start
    };
    assert!(feed_all(0) > 8 * PUNCH_BYTES - 1);
    let left = feed_all(u64::MAX);
    assert!(left <= 3 * PUNCH_BYTES, "{left}");
}

#[test]
fn dropped_log_keeps_its_last_page_after_reopening() {
    let scratch = Scratch::new();
    let budget = Arc::new(Budget::new(OutputRetention::default(), scratch.0.clone()));
    let log = OutputLog::new(scratch.0.join("x")).with_budget(&budget);
    feed(&log, Stream::Stdout, &vec![7; 100_000]);
    feed(&log, Stream::Stderr, b"last");
    assert!(log.drop_old_output() && !log.drop_old_output());
    let (start, end) = log.bounds();
    assert_eq!((start, end), (100_004 / PAGE_BYTES * PAGE_BYTES, 100_004));
    let again = OutputLog::open(scratch.0.join("x")).expect("it opens");
    assert_eq!(again.bounds(), (start, end));
    let all = segments(&again);
    assert_eq!(all.last(), Some(&(Stream::Stderr, b"last".to_vec())));
}
