//! Records survive truncated lines, deletions and compactions.

use std::sync::Arc;

use atoll_model::{ExecSpec, ExecStatus};

use super::super::record::ExecRecord;
use super::*;

fn log() -> (tempfile::TempDir, Arc<RecordLog>) {
    let directory = tempfile::tempdir().expect("a directory");
    let log = RecordLog::open(directory.path().to_owned());
    (directory, log)
}

fn start(log: &Arc<RecordLog>, word: &str, at: i64) -> ExecRecord {
    let mut record = ExecRecord::for_test(log, ExecSpec::argv([word]), at);
    record.write_start().expect("written");
    record
}

/// Recorded commands, and whether each has ended.
fn recorded(log: &Arc<RecordLog>) -> Vec<(ExecId, bool)> {
    let all = ExecRecord::read_all(log).expect("read").into_iter();
    all.map(|record| (record.id, record.status.is_some()))
        .collect()
}

#[test]
fn truncated_line_loses_no_other_line() {
    let (_directory, log) = log();
    let mut first = start(&log, "first", 1);
    let second = start(&log, "second", 2);
    let whole = fs::read(log.path()).expect("there");
    let begins = whole.windows(2).rposition(|two| two == b"\n\n");
    for end in begins.expect("two lines") + 1..whole.len() {
        fs::write(log.path(), &whole[..end]).expect("written");
        first.write_end(ExecStatus::default(), 5).expect("written");
        let third = start(&log, "third", 3);
        let mut expected = vec![(first.id.clone(), true), (third.id, false)];
        // Only the newline is missing.
        if end == whole.len() - 1 {
            expected.insert(1, (second.id.clone(), false));
        }
        assert_eq!(recorded(&log), expected, "cut at {end}");
    }
}

#[test]
fn missing_log_is_empty_and_unreadable_log_is_an_error() {
    let (directory, _) = log();
    let missing = RecordLog::open(directory.path().join("missing"));
    assert_eq!(recorded(&missing), []);
    fs::create_dir_all(missing.path()).expect("made");
    ExecRecord::read_all(&missing).expect_err("a directory is no file");
}

#[test]
fn deleted_records_stay_deleted_and_are_compacted() {
    let (_directory, log) = log();
    let stays = start(&log, "stays", 0);
    let word = "x".repeat(1000);
    let mut longest = 0;
    for at in 1..3000 {
        let mut record = start(&log, &word, at);
        record
            .write_end(ExecStatus::default(), at)
            .expect("written");
        record.tombstone();
        longest = longest.max(fs::metadata(log.path()).expect("there").len());
        if at % 100 == 0 {
            let expected = [(stays.id.clone(), false)];
            assert_eq!(recorded(&log), expected);
            // Another server reads the same.
            let other = Arc::new(RecordLog::new(log.directory().to_owned()));
            assert_eq!(recorded(&other), expected);
        }
    }
    assert!(longest < 2 * MIN_COMPACTION_BYTES as u64, "{longest}");
    assert!(!log.directory().join(NEW_FILE_NAME).exists());
}

#[test]
fn log_of_a_directory_is_shared() {
    let (directory, log) = log();
    let path = directory.path().to_owned();
    let mut early = start(&log, "early", 1);
    // A restarted sandbox has commands of its own and compacts the log.
    let later = RecordLog::open(path.clone());
    let word = "x".repeat(2 * MIN_COMPACTION_BYTES);
    start(&later, &word, 2).tombstone();
    assert!(fs::metadata(later.path()).expect("there").len() < MIN_COMPACTION_BYTES as u64);
    early.write_end(ExecStatus::default(), 3).expect("written");
    assert_eq!(
        recorded(&Arc::new(RecordLog::new(path.clone()))),
        [(early.id.clone(), true)]
    );
    drop((early, log, later));
    assert!(!super::open_logs().contains_key(&path), "the log is closed");
}

#[test]
fn files_of_earlier_versions_are_read_and_merged() {
    let (directory, log) = log();
    let (kept, gone) = (start(&log, "kept", 1), start(&log, "gone", 2));
    // In their format: a file for each command, without ids.
    for (record, end) in [
        (&kept, ""),
        (
            &gone,
            "{\"ended\":{\"code\":0,\"signal\":null,\"oom_killed\":false,\"timed_out\":false,\"at\":9}}\n",
        ),
    ] {
        let lines = log.read().expect("read");
        let (_, line) = lines
            .iter()
            .find(|(id, _)| *id == record.id.as_str())
            .expect("a line");
        let text = [line, b"\n", end.as_bytes()].concat();
        fs::write(record.stem().with_extension("json"), text).expect("written");
    }
    fs::remove_file(log.path()).expect("removed");
    log.close_when_idle();
    let both = [(kept.id.clone(), false), (gone.id.clone(), true)];
    assert_eq!(recorded(&log), both);
    // New events are written to the log.
    let [mut old, _] = ExecRecord::read_all(&log)
        .expect("read")
        .try_into()
        .expect("two");
    old.write_end(ExecStatus::default(), 5).expect("written");
    gone.tombstone();
    assert_eq!(recorded(&log), [(kept.id.clone(), true)]);
    log.compact().expect("room");
    assert_eq!(recorded(&log), [(kept.id.clone(), true)]);
    let files = fs::read_dir(directory.path()).expect("there").count();
    assert_eq!(files, 1);
}

#[test]
fn log_stays_intact_if_compaction_fails() {
    let (directory, log) = log();
    let record = start(&log, "one", 1);
    // A directory is in the place of the new file.
    fs::create_dir(directory.path().join(NEW_FILE_NAME)).expect("made");
    log.compact().expect_err("the path is a directory");
    assert_eq!(recorded(&log), [(record.id, false)]);
}
