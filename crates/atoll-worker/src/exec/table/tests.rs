//! What a table keeps, forgets and asks for.

use atoll_model::{ExecStatus, SandboxId};
use atoll_store::CommandRow;

use super::*;
use crate::journal::Journals;

/// A sandbox's directory, with what is written about it.
struct Place {
    id: SandboxId,
    directory: tempfile::TempDir,
    ledger: Arc<RecordLog>,
    journals: Arc<Journals>,
    next: i64,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join("execs")).expect("a directory");
        Self {
            id: SandboxId::random(),
            ledger: RecordLog::open(directory.path().join("execs")),
            directory,
            journals: Arc::default(),
            next: 0,
        }
    }

    fn execs(&self) -> PathBuf {
        self.directory.path().join("execs")
    }

    fn table(&self, complete: bool) -> ExecTable {
        let mark = JournalNotifier {
            id: self.id.clone(),
            journals: Arc::clone(&self.journals),
            syncer: Arc::default(),
        };
        ExecTable::new(self.execs(), complete, Some(mark))
    }

    /// Writes down a command that began, and perhaps ended.
    fn record(&mut self, ended: bool) -> ExecRecord {
        self.record_of(&ExecSpec::argv(["true"]), ended)
    }

    fn record_of(&mut self, spec: &ExecSpec, ended: bool) -> ExecRecord {
        self.next += 1;
        let mut record = ExecRecord::of(&self.ledger, spec.clone(), self.next);
        record.write().expect("written");
        if ended {
            record.end(ExecStatus::default(), 9).expect("written");
        }
        record
    }

    /// Has commands begin and end, as a server sees them.
    fn run(&mut self, table: &ExecTable, count: usize) {
        self.run_all(table, count, &ExecSpec::argv(["true"]));
    }

    fn run_all(&mut self, table: &ExecTable, count: usize, spec: &ExecSpec) {
        for _ in 0..count {
            let record = self.record_of(spec, true);
            let log = OutputLog::new(record.stem());
            table.add(Arc::new(ExecState::with(record, log)));
            table.tidy();
        }
    }

    /// How many are written down.
    fn written(&self) -> usize {
        ExecRecord::read_all(&self.ledger).expect("a ledger").len()
    }

    /// How many files there are of a kind.
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

    /// Everything the journal has that nobody took.
    async fn read(&self, table: &ExecTable) -> Vec<CommandRow> {
        let read = self.journals.read(&self.id, table, 10_000).await;
        read.expect("a journal")
    }
}

#[tokio::test]
async fn a_table_presses_once_for_all_that_wait() {
    let mut place = Place::new();
    let table = place.table(true);
    place.run(&table, REMEMBERED + PRESSING - 1);
    assert_eq!(place.journals.next_urgent(), None);
    place.run(&table, 100);
    assert_eq!(place.journals.next_urgent(), Some(place.id.clone()));
    assert_eq!(place.journals.next_urgent(), None);
    let all = REMEMBERED + PRESSING + 99;
    assert_eq!((place.written(), table.list().len()), (all, all));
    place.write(&table).await;
    assert_eq!(place.written(), REMEMBERED);
    // The same number again.
    place.run(&table, REMEMBERED + PRESSING - 1);
    assert_eq!(place.journals.next_urgent(), None);
    place.run(&table, 1);
    assert_eq!(place.journals.next_urgent(), Some(place.id.clone()));
    let rows = place.read(&table).await;
    assert_eq!(rows.len(), all + REMEMBERED + PRESSING);
    assert_eq!(place.written(), REMEMBERED);
    assert_eq!(place.journals.health().lost, 0);
    place.journals.close().await;
}

