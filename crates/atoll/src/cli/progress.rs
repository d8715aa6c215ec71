//! Progress of long operations: a bar on a terminal, otherwise one line.

use std::io::IsTerminal;

use atoll_worker::template::{Progress, Stage};
use indicatif::{ProgressBar, ProgressStyle};

use super::eprint_line;

/// Shows the progress of a template build.
pub(crate) struct Bar {
    shown: ProgressBar,
    what: String,
    announced: bool,
}

impl Bar {
    pub(crate) fn new(what: &str) -> Self {
        let shown = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(
                "{msg} {wide_bar:.cyan/dim} {pos}/{len} files {elapsed}",
            );
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        } else {
            ProgressBar::hidden()
        };
        Self {
            shown,
            what: what.to_owned(),
            announced: false,
        }
    }

    pub(crate) fn show(&mut self, progress: &Progress) {
        if !self.announced && self.shown.is_hidden() {
            eprint_line(&format!("atoll: {} …", self.what));
        }
        self.announced = true;
        self.shown.set_message(match progress.stage {
            Stage::Waiting => format!("{}: waiting for another atoll", self.what),
            _ => self.what.clone(),
        });
        self.shown.set_length(
            progress
                .total_files
                .unwrap_or(progress.files)
                .max(progress.files),
        );
        self.shown.set_position(progress.files);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.shown.finish_and_clear();
    }
}
