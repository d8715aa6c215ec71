//! The storage of a server: the one that its operator sets, else the one of the data directory, else plain directories
//! (decision 0045).

use std::path::Path;

use atoll_jail::facts::Facts;
use atoll_worker::{Storage, storage};

/// The storage that a server uses on a data directory.
pub(crate) fn choose(set: Option<Storage>, data: &Path) -> Storage {
    set.or_else(|| storage::recorded_kind(data))
        .unwrap_or(Storage::Plain)
}

/// Warning of a server that uses plain directories by default.
pub(super) fn warning(data: &Path) -> String {
    format!(
        "disk limits of sandboxes (diskMB) are not enforced, because their files are in plain directories; {}; --storage plain turns this warning off",
        remedy(data, &Facts::read())
    )
}

/// Remedy: how to enforce disk limits.
fn remedy(data: &Path, facts: &Facts) -> String {
    match storage::check_host(Storage::Image, facts) {
        Err(error) => format!(
            "--storage image enforces them and needs what this machine lacks: {}",
            error.remedy.unwrap_or(error.message)
        ),
        Ok(()) if storage::has_sandboxes(data) => {
            "--storage image enforces them, in a data directory without sandboxes".into()
        }
        Ok(()) => "--storage image enforces them".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_setting_overrides_data_directory_and_default() {
        let data = tempfile::tempdir().expect("a directory");
        let data = data.path();
        assert_eq!(choose(None, data), Storage::Plain);
        assert_eq!(choose(Some(Storage::Image), data), Storage::Image);
        std::fs::write(data.join("storage.kind"), "image\n").expect("written");
        assert_eq!(choose(None, data), Storage::Image);
        assert_eq!(choose(Some(Storage::Plain), data), Storage::Plain);
    }

    #[test]
    fn the_warning_names_the_remedy_that_applies() {
        let data = tempfile::tempdir().expect("a directory");
        let data = data.path();
        let mut facts = Facts::read();
        facts.filesystems.clear();
        let text = remedy(data, &facts);
        assert!(text.contains("modprobe btrfs"), "{text}");
    }
}
