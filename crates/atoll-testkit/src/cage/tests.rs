//! Needs root, as everything that has a cage does. The cage moves the whole process, so this is the one test that makes one.

use super::Cage;
use crate::{Residue, Scratch};

#[test]
fn cage_holds_this_process_and_goes_away() {
    let before = std::fs::read_to_string("/proc/self/cgroup").expect("/proc is mounted");
    let cage = Cage::new();
    let inside = std::fs::read_to_string("/proc/self/cgroup").expect("/proc is mounted");
    assert!(
        inside.contains(&format!("/cage-atoll-{}", std::process::id())),
        "{inside}"
    );
    let directories: Vec<_> = cage.directories().map(std::path::Path::to_owned).collect();
    assert!(!directories.is_empty());
    drop(cage);
    assert_eq!(
        std::fs::read_to_string("/proc/self/cgroup").expect("/proc is mounted"),
        before
    );
    assert!(directories.iter().all(|directory| !directory.exists()));
}

#[test]
fn disk_is_small_and_goes_away() {
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 64 << 20);
    let point = disk.path().to_owned();
    std::fs::write(point.join("fits"), vec![1; 1 << 20]).expect("it can be written");
    let full = std::fs::write(point.join("does-not"), vec![1; 80 << 20]).expect_err("it is full");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let there = Residue::take();
    drop(disk);
    assert!(
        there
            .diff(&Residue::take())
            .iter()
            .any(|line| line.starts_with(&format!("- mount {}", point.display())))
    );
}
