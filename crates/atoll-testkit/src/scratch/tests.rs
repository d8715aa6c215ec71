use super::Scratch;

#[test]
fn scratch_is_gone_when_dropped() {
    let scratch = Scratch::new();
    let path = scratch.path().to_owned();
    std::fs::write(scratch.join("file"), "x").expect("it can be written");
    drop(scratch);
    assert!(!path.exists());
}
