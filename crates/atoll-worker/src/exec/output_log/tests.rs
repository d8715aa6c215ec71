use super::super::budget::{self, OutputRetention};
use super::*;
use std::io::Write;
use std::os::fd::AsFd;

const WINDOW: u64 = budget::DEFAULT_WINDOW.0;

struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!(
            "atoll-log-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        std::fs::create_dir_all(&path).expect("it can be made");
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn feed(log: &OutputLog, stream: Stream, bytes: &[u8]) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    for part in bytes.chunks(60_000) {
        writer.write_all(part).expect("it fits");
        assert_eq!(
            log.take(stream, reader.as_fd(), 1 << 20).expect("taken"),
            Taken::Some
        );
    }
}

/// Everything that is kept, piece by piece.
fn pieces(log: &OutputLog) -> Vec<(Stream, Vec<u8>)> {
    let (mut position, end) = log.bounds();
    let mut all = Vec::new();
    while position < end {
        let piece = log.piece(position).expect("a piece");
        let mut bytes = vec![0; (piece.end - position) as usize];
        assert_eq!(log.read(position, &mut bytes).expect("read"), bytes.len());
        position = piece.end;
        all.push((piece.stream, bytes));
    }
    all
}

#[test]
fn streams_keep_their_order_and_their_names_also_for_the_next_reader() {
    let place = Place::new();
    let log = OutputLog::new(place.0.join("x"));
    assert!(!place.0.join("x.log").exists());
    let said = [
        (Stream::Stderr, b"one".to_vec()),
        (Stream::Stdout, b"two".to_vec()),
        (Stream::Stderr, vec![b'x'; 200_000]),
    ];
    for (stream, bytes) in &said {
        feed(&log, *stream, bytes);
    }
    assert_eq!(pieces(&log), said);
    assert_eq!(
        pieces(&OutputLog::open(place.0.join("x")).expect("it opens")),
        said
    );
}

#[test]
fn only_the_window_is_kept_and_the_next_reader_knows_from_where() {
    let place = Place::new();
    let log = OutputLog::new(place.0.join("x"));
    let turn = vec![7; 59_999];
    let turns = (WINDOW + 8 * PIECE) / turn.len() as u64;
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
    assert!(start > 0 && end - start >= WINDOW && end - start <= WINDOW + 2 * PIECE);
    use std::os::unix::fs::MetadataExt;
    let blocks = std::fs::metadata(place.0.join("x.log"))
        .expect("it is there")
        .blocks();
    assert!(blocks * 512 <= WINDOW + 3 * PIECE, "{blocks} blocks");
    let again = OutputLog::open(place.0.join("x")).expect("it opens");
    assert_eq!(again.bounds(), (start, end));
    let all = pieces(&again);
    assert_eq!(all, pieces(&log));
    assert!(
        all.iter()
            .all(|(_, bytes)| bytes.iter().all(|byte| *byte == 7))
    );
}