#[tokio::test]
async fn what_no_journal_takes_is_given_up_at_last() {
    let mut place = Place::new();
    let table = place.table(true);
    place.run(&table, REMEMBERED + WAITING + 3);
    assert_eq!(place.journals.health().lost, 3);
    assert_eq!(place.written(), REMEMBERED + WAITING);
    assert_eq!(place.read(&table).await.len(), REMEMBERED + WAITING);
    assert_eq!(place.written(), REMEMBERED);
    place.journals.close().await;
}

#[tokio::test]
async fn what_is_long_is_remembered_for_shorter() {
    let mut place = Place::new();
    let table = place.table(true);
    // A sixteenth of what may be, by one long word or by many short ones.
    let line = "x".repeat(HEAVY / 16);
    let words = vec!["x"; HEAVY / 16 / 65];
    place.run(&table, 3);
    place.run_all(&table, 10, &ExecSpec::shell(line.as_str()));
    assert_eq!(place.journals.next_urgent(), None);
    place.run_all(&table, 10, &ExecSpec::argv(&words));
    assert_eq!(place.journals.next_urgent(), Some(place.id.clone()));
    assert_eq!(place.written(), 23);
    // The oldest go first, however short they are.
    place.write(&table).await;
    assert_eq!((place.written(), table.list().len()), (16, 16));
    // Where no journal takes them, some wait.
    place.run_all(&table, 100, &ExecSpec::shell(line.as_str()));
    assert_eq!(place.written(), 64);
    assert_eq!(place.journals.health().lost, 36);
    place.journals.close().await;
}

#[tokio::test]
async fn what_runs_was_not_asked_for_in_too_many_words() {
    let place = Place::new();
    let table = place.table(true);
    let spec = ExecSpec::shell("x".repeat(HEAVY / 4));
    let places: Vec<_> = (0..4).map(|_| table.room(table.inner(), &spec)).collect();
    assert!(places.iter().all(Result::is_ok));
    let refused = table.room(table.inner(), &ExecSpec::argv(["true"]));
    assert!(refused.is_err_and(|error| error.code == Code::QuotaExceeded));
    drop(places);
    assert!(table.room(table.inner(), &spec).is_ok());
    place.journals.close().await;
}

#[tokio::test]
async fn nothing_is_left_of_a_command_that_is_forgotten() {
    let mut place = Place::new();
    // Of an earlier server, killed between two files.
    let record = place.record(true);
    std::fs::write(record.stem().with_extension("index"), b"").expect("written");
    let table = place.table(false);
    assert_eq!(table.list().len(), 1);
    place.run(&table, REMEMBERED - 1);
    place.write(&table).await;
    assert_eq!((place.written(), place.files("index")), (REMEMBERED, 1));
    place.run(&table, 1);
    assert_eq!((place.written(), place.files("index")), (REMEMBERED, 0));
    table.find(&record.id).expect_err("it is forgotten");
    place.journals.close().await;
}

#[tokio::test]
async fn a_command_that_is_just_beginning_was_not_killed_with_an_earlier_server() {
    let mut place = Place::new();
    let killed = place.record(false);
    let ended = place.record(true);
    let table = place.table(false);
    let room = table
        .room(table.inner(), &ExecSpec::argv(["true"]))
        .expect("room");
    let begins = place.record(false);
    // What has no end may be either.
    let rows = place.read(&table).await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].id, ended.id);
    assert_eq!(table.list().len(), 1);
    let log = OutputLog::new(begins.stem());
    let shared = ExecState {
        progress: watch::Sender::default(),
        ..ExecState::with(begins.clone(), log)
    };
    table.add(Arc::new(shared));
    drop(room);
    let mut rows = place.read(&table).await;
    rows.retain(|row| row.id != ended.id);
    rows.sort_by_key(|row| row.started_at);
    let seen = rows.iter().map(|row| (&row.id, row.ended.is_some()));
    let seen: Vec<_> = seen.collect();
    assert_eq!(seen, [(&killed.id, true), (&begins.id, false)]);
    assert_eq!(table.list().len(), 3);
    place.journals.close().await;
}
