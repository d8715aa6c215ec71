//! Private addresses that the operator opened with `--egress-allow`, for the log and `atoll
//! doctor`.

use std::path::{Path, PathBuf};

use atoll_model::{EgressException, Error};

use super::write_atomic;

/// File with one exception per line: the network rules remain after the server has exited, as long
/// as sandboxes run.
fn path(data: &Path) -> PathBuf {
    data.join("run/egress-allow")
}

/// Logs the exceptions of a starting server, and writes them to the file.
pub(super) fn record(data: &Path, exceptions: &[EgressException]) -> Result<(), Error> {
    if exceptions.is_empty() {
        let _ = std::fs::remove_file(path(data));
        return Ok(());
    }
    let words: Vec<String> = exceptions.iter().map(ToString::to_string).collect();
    tracing::info!(
        egress_allow = words.join(" "),
        "sandboxes with a network also reach these addresses"
    );
    write_atomic(&path(data), &words.join("\n"))
}

/// The exceptions of the last server of a data directory.
pub(crate) fn read(data: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path(data)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}
