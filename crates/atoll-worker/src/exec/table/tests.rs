//! Eviction, journaling and limits of the exec table.

use atoll_model::{CommandRow, ExecStatus, SandboxId};

use super::eviction::{FLUSH_THRESHOLD, MAX_ENDED, MAX_UNJOURNALED};
use super::*;
use crate::journal::Journals;
use atoll_model::ExecSpec;

/// A sandbox's directory with its records and journal.
struct Fixture {
    id: SandboxId,
    directory: tempfile::TempDir,
    record_log: Arc<RecordLog>,
    journals: Arc<Journals>,
    next: i64,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("execs")).expect("a directory");
        Self {
            id: SandboxId::random(),
            record_log: RecordLog::open(directory.path().join("execs")),
            directory,
            journals: Arc::default(),
            next: 0,
        }
    }

    fn execs(&self) -> PathBuf {
        self.directory.path().join("execs")
    }

    fn table(&self, complete: bool) -> ExecTable {
        let notifier = JournalNotifier {
            id: self.id.clone(),
            journals: Arc::clone(&self.journals),
            syncer: Arc::default(),
        };
        ExecTable::new(self.execs(), complete, Some(notifier))
    }

    /// Records a command that started, and possibly ended.
    fn record(&mut self, ended: bool) -> ExecRecord {
        self.record_of(&ExecSpec::argv(["true"]), ended)
    }

    fn record_of(&mut self, spec: &ExecSpec, ended: bool) -> ExecRecord {
        self.next += 1;
        let mut record = ExecRecord::for_test(&self.record_log, spec.clone(), self.next);
        record.write_start().expect("written");
        if ended {
            record.write_end(ExecStatus::default(), 9).expect("written");
        }
        record
    }

    /// Adds ended commands, as a server does.
    fn run(&mut self, table: &ExecTable, count: usize) {
        self.run_all(table, count, &ExecSpec::argv(["true"]));
    }

    fn run_all(&mut self, table: &ExecTable, count: usize, spec: &ExecSpec) {
        for _ in 0..count {
            let record = self.record_of(spec, true);
            let log = OutputLog::new(record.stem());
            table.add(Arc::new(ExecState::from_record(record, log)));
            table.evict_ended();
        }
    }

    /// Number of records.
    fn written(&self) -> usize {
        ExecRecord::read_all(&self.record_log)
            .expect("a record log")
            .len()
    }

    /// Number of files with an extension.
    fn files(&self, kind: &str) -> usize {
        let all = std::fs::read_dir(self.execs()).expect("a directory");
        let all = all.map(|entry| entry.expect("an entry").path());
        all.filter(|path| path.extension().is_some_and(|is| is == kind))
            .count()
    }

    async fn write(&self, table: &ExecTable) {
        let written = self.journals.write(&self.id, table).await;
        written.expect("a journal");
    }

    /// All unsynced rows of the journal.
    async fn read(&self, table: &ExecTable) -> Vec<CommandRow> {
        let read = self.journals.read(&self.id, table, 10_000).await;
        read.expect("a journal")
    }
}

#[tokio::test]
async fn table_requests_one_flush_for_all_waiting_commands() {
    let mut fixture = Fixture::new();
    let table = fixture.table(true);
    fixture.run(&table, MAX_ENDED + FLUSH_THRESHOLD - 1);
    assert_eq!(fixture.journals.next_urgent(), None);
    fixture.run(&table, 100);
    assert_eq!(fixture.journals.next_urgent(), Some(fixture.id.clone()));
    assert_eq!(fixture.journals.next_urgent(), None);
    let all = MAX_ENDED + FLUSH_THRESHOLD + 99;
    assert_eq!((fixture.written(), table.list().len()), (all, all));
    fixture.write(&table).await;
    assert_eq!(fixture.written(), MAX_ENDED);
    // The same number of commands again.
    fixture.run(&table, MAX_ENDED + FLUSH_THRESHOLD - 1);
    assert_eq!(fixture.journals.next_urgent(), None);
    fixture.run(&table, 1);
    assert_eq!(fixture.journals.next_urgent(), Some(fixture.id.clone()));
    let rows = fixture.read(&table).await;
    assert_eq!(rows.len(), all + MAX_ENDED + FLUSH_THRESHOLD);
    assert_eq!(fixture.written(), MAX_ENDED);
    assert_eq!(fixture.journals.status().lost, 0);
    fixture.journals.close().await;
}

