//! Many concurrent runs, some of them killed.

use std::process::Stdio;
use std::time::Duration;

use atoll_testkit::{Scratch, run_within, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use super::{atoll, output_text, own_data};

#[test]
fn heavy_parallel_runs_are_isolated_and_gc_removes_killed_runs() {
    let scratch = Scratch::new();
    let data = own_data(&scratch);
    let own = |args: &[&str]| {
        let mut command = atoll(args);
        command.env("ATOLL_DATA_DIR", &data);
        command
    };

    let mut runs = Vec::new();
    for number in 0..200 {
        let word = format!("run {number}");
        // Every tenth runs for ever and is killed.
        let args = if number % 10 == 0 {
            ["sleep".to_owned(), "1000".to_owned()]
        } else {
            ["echo".to_owned(), word]
        };
        let mut command = own(&["run", "--template", "one", "--", "/probe"]);
        let child = command
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        runs.push((number, child.unwrap()));
    }
    let mut tags = Vec::new();
    for (number, child) in runs {
        if number % 10 == 0 {
            // Killed at an arbitrary point.
            kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
            child.wait_with_output().unwrap();
            tags.push(number);
        } else {
            let output = child.wait_with_output().unwrap();
            assert_eq!(output_text(&output), format!("run {number}\nexit 0"));
        }
    }
    assert_eq!(tags.len(), 20);

    // The keepers of killed runs end their sandboxes.
    let runs_left = || std::fs::read_dir(data.join("runs")).map_or(0, Iterator::count);
    wait_for(
        "everything of the killed runs to be collected",
        Duration::from_mins(1),
        || {
            let collected = run_within(&mut own(&["gc"]), Duration::from_mins(1), b"");
            assert!(collected.status.success(), "{}", output_text(&collected));
            runs_left() == 0
        },
    );
    let ours = |text: &str| text.contains(data.to_str().unwrap());
    let instances = std::fs::read_dir("/run/atoll/instances").unwrap().flatten();
    let mut left = instances
        .filter(|entry| std::fs::read_to_string(entry.path()).is_ok_and(|text| ours(&text)));
    assert!(left.next().is_none(), "a registration is left");
}
