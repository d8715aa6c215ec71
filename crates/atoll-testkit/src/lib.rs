//! Fixtures for tests of the other crates: the static probe, temporary directories, and small disks to fill.
//!
//! Nothing here is shipped. A fixture that cannot be created panics with the reason: tests are never skipped.

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a fixture that fails must fail its test"
)]

mod cage;
mod cutter;
mod deb;
#[path = "../probe/mountinfo.rs"]
mod mountinfo;
mod postgres;
mod probe;
mod recorder;
mod run;
mod scratch;
#[path = "../probe/screen.rs"]
mod screen;
#[path = "../probe/stream.rs"]
mod stream;

pub use cage::{Cage, Disk};
pub use cutter::Cutter;
pub use deb::make_deb;
pub use mountinfo::{Mount, mounts};
pub use postgres::{Durability, Postgres, PostgresDatabase};
pub use probe::{Attempt, attempts, probe, static_layer};
pub use recorder::Recorder;
pub use run::{run, run_within, wait_for};
pub use scratch::Scratch;
pub use screen::{STOPS, until_stop};
pub use stream::{Fnv64, Pattern, SCRIBBLED, Scribbles, fnv64, pattern};
