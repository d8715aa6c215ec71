use std::panic::catch_unwind;
use std::process::Command;
use std::time::{Duration, Instant};

use super::{run_within, wait_for};
use crate::probe;

#[test]
fn timeout_names_the_unmet_condition() {
    let failure = catch_unwind(|| wait_for("rain", Duration::from_millis(5), || false))
        .expect_err("it panics");
    assert!(
        failure
            .downcast_ref::<String>()
            .is_some_and(|text| text.contains("rain"))
    );
    let mut checks = 0;
    wait_for("the third time", Duration::from_secs(5), || {
        checks += 1;
        checks == 3
    });
}

#[test]
fn command_that_hangs_is_killed() {
    let start = Instant::now();
    let failure = catch_unwind(|| {
        run_within(
            Command::new(probe()).args(["sleep", "30"]),
            Duration::from_millis(50),
            b"",
        );
    })
    .expect_err("it panics");
    assert!(
        failure
            .downcast_ref::<String>()
            .is_some_and(|text| text.contains("still runs"))
    );
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn inherited_output_pipe_is_reported() {
    let failure = catch_unwind(|| {
        run_within(
            Command::new(probe()).args(["daemon", "12", "hold"]),
            Duration::from_secs(6),
            b"",
        );
    })
    .expect_err("it panics");
    assert!(
        failure
            .downcast_ref::<String>()
            .is_some_and(|text| text.contains("held open"))
    );
}
