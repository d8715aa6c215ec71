#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

fn open(path: &Path) -> File {
    File::open(path).unwrap()
}

/// Creates `levels` nested directories called `name` in `path`, with a file in each hundredth.
fn nest(path: &Path, name: &str, levels: usize) {
    let mut here = OwnedFd::from(open(path));
    for level in 0..levels {
        rustix::fs::mkdirat(&here, name, Mode::from(0o755)).unwrap();
        here = rustix::fs::openat(&here, name, OPEN_DIRECTORY, Mode::empty()).unwrap();
        if level % 100 == 0 {
            rustix::fs::openat(
                &here,
                "file",
                OFlags::CREATE | OFlags::WRONLY,
                Mode::from(0o644),
            )
            .unwrap();
        }
    }
}

#[test]
fn deep_tree_is_measured_and_removed() {
    // In memory where possible: some disks take half a minute for so many directories.
    let temp = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    nest(temp.path(), "deep", 50_000);
    let parent = open(temp.path());
    let usage = usage(parent.as_fd()).unwrap();
    assert_eq!(usage.inodes, 50_000 + 500);
    remove(parent.as_fd(), OsStr::new("deep")).unwrap();
    assert!(!temp.path().join("deep").exists());
}

#[test]
fn unusual_names_are_removed() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for name in [
        b"a\nb".to_vec(),
        vec![b'x'; 255],
        vec![0xff, 0xfe],
        b"-rf *".to_vec(),
    ] {
        let inner = tree.join(std::ffi::OsString::from_vec(name));
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        fs::create_dir(inner.join("empty")).unwrap();
    }
    remove(open(temp.path()).as_fd(), OsStr::new("tree")).unwrap();
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
}

#[test]
fn wide_directory_is_removed() {
    let temp = tempfile::tempdir().unwrap();
    let tree = temp.path().join("tree");
    for directory in 0..40 {
        let inner = tree.join(format!("d{directory}"));
        fs::create_dir_all(&inner).unwrap();
        for file in 0..200 {
            fs::write(inner.join(format!("f{file}")), "").unwrap();
        }
    }
    remove(open(temp.path()).as_fd(), OsStr::new("tree")).unwrap();
    assert!(!tree.exists());
}

#[test]
fn symlinks_are_removed_not_followed() {
    let temp = tempfile::tempdir().unwrap();
    let outside = temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    let tree = temp.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    symlink(&outside, tree.join("sub/link")).unwrap();
    symlink("..", tree.join("sub/up")).unwrap();
    symlink(&outside, temp.path().join("link")).unwrap();
    let parent = open(temp.path());
    remove(parent.as_fd(), OsStr::new("tree")).unwrap();
    remove(parent.as_fd(), OsStr::new("link")).unwrap();
    assert!(outside.join("precious").exists());
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
}

#[test]
fn absent_name_is_no_error_and_a_path_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let parent = open(temp.path());
    remove(parent.as_fd(), OsStr::new("nothing")).unwrap();
    for name in ["", ".", "..", "a/b", "/etc"] {
        assert_eq!(
            remove(parent.as_fd(), OsStr::new(name)).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}

#[test]
fn contents_are_removed_and_the_directory_is_kept() {
    let temp = tempfile::tempdir().unwrap();
    nest(temp.path(), "d", 3);
    fs::write(temp.path().join("file"), "x").unwrap();
    remove_contents(open(temp.path()).as_fd()).unwrap();
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0);
}

#[test]
fn usage_counts_a_hard_linked_file_once() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("a"), vec![1; 100_000]).unwrap();
    fs::hard_link(temp.path().join("a"), temp.path().join("b")).unwrap();
    let usage = usage(open(temp.path()).as_fd()).unwrap();
    assert_eq!(usage.inodes, 1);
    assert!((100_000..200_000).contains(&usage.bytes), "{usage:?}");
}
