use std::io::Write as _;

use super::*;
use crate::Scratch;

#[test]
fn synced_files_survive_every_cut_and_others_may_not() {
    let scratch = Scratch::new();
    let recorder = Recorder::new(scratch.path(), 32 << 20);
    let synced = |name: &str| {
        let mut file = File::create(recorder.path().join(name)).expect("made");
        file.write_all(name.as_bytes()).expect("written");
        file.sync_all().expect("synced");
        recorder.position()
    };
    let begin = recorder.position();
    let positions = ["one", "two", "three"].map(|name| (name, synced(name)));
    fs::write(recorder.path().join("four"), "four").expect("written");
    let end = recorder.position();
    recorder.finish();
    for position in begin..=end {
        for keep in [true, false] {
            recorder.cut(position, || keep);
            for (name, since) in &positions {
                if position >= *since {
                    let found = fs::read_to_string(recorder.path().join(name));
                    assert_eq!(found.expect("it was synced"), *name, "{position} of {end}");
                }
            }
            if position == begin {
                assert!(!recorder.path().join("one").exists());
            }
            assert!(!recorder.path().join("four").exists());
            // Forgotten with the next cut.
            fs::write(recorder.path().join("later"), "x").expect("written");
            recorder.unmount();
        }
    }
}
