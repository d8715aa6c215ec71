use std::process::Command;

use super::make_deb;
use crate::{Scratch, run};

#[test]
fn package_has_its_script() {
    let scratch = Scratch::new();
    let package = make_deb(scratch.path());
    let listing = run(Command::new("dpkg-deb").arg("--contents").arg(package));
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    assert!(listing.contains("-rwxr-xr-x root/root"), "{listing}");
    assert!(listing.contains("./usr/bin/atoll-hello"), "{listing}");
}
