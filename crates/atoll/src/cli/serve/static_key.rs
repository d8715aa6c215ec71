//! The file with the static key.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use atoll_core::StaticKey;
use atoll_model::Error;

/// Reads the key from a file that only its owner can access.
pub(super) fn read(file: &Path, org: Option<String>) -> Result<StaticKey, Error> {
    let invalid = |problem: String, remedy: String| {
        let message = format!("--static-key-file {}: {problem}", file.display());
        Error::invalid("static-key-file", message, remedy)
    };
    let unreadable = |error: std::io::Error| {
        invalid(
            error.to_string(),
            "name a file that contains the key".into(),
        )
    };
    let mode = std::fs::metadata(file).map_err(unreadable)?.permissions();
    if mode.mode() & 0o077 != 0 {
        return Err(invalid(
            "other users can read it".into(),
            format!("chmod 600 {}", file.display()),
        ));
    }
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    StaticKey::new(text.trim_end_matches(['\r', '\n']), org)
}