#[test]
fn an_entry_without_bytes_changes_nothing() {
    let place = Place::new();
    let log = OutputLog::new(place.0.join("x"));
    feed(&log, Stream::Stdout, b"one");
    // As if we had been killed between the two writes.
    let index = OpenOptions::new()
        .append(true)
        .open(place.0.join("x.index"))
        .expect("it is there");
    (&index)
        .write_all(&entry(Stream::Stderr, 3))
        .expect("written");
    let log = OutputLog::open(place.0.join("x")).expect("it opens");
    feed(&log, Stream::Stdout, b"two");
    let said = pieces(&log);
    assert_eq!(said.concat_bytes(), b"onetwo");
    assert_eq!(said[0].0, Stream::Stdout);
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
fn a_slow_reader_holds_the_command_back_until_it_reads_or_goes() {
    let place = Place::new();
    let log = OutputLog::new(place.0.join("x")).patience(Duration::from_mins(1));
    let reader = log.arrive(None, 0);
    let turn = vec![7; 60_000];
    while matches!(log.room(), Room::Yes) {
        feed(&log, Stream::Stdout, &turn);
    }
    let (start, end) = log.bounds();
    assert!(start == 0 && end > WINDOW - PIECE && end < WINDOW);
    log.arrive(Some(reader), PIECE);
    assert!(matches!(log.room(), Room::Yes));
    feed(&log, Stream::Stdout, &vec![7; PIECE as usize]);
    assert!(matches!(log.room(), Room::Full(_)));
    log.depart(reader);
    assert!(matches!(log.room(), Room::Yes));
}

/// Two streams that take turns with every byte are given up long before the window is full.
#[test]
fn a_reader_that_is_many_changes_behind_holds_the_command_back_too() {
    let place = Place::new();
    let stem = place.0.join("x");
    let changes = CHANGES + CHANGES / 8;
    let streams = [Stream::Stdout, Stream::Stderr];
    let index = (0..changes).flat_map(|at| entry(streams[(at % 2) as usize], at));
    std::fs::write(stem.with_extension("index"), index.collect::<Vec<u8>>()).expect("written");
    std::fs::write(stem.with_extension("log"), vec![7; changes as usize]).expect("written");
    let log = OutputLog::open(stem).expect("it opens");
    let log = log.patience(Duration::from_mins(1));
    assert!(matches!(log.room(), Room::Yes));
    let reader = log.arrive(None, 0);
    assert!(matches!(log.room(), Room::Full(_)));
    // What it holds back is not given up.
    feed(&log, Stream::Stderr, b"x");
    assert_eq!(log.bounds().0, 0);
    log.arrive(Some(reader), changes / 2);
    assert!(matches!(log.room(), Room::Yes));
}

/// A server that was killed had a reader that was far behind: the next one waits for it before it gives anything up.
#[test]
fn a_log_that_is_full_waits_for_the_readers_of_the_server_before() {
    let place = Place::new();
    let log = OutputLog::new(place.0.join("x")).patience(Duration::from_mins(1));
    let _reader = log.arrive(None, 0);
    let turn = vec![7; 60_000];
    while matches!(log.room(), Room::Yes) {
        feed(&log, Stream::Stdout, &turn);
    }
    drop(log);
    let open = || {
        let log = OutputLog::open(place.0.join("x")).expect("it opens");
        log.patience(Duration::from_mins(1))
    };
    assert!(matches!(open().room(), Room::Yes));
    let log = open().expecting_readers();
    assert!(matches!(log.room(), Room::Full(_)));
    let reader = log.arrive(None, PIECE);
    assert!(matches!(log.room(), Room::Yes));
    log.depart(reader);
    // Nobody came.
    let log = open().expecting_readers();
    log.readers().expected = Some(Instant::now());
    assert!(matches!(log.room(), Room::Yes));
}

#[test]
fn a_closed_pipe_is_told_from_an_empty_one() {
    let place = Place::new();
    let log = OutputLog::new(place.0.join("x"));
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let take = || {
        log.take(Stream::Stdout, reader.as_fd(), 1 << 20)
            .expect("taken")
    };
    assert_eq!(take(), Taken::Nothing);
    writer.write_all(b"x").expect("written");
    drop(writer);
    assert_eq!(take(), Taken::Some);
    assert_eq!(take(), Taken::Closed);
    assert!(place.0.join("x.log").exists());
}

#[test]
fn where_only_the_reserve_is_left_a_log_does_not_grow() {
    let place = Place::new();
    let feed_all = |reserve: u64| {
        let kept = OutputRetention {
            reserve: Some(atoll_model::Bytes(reserve)),
            ..OutputRetention::default()
        };
        let budget = Arc::new(Budget::new(kept, place.0.clone()));
        let log = OutputLog::new(place.0.join(reserve.to_string())).within(&budget);
        let turn = vec![7; 60_000];
        while log.bounds().1 < 8 * PIECE {
            feed(&log, Stream::Stdout, &turn);
        }
        let (start, end) = log.bounds();
        end - start
    };
    assert!(feed_all(0) > 8 * PIECE - 1);
    let left = feed_all(u64::MAX);
    assert!(left <= 3 * PIECE, "{left}");
}

#[test]
fn what_gives_way_keeps_its_end_also_for_the_next_reader() {
    let place = Place::new();
    let budget = Arc::new(Budget::new(OutputRetention::default(), place.0.clone()));
    let log = OutputLog::new(place.0.join("x")).within(&budget);
    feed(&log, Stream::Stdout, &vec![7; 100_000]);
    feed(&log, Stream::Stderr, b"last");
    assert!(log.give_way() && !log.give_way());
    let (start, end) = log.bounds();
    assert_eq!((start, end), (100_004 / PAGE * PAGE, 100_004));
    let again = OutputLog::open(place.0.join("x")).expect("it opens");
    assert_eq!(again.bounds(), (start, end));
    let all = pieces(&again);
    assert_eq!(all.last(), Some(&(Stream::Stderr, b"last".to_vec())));
}
