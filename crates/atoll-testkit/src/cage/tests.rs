use super::Cage;
use crate::{Scratch, mounts};

#[test]
fn disk_has_its_size_and_is_removed() {
    let scratch = Scratch::new();
    let disk = Cage::disk(scratch.path(), 64 << 20);
    let point = disk.path().to_owned();
    std::fs::write(point.join("fits"), vec![1; 1 << 20]).expect("it can be written");
    let full = std::fs::write(point.join("does-not"), vec![1; 80 << 20]).expect_err("it is full");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let mounted = || mounts().iter().any(|mount| mount.point == point);
    assert!(mounted());
    drop(disk);
    assert!(!mounted() && !point.exists());
}