#[tokio::test]
async fn commands_are_evicted_at_last_if_the_journal_fails() {
    let mut fixture = Fixture::new();
    let table = fixture.table(true);
    fixture.run(&table, MAX_ENDED + MAX_UNJOURNALED + 3);
    assert_eq!(fixture.journals.status().lost, 3);
    assert_eq!(fixture.written(), MAX_ENDED + MAX_UNJOURNALED);
    assert_eq!(
        fixture.read(&table).await.len(),
        MAX_ENDED + MAX_UNJOURNALED
    );
    assert_eq!(fixture.written(), MAX_ENDED);
    fixture.journals.close().await;
}

#[tokio::test]
async fn commands_with_long_arguments_are_evicted_earlier() {
    let mut fixture = Fixture::new();
    let table = fixture.table(true);
    // A sixteenth of the limit, by one long argument or by many short ones.
    let line = "x".repeat(MAX_SPEC_BYTES / 16);
    let words = vec!["x"; MAX_SPEC_BYTES / 16 / 65];
    fixture.run(&table, 3);
    fixture.run_all(&table, 10, &ExecSpec::shell(line.as_str()));
    assert_eq!(fixture.journals.next_urgent(), None);
    fixture.run_all(&table, 10, &ExecSpec::argv(&words));
    assert_eq!(fixture.journals.next_urgent(), Some(fixture.id.clone()));
    assert_eq!(fixture.written(), 23);
    // The oldest are evicted first, even short ones.
    fixture.write(&table).await;
    assert_eq!((fixture.written(), table.list().len()), (16, 16));
    // If the journal is not flushed, some wait.
    fixture.run_all(&table, 100, &ExecSpec::shell(line.as_str()));
    assert_eq!(fixture.written(), 64);
    assert_eq!(fixture.journals.status().lost, 36);
    fixture.journals.close().await;
}

#[tokio::test]
async fn running_commands_have_bounded_arguments() {
    let fixture = Fixture::new();
    let table = fixture.table(true);
    let spec = ExecSpec::shell("x".repeat(MAX_SPEC_BYTES / 4));
    let reservations: Vec<_> = (0..4)
        .map(|_| table.reserve_new(table.inner(), &spec))
        .collect();
    assert!(reservations.iter().all(Result::is_ok));
    let refused = table.reserve_new(table.inner(), &ExecSpec::argv(["true"]));
    assert!(refused.is_err_and(|error| error.code == Code::QuotaExceeded));
    drop(reservations);
    assert!(table.reserve_new(table.inner(), &spec).is_ok());
    fixture.journals.close().await;
}

#[tokio::test]
async fn evicted_command_leaves_no_files() {
    let mut fixture = Fixture::new();
    // From an earlier server that was killed between two files.
    let record = fixture.record(true);
    std::fs::write(record.stem().with_extension("index"), b"").expect("written");
    let table = fixture.table(false);
    assert_eq!(table.list().len(), 1);
    fixture.run(&table, MAX_ENDED - 1);
    fixture.write(&table).await;
    assert_eq!((fixture.written(), fixture.files("index")), (MAX_ENDED, 1));
    fixture.run(&table, 1);
    assert_eq!((fixture.written(), fixture.files("index")), (MAX_ENDED, 0));
    table.find(&record.id).expect_err("it is forgotten");
    fixture.journals.close().await;
}

#[tokio::test]
async fn starting_command_is_not_taken_for_a_killed_one() {
    let mut fixture = Fixture::new();
    let killed = fixture.record(false);
    let ended = fixture.record(true);
    let table = fixture.table(false);
    let reservation = table
        .reserve_new(table.inner(), &ExecSpec::argv(["true"]))
        .expect("room");
    let begins = fixture.record(false);
    // A record without an end may be of either kind.
    let rows = fixture.read(&table).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].id, ended.id);
    assert_eq!(table.list().len(), 1);
    let log = OutputLog::new(begins.stem());
    let shared = ExecState {
        progress: watch::Sender::default(),
        ..ExecState::from_record(begins.clone(), log)
    };
    table.add(Arc::new(shared));
    drop(reservation);
    let mut rows = fixture.read(&table).await;
    rows.retain(|row| row.id != ended.id);
    rows.sort_by_key(|row| row.started_at);
    let seen = rows.iter().map(|row| (&row.id, row.ended.is_some()));
    let seen: Vec<_> = seen.collect();
    assert_eq!(seen, [(&killed.id, true), (&begins.id, false)]);
    assert_eq!(table.list().len(), 3);
    fixture.journals.close().await;
}
