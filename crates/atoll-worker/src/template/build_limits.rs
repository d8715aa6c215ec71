//! Counts the entries and bytes of a build, enforces its limits and reports progress.

use super::Error;

/// Maximum number of entries of an imported tree.
const MAX_ENTRIES: u64 = 2_000_000;

/// Number of entries between two progress reports.
const PROGRESS_INTERVAL_ENTRIES: u64 = 256;

/// Stage of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Another process builds the same template; this one waits for it.
    Waiting,
    /// Files are linked or copied.
    Copying,
    /// An archive is unpacked.
    Unpacking,
    /// The tree is complete.
    Finished,
}

/// Progress of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Current stage.
    pub stage: Stage,
    /// Entries made so far.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// Estimated number of entries, if it is known.
    pub total_files: Option<u64>,
}

/// Result of a build.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Files, directories and links in the layer.
    pub files: u64,
    /// Bytes of the files' contents.
    pub bytes: u64,
    /// Entries of the source that were left out: devices, sockets, private files, excluded
    /// directories (each one entry).
    pub skipped: u64,
    /// Files that share their contents with another name instead of being written.
    pub hard_linked: u64,
}

/// Counters and limits of one build.
pub(super) struct BuildMeter<'a> {
    pub(super) report: Report,
    pub(super) stage: Stage,
    pub(super) total_files: Option<u64>,
    max_bytes: u64,
    max_entries: u64,
    progress: &'a mut dyn FnMut(Progress),
}

impl<'a> BuildMeter<'a> {
    /// For the host's own system.
    pub(super) fn unlimited(progress: &'a mut dyn FnMut(Progress)) -> Self {
        Self {
            max_entries: u64::MAX,
            ..Self::limited(u64::MAX, progress)
        }
    }

    /// For an imported tree.
    pub(super) fn limited(max_bytes: u64, progress: &'a mut dyn FnMut(Progress)) -> Self {
        Self {
            max_entries: MAX_ENTRIES,
            report: Report::default(),
            stage: Stage::Copying,
            total_files: None,
            max_bytes,
            progress,
        }
    }

    /// Counts one more entry in the layer.
    pub(super) fn entry(&mut self) -> Result<(), Error> {
        self.report.files += 1;
        if self.report.files > self.max_entries {
            return Err(Error::TooManyEntries(self.max_entries));
        }
        if self.report.files.is_multiple_of(PROGRESS_INTERVAL_ENTRIES) {
            self.report_progress();
        }
        Ok(())
    }

    /// Counts contents, before they are written.
    pub(super) fn bytes(&mut self, count: u64) -> Result<(), Error> {
        self.report.bytes = self.report.bytes.saturating_add(count);
        if self.report.bytes > self.max_bytes {
            Err(Error::TooLarge(self.max_bytes))
        } else {
            Ok(())
        }
    }

    /// Counts an entry of the source that is left out.
    pub(super) fn skip(&mut self) {
        self.report.skipped += 1;
    }

    /// Maximum bytes of the layer.
    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    pub(super) fn report_progress(&mut self) {
        let Report { files, bytes, .. } = self.report;
        (self.progress)(Progress {
            stage: self.stage,
            files,
            bytes,
            total_files: self.total_files,
        });
    }

    pub(super) fn finish(mut self) -> Report {
        self.stage = Stage::Finished;
        self.total_files = Some(self.report.files);
        self.report_progress();
        self.report
    }
}
