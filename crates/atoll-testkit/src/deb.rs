//! Builds a Debian package, for the test that a sandbox can install one without a network.

#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

const CONTROL: &str = "\
Package: atoll-hello
Version: 1.0
Architecture: all
Maintainer: Atoll tests <tests@localhost>
Description: a greeting, to see that packages install
";

const PROGRAM: &str = "#!/bin/sh\necho hello from a package\n";

const AFTER: &str = "#!/bin/sh\nset -e\necho configured > /var/lib/atoll-hello\n";

/// Builds `atoll-hello_1.0_all.deb` in a directory: a script `/usr/bin/atoll-hello`, which says `hello from a package`, and
/// a postinst, which writes `configured` to `/var/lib/atoll-hello`.
pub fn make_deb(dir: &Path) -> PathBuf {
    let tree = dir.join("atoll-hello");
    for (name, text, mode) in [
        ("DEBIAN/control", CONTROL, 0o644),
        ("DEBIAN/postinst", AFTER, 0o755),
        ("usr/bin/atoll-hello", PROGRAM, 0o755),
    ] {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().expect("names have a parent"))
            .expect("the package's tree can be made");
        fs::write(&path, text).expect("the package's files can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("modes can be set");
    }
    let package = dir.join("atoll-hello_1.0_all.deb");
    let output = run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "--build"])
        .arg(&tree)
        .arg(&package));
    assert!(
        output.status.success(),
        "dpkg-deb: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::remove_dir_all(&tree).expect("the package's tree can be removed");
    package
}
